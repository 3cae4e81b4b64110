//! The state that the apply loop owns: the engine, and a server's alarms, long reads and streams.
//!
//! Everything here runs on the loop and returns at once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use kindred_engine::{
    engine::{Engine, FeedId, MonoMillis, OpenRange, PinId, StreamId, WallMicros},
    error::EngineError,
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery, RevisionFilter, Txn},
    version::Version,
};
use kindred_partition_config::{
    ids::{Epoch, Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
    unit::Unit,
};
use kindred_proto::etcdserverpb::AlarmType;
use tokio::{sync::Notify, time::Instant};

use kindred_wire::error::EtcdError;

use crate::{
    clock::Clock, durability::status::DurabilityStatus, etcd_status::KvError, metrics::Label,
    read_hints::ReadHints,
};

mod compacting;
mod disk;
pub(crate) mod feeds;
pub mod history;
pub mod jobs;
mod later;
mod leases;
mod load;
pub mod meet;
pub mod modes;
mod replica;
#[cfg(test)]
pub(crate) mod sample;
mod units;

pub use self::disk::{CheckpointWaiter, Disk, LogState};
pub(crate) use self::later::{AfterPublish, Later, LoggedModes, WhenDurable};
pub use self::later::{Answer, Taken};
pub use self::replica::Replica;
use self::{history::History, leases::EndedWatcher, load::Written};

/// A read of up to this many keys is answered in one turn.
pub(crate) const WHOLE_KEYS: usize = 512;
/// The age beyond which a pin below the floor is dropped (R5).
const PIN_MAX: Duration = Duration::from_secs(60);
/// Compactions that may wait; more are refused.
const COMPACTIONS_MAX: usize = 64;
/// etcd's estimates of the cost of a key and of a lease beside their bytes.
const KV_OVERHEAD: u64 = 256;
const LEASE_OVERHEAD: u64 = 64;

/// A long read for which the loop holds a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CursorId(u64);

struct Cursor {
    open: OpenRange,
    owner: Weak<()>,
    since: Instant,
}

/// The beginning of a read's answer.
#[derive(Debug)]
pub enum Started {
    Whole(RangeAnswer),
    /// The first keys of a long read, in key order, before limit, sort and filter.
    Long {
        header: Revision,
        /// The number of keys in the range.
        count: u64,
        first: Vec<Version>,
        /// The cursor for the rest; `None` when nothing is left.
        cursor: Option<CursorId>,
    },
}

/// The reads of a transaction that are made one by one.
#[derive(Debug)]
pub struct BegunReads {
    /// The revision of all that ask for no other.
    pub at: Revision,
    /// In the order of the transaction's ranges; a refusal counts if its branch is taken.
    pub reads: Vec<Result<OpenedRead, KvError>>,
}

#[derive(Debug)]
pub struct OpenedRead {
    /// The number of keys in the range.
    pub count: u64,
    pub cursor: CursorId,
}

/// A feed to open.
#[derive(Debug)]
pub struct FeedWanted {
    pub of: FeedOf,
    /// The first revision; `None` = from now on.
    pub start: Option<Revision>,
}

/// The keys of a feed.
#[derive(Debug)]
pub enum FeedOf {
    /// Ranges that are this shard's by the map of `generation` (`None` = not checked).
    Ranges {
        /// At least one range.
        ranges: Vec<KeyRange>,
        /// See [`ReadHints::generation`].
        generation: Option<Epoch>,
    },
    /// A unit that moves, whoever owns it, for the tail of a copy.
    Unit(Unit),
}

struct Compaction {
    at: Revision,
    physical: bool,
    answer: Answer,
}

struct Stream {
    wake: Arc<Notify>,
    owner: Weak<()>,
}

/// How much is done in one turn of the loop. Nothing may hold the loop for more than about 100 us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// A read of up to this many keys is answered in one turn.
    pub whole_keys: usize,
    /// Keys that one turn reads for a long read, at most.
    pub chunk_keys: usize,
    /// Approximate bytes of one chunk of a long read.
    pub chunk_bytes: usize,
    /// Approximate bytes of one message of a feed.
    pub message_bytes: usize,
}

