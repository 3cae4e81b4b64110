//! Why the engine refuses; the shard maps each to etcd's code and text in one place.

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::Key,
};

use crate::{durability::Durability, units::NotOwned};

/// A refusal that changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The revision lies below the compaction floor.
    #[error("revision has been compacted (floor {floor})")]
    Compacted {
        /// The lowest revision that can still be read.
        floor: Revision,
    },
    /// The revision is above the current one of what was asked (R4).
    #[error("revision is in the future (current {current})")]
    Future {
        /// The current revision.
        current: Revision,
    },
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// A put named a lease that does not exist here.
    #[error("lease {0} not found")]
    LeaseNotFound(LeaseId),
    /// A grant named an id in use.
    #[error("lease {0} exists")]
    LeaseExists(LeaseId),
    /// A grant's TTL is above etcd's maximum.
    #[error("lease TTL {0} s is too large")]
    LeaseTtlTooLarge(i64),
    /// A raise further above the shard's own now than the maximum clock offset (R3).
    #[error("raise to {asked} is more than the maximum clock offset above this shard's now ({now})")]
    ClockOffset {
        /// What was asked for.
        asked: Revision,
        /// The shard's present as a revision.
        now: Revision,
    },
    /// A revision to be kept, beside too many that are.
    #[error("too many revisions are kept")]
    TooManyKept,
    /// The clock has come to the ceiling that is on disk (R2): to be tried again when it is raised.
    #[error("the clock has come to its ceiling ({ceiling}), which the disk has not raised yet")]
    Ceiling {
        /// The ceiling.
        ceiling: Revision,
    },
    /// Keys of the request are not this shard's now.
    #[error(transparent)]
    NotOwned(#[from] NotOwned),
    /// A transaction over Kinds that a crash does not keep or lose together (R9).
    #[error(
        "a transaction must be over keys of one durability, but {} is {} and {} is {}",
        .0.one, .0.one_mode, .0.other, .0.other_mode
    )]
    MixedModes(Box<MixedModes>),
    /// The watch id is already in use on its stream.
    #[error("duplicate watch ID")]
    DuplicateWatchId,
}

/// Two keys, or first keys of ranges, of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedModes {
    /// The first.
    pub one: Key,
    /// Its Kind's mode.
    pub one_mode: Durability,
    /// One of another mode.
    pub other: Key,
    /// Its Kind's mode.
    pub other_mode: Durability,
}
