//! A shard's process: a real [`Engine`], called in the order of `shard/src/apply_loop.rs`, `core.rs` and
//! `internal/feed.rs`: a batch of requests, timers, publish, wakes, and only then the answers (R9).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kindred_engine::engine::{
    Engine, EngineConfig, FeedId, MonoMillis, OpenRange, PinId, RevisionMode, StreamId, WallMicros, WatchId,
    WatchOut, WatchSpec,
};
use kindred_engine::error::EngineError;
use kindred_engine::ops::{RangeAnswer, RangeQuery, RevisionFilter};
use kindred_engine::version::Version;
use kindred_partition_config::ids::{LeaseId, Revision, SLOT_BITS, Slot};
use kindred_partition_config::key::KeyRange;
use kindred_router_core::store::StoreIx;

use crate::clocks::WallClock;
use crate::history::{History, TruthEvent};
use crate::messages::{Reply, Request, StreamIn, StreamOut};
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::topology::{KINDS, Topology};
use crate::world::{MS, Micros, NATURE, SECOND, World};

/// The maximum clock offset (R3).
pub const OFFSET_MAX: Micros = 10 * SECOND;
/// How often idle feeds are told the present.
const PROGRESS_INTERVAL: Micros = 5 * SECOND;
/// A read up to this many keys is answered in one turn; the product's is larger.
const WHOLE_KEYS: usize = 4;
/// Keys of a later turn.
const CHUNK_KEYS: usize = 2;
/// Bytes pulled from the engine at a time; small, so that pulls end in the middle.
const PULL_BYTES: usize = 400;
/// Messages made ahead of a router.
const UNREAD_MAX: usize = 6;
/// Pins last their whole time here: every release is lost, which is harmless.
const UNRELEASED: PinId = PinId(1);
/// A pin that a compaction has passed is dropped after this.
const PIN_MAX: Micros = 60 * SECOND;

type Respond = Box<dyn FnOnce(Result<Reply, EngineError>)>;

enum Item {
    Request(Request, Respond),
    /// A long read goes on.
    Chunk(Box<Cursor>, Respond),
    Feed(Rc<Stream>, Vec<KeyRange>, Revision),
    Advance(FeedId, Revision),
    PullFeed(FeedId),
    PullWatch(StreamId),
}

struct Cursor {
    open: OpenRange,
    query: RangeQuery,
    kvs: Vec<Version>,
    since: Micros,
}

struct Core {
    engine: Engine,
    queue: VecDeque<Item>,
    compactions: Vec<(MonoMillis, Revision, Respond)>,
    collecting: bool,
    progress_at: Micros,
    lease_last: i64,
    feeds: BTreeMap<FeedId, Rc<Stream>>,
    streams: BTreeMap<StreamId, Rc<Stream>>,
    truth: Vec<StreamId>,
    /// What each Kind showed last, as recorded.
    shown: Vec<Revision>,
}

/// One shard.
pub struct Shard {
    /// Its place among the stores.
    pub index: StoreIx,
    /// Its slot.
    pub slot: Slot,
    world: World,
    history: Rc<History>,
    /// Its wall clock.
    pub wall: WallClock,
    core: RefCell<Core>,
    /// When its loop runs next, if that is planned.
    planned: Cell<Option<Micros>>,
    /// It does nothing until then.
    stalled_until: Cell<Micros>,
    sabotage: Option<Sabotage>,
    kinds: Vec<KeyRange>,
}

/// An answer, or what is to be done once all is visible.
enum Due {
    Answer(Respond, Result<Reply, EngineError>),
    Out(Rc<Stream>, StreamOut),
    Late(Item),
}

