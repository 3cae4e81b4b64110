//! Checkpoints: one file with everything that a shard keeps, so that the logs before it may go.
//!
//! A checkpoint is fuzzy: it is written while the shard works, so it names for each log the place `from` which the log is to be replayed
//! after it (the log's next frame when the walk began) and the place `until` which the log must reach (its last frame when the walk ended),
//! because what was written during the walk may be in the checkpoint or not. It must be finished only when both logs are durable to there:
//! otherwise it could hold a change whose predecessor was lost.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    disk::{Disk, DiskFile, UNFINISHED, ensure_directory, read_full, unfinished},
    error::{Damage, Loss, WalError},
    format::{
        FILE_HEADER_BYTES, FORMAT_VERSION, FRAME_HEADER_BYTES, FileHeader, FileKind, FrameDamage,
        FrameHeader, FrameKind, HeaderDamage, Seed, get_u64,
    },
    layout::{CHECKPOINT, Layout, LogKind, number_of, numbered},
    number::{FileNumber, FrameSeq},
    reader::{Found, FrameReader, survivors},
    record::{Batch, Records},
    scan::{Frame, Visit},
    segments::{Segment, numbered_files},
    writer::executor::Out,
};

/// A place in each log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlaces {
    /// In the log of mode `fsync`.
    pub fsync: FrameSeq,
    /// In the log of mode `buffered`.
    pub buffered: FrameSeq,
}

impl LogPlaces {
    /// The beginning of both.
    pub const FIRST: Self = Self { fsync: FrameSeq::FIRST, buffered: FrameSeq::FIRST };

    /// Before the beginning of both.
    pub const NONE: Self = Self { fsync: FrameSeq(0), buffered: FrameSeq(0) };

    /// That of one log.
    #[must_use]
    pub const fn of(&self, kind: LogKind) -> FrameSeq {
        match kind {
            LogKind::Fsync => self.fsync,
            LogKind::Buffered => self.buffered,
        }
    }

    fn set(&mut self, kind: LogKind, seq: FrameSeq) {
        match kind {
            LogKind::Fsync => self.fsync = seq,
            LogKind::Buffered => self.buffered = seq,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let entries = LogKind::ALL.map(|kind| (kind.file_kind() as u8, self.of(kind).0.to_le_bytes()));
        entries.into_iter().flat_map(|(kind, seq)| [&[kind][..], &seq].concat()).collect()
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let mut places = [None; 2];
        for entry in payload.chunks(9) {
            let kind = LogKind::of_file_kind(FileKind::from_byte(*entry.first()?)?)?;
            let seq = (entry.len() == 9).then(|| FrameSeq(get_u64(entry, 1)))?;
            places[usize::from(kind == LogKind::Buffered)] = Some(seq);
        }
        let mut all = Self::FIRST;
        for (kind, place) in LogKind::ALL.into_iter().zip(places) {
            all.set(kind, place?);
        }
        Some(all)
    }
}

/// A whole checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number.
    pub number: FileNumber,
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its first frame that each log is to be replayed from.
    pub from: LogPlaces,
    /// The last frame that each log must reach.
    pub until: LogPlaces,
}

/// Writes a checkpoint. One at a time in a shard, on a thread that may wait for the disk. Dropped unfinished, it is removed.
#[derive(Debug)]
pub struct CheckpointWriter {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    number: FileNumber,
    from: LogPlaces,
    file: Box<dyn DiskFile>,
    seed: Seed,
    next: FrameSeq,
    offset: u64,
    unsynced: u64,
    buffer: Vec<u8>,
    finished: bool,
}

/// What is not synced yet never grows above this: a sync of gigabytes would hold up the logs' own.
const SYNC_BYTES: u64 = 16 << 20;

