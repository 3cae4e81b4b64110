//! Checkpoints: a checkpoint is one file with a shard's whole durable state, so that older log segments can be
//! removed.
//!
//! A checkpoint is fuzzy, because it is written while the shard works: it may or may not include writes made during
//! the walk. So it stores two positions for each log. Replay starts at `from`, the log's next frame when the walk
//! began. The log must reach `until`, its last frame when the walk ended. A checkpoint must be finished only after
//! both logs are durable up to `until`; otherwise it could hold a change whose predecessor was lost.

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

/// A position in each log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlaces {
    /// The position in the fsync log.
    pub fsync: FrameSeq,
    /// The position in the buffered log.
    pub buffered: FrameSeq,
}

impl LogPlaces {
    /// The first frame of both logs.
    pub const FIRST: Self = Self { fsync: FrameSeq::FIRST, buffered: FrameSeq::FIRST };

    /// No frame of either log.
    pub const NONE: Self = Self { fsync: FrameSeq(0), buffered: FrameSeq(0) };

    /// The position in one log.
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

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub number: FileNumber,
    pub path: PathBuf,
    pub bytes: u64,
    /// The first frame of each log to replay after this checkpoint.
    pub from: LogPlaces,
    /// The last frame that each log must contain for this checkpoint to be usable.
    pub until: LogPlaces,
}

/// Writes a checkpoint, on a thread that may block on the disk. A shard writes one at a time. Dropping the writer
/// before [`CheckpointWriter::finish`] removes the file.
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

/// The maximum number of unsynced bytes. A sync of gigabytes would delay the syncs of the logs.
const SYNC_BYTES: u64 = 16 << 20;

impl CheckpointWriter {
    /// Begins the next checkpoint. `from` is [`Log::next`](crate::Log::next) of each log, taken in the turn in
    /// which the walk through the shard's state begins. `salt` must be random. If the disk has less than
    /// `min_free_bytes` free, it counts as full.
    ///
    /// # Errors
    /// When the file system fails.
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

    /// The number that the checkpoint will have.
    #[must_use]
    pub const fn number(&self) -> FileNumber {
        self.number
    }

    /// Adds a batch. Batches should be a few hundred KiB: each frame costs 32 bytes, and a reader holds a whole
    /// frame in memory.
    ///
    /// # Errors
    /// When the file system fails or the batch is too large. The checkpoint is useless then.
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

    /// Syncs the checkpoint and gives it its name. `until` is `Log::next().prev()` of each log after the walk
    /// ended; the caller must have waited until both logs are durable up to there. When this returns, [`sweep`] may
    /// remove what the checkpoint makes obsolete.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn finish(mut self, until: LogPlaces) -> Result<Checkpoint, WalError> {
        self.frame(FrameKind::CheckpointEnd, &until.encode())?;
        let done = (|| {
            self.file.write_at(self.offset, &self.buffer)?;
            self.file.sync()?;
            self.disk.rename(&unfinished(&self.path), &self.path)?;
            // After the rename, `drop` must not remove the file, even if the directory sync fails.
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
            // If the removal fails, the next checkpoint removes the file.
            self.disk.remove(&unfinished(&self.path)).ok();
        }
    }
}

/// Lists a shard's checkpoints, oldest first. Reads only their headers.
///
/// # Errors
/// When the file system fails. Damage is part of the result.
pub fn checkpoints(disk: &dyn Disk, layout: &Layout) -> Result<Vec<Segment>, WalError> {
    numbered_files(disk, &layout.checkpoints(), CHECKPOINT, FileKind::Checkpoint)
}

/// The positions from which the logs are replayed after a checkpoint, or why its head cannot be read.
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

/// Reads a whole checkpoint. Frames are visited as they are read, so those before any damage have been visited when
/// it is found.
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

/// The error for a damaged checkpoint, with what is lost after the damage.
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

/// The length of a checkpoint's last frame.
const END_BYTES: usize = FRAME_HEADER_BYTES + 2 * 9;

/// Whether a checkpoint was not truncated: its last frame is valid. The frames before it are not checked.
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

/// What [`sweep`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    pub checkpoints: usize,
    /// Removed segments of both logs.
    pub segments: usize,
    /// The total length of the removed files.
    pub bytes: u64,
}

/// Removes all but the newest `keep` valid checkpoints, and the segments that none of these needs. `keep` should be
/// 2, so that the older one serves if the newest proves damaged. Removes nothing while there are fewer valid
/// checkpoints. Call it after a checkpoint is finished, never while one is being written.
///
/// # Errors
/// When the file system fails. The next call removes the rest then.
pub fn sweep(disk: &dyn Disk, layout: &Layout, keep: usize) -> Result<Swept, WalError> {
    let all = checkpoints(disk, layout)?;
    let mut swept = Swept::default();
    let mut whole = 0;
    let mut oldest = None;
    for (index, file) in all.iter().enumerate().rev() {
        // A damaged checkpoint does not count and keeps no segments.
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
    // Syncs the directory first: if the process that renamed a checkpoint was killed, the new name may not be
    // durable yet.
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

/// Whether the header cannot be read because a later version wrote it.
pub(crate) const fn newer(file: &Segment) -> bool {
    matches!(file.header, Err(HeaderDamage::Newer(_)))
}