impl Shard {
    /// An empty shard.
    #[must_use]
    pub fn new(
        world: &World,
        history: &Rc<History>,
        topology: &Topology,
        index: StoreIx,
        wall: WallClock,
        sabotage: Option<Sabotage>,
    ) -> Rc<Self> {
        let mut slot = topology.slots[index.0];
        if sabotage == Some(Sabotage::SharedSlot) {
            slot = topology.slots[0];
        }
        let config = EngineConfig {
            revisions: RevisionMode::Hlc(slot),
            kinds: topology.scheme.clone(),
            max_clock_offset_micros: if sabotage == Some(Sabotage::UnboundedClock) {
                u64::MAX / 2
            } else {
                OFFSET_MAX
            },
            min_lease_ttl_s: 1,
        };
        let mut engine = Engine::new(config, WallMicros(wall.at(world.now())));
        let kinds: Vec<KeyRange> = (0..KINDS).map(|kind| topology.kind_range(kind)).collect();
        let truth = kinds.iter().map(|kind| watch_all(&mut engine, kind)).collect();
        let start = engine.current_all();
        history.started(index, start);
        let core = Core {
            engine,
            queue: VecDeque::new(),
            compactions: Vec::new(),
            collecting: false,
            progress_at: world.between(MS, PROGRESS_INTERVAL),
            lease_last: 0,
            feeds: BTreeMap::new(),
            streams: BTreeMap::new(),
            truth,
            shown: vec![Revision::ZERO; KINDS],
        };
        let shard = Rc::new(Self {
            index,
            slot: topology.slots[index.0],
            world: world.clone(),
            history: history.clone(),
            wall,
            core: RefCell::new(core),
            planned: Cell::new(None),
            stalled_until: Cell::new(0),
            sabotage,
            kinds,
        });
        shard.plan(0);
        shard
    }

    // ---- from outside

    /// A call has arrived.
    pub fn receive(self: &Rc<Self>, request: Request, respond: Respond) {
        self.enqueue(Item::Request(request, respond));
    }

    fn enqueue(self: &Rc<Self>, item: Item) {
        self.core.borrow_mut().queue.push_back(item);
        self.plan(self.world.now() + self.world.between(1, 60));
    }

    /// A message on a stream has arrived.
    pub fn receive_in(self: &Rc<Self>, stream: &Rc<Stream>, message: StreamIn) {
        match message {
            StreamIn::Feed { ranges, start } => self.enqueue(Item::Feed(stream.clone(), ranges, start)),
            StreamIn::Advance(to) => {
                let feed = self.feed_of(stream);
                if let Some(feed) = feed {
                    self.enqueue(Item::Advance(feed, to));
                }
            }
            StreamIn::Watch(spec) => {
                let id = self.watch_stream_of(stream);
                let refused = self.core.borrow_mut().engine.watch_create(id, spec);
                debug_assert!(refused.is_ok(), "routers give every watch a number of its own");
                self.plan(self.world.now());
            }
            StreamIn::Cancel(watch) => {
                let id = self.watch_stream_of(stream);
                self.core.borrow_mut().engine.watch_cancel(id, WatchId(watch));
                self.plan(self.world.now());
            }
            StreamIn::Progress => {
                let id = self.watch_stream_of(stream);
                self.core.borrow_mut().engine.watch_progress(id);
                self.plan(self.world.now());
            }
            StreamIn::Close => self.forget(stream),
        }
    }

    fn feed_of(&self, stream: &Rc<Stream>) -> Option<FeedId> {
        let core = self.core.borrow();
        core.feeds.iter().find(|(_, other)| Rc::ptr_eq(other, stream)).map(|(id, _)| *id)
    }

    fn watch_stream_of(&self, stream: &Rc<Stream>) -> StreamId {
        let mut core = self.core.borrow_mut();
        let known = core.streams.iter().find(|(_, other)| Rc::ptr_eq(other, stream)).map(|(id, _)| *id);
        known.unwrap_or_else(|| {
            let id = core.engine.watch_open();
            core.streams.insert(id, stream.clone());
            id
        })
    }

    fn forget(&self, stream: &Rc<Stream>) {
        let feed = self.feed_of(stream);
        let mut core = self.core.borrow_mut();
        if let Some(feed) = feed {
            core.feeds.remove(&feed);
            core.engine.feed_close(feed);
        }
        let known = core.streams.iter().find(|(_, other)| Rc::ptr_eq(other, stream)).map(|(id, _)| *id);
        if let Some(id) = known {
            core.streams.remove(&id);
            core.engine.watch_close(id);
        }
    }

    /// The router has read a message of the stream.
    pub fn may_pull(self: &Rc<Self>, stream: &Rc<Stream>) {
        if let Some(feed) = self.feed_of(stream) {
            self.enqueue(Item::PullFeed(feed));
        }
        let id = {
            let core = self.core.borrow();
            core.streams.iter().find(|(_, other)| Rc::ptr_eq(other, stream)).map(|(id, _)| *id)
        };
        if let Some(id) = id {
            self.enqueue(Item::PullWatch(id));
        }
    }

