//! Reads a log from a position on, and decides whether its end is torn or damaged.
//!
//! The last segment may end in a write that a crash cut short. Any other position that does not hold the next whole
//! frame was durable once, so it is damage: a bad frame in a segment that has a successor; a bad frame below a
//! `synced` or `whole` of the last segment, or before the last frame that is recorded as durable; a bad frame of
//! the fsync log that lacks no whole sector; a file that became shorter; a missing segment; an invalid header (a
//! segment gets its name only when its header is durable).

use std::path::{Path, PathBuf};

use kindred_partition_config::ids::Revision;

use crate::{
    disk::Disk,
    error::{Damage, Loss, OnDamage, TornTail, VisitError, WalError},
    format::{FILE_HEADER_BYTES, FileHeader, FrameDamage, FrameKind, Seed},
    layout::{LogKind, SEGMENT, numbered},
    number::{FileNumber, FrameSeq},
    reader::{Found, FrameReader, is_torn, survivors, used},
    record::Records,
    segments::{Segment, segments},
};

/// A whole frame of a log or a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    pub seq: FrameSeq,
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The batch's records. They are already validated, so none is an error.
    pub fn records(&self) -> impl Iterator<Item = crate::Record<'a>> + use<'a> {
        Records::new(self.payload).filter_map(Result::ok)
    }
}

/// The part of a log to read.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The first frame to visit.
    pub from: FrameSeq,
    /// The last frame that the checkpoint relies on or that is recorded as durable. The log must reach it. 0 for
    /// none.
    pub until: FrameSeq,
    pub on_damage: OnDamage,
}

impl Wanted {
    /// The whole of a log that has no checkpoint.
    pub const ALL: Self = Self { from: FrameSeq::FIRST, until: FrameSeq(0), on_damage: OnDamage::Refuse };
}

/// The end of a log, for [`Log::open`](crate::Log::open).
#[derive(Debug, Clone)]
pub struct LogEnd {
    /// The sequence number of the next frame.
    pub next: FrameSeq,
    /// The incomplete write after the last whole frame, if a crash left one.
    pub torn: Option<TornTail>,
    pub loss: Option<Loss>,
    /// The end of the valid frames: frames of the old segments from this number on do not count.
    pub(crate) after: FrameSeq,
    /// Readable frames that are not proven durable. The next segment begins with them, so that a frame that was
    /// recovered once is always recovered, even if the system has given up writing the old segment (as after a
    /// failed fsync).
    pub(crate) unproven: Vec<(FrameSeq, Vec<u8>)>,
    pub(crate) number: FileNumber,
    /// Segments to set aside before the next one is created, last one first.
    pub(crate) discard: Vec<PathBuf>,
}

impl LogEnd {
    /// The end of a log that has no segment.
    #[must_use]
    pub const fn fresh() -> Self {
        Self {
            next: FrameSeq::FIRST,
            torn: None,
            loss: None,
            after: FrameSeq::FIRST,
            unproven: Vec::new(),
            number: FileNumber(1),
            discard: Vec::new(),
        }
    }
}

/// Receives what is read from files.
pub trait Visit {
    /// Receives each whole frame once, in order.
    ///
    /// # Errors
    /// When the frame cannot be accepted. Reading stops then.
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), VisitError>;

    /// Reports that this many more bytes were read.
    fn progress(&mut self, _bytes: u64) {}
}

/// Reads a log's frames in order from a position on. Changes nothing on the disk; the result says what
/// [`Log::open`](crate::Log::open) must change.
///
/// # Errors
/// When files cannot be read or are damaged (unless the damage is accepted), or the visitor refuses a frame.
pub fn scan(
    disk: &dyn Disk,
    directory: &Path,
    kind: LogKind,
    wanted: Wanted,
    visit: &mut dyn Visit,
) -> Result<LogEnd, WalError> {
    let all = segments(disk, directory, kind)?;
    let mut scan = Scan { disk, directory, kind, wanted, visit, all: &all, expect: wanted.from };
    match scan.run()? {
        Stop::End(end) => Ok(end),
        Stop::Damaged(at) => scan.damaged(at),
    }
}