impl CheckpointWriter {
    /// Begins the next checkpoint. `from` is [`Log::next`](crate::Log::next) of each log, asked before the walk through the shard's state
    /// begins, and in the same turn in which it begins. `salt` is random; a disk with less than `min_free_bytes` is refused as full.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(
        disk: Arc<dyn Disk>,
        layout: &Layout,
        from: LogPlaces,
        salt: u64,
        min_free_bytes: u64,
    ) -> Result<Self, WalError> {
        let directory = layout.checkpoints();
        ensure_directory(&*disk, &directory).map_err(WalError::io("make", &directory))?;
        let names = disk.list(&directory).map_err(WalError::io("list", &directory))?;
        for left in names.iter().filter(|name| name.ends_with(UNFINISHED)) {
            let left = directory.join(left);
            disk.remove(&left).map_err(WalError::io("remove", &left))?;
        }
        let highest = names.iter().filter_map(|name| number_of(name, CHECKPOINT)).max();
        let number = highest.map_or(FileNumber(1), FileNumber::next);
        let path = numbered(&directory, number, CHECKPOINT);
        let free = disk.free_space(&directory).map_err(WalError::io("measure", &directory))?;
        if free < min_free_bytes {
            return Err(WalError::io("make", &path)(std::io::ErrorKind::StorageFull.into()));
        }
        let (first, kind) = (FrameSeq::FIRST, FileKind::Checkpoint);
        let version = FORMAT_VERSION;
        let header = FileHeader { kind, number, first, after: first, whole: 0, salt, length: 0, version };
        let (head, seed) = header.encode();
        let file = disk.create(&unfinished(&path)).map_err(WalError::io("make", &path))?;
        let (buffer, offset, unsynced, next) = (head.to_vec(), 0, 0, first);
        let mut new =
            Self { disk, path, number, from, file, seed, next, offset, unsynced, buffer, finished: false };
        new.frame(FrameKind::CheckpointHead, &from.encode())?;
        Ok(new)
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> FileNumber {
        self.number
    }

    /// Adds a batch. Those of some hundred KiB are right: a frame costs 32 bytes, and is held whole by who reads it.
    ///
    /// # Errors
    /// When the file system refuses, or the batch is too large. The checkpoint is of no use then.
    pub fn write(&mut self, batch: Batch) -> Result<(), WalError> {
        let payload = batch.into_payload().map_err(|large| self.error(std::io::Error::other(large)))?;
        self.frame(FrameKind::Batch, &payload)
    }

    fn frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), WalError> {
        let buffer = std::mem::take(&mut self.buffer);
        let header = FrameHeader::of(kind, self.next, 0, self.offset + buffer.len() as u64, payload);
        let mut out = Out { file: &mut *self.file, offset: self.offset, buffer };
        let written = out.frame(self.seed, &header, payload);
        let (offset, buffer) = (out.offset, out.buffer);
        self.unsynced += offset - self.offset;
        (self.offset, self.buffer, self.next) = (offset, buffer, self.next.next());
        written.map_err(|error| self.error(error))?;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync().map_err(|error| self.error(error))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Ends it: syncs it and gives it its name. `until` is `Log::next().prev()` of each log, asked when the walk had ended, and both logs are
    /// durable to there (the caller has waited for it). From when this returns, what [`sweep`] removes is not needed any more.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn finish(mut self, until: LogPlaces) -> Result<Checkpoint, WalError> {
        self.frame(FrameKind::CheckpointEnd, &until.encode())?;
        let done = (|| {
            self.file.write_at(self.offset, &self.buffer)?;
            self.file.sync()?;
            self.disk.rename(&unfinished(&self.path), &self.path)?;
            // From here on it is not ours to remove, whatever happens.
            self.finished = true;
            self.path.parent().map_or(Ok(()), |directory| self.disk.sync_directory(directory))
        })();
        done.map_err(|error| self.error(error))?;
        let bytes = self.offset + self.buffer.len() as u64;
        Ok(Checkpoint { number: self.number, path: self.path.clone(), bytes, from: self.from, until })
    }

    fn error(&self, source: std::io::Error) -> WalError {
        WalError::io("write", &self.path)(source)
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed before the next one.
            self.disk.remove(&unfinished(&self.path)).ok();
        }
    }
}

