//! One feed: its merge, its upstream streams and its ring, as `router/src/feeds/task.rs`, `feed.rs` and `source.rs`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use futures_util::future::try_join_all;
use kindred_engine::engine::{Event as EngineEvent, FeedOut};
use kindred_partition_config::ids::Revision;
use kindred_router_core::cursor::{self, Limit, Look, Taken};
use kindred_router_core::feed_event::{Events, FeedEvent, entry};
use kindred_router_core::feed_ring::FeedRing;
use kindred_router_core::place::FeedKey;
use kindred_router_core::store::StoreIx;
use kindred_router_core::watch_merge::{Command, Entry, Event, SourceIx, WatchMerge};
use kindred_wire::kv::{EventType, Pieces, StoredEvent};

use super::Router;
use crate::history::{FeedRecord, Told};
use crate::messages::{CallError, Reply, Request, StreamIn, StreamOut};
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::world::{Answer, Answered, Bell, MS, Micros, SECOND, answer};

const TICK: Micros = SECOND;
const REOPEN: Micros = 200 * MS;
const RAISE_MAX: Micros = 3 * SECOND;
/// How long a feed without readers is kept; the product's is longer.
const IDLE: Micros = 3 * SECOND;
/// Bytes of a catch-up that no reader has taken.
const UNREAD_MAX: usize = 1_000;
const STALLED_MAX: Micros = 5 * SECOND;
const BACKOFF_MIN: Micros = 20 * MS;
const BACKOFF_MAX: Micros = SECOND;
/// How long a store has to open a feed.
const OPEN_MAX: Micros = 5 * SECOND;

/// What lies at a reader's position.
pub enum Take {
    /// The next revisions, or none yet.
    Taken(Taken<Events>),
    /// It lies before what this feed holds.
    Behind,
    /// Nobody has it any more.
    Compacted(Revision),
    /// The feed is being opened.
    Opening,
    /// Read another one.
    Ended,
}

struct Slot {
    store: StoreIx,
    stream: Option<Rc<Stream>>,
    messages: VecDeque<FeedOut>,
    /// The stream has said where it begins.
    opened: bool,
    live: bool,
    after: Revision,
    paused: bool,
    failures: u32,
    asked: Option<Micros>,
    /// Attempts so far: what belongs to an earlier one is not heard.
    attempt: u64,
}

struct State {
    ring: Option<FeedRing<Events>>,
    compacted: Revision,
    ended: bool,
    wanted: Revision,
    read_to: Revision,
    asking: Vec<Answer<Result<Revision, ()>>>,
    readers: BTreeMap<u64, Rc<Bell>>,
    next_reader: u64,
    slots: Vec<Slot>,
    merge: Option<WatchMerge<Events>>,
    raising: bool,
    unread: VecDeque<(Revision, usize)>,
    unread_bytes: usize,
    stalled: Option<Micros>,
    idle: Option<Micros>,
    /// Its place in the record, of this life of the feed.
    record: usize,
}

/// One feed.
pub struct Feed {
    /// What it is of.
    pub key: FeedKey,
    start: Option<Revision>,
    router: Weak<Router>,
    state: RefCell<State>,
    /// Messages that wait are read by a turn that is planned.
    turning: Cell<bool>,
}

impl Feed {
    /// Begins a feed: the live one, or a catch-up.
    pub(super) fn begin(router: &Rc<Router>, key: FeedKey, start: Option<Revision>) -> Rc<Self> {
        let slot = |store| Slot {
            store,
            stream: None,
            messages: VecDeque::new(),
            opened: false,
            live: false,
            after: Revision::ZERO,
            paused: false,
            failures: 0,
            asked: None,
            attempt: 0,
        };
        let state = State {
            ring: start.map(|start| FeedRing::new(start.prev(), router.feeds.ring_bytes)),
            compacted: Revision::ZERO,
            ended: false,
            wanted: Revision::ZERO,
            read_to: Revision::ZERO,
            asking: Vec::new(),
            readers: BTreeMap::new(),
            next_reader: 0,
            slots: key.stores().map(slot).collect(),
            merge: None,
            raising: false,
            unread: VecDeque::new(),
            unread_bytes: 0,
            stalled: None,
            idle: None,
            record: usize::MAX,
        };
        let feed = Rc::new(Self {
            key,
            start,
            router: Rc::downgrade(router),
            state: RefCell::new(state),
            turning: Cell::new(false),
        });
        let (this, world) = (feed.clone(), router.world.clone());
        router.world.spawn(router.life, async move {
            match start {
                Some(start) => this.open(start.prev()),
                None => this.ask(0),
            }
            while !this.state.borrow().ended {
                world.sleep(TICK).await;
                this.on_tick();
            }
        });
        feed
    }

