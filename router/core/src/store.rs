//! Stores as the pure half sees them: an index into the router's list, and what decisions need to know of each.

use kindred_partition_config::ids::Slot;

/// The position of a store in the router's list of stores; stable for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreIx(pub usize);

/// What kind of server a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// A `kindred-shard`: raises, hands out currents, adopts leases.
    Shard,
    /// A stock etcd cluster: only etcd's own API.
    Etcd,
}

/// One store at the moment of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Which one.
    pub index: StoreIx,
    /// The slot, for shards.
    pub slot: Option<Slot>,
    /// What it is.
    pub kind: StoreKind,
    /// Whether it can be reached now.
    pub up: bool,
}
