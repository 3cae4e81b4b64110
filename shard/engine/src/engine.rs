//! The engine of a shard: the contract between `shard/` and `shard/engine/`.
//!
//! One owner (the apply loop) calls everything here. A write has two halves: `apply` changes the state and assigns the
//! revision; the loop then makes the batch as durable as its mode promises; `publish` makes it visible (R9) to reads,
//! headers and watches. Reads and watches between the two see only what is published.

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

use crate::{
    apply::Applier,
    clock::Clock,
    durability::Logged,
    error::EngineError,
    hash,
    holds::Holds,
    lease::LeaseTable,
    object::Pins,
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery},
    read,
    space::Space,
    units::{UnitState, table::View},
    version::Version,
    watch::{Watches, feed::Feeds},
};

mod ceiling;
pub mod checkpoint;
mod durability;
mod feeds;
mod kept;
mod leases;
mod raises;
mod recover;
mod types;
mod units;

pub use self::{recover::Recovery, types::*};

/// The floor of a dense engine that was never compacted, as etcd's HashKV shows it.
const NEVER_COMPACTED: Revision = Revision(-1);
/// When a compaction that came upon something unpublished is to be asked for again.
const UNPUBLISHED_WAIT_MS: u64 = 1;

/// The whole state of one shard.
pub struct Engine {
    config: EngineConfig,
    clock: Clock,
    space: Space,
    leases: LeaseTable,
    watches: Watches,
    feeds: Feeds,
    pins: Pins,
    holds: Holds,
    kept: kept::Kept,
    /// Whether a pin below the floor ended since the last scrub.
    unpinned: bool,
    /// Periodic progress that waits for what was applied before it to be published.
    tick: Option<Revision>,
    /// See [`Engine::answer_waits`].
    answer_waits: bool,
}

