//! What the engine is told and what it tells, besides [`crate::ops`].

use kindred_partition_config::{
    ids::{LeaseId, Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
};

use crate::{durability::Gap, units::table::View, version::Version};

/// Wall clock, microseconds since the Unix epoch; passed in, never read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallMicros(pub u64);

/// A monotonic clock in milliseconds (leases); passed in, never read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonoMillis(pub u64);

/// What a read over several shards calls the revisions that are held for it (R5): the asker's choice, unlike any other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(pub u64);

/// How revisions are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionMode {
    /// Hybrid logical clock (design section 3): microseconds << 10 | slot.
    Hlc(Slot),
    /// etcd's 1, 2, 3 … for a shard alone.
    Dense,
}

/// What an engine is made with.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// How revisions are assigned.
    pub revisions: RevisionMode,
    /// Which keys belong to which Kind.
    pub kinds: KindScheme,
    /// How far above its own now a raise may go (R3).
    pub max_clock_offset_micros: u64,
    /// Shortest TTL that a grant gets, seconds (etcd: 2 with default election settings).
    pub min_lease_ttl_s: i64,
}

/// A long read in progress: pinned at one revision, answered chunk by chunk.
#[derive(Debug)]
pub struct OpenRange {
    /// The revision read at.
    pub at: Revision,
    /// The header's revision (the current one; differs from `at` when the query named a revision).
    pub header: Revision,
    /// Exact number of keys in the range at `at`.
    pub count: u64,
    /// What is still to be read.
    pub(crate) rest: KeyRange,
    /// Whose keys it reads.
    pub(crate) view: View,
}

impl OpenRange {
    /// Whether every key was given.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

/// A client's watch stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A watch's id on its stream, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub i64);

/// What a watch wants.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    /// Which keys.
    pub range: KeyRange,
    /// First revision wanted; `None` = from now on (R8).
    pub start: Option<Revision>,
    /// The id that the client chose; `None` = the stream's next free one.
    pub id: Option<WatchId>,
    /// Events carry the version before.
    pub prev_kv: bool,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletions.
    pub no_delete: bool,
    /// Wants periodic progress.
    pub progress_notify: bool,
    /// May be answered in fragments (the encoder's business).
    pub fragment: bool,
}

/// One change of one key.
#[derive(Debug, Clone)]
pub struct Event {
    /// The new version, or the tombstone: key and mod_revision only.
    pub kv: Version,
    /// The version before, if any and still above the floor.
    pub prev: Option<Version>,
}

impl Event {
    /// Whether it is a deletion.
    #[must_use]
    pub fn is_delete(&self) -> bool {
        self.kv.is_tombstone()
    }
}

/// What a watch stream has to tell its client, in the order in which it must be told.
#[derive(Debug, Clone)]
pub enum WatchOut {
    /// The watch exists; nothing at or below `header` is delivered unless it asked for it.
    Created { id: WatchId, header: Revision },
    /// Events of one watch, ordered; never splits a revision.
    Events { id: WatchId, header: Revision, events: Vec<Event>, prev_kv: bool, fragment: bool },
    /// The watch ended because its next revision is compacted.
    Compacted { id: WatchId, floor: Revision },
    /// The watch ended behind everything at or below `header`, because keys of it are moving to another store (R15a).
    Moved { id: WatchId, header: Revision },
    /// The client cancelled it.
    Canceled { id: WatchId, header: Revision },
    /// A promise for one watch (periodic), or for all of the stream (`None`, on request): R7.
    Progress { id: Option<WatchId>, header: Revision },
}

/// A feed (R6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId(pub u64);

/// What a feed has to say next.
#[derive(Debug, Clone, Default)]
pub struct FeedOut {
    /// First of all: the feed holds every event above this.
    pub opened: Option<Revision>,
    /// Events, ordered, with the versions before them; never splits a revision.
    pub events: Vec<Event>,
    /// Behind the events: none at or below this is still to come.
    pub watermark: Option<Revision>,
    /// With the first message: gaps of the ranges that end above the feed's start (R10).
    pub gaps: Vec<Gap>,
    /// The end: the next event wanted may be below this floor.
    pub compacted: Option<Revision>,
    /// The end: keys of the feed are moving. Everything at or below this was said, and nothing above it is.
    pub moved: Option<Revision>,
}

impl FeedOut {
    /// Whether it is a message at all.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.opened.is_some()
            || !self.events.is_empty()
            || self.watermark.is_some()
            || self.compacted.is_some()
            || self.moved.is_some()
    }
}

/// Sizes for status and metrics.
#[derive(Debug, Clone, Copy)]
pub struct EngineStats {
    /// Bytes of the versions current now (keys, values and their fixed overhead).
    pub live_bytes: u64,
    /// Bytes of all versions held.
    pub total_bytes: u64,
    /// Live keys.
    pub keys: u64,
    /// Events held as history.
    pub events: u64,
    /// Open watches.
    pub watches: u64,
    /// Open feeds.
    pub feeds: u64,
    /// Leases.
    pub leases: u64,
}

/// What there is of a Kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindLoad {
    /// Its prefix; empty: the keys of no Kind.
    pub prefix: Key,
    /// Live keys that the shard owns.
    pub keys: u64,
    /// Bytes of their current versions (keys, values and their fixed overhead).
    pub live_bytes: u64,
    /// Bytes of all versions that it owns.
    pub bytes: u64,
    /// Bytes of all versions held, of units that are hidden, too: what counts for a quota.
    pub held_bytes: u64,
    /// Bytes of the versions that were written since the start, as they are encoded; not those that came with a unit.
    pub written_bytes: u64,
}

/// A lease as time-to-live answers it.
#[derive(Debug, Clone)]
pub struct LeaseView {
    /// Seconds left, rounded as etcd does.
    pub ttl_s: i64,
    /// Seconds granted.
    pub granted_ttl_s: i64,
    /// Attached keys on this store, sorted; filled when asked for.
    pub keys: Vec<Key>,
}

/// A lease that is over at its home and waits for other stores (R12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    /// Which.
    pub id: LeaseId,
    /// Stores that still hold keys of it.
    pub attached: Vec<Slot>,
}
