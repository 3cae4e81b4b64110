//! The disk as one life of a shard sees it: threads that outlive that life can no longer use it.

use std::{
    io,
    path::Path,
    sync::{Arc, RwLock},
};

use kindred_wal::{Disk, DiskFile, sim::SimDisk};

/// Fails every operation once its life is over. Open files fail by themselves.
#[derive(Debug, Clone)]
pub struct LifeDisk {
    disk: SimDisk,
    over: Arc<RwLock<bool>>,
}

impl LifeDisk {
    pub fn new(disk: &SimDisk) -> Self {
        Self { disk: disk.clone(), over: Arc::default() }
    }

    /// Ends the life; returns when no operation is running, and none will start.
    pub fn end(&self) {
        *self.over.write().unwrap() = true;
    }

    fn with<T>(&self, act: impl FnOnce(&SimDisk) -> io::Result<T>) -> io::Result<T> {
        let over = self.over.read().unwrap();
        if *over { Err(io::Error::other("this life is over")) } else { act(&self.disk) }
    }
}

impl Disk for LifeDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.with(|disk| disk.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.with(|disk| disk.open(path))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.with(|disk| disk.open_read(path))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.with(|disk| disk.list(directory))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|disk| disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.with(|disk| disk.remove(path))
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        self.with(|disk| disk.create_directory(directory))
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.with(|disk| disk.sync_directory(directory))
    }

    fn free_space(&self, directory: &Path) -> io::Result<u64> {
        self.with(|disk| disk.free_space(directory))
    }
}