impl Engine {
    /// An empty engine. With `Hlc` its floor and current revision stand at `now`, so that any older start or read is
    /// compacted (nothing before is known here); with `Dense` at revision 1, as a new etcd.
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
            kept: kept::Kept::default(),
            unpinned: false,
            tick: None,
            answer_waits: false,
            config,
        }
    }

    /// Begins again, empty and at `now`: for a shard that learns only after its start what time it is (R3). Streams and
    /// feeds are forgotten; nothing must have been shown yet.
    pub fn begin_at(&mut self, now: WallMicros) {
        *self = Self::new(self.config.clone(), now);
    }

    // ---- writes

    /// Runs one request atomically at one revision. A request that writes nothing assigns nothing.
    /// Refused with the state unchanged.
    pub fn apply(&mut self, now: WallMicros, op: Op) -> Result<OpAnswer, EngineError> {
        self.applier(now, Revision::ZERO).apply(op)
    }

    fn applier(&mut self, now: WallMicros, at_least: Revision) -> Applier<'_> {
        let Self { space, clock, leases, answer_waits, .. } = self;
        *answer_waits = false;
        Applier { space, clock, leases, now, at_least, waits: answer_waits }
    }

    /// Makes everything applied so far visible that does not wait for the fsync log, and hands events to the watches. To
    /// be called behind [`Engine::take_applied`].
    pub fn publish(&mut self) {
        let events = self.space.publish();
        self.published(&events);
        if let Some(promised) = self.tick.take() {
            self.promise(promised);
        }
    }

    /// Raises the floor: revisions below `at` cannot be read any more (`at` itself can). `Compacted` when not above the
    /// last compaction, `Future` above the current revision. Costs what the number of Kinds costs; `scrub` frees the memory.
    ///
    /// A store's beginning is a floor, too, and no compaction: a revision that is older than this store, and younger than
    /// another one, is accepted here as it is there.
    ///
    /// Does not pass a revision that is held (R5): answers when to ask again, and that time is not put off by what is
    /// held in between.
    pub fn compact(&mut self, now: MonoMillis, at: Revision) -> Result<Option<MonoMillis>, EngineError> {
        if at <= self.space.compacted {
            return Err(EngineError::Compacted { floor: self.space.compacted });
        }
        let current = self.current_all();
        if at > current {
            return Err(EngineError::Future { current });
        }
        if self.space.first_unpublished().is_some_and(|first| first <= at) {
            // What nobody has seen yet must not be below the floor when it is.
            return Ok(Some(MonoMillis(now.0.saturating_add(UNPUBLISHED_WAIT_MS))));
        }
        // An idle Kind's current revision must stay readable (R4). From now on nobody is shown, and holds, anything lower.
        let everything = self.space.everything();
        self.space.raise_visible(&everything, at);
        let until = self.holds.below(now, at);
        if until.is_none() {
            self.compacted(at);
            for record in &mut self.space.units.records {
                record.floor = record.floor.max(at);
            }
            self.space.floor = self.space.floor.max(at);
        }
        Ok(until)
    }

    fn compacted(&mut self, at: Revision) {
        self.space.compacted = at;
        self.space.compact_gaps(at);
        self.space.outbox.push(|| Logged::Compaction(at));
    }

    /// Frees versions below the floor that no pin needs, at most about `budget` of them; `true` when there is more to do.
    pub fn scrub(&mut self, budget: usize) -> bool {
        let unpinned = std::mem::take(&mut self.unpinned);
        let mut budget = budget;
        let dropping = self.unit_scrub(&mut budget);
        self.space.scrub(&self.pins, unpinned, budget) | dropping
    }

    /// Whether a pin ended since the last scrub that held what is below the floor, or a unit is to be removed.
    #[must_use]
    pub fn wants_scrub(&self) -> bool {
        self.unpinned || self.space.units.records.iter().any(|record| record.state == UnitState::Dropping)
    }

    // ---- reads

    /// A whole read; for small answers and inside the apply loop only.
    pub fn range(&mut self, query: &RangeQuery) -> Result<RangeAnswer, EngineError> {
        self.range_by_map(query, None)
    }

    /// The same for who goes by the map of this generation: at a revision that was settled before a unit changed hands, it
    /// sees what is this shard's by that map (R13). `None` = that is not known.
    pub fn range_by_map(
        &mut self,
        query: &RangeQuery,
        generation: Option<u64>,
    ) -> Result<RangeAnswer, EngineError> {
        let (at, header, view) = self.read_at(&query.range, query.revision, generation)?;
        // Of a list that has pinned its revision the pin tells when it has ended.
        if let (View::ByMap { with, .. }, KeyRange::Span { .. }) = (&view, &query.range)
            && !self.holds.any_upto(at)
        {
            let records = self.space.units.records.iter_mut();
            records.filter(|record| with.contains(&record.id)).for_each(|record| record.readers.page());
        }
        Ok(read::execute(&self.space, query, at, header, &view))
    }

    /// The revision to read at and the one to show, and what is seen there.
    fn read_at(
        &mut self,
        range: &KeyRange,
        asked: Option<Revision>,
        generation: Option<u64>,
    ) -> Result<(Revision, Revision, View), EngineError> {
        let view = self.space.sight(range, generation, asked)?;
        let scope = self.space.scope(range);
        let floor = if self.reads_kept(asked) { Revision::ZERO } else { self.space.floor_seen(range, &view) };
        read::check_revision(asked, floor, self.space.visible(&scope))?;
        self.space.check_gaps(range, asked, &view)?;
        let mut header = self.space.show(&scope);
        if !self.space.units.is_empty() {
            // Of a unit that is frozen, or another store's, nothing above its final revision is shown (R15a).
            header = header.min(self.space.units.last_seen(range, &view).unwrap_or(header));
        }
        Ok((asked.unwrap_or(header), header, view))
    }

    /// Starts a long read in key order (limit, sort and filters are the caller's): checks the revision and pins it.
    pub fn open_range(
        &mut self,
        range: &KeyRange,
        revision: Option<Revision>,
    ) -> Result<OpenRange, EngineError> {
        self.open_range_by_map(range, revision, None)
    }

    /// The same for who goes by the map of this generation; see [`Engine::range_by_map`].
    pub fn open_range_by_map(
        &mut self,
        range: &KeyRange,
        revision: Option<Revision>,
        generation: Option<u64>,
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

    /// The next keys of a long read, at most `max_keys` / about `max_bytes`; empty when done. Refused when keys that it saw
    /// at its beginning have since moved to another store and are dropped here.
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

    /// Ends a long read and its pin. Must be called (the shard's guard does).
    pub fn close_range(&mut self, open: OpenRange) {
        self.unpin(open.at);
    }

    fn unpin(&mut self, at: Revision) {
        if let Some(count) = self.pins.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&at);
                // A pin at or above the floor holds nothing that the floor does not.
                self.unpinned |= at < self.space.floor_highest();
            }
        }
    }

    /// The floor: the last compaction; zero when there was none.
    #[must_use]
    pub fn floor(&self) -> Revision {
        self.space.floor.max(Revision::ZERO)
    }

    /// etcd's HashKV over the versions at or below `at` (`None` = current): (hash, revision hashed, compact revision).
    /// The compact revision is -1 when there was none, as etcd's. Below zero nothing is, and its hash is that of nothing.
    pub fn hash_kv(&mut self, at: Option<Revision>) -> Result<(u32, Revision, Revision), EngineError> {
        // Nothing above is as it will be seen.
        let current = self.space.visible(&self.space.everything());
        let at = at.unwrap_or(current);
        // What every unit still holds: of one that came with more, no more counts.
        let floor = self.space.floor_highest();
        if at >= Revision::ZERO {
            read::check_revision(Some(at), floor, current)?;
            self.space.check_gaps(&KeyRange::everything(), Some(at), &View::Now)?;
        }
        Ok((hash::hash_kv(&self.space, floor, at), at, floor))
    }

    /// Sizes.
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

    /// Bytes of all versions of the Kind with this prefix; of the keys of no Kind with an empty one.
    #[must_use]
    pub fn kind_bytes(&self, prefix: &[u8]) -> u64 {
        self.space.kind_bytes(prefix)
    }

    /// What there is of the Kinds that have keys of their own in some of the ranges.
    #[must_use]
    pub fn loads(&self, ranges: &[KeyRange]) -> Vec<KindLoad> {
        self.space.loads(ranges)
    }

    /// Every Kind's prefix, and the bytes that were written to it since the start.
    pub fn written(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.space.written()
    }

    // ---- watches

    /// A new client stream.
    pub fn watch_open(&mut self) -> StreamId {
        self.watches.open()
    }

    /// Adds a watch; its `Created` (and `Compacted`, when its start is) come out of `watch_pull`. A watch on an empty
    /// range is the caller's to refuse, as etcd does; here it would wait for ever.
    pub fn watch_create(&mut self, stream: StreamId, spec: WatchSpec) -> Result<WatchId, EngineError> {
        self.watches.create(&mut self.space, stream, spec)
    }

    /// Ends a watch; `Canceled` comes out of `watch_pull`. False when the stream has no such watch.
    pub fn watch_cancel(&mut self, stream: StreamId, id: WatchId) -> bool {
        self.watches.cancel(&mut self.space, stream, id)
    }

    /// Asks for a manual progress (R7): one `Progress { id: None }` after every event that it covers.
    pub fn watch_progress(&mut self, stream: StreamId) {
        self.watches.request_progress(&mut self.space, stream);
    }

    /// Periodic progress for every watch that asked for it, and a watermark for every feed, that had nothing since the
    /// last tick; promises the present.
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

    /// What the stream has to send next, about `max_bytes` of it; empty when there is nothing more now. One pull looks at
    /// a bounded number of events: when it had to stop among events that are not for this stream, the stream is woken
    /// again at once.
    pub fn watch_pull(&mut self, stream: StreamId, max_bytes: usize) -> Vec<WatchOut> {
        self.watches.pull(&mut self.space, stream, max_bytes)
    }

    /// The client is gone.
    pub fn watch_close(&mut self, stream: StreamId) {
        self.watches.close(stream);
    }

    /// Streams that came to have something to send since the last call.
    pub fn take_wakes(&mut self) -> Vec<StreamId> {
        self.watches.take_wakes()
    }

    /// Panics when an invariant does not hold. For tests.
    pub fn validate(&self) {
        self.space.validate(self.clock.last());
        self.watches.validate();
        self.feeds.validate();
        let current = self.current_highest();
        let floor = self.space.floor;
        assert!(floor <= current, "floor {floor} above current {current}");
    }
}
