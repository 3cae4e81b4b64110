//! What of a shard's changes must be in a log, and when they may be seen (R9).
//!
//! Every Kind has a mode. Of `None` nothing is kept; a `Buffered` change is seen at once and written to its log a little
//! later; an `Fsync` change is seen by nobody before its log is on disk. The engine does no I/O: it hands out what is to be
//! written ([`Engine::take_applied`]) and is told what came to the disk ([`Engine::publish_fsync`]). Leases, units,
//! compactions and the modes themselves are always written to the fsync log, whatever the Kinds' modes.
//!
//! [`Engine::take_applied`]: crate::engine::Engine::take_applied
//! [`Engine::publish_fsync`]: crate::engine::Engine::publish_fsync

use std::{collections::BTreeMap, fmt};

use kindred_partition_config::{
    ids::{LeaseId, MoveId, Revision, Slot, Term},
    key::Key,
    unit::Unit,
};

use crate::{units::UnitMove, version::Version};

/// What a Kind's changes survive, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Nothing: they live as long as the process.
    None,
    /// A crash loses at most what was written in the last few milliseconds.
    Buffered,
    /// A crash loses nothing that was seen or answered.
    Fsync,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Buffered => "buffered",
            Self::Fsync => "fsync",
        })
    }
}

/// The mode of every Kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindModes {
    /// Which edition this is; a lower one than the one in force is refused.
    pub generation: u64,
    /// Of Kinds that are not named, and of keys that belong to no Kind.
    pub default: Durability,
    /// By Kind prefix.
    pub kinds: BTreeMap<Key, Durability>,
}

impl KindModes {
    /// One mode for everything.
    #[must_use]
    pub fn all(mode: Durability) -> Self {
        Self { generation: 0, default: mode, kinds: BTreeMap::new() }
    }

    /// The mode of the Kind with this prefix; the empty one stands for the keys of no Kind.
    #[must_use]
    pub fn of(&self, prefix: &[u8]) -> Durability {
        self.kinds.get(prefix).copied().unwrap_or(self.default)
    }

    /// Whether Kinds differ.
    #[must_use]
    pub fn differ(&self) -> bool {
        self.kinds.values().any(|mode| *mode != self.default)
    }

    /// The weaker of both for each Kind, if that is weaker than these for any.
    pub(crate) fn weakened(&self, other: &Self) -> Option<Self> {
        let prefixes = self.kinds.keys().chain(other.kinds.keys());
        let weaker = |prefix: &Key| (prefix.clone(), self.of(prefix).min(other.of(prefix)));
        let kinds: BTreeMap<Key, Durability> = prefixes.map(weaker).collect();
        let default = self.default.min(other.default);
        let is_weaker = default < self.default || kinds.iter().any(|(prefix, mode)| *mode < self.of(prefix));
        is_weaker.then_some(Self { generation: self.generation, default, kinds })
    }

    /// Whether some Kind waits for the fsync log.
    pub(crate) fn some_wait(&self) -> bool {
        self.default == Durability::Fsync || self.kinds.values().any(|mode| *mode == Durability::Fsync)
    }
}

/// What became of new modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModesTaken {
    /// They are in force; they will be a [`Logged::Modes`].
    InForce,
    /// Some Kind is to be kept less well than before. What a crash leaves of it is told by the modes that are logged (R10), so
    /// these say so first, while nothing is in force yet: set them again when both logs are flushed and nothing was executed
    /// in between, or take them back with [`crate::engine::Engine::keep_modes`].
    AfterLog,
    /// A Kind of which nothing was kept is to be kept from now on. What is written is logged already; the modes are logged
    /// when [`crate::engine::Engine::modes_settled`] tells that a checkpoint, begun after this, is on disk. A crash before
    /// that is one in the old mode.
    AfterCheckpoint,
}

