//! Which changes of a shard go to a log, and when they become visible (R9).
//!
//! Every Kind has a mode. `None` logs nothing. A `Buffered` change is visible at once and is logged a little later. An
//! `Fsync` change is visible only when its log is on disk. The engine does no I/O: it hands out the records
//! ([`Engine::take_applied`]) and is told what is on disk ([`Engine::publish_fsync`]). Leases, units, compactions and
//! the modes themselves always go to the fsync log.
//!
//! A shard with standbys ships every record to them, those of mode `none` too ([`Engine::ship`]). Nothing is visible
//! before the standbys have received it (R18): the owner of the engine publishes the Kinds of modes `none` and
//! `buffered` by [`Engine::publish_received`], and those of mode `fsync` once disk and standbys have them.
//!
//! [`Engine::take_applied`]: crate::engine::Engine::take_applied
//! [`Engine::publish_fsync`]: crate::engine::Engine::publish_fsync
//! [`Engine::publish_received`]: crate::engine::Engine::publish_received
//! [`Engine::ship`]: crate::engine::Engine::ship

use kindred_partition_config::{
    ids::{Epoch, LeaseId, MoveId, Revision, Slot, Term},
    unit::Unit,
};

pub use crate::types::{Durability, Gap, KindGap, KindModes, ModesError, ModesTaken};
use crate::{units::UnitMove, version::Version};

/// A position in what was applied: covers every record up to one call of [`crate::engine::Engine::take_applied`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// What an answer waits for, because it depends on a change that is not visible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerWaits {
    /// For [`crate::engine::Engine::publish_fsync`] of the next mark.
    pub fsync: bool,
    /// For [`crate::engine::Engine::publish_received`] of the next mark.
    pub received: bool,
}

/// The applied changes to write to the logs.
#[derive(Debug, Clone)]
pub struct Applied {
    /// Records for the log that is synced every few milliseconds.
    pub buffered: Vec<Logged>,
    /// Records for the log that is synced before they are visible.
    pub fsync: Vec<Logged>,
    /// All of these and the changes of mode `none`, in the order in which they were applied, each with the log in which
    /// it belongs. Empty unless the engine ships.
    pub shipped: Vec<(Durability, Logged)>,
    /// The mark for [`crate::engine::Engine::publish_fsync`] once `fsync` and all earlier records of that log are on
    /// disk, and for [`crate::engine::Engine::publish_received`]. If nothing waits, it is the mark of the previous call.
    pub mark: Mark,
    /// No later change has a revision at or below this: when both logs are on disk, they have everything up to it. It
    /// is written behind the records of the buffered log whenever it has changed.
    pub promise: Revision,
}

/// One record of a log. A batch of records is written whole or not at all.
#[derive(Debug, Clone)]
pub enum Logged {
    Version(Version),
    /// The state of a lease from now on.
    Lease(Box<LeaseRecord>),
    /// The floor from now on.
    Compaction(Revision),
    /// The modes from now on.
    Modes(Box<KindModes>),
    /// A gap that a start found.
    Gap(Box<KindGap>),
    /// All units from now on.
    Units(Box<UnitTable>),
    /// Versions imported into a hidden unit from another store.
    Imported(Box<Imported>),
}

/// Versions imported into a hidden unit.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The number of its [`UnitEntry`].
    pub unit: u64,
    /// The versions, in no particular order.
    pub versions: Vec<Version>,
}

/// The durable state of all units; each logged table replaces the one before. Imports that are not sealed are in no
/// table, so a crash drops them. Released units are [`DurableUnit::Gone`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitTable {
    pub next: u64,
    /// Oldest first. Where records overlap, the newest that contains a key decides over it.
    pub records: Vec<UnitEntry>,
    /// The highest term seen of each move.
    pub terms: Vec<(MoveId, Term)>,
    /// The units opened here, oldest first.
    pub layers: Vec<UnitLayer>,
}

/// A unit's durable record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitEntry {
    /// The record's number, never reused.
    pub number: u64,
    /// The last move of the unit.
    pub by: UnitMove,
    pub state: DurableUnit,
    pub epoch: Epoch,
    /// The lowest readable revision of the unit.
    pub floor: Revision,
    /// Whether the unit was split off from owned keys; otherwise it was imported.
    pub split: bool,
    pub gaps: Vec<Gap>,
}