    // ---- for readers

    /// What lies at `position`.
    pub(super) fn take(self: &Rc<Self>, position: Revision, limit: Limit) -> Take {
        let mut state = self.state.borrow_mut();
        if position < state.compacted {
            return Take::Compacted(state.compacted);
        }
        if state.ended {
            return Take::Ended;
        }
        let Some(ring) = &state.ring else { return Take::Opening };
        let Look::Taken(taken) = cursor::look(ring, position, limit) else { return Take::Behind };
        if self.start.is_some() && taken.next > state.read_to {
            state.read_to = taken.next;
            drop(state);
            self.kick();
        }
        Take::Taken(taken)
    }

    /// No event at or below this is still to come.
    pub(super) fn covered(&self) -> Option<Revision> {
        self.state.borrow().ring.as_ref().map(FeedRing::covered)
    }

    /// Asks for the feed to come to this revision.
    pub(super) fn want(self: &Rc<Self>, to: Revision) {
        let higher = {
            let mut state = self.state.borrow_mut();
            let higher = to > state.wanted;
            state.wanted = state.wanted.max(to);
            higher
        };
        if higher {
            self.kick();
        }
    }

    /// The highest current revision of its stores, asked from now on.
    pub(super) fn current(self: &Rc<Self>) -> Answered<Result<Revision, ()>> {
        let (to, current) = answer();
        let ask = {
            let mut state = self.state.borrow_mut();
            if state.ended {
                return current;
            }
            state.asking.push(to);
            !state.raising && state.merge.is_some()
        };
        if ask {
            self.ask(0);
        }
        current
    }

    pub(super) fn is_near(&self, position: Revision, near: i64) -> bool {
        let state = self.state.borrow();
        let Some(ring) = state.ring.as_ref().filter(|_| !state.ended) else { return false };
        position >= state.compacted
            && position > ring.floor()
            && position.get().saturating_sub(ring.covered().get()) <= near
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.state.borrow().readers.is_empty()
    }

    pub(super) fn end(&self) {
        {
            let mut state = self.state.borrow_mut();
            state.ended = true;
            state.asking.clear();
        }
        self.drop_sources();
        self.wake_readers();
    }

    pub(super) fn drop_sources(&self) {
        let streams: Vec<_> =
            self.state.borrow_mut().slots.iter_mut().filter_map(|slot| slot.stream.take()).collect();
        if let Some(router) = self.router.upgrade() {
            streams.iter().for_each(|stream| router.net.close(stream));
        }
    }

    fn wake_readers(&self) {
        let readers: Vec<_> = self.state.borrow().readers.values().cloned().collect();
        readers.iter().for_each(|bell| bell.ring());
    }

    // ---- its stores

    /// Asks the stores for their common current revision, for all who wait for it by now.
    fn ask(self: &Rc<Self>, delay: Micros) {
        let Some(router) = self.router.upgrade() else { return };
        self.state.borrow_mut().raising = true;
        let this = self.clone();
        router.world.clone().spawn(router.life, async move {
            // Whoever made the feed asks for its revision at once: one question then serves both.
            router.world.sleep(delay).await;
            let asked = std::mem::take(&mut this.state.borrow_mut().asking);
            let revision = router.feed_snapshot(&this.key).await;
            this.on_snapshot(revision, asked);
        });
    }

