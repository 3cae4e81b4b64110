//! One client's watch stream, as `router/src/watch/session.rs`, `readers.rs`, `deliver.rs` and `round.rs`: positions on
//! feeds, watches of one key on streams of their own, creates answered in order, and rounds of progress (R7, R8).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use kindred_engine::engine::{WatchId, WatchOut, WatchSpec};
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_router_core::cursor::{Limit, Taken};
use kindred_router_core::feed_event::{Events, Filter};
use kindred_router_core::place::{FeedKey, Placed, place};
use kindred_router_core::progress::{Admit, Member, Progress};
use kindred_router_core::store::StoreIx;
use kindred_wire::kv::{EventRef, EventType, KeyValueRef};

use super::Router;
use super::feed::Reader;
use crate::history::{Got, Heard};
use crate::messages::{Reply, Request, StreamIn, StreamOut};
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::world::{Bell, MS, Micros, SECOND};
use kindred_router_core::feed_state::Take;
use kindred_router_core::gaps::Passed;

mod round;
mod upstream;

const READY_MAX: usize = 4;
/// Bytes read for a watch at a time; few, so that reads end in the middle.
const TAKE_BYTES: usize = 600;
const ASK_AGAIN: Micros = 200 * MS;
const CREATE_WAIT: Micros = 10 * SECOND;

/// Where the events of a watch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The session's stream on this store.
    Store(StoreIx),
    /// A feed that the session follows.
    Feed(usize),
}

impl Member for Origin {
    fn relays(self) -> bool {
        matches!(self, Self::Store(_))
    }
}

/// What a client asks for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The id on the stream, the client's choice.
    pub id: i64,
    /// Of which Kind.
    pub kind: usize,
    /// The keys.
    pub range: KeyRange,
    /// The first revision; none for now.
    pub start: Option<Revision>,
    /// Events carry the version before.
    pub prev_kv: bool,
    /// Leaves out deletions.
    pub no_delete: bool,
    /// Wants periodic progress.
    pub notify: bool,
}

struct FeedWatch {
    filter: Filter,
    catch_up: Option<Reader>,
    /// The gaps that it has passed of its live feed, and of its catch-up.
    passed: (Passed, Passed),
    quiet: bool,
}

struct Watch {
    wanted: Wanted,
    origin: Origin,
    feed: Option<FeedWatch>,
    /// The first revision that the client has not been given; zero while it follows from `created`.
    next: Revision,
    floor: Revision,
    announced: bool,
    live: bool,
    cancel: bool,
}

impl Watch {
    fn on(&self, store: StoreIx) -> bool {
        self.origin == Origin::Store(store)
    }
}

enum Due {
    Answer(Heard),
    Store { uid: i64, sent: bool, since: Micros },
    Feed { uid: i64, current: Option<Revision> },
}

struct Followed {
    key: FeedKey,
    live: Reader,
}

struct Upstream {
    stream: Rc<Stream>,
    generation: u64,
    failures: u32,
}

#[derive(Default)]
struct State {
    outgoing: VecDeque<Heard>,
    watches: BTreeMap<i64, Watch>,
    upstreams: BTreeMap<StoreIx, Upstream>,
    creates: VecDeque<Due>,
    progress: Progress<Origin>,
    held: VecDeque<(i64, Heard)>,
    round_since: Option<Micros>,
    feeds: BTreeMap<usize, Followed>,
    next_feed: usize,
    periodic: BTreeSet<i64>,
    only_periodic: bool,
    next_periodic: Option<Micros>,
    dirty: bool,
    turn: i64,
    next_uid: i64,
    generations: u64,
    /// Calls of the round under way: those of an earlier one are not heard.
    calls: u64,
    /// Messages that the client has not read.
    unread: usize,
}

/// One client stream.
pub struct Session {
    router: Rc<Router>,
    state: RefCell<State>,
    bell: Rc<Bell>,
    /// Gives the client a message.
    to_client: Box<dyn Fn(Heard)>,
}