    /// The process stands still for a while.
    pub fn stall(self: &Rc<Self>, how_long: Micros) {
        self.stalled_until.set(self.world.now() + how_long);
    }

    // ---- the loop

    fn plan(self: &Rc<Self>, at: Micros) {
        let at = at.max(self.world.now()).max(self.stalled_until.get());
        if self.planned.get().is_some_and(|planned| planned <= at) {
            return;
        }
        self.planned.set(Some(at));
        let shard = self.clone();
        self.world.after(at - self.world.now(), NATURE, move || {
            // A turn planned for earlier has taken its place.
            if shard.planned.get() == Some(at) {
                shard.planned.set(None);
                if shard.stalled_until.get() > at {
                    return shard.plan(at);
                }
                shard.turn();
            }
        });
    }

    fn wall_now(&self) -> WallMicros {
        WallMicros(self.wall.at(self.world.now()))
    }

    fn mono(&self) -> MonoMillis {
        MonoMillis(self.world.now() / MS)
    }

    fn turn(self: &Rc<Self>) {
        let mut due = Vec::new();
        for _ in 0..self.world.between(1, 12) {
            let Some(item) = self.core.borrow_mut().queue.pop_front() else { break };
            self.execute(item, &mut due);
        }
        self.timers(&mut due);
        self.publish();
        self.note_currents();
        let (late, answers): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| matches!(due, Due::Late(_)));
        let mut after = Vec::new();
        for late in late {
            if let Due::Late(item) = late {
                self.execute_late(item, &mut after);
            }
        }
        self.note_currents();
        self.wake();
        for due in answers.into_iter().chain(after) {
            match due {
                Due::Answer(respond, result) => respond(result),
                Due::Out(stream, message) => {
                    let delay = self.world.between(20, 200);
                    stream.send_out(&self.world, delay, message);
                }
                Due::Late(_) => {}
            }
        }
        let next = {
            let core = self.core.borrow();
            if !core.queue.is_empty() || core.collecting {
                self.world.now() + self.world.between(1, 50)
            } else {
                let at = |mono: MonoMillis| (mono.0 + 1) * MS;
                let lease = core.engine.lease_deadline().map(at);
                let compaction = core.compactions.iter().map(|(until, ..)| at(*until)).min();
                [Some(core.progress_at), lease, compaction].into_iter().flatten().min().unwrap_or(0)
            }
        };
        self.plan(next);
    }

    fn execute(self: &Rc<Self>, item: Item, due: &mut Vec<Due>) {
        let (wall, mono) = (self.wall_now(), self.mono());
        let core = &mut *self.core.borrow_mut();
        match item {
            Item::Request(Request::Apply { op, min_revision }, respond) => {
                let applied = match min_revision {
                    None => core.engine.apply(wall, op),
                    Some(least) => core.engine.apply_above(wall, op, least),
                };
                due.push(Due::Answer(respond, applied.map(Reply::Applied)));
            }
            Item::Request(Request::Read { query, min_revision, pin }, respond) => {
                let waits = min_revision
                    .is_some_and(|least| core.engine.current(std::slice::from_ref(&query.range)) < least);
                let item = Item::Request(Request::Read { query, min_revision, pin }, respond);
                if waits {
                    due.push(Due::Late(item));
                } else {
                    self.read(core, item, due);
                }
            }
            Item::Request(Request::Compact { at }, respond) => {
                compact(core, mono, at, respond, due);
            }
            Item::Request(request @ (Request::Raise { .. } | Request::RaiseSince { .. }), respond) => {
                due.push(Due::Late(Item::Request(request, respond)));
            }
            Item::Request(request, respond) => {
                let result = self.lease(core, request);
                due.push(Due::Answer(respond, result));
            }
            Item::Chunk(mut cursor, respond) => {
                let floor = core.engine.floor();
                if cursor.open.at < floor && self.world.now() - cursor.since > PIN_MAX {
                    core.engine.close_range(cursor.open);
                    core.collecting |= core.engine.wants_gc();
                    due.push(Due::Answer(respond, Err(EngineError::Compacted { floor })));
                    return;
                }
                let chunk = match core.engine.next_chunk(&mut cursor.open, CHUNK_KEYS, usize::MAX) {
                    Ok(chunk) => chunk,
                    Err(refused) => {
                        core.engine.close_range(cursor.open);
                        due.push(Due::Answer(respond, Err(refused)));
                        return;
                    }
                };
                if chunk.is_empty() {
                    finish(core, *cursor, respond, due);
                } else {
                    cursor.kvs.extend(chunk);
                    core.queue.push_back(Item::Chunk(cursor, respond));
                }
            }
            Item::PullFeed(feed) => {
                let Some(stream) = core.feeds.get(&feed).cloned() else { return };
                if stream.unread.get() >= UNREAD_MAX {
                    return;
                }
                if let Some(out) = core.engine.feed_pull(feed, PULL_BYTES) {
                    if out.compacted.is_none() {
                        core.queue.push_back(Item::PullFeed(feed));
                    }
                    due.push(Due::Out(stream, StreamOut::Feed(out)));
                }
            }
            Item::PullWatch(id) => {
                let Some(stream) = core.streams.get(&id).cloned() else { return };
                if stream.unread.get() >= UNREAD_MAX {
                    return;
                }
                let out = core.engine.watch_pull(id, PULL_BYTES);
                if !out.is_empty() {
                    core.queue.push_back(Item::PullWatch(id));
                    due.push(Due::Out(stream, StreamOut::Watch(out)));
                }
            }
            item @ (Item::Feed(..) | Item::Advance(..)) => due.push(Due::Late(item)),
        }
    }

    fn execute_late(self: &Rc<Self>, item: Item, due: &mut Vec<Due>) {
        let (wall, mono) = (self.wall_now(), self.mono());
        let core = &mut *self.core.borrow_mut();
        match item {
            Item::Request(Request::Raise { ranges, to }, respond) => {
                let raised = core.engine.raise(wall, &ranges, to);
                let reply = raised.map(|current| Reply::Raised { current, changed: true });
                due.push(Due::Answer(respond, reply));
            }
            Item::Request(Request::RaiseSince { ranges, to, since }, respond) => {
                let reply = core.engine.raise(wall, &ranges, to).map(|current| {
                    if self.sabotage != Some(Sabotage::NoPins) {
                        core.engine.hold(mono, current, UNRELEASED);
                    }
                    let changed = self.sabotage != Some(Sabotage::NothingChanges)
                        && core.engine.changed(&ranges, since);
                    Reply::Raised { current, changed }
                });
                due.push(Due::Answer(respond, reply));
            }
            Item::Feed(stream, ranges, start) => {
                if stream.is_open() {
                    let id = core.engine.feed_open(ranges, Revision::from_wire(start.get()));
                    core.feeds.insert(id, stream);
                }
            }
            Item::Advance(feed, to) => core.engine.feed_advance(wall, feed, to),
            item => self.read(core, item, due),
        }
    }

    fn read(&self, core: &mut Core, item: Item, due: &mut Vec<Due>) {
        let Item::Request(Request::Read { query, min_revision, pin }, respond) = item else { return };
        if let Some(least) = min_revision {
            let ranges = std::slice::from_ref(&query.range);
            core.engine.raise_if_allowed(self.wall_now(), ranges, least);
        }
        let short = matches!(query.range, KeyRange::Single(_))
            || query.count_only
            || (query.sort.is_none()
                && query.filter == RevisionFilter::default()
                && (1..=WHOLE_KEYS).contains(&query.limit));
        let held = |core: &mut Core, header| {
            if pin && self.sabotage != Some(Sabotage::NoPins) {
                core.engine.hold(self.mono(), header, UNRELEASED);
            }
        };
        if short {
            let answered = core.engine.range(&query);
            if let Ok(answered) = &answered {
                held(core, answered.header);
            }
            due.push(Due::Answer(respond, answered.map(Reply::Read)));
            return;
        }
        match core.engine.open_range(&query.range, query.revision) {
            Err(error) => due.push(Due::Answer(respond, Err(error))),
            Ok(mut open) => {
                held(core, open.header);
                let kvs = match core.engine.next_chunk(&mut open, WHOLE_KEYS, usize::MAX) {
                    Ok(kvs) => kvs,
                    Err(refused) => {
                        core.engine.close_range(open);
                        due.push(Due::Answer(respond, Err(refused)));
                        return;
                    }
                };
                let whole = kvs.len() as u64 >= open.count;
                let cursor = Cursor { open, query, kvs, since: self.world.now() };
                if whole {
                    finish(core, cursor, respond, due);
                } else {
                    core.queue.push_back(Item::Chunk(Box::new(cursor), respond));
                }
            }
        }
    }

    fn lease(&self, core: &mut Core, request: Request) -> Result<Reply, EngineError> {
        let (wall, mono) = (self.wall_now(), self.mono());
        let engine = &mut core.engine;
        match request {
            Request::LeaseGrant { ttl_s } => loop {
                let slots = 1 << SLOT_BITS;
                let micros = i64::try_from(wall.0).unwrap_or(i64::MAX) & (i64::MAX >> SLOT_BITS);
                let now = micros * slots + i64::from(self.slot.get());
                core.lease_last = now.max(core.lease_last.saturating_add(slots));
                let id = LeaseId(core.lease_last);
                match engine.lease_grant(mono, id, ttl_s) {
                    Err(EngineError::LeaseExists(_)) => {}
                    granted => {
                        let ttl_s = granted?;
                        self.history.lease_granted(id, self.index);
                        return Ok(Reply::Granted { id, ttl_s });
                    }
                }
            },
            Request::LeaseKeepAlive { id } => {
                let kept = engine.lease_keep_alive(mono, id);
                self.history.lease_asked(id, self.index, kept.is_ok());
                Ok(Reply::Ttl(kept?))
            }
            Request::LeaseRevoke { id } => {
                let (_, stores) = engine.lease_revoke(wall, id)?;
                self.history.lease_ended(id, self.index);
                Ok(Reply::Revoked(stores))
            }
            Request::LeaseAttach { id, store } => {
                let attached = engine.lease_attach(id, store);
                self.history.lease_asked(id, self.index, attached.is_ok());
                Ok(Reply::Ttl(attached?))
            }
            Request::LeaseAdopt { id, ttl_s, home } => {
                engine.lease_adopt(id, ttl_s, home).map(|()| Reply::Done)
            }
            Request::LeaseEnd { id } => engine.lease_end(wall, id).map(|_| Reply::Done),
            Request::LeaseForget { id } => {
                engine.lease_forget(id);
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Ended(engine.leases_ended())),
        }
    }

    fn timers(&self, due: &mut Vec<Due>) {
        let (wall, mono) = (self.wall_now(), self.mono());
        let core = &mut *self.core.borrow_mut();
        if core.engine.lease_deadline().is_some_and(|deadline| deadline <= mono) {
            let before = core.engine.leases();
            core.engine.lease_expire(wall, mono, 1);
            let after = core.engine.leases();
            for id in before.into_iter().filter(|id| !after.contains(id)) {
                self.history.lease_ended(id, self.index);
            }
        }
        let waiting: Vec<_> = core.compactions.extract_if(.., |(until, ..)| *until <= mono).collect();
        for (_, at, respond) in waiting {
            compact(core, mono, at, respond, due);
        }
        if core.collecting && !core.engine.gc(8) {
            core.collecting = false;
        }
        if self.world.now() >= core.progress_at {
            core.progress_at = self.world.now() + PROGRESS_INTERVAL;
            core.engine.publish();
            core.engine.progress_tick(wall);
        }
    }

    fn publish(&self) {
        let core = &mut *self.core.borrow_mut();
        core.engine.publish();
        for at in 0..core.truth.len() {
            loop {
                let said = core.engine.watch_pull(core.truth[at], usize::MAX);
                if said.is_empty() {
                    break;
                }
                for out in said {
                    if let WatchOut::Events { events, .. } = out {
                        let events = events.iter().map(TruthEvent::of);
                        self.history.published(self.index, at, events);
                    }
                }
            }
        }
    }

    /// Writes down what each Kind shows.
    fn note_currents(&self) {
        let core = &mut *self.core.borrow_mut();
        for at in 0..self.kinds.len() {
            let mut current = core.engine.current(std::slice::from_ref(&self.kinds[at]));
            if self.sabotage == Some(Sabotage::ShowsAhead) {
                current = Revision(current.get() + (5_000 << SLOT_BITS));
            }
            if std::mem::replace(&mut core.shown[at], current) != current {
                let held = self.wall.highest(self.world.now());
                self.history.current(self.index, at, current, held);
            }
        }
    }

    fn wake(&self) {
        let core = &mut *self.core.borrow_mut();
        for feed in core.engine.take_feed_wakes() {
            core.queue.push_back(Item::PullFeed(feed));
        }
        for id in core.engine.take_wakes() {
            if core.streams.contains_key(&id) {
                core.queue.push_back(Item::PullWatch(id));
            }
        }
    }

    // ---- for the end of a run

    /// The current revision of a Kind.
    #[must_use]
    pub fn current(&self, kind: usize) -> Revision {
        self.core.borrow_mut().engine.current(std::slice::from_ref(&self.kinds[kind]))
    }

    /// The keys that carry leases, with those.
    #[must_use]
    pub fn leased_keys(&self) -> Vec<(Vec<u8>, LeaseId)> {
        let core = &mut *self.core.borrow_mut();
        let mut leased = Vec::new();
        for kind in &self.kinds {
            let query = RangeQuery {
                range: kind.clone(),
                revision: None,
                limit: 0,
                sort: None,
                contents: kindred_engine::ops::Contents::Whole,
                count_only: false,
                filter: RevisionFilter::default(),
            };
            if let Ok(RangeAnswer { kvs, .. }) = core.engine.range(&query) {
                let with =
                    kvs.iter().filter_map(|kv| Some((kv.key().to_vec(), LeaseId::from_wire(kv.lease())?)));
                leased.extend(with);
            }
        }
        leased
    }

    /// Leases at home here, and those over that still wait.
    #[must_use]
    pub fn home_leases(&self) -> (Vec<LeaseId>, Vec<LeaseId>) {
        let core = self.core.borrow();
        let ended = core.engine.leases_ended().into_iter().map(|lease| lease.id).collect();
        (core.engine.leases(), ended)
    }

    /// Panics when the engine is not as it must be.
    pub fn validate(&self) {
        self.core.borrow().engine.validate();
    }

    /// Leaves nothing behind that holds the world.
    pub fn end(&self) {
        let core = &mut *self.core.borrow_mut();
        core.queue.clear();
        core.compactions.clear();
        core.feeds.clear();
        core.streams.clear();
    }
}

