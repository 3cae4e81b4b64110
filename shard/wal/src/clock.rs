//! The file of the clock's ceiling (R2): a shard assigns and promises only below a number that is on the disk, whatever its Kinds' modes.
//!
//! Two slots, written in place in turn, so that a write that is cut short leaves the one before; the file has its size from the beginning,
//! so that a full disk does not stop the clock. Each slot is there twice, a block of the disk apart: a torn write never was in force, but
//! one flipped bit must not bring the ceiling back to where it was before.
//!
//! What else a start must know, and must be able to write on a full disk, stands beside the ceiling: which start of the shard this is, and
//! how far each log was on the disk when the slot was written, so that a log that ends before that is not taken for one that a crash cut.

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

/// The file of a shard's clock, open for writing.
#[derive(Debug)]
pub struct ClockFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// The slot that counts, and which of the two it is.
    current: ClockSlot,
    at: usize,
}

impl ClockFile {
    /// Opens the file; answers it with the ceiling that was in force, or nothing if there is no file yet.
    ///
    /// Store a higher ceiling before anything is assigned: the one that is read may have been on its way to the disk at a crash.
    ///
    /// # Errors
    /// When it cannot be read, and [`WalError::Clock`] when neither slot is whole. [`ClockFile::create`] replaces it then, if that is wanted.
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

    /// Makes the file, or replaces it, with this ceiling; returns when it is on the disk.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(disk: &dyn Disk, path: &Path, ceiling: Revision) -> Result<Self, WalError> {
        let new = unfinished(path);
        let LogPlaces { fsync, buffered } = LogPlaces::NONE;
        let current = ClockSlot { generation: 1, ceiling: ceiling.get(), incarnation: 0, fsync, buffered };
        let made = disk.create(&new).and_then(|mut file| {
            file.preallocate((SLOT_BYTES * SLOTS) as u64)?;
            // Zeros are written, not only reserved, so that writing in place takes nothing from the file system.
            file.write_at(0, &[slot(&current), vec![0; SLOT_BYTES * (SLOTS - 1)]].concat())?;
            file.sync()?;
            disk.rename(&new, path)?;
            path.parent().map_or(Ok(()), |directory| disk.sync_directory(directory))?;
            Ok(file)
        });
        let file = made.map_err(WalError::io("make", path))?;
        Ok(Self { file, path: path.to_owned(), current, at: 0 })
    }

    /// The ceiling in force.
    #[must_use]
    pub const fn ceiling(&self) -> Revision {
        Revision(self.current.ceiling)
    }

    /// Which start of the shard wrote it last; 0 where that was never said.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.current.incarnation
    }

    /// The last frame of each log that was known to be on the disk; 0 for none.
    #[must_use]
    pub const fn durable(&self) -> LogPlaces {
        LogPlaces { fsync: self.current.fsync, buffered: self.current.buffered }
    }

    /// Notes which start this is; returns when it is on the disk.
    ///
    /// # Errors
    /// As of [`ClockFile::store`].
    pub fn begin(&mut self, incarnation: u64) -> Result<(), WalError> {
        self.write(ClockSlot { incarnation, ..self.current })
    }

    /// As [`ClockFile::store`], and notes that both logs are on the disk up to these frames. What was noted before stays noted: numbers of
    /// frames that were on the disk are never given again.
    ///
    /// # Errors
    /// As of [`ClockFile::store`].
    pub fn store_with(&mut self, ceiling: Revision, durable: LogPlaces) -> Result<(), WalError> {
        let (fsync, buffered) =
            (self.current.fsync.max(durable.fsync), self.current.buffered.max(durable.buffered));
        self.write(ClockSlot { ceiling: ceiling.get(), fsync, buffered, ..self.current })
    }

    /// Puts another ceiling in force, higher or (at a clean stop, when nothing is assigned any more) lower; returns when it is on the disk.
    /// Takes an fdatasync: not for a thread that must not wait.
    ///
    /// # Errors
    /// When the file system refuses: the ceiling of before is in force, and it may be tried again.
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

/// A slot with its copies and their padding.
fn slot(slot: &ClockSlot) -> Vec<u8> {
    let mut copy = [0; CLOCK_COPY_BYTES];
    copy[..CLOCK_SLOT_USED].copy_from_slice(&slot.encode());
    copy.repeat(CLOCK_COPIES)
}

#[cfg(test)]
mod tests;