struct Scan<'a> {
    disk: &'a dyn Disk,
    directory: &'a Path,
    kind: LogKind,
    wanted: Wanted,
    visit: &'a mut dyn Visit,
    all: &'a [Segment],
    /// The expected sequence number.
    expect: FrameSeq,
}

/// The result of reading.
enum Stop {
    End(LogEnd),
    Damaged(At),
}

/// The place of damage.
struct At {
    /// The number of segments to keep, including the damaged one if its head is kept.
    keep: usize,
    file: PathBuf,
    offset: u64,
    damage: Damage,
}

impl Scan<'_> {
    fn run(&mut self) -> Result<Stop, WalError> {
        let Some((start, mut header)) = self.start() else { return Ok(self.without_start()) };
        for index in start..self.all.len() {
            let segment = &self.all[index];
            self.expect = header.first;
            let next = self.all.get(index + 1);
            let next_header = next.and_then(|next| {
                next.header.as_ref().ok().filter(|_| next.number == segment.number.next()).copied()
            });
            let ends = Ends { last: next.is_none(), at: next_header.map(|next| next.after) };
            match self.segment(index, &header, ends)? {
                Some(stop) => return Ok(stop),
                None => match (next, next_header) {
                    (_, Some(next_header)) => header = next_header,
                    (Some(next), None) => {
                        return Ok(Stop::Damaged(self.no_header(index + 1, next, segment.number)));
                    }
                    (None, None) => {}
                },
            }
        }
        let number = self.all.last().map_or(FileNumber(1), |last| last.number.next());
        Ok(self.too_short().map_or_else(|| Stop::End(self.end(number, None, Vec::new())), Stop::Damaged))
    }

    /// The last segment that begins at or before the wanted frame.
    fn start(&self) -> Option<(usize, FileHeader)> {
        let headers = self.all.iter().enumerate().rev();
        let mut headers =
            headers.filter_map(|(index, segment)| Some((index, *segment.header.as_ref().ok()?)));
        headers.find(|(_, header)| header.after <= self.wanted.from)
    }

    /// The result if no segment begins early enough.
    fn without_start(&self) -> Stop {
        let Some(first) = self.all.first() else {
            if self.wanted.from == FrameSeq::FIRST && self.wanted.until.0 == 0 {
                return Stop::End(LogEnd::fresh());
            }
            let file = numbered(self.directory, FileNumber(1), SEGMENT);
            return Stop::Damaged(At { keep: 0, file, offset: 0, damage: Damage::Missing });
        };
        Stop::Damaged(match &first.header {
            Err(damage) => At { keep: 0, file: first.path.clone(), offset: 0, damage: (*damage).into() },
            Ok(_) => {
                let before = FileNumber(first.number.0.saturating_sub(1));
                let file = numbered(self.directory, before, SEGMENT);
                At { keep: 0, file, offset: 0, damage: Damage::Missing }
            }
        })
    }

    /// The damage if the segment after `before` is missing or has an invalid header.
    fn no_header(&self, index: usize, next: &Segment, before: FileNumber) -> At {
        if next.number != before.next() {
            let file = numbered(self.directory, before.next(), SEGMENT);
            return At { keep: index, file, offset: 0, damage: Damage::Missing };
        }
        let damage = next.header.as_ref().err().cloned().map_or(Damage::Missing, Damage::Header);
        At { keep: index, file: next.path.clone(), offset: 0, damage }
    }

    /// The damage if the log ends before a frame that it must reach.
    fn too_short(&self) -> Option<At> {
        let last = self.all.last().filter(|_| self.expect <= self.wanted.until)?;
        let damage = Damage::TooShort { last: self.expect.prev(), needed: self.wanted.until };
        Some(At { keep: self.all.len(), file: last.path.clone(), offset: last.bytes, damage })
    }

    fn end(&self, number: FileNumber, torn: Option<TornTail>, unproven: Vec<(FrameSeq, Vec<u8>)>) -> LogEnd {
        let after = unproven.first().map_or(self.expect, |(seq, _)| *seq);
        LogEnd { next: self.expect, torn, loss: None, after, unproven, number, discard: Vec::new() }
    }

    /// Reads one segment; `None` if the next one is to be read.
    fn segment(&mut self, index: usize, header: &FileHeader, ends: Ends) -> Result<Option<Stop>, WalError> {
        let segment = &self.all[index];
        let path = &segment.path;
        let read_error = |source| WalError::io("read", path)(source);
        let file = self.disk.open_read(path).map_err(WalError::io("open", path))?;
        let (_, seed) = header.encode();
        let mut reader = FrameReader::new(file, seed).map_err(read_error)?;
        let mut tail = Tail { proof: header.whole, frames: Vec::new() };
        let mut told = 0;
        let damage = loop {
            if ends.at.is_some_and(|end| self.expect >= end) {
                break None;
            }
            let offset = reader.offset();
            if offset - told >= PROGRESS_BYTES {
                self.visit.progress(offset - told);
                told = offset;
            }
            match reader.next(self.expect).map_err(read_error)? {
                Found::Frame { header, payload } if header.kind == FrameKind::Batch => {
                    let seq = header.seq;
                    if seq >= self.wanted.from {
                        let refused = |source| WalError::Visit { path: path.clone(), offset, source };
                        self.visit.frame(&Frame { seq, payload }).map_err(refused)?;
                    }
                    if ends.last {
                        tail.take(offset, header.synced, seq, payload);
                    }
                    self.expect = seq.next();
                }
                Found::Frame { header, .. } => break Some((offset, FrameDamage::Kind(header.seq))),
                Found::End if ends.at.is_none() && offset >= header.whole => break None,
                Found::End => break Some((offset, FrameDamage::Short)),
                Found::Damaged(damage) => match self.skip(&reader, seed).map_err(read_error)? {
                    Some((offset, seq)) => {
                        reader.seek(offset);
                        self.expect = seq;
                    }
                    None => break Some((offset, damage)),
                },
            }
        };
        self.visit.progress(segment.bytes.saturating_sub(told));
        let cut = ends.last && segment.bytes < u64::from(header.length);
        let cut = cut.then(|| Damage::Cut { bytes: segment.bytes, were: header.length.into() });
        let Some((offset, damage)) = damage else {
            if !ends.last {
                return Ok(None);
            }
            if let Some(damage) = cut {
                let at = At { keep: index + 1, file: path.clone(), offset: reader.offset(), damage };
                return Ok(Some(Stop::Damaged(at)));
            }
            return Ok(self.too_short().map_or_else(
                || Some(Stop::End(self.end(segment.number.next(), None, tail.into_unproven()))),
                |at| Some(Stop::Damaged(at)),
            ));
        };
        let newer = Damage::Frame(damage.clone()).is_newer();
        let crashed = ends.at.is_none() && !newer && offset >= header.whole && cut.is_none();
        let torn = crashed
            && (self.kind == LogKind::Buffered
                || is_torn(reader.file(), seed, offset, &damage).map_err(read_error)?)
            && !proven(&reader, seed, offset).map_err(read_error)?;
        if torn && ends.last {
            if let Some(at) = self.too_short() {
                return Ok(Some(Stop::Damaged(At { offset, ..at })));
            }
            let bytes = used(reader.file()).map_err(read_error)?.saturating_sub(offset);
            let torn = TornTail { file: path.clone(), offset, bytes, damage };
            return Ok(Some(Stop::End(self.end(segment.number.next(), Some(torn), tail.into_unproven()))));
        }
        if torn {
            // The next segment is damaged or missing, which is what to report.
            return Ok(None);
        }
        let damage = cut.unwrap_or(damage.into());
        Ok(Some(Stop::Damaged(At { keep: index + 1, file: path.clone(), offset, damage })))
    }

    /// Skips damage among frames that are not wanted: finds the next valid frame.
    fn skip(&self, reader: &FrameReader, seed: Seed) -> std::io::Result<Option<(u64, FrameSeq)>> {
        let mut found = None;
        if self.expect < self.wanted.from {
            let wanted = self.expect..=self.wanted.from;
            survivors(reader.file(), seed, reader.offset(), |frame| {
                if frame.payload.is_some()
                    && wanted.contains(&frame.header.seq)
                    && frame.offset > reader.offset()
                {
                    found = Some((frame.offset, frame.header.seq));
                }
                found.is_none()
            })?;
        }
        Ok(found)
    }

    /// Turns damage into an error, or into the end of the log with its loss.
    fn damaged(&mut self, at: At) -> Result<LogEnd, WalError> {
        let At { keep, file, offset, damage } = at;
        if damage.is_newer() {
            return Err(WalError::Newer { path: file, why: damage });
        }
        let mut behind =
            Behind { frames: 0, bytes: 0, revisions: None, last: self.expect.prev().max(self.wanted.until) };
        let (kept, rest) = self.all.split_at(keep);
        // A kept damaged file counts from the damage on.
        for (segment, from) in kept
            .last()
            .filter(|last| last.path == file)
            .map(|last| (last, offset))
            .into_iter()
            .chain(rest.iter().map(|segment| (segment, FILE_HEADER_BYTES as u64)))
        {
            behind.count(self.disk, segment, from)?;
        }
        let loss = Loss {
            file,
            offset,
            damage,
            frames: behind.frames,
            bytes: behind.bytes,
            revisions: behind.revisions,
        };
        if self.wanted.on_damage == OnDamage::Refuse {
            return Err(WalError::Damaged(Box::new(loss)));
        }
        Ok(LogEnd {
            // The sequence numbers of lost frames are not reused.
            next: behind.last.next(),
            torn: None,
            loss: Some(loss),
            after: self.expect.max(self.wanted.from),
            unproven: Vec::new(),
            number: kept.last().map_or(FileNumber(1), |last| last.number.next()),
            discard: rest.iter().rev().map(|segment| segment.path.clone()).collect(),
        })
    }
}

