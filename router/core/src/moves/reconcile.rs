//! Compares the units that the shards say they own with the map in meta, and plans how to make them agree.
//!
//! The shards are the authority: each change of ownership is recorded in both of them, with the generation of the map
//! that decided it. Meta may have lost that map and the records of its moves. A map that was decided later than
//! anything the shards have heard of is right, because they are about to hear of it.
//!
//! | module | decides |
//! | --- | --- |
//! | [`owners`] | who owns which keys |
//! | [`repairs`] | what to change in meta, and what to ask of the shards |

use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Term},
    map::StoreIdx,
    unit::Unit,
};

pub mod owners;
pub mod repairs;

/// The state of a unit at a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// It is owned, and a move has it as its source.
    Tracked,
    /// It is owned, but not served until a switch is decided.
    Frozen,
    /// It is not owned: a copy.
    Following {
        /// Whether the copy is complete for a decision.
        sealed: bool,
    },
    /// It is owned and served.
    Owned,
    /// It is not owned, and its data is being dropped.
    Dropping,
    /// It is not owned, and there is no data.
    Gone,
}

impl HeldState {
    /// Whether the shard counts as the owner.
    #[must_use]
    pub fn is_owner(self) -> bool {
        matches!(self, Self::Tracked | Self::Frozen | Self::Owned)
    }
}

/// A shard's record of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The last move of the unit.
    pub id: MoveId,
    /// The highest term of that move that the shard has seen.
    pub term: Term,
    pub unit: Unit,
    pub state: HeldState,
    /// The generation of the map since which this shard (if it is the owner) or another one owns the unit;
    /// [`Epoch::NONE`] before the first switch.
    pub epoch: Epoch,
    /// For a copy: the revision up to which it has every event, if known.
    pub through: Option<Revision>,
}

/// The records of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub store: StoreIdx,
    /// Oldest first: of the records that contain a key, the last one counts. A shard without a record of a key serves
    /// it to any router that asks.
    pub records: Vec<Held>,
}

#[cfg(test)]
mod tests;
