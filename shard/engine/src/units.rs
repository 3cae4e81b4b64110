//! Units: which keys a shard owns and which of them are on their way to or from another store (R13-R16).
//!
//! A shard without records owns everything that it is asked for. A record says of one [`Unit`] that it is otherwise:
//!
//! ```text
//! source    (none, Owned) --track--> Tracked --freeze--> Frozen --release--> Following --drop--> Dropping --> Gone
//!                                        ^---unfreeze------'
//! target    (none, Gone) --import--> Following --seal--> (sealed) --open--> Owned
//! ```
//!
//! The keys of a record, with their history, stand in keyspaces of their own, so that hiding, showing and dropping them is
//! one change of state, whatever they are: reads merge the keyspaces that they may see, in key order or in the order of
//! revisions, and counts are sums. A Kind that no record overlaps pays one branch for all this.

use std::fmt;

use kindred_partition_config::{
    ids::{LeaseId, MoveId, Revision, Term},
    key::Key,
    unit::Unit,
};

use crate::{durability::Gap, version::Version};

pub(crate) mod table;

/// What a call for a move names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitMove {
    /// Which move.
    pub id: MoveId,
    /// Of its coordinator; a lower one than the highest seen for the move is refused.
    pub term: Term,
    /// What moves. Its range is a span.
    pub unit: Unit,
}

/// How a unit stands on this shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Source: owned and served. Its keys are being brought into keyspaces of their own, or (`ready`) are there.
    Tracked {
        /// Whether all are.
        ready: bool,
    },
    /// Source: nothing is executed, read or promised of it above `last` (R13, R15a).
    Frozen {
        /// The final revision.
        last: Revision,
    },
    /// Hidden: the target of a copy, or a source that follows its new owner. Every event up to `through` is there.
    Following {
        /// Events up to this are imported.
        through: Revision,
        /// Target, prepared for the switch: everything up to this is there, and until [`crate::engine::Engine::unit_open`]
        /// or the next import, requests that touch the unit are told to wait.
        sealed: Option<Revision>,
    },
    /// Owned and served.
    Owned,
    /// Hidden, and removed a little at each scrub.
    Dropping,
    /// Nothing is left but the refusal of those who do not know.
    Gone,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitRecord {
    /// The last move of it.
    pub by: UnitMove,
    /// How it stands.
    pub state: UnitState,
    /// The generation of the map since which another store (hidden, `Gone`) or this one (`Owned`) owns it; 0 for none
    /// yet.
    pub epoch: u64,
    /// Live keys in its own keyspaces.
    pub keys: u64,
    /// Nothing of it below this is readable.
    pub floor: Revision,
}

/// How far a track is, and what a copy will carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracking {
    /// Whether the unit can be copied, followed and frozen.
    pub ready: bool,
    /// Live keys.
    pub keys: u64,
    /// Bytes of all versions, about.
    pub bytes: u64,
    /// Events held as history.
    pub events: u64,
    /// Nothing below is readable.
    pub floor: Revision,
}

/// A key with its history, oldest version first: those at or above the floor, and before them the one that was current
/// there, or that the first event replaced.
#[derive(Debug, Clone)]
pub struct CopiedKey {
    /// Never empty.
    pub versions: Vec<Version>,
}

impl CopiedKey {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.versions.first().map_or(&[], |version| version.key())
    }
}

/// Keys of a copy.
#[derive(Debug, Clone)]
pub struct CopyChunk {
    /// In key order.
    pub keys: Vec<CopiedKey>,
    /// The floor at this chunk; a copy's floor is the highest of its chunks'.
    pub floor: Revision,
    /// Revisions of which something may be lost (R10).
    pub gaps: Vec<Gap>,
    /// Where to go on; `None` at the end.
    pub after: Option<Key>,
}

/// An event that follows a copy: a put or a deletion, and the version before it when the feed told it.
#[derive(Debug, Clone)]
pub struct FollowedEvent {
    /// The version or the deletion.
    pub version: Version,
    /// The version before.
    pub prev: Option<Version>,
}