impl Default for Sizes {
    /// Those of a shard; a simulation has smaller ones.
    fn default() -> Self {
        Self { whole_keys: WHOLE_KEYS, chunk_keys: 256, chunk_bytes: 256 << 10, message_bytes: 256 << 10 }
    }
}

/// The settings of a core.
#[derive(Debug, Clone)]
pub struct CoreSettings {
    pub member_id: u64,
    /// The low bits of this shard's revisions.
    pub slot: Slot,
    /// The quota in bytes, at which NOSPACE is raised; 0 = none.
    pub quota_bytes: u64,
    /// Quotas of single Kinds, by prefix.
    pub quotas: BTreeMap<Key, u64>,
    /// The bytes of history above which the oldest is compacted; 0 = none.
    pub history_bytes_max: u64,
    /// Tells which Kind a key belongs to.
    pub kinds: KindScheme,
    /// How much is done in one turn.
    pub sizes: Sizes,
    /// The label of its gauges.
    pub label: Label,
}

pub struct Core {
    pub engine: Engine,
    pub clock: Clock,
    /// This member, for the alarms that the core raises itself.
    member_id: u64,
    slot: Slot,
    /// The quota in bytes, at which NOSPACE is raised; 0 = none.
    quota_bytes: u64,
    alarms: BTreeSet<(i32, u64)>,
    cursors: HashMap<CursorId, Cursor>,
    cursor_next: u64,
    streams: HashMap<StreamId, Stream>,
    feeds: feeds::Outlets,
    /// Feeds with more to send than they were given.
    feeds_behind: Vec<FeedId>,
    lease_last: i64,
    ended: Vec<EndedWatcher>,
    /// Whether leases ended, or a new watcher wants to hear of those that did.
    ended_news: bool,
    /// Whether the logs take writes.
    pub disk: Disk,
    later: Vec<Later>,
    checkpoint_waiters: Vec<CheckpointWaiter>,
    /// The generation of the modes that take effect once a checkpoint is on disk.
    pub modes_wait: Option<u64>,
    /// The state of the logs at the last report; `None` without logs.
    pub durability: Option<DurabilityStatus>,
    kinds: KindScheme,
    sizes: Sizes,
    quotas: BTreeMap<Key, u64>,
    history: History,
    written: Written,
    /// Whether the start found no data, so that the engine begins anew once the clock is confirmed.
    pub found_nothing: bool,
    /// When a store that replaces another one may open, as far as known (R14).
    pub opens_at: WallMicros,
    /// Whether it has begun to serve.
    pub opened: bool,
    /// At a standby, which executes nothing itself: what it takes over.
    pub replica: Option<Replica>,
    /// Whether there are logs.
    pub keeps: bool,
    collecting: bool,
    gc_waiters: Vec<Answer>,
    /// Compactions that wait for pins, and until when.
    compactions: Vec<(MonoMillis, Compaction)>,
    /// Requests executed, shown as etcd's raft index.
    pub applied: u64,
    /// The label of its gauges.
    pub label: Label,
}

impl Core {
    #[must_use]
    pub fn new(engine: Engine, clock: Clock, settings: CoreSettings) -> Self {
        let CoreSettings { member_id, slot, quota_bytes, ref label, .. } = settings;
        let label = label.clone();
        // A shard alone trusts its own clock.
        let opened = clock.is_confirmed();
        let now = clock.now();
        Self {
            engine,
            clock,
            member_id,
            slot,
            quota_bytes,
            label,
            alarms: BTreeSet::new(),
            cursors: HashMap::new(),
            cursor_next: 0,
            streams: HashMap::new(),
            feeds: HashMap::new(),
            feeds_behind: Vec::new(),
            lease_last: 0,
            ended: Vec::new(),
            ended_news: false,
            disk: Disk::default(),
            later: Vec::new(),
            checkpoint_waiters: Vec::new(),
            modes_wait: None,
            durability: None,
            kinds: settings.kinds,
            sizes: settings.sizes,
            quotas: settings.quotas,
            history: History::of(settings.history_bytes_max),
            written: Written::new(now),
            found_nothing: true,
            opens_at: WallMicros(0),
            opened,
            replica: None,
            keeps: false,
            collecting: false,
            gc_waiters: Vec::new(),
            compactions: Vec::new(),
            applied: 0,
        }
    }

