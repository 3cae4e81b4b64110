//! A [`Disk`] on the machine's file system.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::FallocateFlags;

use super::{Disk, DiskFile};

/// Only the owner may read a store's data, which includes the cluster's secrets.
const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;
/// The permission bits of group and others.
const OTHERS: u32 = 0o077;

/// The machine's file system.
#[derive(Debug, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(FILE).open(path)?;
        // An existing file keeps its mode at `open`.
        if file.metadata()?.mode() & OTHERS != 0 {
            file.set_permissions(fs::Permissions::from_mode(FILE))?;
        }
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(fs::OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(fs::File::open(path)?)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        // A name that is not UTF-8 cannot be one of this crate's files.
        let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let mut names: Vec<String> = names.filter_map(Result::transpose).collect::<io::Result<_>>()?;
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(FOLDER).create(directory)?;
        // An earlier version created this directory readable; closing it also protects the files in it.
        if fs::metadata(directory)?.mode() & OTHERS != 0 {
            // This fails for another user's directory. Files created in it are private anyway.
            let _ = fs::set_permissions(directory, fs::Permissions::from_mode(FOLDER));
        }
        Ok(())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        fs::File::open(directory)?.sync_all()
    }

    fn free_space(&self, directory: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(directory)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(into, offset)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn preallocate(&mut self, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(()),
            // Not every file system supports `fallocate`; writing zeros reserves the space as well.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {
                let zeros = vec![0; 64 << 10];
                let mut at = self.length()?;
                while at < length {
                    let part = usize::try_from(length - at).map_or(zeros.len(), |left| left.min(zeros.len()));
                    self.0.write_all_at(&zeros[..part], at)?;
                    at += part as u64;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Self(self.0.try_clone()?)))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Keeps other processes off a data directory until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirectoryLock {
    file: fs::File,
}

/// A process that is being started holds a copy of the file until it runs its own program, and closing ours alone would
/// leave the lock with that copy.
impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // If that fails, the lock goes with the file.
        let _ = self.file.unlock();
    }
}

impl DirectoryLock {
    /// Locks an existing directory.
    ///
    /// # Errors
    /// When another process holds the lock, or the file system fails.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join("lock");
        let io = |source| LockError::Io { path: path.clone(), source };
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(FILE).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(fs::TryLockError::WouldBlock) => Err(LockError::Taken { directory: directory.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(LockError::Io { path, source }),
        }
    }
}

/// Why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses the directory.
    #[error("{directory} is in use by another process; stop it, or give this one a --data-dir of its own")]
    Taken {
        /// The data directory.
        directory: PathBuf,
    },
    /// The file system failed.
    #[error("cannot lock {path}: {source}")]
    Io {
        /// The lock file.
        path: PathBuf,
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_the_trait_says() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, at) = (RealDisk, directory.path().join("a/b"));
        disk.create_directory(&at).unwrap();
        let (one, two) = (at.join("one"), at.join("two"));
        let mut file = disk.create(&one).unwrap();
        file.write_at(3, b"abc").unwrap();
        file.preallocate(10).unwrap();
        file.sync().unwrap();
        assert_eq!(file.length().unwrap(), 10);
        let mut bytes = [9; 20];
        assert_eq!(super::super::read_full(&*file, 1, &mut bytes).unwrap(), 9);
        assert_eq!(&bytes[..9], b"\0\0abc\0\0\0\0");
        file.truncate(4).unwrap();
        disk.rename(&one, &two).unwrap();
        disk.sync_directory(&at).unwrap();
        assert_eq!(disk.list(&at).unwrap(), ["two"]);
        assert_eq!(disk.open_read(&two).unwrap().length().unwrap(), 4);
        assert_eq!(disk.open(&one).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(disk.free_space(&at).unwrap() > 0);
        disk.remove(&two).unwrap();
        assert_eq!(disk.list(&at).unwrap(), [""; 0]);
    }

    #[test]
    fn f34_files_and_directories_are_the_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (at, above) = (directory.path().join("a/b"), directory.path().join("a"));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let open_to_all = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        RealDisk.create_directory(&at).unwrap();
        assert_eq!((mode(&at), mode(&above)), (0o700, 0o700));
        // An earlier version created this directory.
        open_to_all(&at, 0o755);
        RealDisk.create_directory(&at).unwrap();
        assert_eq!(mode(&at), 0o700);
        let file = at.join("file");
        drop(RealDisk.create(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        open_to_all(&file, 0o644);
        drop(RealDisk.create(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        drop(DirectoryLock::take(&at).unwrap());
        assert_eq!(mode(&at.join("lock")), 0o600);
    }

    #[test]
    fn a_directory_is_locked_once() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(directory.path()).unwrap();
        let error = DirectoryLock::take(directory.path()).unwrap_err();
        assert!(matches!(error, LockError::Taken { .. }), "{error}");
        drop(lock);
        DirectoryLock::take(directory.path()).unwrap();
    }

    #[test]
    fn a_lock_ends_though_a_process_that_is_being_started_has_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(directory.path()).unwrap();
        let copied = lock.file.try_clone().unwrap();
        drop(lock);
        DirectoryLock::take(directory.path()).unwrap();
        drop(copied);
    }
}
