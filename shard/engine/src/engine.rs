//! The engine of a shard, and the contract of this crate with the process around it.
//!
//! One owner, the apply loop, makes all calls. A write has two halves: `apply` changes the state and assigns the
//! revision; the loop then makes the batch as durable as its mode promises; `publish` makes it visible (R9). Reads,
//! headers and watches show only what is published.

use kindred_partition_config::{
    ids::{Epoch, Revision},
    key::{Key, KeyRange},
};

use crate::{
    apply::Applier,
    clock::Clock,
    durability::{AnswerWaits, Imported},
    error::EngineError,
    hash,
    holds::Holds,
    lease::LeaseTable,
    object::Pins,
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery},
    pages::Pages,
    read,
    space::Space,
    units::table::View,
    version::Version,
    watch::{Watches, feed::Feeds},
};

mod ceiling;
pub mod checkpoint;
mod compaction;
mod durability;
mod feeds;
mod leases;
mod raises;
mod recover;
mod replica;
mod retained;
mod types;
mod units;

pub use self::{recover::Recovery, types::*};

/// The floor of a dense engine that was never compacted, as etcd's HashKV shows it.
const NEVER_COMPACTED: Revision = Revision(-1);
pub struct Engine {
    config: EngineConfig,
    clock: Clock,
    space: Space,
    leases: LeaseTable,
    watches: Watches,
    feeds: Feeds,
    pins: Pins,
    holds: Holds,
    pages: Pages,
    retained: retained::Retained,
    /// Whether a pin below the floor ended since the last garbage collection.
    unpinned: bool,
    /// Periodic progress that waits until everything applied before it is published.
    tick: Option<Revision>,
    /// See [`Engine::answer_waits`].
    answer_waits: AnswerWaits,
    /// A replica's imports of units that are not opened: whether they count, a later table of units tells.
    imports: Vec<Imported>,
    /// See [`Engine::found`].
    found: Revision,
    /// The revision at which the clock stands after a start from a disk, until it goes on from the wall clock ([`Engine::go_on`]).
    resumes: Option<Revision>,
}

impl Engine {
    /// An empty engine. With `Hlc` its floor and current revision are at `now`, since nothing before is known: any
    /// older read or watch start is compacted. With `Dense` the current revision is 1, as in a new etcd.
    #[must_use]
    pub fn new(config: EngineConfig, now: WallMicros) -> Self {
        let clock = Clock::new(config.revisions, now);
        let dense = config.revisions == RevisionMode::Dense;
        let start = clock.last();
        Self {
            space: Space::new(
                config.kinds.clone(),
                dense,
                start,
                if dense { NEVER_COMPACTED } else { start },
            ),
            clock,
            leases: LeaseTable::new(),
            watches: Watches::default(),
            feeds: Feeds::default(),
            pins: Pins::new(),
            holds: Holds::default(),
            pages: Pages::default(),
            retained: retained::Retained::default(),
            unpinned: false,
            tick: None,
            answer_waits: AnswerWaits::default(),
            imports: Vec::new(),
            found: start,
            resumes: None,
            config,
        }
    }

    /// Starts over, empty and at `now`, for a shard that learns the time only after its start (R3). It forgets streams
    /// and feeds; nothing may have been shown yet.
    pub fn begin_at(&mut self, now: WallMicros) {
        *self = Self::new(self.config.clone(), now);
    }

    // ---- writes

    /// Executes one request atomically at one revision. A request that writes nothing assigns none. An error leaves the
    /// state unchanged.
    pub fn apply(&mut self, now: WallMicros, op: Op) -> Result<OpAnswer, EngineError> {
        self.applier(now, Revision::ZERO).apply(op)
    }