/// What an import brings. May be repeated, and in part repeat what another brought.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// Copied keys.
    pub keys: Vec<CopiedKey>,
    /// Events, in the order of revisions, whole revisions.
    pub events: Vec<FollowedEvent>,
    /// The source's floor, if it is told.
    pub floor: Option<Revision>,
    /// The source's gaps.
    pub gaps: Vec<Gap>,
    /// With these events everything up to this is there.
    pub through: Option<Revision>,
}

/// The digest of some keys in key order (see [`crate::engine::Engine::unit_verify`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitDigest {
    /// The last key that it covers.
    pub last_key: Key,
    /// Keys.
    pub keys: u64,
    /// Versions, deletions included.
    pub versions: u64,
    /// XXH3-64 over them.
    pub hash: u64,
}

/// A refusal: this shard does not own the keys now. Nothing was executed (R11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotOwned {
    /// The key, or the first key of the range.
    pub key: Key,
    /// The generation of the map since which another store owns them; 0 while that is being decided: try again, here or
    /// by a newer map.
    pub epoch: u64,
}

impl fmt::Display for NotOwned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch {
            0 => write!(f, "{} is moving; try again", self.key),
            epoch => write!(f, "{} belongs to another store since map {epoch}", self.key),
        }
    }
}

impl std::error::Error for NotOwned {}

/// Why a call for a move was refused; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Another coordinator has taken over.
    #[error("move {id}: term {term} is over, {seen} was seen")]
    StaleTerm {
        /// The move.
        id: MoveId,
        /// The call's term.
        term: Term,
        /// The highest seen.
        seen: Term,
    },
    /// The shard has no record of the unit.
    #[error("move {0}: this shard has no record of the unit; ask `List`")]
    Unknown(MoveId),
    /// The call is not for a unit in this state.
    #[error("move {id}: the unit is {state}, which does not allow {call}")]
    State {
        /// The move.
        id: MoveId,
        /// The state's name.
        state: &'static str,
        /// The call.
        call: &'static str,
    },
    /// The unit overlaps another one that is moving, or that this shard does not own.
    #[error("move {id}: the unit overlaps one of move {other} that is {state}")]
    Overlaps {
        /// The move.
        id: MoveId,
        /// The other record's move.
        other: MoveId,
        /// The other record's state.
        state: &'static str,
    },
    /// The unit's range is not a span, or is empty.
    #[error("a unit's range must be a span that is not empty")]
    BadUnit,
    /// A key that is imported, or one that is already here, must not be there.
    #[error("move {id}: key {key} {what}")]
    Key {
        /// The move.
        id: MoveId,
        /// The key.
        key: Key,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Events up to the source's final revision are not all there.
    #[error("move {id}: imported through {through}, the source's final revision is {last}")]
    Behind {
        /// The move.
        id: MoveId,
        /// What is there.
        through: Revision,
        /// What is needed.
        last: Revision,
    },
    /// Keys of the unit carry leases that this shard has not adopted; at most a hundred are named.
    #[error("move {id}: leases of its keys are not attached here: {leases:?}")]
    Leases {
        /// The move.
        id: MoveId,
        /// Which.
        leases: Vec<LeaseId>,
    },
    /// It is still being read here, by lists and long reads that began before it changed hands.
    #[error(
        "move {id}: the unit is still read here by {reads}; it is dropped when that has ended, or in {left_s} s"
    )]
    Read {
        /// The move.
        id: MoveId,
        /// Which reads, in words.
        reads: String,
        /// Seconds after which it is dropped all the same, and they fail.
        left_s: u64,
    },
    /// The unit was not cleaned of what this shard held of it before; call again.
    #[error("move {0}: still making room; try again")]
    NotReady(MoveId),
    /// Something applied of the unit's Kinds is not published: call between batches, when both logs are flushed.
    #[error("called before what was applied is published")]
    Unpublished,
    /// The clock may not come to the final revision (R3).
    #[error(transparent)]
    Clock(#[from] crate::clock::ClockOffset),
}
