//! The engine of a shard. SKELETON of the public surface: the contract between `shard/` and `shard/engine/`.
//!
//! One owner (the apply loop) calls everything here. A write has two halves: `apply` changes the state and assigns the
//! revision; the loop then makes the batch as durable as its mode promises; `publish` makes it visible (R9) to reads,
//! headers and watches. Reads and watches between the two see only what is published.

use bytes::Bytes;
use kindred_partition_config::{
    ids::{LeaseId, Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
};

use crate::{error::EngineError, ops::*, version::Version};

/// Wall clock, microseconds since the Unix epoch; passed in, never read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallMicros(pub u64);

/// A monotonic clock in milliseconds (leases); passed in, never read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonoMillis(pub u64);

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
    /// The new version, or the tombstone: key and mod_revision only, `is_delete`.
    pub kv: Version,
    /// A deletion.
    pub is_delete: bool,
    /// The version before, if any and still above the floor.
    pub prev: Option<Version>,
}

/// What a watch stream has to tell its client, in the order in which it must be told.
#[derive(Debug, Clone)]
pub enum WatchOut {
    /// The watch exists; nothing at or below `header` is delivered unless it asked for it.
    Created { id: WatchId, header: Revision },
    /// Events of one watch, ordered; never splits a revision.
    Events { id: WatchId, header: Revision, events: Vec<Event>, prev_kv: bool, fragment: bool },
    /// The watch ended because its next revision is compacted.
    Compacted { id: WatchId, header: Revision, floor: Revision },
    /// The client cancelled it.
    Canceled { id: WatchId, header: Revision },
    /// A promise for one watch (periodic), or for all of the stream (`None`, on request): R7.
    Progress { id: Option<WatchId>, header: Revision },
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
    /// Leases.
    pub leases: u64,
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

/// The whole state of one shard.
pub struct Engine {}

#[allow(unused_variables, clippy::unused_self)]
impl Engine {
    /// An empty engine. With `Hlc` its floor and current revision stand at `now`, so that any older start or read is
    /// compacted (nothing before is known here); with `Dense` at revision 1, as a new etcd.
    #[must_use]
    pub fn new(config: EngineConfig, now: WallMicros) -> Self { todo!() }

    // ---- writes

    /// Runs one request atomically at one revision. A request that writes nothing assigns nothing.
    /// Refused with the state unchanged.
    pub fn apply(&mut self, now: WallMicros, op: Op) -> Result<OpAnswer, EngineError> { todo!() }

    /// Makes everything applied so far visible and hands events to the watches.
    pub fn publish(&mut self) { todo!() }

    /// Raises the floor: revisions below `at` cannot be read any more (`at` itself can). `Compacted` when not above the
    /// floor, `Future` above the current revision. Constant time; `scrub` frees the memory.
    pub fn compact(&mut self, at: Revision) -> Result<(), EngineError> { todo!() }

    /// Frees versions below the floor that no pin needs, at most about `budget` of them; `true` when there is more to do.
    pub fn scrub(&mut self, budget: usize) -> bool { todo!() }

    // ---- reads

    /// A whole read; for small answers and inside the apply loop only.
    pub fn range(&mut self, query: &RangeQuery) -> Result<RangeAnswer, EngineError> { todo!() }

    /// Starts a long read in key order (limit, sort and filters are the caller's): checks the revision and pins it.
    pub fn open_range(&mut self, range: &KeyRange, revision: Option<Revision>) -> Result<OpenRange, EngineError> { todo!() }

    /// The next keys of a long read, at most `max_keys` / about `max_bytes`; empty when done.
    pub fn next_chunk(&mut self, open: &mut OpenRange, max_keys: usize, max_bytes: usize) -> Vec<Version> { todo!() }

    /// Ends a long read and its pin. Must be called (the shard's guard does).
    pub fn close_range(&mut self, open: OpenRange) { todo!() }

    /// The current revision of the ranges (R4): per Kind, or the shard's one counter in dense mode. What it shows
    /// becomes readable for all of the ranges.
    pub fn current(&mut self, ranges: &[KeyRange]) -> Revision { todo!() }

    /// The current revision of the whole shard.
    pub fn current_all(&mut self) -> Revision { todo!() }

    /// Raises the ranges' current revision to at least `to` (a wish from another store's clock, R3, R5).
    pub fn raise(&mut self, now: WallMicros, ranges: &[KeyRange], to: Revision) -> Result<Revision, EngineError> { todo!() }

