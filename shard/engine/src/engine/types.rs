//! An engine's configuration and its open long reads.

use kindred_partition_config::{ids::Revision, key::KeyRange, kind::KindScheme};

pub use crate::types::*;
use crate::units::table::View;

/// An engine's configuration.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub revisions: RevisionMode,
    /// Tells which Kind a key belongs to.
    pub kinds: KindScheme,
    /// How far above the shard's present a raise may go, in microseconds (R3).
    pub max_clock_offset_micros: u64,
    /// Shortest TTL that is granted, in seconds (etcd: 2 with default election settings).
    pub min_lease_ttl_s: i64,
}

/// A long read in progress: pinned at one revision and answered in chunks.
#[derive(Debug)]
pub struct OpenRange {
    /// The revision that is read.
    pub at: Revision,
    /// The header's revision: the current one, which differs from `at` when the query named a revision.
    pub header: Revision,
    pub count: u64,
    /// The part of the range still to be read.
    pub(crate) rest: KeyRange,
    /// The units that it sees.
    pub(crate) view: View,
}

impl OpenRange {
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}
