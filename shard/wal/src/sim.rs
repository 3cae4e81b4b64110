//! An in-memory disk that treats unsynced data as real disks do. It is seeded and uses no clock.
//!
//! - A **write** is visible to all readers at once, and durable only after a sync of its file. At a crash each of
//!   its 512-byte sectors is durable or not, independently of earlier writes. The last write of a file may also end
//!   at any sector. No sector is half written, even on power loss.
//! - A **name** (created, changed or removed) is durable only after a sync of its directory. At a crash a prefix of
//!   the changes of each directory is durable, separately for each directory, as in a journal.
//! - A **failed sync** writes some sectors and *forgets the others*: readers still see them and later syncs
//!   succeed, but a crash loses them. Real systems do this.
//! - Tests can exhaust the space, make the file system read-only, hold syncs, and stop everything at the n-th
//!   operation, as a killed process or a power loss would.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};

use crate::disk::{Disk, DiskFile};

mod inode;
mod random;

use self::{inode::Inode, random::Random};

/// The faults to inject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Writes and reservations fail as on a full disk after this many more bytes, net of removed bytes.
    pub space_left: Option<u64>,
    /// The sync after this many more syncs fails; 0 is the next one.
    pub fail_sync_in: Option<u64>,
    /// All changes fail as on a read-only file system.
    pub read_only: bool,
    /// After this many more changes every operation fails, until [`SimDisk::crash`].
    pub stop_in: Option<u64>,
}

/// A simulated disk. Clones share the same disk.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when syncs are no longer held.
    released: Condvar,
}

struct State {
    random: Random,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// The visible directories.
    directories: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, u64>,
    /// The names that are durable.
    durable_names: BTreeMap<PathBuf, u64>,
    /// Unsynced changes of names, by directory.
    unsynced_names: BTreeMap<PathBuf, Vec<Rename>>,
    faults: Faults,
    stopped: bool,
    /// Increments at every crash, which invalidates open files.
    life: u64,
    hold_syncs: bool,
    operations: u64,
    syncs: u64,
    largest_read: usize,
}

/// A change of a directory: names with the inodes that they then refer to.
type Rename = Vec<(PathBuf, Option<u64>)>;

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        let files =
            state.names.iter().map(|(path, inode)| (path, state.inodes.get(inode).map(|it| it.seen.len())));
        f.debug_map().entries(files).finish()
    }
}

impl SimDisk {
    /// An empty disk. The same seed and operations produce the same crashes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random::new(seed),
            inodes: BTreeMap::new(),
            next_inode: 1,
            directories: BTreeSet::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: BTreeMap::new(),
            faults: Faults::default(),
            stopped: false,
            life: 0,
            hold_syncs: false,
            operations: 0,
            syncs: 0,
            largest_read: 0,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), released: Condvar::new() }) }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.shared.state.lock().faults = faults;
    }

    #[must_use]
    pub fn faults(&self) -> Faults {
        self.shared.state.lock().faults
    }

    /// Simulates a power loss: each unsynced change is durable or lost. Faults end, and open files become invalid.
    pub fn crash(&self) {
        let mut state = self.shared.state.lock();
        state.crash();
        self.shared.released.notify_all();
    }

    /// Simulates a killed process: everything written stays visible, and stays unsynced.
    pub fn kill(&self) {
        let mut state = self.shared.state.lock();
        state.end_life();
        self.shared.released.notify_all();
    }

    /// Whether [`Faults::stop_in`] has taken effect.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.shared.state.lock().stopped
    }

    /// Flips a bit of a file, both on the disk and for readers.
    pub fn flip(&self, path: &Path, bit: u64) {
        let mut state = self.shared.state.lock();
        let Some(inode) = state.names.get(path).copied().and_then(|inode| state.inodes.get_mut(&inode))
        else {
            return;
        };
        inode.flip(bit);
    }

    /// Blocks every sync until [`SimDisk::release_syncs`], to simulate a slow disk.
    pub fn hold_syncs(&self) {
        self.shared.state.lock().hold_syncs = true;
    }

    pub fn release_syncs(&self) {
        self.shared.state.lock().hold_syncs = false;
        self.shared.released.notify_all();
    }

    /// The number of changes, and how many of them were syncs of files.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let state = self.shared.state.lock();
        (state.operations, state.syncs)
    }

    /// The largest buffer that was read into.
    #[must_use]
    pub fn largest_read(&self) -> usize {
        self.shared.state.lock().largest_read
    }

    /// The content of a file as readers see it.
    #[must_use]
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.shared.state.lock();
        Some(state.inodes.get(state.names.get(path)?)?.seen.clone())
    }

    /// Creates a synced file.
    pub fn place(&self, path: &Path, content: Vec<u8>) {
        let mut state = self.shared.state.lock();
        let inode = state.new_inode();
        state.inodes.insert(inode, Inode::synced(content));
        state.names.insert(path.to_owned(), inode);
        state.durable_names.insert(path.to_owned(), inode);
        state.directories.extend(path.ancestors().skip(1).map(Path::to_owned));
    }

    /// A copy of the disk with everything visible synced, and a seed of its own.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        let state = self.shared.state.lock();
        for (path, inode) in &state.names {
            if let Some(inode) = state.inodes.get(inode) {
                copy.place(path, inode.seen.clone());
            }
        }
        copy.shared.state.lock().directories.extend(state.directories.iter().cloned());
        copy
    }

    fn open_at(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let state = self.shared.state.lock();
        state.alive()?;
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(SimFile { disk: self.clone(), inode, life: state.life }))
    }
}