impl Session {
    /// Serves a stream until its router's life ends, or the client hangs up.
    #[must_use]
    pub fn serve(router: &Rc<Router>, to_client: Box<dyn Fn(Heard)>) -> Rc<Self> {
        let session = Rc::new(Self {
            router: router.clone(),
            state: RefCell::new(State { next_uid: 1, ..State::default() }),
            bell: Rc::default(),
            to_client,
        });
        let this = Rc::downgrade(&session);
        let (bell, world, life) = (session.bell.clone(), router.world.clone(), router.life);
        world.clone().spawn(life, async move {
            loop {
                let Some(session) = this.upgrade() else { return };
                session.pump();
                session.flush();
                let again = session.state.borrow().dirty && session.can_pump();
                drop(session);
                if !again {
                    bell.rung().await;
                    let Some(session) = this.upgrade() else { return };
                    session.state.borrow_mut().dirty = true;
                }
                // Work takes time.
                world.sleep(10).await;
            }
        });
        let (this, world) = (Rc::downgrade(&session), router.world.clone());
        router.world.spawn(life, async move {
            loop {
                world.sleep(100 * MS).await;
                let Some(session) = this.upgrade() else { return };
                session.on_timer();
            }
        });
        session
    }

    /// The client has gone.
    pub fn hang_up(&self) {
        let state = std::mem::take(&mut *self.state.borrow_mut());
        for upstream in state.upstreams.values() {
            self.router.net.close(&upstream.stream);
        }
        drop(state);
        self.bell.ring();
    }

    /// The client has read a message.
    pub fn read_one(&self) {
        let mut state = self.state.borrow_mut();
        state.unread = state.unread.saturating_sub(1);
        drop(state);
        self.bell.ring();
    }

    fn flush(&self) {
        loop {
            let next = {
                let mut state = self.state.borrow_mut();
                if state.unread >= READY_MAX { None } else { state.outgoing.pop_front() }
            };
            let Some(message) = next else { return };
            self.state.borrow_mut().unread += 1;
            (self.to_client)(message);
        }
    }

    // ---- requests

    /// The client wants a watch.
    pub fn create(self: &Rc<Self>, wanted: Wanted) {
        let (key, end) = match &wanted.range {
            KeyRange::Single(key) => (key.0.clone(), bytes::Bytes::new()),
            KeyRange::Span { start, end } => {
                (start.0.clone(), end.clone().map_or_else(bytes::Bytes::new, |end| end.0))
            }
        };
        let Ok((placed, _)) = place(&key, &end, &self.router.topology.routes) else { return };
        let uid = {
            let mut state = self.state.borrow_mut();
            state.next_uid += 1;
            state.next_uid - 1
        };
        let (origin, feed) = match placed {
            Placed::Store(store) => (Origin::Store(store), None),
            Placed::Feed(key) => {
                let filter = Filter {
                    range: wanted.range.clone(),
                    no_put: false,
                    no_delete: wanted.no_delete,
                    prev_kv: wanted.prev_kv,
                };
                let no = self.follow_feed(key);
                (
                    Origin::Feed(no),
                    Some(FeedWatch { filter, catch_up: None, passed: Default::default(), quiet: true }),
                )
            }
        };
        let next = wanted.start.unwrap_or(Revision::ZERO);
        let watch =
            Watch { wanted, origin, feed, next, floor: next, announced: false, live: false, cancel: false };
        self.state.borrow_mut().watches.insert(uid, watch);
        let due = match origin {
            Origin::Store(_) => Due::Store { uid, sent: false, since: self.router.world.now() },
            Origin::Feed(no) => Due::Feed { uid, current: self.ask_present(uid, no) },
        };
        self.state.borrow_mut().creates.push_back(due);
        self.advance_creates();
        self.bell.ring();
    }

    /// The client does not want a watch any more.
    pub fn cancel(self: &Rc<Self>, id: i64) {
        let found = {
            let state = self.state.borrow();
            state.watches.iter().find(|(_, watch)| watch.wanted.id == id).map(|(uid, _)| *uid)
        };
        if let Some(uid) = found {
            self.cancel_uid(uid);
        }
        self.bell.ring();
    }