    // ---- writes

    /// Executes a write, or a transaction of reads.
    pub fn apply(&mut self, op: Op, hints: ReadHints) -> Result<OpAnswer, KvError> {
        self.owns(&op, hints.generation)?;
        let cost = cost(&op);
        if cost > 0 {
            self.bound_history();
            self.check_room(cost)?;
            self.check_quota(&op)?;
        }
        if !is_read(&op) {
            self.check_corrupt()?;
            self.check_disk(&op)?;
        }
        self.applied += 1;
        let wall = self.clock.wall();
        Ok(match hints.min_revision {
            None => self.engine.apply(wall, op)?,
            Some(least) => self.engine.apply_above(wall, op, least)?,
        })
    }

    fn check_corrupt(&self) -> Result<(), KvError> {
        let corrupt = self.alarms.iter().any(|(alarm, _)| *alarm == AlarmType::Corrupt as i32);
        if corrupt { Err(KvError::Corrupt) } else { Ok(()) }
    }

    /// etcd's rule: refuses requests with a cost while NOSPACE is raised, and raises it when one would not fit.
    fn check_room(&mut self, cost: u64) -> Result<(), KvError> {
        self.check_corrupt()?;
        if self.quota_bytes > 0 && self.engine.stats().total_bytes.saturating_add(cost) >= self.quota_bytes {
            self.alarms.insert((AlarmType::Nospace as i32, self.member_id));
        }
        let raised = self.alarms.iter().any(|(alarm, _)| *alarm == AlarmType::Nospace as i32);
        if raised { Err(KvError::NoSpace) } else { Ok(()) }
    }

    /// Compacts, and answers with the current revision once no pin is below `at` (R5) and, if `physical`, the memory is
    /// free.
    pub fn compact(&mut self, at: Revision, physical: bool, answer: Answer) {
        if let Err(error) = self.check_corrupt() {
            return drop(answer.send(Err(error)));
        }
        self.applied += 1;
        self.start_compaction(Compaction { at, physical, answer });
    }

    /// Starts a compaction. It is done even if its caller is gone.
    fn start_compaction(&mut self, compaction: Compaction) {
        let Compaction { at, physical, answer } = compaction;
        match self.engine.compact(self.clock.mono(), at) {
            Err(error) => drop(answer.send(Err(error.into()))),
            Ok(Some(_)) if self.compactions.len() >= COMPACTIONS_MAX => {
                drop(answer.send(Err(KvError::Invalid(EtcdError::TooManyRequests))));
            }
            Ok(Some(until)) => self.compactions.push((until, Compaction { at, physical, answer })),
            Ok(None) => {
                self.collecting = true;
                if physical {
                    self.gc_waiters.push(answer);
                } else {
                    self.compacted(answer);
                }
            }
        }
    }

    /// Retries the compactions whose wait for pins is over.
    pub fn compact_due(&mut self) {
        let now = self.clock.mono();
        let due: Vec<_> = self.compactions.extract_if(.., |(until, _)| *until <= now).collect();
        for (_, compaction) in due {
            self.start_compaction(compaction);
        }
    }

    /// Releases pins: their revisions need not stay readable (R5).
    pub fn release(&mut self, pins: &[PinId]) {
        if self.engine.release(pins) {
            for (_, compaction) in std::mem::take(&mut self.compactions) {
                self.start_compaction(compaction);
            }
        }
    }

    /// When the next waiting compaction is retried.
    #[must_use]
    pub fn compact_deadline(&self) -> Option<MonoMillis> {
        self.compactions.iter().map(|(until, _)| *until).min()
    }

    /// Frees some of what was compacted. Returns whether there is more.
    pub fn gc(&mut self, budget: usize) -> bool {
        if self.collecting && !self.engine.gc(budget) {
            self.collecting = false;
            for waiter in std::mem::take(&mut self.gc_waiters) {
                self.compacted(waiter);
            }
        }
        self.collecting
    }