/// Why modes were refused; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModesError {
    /// Newer ones are in force.
    #[error("modes of generation {asked} are older than those in force ({known})")]
    Stale {
        /// The generation of those refused.
        asked: u64,
        /// The generation in force.
        known: u64,
    },
    /// Revisions are counted for all Kinds together, so they are kept or lost together.
    #[error(
        "a shard with dense revisions has one durability for all keys, none or fsync, but {prefix} is to be {mode}"
    )]
    Dense {
        /// The Kind, or nothing for the default.
        prefix: Key,
        /// Its mode.
        mode: Durability,
    },
    /// Something of a Kind whose mode changes is not published: call between batches, when both logs are flushed.
    #[error("{prefix} has changes that are not published; flush the logs first")]
    Unpublished {
        /// The Kind.
        prefix: Key,
    },
}

/// A place in the fsync log: everything handed out up to one call of [`crate::engine::Engine::take_applied`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FsyncMark(pub u64);

/// What was applied and is to be written to the logs.
#[derive(Debug, Clone)]
pub struct Applied {
    /// For the log that is written every few milliseconds.
    pub buffered: Vec<Logged>,
    /// For the log that is fsynced.
    pub fsync: Vec<Logged>,
    /// What to tell [`crate::engine::Engine::publish_fsync`] when `fsync`, and everything handed out for that log before,
    /// is on disk. Without `fsync` it is the mark of the call before.
    pub mark: FsyncMark,
    /// Nothing that is applied later is at or below this: when both are on disk, nothing up to here is missing. To be
    /// written behind the records of the log of mode buffered, whenever it has changed.
    pub promise: Revision,
}

/// One record of a log. A batch of them is written whole or not at all.
#[derive(Debug, Clone)]
pub enum Logged {
    /// A put or a deletion.
    Version(Version),
    /// What is known of a lease from now on.
    Lease(Box<LeaseRecord>),
    /// The floor from now on.
    Compaction(Revision),
    /// The modes from now on.
    Modes(Box<KindModes>),
    /// What a start found missing.
    Gap(Box<KindGap>),
    /// All units from now on.
    Units(Box<UnitTable>),
    /// Versions that came to a hidden unit from another store.
    Imported(Box<Imported>),
}

/// Revisions of which something may have been shown that is lost: those between the two (R10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// The last revision before it of which nothing is missing.
    pub after: Revision,
    /// The first one behind it that can be read.
    pub until: Revision,
}

impl Gap {
    /// Whether a read at a revision asks for what may be lost.
    #[must_use]
    pub fn hides(&self, at: Revision) -> bool {
        self.after < at && at < self.until
    }

    /// Whether who has seen everything below `start` may have seen what is lost.
    #[must_use]
    pub fn holds_start(&self, start: Revision) -> bool {
        self.hides(start.prev()) && start < self.until
    }

    fn is_nothing(&self) -> bool {
        self.after.next() >= self.until
    }
}

/// The gap of one Kind at one start. One without a prefix is that of every Kind, and of the keys of no Kind, that no other
/// with the same end names; so a Kind that lost nothing is named with an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindGap {
    /// The Kind's prefix, or nothing.
    pub kind: Key,
    /// What is missing.
    pub gap: Gap,
}

/// The gaps of a Kind, of all that were found.
pub(crate) fn gaps_of(all: &[KindGap], kind: &[u8]) -> Vec<Gap> {
    let named = |until: Revision| all.iter().any(|gap| *gap.kind == *kind && gap.gap.until == until);
    let ours = all.iter().filter(|gap| *gap.kind == *kind || (gap.kind.is_empty() && !named(gap.gap.until)));
    let mut gaps: Vec<Gap> = ours.map(|gap| gap.gap).filter(|gap| !gap.is_nothing()).collect();
    gaps.sort_unstable();
    gaps.dedup();
    gaps
}

/// Versions that came to a hidden unit.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The number of its [`UnitEntry`].
    pub unit: u64,
    /// In no order that means anything.
    pub versions: Vec<Version>,
}

/// All that is durable of the units of a shard: the last table says everything. Imports that are not sealed are in none,
/// so they are gone after a crash; what was released is [`DurableUnit::Gone`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitTable {
    /// The number of the next record.
    pub next: u64,
    /// The oldest first: where they overlap, the newest that holds a key decides over it.
    pub records: Vec<UnitEntry>,
    /// The highest term seen of each move.
    pub terms: Vec<(MoveId, Term)>,
    /// What was opened here, the oldest first.
    pub layers: Vec<UnitLayer>,
}

