//! Performs the steps that the core of a log's writer decides on.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Failure, FailureReason,
    core::{Commit, Create, Pending, Step},
};
use crate::{
    disk::{Disk, DiskFile, unfinished},
    format::{FILE_HEADER_BYTES, FORMAT_VERSION, FileHeader, FrameHeader, FrameKind, Seed},
    layout::{LogKind, SEGMENT, numbered},
    number::FileNumber,
    options::LogOptions,
};

/// The maximum size of a buffered write.
const CHUNK: usize = 1 << 20;
/// The page size of writeback. Where more than [`CHUNK`] is written before a sync, writes meet at page boundaries.
/// So no sector is written twice, and each is on the disk completely or not at all.
const PAGE: u64 = 4096;
/// Zeros, few enough to stay in the processor's cache.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// The zeros written ahead grow up to this multiple of the first amount.
const FILL_GROWS: u64 = 4;

/// The open segment of a log.
#[derive(Debug)]
pub(crate) struct Executor {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    options: LogOptions,
    segment: Option<Segment>,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    seed: Seed,
    /// The number of zeros to write ahead the next time, and its maximum.
    fill: u64,
    fill_max: u64,
    /// The end of the zeros written ahead.
    filled: u64,
    /// Collects frames before a write. Kept, because newly allocated memory costs more than copying into it.
    buffer: Vec<u8>,
    /// The second handle of a buffered log's segment, until it is taken.
    to_sync: Option<ToSync>,
}