    /// Answers a compaction once it would survive a restart.
    fn compacted(&mut self, answer: Answer) {
        self.when_durable(WhenDurable::Compacted(answer));
    }

    /// Whether compacted memory waits to be freed.
    #[must_use]
    pub fn is_collecting(&self) -> bool {
        self.collecting
    }

    // ---- reads

    /// Whether reads of these ranges need more than is visible now, and have to wait for a raise.
    pub fn waits(&mut self, ranges: &[KeyRange], hints: ReadHints) -> bool {
        self.engine.read_waits(ranges, hints.min_revision)
            || hints.min_revision.is_some_and(|least| self.engine.current(ranges) < least)
    }

    /// Answers a short read, or begins a long one.
    pub fn read(
        &mut self,
        query: &RangeQuery,
        hints: ReadHints,
        owner: &Weak<()>,
    ) -> Result<Started, KvError> {
        self.owns_read(query, hints.generation)?;
        if let Some(min_revision) = hints.min_revision {
            let ranges = std::slice::from_ref(&query.range);
            self.engine.raise_if_allowed(self.clock.wall(), ranges, min_revision);
        }
        let started = self.start_read(query, hints.generation, owner)?;
        if let Some(pin) = hints.pin {
            let (Started::Whole(RangeAnswer { header, .. }) | Started::Long { header, .. }) = &started;
            self.engine.hold(self.clock.mono(), *header, pin);
        }
        Ok(started)
    }

    /// Begins a transaction of reads that are made one by one, at one revision. All are opened here, those of its compares first,
    /// then those of either branch: an open read ends whatever is compacted meanwhile.
    pub fn begin_reads(
        &mut self,
        txn: &Txn,
        hints: ReadHints,
        owner: &Weak<()>,
    ) -> Result<BegunReads, KvError> {
        let ranges = ranges_of(txn);
        // Also a frozen unit refuses, which is still readable at a revision (R13).
        ranges.iter().try_for_each(|range| self.engine.owns_to_write(range, hints.generation))?;
        self.engine.one_mode(&ranges)?;
        self.applied += 1;
        if let Some(least) = hints.min_revision {
            self.engine.raise_if_allowed(self.clock.wall(), &ranges, least);
        }
        let at = self.engine.current(&ranges);
        let compared = txn.compares.iter().map(|compare| (&compare.range, None));
        let read = txn.success.iter().chain(&txn.failure).filter_map(|op| match op {
            Op::Range(query) => Some((&query.range, query.revision)),
            _ => None,
        });
        let opened = compared.chain(read).map(|(range, revision)| {
            let revision = revision.unwrap_or(at);
            if revision > at {
                return Err(EngineError::Future { current: at }.into());
            }
            let open = self.engine.open_range_by_map(range, Some(revision), hints.generation)?;
            let count = open.count;
            Ok(OpenedRead { count, cursor: self.keep(open, owner) })
        });
        Ok(BegunReads { at, reads: opened.collect() })
    }

    fn start_read(
        &mut self,
        query: &RangeQuery,
        generation: Option<Epoch>,
        owner: &Weak<()>,
    ) -> Result<Started, KvError> {
        if is_up_to(query, self.sizes.whole_keys) {
            Ok(Started::Whole(self.engine.range_by_map(query, generation)?))
        } else {
            self.open(query, generation, owner)
        }
    }

    /// Begins a read that is produced in chunks.
    fn open(
        &mut self,
        query: &RangeQuery,
        generation: Option<Epoch>,
        owner: &Weak<()>,
    ) -> Result<Started, KvError> {
        let mut open = self.engine.open_range_by_map(&query.range, query.revision, generation)?;
        let (header, count) = (open.header, open.count);
        let first = match self.engine.next_chunk(&mut open, self.sizes.whole_keys, self.sizes.chunk_bytes) {
            Ok(first) => first,
            Err(refused) => {
                self.engine.close_range(open);
                return Err(refused.into());
            }
        };
        if open.is_done() {
            self.engine.close_range(open);
            return Ok(Started::Long { header, count, first, cursor: None });
        }
        let cursor = Some(self.keep(open, owner));
        Ok(Started::Long { header, count, first, cursor })
    }

