//! Wraps a disk so that every operation on a shard's files is a failpoint: no step of the writers, of a checkpoint or
//! of a start can be added without one.

use std::{io, path::Path, sync::Arc};

use kindred_wal::{Disk, DiskFile, Layout, LogKind};

use super::{FAILPOINTS, Point, around};

/// The disk itself, or wrapped in failpoints if any are armed.
#[must_use]
pub fn watched(disk: Arc<dyn Disk>, layout: &Layout) -> Arc<dyn Disk> {
    if FAILPOINTS.are_armed() { Arc::new(Watched { disk, layout: layout.clone() }) } else { disk }
}

#[derive(Debug)]
struct Watched {
    disk: Arc<dyn Disk>,
    layout: Layout,
}

/// The owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    FsyncLog,
    BufferedLog,
    Checkpoint,
    Clock,
}

/// An operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    Create,
    Write,
    Sync,
    Name,
    Remove,
    Directory,
}

/// The point of an operation, if it has one: the clock's file is never removed and has no directory of its own.
fn point(whose: Whose, step: Step) -> Option<Point> {
    Some(match (whose, step) {
        (Whose::FsyncLog, Step::Read) => Point::FsyncLogRead,
        (Whose::FsyncLog, Step::Create) => Point::FsyncLogCreate,
        (Whose::FsyncLog, Step::Write) => Point::FsyncLogWrite,
        (Whose::FsyncLog, Step::Sync) => Point::FsyncLogSync,
        (Whose::FsyncLog, Step::Name) => Point::FsyncLogName,
        (Whose::FsyncLog, Step::Remove) => Point::FsyncLogRemove,
        (Whose::FsyncLog, Step::Directory) => Point::FsyncLogDirectory,
        (Whose::BufferedLog, Step::Read) => Point::BufferedLogRead,
        (Whose::BufferedLog, Step::Create) => Point::BufferedLogCreate,
        (Whose::BufferedLog, Step::Write) => Point::BufferedLogWrite,
        (Whose::BufferedLog, Step::Sync) => Point::BufferedLogSync,
        (Whose::BufferedLog, Step::Name) => Point::BufferedLogName,
        (Whose::BufferedLog, Step::Remove) => Point::BufferedLogRemove,
        (Whose::BufferedLog, Step::Directory) => Point::BufferedLogDirectory,
        (Whose::Checkpoint, Step::Read) => Point::CheckpointRead,
        (Whose::Checkpoint, Step::Create) => Point::CheckpointCreate,
        (Whose::Checkpoint, Step::Write) => Point::CheckpointWrite,
        (Whose::Checkpoint, Step::Sync) => Point::CheckpointSync,
        (Whose::Checkpoint, Step::Name) => Point::CheckpointName,
        (Whose::Checkpoint, Step::Remove) => Point::CheckpointRemove,
        (Whose::Checkpoint, Step::Directory) => Point::CheckpointDirectory,
        (Whose::Clock, Step::Read) => Point::ClockRead,
        (Whose::Clock, Step::Create) => Point::ClockCreate,
        (Whose::Clock, Step::Write) => Point::ClockWrite,
        (Whose::Clock, Step::Sync) => Point::ClockSync,
        (Whose::Clock, Step::Name) => Point::ClockName,
        (Whose::Clock, Step::Remove | Step::Directory) => return None,
    })
}

impl Watched {
    fn whose(&self, path: &Path) -> Option<Whose> {
        let (layout, clock) = (&self.layout, self.layout.clock());
        let places = [
            (layout.log(LogKind::Fsync), Whose::FsyncLog),
            (layout.log(LogKind::Buffered), Whose::BufferedLog),
            (layout.checkpoints(), Whose::Checkpoint),
        ];
        let within = places.into_iter().find(|(directory, _)| path.starts_with(directory));
        // It is created under a temporary name with the same stem.
        let is_clock = path.parent() == clock.parent() && path.file_stem() == clock.file_stem();
        within.map(|(_, whose)| whose).or(is_clock.then_some(Whose::Clock))
    }

    fn at<T>(&self, path: &Path, step: Step, act: impl FnOnce() -> T) -> T {
        match self.whose(path).and_then(|whose| point(whose, step)) {
            Some(point) => around(point, act),
            None => act(),
        }
    }

    fn file(&self, path: &Path, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        match self.whose(path) {
            Some(whose) => Box::new(WatchedFile { file, whose }),
            None => file,
        }
    }
}

impl Disk for Watched {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let made = self.at(path, Step::Create, || self.disk.create(path))?;
        Ok(self.file(path, made))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let opened = self.at(path, Step::Read, || self.disk.open(path))?;
        Ok(self.file(path, opened))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.at(path, Step::Read, || self.disk.open_read(path))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.at(to, Step::Name, || self.disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.at(path, Step::Remove, || self.disk.remove(path))
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        self.disk.create_directory(directory)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        match self.whose(directory) {
            Some(_) => self.at(directory, Step::Directory, || self.disk.sync_directory(directory)),
            None => around(Point::RootDirectory, || self.disk.sync_directory(directory)),
        }
    }

    fn free_space(&self, directory: &Path) -> io::Result<u64> {
        self.disk.free_space(directory)
    }
}

#[derive(Debug)]
struct WatchedFile {
    file: Box<dyn DiskFile>,
    whose: Whose,
}

impl WatchedFile {
    fn at<T>(&mut self, step: Step, act: impl FnOnce(&mut dyn DiskFile) -> T) -> T {
        match point(self.whose, step) {
            Some(point) => around(point, || act(&mut *self.file)),
            None => act(&mut *self.file),
        }
    }
}

impl DiskFile for WatchedFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.at(Step::Write, |file| file.write_at(offset, bytes))
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.at(Step::Write, |file| file.truncate(length))
    }

    fn preallocate(&mut self, length: u64) -> io::Result<()> {
        self.at(Step::Write, |file| file.preallocate(length))
    }

    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Self { file: self.file.again()?, whose: self.whose }))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.at(Step::Sync, |file| file.sync())
    }
}