/// The checkpoints of a shard, the oldest first. Only heads are read.
///
/// # Errors
/// When the file system refuses. Damage is in the answer.
pub fn checkpoints(disk: &dyn Disk, layout: &Layout) -> Result<Vec<Segment>, WalError> {
    numbered_files(disk, &layout.checkpoints(), CHECKPOINT, FileKind::Checkpoint)
}

/// From where each log is replayed after a checkpoint, or why that cannot be read.
pub(crate) fn head(disk: &dyn Disk, file: &Segment) -> Result<Result<LogPlaces, Damage>, WalError> {
    let header = match &file.header {
        Ok(header) => header,
        Err(damage) => return Ok(Err((*damage).into())),
    };
    let mut reader = open(disk, &file.path, header)?;
    let found = reader.next(FrameSeq::FIRST).map_err(WalError::io("read", &file.path))?;
    Ok(match found {
        Found::Frame { header, payload } if header.kind == FrameKind::CheckpointHead => {
            LogPlaces::decode(payload).ok_or(Damage::Incomplete)
        }
        Found::Frame { .. } | Found::End => Err(Damage::Incomplete),
        Found::Damaged(damage) => Err(damage.into()),
    })
}

fn open(disk: &dyn Disk, path: &Path, header: &FileHeader) -> Result<FrameReader, WalError> {
    let file = disk.open_read(path).map_err(WalError::io("open", path))?;
    let (_, seed) = header.encode();
    FrameReader::new(file, seed).map_err(WalError::io("read", path))
}

/// Reads a whole checkpoint. Its frames are visited as they are read: when it turns out to be damaged, those before the damage have been.
///
/// # Errors
/// [`WalError::Damaged`] when it is not whole; other errors as of [`scan`](crate::scan()).
pub fn read_checkpoint(
    disk: &dyn Disk,
    file: &Segment,
    visit: &mut dyn Visit,
) -> Result<Checkpoint, WalError> {
    let header = match &file.header {
        Ok(header) => header,
        Err(damage) => return Err(damaged(disk, file, 0, (*damage).into())),
    };
    let path = &file.path;
    let mut reader = open(disk, path, header)?;
    let (mut expect, mut from, mut told) = (FrameSeq::FIRST, None, 0);
    loop {
        let offset = reader.offset();
        visit.progress(offset - told);
        told = offset;
        let found = reader.next(expect).map_err(WalError::io("read", path))?;
        let (header, payload) = match found {
            Found::Frame { header, payload } => (header, payload),
            Found::End => return Err(damaged(disk, file, offset, Damage::Incomplete)),
            Found::Damaged(damage) => return Err(damaged(disk, file, offset, damage.into())),
        };
        let wrong = || damaged(disk, file, offset, FrameDamage::Kind(header.seq).into());
        match (header.kind, from) {
            (FrameKind::CheckpointHead, None) => from = Some(LogPlaces::decode(payload).ok_or_else(wrong)?),
            (FrameKind::Batch, Some(_)) => {
                let refused = |source| WalError::Visit { path: path.clone(), offset, source };
                visit.frame(&Frame { seq: header.seq, payload }).map_err(refused)?;
            }
            (FrameKind::CheckpointEnd, Some(from)) => {
                let until = LogPlaces::decode(payload).ok_or_else(wrong)?;
                return Ok(Checkpoint {
                    number: file.number,
                    path: path.clone(),
                    bytes: file.bytes,
                    from,
                    until,
                });
            }
            _ => return Err(wrong()),
        }
        expect = expect.next();
    }
}

