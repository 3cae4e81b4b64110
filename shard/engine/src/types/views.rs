//! Views of the engine: sizes, Kinds and leases.

use kindred_partition_config::{
    ids::{LeaseId, Slot},
    key::Key,
};

/// Sizes for status and metrics.
#[derive(Debug, Clone, Copy)]
pub struct EngineStats {
    /// Bytes of the current versions (keys, values and their fixed overhead).
    pub live_bytes: u64,
    pub total_bytes: u64,
    pub keys: u64,
    /// Events held as history.
    pub events: u64,
    pub watches: u64,
    pub feeds: u64,
    pub leases: u64,
}

/// The size of a Kind, and the bytes written to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindLoad {
    /// The Kind's prefix; empty for the keys of no Kind.
    pub prefix: Key,
    /// Live keys that the shard owns.
    pub keys: u64,
    /// Bytes of their current versions (keys, values and their fixed overhead).
    pub live_bytes: u64,
    /// Bytes of all versions that the shard owns.
    pub bytes: u64,
    /// Bytes of all versions held, including those of hidden units; quotas count these.
    pub held_bytes: u64,
    /// Encoded bytes of the versions written since the start, without imported ones.
    pub written_bytes: u64,
}

/// A lease as etcd's TimeToLive shows it.
#[derive(Debug, Clone)]
pub struct LeaseView {
    /// Seconds left, rounded as etcd does.
    pub ttl_s: i64,
    pub granted_ttl_s: i64,
    /// The lease's keys on this store, sorted; filled only on request.
    pub keys: Vec<Key>,
}

/// A lease that ended at its home and still has keys at other stores (R12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    pub id: LeaseId,
    /// The stores that still hold keys of it.
    pub attached: Vec<Slot>,
}
