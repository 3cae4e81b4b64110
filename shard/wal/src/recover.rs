//! What a start reads: the newest checkpoint that is whole, and each log from the place that it names.

use std::collections::BTreeMap;

use crate::{
    checkpoint::{self, Checkpoint, LogPlaces, head, read_checkpoint},
    disk::Disk,
    error::{Damage, Loss, OnDamage, VisitError, WalError},
    layout::{CHECKPOINT, Layout, LogKind, numbered},
    number::{FileNumber, FrameSeq},
    record::Record,
    scan::{Frame, LogEnd, Visit, Wanted, scan},
    segments::{Segment, removable, segments},
};

/// Where a frame comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A checkpoint: in no order.
    Checkpoint,
    /// A log: in the order in which it was written.
    Log(LogKind),
}

/// What gathers a shard's state while its files are read.
pub trait Recovery {
    /// Forget everything: the checkpoint that was being read is damaged, and another one is read.
    fn reset(&mut self);

    /// A whole batch. Those of the checkpoint come first, then those of the `fsync` log, then those of the `buffered` log. A record may come
    /// again, from the checkpoint and from a log.
    ///
    /// # Errors
    /// When it cannot be taken: recovery stops with [`WalError::Visit`].
    fn frame(&mut self, source: Source, frame: &Frame<'_>) -> Result<(), VisitError>;

    /// So much of what is to be read was read. Told every few MiB and at the end.
    fn progress(&mut self, _progress: Progress) {}
}

/// How far reading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub done: u64,
    /// Bytes to be read.
    pub total: u64,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// The checkpoint that was read.
    pub checkpoint: Option<Checkpoint>,
    /// Where each log ends, for [`Log::open`](crate::Log::open).
    pub fsync: LogEnd,
    /// As `fsync`.
    pub buffered: LogEnd,
    /// Newer checkpoints that are damaged and were not needed. To be told to the operator.
    pub passed_over: Vec<Loss>,
    /// What was lost, and accepted with [`OnDamage::Accept`]: a gap is to be opened. Make a checkpoint at once:
    /// damage to a checkpoint is refused again at the next start, until there is a newer one. Of a checkpoint: nothing is certain to be whole; of a
    /// log: the Kinds of its mode end where it was cut.
    pub losses: Vec<Loss>,
}

/// Reads everything that a shard keeps. Changes nothing on the disk. `known` says which frame of each log was the last that was known to be
/// on the disk ([`ClockFile::durable`](crate::ClockFile::durable)): a log that ends before it has lost something.
///
/// # Errors
/// When files cannot be read or are damaged, naming file, offset and what would be lost; with [`OnDamage::Accept`] reads what it can
/// instead. A file of a later version is refused all the same.
pub fn recover(
    disk: &dyn Disk,
    layout: &Layout,
    known: LogPlaces,
    on_damage: OnDamage,
    recovery: &mut dyn Recovery,
) -> Result<Recovered, WalError> {
    let files = Files {
        checkpoints: checkpoint::checkpoints(disk, layout)?,
        logs: LogKind::ALL
            .into_iter()
            .map(|kind| Ok((kind, segments(disk, &layout.log(kind), kind)?)))
            .collect::<Result<_, WalError>>()?,
    };
    // What follows a checkpoint is known when it is read; until then it is guessed to be everything.
    let total = files.checkpoints.last().map_or(0, |file| file.bytes) + files.behind(LogPlaces::FIRST);
    let mut reading = Reading {
        recovery,
        source: Source::Checkpoint,
        needs: None,
        progress: Progress { done: 0, total },
        told: 0,
    };
    let chosen = choose(disk, &files, on_damage, &mut reading)?;
    let done = reading.progress.done;
    reading.progress.total = done + files.behind(chosen.from);
    let mut losses = chosen.losses;
    let mut ends = BTreeMap::new();
    for kind in LogKind::ALL {
        reading.source = Source::Log(kind);
        let wanted = Wanted {
            from: chosen.from.of(kind),
            until: chosen.until.of(kind).max(known.of(kind)),
            on_damage,
        };
        let end = scan(disk, &layout.log(kind), kind, wanted, &mut reading)?;
        losses.extend(end.loss.clone());
        ends.insert(kind, end);
    }
    reading.recovery.progress(Progress { done: reading.progress.total, ..reading.progress });
    if let Some(needed) =
        reading.needs.filter(|needed| chosen.checkpoint.as_ref().is_none_or(|it| it.number < *needed))
    {
        let file = numbered(&layout.checkpoints(), needed, CHECKPOINT);
        let damage = Damage::NeedsCheckpoint(needed);
        // What is damaged of it was found when it was tried.
        let loss = match chosen.passed_over.iter().find(|loss| loss.file == file) {
            Some(found) => Loss { damage, ..found.clone() },
            None => Loss { file, offset: 0, damage, frames: 0, bytes: 0, revisions: None },
        };
        if on_damage == OnDamage::Refuse {
            return Err(WalError::Damaged(Box::new(loss)));
        }
        losses.push(loss);
    }
    let mut end = |kind| ends.remove(&kind).unwrap_or_else(LogEnd::fresh);
    Ok(Recovered {
        checkpoint: chosen.checkpoint,
        fsync: end(LogKind::Fsync),
        buffered: end(LogKind::Buffered),
        passed_over: chosen.passed_over,
        losses,
    })
}