    fn cancel_uid(self: &Rc<Self>, uid: i64) {
        let sent = {
            let mut state = self.state.borrow_mut();
            let Some(watch) = state.watches.get_mut(&uid) else { return };
            if !watch.announced {
                watch.cancel = true;
                return;
            }
            let (live, origin) = (watch.live, watch.origin);
            match origin {
                Origin::Store(store) if live => {
                    state.upstreams.get(&store).map(|upstream| upstream.stream.clone())
                }
                _ => None,
            }
        };
        if let Some(stream) = sent.filter(|stream| stream.is_open()) {
            return self.router.net.send_in(&stream, StreamIn::Cancel(uid));
        }
        let id = self.state.borrow().watches.get(&uid).map(|watch| watch.wanted.id);
        if let Some(watch) = id {
            self.emit_behind(uid, Heard::Cancelled { watch });
        }
        self.remove(uid);
    }

    fn follow_feed(self: &Rc<Self>, key: FeedKey) -> usize {
        let known = {
            let state = self.state.borrow();
            state.feeds.iter().find(|(_, followed)| followed.key == key).map(|(no, _)| *no)
        };
        known.unwrap_or_else(|| {
            let live = self.router.live(&key, &self.bell);
            let mut state = self.state.borrow_mut();
            let no = state.next_feed;
            state.next_feed += 1;
            state.feeds.insert(no, Followed { key, live });
            no
        })
    }

    fn ask_present(self: &Rc<Self>, uid: i64, no: usize) -> Option<Revision> {
        let (feed, starts) = {
            let state = self.state.borrow();
            let starts = state.watches.get(&uid).is_some_and(|watch| watch.next > Revision::ZERO);
            (state.feeds.get(&no)?.live.feed.clone(), starts)
        };
        if let Some(covered) = feed.covered().filter(|_| starts) {
            return Some(covered);
        }
        let (this, world) = (Rc::downgrade(self), self.router.world.clone());
        world.clone().spawn(self.router.life, async move {
            let asking = async {
                loop {
                    if let Some(Ok(present)) = feed.current().await {
                        return present;
                    }
                    world.sleep(ASK_AGAIN).await;
                }
            };
            let present = world.within(CREATE_WAIT, asking).await;
            if let Some(session) = this.upgrade() {
                session.on_feed_present(uid, present);
            }
        });
        None
    }

    fn on_feed_present(self: &Rc<Self>, uid: i64, present: Option<Revision>) {
        let refused = {
            let mut state = self.state.borrow_mut();
            let watch = state.watches.get(&uid).map(|watch| watch.wanted.id);
            let is = |due: &&mut Due| matches!(due, Due::Feed { uid: due, .. } if *due == uid);
            let Some(due) = state.creates.iter_mut().find(is) else { return };
            match (present, watch) {
                (Some(present), _) => {
                    *due = Due::Feed { uid, current: Some(present) };
                    false
                }
                (None, Some(watch)) => {
                    *due = Due::Answer(Heard::Cancelled { watch });
                    true
                }
                (None, None) => false,
            }
        };
        if refused {
            self.remove(uid);
        }
        self.advance_creates();
        self.bell.ring();
    }

    /// Answers and sends creates as far as their order allows.
    fn advance_creates(self: &Rc<Self>) {
        loop {
            let announced = {
                let mut state = self.state.borrow_mut();
                match state.creates.front() {
                    Some(Due::Answer(_)) => {
                        if let Some(Due::Answer(answer)) = state.creates.pop_front() {
                            state.outgoing.push_back(answer);
                        }
                        continue;
                    }
                    Some(Due::Feed { uid, current: Some(current) }) => {
                        let due = (*uid, *current);
                        state.creates.pop_front();
                        Some(due)
                    }
                    _ => None,
                }
            };
            let Some((uid, current)) = announced else { break };
            self.announce(uid, current);
        }
        let (store, sending, known) = {
            let state = &mut *self.state.borrow_mut();
            let mut sending = Vec::new();
            let mut only = None;
            for due in &mut state.creates {
                let (uid, sent) = match due {
                    Due::Store { uid, sent, .. } => (uid, sent),
                    Due::Feed { .. } => break,
                    Due::Answer(_) => continue,
                };
                let Some(Watch { origin: Origin::Store(store), .. }) = state.watches.get(uid) else {
                    continue;
                };
                if *only.get_or_insert(*store) != *store {
                    break;
                }
                if !std::mem::replace(sent, true) {
                    sending.push(*uid);
                }
            }
            let Some(store) = only.filter(|_| !sending.is_empty()) else { return };
            (store, sending, state.upstreams.contains_key(&store))
        };
        if !known {
            return self.open(store, 0);
        }
        for uid in sending {
            self.send_create(uid, store);
        }
    }