    fn on_snapshot(
        self: &Rc<Self>,
        revision: Result<Revision, ()>,
        asked: Vec<Answer<Result<Revision, ()>>>,
    ) {
        let opens = {
            let mut state = self.state.borrow_mut();
            state.raising = false;
            state.merge.is_none() && !state.ended
        };
        if let (Ok(revision), true) = (revision, opens) {
            self.open(revision);
        }
        for waiting in asked {
            waiting.send(revision);
        }
        let (again, delay) = {
            let state = self.state.borrow();
            let unopened = state.merge.is_none();
            let again = !state.raising && !state.ended && (unopened || !state.asking.is_empty());
            (again, if unopened { REOPEN } else { 0 })
        };
        if again {
            self.ask(delay);
        }
    }

    fn open(self: &Rc<Self>, after: Revision) {
        let Some(router) = self.router.upgrade() else { return };
        let ring_bytes = router.feeds.ring_bytes;
        let (slots, wanted) = {
            let mut state = self.state.borrow_mut();
            state.merge = Some(WatchMerge::new(state.slots.len(), after, ring_bytes / 4));
            state.ring.get_or_insert_with(|| FeedRing::new(after, ring_bytes));
            let parts = self.key.stores().enumerate();
            let parts = parts.map(|(at, store)| (store, self.key.ranges(at).to_vec())).collect();
            let mut record = router.history.write();
            state.record = record.feeds.len();
            record.feeds.push(FeedRecord { after, parts, told: Vec::new() });
            (state.slots.len(), state.wanted)
        };
        for at in 0..slots {
            self.step(Event::SourceLost { source: SourceIx(at) });
        }
        self.step(Event::Want { to: wanted });
        self.wake_readers();
    }

    fn step(self: &Rc<Self>, event: Event<Events>) {
        let stepped = {
            let mut state = self.state.borrow_mut();
            let Some(merge) = &mut state.merge else { return };
            merge.step(event)
        };
        match stepped {
            Ok(commands) => self.follow(commands),
            Err(error) => {
                if let Some(router) = self.router.upgrade() {
                    router.world.note(format_args!("r{} a feed broke its contract: {error}", router.at));
                }
                self.breach();
            }
        }
    }

    fn breach(self: &Rc<Self>) {
        let merged = self.state.borrow().merge.as_ref().map_or(Revision::ZERO, WatchMerge::merged);
        self.begin_anew(merged.next().next());
    }

    fn follow(self: &Rc<Self>, commands: Vec<Command<Events>>) {
        let Some(router) = self.router.upgrade() else { return };
        let mut told = Vec::new();
        for command in commands {
            match command {
                Command::Emit(_) | Command::Watermark(_) => told.push(command),
                Command::Advance { source, to } => {
                    let stream = {
                        let slot = &mut self.state.borrow_mut().slots[source.0];
                        slot.asked = Some(router.world.now());
                        slot.stream.clone()
                    };
                    if let Some(stream) = stream {
                        router.net.send_in(&stream, StreamIn::Advance(to));
                    }
                }
                Command::Resume { source, from } => self.open_source(source.0, from),
                Command::Pause(source) => self.state.borrow_mut().slots[source.0].paused = true,
                Command::Unpause(source) => {
                    self.state.borrow_mut().slots[source.0].paused = false;
                    self.plan_turn();
                }
                Command::Lagging(_) => {}
                Command::Compacted { floor } => return self.begin_anew(floor),
                Command::BeginAnew => return self.begin_anew(Revision::ZERO),
            }
        }
        if !told.is_empty() {
            self.tell(told);
        }
    }

