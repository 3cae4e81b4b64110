//! What the shards say that they own, against what the map in meta says, and what brings the two into accord.
//!
//! The shards are the authority: each change of hands stands in both of them, with the generation of the map that decided
//! it. Meta may have lost that map, with the records of its moves. A map that was decided later than all that shards have
//! heard of is right, as they are about to hear of it.
//!
//! | module | decides |
//! | --- | --- |
//! | [`owners`] | who owns which keys |
//! | [`repairs`] | what to change in meta, and what to ask of the shards |

use kindred_partition_config::{
    ids::{MoveId, Term},
    map::StoreIdx,
    unit::Unit,
};

pub mod owners;
pub mod repairs;

/// How a unit stands at a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// Owned, and an owner in a move.
    Tracked,
    /// Owned, and not served until a move has decided.
    Frozen,
    /// Not owned: a copy.
    Following {
        /// All of it is there, for a decision.
        sealed: bool,
    },
    /// Owned.
    Owned,
    /// Not owned, and its data goes.
    Dropping,
    /// Not owned.
    Gone,
}

impl HeldState {
    /// Whether the shard counts as its owner.
    #[must_use]
    pub fn is_owner(self) -> bool {
        matches!(self, Self::Tracked | Self::Frozen | Self::Owned)
    }
}

/// A record of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The last move of it.
    pub id: MoveId,
    /// The highest term of the move that the record has seen.
    pub term: Term,
    /// Which keys.
    pub unit: Unit,
    /// How it stands.
    pub state: HeldState,
    /// The generation of the map since which this shard (owner), or another one, owns it; 0 for none.
    pub epoch: u64,
    /// Of a copy: every event up to this revision is there; 0 when that is not known.
    pub through: i64,
}

/// What a shard says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The shard.
    pub store: StoreIdx,
    /// Its records, the oldest first: of those that hold a key the last one counts. Of a key without one it owns whatever it
    /// is asked for.
    pub records: Vec<Held>,
}

#[cfg(test)]
mod tests;