    fn announce(self: &Rc<Self>, uid: i64, current: Revision) {
        let (watch, cancel, start) = {
            let state = &mut *self.state.borrow_mut();
            let Some(watch) = state.watches.get_mut(&uid) else { return };
            watch.announced = true;
            watch.live = true;
            if watch.next == Revision::ZERO {
                watch.next = current.next();
                watch.floor = current;
            }
            if watch.wanted.notify {
                state.next_periodic.get_or_insert(self.router.world.now() + round::PERIOD);
            }
            state.dirty = true;
            (watch.wanted.id, watch.cancel, watch.wanted.start)
        };
        self.show(uid, current);
        self.say(Heard::Created { watch, header: current });
        let compacted = self.router.compacted.get();
        if cancel {
            self.cancel_uid(uid);
        } else if start.is_some_and(|start| start < compacted) {
            self.cancel_compacted(uid, compacted);
        } else {
            self.watches_changed();
        }
    }

    fn say(&self, message: Heard) {
        self.state.borrow_mut().outgoing.push_back(message);
    }

    fn show(&self, uid: i64, revision: Revision) {
        let kind = self.state.borrow().watches.get(&uid).map(|watch| watch.wanted.kind);
        if let Some(kind) = kind {
            self.router.show(kind, revision);
        }
    }

    fn remove(self: &Rc<Self>, uid: i64) {
        let ended = {
            let state = &mut *self.state.borrow_mut();
            let Some(watch) = state.watches.remove(&uid) else { return };
            state.periodic.remove(&uid);
            let last = !state.watches.values().any(|other| other.origin == watch.origin);
            let (feed, upstream) = match watch.origin {
                Origin::Store(store) if last => (None, state.upstreams.remove(&store)),
                Origin::Feed(no) if last => (state.feeds.remove(&no), None),
                _ => (None, None),
            };
            (watch, feed, upstream)
        };
        if let Some(upstream) = &ended.2 {
            self.router.net.close(&upstream.stream);
        }
        drop(ended);
        self.watches_changed();
    }

    // ---- reading feeds

    fn can_pump(&self) -> bool {
        self.state.borrow().outgoing.len() < READY_MAX
    }

    fn pump(self: &Rc<Self>) {
        if !self.state.borrow().dirty || !self.can_pump() {
            return;
        }
        let uids: Vec<i64> = {
            let state = &mut *self.state.borrow_mut();
            state.dirty = false;
            let on_feed =
                |(uid, watch): (&i64, &Watch)| (watch.announced && watch.feed.is_some()).then_some(*uid);
            let behind = state.watches.range(state.turn + 1..).filter_map(on_feed);
            behind.chain(state.watches.range(..=state.turn).filter_map(on_feed)).collect()
        };
        for uid in uids {
            if !self.can_pump() {
                self.state.borrow_mut().dirty = true;
                return;
            }
            self.state.borrow_mut().turn = uid;
            let more = self.read_on(uid);
            self.state.borrow_mut().dirty |= more;
        }
        self.conclude_round();
    }

