//! What the apply loop owns: the engine, and what a server keeps beside it (alarms, long reads, watch streams).
//!
//! Everything here runs on the loop and returns at once; nothing waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use kindred_engine::{
    engine::{Engine, FeedId, MonoMillis, OpenRange, PinId, StreamId, WallMicros},
    error::EngineError,
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery, RevisionFilter},
    version::Version,
};
use kindred_partition_config::{
    ids::{Revision, SLOT_BITS, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
    unit::Unit,
};
use kindred_proto::etcdserverpb::AlarmType;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use kindred_wire::error::EtcdError;

use crate::{
    apply_loop::{Call, Flushed},
    clock::Clock,
    durability::{checkpoint::CheckpointWaiter, status::DurabilityStatus},
    etcd_status::KvError,
    wish::Wish,
};

mod disk;
pub(crate) mod feeds;
mod leases;
mod load;
mod units;

pub use self::disk::{Disk, LogState};
use self::{leases::EndedWatcher, load::Written};

/// Keys that one turn of the loop reads at most for a long read (R: nothing holds the loop for more than ~100 us).
pub const CHUNK_KEYS: usize = 256;
/// Bytes that one chunk of a long read holds, about.
pub const CHUNK_BYTES: usize = 256 << 10;
/// A read up to this many keys is answered in one turn.
const WHOLE_KEYS: usize = 512;
/// A pin older than this is dropped when a compaction has passed it (R5).
const PIN_MAX: Duration = Duration::from_secs(60);
/// Compactions that may wait; more are refused.
const COMPACTIONS_MAX: usize = 64;
/// etcd's estimates of what a key and a lease cost beside their bytes.
const KV_OVERHEAD: u64 = 256;
const LEASE_OVERHEAD: u64 = 64;

/// A long read that the loop holds a pin for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CursorId(u64);

struct Cursor {
    open: OpenRange,
    owner: Weak<()>,
    since: Instant,
}

/// How a read was answered.
#[derive(Debug)]
pub enum Started {
    /// At once.
    Whole(RangeAnswer),
    /// The first keys of a long read, in key order, without limit, sort or filter applied.
    Long {
        /// The header's revision.
        header: Revision,
        /// All keys of the range.
        count: u64,
        /// The first of them.
        first: Vec<Version>,
        /// Where the rest comes from; `None` when there is none.
        cursor: Option<CursorId>,
    },
}

/// What a feed is to carry.
#[derive(Debug)]
pub struct FeedWanted {
    /// Of which keys.
    pub of: FeedOf,
    /// The first revision; `None` = from now on.
    pub start: Option<Revision>,
}

/// The keys of a feed.
#[derive(Debug)]
pub enum FeedOf {
    /// Those of some ranges, which are this shard's by the map of the generation (`None` = not checked).
    Ranges {
        /// Not empty.
        ranges: Vec<KeyRange>,
        /// See [`Wish::generation`].
        generation: Option<u64>,
    },
    /// Those of a unit that moves, whoever owns it: the tail of a copy.
    Unit(Unit),
}

/// Where the answer to a compaction goes.
pub type Answer = oneshot::Sender<Result<Revision, KvError>>;

struct Compaction {
    at: Revision,
    physical: bool,
    answer: Answer,
}

struct Stream {
    wake: Arc<Notify>,
    owner: Weak<()>,
}

/// What a core is told of its shard.
#[derive(Debug, Clone)]
pub struct CoreSettings {
    /// This member.
    pub member_id: u64,
    /// The low bits of its revisions.
    pub slot: Slot,
    /// Bytes above which NOSPACE is raised; 0 = none.
    pub quota_bytes: u64,
    /// The same for single Kinds, by their prefixes.
    pub quotas: BTreeMap<Key, u64>,
    /// Which keys belong to which Kind.
    pub kinds: KindScheme,
}

/// What the loop owns.
pub struct Core {
    /// The data.
    pub engine: Engine,
    /// The clocks.
    pub clock: Clock,
    /// This member, for the alarms that it raises itself.
    member_id: u64,
    slot: Slot,
    /// Bytes above which NOSPACE is raised; 0 = none.
    quota_bytes: u64,
    alarms: BTreeSet<(i32, u64)>,
    cursors: HashMap<CursorId, Cursor>,
    cursor_next: u64,
    streams: HashMap<StreamId, Stream>,
    feeds: feeds::Outlets,
    /// Feeds that have more to say than they were given.
    feeds_behind: Vec<FeedId>,
    lease_last: i64,
    ended: Vec<EndedWatcher>,
    /// Leases ended, or somebody new wants to know which did.
    ended_news: bool,
    /// What the disk takes.
    pub disk: Disk,
    deferred: Vec<Call>,
    /// What goes on when the logs are flushed again.
    again: Option<Flushed>,
    checkpoint_waiters: Vec<CheckpointWaiter>,
    /// The generation of modes that are in force once a checkpoint is on disk.
    pub modes_wait: Option<u64>,
    /// How the logs stood at the last look; `None` without any.
    pub durability: Option<DurabilityStatus>,
    kinds: KindScheme,
    quotas: BTreeMap<Key, u64>,
    written: Written,
    /// There was no data at the start, and the clock may not have been right.
    pub found_nothing: bool,
    /// When it opens, if it is in the place of another store, as far as anybody has said (R14).
    pub opens_at: WallMicros,
    /// It has begun to serve.
    pub opened: bool,
    /// There are logs.
    pub keeps: bool,
    scrubbing: bool,
    scrub_waiters: Vec<Answer>,
    /// Compactions that wait for what is held, and until when.
    compactions: Vec<(MonoMillis, Compaction)>,
    /// Requests executed; etcd's raft index.
    pub applied: u64,
}

impl Core {
    /// A core around an engine.
    #[must_use]
    pub fn new(engine: Engine, clock: Clock, settings: CoreSettings) -> Self {
        let CoreSettings { member_id, slot, quota_bytes, .. } = settings;
        // Alone it has its own clock, which is right.
        let opened = clock.is_confirmed();
        Self {
            engine,
            clock,
            member_id,
            slot,
            quota_bytes,
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
            deferred: Vec::new(),
            again: None,
            checkpoint_waiters: Vec::new(),
            modes_wait: None,
            durability: None,
            kinds: settings.kinds,
            quotas: settings.quotas,
            written: Written::new(Instant::now()),
            found_nothing: true,
            opens_at: WallMicros(0),
            opened,
            keeps: false,
            scrubbing: false,
            scrub_waiters: Vec::new(),
            compactions: Vec::new(),
            applied: 0,
        }
    }

    // ---- writes

    /// Runs a write, or a txn of reads.
    pub fn apply(&mut self, op: Op, wish: Wish) -> Result<OpAnswer, KvError> {
        self.owns(&op, wish.generation)?;
        let cost = cost(&op);
        if cost > 0 {
            self.check_room(cost)?;
            self.check_quota(&op)?;
        }
        if !is_read(&op) {
            self.check_corrupt()?;
            self.check_disk(&op)?;
        }
        self.applied += 1;
        let wall = self.clock.wall();
        Ok(match wish.at_least {
            None => self.engine.apply(wall, op)?,
            Some(wish) => self.engine.apply_above(wall, op, wish)?,
        })
    }

    fn check_corrupt(&self) -> Result<(), KvError> {
        let corrupt = self.alarms.iter().any(|(alarm, _)| *alarm == AlarmType::Corrupt as i32);
        if corrupt { Err(KvError::Corrupt) } else { Ok(()) }
    }

    /// etcd refuses what costs while NOSPACE is raised, and raises it itself when the request would not fit.
    fn check_room(&mut self, cost: u64) -> Result<(), KvError> {
        self.check_corrupt()?;
        if self.quota_bytes > 0 && self.engine.stats().total_bytes.saturating_add(cost) >= self.quota_bytes {
            self.alarms.insert((AlarmType::Nospace as i32, self.member_id));
        }
        let raised = self.alarms.iter().any(|(alarm, _)| *alarm == AlarmType::Nospace as i32);
        if raised { Err(KvError::NoSpace) } else { Ok(()) }
    }

    /// Compacts; answers with the current revision, at once or when it is done: when nothing is held below `at` any more
    /// (R5) and, if `physical`, the memory is free.
    pub fn compact(&mut self, at: Revision, physical: bool, answer: Answer) {
        if let Err(error) = self.check_corrupt() {
            return drop(answer.send(Err(error)));
        }
        self.applied += 1;
        self.start_compaction(Compaction { at, physical, answer });
    }

    /// Compacts what is older, by the clock that revisions are made of. Nothing happens where all is younger, or the clock
    /// is not to be trusted.
    pub fn compact_older(&mut self, age: Duration) {
        if self.check_corrupt().is_err() || self.check_clock().is_err() {
            return;
        }
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let micros = self.clock.wall().0.saturating_sub(age);
        let at =
            Revision(i64::try_from(micros).unwrap_or(i64::MAX >> SLOT_BITS).saturating_mul(1 << SLOT_BITS));
        if at > self.engine.floor() {
            // Nobody waits for the answer.
            let (answer, _) = oneshot::channel();
            self.start_compaction(Compaction { at, physical: false, answer });
        }
    }

    /// The caller of a compaction may be gone; the work is done all the same.
    fn start_compaction(&mut self, compaction: Compaction) {
        let Compaction { at, physical, answer } = compaction;
        match self.engine.compact(self.clock.mono(), at) {
            Err(error) => drop(answer.send(Err(error.into()))),
            Ok(Some(_)) if self.compactions.len() >= COMPACTIONS_MAX => {
                drop(answer.send(Err(KvError::Invalid(EtcdError::TooManyRequests))));
            }
            Ok(Some(until)) => self.compactions.push((until, Compaction { at, physical, answer })),
            Ok(None) => {
                self.scrubbing = true;
                if physical {
                    self.scrub_waiters.push(answer);
                } else {
                    self.compacted(answer);
                }
            }
        }
    }

    /// Goes on with the compactions that waited for what was held.
    pub fn compact_due(&mut self) {
        let now = self.clock.mono();
        let due: Vec<_> = self.compactions.extract_if(.., |(until, _)| *until <= now).collect();
        for (_, compaction) in due {
            self.start_compaction(compaction);
        }
    }

    /// What was pinned under these names need not stay readable any more (R5).
    pub fn release(&mut self, pins: &[PinId]) {
        if self.engine.release(pins) {
            for (_, compaction) in std::mem::take(&mut self.compactions) {
                self.start_compaction(compaction);
            }
        }
    }

    /// When the next compaction that waits may go on.
    #[must_use]
    pub fn compact_deadline(&self) -> Option<MonoMillis> {
        self.compactions.iter().map(|(until, _)| *until).min()
    }

    /// Frees a little of what was compacted; whether there is more to do.
    pub fn scrub(&mut self, budget: usize) -> bool {
        if self.scrubbing && !self.engine.scrub(budget) {
            self.scrubbing = false;
            for waiter in std::mem::take(&mut self.scrub_waiters) {
                self.compacted(waiter);
            }
        }
        self.scrubbing
    }

    /// A compaction is done when a restart remembers it.
    fn compacted(&mut self, answer: Answer) {
        self.when_durable(Box::new(|core| {
            let current = core.engine.current_all();
            Box::new(move || drop(answer.send(Ok(current))))
        }));
    }

    /// Whether compacted memory waits to be freed.
    #[must_use]
    pub fn is_scrubbing(&self) -> bool {
        self.scrubbing
    }

    // ---- reads

    /// Whether a read is to see more than is visible now, so that it has to wait for its batch.
    pub fn waits(&mut self, query: &RangeQuery, wish: Wish) -> bool {
        let ranges = std::slice::from_ref(&query.range);
        self.engine.read_waits(ranges, wish.at_least)
            || wish.at_least.is_some_and(|wish| self.engine.current(ranges) < wish)
    }

    /// Answers a short read, or begins a long one.
    pub fn read(&mut self, query: &RangeQuery, wish: Wish, owner: &Weak<()>) -> Result<Started, KvError> {
        self.owns_read(query, wish.generation)?;
        if let Some(at_least) = wish.at_least {
            let ranges = std::slice::from_ref(&query.range);
            self.engine.raise_if_allowed(self.clock.wall(), ranges, at_least);
        }
        let started = self.start_read(query, wish.generation, owner)?;
        if let Some(pin) = wish.pin {
            let (Started::Whole(RangeAnswer { header, .. }) | Started::Long { header, .. }) = &started;
            self.engine.hold(self.clock.mono(), *header, pin);
        }
        Ok(started)
    }

    fn start_read(
        &mut self,
        query: &RangeQuery,
        generation: Option<u64>,
        owner: &Weak<()>,
    ) -> Result<Started, KvError> {
        if is_short(query) {
            Ok(Started::Whole(self.engine.range_by_map(query, generation)?))
        } else {
            self.open(query, generation, owner)
        }
    }

    /// Begins a read that is produced chunk by chunk.
    fn open(
        &mut self,
        query: &RangeQuery,
        generation: Option<u64>,
        owner: &Weak<()>,
    ) -> Result<Started, KvError> {
        let mut open = self.engine.open_range_by_map(&query.range, query.revision, generation)?;
        let (header, count) = (open.header, open.count);
        let first = match self.engine.next_chunk(&mut open, WHOLE_KEYS, CHUNK_BYTES) {
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
        let id = CursorId(self.cursor_next);
        self.cursor_next += 1;
        self.cursors.insert(id, Cursor { open, owner: owner.clone(), since: Instant::now() });
        Ok(Started::Long { header, count, first, cursor: Some(id) })
    }

    /// The next keys of a long read, and whether it is at its end. `Compacted` when its pin was taken away.
    pub fn chunk(&mut self, id: CursorId) -> Result<(Vec<Version>, bool), KvError> {
        let Some(cursor) = self.cursors.get_mut(&id) else {
            return Err(EngineError::Compacted { floor: self.engine.floor() }.into());
        };
        let chunk = self.engine.next_chunk(&mut cursor.open, CHUNK_KEYS, CHUNK_BYTES)?;
        Ok((chunk, cursor.open.is_done()))
    }

    /// Raises ranges (see [`Engine::raise`]) that are this shard's by the map of `generation`.
    pub fn raise(
        &mut self,
        ranges: &[KeyRange],
        to: Revision,
        generation: Option<u64>,
    ) -> Result<Revision, KvError> {
        let wall = self.clock.wall();
        if generation.is_none() {
            // Who has no map means the shard: a compaction does not fail because a unit is frozen.
            return Ok(self.engine.raise_whole(wall, ranges, to)?);
        }
        self.engine.owns(ranges, generation)?;
        Ok(self.engine.raise(wall, ranges, to)?)
    }

    /// The same, and tells whether anything there changed above `since`; with a `pin`, what it answers stays readable for a
    /// while.
    pub fn raise_since(
        &mut self,
        ranges: &[KeyRange],
        to: Revision,
        since: Revision,
        pin: Option<PinId>,
        generation: Option<u64>,
    ) -> Result<(Revision, bool), KvError> {
        let current = self.raise(ranges, to, generation)?;
        if let Some(pin) = pin {
            self.engine.hold(self.clock.mono(), current, pin);
        }
        // Since the beginning, nobody asks.
        let changed = since == Revision::ZERO || self.engine.changed(ranges, since);
        Ok((current, changed))
    }

    /// Keeps a revision readable for a while, or for no time more (R5); see [`Engine::keep`].
    pub fn keep(&mut self, at: Revision, name: PinId, millis: u64) -> Result<(), KvError> {
        if millis > 0 {
            return Ok(self.engine.keep(self.clock.mono(), at, name, millis)?);
        }
        self.engine.unkeep(name);
        self.scrubbing |= self.engine.wants_scrub();
        Ok(())
    }

    /// Ends a long read.
    pub fn close(&mut self, id: CursorId) {
        if let Some(cursor) = self.cursors.remove(&id) {
            self.engine.close_range(cursor.open);
            self.scrubbing |= self.engine.wants_scrub();
        }
    }

    // ---- watch streams

    /// A new client stream; `wake` is notified when it has something to say.
    pub fn watch_open(&mut self, wake: Arc<Notify>, owner: Weak<()>) -> StreamId {
        let id = self.engine.watch_open();
        self.streams.insert(id, Stream { wake, owner });
        id
    }

    /// The client is gone.
    pub fn watch_close(&mut self, id: StreamId) {
        if self.streams.remove(&id).is_some() {
            self.engine.watch_close(id);
        }
    }

    /// Tells streams that they have something to say.
    pub fn wake(&mut self) {
        for id in self.engine.take_wakes() {
            if let Some(stream) = self.streams.get(&id) {
                stream.wake.notify_one();
            }
        }
    }

    /// Frees what belonged to clients that are gone (their own message may not have fitted into the queue), and pins
    /// that a slow client held for too long.
    pub fn sweep(&mut self) {
        let floor = self.engine.floor();
        self.engine.unkeep_due(self.clock.mono());
        self.engine.unit_readers_look(self.clock.mono());
        self.scrubbing |= self.engine.wants_scrub();
        let lost = |cursor: &Cursor| {
            let at = cursor.open.at;
            cursor.owner.strong_count() == 0
                || (at < floor && cursor.since.elapsed() > PIN_MAX && !self.engine.is_kept(at))
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

    /// Long reads and watch streams that are open.
    #[must_use]
    pub fn open_counts(&self) -> (usize, usize) {
        (self.cursors.len(), self.streams.len())
    }

    // ---- alarms

    /// Raised alarms of a type (`AlarmType::None` = all), as (type, member).
    #[must_use]
    pub fn alarms(&self, kind: i32) -> Vec<(i32, u64)> {
        let mut alarms = self.alarms.clone();
        if self.disk.is_failing() {
            // Not in the set: it goes by itself.
            alarms.insert((AlarmType::Nospace as i32, self.member_id));
        }
        alarms.retain(|(alarm, _)| kind == AlarmType::None as i32 || *alarm == kind);
        alarms.into_iter().collect()
    }

    /// Raises an alarm.
    pub fn alarm_raise(&mut self, kind: i32, member: u64) {
        self.applied += 1;
        self.alarms.insert((kind, member));
    }

    /// Clears an alarm; whether it was raised.
    pub fn alarm_clear(&mut self, kind: i32, member: u64) -> bool {
        self.applied += 1;
        self.alarms.remove(&(kind, member))
    }
}

/// etcd's estimate of what a request adds; 0 for what NOSPACE lets through.
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

/// Whether a read is answered whole, in one turn.
#[must_use]
pub fn is_short(query: &RangeQuery) -> bool {
    let natural = query.sort.is_none() && query.filter == RevisionFilter::default();
    let first = natural && (1..=WHOLE_KEYS).contains(&query.limit);
    matches!(query.range, KeyRange::Single(_)) || query.count_only || first
}

/// Whether a request certainly writes nothing.
pub(crate) fn is_read(op: &Op) -> bool {
    match op {
        Op::Range(_) => true,
        Op::Txn(txn) => crate::convert::is_read_only(txn),
        Op::Put(_) | Op::Delete(_) => false,
    }
}
