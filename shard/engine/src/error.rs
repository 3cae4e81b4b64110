//! The engine's refusals. The shard maps each to etcd's code and text in one place.

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::Key,
};

use crate::{
    types::{ClockOffset, Durability},
    units::NotOwned,
};

/// A refusal; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The revision is below the floor.
    #[error("revision has been compacted (floor {floor})")]
    Compacted {
        /// The lowest readable revision.
        floor: Revision,
    },
    /// The revision is above the current one of the requested ranges (R4).
    #[error("revision is in the future (current {current})")]
    Future {
        /// The current revision.
        current: Revision,
    },
    /// `ignore_value` or `ignore_lease` names a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// A put names a lease that is not live here.
    #[error("lease {0} not found")]
    LeaseNotFound(LeaseId),
    /// A grant names an id that is in use.
    #[error("lease {0} exists")]
    LeaseExists(LeaseId),
    /// A grant's TTL is above etcd's maximum.
    #[error("lease TTL {0} s is too large")]
    LeaseTtlTooLarge(i64),
    /// A raise is further above the shard's present than the maximum clock offset (R3), or not below the ceiling.
    #[error("raise to {asked} is more than the maximum clock offset above this shard's now ({now})")]
    ClockOffset {
        /// The revision to raise to.
        asked: Revision,
        /// The shard's present as a revision.
        now: Revision,
    },
    /// Too many revisions are already retained.
    #[error("too many revisions are retained")]
    TooManyRetained,
    /// The clock has reached the durable ceiling (R2). The caller retries once it is raised.
    #[error("the clock has come to its ceiling ({ceiling}), which the disk has not raised yet")]
    Ceiling {
        /// The ceiling, which no revision may reach.
        ceiling: Revision,
    },
    /// This shard does not own keys of the request at present.
    #[error(transparent)]
    NotOwned(#[from] NotOwned),
    /// A transaction is over Kinds of different modes, which a crash may keep in part (R9).
    #[error(
        "a transaction must be over keys of one durability, but {} is {} and {} is {}",
        .0.one, .0.one_mode, .0.other, .0.other_mode
    )]
    MixedModes(Box<MixedModes>),
    /// The stream already has a watch with this id.
    #[error("duplicate watch ID")]
    DuplicateWatchId,
}

impl From<ClockOffset> for EngineError {
    fn from(refused: ClockOffset) -> Self {
        Self::ClockOffset { asked: refused.asked, now: refused.now }
    }
}

/// Two keys, or first keys of ranges, of one transaction whose modes differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedModes {
    pub one: Key,
    /// Its Kind's mode.
    pub one_mode: Durability,
    pub other: Key,
    /// Its Kind's mode.
    pub other_mode: Durability,
}