fn watch_all(engine: &mut Engine, range: &KeyRange) -> StreamId {
    let stream = engine.watch_open();
    let spec = WatchSpec {
        range: range.clone(),
        start: None,
        id: None,
        prev_kv: true,
        no_put: false,
        no_delete: false,
        progress_notify: false,
        fragment: false,
    };
    let created = engine.watch_create(stream, spec);
    debug_assert!(created.is_ok(), "a new stream has no watch");
    stream
}

fn compact(core: &mut Core, mono: MonoMillis, at: Revision, respond: Respond, due: &mut Vec<Due>) {
    match core.engine.compact(mono, at) {
        Err(error) => due.push(Due::Answer(respond, Err(error))),
        Ok(Some(until)) => core.compactions.push((until, at, respond)),
        Ok(None) => {
            core.collecting = true;
            let current = core.engine.current_all();
            due.push(Due::Answer(respond, Ok(Reply::Compacted(current))));
        }
    }
}

/// The answer of a long read: what `shard/src/read.rs` leaves of its keys.
fn finish(core: &mut Core, cursor: Cursor, respond: Respond, due: &mut Vec<Due>) {
    let Cursor { open, query, mut kvs, .. } = cursor;
    let (header, count) = (open.header, open.count);
    core.engine.close_range(open);
    core.collecting |= core.engine.wants_gc();
    if query.sort.is_some_and(|sort| sort.descending) {
        kvs.reverse();
    }
    let more = query.limit > 0 && kvs.len() > query.limit;
    if more {
        kvs.truncate(query.limit);
    }
    let answer = RangeAnswer { header, kvs, more, count, contents: query.contents };
    due.push(Due::Answer(respond, Ok(Reply::Read(answer))));
}
