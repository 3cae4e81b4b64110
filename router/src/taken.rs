//! How far a router has gone from one map to the next; see [`crate::shown`] for why.

use std::sync::atomic::AtomicU64;

use kindred_partition_config::ids::Epoch;

/// How far the present map has been taken over; each field is a generation.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Requests may use this map.
    pub begun: AtomicU64,
    /// New requests use this map.
    pub swapped: AtomicU64,
    /// What was shown under earlier maps has been noted.
    pub settled: AtomicU64,
}

impl Taken {
    pub(crate) fn new(generation: Epoch) -> Self {
        let at = || AtomicU64::new(generation.0);
        Self { begun: at(), swapped: at(), settled: at() }
    }
}
