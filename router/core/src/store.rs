//! Stores as the pure code sees them: an index into the router's list, and what decisions need to know.

use kindred_partition_config::ids::Slot;

/// The index of a store in the router's list; stable for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreIx(pub usize);

/// The type of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// A `kindred-shard`: it can be raised, tells current revisions, and adopts leases.
    Shard,
    /// A stock etcd cluster, which has only etcd's own API.
    Etcd,
}

/// A snapshot of a store for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub index: StoreIx,
    /// Shards only.
    pub slot: Option<Slot>,
    pub kind: StoreKind,
    /// Whether it can be reached.
    pub up: bool,
}