    /// Keeps a long read open for its owner.
    fn keep(&mut self, open: OpenRange, owner: &Weak<()>) -> CursorId {
        let id = CursorId(self.cursor_next);
        self.cursor_next += 1;
        self.cursors.insert(id, Cursor { open, owner: owner.clone(), since: self.clock.now() });
        id
    }

    /// The next keys of a long read, and whether it is at its end. `Compacted` when its pin was dropped.
    pub fn chunk(&mut self, id: CursorId) -> Result<(Vec<Version>, bool), KvError> {
        let sizes = self.sizes;
        let Some(cursor) = self.cursors.get_mut(&id) else {
            return Err(EngineError::Compacted { floor: self.engine.floor() }.into());
        };
        let chunk = self.engine.next_chunk(&mut cursor.open, sizes.chunk_keys, sizes.chunk_bytes)?;
        Ok((chunk, cursor.open.is_done()))
    }

    /// Raises ranges (see [`Engine::raise`]) that are this shard's by the map of `generation`.
    pub fn raise(
        &mut self,
        ranges: &[KeyRange],
        to: Revision,
        generation: Option<Epoch>,
    ) -> Result<Revision, KvError> {
        let wall = self.clock.wall();
        if generation.is_none() {
            // A request without a map means the whole shard: a frozen unit does not fail a compaction.
            return Ok(self.engine.raise_whole(wall, ranges, to)?);
        }
        self.engine.owns(ranges, generation)?;
        Ok(self.engine.raise(wall, ranges, to)?)
    }

    /// The same, and tells whether anything in the ranges changed above `since`. A `pin` keeps the returned revision
    /// readable for a while.
    pub fn raise_since(
        &mut self,
        ranges: &[KeyRange],
        to: Revision,
        since: Revision,
        pin: Option<PinId>,
        generation: Option<Epoch>,
    ) -> Result<(Revision, bool), KvError> {
        let current = self.raise(ranges, to, generation)?;
        if let Some(pin) = pin {
            self.engine.hold(self.clock.mono(), current, pin);
        }
        // `since` zero: the answer is not used.
        let changed = since == Revision::ZERO || self.engine.changed(ranges, since);
        Ok((current, changed))
    }

    /// Retains a revision for `millis`, or with 0 lets it go (R5); see [`Engine::retain`].
    pub fn retain(&mut self, at: Revision, name: PinId, millis: u64) -> Result<(), KvError> {
        if millis > 0 {
            return Ok(self.engine.retain(self.clock.mono(), at, name, millis)?);
        }
        self.engine.release_retained(name);
        self.collecting |= self.engine.wants_gc();
        Ok(())
    }

    pub fn close(&mut self, id: CursorId) {
        if let Some(cursor) = self.cursors.remove(&id) {
            self.engine.close_range(cursor.open);
            self.collecting |= self.engine.wants_gc();
        }
    }

    // ---- watch streams

    /// Opens a client's watch stream; `wake` is notified when it has something to send.
    pub fn watch_open(&mut self, wake: Arc<Notify>, owner: Weak<()>) -> StreamId {
        let id = self.engine.watch_open();
        self.streams.insert(id, Stream { wake, owner });
        id
    }

    /// Closes a client's watch stream.
    pub fn watch_close(&mut self, id: StreamId) {
        if self.streams.remove(&id).is_some() {
            self.engine.watch_close(id);
        }
    }

    /// Notifies the streams that have something to send.
    pub fn wake(&mut self) {
        for id in self.engine.take_wakes() {
            if let Some(stream) = self.streams.get(&id) {
                stream.wake.notify_one();
            }
        }
    }