/// A segment's handle for the sync thread.
#[derive(Debug)]
pub(crate) struct ToSync {
    pub number: FileNumber,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl Executor {
    pub(crate) fn new(disk: Arc<dyn Disk>, directory: PathBuf, options: LogOptions) -> Self {
        Self { disk, directory, options, segment: None }
    }

    /// Performs a step. A failure closes the segment.
    pub(crate) fn perform(&mut self, step: &Step) -> Result<(), Failure> {
        match step {
            Step::Wait(_) => Ok(()),
            Step::Create(create) => {
                self.segment = None;
                self.segment = Some(self.create(create)?);
                Ok(())
            }
            Step::Commit(commit) => {
                let done = match self.segment.as_mut() {
                    Some(segment) => {
                        segment.commit(commit).map_err(|error| failure("write", &segment.path, &error))
                    }
                    None => Err(failure("write", &self.directory, &io::Error::other("no segment is open"))),
                };
                if done.is_err() {
                    self.segment = None;
                }
                done
            }
        }
    }

    /// The newest segment's handle, for the thread that syncs while this one writes.
    pub(crate) fn take_to_sync(&mut self) -> Option<ToSync> {
        self.segment.as_mut()?.to_sync.take()
    }

    fn create(&self, create: &Create) -> Result<Segment, Failure> {
        let (disk, directory) = (&*self.disk, self.directory.as_path());
        let path = numbered(directory, create.number, SEGMENT);
        let new = unfinished(&path);
        let made = self.make(create, &new).and_then(|made| {
            disk.rename(&new, &path)?;
            disk.sync_directory(directory)?;
            Ok(made)
        });
        let named = |made: Segment| {
            let to_sync = made.to_sync.map(|to_sync| ToSync { path: path.clone(), ..to_sync });
            Segment { path: path.clone(), to_sync, ..made }
        };
        made.map(named).map_err(|error| {
            // Free its space. If the removal fails as well, the next try overwrites the file.
            disk.remove(&new).ok();
            failure("make", &path, &error)
        })
    }

    fn make(&self, create: &Create, path: &Path) -> io::Result<Segment> {
        let frames = create.frames.iter().map(|frame| frame.bytes()).sum::<u64>();
        if self.disk.free_space(&self.directory)? < self.options.min_free_bytes.saturating_add(frames) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut file = self.disk.create(path)?;
        let fill = self.options.fill_bytes;
        let mut header = FileHeader {
            kind: self.options.kind.file_kind(),
            number: create.number,
            first: create.first,
            after: create.after,
            whole: frames + FILE_HEADER_BYTES as u64,
            // A different salt for each file; the odd constant only spreads the bits.
            salt: self.options.salt.wrapping_add(create.number.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            length: 0,
            version: FORMAT_VERSION,
        };
        let fill_max = fill.saturating_mul(FILL_GROWS);
        // Reserve the frames' space first: a disk without room for zeros may have room for frames.
        file.preallocate(header.whole)?;
        let mut filled = header.whole;
        let mut next_fill = fill;
        if frames.saturating_mul(WORTH_FILLING) <= fill {
            next_fill = match zeros(&mut *file, filled, fill) {
                Ok(()) => {
                    filled += fill;
                    fill.saturating_mul(2).min(fill_max)
                }
                Err(_) => 0,
            };
        }
        header.length = u32::try_from(filled).unwrap_or(u32::MAX);
        let (head, seed) = header.encode();
        file.write_at(0, &head)?;
        let to_sync = (self.options.kind == LogKind::Buffered)
            .then(|| {
                Ok::<_, io::Error>(ToSync {
                    number: create.number,
                    path: path.to_owned(),
                    file: file.again()?,
                })
            })
            .transpose()?;
        let (path, buffer) = (path.to_owned(), Vec::new());
        let mut segment = Segment { path, file, seed, fill: next_fill, fill_max, filled, buffer, to_sync };
        // `synced` is 0, because nothing is synced yet. The header's `whole` covers these frames once the segment
        // has its name.
        segment.write(head.len() as u64, 0, &create.frames)?;
        segment.file.sync()?;
        Ok(segment)
    }
}

impl ToSync {
    /// Makes everything that was written before durable.
    pub(crate) fn sync(&mut self) -> Result<(), Failure> {
        self.file.sync().map_err(|error| failure("sync", &self.path, &error))
    }
}

impl Segment {
    fn commit(&mut self, commit: &Commit) -> io::Result<()> {
        let end = self.write(commit.offset, commit.synced, &commit.frames)?;
        if end >= self.filled {
            self.filled = end;
            if (end - commit.offset).saturating_mul(WORTH_FILLING) <= self.fill {
                // A disk without room for zeros may have room for frames.
                match zeros(&mut *self.file, end, self.fill) {
                    Ok(()) => {
                        self.filled = end + self.fill;
                        self.fill = self.fill.saturating_mul(2).min(self.fill_max);
                    }
                    Err(_) => self.fill = 0,
                }
            }
        }
        if commit.sync { self.file.sync() } else { Ok(()) }
    }

    /// Writes frames at an offset; returns where they end.
    fn write(&mut self, offset: u64, synced: u64, frames: &[Arc<Pending>]) -> io::Result<u64> {
        let mut out = Out { file: &mut *self.file, offset, buffer: std::mem::take(&mut self.buffer) };
        for frame in frames {
            let header = FrameHeader::of(FrameKind::Batch, frame.seq, synced, out.end(), &frame.payload);
            out.frame(self.seed, &header, &frame.payload)?;
        }
        out.flush()?;
        let end = out.offset;
        self.buffer = out.buffer;
        Ok(end)
    }
}

fn zeros(file: &mut dyn DiskFile, from: u64, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        file.write_at(from + bytes - left, &ZEROS[..part])?;
        left -= part as u64;
    }
    Ok(())
}

/// Zeros are written ahead only if they suffice for this many writes like the current one.
const WORTH_FILLING: u64 = 8;

/// Collects small writes into large ones.
pub(crate) struct Out<'f> {
    pub file: &'f mut dyn DiskFile,
    pub offset: u64,
    pub buffer: Vec<u8>,
}

impl Out<'_> {
    /// The offset of the next byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    pub(crate) fn frame(&mut self, seed: Seed, header: &FrameHeader, payload: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(&header.encode(seed));
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() < CHUNK {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        let to_page = usize::try_from(self.end().next_multiple_of(PAGE) - self.end()).unwrap_or(0);
        let (first, rest) = bytes.split_at(to_page.min(bytes.len()));
        self.buffer.extend_from_slice(first);
        if self.end().is_multiple_of(PAGE) {
            self.flush()?;
        }
        // Large payloads are written without a copy.
        let (pages, rest) = rest.split_at(rest.len() / PAGE as usize * PAGE as usize);
        if !pages.is_empty() {
            self.file.write_at(self.offset, pages)?;
            self.offset += pages.len() as u64;
        }
        self.buffer.extend_from_slice(rest);
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_at(self.offset, &self.buffer)?;
            self.offset += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}

fn failure(doing: &str, path: &Path, error: &io::Error) -> Failure {
    Failure {
        reason: FailureReason::of(error),
        message: format!("cannot {doing} {}: {error}", path.display()),
    }
}