    fn tell(self: &Rc<Self>, told: Vec<Command<Events>>) {
        let Some(router) = self.router.upgrade() else { return };
        let broken = {
            let state = &mut *self.state.borrow_mut();
            let Some(ring) = &mut state.ring else { return };
            let mut record = router.history.write();
            let mut broken = false;
            for command in told {
                let order = router.world.order();
                let told = match &command {
                    Command::Emit(entry) => {
                        let keys = entry.payload.iter().map(|event| event.key().to_vec()).collect();
                        Told::Emit(entry.revision, keys)
                    }
                    Command::Watermark(revision) => Told::Watermark(*revision),
                    _ => continue,
                };
                record.feeds[state.record].told.push((order, told));
                let taken = match command {
                    Command::Emit(entry) => {
                        if self.start.is_some() {
                            state.unread.push_back((entry.revision, entry.bytes));
                            state.unread_bytes += entry.bytes;
                            ring.shrink(
                                state.unread_bytes.saturating_add(router.feeds.ring_bytes.min(UNREAD_MAX)),
                            );
                        }
                        ring.push(entry)
                    }
                    Command::Watermark(revision) => ring.watermark(revision),
                    _ => Ok(()),
                };
                broken |= taken.is_err();
            }
            // The record of a feed whose events are shown as they come is what its readers see.
            broken && !router.is(Sabotage::NoWatermarks)
        };
        if broken {
            return self.breach();
        }
        self.wake_readers();
    }

    fn open_source(self: &Rc<Self>, at: usize, from: Revision) {
        let Some(router) = self.router.upgrade() else { return };
        let (old, store, failures, attempt) = {
            let slot = &mut self.state.borrow_mut().slots[at];
            slot.live = false;
            slot.opened = false;
            slot.paused = false;
            slot.asked = None;
            slot.after = from.prev();
            slot.messages.clear();
            slot.attempt += 1;
            (slot.stream.take(), slot.store, slot.failures, slot.attempt)
        };
        if let Some(old) = old {
            router.net.close(&old);
            if router.is(Sabotage::NoResume) {
                return;
            }
        }
        let delay = match failures {
            0 => 0,
            n => (BACKOFF_MIN << (n.min(16) - 1)).min(BACKOFF_MAX),
        };
        let this = self.clone();
        router.world.clone().spawn(router.life, async move {
            router.world.sleep(delay).await;
            while !router.net.is_up(router.at, store) {
                router.world.sleep(50 * MS).await;
            }
            if !this.is_attempt(at, attempt) {
                return;
            }
            let to = this.clone();
            let hear = move |message| {
                if to.is_attempt(at, attempt) {
                    to.on_stream(at, message);
                }
            };
            let stream = router.net.open(router.at, router.life, store, Box::new(hear));
            this.state.borrow_mut().slots[at].stream = Some(stream.clone());
            let ranges = this.key.ranges(at).to_vec();
            router.net.send_in(&stream, StreamIn::Feed { ranges, start: from });
            router.world.sleep(OPEN_MAX).await;
            let late = this.is_attempt(at, attempt) && !this.state.borrow().slots[at].opened;
            if late {
                this.on_broken(at);
            }
        });
    }

    fn is_attempt(&self, at: usize, attempt: u64) -> bool {
        let state = self.state.borrow();
        !state.ended && state.slots[at].attempt == attempt
    }

    fn on_stream(self: &Rc<Self>, at: usize, message: StreamOut) {
        match message {
            StreamOut::Feed(out) => {
                self.state.borrow_mut().slots[at].messages.push_back(out);
                self.read_messages();
            }
            StreamOut::Broken => self.on_broken(at),
            StreamOut::Watch(_) => {}
        }
    }

    /// Reads sources that are not paused, as long as there is something.
    fn read_messages(self: &Rc<Self>) {
        loop {
            let next = {
                let state = &mut *self.state.borrow_mut();
                if state.ended || state.unread_bytes >= UNREAD_MAX {
                    None
                } else {
                    let slots = state.slots.iter_mut().enumerate();
                    let mut ready = slots.filter(|(_, slot)| !slot.paused && !slot.messages.is_empty());
                    ready
                        .next()
                        .and_then(|(at, slot)| Some((at, slot.messages.pop_front()?, slot.stream.clone())))
                }
            };
            let Some((at, out, stream)) = next else { return };
            if let Some(stream) = stream {
                stream.read_one();
            }
            self.on_message(at, out);
        }
    }