/// The error for a checkpoint, with what is behind the damage.
pub(crate) fn damaged(disk: &dyn Disk, file: &Segment, offset: u64, damage: Damage) -> WalError {
    if damage.is_newer() {
        return WalError::Newer { path: file.path.clone(), why: damage };
    }
    let bytes = file.bytes.saturating_sub(offset);
    let mut loss = Loss { file: file.path.clone(), offset, damage, frames: 0, bytes, revisions: None };
    let from = offset.max(FILE_HEADER_BYTES as u64);
    let counted = file.seed.map_or(Ok(()), |seed| {
        let opened = disk.open_read(&file.path)?;
        survivors(&*opened, seed, from, |frame| {
            let Some(payload) = frame.payload else { return true };
            loss.frames += 1;
            for revision in Records::new(payload).flatten().filter_map(|record| record.revision()) {
                let (first, last) = loss.revisions.unwrap_or((revision, revision));
                loss.revisions = Some((first.min(revision), last.max(revision)));
            }
            true
        })
    });
    match counted {
        Ok(()) => WalError::Damaged(Box::new(loss)),
        Err(source) => WalError::io("read", &file.path)(source),
    }
}

/// Bytes of the last frame of a checkpoint.
const END_BYTES: usize = FRAME_HEADER_BYTES + 2 * 9;

/// Whether a checkpoint has its last frame: that it was not cut off. What is between is not looked at.
fn is_ended(disk: &dyn Disk, file: &Segment) -> Result<bool, WalError> {
    let (Some(seed), Some(at)) = (file.seed, file.bytes.checked_sub(END_BYTES as u64)) else {
        return Ok(false);
    };
    let opened = disk.open_read(&file.path).map_err(WalError::io("open", &file.path))?;
    let mut end = [0; END_BYTES];
    let read = read_full(&*opened, at, &mut end).map_err(WalError::io("read", &file.path))?;
    let header = FrameHeader::decode(seed, &end[..read]);
    Ok(header.is_some_and(|header| {
        header.kind == FrameKind::CheckpointEnd && header.fits(&end[FRAME_HEADER_BYTES..read])
    }))
}

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Checkpoints.
    pub checkpoints: usize,
    /// Segments of both logs.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Removes what is not needed any more: all but the newest `keep` checkpoints (2 is right: should the newest turn out to be damaged, the one
/// before serves), and the segments that none of these needs. With fewer checkpoints than that, nothing. To be called after a checkpoint
/// was finished, never while one is being written.
///
/// # Errors
/// When the file system refuses. What was to be removed then goes with the next call.
pub fn sweep(disk: &dyn Disk, layout: &Layout, keep: usize) -> Result<Swept, WalError> {
    let all = checkpoints(disk, layout)?;
    let mut swept = Swept::default();
    let mut whole = 0;
    let mut oldest = None;
    for (index, file) in all.iter().enumerate().rev() {
        // A damaged one is none, and keeps nothing.
        if let Ok(from) = head(disk, file)?
            && is_ended(disk, file)?
        {
            whole += 1;
            if whole == keep.max(1) {
                oldest = Some((index, from));
                break;
            }
        }
    }
    let Some((oldest, from)) = oldest else { return Ok(swept) };
    // A checkpoint may have its name in memory only, if the process that gave it was killed.
    let directory = layout.checkpoints();
    disk.sync_directory(&directory).map_err(WalError::io("sync", &directory))?;
    for file in &all[..oldest] {
        remove(disk, file, &mut swept.bytes)?;
        swept.checkpoints += 1;
    }
    if oldest > 0 {
        disk.sync_directory(&directory).map_err(WalError::io("sync", &directory))?;
    }
    for kind in LogKind::ALL {
        let directory = layout.log(kind);
        let segments = crate::segments::segments(disk, &directory, kind)?;
        let gone = crate::segments::removable(&segments, from.of(kind));
        for file in gone {
            remove(disk, file, &mut swept.bytes)?;
            swept.segments += 1;
        }
        if !gone.is_empty() {
            disk.sync_directory(&directory).map_err(WalError::io("sync", &directory))?;
        }
    }
    Ok(swept)
}

fn remove(disk: &dyn Disk, file: &Segment, bytes: &mut u64) -> Result<(), WalError> {
    disk.remove(&file.path).map_err(WalError::io("remove", &file.path))?;
    *bytes += file.bytes;
    Ok(())
}

/// Whether a header that cannot be read is of a later version.
pub(crate) const fn newer(file: &Segment) -> bool {
    matches!(file.header, Err(HeaderDamage::Newer(_)))
}
