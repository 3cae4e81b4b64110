//! The file system as this crate uses it: behind a trait, so that tests can lose, tear and reorder what was not synced.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

mod real;

pub use self::real::{DirectoryLock, LockError, RealDisk};

/// Where the files are. Paths are used as they are given.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// A new, empty file, open for writing; one of that name is replaced by it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// A file that is there, open for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// A file that is there, open for reading.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// The names in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Gives a file another name; a file that has it is replaced at once.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory and those above it.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Returns when the names in a directory are on the disk.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Bytes that may still be written.
    fn free_space(&self, directory: &Path) -> io::Result<u64>;
}

/// An open file.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Its length.
    fn length(&self) -> io::Result<u64>;
    /// Reads some bytes from an offset: 0 at the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all of the bytes, or fails with any part of them written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts it off, or extends it by zeros.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Takes the space for so many bytes and makes the file at least that long, what is new being zeros.
    fn preallocate(&mut self, length: u64) -> io::Result<()>;
    /// The same open file once more, for another thread: what is written by one is synced by the other.
    fn again(&self) -> io::Result<Box<dyn DiskFile>>;
    /// Returns when everything written is on the disk. When it fails, nothing that was written since the last success is known to be
    /// there, and a later success says nothing of it: the system may have given it up.
    fn sync(&mut self) -> io::Result<()>;
}

/// Reads until the buffer is full or the file ends; answers how much was read.
pub(crate) fn read_full(file: &dyn DiskFile, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(offset + done as u64, &mut into[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The name under which a file is written before it has its own.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    with_suffix(path, UNFINISHED)
}

/// The name under which a file is put aside when its loss was accepted.
pub(crate) fn lost(path: &Path) -> PathBuf {
    with_suffix(path, ".lost")
}

/// The end of the name of what was not finished.
pub(crate) const UNFINISHED: &str = ".new";

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes a directory, and makes sure that it is there after a crash.
pub(crate) fn ensure_directory(disk: &dyn Disk, directory: &Path) -> io::Result<()> {
    disk.create_directory(directory)?;
    // The names of directories above that were there already do no harm; two levels are ours.
    for above in directory.ancestors().skip(1).take(2).filter(|path| !path.as_os_str().is_empty()) {
        disk.sync_directory(above)?;
    }
    Ok(())
}