    fn read_on(self: &Rc<Self>, uid: i64) -> bool {
        let (limit, position, live, key, catch_up, mut passed) = {
            let state = self.state.borrow();
            let limit = Limit { last: state.progress.target(), bytes: TAKE_BYTES };
            let Some(watch) = state.watches.get(&uid) else { return false };
            let (Origin::Feed(no), Some(side)) = (watch.origin, &watch.feed) else { return false };
            let Some(followed) = state.feeds.get(&no) else { return false };
            let catch_up = side.catch_up.as_ref().map(|reader| reader.feed.clone());
            (limit, watch.next, followed.live.feed.clone(), followed.key.clone(), catch_up, side.passed)
        };
        let mut take = live.take(position, &mut passed.0, limit);
        let mut reader = None;
        match take {
            Take::Taken(_) => reader = Some(None),
            Take::Behind => {
                take =
                    catch_up.as_ref().map_or(Take::Ended, |feed| feed.take(position, &mut passed.1, limit));
                let mut feed = catch_up;
                if matches!(take, Take::Behind | Take::Ended) {
                    let opened = self.router.catch_up(&key, position, &self.bell);
                    feed = Some(opened.feed.clone());
                    passed.1 = Passed::default();
                    reader = Some(Some(opened));
                }
                if let (Some(feed), Some(covered)) = (feed, live.covered()) {
                    feed.want(covered);
                }
            }
            _ => {}
        }
        if let Some(side) =
            self.state.borrow_mut().watches.get_mut(&uid).and_then(|watch| watch.feed.as_mut())
        {
            side.passed = passed;
        }
        if let Some(reader) = reader {
            let old = {
                let mut state = self.state.borrow_mut();
                let side = state.watches.get_mut(&uid).and_then(|watch| watch.feed.as_mut());
                side.map(|side| std::mem::replace(&mut side.catch_up, reader))
            };
            drop(old);
        }
        match take {
            Take::Taken(taken) => self.give(uid, &taken),
            Take::Compacted(floor) => {
                self.cancel_compacted(uid, floor);
                false
            }
            Take::Behind | Take::Opening | Take::Ended => false,
        }
    }

    fn give(self: &Rc<Self>, uid: i64, taken: &Taken<Events>) -> bool {
        let (events, span, watch) = {
            let mut state = self.state.borrow_mut();
            let Some(watch) = state.watches.get_mut(&uid) else { return false };
            let Some(side) = &mut watch.feed else { return false };
            watch.next = taken.next;
            let (mut events, mut span) = (Vec::new(), None);
            for entry in &taken.entries {
                let before = events.len();
                let picked = entry.payload.iter().filter_map(|event| side.filter.pick(event));
                events.extend(picked.map(|event| got(event, entry.revision)));
                if events.len() > before {
                    let (first, _) = span.unwrap_or((entry.revision, entry.revision));
                    span = Some((first, entry.revision));
                }
            }
            side.quiet &= events.is_empty();
            (events, span, watch.wanted.id)
        };
        let Some((first, last)) = span else { return taken.more };
        let header = if taken.more { last } else { taken.next.prev() };
        let (_, commands) = self.state.borrow_mut().progress.admit(uid, first, last);
        self.say(Heard::Events { watch, header, events });
        self.show(uid, header);
        self.follow(commands);
        taken.more
    }

    fn cancel_compacted(self: &Rc<Self>, uid: i64, floor: Revision) {
        let Some(watch) = self.state.borrow().watches.get(&uid).map(|watch| watch.wanted.id) else { return };
        self.say(Heard::Compacted { watch, floor });
        self.remove(uid);
    }
}

/// An encoded event as its client reads it.
fn got(event: &[u8], revision: Revision) -> Got {
    let parsed = EventRef::parse(event).expect("the feed parsed it before");
    let kv = KeyValueRef::parse(parsed.kv).expect("the feed parsed it before");
    debug_assert_eq!(kv.mod_revision, revision.get());
    let prev = parsed.prev_kv.and_then(|prev| KeyValueRef::parse(prev).ok());
    Got {
        revision: Revision(kv.mod_revision),
        key: kv.key.to_vec(),
        is_delete: parsed.event_type == EventType::Delete,
        prev: prev.map(|prev| Revision(prev.mod_revision)),
    }
}