impl State {
    fn new_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode
    }

    fn alive(&self) -> io::Result<()> {
        if self.stopped { Err(io::Error::other("the machine has stopped")) } else { Ok(()) }
    }

    /// Counts an operation that changes or syncs something, and applies the faults.
    fn change(&mut self) -> io::Result<()> {
        self.alive()?;
        self.operations += 1;
        if let Some(left) = &mut self.faults.stop_in {
            if *left == 0 {
                self.stopped = true;
                return self.alive();
            }
            *left -= 1;
        }
        if self.faults.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    /// Takes space for up to `bytes` bytes; returns how many fit.
    fn take_space(&mut self, bytes: usize) -> usize {
        let Some(left) = &mut self.faults.space_left else { return bytes };
        let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes);
        *left -= taken as u64;
        taken
    }

    /// Applies changes of names in one directory as a single step.
    fn rename(&mut self, change: Rename) {
        for (path, inode) in &change {
            match inode {
                Some(inode) => self.names.insert(path.clone(), *inode),
                None => self.names.remove(path),
            };
        }
        let directory =
            change.first().and_then(|(path, _)| path.parent()).map(Path::to_owned).unwrap_or_default();
        self.unsynced_names.entry(directory).or_default().push(change);
    }

    fn settle_names(&mut self, changes: impl IntoIterator<Item = Rename>) {
        for (path, inode) in changes.into_iter().flatten() {
            match inode {
                Some(inode) => self.durable_names.insert(path, inode),
                None => self.durable_names.remove(&path),
            };
        }
    }

    fn end_life(&mut self) {
        self.life += 1;
        self.faults = Faults::default();
        (self.stopped, self.hold_syncs) = (false, false);
    }

    fn crash(&mut self) {
        for (_, mut changes) in std::mem::take(&mut self.unsynced_names) {
            let kept = self.random.below(changes.len() as u64 + 1);
            changes.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            self.settle_names(changes);
        }
        self.names = self.durable_names.clone();
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
        for inode in self.inodes.values_mut() {
            inode.crash(&mut self.random);
        }
        self.end_life();
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.shared.state.lock();
        state.change()?;
        if state.faults.space_left == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if path.parent().is_some_and(|directory| !state.directories.contains(directory)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inode = state.new_inode();
        state.inodes.insert(inode, Inode::default());
        state.rename(vec![(path.to_owned(), Some(inode))]);
        Ok(Box::new(SimFile { disk: self.clone(), inode, life: state.life }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_at(path)
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_at(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let state = self.shared.state.lock();
        state.alive()?;
        if !state.directories.contains(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(inside.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.change()?;
        let inode = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.rename(vec![(from.to_owned(), None), (to.to_owned(), Some(inode))]);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.change()?;
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        let freed = state.inodes.get(&inode).map_or(0, |inode| inode.seen.len() as u64);
        if let Some(left) = &mut state.faults.space_left {
            *left += freed;
        }
        state.rename(vec![(path.to_owned(), None)]);
        Ok(())
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        // Directories are durable at once; syncing their parents is not simulated.
        state.alive()?;
        state.directories.extend(directory.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        // A sync succeeds on a read-only file system, because there is nothing to sync.
        let read_only = std::mem::take(&mut state.faults.read_only);
        let done = state.change();
        state.faults.read_only = read_only;
        done?;
        let changes = state.unsynced_names.remove(directory).unwrap_or_default();
        state.settle_names(changes);
        Ok(())
    }

    fn free_space(&self, _directory: &Path) -> io::Result<u64> {
        let state = self.shared.state.lock();
        state.alive()?;
        Ok(state.faults.space_left.unwrap_or(1 << 40))
    }
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
    /// The life of the disk in which the file was opened.
    life: u64,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("inode", &self.inode).finish()
    }
}

impl SimFile {
    fn with<T>(&self, read: impl FnOnce(&Inode) -> T) -> io::Result<T> {
        let state = self.disk.shared.state.lock();
        state.alive()?;
        let inode = state.inodes.get(&self.inode).filter(|_| state.life == self.life);
        inode.map(read).ok_or_else(|| io::Error::other("the file was open before the crash"))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State, &mut Inode) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.shared.state.lock();
        if state.life != self.life {
            return Err(io::Error::other("the file was open before the crash"));
        }
        state.change()?;
        let mut inode = state.inodes.remove(&self.inode).ok_or(io::ErrorKind::NotFound)?;
        let done = change(&mut state, &mut inode);
        state.inodes.insert(self.inode, inode);
        done
    }
}

impl DiskFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        self.with(|inode| inode.seen.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.shared.state.lock();
        state.largest_read = state.largest_read.max(into.len());
        drop(state);
        self.with(|inode| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(inode.seen.len());
            let bytes = &inode.seen[from..];
            let read = bytes.len().min(into.len());
            into[..read].copy_from_slice(&bytes[..read]);
            read
        })
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|state, inode| {
            // Overwriting takes no space.
            let end = offset + bytes.len() as u64;
            let more = end.saturating_sub(offset.max(inode.seen.len() as u64));
            let more = usize::try_from(more).unwrap_or(usize::MAX).min(bytes.len());
            let taken = bytes.len() - more + state.take_space(more);
            inode.write(offset, &bytes[..taken]);
            if taken < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        })
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.change(|state, inode| {
            let freed = (inode.seen.len() as u64).saturating_sub(length);
            if let Some(left) = &mut state.faults.space_left {
                *left += freed;
            }
            inode.set_length(length);
            Ok(())
        })
    }

    fn preallocate(&mut self, length: u64) -> io::Result<()> {
        self.change(|state, inode| {
            let more = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(inode.seen.len());
            if state.take_space(more) < more {
                return Err(io::ErrorKind::StorageFull.into());
            }
            inode.set_length(length.max(inode.seen.len() as u64));
            Ok(())
        })
    }

    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        self.with(|_| ())?;
        Ok(Box::new(Self { disk: self.disk.clone(), inode: self.inode, life: self.life }))
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.shared.state.lock();
        while state.hold_syncs && state.life == self.life {
            self.disk.shared.released.wait(&mut state);
        }
        drop(state);
        self.change(|state, inode| {
            state.syncs += 1;
            let fails = state.faults.fail_sync_in == Some(0);
            state.faults.fail_sync_in = state.faults.fail_sync_in.and_then(|left| left.checked_sub(1));
            if fails {
                inode.fail_sync(&mut state.random);
                return Err(io::Error::other("input/output error (simulated)"));
            }
            inode.sync();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
