//! Units: which keys a shard owns, and which of them are moving to or from another store (R13-R16).
//!
//! A shard without records owns every key that it is asked for. A record states how one [`Unit`] differs from that:
//!
//! ```text
//! source    (none, Owned) --track--> Tracked --freeze--> Frozen --release--> Following --drop--> Dropping --> Gone
//!                                        ^---unfreeze------'
//! target    (none, Gone) --import--> Following --seal--> (sealed) --open--> Owned
//! ```
//!
//! The keys of a record, with their history, live in keyspaces of their own, so hiding, showing or dropping them is one
//! change of state, however many they are. Reads merge the keyspaces that they may see, in key order or in revision
//! order; counts are sums. A Kind that no record overlaps pays one branch for all this.

use std::fmt;

use kindred_partition_config::{
    ids::{Epoch, LeaseId, MoveId, Revision, Term},
    key::Key,
    unit::Unit,
};

use crate::{types::Gap, version::Version};

pub(crate) mod table;

/// Identifies a call of a move's coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitMove {
    pub id: MoveId,
    /// The coordinator's term. A term below the highest one seen for the move is refused.
    pub term: Term,
    /// The unit that moves. Its range is a span.
    pub unit: Unit,
}

/// The state of a unit on this shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Source: owned and served. Its keys are being moved into keyspaces of their own.
    Tracked {
        /// Whether all of its keys are there.
        ready: bool,
    },
    /// Source: nothing of the unit is executed, read or promised above `last` (R13, R15a).
    Frozen {
        last: Revision,
    },
    /// Hidden: the target of a copy, or a source that follows the new owner.
    Following {
        /// Every event up to this revision has been imported.
        through: Revision,
        /// Target, prepared for the switch: everything up to this revision is imported. Until
        /// [`crate::engine::Engine::unit_open`] or the next import, requests that touch the unit are told to wait.
        sealed: Option<Revision>,
    },
    Owned,
    /// Hidden; each garbage collection removes some of its data.
    Dropping,
    /// The data is gone. The record remains to refuse requests that go by an old map.
    Gone,
}

/// A snapshot of one unit's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitRecord {
    /// The last move of this unit.
    pub by: UnitMove,
    pub state: UnitState,
    /// The map generation since which another store (when hidden or `Gone`) or this one (`Owned`) owns the unit;
    /// [`Epoch::NONE`] before the first switch.
    pub epoch: Epoch,
    /// Live keys in the unit's own keyspaces.
    pub keys: u64,
    /// The lowest readable revision of the unit.
    pub floor: Revision,
}

/// The progress of tracking a unit, and the size of the copy to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracking {
    /// Whether the unit can be copied, followed and frozen.
    pub ready: bool,
    pub keys: u64,
    /// Approximate bytes of all versions.
    pub bytes: u64,
    /// Events held as history.
    pub events: u64,
    /// The lowest readable revision of the unit.
    pub floor: Revision,
}

/// A key with its history, oldest version first: the versions at or above the floor, preceded by the version that was
/// current at the floor or that the first event replaced.
#[derive(Debug, Clone)]
pub struct CopiedKey {
    /// Never empty.
    pub versions: Vec<Version>,
}

impl CopiedKey {
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.versions.first().map_or(&[], |version| version.key())
    }
}

/// A chunk of a unit's copy.
#[derive(Debug, Clone)]
pub struct CopyChunk {
    /// Keys in key order.
    pub keys: Vec<CopiedKey>,
    /// The floor when this chunk was read; the floor of a copy is the highest floor of its chunks.
    pub floor: Revision,
    /// Revision intervals of which events may be lost (R10).
    pub gaps: Vec<Gap>,
    /// The key to continue behind; `None` at the end.
    pub after: Option<Key>,
}

/// An event that follows a copy.
#[derive(Debug, Clone)]
pub struct FollowedEvent {
    /// The put or the tombstone.
    pub version: Version,
    /// The version that the event replaced, if the feed carried it.
    pub prev: Option<Version>,
}