/// A record of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitEntry {
    /// Its number, never used again.
    pub number: u64,
    /// The last move of it.
    pub by: UnitMove,
    /// How it stands.
    pub state: DurableUnit,
    /// See [`crate::units::UnitRecord::epoch`].
    pub epoch: u64,
    /// Nothing of it below is readable.
    pub floor: Revision,
    /// It was split off from what was owned; else it was imported.
    pub split: bool,
    /// Its gaps.
    pub gaps: Vec<Gap>,
}

/// See [`UnitEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurableUnit {
    /// Owned, and followed by another store.
    Tracked,
    /// Nothing of it above `last`.
    Frozen {
        /// The final revision.
        last: Revision,
    },
    /// Hidden, and everything up to `last` is there.
    Sealed {
        /// The source's final revision.
        last: Revision,
    },
    /// Owned.
    Owned,
    /// Another store's.
    Gone,
}

/// A unit that was opened here. The logs may still hold what the shard wrote of it before it gave it away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitLayer {
    /// Which keys.
    pub unit: Unit,
    /// The number of the record whose imports count.
    pub number: u64,
    /// It was copied anew, and of what others wrote up to `since` nothing counts.
    pub fresh: bool,
    /// The source's final revision.
    pub since: Revision,
}

/// All that is durable of a lease: the last record of a lease says everything. Keys are attached by their versions; times
/// are not kept, so after a restart a lease has its whole TTL again (R12: a home errs to longer).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Which.
    pub id: LeaseId,
    /// How it stands.
    pub state: LeaseState,
}

/// See [`LeaseRecord`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// It is live, and its home is here.
    Home {
        /// Seconds granted.
        ttl_s: i64,
        /// Stores that hold, or will hold, keys of it.
        attached: Vec<Slot>,
    },
    /// It is live, and its home is another store.
    Adopted {
        /// Seconds granted.
        ttl_s: i64,
        /// That store.
        home: Slot,
    },
    /// It is live, and its home, which was here, is on its way to another store: nobody serves it here.
    Handing {
        /// Seconds granted.
        ttl_s: i64,
        /// Stores that hold, or will hold, keys of it.
        attached: Vec<Slot>,
    },
    /// It is live, and its home is another store, which took it over from this one.
    Handed {
        /// Seconds granted.
        ttl_s: i64,
        /// That store.
        home: Slot,
    },
    /// It is over; its home is here and waits for these stores.
    Ended {
        /// Stores that may still hold keys of it.
        attached: Vec<Slot>,
    },
    /// Nothing is known of it any more.
    Gone,
}

/// What is to be written to the logs, gathered while requests are applied.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Without a log under the shard nothing is gathered.
    pub(crate) on: bool,
    pub(crate) buffered: Vec<Logged>,
    pub(crate) fsync: Vec<Logged>,
    pub(crate) mark: FsyncMark,
}

impl Outbox {
    /// What another store gave.
    pub(crate) fn imported(&mut self, unit: u64, versions: Vec<Version>) {
        if self.on && !versions.is_empty() {
            self.buffered.push(Logged::Imported(Box::new(Imported { unit, versions })));
        }
    }

    /// A change that is always fsynced.
    pub(crate) fn push(&mut self, logged: impl FnOnce() -> Logged) {
        if self.on {
            self.fsync.push(logged());
        }
    }

    /// A write of a Kind of this mode.
    pub(crate) fn version(&mut self, mode: Durability, version: &Version) {
        match mode {
            _ if !self.on => {}
            Durability::None => {}
            Durability::Buffered => self.buffered.push(Logged::Version(version.clone())),
            Durability::Fsync => self.fsync.push(Logged::Version(version.clone())),
        }
    }

    pub(crate) fn take(&mut self, waits: bool) -> Applied {
        if waits || !self.fsync.is_empty() {
            self.mark.0 += 1;
        }
        let (buffered, fsync) = (std::mem::take(&mut self.buffered), std::mem::take(&mut self.fsync));
        Applied { buffered, fsync, mark: self.mark, promise: Revision::ZERO }
    }
}