    fn applier(&mut self, now: WallMicros, min_revision: Revision) -> Applier<'_> {
        let Self { space, clock, leases, answer_waits, .. } = self;
        *answer_waits = AnswerWaits::default();
        Applier { space, clock, leases, now, min_revision, waits: answer_waits }
    }

    /// Makes the operations that follow on these keys faster, by a look at all of them together: a lookup in a large
    /// keyspace waits for memory several times, and several lookups can wait at once. Changes nothing.
    pub fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) {
        self.space.warm(keys);
    }

    /// Makes everything applied visible, except what waits for the fsync log or standbys, and hands its events to the
    /// watches. To be called after [`Engine::take_applied`].
    pub fn publish(&mut self) {
        let events = self.space.publish();
        self.published(&events);
        if let Some(promised) = self.tick.take() {
            self.promise(promised);
        }
    }

    // ---- reads

    /// Executes a whole read. For small answers, inside the apply loop.
    pub fn range(&mut self, query: &RangeQuery) -> Result<RangeAnswer, EngineError> {
        self.range_by_map(query, None)
    }

    /// The same for a request by the map of `generation` (`None` = unknown). At a revision up to the final one of a
    /// switch, it sees the units that this shard owned by that map (R13).
    pub fn range_by_map(
        &mut self,
        query: &RangeQuery,
        generation: Option<Epoch>,
    ) -> Result<RangeAnswer, EngineError> {
        let (at, header, view) = self.read_at(&query.range, query.revision, generation)?;
        // For a list that pinned its revision, the pin tells when it ends.
        if let (View::ByMap { with, .. }, KeyRange::Span { .. }) = (&view, &query.range)
            && !self.holds.any_upto(at)
        {
            let records = self.space.units.records.iter_mut();
            records.filter(|record| with.contains(&record.id)).for_each(|record| record.readers.page());
        }
        let sight = self.space.units.sight();
        let is_page = view == View::Now && read::is_page(query);
        let known = query.revision.filter(|_| is_page);
        let known = known.and_then(|at| self.pages.left(&query.range, at, sight));
        let answer = read::execute(&self.space, query, at, header, &view, known);
        if is_page
            && answer.more
            && let Some(last) = answer.kvs.last()
        {
            let left = answer.count.saturating_sub(answer.kvs.len() as u64);
            self.pages.page(&query.range, at, sight, last.key(), left, known.is_some());
        }
        Ok(answer)
    }

    /// The revision to read, the header's revision, and the units that the read sees.
    fn read_at(
        &mut self,
        range: &KeyRange,
        asked: Option<Revision>,
        generation: Option<Epoch>,
    ) -> Result<(Revision, Revision, View), EngineError> {
        let view = self.space.sight(range, generation, asked)?;
        let scope = self.space.scope(range);
        let floor =
            if self.reads_retained(asked) { Revision::ZERO } else { self.space.floor_seen(range, &view) };
        read::check_revision(asked, floor, self.space.visible(&scope))?;
        self.space.check_gaps(range, asked, &view)?;
        let mut header = self.space.show(&scope);
        if !self.space.units.is_empty() {
            // Of a frozen or released unit nothing above its final revision is shown (R15a).
            header = header.min(self.space.units.last_seen(range, &view).unwrap_or(header));
        }
        Ok((asked.unwrap_or(header), header, view))
    }

    /// Begins a long read in key order: checks the revision and pins it. Limit, sorting and filters are the caller's.
    pub fn open_range(
        &mut self,
        range: &KeyRange,
        revision: Option<Revision>,
    ) -> Result<OpenRange, EngineError> {
        self.open_range_by_map(range, revision, None)
    }

    /// The same for a request by the map of `generation`; see [`Engine::range_by_map`].
    pub fn open_range_by_map(
        &mut self,
        range: &KeyRange,
        revision: Option<Revision>,
        generation: Option<Epoch>,
    ) -> Result<OpenRange, EngineError> {
        let (at, header, view) = self.read_at(range, revision, generation)?;
        *self.pins.entry(at).or_insert(0) += 1;
        Ok(OpenRange {
            at,
            header,
            count: self.space.count(range, at, &view),
            rest: range.clone(),
            view: self.space.units.since(&view),
        })
    }

    /// The next keys of a long read, at most `max_keys` and about `max_bytes`; empty when done. Refused when keys that
    /// it still has to read have moved to another store and were dropped here.
    pub fn next_chunk(
        &mut self,
        open: &mut OpenRange,
        max_keys: usize,
        max_bytes: usize,
    ) -> Result<Vec<Version>, EngineError> {
        self.space.units.go_on(&mut open.view, &open.rest)?;
        let (chunk, rest) = self.space.chunk(&open.rest, open.at, &open.view, max_keys.max(1), max_bytes);
        open.rest = rest;
        Ok(chunk)
    }

    /// Ends a long read and its pin. It must be called (the shard's guard does).
    pub fn close_range(&mut self, open: OpenRange) {
        self.unpin(open.at);
    }

    fn unpin(&mut self, at: Revision) {
        if let Some(count) = self.pins.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&at);
                // A pin at or above the floor retains nothing beyond what the floor does.
                self.unpinned |= at < self.space.floor_highest();
            }
        }
    }

    /// The floor: the lowest readable revision of the shard as a whole, zero if there is none.
    #[must_use]
    pub fn floor(&self) -> Revision {
        self.space.floor.max(Revision::ZERO)
    }

    /// etcd's HashKV over the versions up to `at` (`None` = current): (hash, revision hashed, compact revision). As in
    /// etcd the compact revision is -1 without a compaction, and a negative `at` gives the hash of nothing.
    pub fn hash_kv(&mut self, at: Option<Revision>) -> Result<(u32, Revision, Revision), EngineError> {
        // Writes above it are not visible yet, and may be joined by others.
        let current = self.space.visible(&self.space.everything());
        let at = at.unwrap_or(current);
        // The highest floor of all units: below it not every unit has its history.
        let floor = self.space.floor_highest();
        if at >= Revision::ZERO {
            read::check_revision(Some(at), floor, current)?;
            self.space.check_gaps(&KeyRange::everything(), Some(at), &View::Now)?;
        }
        Ok((hash::hash_kv(&self.space, floor, at), at, floor))
    }

    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let mut stats = EngineStats {
            live_bytes: 0,
            total_bytes: 0,
            keys: 0,
            events: 0,
            watches: self.watches.len() as u64,
            feeds: self.feeds.len() as u64,
            leases: self.leases.len() as u64,
        };
        for keyspace in self.space.all() {
            let (keys, events, live_bytes, total_bytes) = keyspace.sizes();
            stats.keys += keys;
            stats.events += events;
            stats.live_bytes += live_bytes;
            stats.total_bytes += total_bytes;
        }
        stats
    }

    /// Bytes of all versions of the Kind with this prefix; the empty prefix means keys of no Kind.
    #[must_use]
    pub fn kind_bytes(&self, prefix: &[u8]) -> u64 {
        self.space.kind_bytes(prefix)
    }

    /// The sizes of the Kinds whose objects lie in one of the ranges.
    #[must_use]
    pub fn loads(&self, ranges: &[KeyRange]) -> Vec<KindLoad> {
        self.space.loads(ranges)
    }

    /// Each Kind's prefix and the bytes written to it since the start.
    pub fn written(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.space.written()
    }

    // ---- watches

    /// Opens a client's watch stream.
    pub fn watch_open(&mut self) -> StreamId {
        self.watches.open()
    }

    /// Adds a watch. `Created`, and `Compacted` if its start is below the floor, come out of `watch_pull`. The caller
    /// refuses empty ranges, as etcd does; a watch of one would wait for ever.
    pub fn watch_create(&mut self, stream: StreamId, spec: WatchSpec) -> Result<WatchId, EngineError> {
        self.watches.create(&mut self.space, stream, spec)
    }

    /// Cancels a watch; `Canceled` comes out of `watch_pull`. False when the stream has no such watch.
    pub fn watch_cancel(&mut self, stream: StreamId, id: WatchId) -> bool {
        self.watches.cancel(&mut self.space, stream, id)
    }

    /// Requests manual progress (R7): one `Progress { id: None }` behind every event that it covers.
    pub fn watch_progress(&mut self, stream: StreamId) {
        self.watches.request_progress(&mut self.space, stream);
    }

    /// Promises the present: periodic progress for every watch that asked for it, and a watermark for every feed,
    /// unless it had events since the last tick.
    pub fn progress_tick(&mut self, now: WallMicros) {
        let promised = self.clock.promise(now);
        if self.space.has_unpublished() {
            self.tick = Some(promised);
        } else {
            self.promise(promised);
        }
    }

    fn promise(&mut self, promised: Revision) {
        self.watches.tick(&mut self.space, promised);
        self.feeds.tick(&mut self.space, promised);
    }

    /// The next messages of a stream, about `max_bytes`; empty when there are none. A pull scans a bounded number of
    /// events. If the bound was reached before any event of this stream, the stream is woken again at once.
    pub fn watch_pull(&mut self, stream: StreamId, max_bytes: usize) -> Vec<WatchOut> {
        self.watches.pull(&mut self.space, stream, max_bytes)
    }

    /// Closes a client's stream.
    pub fn watch_close(&mut self, stream: StreamId) {
        self.watches.close(stream);
    }

    /// The streams that got something to send since the last call.
    pub fn take_wakes(&mut self) -> Vec<StreamId> {
        self.watches.take_wakes()
    }

    /// Panics when an invariant is violated. For tests.
    pub fn validate(&self) {
        self.space.validate(self.clock.last());
        self.watches.validate();
        self.feeds.validate();
        let current = self.current_highest();
        let floor = self.space.floor;
        assert!(floor <= current, "floor {floor} above current {current}");
    }
}
