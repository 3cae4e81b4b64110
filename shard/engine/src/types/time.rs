//! Time, which callers pass in, and the ways to make revisions from it.

use kindred_partition_config::ids::{Revision, Slot};

/// A revision above all others. The apply loop reads at it to see its own unpublished writes.
pub(crate) const LATEST: Revision = Revision(i64::MAX);

/// Wall-clock time in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallMicros(pub u64);

/// Time of a monotonic clock in milliseconds, for leases and pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonoMillis(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionMode {
    /// Hybrid logical clock (docs/design.md): microseconds << 10 | slot.
    Hlc(Slot),
    /// etcd's 1, 2, 3 …, for a shard without a cluster.
    Dense,
}

/// A raise, or a recovered revision, that the clock refuses to follow (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("revision {asked} is further above this shard's now ({now}) than its clock may be moved")]
pub struct ClockOffset {
    /// The revision to which the clock was asked to move.
    pub asked: Revision,
    /// The shard's present as a revision.
    pub now: Revision,
}