/// What lies in the directories.
struct Files {
    checkpoints: Vec<Segment>,
    logs: BTreeMap<LogKind, Vec<Segment>>,
}

impl Files {
    /// Bytes of the logs from a place on.
    fn behind(&self, from: LogPlaces) -> u64 {
        let logs = self.logs.iter().map(|(kind, segments)| {
            let before = removable(segments, from.of(*kind)).len();
            segments[before..].iter().map(|segment| segment.bytes).sum::<u64>()
        });
        logs.sum()
    }

    /// Whether each log has the segments from a place on, as far as their beginning tells.
    fn reach_back(&self, from: LogPlaces) -> bool {
        self.logs.iter().all(|(kind, segments)| {
            let begins = |segment: &Segment| {
                segment.header.as_ref().is_ok_and(|header| header.after <= from.of(*kind))
            };
            segments.iter().any(begins) || segments.is_empty() && from.of(*kind) == FrameSeq::FIRST
        })
    }

    /// The earliest place of each log that is there.
    fn begin(&self) -> LogPlaces {
        let first = |kind| {
            let headers =
                self.logs.get(&kind).into_iter().flatten().filter_map(|segment| segment.header.as_ref().ok());
            headers.map(|header| header.after).min().unwrap_or(FrameSeq::FIRST)
        };
        LogPlaces { fsync: first(LogKind::Fsync), buffered: first(LogKind::Buffered) }
    }
}

/// What to replay the logs on.
struct Chosen {
    checkpoint: Option<Checkpoint>,
    from: LogPlaces,
    until: LogPlaces,
    passed_over: Vec<Loss>,
    losses: Vec<Loss>,
}

/// Reads the newest checkpoint that is whole and whose logs are there.
fn choose(
    disk: &dyn Disk,
    files: &Files,
    on_damage: OnDamage,
    reading: &mut Reading<'_>,
) -> Result<Chosen, WalError> {
    let mut passed_over = Vec::new();
    for file in files.checkpoints.iter().rev() {
        if let Some(from) = head(disk, file)?.ok().filter(|_| !checkpoint::newer(file)) {
            // The newest one's logs must be there; `scan` says what of them is not. Older ones are worth a try only with theirs.
            if !passed_over.is_empty() && !files.reach_back(from) {
                continue;
            }
        }
        match read_checkpoint(disk, file, reading) {
            Ok(it) => {
                let (from, until) = (it.from, it.until);
                return Ok(Chosen { checkpoint: Some(it), from, until, passed_over, losses: Vec::new() });
            }
            Err(WalError::Damaged(loss)) => {
                passed_over.push(*loss);
                reading.recovery.reset();
            }
            Err(other) => return Err(other),
        }
    }
    let Some(newest) = passed_over.first().cloned() else {
        let (from, until) = (LogPlaces::FIRST, LogPlaces::NONE);
        return Ok(Chosen { checkpoint: None, from, until, passed_over, losses: Vec::new() });
    };
    // Logs that nothing was ever removed from do without.
    if files.reach_back(LogPlaces::FIRST) {
        let (from, until) = (LogPlaces::FIRST, LogPlaces::NONE);
        return Ok(Chosen { checkpoint: None, from, until, passed_over, losses: Vec::new() });
    }
    if on_damage == OnDamage::Refuse {
        return Err(WalError::Damaged(Box::new(newest)));
    }
    salvage(disk, files, passed_over, reading)
}

/// No checkpoint is whole, and that is accepted: what can be read of the newest one, and the logs as far back as they are there.
fn salvage(
    disk: &dyn Disk,
    files: &Files,
    losses: Vec<Loss>,
    reading: &mut Reading<'_>,
) -> Result<Chosen, WalError> {
    let mut from = files.begin();
    if let Some(newest) = files.checkpoints.last() {
        if let Ok(named) = head(disk, newest)? {
            from =
                LogPlaces { fsync: from.fsync.max(named.fsync), buffered: from.buffered.max(named.buffered) };
        }
        match read_checkpoint(disk, newest, reading) {
            Ok(_) | Err(WalError::Damaged(_)) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(Chosen { checkpoint: None, from, until: LogPlaces::NONE, passed_over: Vec::new(), losses })
}

/// Hands on what is read.
struct Reading<'r> {
    recovery: &'r mut dyn Recovery,
    source: Source,
    /// The highest checkpoint that the log says it needs.
    needs: Option<FileNumber>,
    progress: Progress,
    told: u64,
}

impl Visit for Reading<'_> {
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), VisitError> {
        if self.source == Source::Log(LogKind::Fsync) {
            for record in frame.records() {
                if let Record::Needs(number) = record {
                    self.needs = self.needs.max(Some(number));
                }
            }
        }
        self.recovery.frame(self.source, frame)
    }

    fn progress(&mut self, bytes: u64) {
        self.progress.done = (self.progress.done + bytes).min(self.progress.total);
        if self.progress.done - self.told >= 8 << 20 {
            self.told = self.progress.done;
            self.recovery.progress(self.progress);
        }
    }
}