/// The durable state of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurableUnit {
    /// Owned, and copied by another store.
    Tracked,
    /// Nothing of the unit is executed or promised above `last`.
    Frozen {
        last: Revision,
    },
    /// Hidden, and everything up to `last` is imported.
    Sealed {
        /// The source's final revision.
        last: Revision,
    },
    Owned,
    /// Another store owns it.
    Gone,
}

/// A unit that was opened here. The logs may still hold what the shard wrote to it before giving it away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitLayer {
    pub unit: Unit,
    /// The number of the record whose imports count.
    pub number: u64,
    /// Whether it came as a fresh copy: then nothing that other records wrote up to `since` counts.
    pub fresh: bool,
    /// The source's final revision.
    pub since: Revision,
}

/// The durable state of a lease; each record replaces the one before. The keys' versions name their lease. Times are
/// not logged: after a restart a lease has its whole TTL again (R12: a home errs to longer).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    pub id: LeaseId,
    pub state: LeaseState,
}

/// The durable state of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// Live; this store is its home.
    Home {
        /// Seconds granted.
        ttl_s: i64,
        /// Stores that hold, or will hold, keys of it.
        attached: Vec<Slot>,
    },
    /// Live; another store is its home.
    Adopted {
        /// Seconds granted.
        ttl_s: i64,
        home: Slot,
    },
    /// Live; its home was here and is moving to another store. This store no longer serves it.
    Handing {
        /// Seconds granted.
        ttl_s: i64,
        /// Stores that hold, or will hold, keys of it.
        attached: Vec<Slot>,
    },
    /// Live; another store took it over from this one and is its home.
    Handed {
        /// Seconds granted.
        ttl_s: i64,
        home: Slot,
    },
    /// Ended; its home is here and waits for these stores.
    Ended {
        /// Stores that may still hold keys of it.
        attached: Vec<Slot>,
    },
    /// Unknown: forgotten, or never here.
    Gone,
}

/// Collects the records for the logs while requests are applied.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Whether there are logs; otherwise nothing is collected.
    pub(crate) on: bool,
    pub(crate) buffered: Vec<Logged>,
    pub(crate) fsync: Vec<Logged>,
    /// All of them in the order of their changes, if the engine ships.
    pub(crate) shipped: Option<Vec<(Durability, Logged)>>,
    pub(crate) mark: Mark,
}

impl Outbox {
    /// Adds imported versions.
    pub(crate) fn imported(&mut self, unit: u64, versions: Vec<Version>) {
        if self.on && !versions.is_empty() {
            self.add(Durability::Buffered, Logged::Imported(Box::new(Imported { unit, versions })));
        }
    }

    /// Tells standbys that imports for a unit do not count any more. A log need not say so, because a start does without
    /// what was never sealed.
    pub(crate) fn dropped(&mut self, unit: u64) {
        if let Some(shipped) = self.shipped.as_mut().filter(|_| self.on) {
            let nothing = Imported { unit, versions: Vec::new() };
            shipped.push((Durability::None, Logged::Imported(Box::new(nothing))));
        }
    }

    /// Adds a record that always goes to the fsync log.
    pub(crate) fn push(&mut self, logged: impl FnOnce() -> Logged) {
        if self.on {
            self.add(Durability::Fsync, logged());
        }
    }

    /// Adds a write of a Kind with this mode.
    pub(crate) fn version(&mut self, mode: Durability, version: &Version) {
        if self.on && (mode != Durability::None || self.shipped.is_some()) {
            self.add(mode, Logged::Version(version.clone()));
        }
    }

    fn add(&mut self, log: Durability, logged: Logged) {
        if let Some(shipped) = &mut self.shipped {
            shipped.push((log, logged.clone()));
        }
        match log {
            Durability::None => {}
            Durability::Buffered => self.buffered.push(logged),
            Durability::Fsync => self.fsync.push(logged),
        }
    }

    pub(crate) fn take(&mut self, waits: bool) -> Applied {
        if waits || !self.fsync.is_empty() {
            self.mark.0 += 1;
        }
        let (buffered, fsync) = (std::mem::take(&mut self.buffered), std::mem::take(&mut self.fsync));
        let shipped = self.shipped.as_mut().map(std::mem::take).unwrap_or_default();
        Applied { buffered, fsync, shipped, mark: self.mark, promise: Revision::ZERO }
    }
}