    fn plan_turn(self: &Rc<Self>) {
        let Some(router) = self.router.upgrade() else { return };
        if !self.turning.replace(true) {
            let this = self.clone();
            router.world.after(1, router.life, move || {
                this.turning.set(false);
                this.read_messages();
            });
        }
    }

    fn on_message(self: &Rc<Self>, at: usize, out: FeedOut) {
        let source = SourceIx(at);
        if let Some(floor) = out.compacted {
            return self.step(Event::Compacted { source, floor });
        }
        let first = !std::mem::replace(&mut self.state.borrow_mut().slots[at].opened, true);
        if first {
            let attempt = self.state.borrow().slots[at].attempt;
            self.on_opened(at, out.opened.unwrap_or(Revision::ZERO));
            if !self.is_attempt(at, attempt) {
                return;
            }
        }
        let after = self.state.borrow().slots[at].after;
        let mut batch = entries(&out.events);
        batch.retain(|Entry { revision, .. }| *revision > after);
        if self.router.upgrade().is_some_and(|router| router.is(Sabotage::NoWatermarks)) {
            // As if nobody else had anything.
            let mut commands: Vec<_> = batch.into_iter().map(Command::Emit).collect();
            commands.extend(out.watermark.map(Command::Watermark));
            return self.tell(commands);
        }
        if !batch.is_empty() {
            self.step(Event::Events { source, batch });
        }
        if let Some(revision) = out.watermark.filter(|watermark| *watermark > after) {
            self.step(Event::Watermark { source, revision });
        }
    }

    fn on_opened(self: &Rc<Self>, at: usize, after: Revision) {
        let from = {
            let slot = &mut self.state.borrow_mut().slots[at];
            if after > slot.after {
                None
            } else {
                slot.live = true;
                slot.failures = 0;
                Some(slot.after.next())
            }
        };
        match from {
            Some(from) => self.step(Event::SourceResumed { source: SourceIx(at), from }),
            None => self.on_broken(at),
        }
    }

    fn on_broken(self: &Rc<Self>, at: usize) {
        let (live, after) = {
            let slot = &mut self.state.borrow_mut().slots[at];
            slot.failures = slot.failures.saturating_add(1);
            (slot.live, slot.after)
        };
        if live {
            self.step(Event::SourceLost { source: SourceIx(at) });
        } else {
            self.open_source(at, after.next());
        }
    }

    fn begin_anew(self: &Rc<Self>, floor: Revision) {
        let Some(router) = self.router.upgrade() else { return };
        self.drop_sources();
        let asks = {
            let mut state = self.state.borrow_mut();
            state.merge = None;
            for slot in &mut state.slots {
                slot.attempt += 1;
                slot.messages.clear();
            }
            state.compacted = state.compacted.max(floor);
            state.ring = state.ring.take().filter(|_| self.start.is_some());
            !state.raising
        };
        if self.start.is_some() {
            router.feeds.take_out(self);
        } else {
            if asks {
                self.ask(0);
            }
            self.wake_readers();
        }
    }

    fn kick(self: &Rc<Self>) {
        let Some(router) = self.router.upgrade() else { return };
        let this = self.clone();
        router.world.after(0, router.life, move || this.on_kick());
    }

    fn on_kick(self: &Rc<Self>) {
        let wanted = {
            let state = &mut *self.state.borrow_mut();
            if state.ended {
                return;
            }
            let read_to = state.read_to;
            while let Some((_, bytes)) = state.unread.pop_front_if(|(revision, _)| *revision < read_to) {
                state.unread_bytes -= bytes;
            }
            state.stalled = None;
            state.wanted
        };
        self.step(Event::Want { to: wanted });
        if self.start.is_some()
            && let Some(router) = self.router.upgrade()
        {
            router.feeds.retire(self);
        }
        self.read_messages();
    }

