//! Recovery at start: reads the newest valid checkpoint, and each log from the position that it names.

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

/// The origin of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A checkpoint, whose frames have no order.
    Checkpoint,
    /// A log, in the order of its writes.
    Log(LogKind),
}

/// Rebuilds a shard's state from the files.
pub trait Recovery {
    /// Discards everything: the checkpoint that was being read is damaged, and another one follows.
    fn reset(&mut self);

    /// Receives a whole batch. The frames of the checkpoint come first, then those of the `fsync` log, then those
    /// of the `buffered` log. The same record may come from the checkpoint and from a log.
    ///
    /// # Errors
    /// When the frame cannot be accepted. Recovery then stops with [`WalError::Visit`].
    fn frame(&mut self, source: Source, frame: &Frame<'_>) -> Result<(), VisitError>;

    /// Reports progress, every few MiB and at the end.
    fn progress(&mut self, _progress: Progress) {}
}

/// The progress of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    /// The total number of bytes to read.
    pub total: u64,
}

/// The result of recovery.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// The checkpoint that was read.
    pub checkpoint: Option<Checkpoint>,
    /// The end of each log, for [`Log::open`](crate::Log::open).
    pub fsync: LogEnd,
    pub buffered: LogEnd,
    /// Newer checkpoints that are damaged and were not needed. The operator should be told.
    pub passed_over: Vec<Loss>,
    /// Losses that [`OnDamage::Accept`] accepted. The caller must open a gap and write a checkpoint at once,
    /// because the next start reports a damaged checkpoint again until there is a newer one. After the loss of a
    /// checkpoint no data is certain to be complete; after the loss of a part of a log, the Kinds of its mode end
    /// where it was cut.
    pub losses: Vec<Loss>,
}

/// Reads all durable data of a shard. Changes nothing on the disk. `known` has the last frame of each log that was
/// recorded as durable ([`ClockFile::durable`](crate::ClockFile::durable)); a log that ends before it has lost
/// data.
///
/// # Errors
/// When files cannot be read or are damaged; the error names file, offset and what would be lost.
/// [`OnDamage::Accept`] reads what it can instead, but still refuses a file of a later version.
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
    // The part of the logs to replay is unknown until the checkpoint is read, so assume all of it.
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
        // If reading that checkpoint was tried, its damage is already known.
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

/// The files in the data directory.
struct Files {
    checkpoints: Vec<Segment>,
    logs: BTreeMap<LogKind, Vec<Segment>>,
}

impl Files {
    /// The total length of the log segments from a position on.
    fn behind(&self, from: LogPlaces) -> u64 {
        let logs = self.logs.iter().map(|(kind, segments)| {
            let before = removable(segments, from.of(*kind)).len();
            segments[before..].iter().map(|segment| segment.bytes).sum::<u64>()
        });
        logs.sum()
    }

    /// Whether each log has its segments from a position on, judged by their headers.
    fn reach_back(&self, from: LogPlaces) -> bool {
        self.logs.iter().all(|(kind, segments)| {
            let begins = |segment: &Segment| {
                segment.header.as_ref().is_ok_and(|header| header.after <= from.of(*kind))
            };
            segments.iter().any(begins) || segments.is_empty() && from.of(*kind) == FrameSeq::FIRST
        })
    }

    /// The first position in each log.
    fn begin(&self) -> LogPlaces {
        let first = |kind| {
            let headers =
                self.logs.get(&kind).into_iter().flatten().filter_map(|segment| segment.header.as_ref().ok());
            headers.map(|header| header.after).min().unwrap_or(FrameSeq::FIRST)
        };
        LogPlaces { fsync: first(LogKind::Fsync), buffered: first(LogKind::Buffered) }
    }
}

/// The state on which the logs are replayed.
struct Chosen {
    checkpoint: Option<Checkpoint>,
    from: LogPlaces,
    until: LogPlaces,
    passed_over: Vec<Loss>,
    losses: Vec<Loss>,
}

/// Reads the newest checkpoint that is valid and has its logs.
fn choose(
    disk: &dyn Disk,
    files: &Files,
    on_damage: OnDamage,
    reading: &mut Reading<'_>,
) -> Result<Chosen, WalError> {
    let mut passed_over = Vec::new();
    for file in files.checkpoints.iter().rev() {
        if let Some(from) = head(disk, file)?.ok().filter(|_| !checkpoint::newer(file)) {
            // For the newest checkpoint, `scan` reports missing log segments. An older one is tried only if its
            // logs are there.
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
    // Complete logs need no checkpoint.
    if files.reach_back(LogPlaces::FIRST) {
        let (from, until) = (LogPlaces::FIRST, LogPlaces::NONE);
        return Ok(Chosen { checkpoint: None, from, until, passed_over, losses: Vec::new() });
    }
    if on_damage == OnDamage::Refuse {
        return Err(WalError::Damaged(Box::new(newest)));
    }
    salvage(disk, files, passed_over, reading)
}

/// No checkpoint is valid, and the loss is accepted: reads what it can of the newest one, and the logs as far back
/// as they exist.
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

/// Passes frames on to the [`Recovery`], and counts progress.
struct Reading<'r> {
    recovery: &'r mut dyn Recovery,
    source: Source,
    /// The highest checkpoint number that the log says it needs.
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