/// The number of bytes between progress reports.
const PROGRESS_BYTES: u64 = 16 << 20;

/// The limits of a segment.
#[derive(Clone, Copy)]
struct Ends {
    /// Whether no segment follows.
    last: bool,
    /// The first frame that does not count, by the header of the next segment, if that is valid.
    at: Option<FrameSeq>,
}

/// The frames at the end of the last segment that no later frame proves durable.
struct Tail {
    /// All bytes below this offset were durable.
    proof: u64,
    frames: Vec<(u64, FrameSeq, Vec<u8>)>,
}

impl Tail {
    fn take(&mut self, offset: u64, synced: u64, seq: FrameSeq, payload: &[u8]) {
        if synced > self.proof {
            self.proof = synced;
            self.frames.retain(|(offset, ..)| *offset >= synced);
        }
        if offset >= self.proof {
            self.frames.push((offset, seq, payload.to_vec()));
        }
    }

    fn into_unproven(self) -> Vec<(FrameSeq, Vec<u8>)> {
        self.frames.into_iter().map(|(_, seq, payload)| (seq, payload)).collect()
    }
}

/// Whether a later frame proves that the bytes at an offset were durable.
fn proven(reader: &FrameReader, seed: Seed, offset: u64) -> std::io::Result<bool> {
    let mut proven = false;
    survivors(reader.file(), seed, offset, |frame| {
        proven |= frame.header.synced > offset;
        !proven
    })?;
    Ok(proven)
}

/// What is lost after damage.
struct Behind {
    frames: u64,
    bytes: u64,
    revisions: Option<(Revision, Revision)>,
    last: FrameSeq,
}

impl Behind {
    fn count(&mut self, disk: &dyn Disk, segment: &Segment, from: u64) -> Result<(), WalError> {
        let file = disk.open_read(&segment.path).map_err(WalError::io("open", &segment.path))?;
        let used = used(&*file).map_err(WalError::io("read", &segment.path))?;
        self.bytes += used.saturating_sub(from);
        let Some(seed) = segment.seed else { return Ok(()) };
        let counted = survivors(&*file, seed, from, |frame| {
            self.last = self.last.max(frame.header.seq);
            if let Some(payload) = frame.payload {
                self.frames += 1;
                for revision in Records::new(payload).flatten().filter_map(|record| record.revision()) {
                    let (first, last) = self.revisions.unwrap_or((revision, revision));
                    self.revisions = Some((first.min(revision), last.max(revision)));
                }
            }
            true
        });
        counted.map_err(WalError::io("read", &segment.path))
    }
}