    fn on_tick(self: &Rc<Self>) {
        let Some(router) = self.router.upgrade() else { return };
        let now = router.world.now();
        let (retire, stalled, again) = {
            let state = &mut *self.state.borrow_mut();
            if state.ended {
                return;
            }
            let mut retire = false;
            if state.readers.is_empty() {
                retire = now - *state.idle.get_or_insert(now) >= IDLE;
            } else {
                state.idle = None;
            }
            let mut stalled = false;
            if state.unread_bytes < UNREAD_MAX {
                state.stalled = None;
            } else {
                stalled = now - *state.stalled.get_or_insert(now) >= STALLED_MAX;
            }
            let mut again = Vec::new();
            for (at, slot) in state.slots.iter_mut().enumerate() {
                if slot.asked.take_if(|asked| now - *asked >= TICK).is_some() {
                    again.push(SourceIx(at));
                }
            }
            (retire, stalled, again)
        };
        if retire {
            router.feeds.retire(self);
        }
        if stalled {
            router.feeds.take_out(self);
        }
        for source in again {
            self.step(Event::AdvanceFailed { source });
            self.step(Event::Retry { source });
        }
    }
}

impl Router {
    /// The highest current revision of the feed's stores, promised by all (`router/src/feeds/raise.rs`).
    async fn feed_snapshot(&self, key: &FeedKey) -> Result<Revision, ()> {
        let one = |at: usize, store, to| async move {
            let request = Request::Raise { ranges: key.ranges(at).to_vec(), to };
            match self.call(store, request).await {
                Ok(Reply::Raised { current, .. }) => Ok(current),
                Ok(_) => Err(CallError::Down),
                Err(error) => Err(error),
            }
        };
        let raising = async {
            let asked = key.stores().enumerate().map(|(at, store)| one(at, store, Revision::ZERO));
            let currents = try_join_all(asked).await?;
            if self.is(Sabotage::LooseStart) {
                return Ok(currents[0]);
            }
            let revision = currents.iter().copied().max().unwrap_or(Revision::ZERO);
            let below = key.stores().enumerate().zip(&currents).filter(|(_, current)| **current < revision);
            let raised = try_join_all(below.map(|((at, store), _)| one(at, store, revision))).await?;
            if raised.iter().any(|current| *current < revision) {
                return Err(CallError::Down);
            }
            Ok::<_, CallError>(revision)
        };
        self.world.within(RAISE_MAX, raising).await.and_then(Result::ok).ok_or(())
    }
}

/// Events as whole revisions, through the bytes that a shard would send.
fn entries(events: &[EngineEvent]) -> Vec<Entry<Events>> {
    let mut batch = Vec::new();
    for of_revision in events.chunk_by(|a, b| a.kv.mod_revision() == b.kv.mod_revision()) {
        let encoded = of_revision.iter().map(|event| {
            let whole = StoredEvent {
                event_type: if event.is_delete() { EventType::Delete } else { EventType::Put },
                kv: Pieces(event.kv.encoded()),
                prev_kv: event.prev.as_ref().map(|prev| Pieces(prev.encoded())),
            };
            let mut bytes = Vec::with_capacity(whole.encoded_len());
            whole.encode_into(&mut bytes);
            FeedEvent::parse(Bytes::from(bytes)).expect("an engine's event is an event")
        });
        batch.push(entry(of_revision[0].kv.mod_revision(), encoded.collect()));
    }
    batch
}

/// A reader's hold on a feed: it is woken when there is more, and keeps the feed alive.
pub struct Reader {
    /// The feed.
    pub feed: Rc<Feed>,
    id: u64,
}

impl Reader {
    pub(super) fn new(feed: Rc<Feed>, wake: &Rc<Bell>) -> Self {
        let id = {
            let mut state = feed.state.borrow_mut();
            let id = state.next_reader;
            state.next_reader += 1;
            state.readers.insert(id, wake.clone());
            id
        };
        wake.ring();
        Self { feed, id }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.state.borrow_mut().readers.remove(&self.id);
        self.feed.kick();
    }
}
