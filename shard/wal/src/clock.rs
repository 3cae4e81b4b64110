//! The file of the clock's ceiling (R2). A shard assigns and promises only revisions below a durable number,
//! whatever the durability modes of its Kinds.
//!
//! The file has two slots, written in place in turn, so that a torn write leaves the previous slot intact. The file
//! is preallocated, so a full disk does not stop the clock. Each slot has two copies, one disk block apart. A torn
//! write was never in force, but one flipped bit must not bring back an older ceiling.
//!
//! The slots also hold other facts that a start needs and that must be writable on a full disk: the incarnation of
//! the shard, and how far each log was durable when the slot was written. With the latter, a log that ends earlier
//! is not mistaken for one that a crash cut short.

use std::{path::Path, path::PathBuf};

use kindred_partition_config::ids::Revision;

use crate::{
    checkpoint::LogPlaces,
    disk::{Disk, DiskFile, read_full, unfinished},
    error::{ClockDamage, WalError},
    format::{CLOCK_COPIES, CLOCK_COPY_BYTES, CLOCK_SLOT_USED, ClockSlot},
};

const SLOTS: usize = 2;
const SLOT_BYTES: usize = CLOCK_COPY_BYTES * CLOCK_COPIES;

/// A shard's clock file, open for writing.
#[derive(Debug)]
pub struct ClockFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// The slot in force, and its index.
    current: ClockSlot,
    at: usize,
}

impl ClockFile {
    /// Opens the file and returns it with the ceiling in force. `None` if the file does not exist.
    ///
    /// Store a higher ceiling before anything is assigned: the ceiling that is read may not have been durable at a
    /// crash.
    ///
    /// # Errors
    /// When the file cannot be read, and [`WalError::Clock`] when neither slot is valid. [`ClockFile::create`] can
    /// then replace it.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Option<(Self, Revision)>, WalError> {
        let file = match disk.open(path) {
            Ok(file) => file,
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(WalError::io("open", path)(source)),
        };
        let mut bytes = vec![0; SLOT_BYTES * SLOTS];
        read_full(&*file, 0, &mut bytes).map_err(WalError::io("read", path))?;
        let slots = bytes.chunks(SLOT_BYTES).enumerate();
        let whole = slots.filter_map(|(at, slot)| {
            let copies = slot.chunks(CLOCK_COPY_BYTES).filter_map(ClockSlot::decode);
            copies.max_by_key(|copy| copy.generation).map(|slot| (at, slot))
        });
        let Some((at, current)) = whole.max_by_key(|(_, slot)| slot.generation) else {
            return Err(WalError::Clock { path: path.to_owned(), why: ClockDamage::Slots });
        };
        Ok(Some((Self { file, path: path.to_owned(), current, at }, Revision(current.ceiling))))
    }

    /// Creates or replaces the file with this ceiling. It is durable when this returns.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn create(disk: &dyn Disk, path: &Path, ceiling: Revision) -> Result<Self, WalError> {
        let new = unfinished(path);
        let LogPlaces { fsync, buffered } = LogPlaces::NONE;
        let current = ClockSlot { generation: 1, ceiling: ceiling.get(), incarnation: 0, fsync, buffered };
        let made = disk.create(&new).and_then(|mut file| {
            file.preallocate((SLOT_BYTES * SLOTS) as u64)?;
            // Write zeros rather than only reserve space, so that later writes in place allocate nothing.
            file.write_at(0, &[slot(&current), vec![0; SLOT_BYTES * (SLOTS - 1)]].concat())?;
            file.sync()?;
            disk.rename(&new, path)?;
            path.parent().map_or(Ok(()), |directory| disk.sync_directory(directory))?;
            Ok(file)
        });
        let file = made.map_err(WalError::io("make", path))?;
        Ok(Self { file, path: path.to_owned(), current, at: 0 })
    }

    #[must_use]
    pub const fn ceiling(&self) -> Revision {
        Revision(self.current.ceiling)
    }

    /// The incarnation that last wrote the file; 0 if it was never recorded.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.current.incarnation
    }

    /// The last frame of each log that was recorded as durable; 0 if there is none.
    #[must_use]
    pub const fn durable(&self) -> LogPlaces {
        LogPlaces { fsync: self.current.fsync, buffered: self.current.buffered }
    }

    /// Records the incarnation. It is durable when this returns.
    ///
    /// # Errors
    /// As of [`ClockFile::store`].
    pub fn begin(&mut self, incarnation: u64) -> Result<(), WalError> {
        self.write(ClockSlot { incarnation, ..self.current })
    }

    /// As [`ClockFile::store`], and records that the logs are durable up to these frames. Recorded positions never
    /// decrease, because sequence numbers of durable frames are never reused.
    ///
    /// # Errors
    /// As of [`ClockFile::store`].
    pub fn store_with(&mut self, ceiling: Revision, durable: LogPlaces) -> Result<(), WalError> {
        let (fsync, buffered) =
            (self.current.fsync.max(durable.fsync), self.current.buffered.max(durable.buffered));
        self.write(ClockSlot { ceiling: ceiling.get(), fsync, buffered, ..self.current })
    }

    /// Puts another ceiling in force: a higher one, or a lower one at a clean stop, when nothing is assigned any
    /// more. It is durable when this returns. Costs an fdatasync, so it must not run on a thread that may not
    /// block.
    ///
    /// # Errors
    /// When the file system fails. The previous ceiling stays in force, and the call may be repeated.
    pub fn store(&mut self, ceiling: Revision) -> Result<(), WalError> {
        self.store_with(ceiling, LogPlaces::NONE)
    }

    fn write(&mut self, next: ClockSlot) -> Result<(), WalError> {
        let next = ClockSlot { generation: self.current.generation + 1, ..next };
        let at = (self.at + 1) % SLOTS;
        let written =
            self.file.write_at((at * SLOT_BYTES) as u64, &slot(&next)).and_then(|()| self.file.sync());
        written.map_err(WalError::io("write", &self.path))?;
        (self.current, self.at) = (next, at);
        Ok(())
    }
}

/// A slot as its padded copies.
fn slot(slot: &ClockSlot) -> Vec<u8> {
    let mut copy = [0; CLOCK_COPY_BYTES];
    copy[..CLOCK_SLOT_USED].copy_from_slice(&slot.encode());
    copy.repeat(CLOCK_COPIES)
}

#[cfg(test)]
mod tests;