/// The contents of one import call. An import may be repeated and may overlap with earlier ones.
#[derive(Debug, Clone, Default)]
pub struct Import {
    pub keys: Vec<CopiedKey>,
    /// Events in revision order; a revision is never split over two imports.
    pub events: Vec<FollowedEvent>,
    /// The source's floor, if known.
    pub floor: Option<Revision>,
    pub gaps: Vec<Gap>,
    /// Once these events are imported, everything up to this revision is here.
    pub through: Option<Revision>,
}

/// The digest of a run of keys in key order (see [`crate::engine::Engine::unit_verify`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitDigest {
    /// The last key that the digest covers.
    pub last_key: Key,
    /// Number of keys.
    pub keys: u64,
    /// Number of versions, tombstones included.
    pub versions: u64,
    /// XXH3-64 over the versions.
    pub hash: u64,
}

/// A refusal: this shard does not own the keys at present. Nothing was executed (R11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotOwned {
    /// The requested key, or the first key of the requested range.
    pub key: Key,
    /// The map generation since which another store owns the keys. [`Epoch::NONE`] while that is being decided: the
    /// client may retry here or with a newer map.
    pub epoch: Epoch,
}

impl fmt::Display for NotOwned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch {
            Epoch::NONE => write!(f, "{} is moving; try again", self.key),
            epoch => write!(f, "{} belongs to another store since map {epoch}", self.key),
        }
    }
}

impl std::error::Error for NotOwned {}

/// Why a call for a move was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Another coordinator has taken over.
    #[error("move {id}: term {term} is over, {seen} was seen")]
    StaleTerm {
        id: MoveId,
        /// The term of the call.
        term: Term,
        /// The highest term seen for the move.
        seen: Term,
    },
    /// The shard has no record of the unit.
    #[error("move {0}: this shard has no record of the unit; ask `List`")]
    Unknown(MoveId),
    /// The unit's state does not allow the call.
    #[error("move {id}: the unit is {state}, which does not allow {call}")]
    State {
        id: MoveId,
        /// The name of the unit's state.
        state: &'static str,
        /// The name of the call.
        call: &'static str,
    },
    /// The unit overlaps one that is moving, or that this shard does not own.
    #[error("move {id}: the unit overlaps one of move {other} that is {state}")]
    Overlaps {
        id: MoveId,
        /// The move of the other record.
        other: MoveId,
        /// The name of the other record's state.
        state: &'static str,
    },
    /// The unit's range is empty or not a span.
    #[error("a unit's range must be a span that is not empty")]
    BadUnit,
    /// An imported key is outside the unit, or a key of the unit exists here already.
    #[error("move {id}: key {key} {what}")]
    Key {
        id: MoveId,
        key: Key,
        /// A description of the problem.
        what: &'static str,
    },
    /// Not all events up to the source's final revision are imported.
    #[error("move {id}: imported through {through}, the source's final revision is {last}")]
    Behind {
        id: MoveId,
        /// The revision up to which everything is imported.
        through: Revision,
        /// The revision up to which everything must be imported.
        last: Revision,
    },
    /// Keys of the unit carry leases that this shard has not adopted. At most a hundred are named.
    #[error("move {id}: leases of its keys are not attached here: {leases:?}")]
    Leases {
        id: MoveId,
        /// The leases to adopt.
        leases: Vec<LeaseId>,
    },
    /// Lists or long reads that began before the unit changed hands still read it here.
    #[error(
        "move {id}: the unit is still read here by {reads}; it is dropped when that has ended, or in {left_s} s"
    )]
    Read {
        id: MoveId,
        /// A description of these reads.
        reads: String,
        /// Seconds after which the unit is dropped anyway and the reads fail.
        left_s: u64,
    },
    /// Old data of the unit's keys is still being removed here. The caller calls again.
    #[error("move {0}: still making room; try again")]
    NotReady(MoveId),
    /// Applied writes of the unit's Kinds are not published yet. The caller calls between batches, when both logs are
    /// flushed.
    #[error("called before what was applied is published")]
    Unpublished,
    /// The clock may not follow to the final revision (R3).
    #[error(transparent)]
    Clock(#[from] crate::types::ClockOffset),
}