    /// The floor: the last compaction.
    #[must_use]
    pub fn floor(&self) -> Revision { todo!() }

    /// etcd's HashKV over the versions at or below `at` (`None` = current): (hash, revision hashed, compact revision).
    pub fn hash_kv(&mut self, at: Option<Revision>) -> Result<(u32, Revision, Revision), EngineError> { todo!() }

    /// Sizes.
    #[must_use]
    pub fn stats(&self) -> EngineStats { todo!() }

    // ---- watches

    /// A new client stream.
    pub fn watch_open(&mut self) -> StreamId { todo!() }

    /// Adds a watch; its `Created` (and `Compacted`, when its start is) come out of `watch_pull`.
    pub fn watch_create(&mut self, stream: StreamId, spec: WatchSpec) -> Result<WatchId, EngineError> { todo!() }

    /// Ends a watch; `Canceled` comes out of `watch_pull`. False when the stream has no such watch.
    pub fn watch_cancel(&mut self, stream: StreamId, id: WatchId) -> bool { todo!() }

    /// Asks for a manual progress (R7): one `Progress { id: None }` after every event that it covers.
    pub fn watch_progress(&mut self, stream: StreamId) { todo!() }

    /// Periodic progress for every watch that asked for it and had nothing since the last tick; promises the present.
    pub fn progress_tick(&mut self, now: WallMicros) { todo!() }

    /// What the stream has to send next, about `max_bytes` of it; empty when there is nothing more now.
    pub fn watch_pull(&mut self, stream: StreamId, max_bytes: usize) -> Vec<WatchOut> { todo!() }

    /// The client is gone.
    pub fn watch_close(&mut self, stream: StreamId) { todo!() }

    /// Streams that came to have something to send since the last call.
    pub fn take_wakes(&mut self) -> Vec<StreamId> { todo!() }

    // ---- leases

    /// A new lease whose home is this store. `id` is never zero (the caller generates one). Answers the granted TTL.
    pub fn lease_grant(&mut self, now: MonoMillis, id: LeaseId, ttl_s: i64) -> Result<i64, EngineError> { todo!() }

    /// Keeps it alive; answers the TTL.
    pub fn lease_keep_alive(&mut self, now: MonoMillis, id: LeaseId) -> Result<i64, EngineError> { todo!() }

    /// Ends it now: its keys are deleted in one revision. The stores that hold other keys of it are in the answer.
    pub fn lease_revoke(&mut self, wall: WallMicros, id: LeaseId) -> Result<(Revision, Vec<Slot>), EngineError> { todo!() }

    /// Ends what has expired, at most `max` leases; `true` when more are due.
    pub fn lease_expire(&mut self, wall: WallMicros, now: MonoMillis, max: usize) -> bool { todo!() }

    /// When the next lease may expire.
    #[must_use]
    pub fn lease_deadline(&self) -> Option<MonoMillis> { todo!() }

    /// A lease's times and, when asked, keys.
    pub fn lease_view(&self, now: MonoMillis, id: LeaseId, keys: bool) -> Result<LeaseView, EngineError> { todo!() }

    /// All leases whose home is here, in the order of their ids.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseId> { todo!() }

    /// At the home: `store` will hold keys of it. Answers the granted TTL.
    pub fn lease_attach(&mut self, id: LeaseId, store: Slot) -> Result<i64, EngineError> { todo!() }

    /// At another store: know a lease whose home is elsewhere; it never expires here.
    pub fn lease_adopt(&mut self, id: LeaseId, granted_ttl_s: i64, home: Slot) -> Result<(), EngineError> { todo!() }

    /// At another store: delete its keys in one revision and forget it.
    pub fn lease_end(&mut self, wall: WallMicros, id: LeaseId) -> Revision { todo!() }

    /// At the home: nobody holds keys of it any more.
    pub fn lease_forget(&mut self, id: LeaseId) { todo!() }

    /// At the home: leases that are over and wait for other stores.
    #[must_use]
    pub fn leases_ended(&self) -> Vec<EndedLease> { todo!() }

    /// Keys of a lease here, sorted; `None` when it is unknown.
    #[must_use]
    pub fn lease_keys(&self, id: LeaseId) -> Option<Vec<Key>> { todo!() }
}

/// Kept so that the skeleton names every type it will use.
pub type Value = Bytes;