    /// Frees what belonged to clients that are gone, whose own message may not have fitted into the queue, and pins
    /// that a slow client held too long.
    pub fn sweep(&mut self) {
        let (floor, now) = (self.engine.floor(), self.clock.now());
        self.engine.release_due(self.clock.mono());
        self.engine.unit_readers_look(self.clock.mono());
        self.collecting |= self.engine.wants_gc();
        let lost = |cursor: &Cursor| {
            let at = cursor.open.at;
            cursor.owner.strong_count() == 0
                || (at < floor && now.duration_since(cursor.since) > PIN_MAX && !self.engine.is_retained(at))
        };
        let cursors: Vec<_> = self.cursors.iter().filter(|(_, c)| lost(c)).map(|(id, _)| *id).collect();
        for id in cursors {
            self.close(id);
        }
        let gone = |stream: &Stream| stream.owner.strong_count() == 0;
        let streams: Vec<_> = self.streams.iter().filter(|(_, s)| gone(s)).map(|(id, _)| *id).collect();
        for id in streams {
            self.watch_close(id);
        }
        let feeds: Vec<_> = self.feeds.iter().filter(|(_, f)| f.is_closed()).map(|(id, _)| *id).collect();
        for id in feeds {
            self.feed_close(id);
        }
        self.ended.retain(|watcher| !watcher.sender.is_closed());
    }

    /// The numbers of open long reads and watch streams.
    #[must_use]
    pub fn open_counts(&self) -> (usize, usize) {
        (self.cursors.len(), self.streams.len())
    }

    // ---- alarms

    /// The raised alarms of a type (`AlarmType::None` = all), as (type, member).
    #[must_use]
    pub fn alarms(&self, kind: i32) -> Vec<(i32, u64)> {
        let mut alarms = self.alarms.clone();
        if self.disk.is_failing() {
            // This alarm is not in the set, since it clears as soon as the disk works again.
            alarms.insert((AlarmType::Nospace as i32, self.member_id));
        }
        alarms.retain(|(alarm, _)| kind == AlarmType::None as i32 || *alarm == kind);
        alarms.into_iter().collect()
    }

    pub fn alarm_raise(&mut self, kind: i32, member: u64) {
        self.applied += 1;
        self.alarms.insert((kind, member));
    }

    /// Clears an alarm. Returns whether it was raised.
    pub fn alarm_clear(&mut self, kind: i32, member: u64) -> bool {
        self.applied += 1;
        self.alarms.remove(&(kind, member))
    }
}

/// etcd's estimate of what a request adds; 0 for requests that NOSPACE does not refuse.
fn cost(op: &Op) -> u64 {
    match op {
        Op::Put(put) => KV_OVERHEAD + put.key.len() as u64 + put.value.len() as u64,
        Op::Txn(txn) => {
            let sum = |ops: &[Op]| ops.iter().map(cost).sum::<u64>();
            sum(&txn.success).max(sum(&txn.failure))
        }
        Op::Range(_) | Op::Delete(_) => 0,
    }
}

/// Whether a shard answers a read whole, in one turn.
#[must_use]
pub fn is_short(query: &RangeQuery) -> bool {
    is_up_to(query, WHOLE_KEYS)
}

fn is_up_to(query: &RangeQuery, whole_keys: usize) -> bool {
    keys_of(query) <= whole_keys
}

/// The most keys that a read visits, whatever there are.
pub(crate) fn keys_of(query: &RangeQuery) -> usize {
    let natural = query.sort.is_none() && query.filter == RevisionFilter::default();
    if matches!(query.range, KeyRange::Single(_)) || query.count_only {
        1
    } else if natural && query.limit > 0 {
        query.limit
    } else {
        usize::MAX
    }
}

/// The ranges of a transaction, of both its branches.
pub(crate) fn ranges_of(txn: &Txn) -> Vec<KeyRange> {
    let compared = txn.compares.iter().map(|compare| &compare.range);
    let read = txn.success.iter().chain(&txn.failure).filter_map(|op| match op {
        Op::Range(query) => Some(&query.range),
        _ => None,
    });
    compared.chain(read).cloned().collect()
}

/// Whether a request certainly writes nothing.
pub(crate) fn is_read(op: &Op) -> bool {
    match op {
        Op::Range(_) => true,
        Op::Txn(txn) => crate::convert::is_read_only(txn),
        Op::Put(_) | Op::Delete(_) => false,
    }
}
