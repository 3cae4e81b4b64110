//! The file system behind a trait, so that tests can lose, tear and reorder unsynced data.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

mod real;

pub use self::real::{DirectoryLock, LockError, RealDisk};

/// A file system. Paths are used as given.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// Creates an empty file that is open for reading and writing; replaces any existing file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// The names in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Renames a file and atomically replaces any file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory and its missing parents.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// The number of bytes that can still be written.
    fn free_space(&self, directory: &Path) -> io::Result<u64>;
}

pub trait DiskFile: fmt::Debug + Send + Sync {
    fn length(&self) -> io::Result<u64>;
    /// Reads at least one byte from an offset; returns 0 at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all bytes. On failure any part of them may have been written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Reserves space for `length` bytes and extends the file with zeros to at least that length.
    fn preallocate(&mut self, length: u64) -> io::Result<()>;
    /// Another handle of the same open file, for another thread. A sync of either handle covers the writes of both.
    fn again(&self) -> io::Result<Box<dyn DiskFile>>;
    /// Makes everything written durable. After a failure, nothing written since the last success is known to be
    /// durable, and a later success does not change that, because the system may have dropped the data.
    fn sync(&mut self) -> io::Result<()>;
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
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

/// The temporary name of a file that is not complete.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    with_suffix(path, UNFINISHED)
}

/// The name of a file that was set aside when its loss was accepted.
pub(crate) fn lost(path: &Path) -> PathBuf {
    with_suffix(path, ".lost")
}

/// The suffix of temporary names.
pub(crate) const UNFINISHED: &str = ".new";

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates a directory and makes its name durable.
pub(crate) fn ensure_directory(disk: &dyn Disk, directory: &Path) -> io::Result<()> {
    disk.create_directory(directory)?;
    // Sync two levels of parents: kindred creates at most two. Syncing a directory that existed before does no
    // harm.
    for above in directory.ancestors().skip(1).take(2).filter(|path| !path.as_os_str().is_empty()) {
        disk.sync_directory(above)?;
    }
    Ok(())
}
