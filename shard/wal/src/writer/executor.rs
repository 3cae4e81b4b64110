//! Does what the core of a log's writer has decided.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Failure, FailureReason,
    core::{Create, Pending, Step},
};
use crate::{
    disk::{Disk, DiskFile, unfinished},
    format::{FILE_HEADER_BYTES, FileHeader, FrameHeader, FrameKind, Seed},
    layout::{SEGMENT, numbered},
    options::LogOptions,
};

/// How much is written at once.
const CHUNK: usize = 1 << 20;
/// Zeros, so few that they stay in the processor's cache.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// A segment that is written on gets more zeros each time, up to so many times those of the first.
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
    /// How many zeros are written ahead the next time, and the most.
    fill: u64,
    fill_max: u64,
    /// Where those that were written end.
    filled: u64,
    /// Where frames are gathered; kept, as memory that is new each time costs more than what is copied into it.
    buffer: Vec<u8>,
}

impl Executor {
    pub(crate) fn new(disk: Arc<dyn Disk>, directory: PathBuf, options: LogOptions) -> Self {
        Self { disk, directory, options, segment: None }
    }

    /// Does a step. After a failure the segment is closed.
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
                    Some(segment) => segment
                        .write(commit.offset, &commit.frames)
                        .map_err(|error| failure("write", &segment.path, &error)),
                    None => Err(failure("write", &self.directory, &io::Error::other("no segment is open"))),
                };
                if done.is_err() {
                    self.segment = None;
                }
                done
            }
        }
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
        made.map(|made| Segment { path: path.clone(), ..made }).map_err(|error| {
            // It takes space that is needed. When it cannot be removed either, the next try writes over it.
            disk.remove(&new).ok();
            failure("make", &path, &error)
        })
    }

    fn make(&self, create: &Create, path: &Path) -> io::Result<Segment> {
        let frames = create.frames.iter().map(|frame| header(frame, 0).frame_bytes()).sum::<u64>();
        if self.disk.free_space(&self.directory)? < self.options.min_free_bytes.saturating_add(frames) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (head, seed) = FileHeader {
            kind: self.options.kind.file_kind(),
            number: create.number,
            first: create.first,
            after: create.after,
            whole: frames + FILE_HEADER_BYTES as u64,
            // Another one for each file; the odd constant only spreads the number over the bits.
            salt: self.options.salt.wrapping_add(create.number.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
        .encode();
        let mut file = self.disk.create(path)?;
        file.write_at(0, &head)?;
        let fill = self.options.fill_bytes;
        let fill_max = fill.saturating_mul(FILL_GROWS);
        let buffer = Vec::new();
        let mut segment = Segment { path: path.to_owned(), file, seed, fill, fill_max, filled: 0, buffer };
        segment.write(head.len() as u64, &create.frames)?;
        Ok(segment)
    }
}

impl Segment {
    /// Writes frames at the end of what is synced, and syncs them.
    fn write(&mut self, offset: u64, frames: &[Arc<Pending>]) -> io::Result<()> {
        // In a new segment nothing is synced; its header says what is when it has its name.
        let synced = if self.filled == 0 { 0 } else { offset };
        let mut out = Out { file: &mut *self.file, offset, buffer: std::mem::take(&mut self.buffer) };
        for frame in frames {
            out.frame(self.seed, &header(frame, synced), &frame.payload)?;
        }
        out.flush()?;
        let end = out.offset;
        self.buffer = out.buffer;
        if end >= self.filled {
            self.filled = end;
            if (end - offset).saturating_mul(WORTH_FILLING) <= self.fill {
                // A disk without room for zeros may have some for frames.
                match self.zeros(end) {
                    Ok(()) => {
                        self.filled = end + self.fill;
                        self.fill = self.fill.saturating_mul(2).min(self.fill_max);
                    }
                    Err(_) => self.fill = 0,
                }
            }
        }
        self.file.sync()
    }

    fn zeros(&mut self, from: u64) -> io::Result<()> {
        let mut left = self.fill;
        while left > 0 {
            let part = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.file.write_at(from + self.fill - left, &ZEROS[..part])?;
            left -= part as u64;
        }
        Ok(())
    }
}

/// Zeros are written ahead for at least so many writes like this one.
const WORTH_FILLING: u64 = 8;

fn header(frame: &Pending, synced: u64) -> FrameHeader {
    FrameHeader::of(FrameKind::Batch, frame.seq, synced, &frame.payload)
}

/// Gathers what is written.
pub(crate) struct Out<'f> {
    pub file: &'f mut dyn DiskFile,
    pub offset: u64,
    pub buffer: Vec<u8>,
}

impl Out<'_> {
    pub(crate) fn frame(&mut self, seed: Seed, header: &FrameHeader, payload: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(&header.encode(seed));
        if payload.len() >= CHUNK {
            // Large ones are not copied.
            self.flush()?;
            self.file.write_at(self.offset, payload)?;
            self.offset += payload.len() as u64;
            return Ok(());
        }
        self.buffer.extend_from_slice(payload);
        if self.buffer.len() >= CHUNK { self.flush() } else { Ok(()) }
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
