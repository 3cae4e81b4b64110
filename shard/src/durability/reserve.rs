//! Keeps room for the way out of a full disk. A checkpoint lets old logs be removed, but takes room itself and needs
//! the logs to be on disk, which take some as well. So a reserve file is released when the disk is full, and recreated
//! when there is room again. Meanwhile clients' writes are refused, as they would use up the room.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kindred_wal::{Disk, Job, Layout, Stepped, Workers};

/// Bytes that must be free beside the reserve when it is created.
const BESIDE_BYTES: u64 = 12 << 20;

#[derive(Debug)]
pub struct Reserve {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    path: PathBuf,
    bytes: u64,
    /// It was released and is not recreated yet.
    released: AtomicBool,
    busy: AtomicBool,
}

impl Reserve {
    /// Creates the reserve if it is missing. On a disk that is too full for it, the shard runs without, since starting
    /// matters more.
    #[must_use]
    pub fn open(disk: Arc<dyn Disk>, layout: &Layout, bytes: u64) -> Arc<Self> {
        let path = layout.reserve();
        let directory = path.parent().map(PathBuf::from).unwrap_or_default();
        let left = disk.open_read(&path).and_then(|file| file.length()).ok();
        // A shorter file was released before this start.
        let released = AtomicBool::new(left.is_some_and(|left| left < bytes));
        let reserve = Self { disk, directory, path, bytes, released, busy: AtomicBool::new(false) };
        if left.is_none() && !reserve.make() {
            tracing::warn!(
                path = %reserve.path.display(), bytes,
                "no room for the reserve: should the disk become full, a checkpoint may not be able to make room again"
            );
        }
        reserve.restore();
        Arc::new(reserve)
    }

    /// Whether it is released: then clients' writes are refused until it is recreated.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    fn is_there(&self) -> bool {
        self.disk.open_read(&self.path).and_then(|file| file.length()).is_ok_and(|bytes| bytes >= self.bytes)
    }

    /// Gives its room to the logs and the next checkpoint. The file stays, empty, so that another start knows.
    pub fn release(&self) {
        if !self.is_there() {
            return;
        }
        self.released.store(true, Ordering::Release);
        match self.cut_off() {
            Ok(()) => tracing::warn!(
                bytes = self.bytes,
                "the disk is full: the reserve is given up for a checkpoint; writes are refused until there is room for it again"
            ),
            Err(error) => {
                tracing::error!(%error, path = %self.path.display(), "the reserve cannot be given up")
            }
        }
    }

    fn cut_off(&self) -> io::Result<()> {
        let mut file = self.disk.open(&self.path)?;
        file.truncate(0)?;
        file.sync()
    }

    /// Recreates a released reserve if there is room.
    pub fn restore(&self) {
        if self.is_released() && self.make() {
            self.released.store(false, Ordering::Release);
            tracing::info!("there is room again");
        }
    }

    /// The same as a job of its own; without effect while one is running.
    pub fn restore_soon(self: &Arc<Self>, workers: &Workers) {
        if !self.is_released() || self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let job = Restore { reserve: self.clone() };
        if workers.start("reserve".to_owned(), Box::new(job)).is_err() {
            self.busy.store(false, Ordering::Release);
        }
    }

    fn make(&self) -> bool {
        let room = self.disk.free_space(&self.directory).is_ok_and(|free| free >= self.bytes + BESIDE_BYTES);
        let made = || {
            let mut file = self.disk.create(&self.path)?;
            file.preallocate(self.bytes)?;
            file.sync()
        };
        if !room {
            return false;
        }
        let made = made();
        if made.is_err() {
            // A part of it is useless. If it cannot be given back now, the next attempt does so.
            let _ = if self.is_released() { self.cut_off() } else { self.disk.remove(&self.path) };
        }
        made.is_ok()
    }
}

/// The job that recreates the reserve.
struct Restore {
    reserve: Arc<Reserve>,
}

impl Job for Restore {
    fn run(mut self: Box<Self>) {
        let _ = self.step();
    }

    fn step(&mut self) -> Stepped {
        self.reserve.restore();
        self.reserve.busy.store(false, Ordering::Release);
        Stepped::Over
    }
}
