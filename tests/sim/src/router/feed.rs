//! A feed: the product's machine over simulated streams, and its interface for readers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use kindred_engine::engine::{Event as EngineEvent, FeedOut};
use kindred_engine::version::Version;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router::feeds::raise::common;
use kindred_router::not_owned::NotOwned;
use kindred_router_core::cursor::{self, Limit, Look, Taken};
use kindred_router_core::feed_event::{Encoded, Events, FeedEvent, Filter, entry};
use kindred_router_core::feed_machine::{Command, Event, FeedMachine, Limits, Message, OPEN_MAX, TICK};
use kindred_router_core::feed_state::{FeedState, Stand, Take};
use kindred_router_core::gaps::{Gap, Passed};
use kindred_router_core::place::FeedKey;
use kindred_router_core::store::StoreIx;
use kindred_router_core::watch_merge::Entry;
use kindred_router_core::watch_session::Rung;
use kindred_wire::kv::{EventType, StoredEvent};

use super::Router;
use super::session::around::Bells;
use crate::history::{FeedRecord, Told};
use crate::messages::{CallError, Reply, Request, StreamIn, StreamOut};
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::world::{Answer, Answered, MS, Micros, SECOND, answer};

const RAISE_MAX: Micros = 3 * SECOND;
/// The bytes that a catch-up feed reads ahead of its readers, and how long a feed without readers lives. The product's
/// limits are larger.
const UNREAD_MAX: usize = 1_000;
const IDLE: Duration = Duration::from_secs(3);

/// A store's stream, and the messages that have arrived on it.
struct Source {
    store: StoreIx,
    stream: Option<Rc<Stream>>,
    messages: VecDeque<FeedOut>,
    /// Whether the stream has said where it begins.
    opened: bool,
    /// The number of attempts so far. Messages of earlier ones are ignored.
    attempt: u64,
}

/// The record of the feed since it was opened.
struct Recorded {
    /// Its place in the record.
    at: usize,
    covered: Revision,
}

/// Each reader stands for so many, so that feeds also put off wakes.
const READER_COUNTS: usize = 8;

pub struct Feed {
    pub key: FeedKey,
    /// The generation of the newest map that places watches here.
    generation: Cell<Epoch>,
    router: Weak<Router>,
    machine: RefCell<FeedMachine>,
    state: RefCell<FeedState>,
    sources: RefCell<Vec<Source>>,
    asking: RefCell<Vec<Answer<Result<Revision, ()>>>>,
    readers: RefCell<BTreeMap<u64, (Rc<Bells>, Rung)>>,
    next_reader: Cell<u64>,
    /// The time for which [`Event::Due`] is planned.
    due: Cell<Option<Instant>>,
    recorded: RefCell<Option<Recorded>>,
}

impl Feed {
    /// Begins a live feed or a catch-up feed.
    pub(super) fn begin(
        router: &Rc<Router>,
        key: FeedKey,
        generation: Epoch,
        start: Option<Revision>,
    ) -> Rc<Self> {
        let source =
            |store| Source { store, stream: None, messages: VecDeque::new(), opened: false, attempt: 0 };
        let ring_bytes = router.feeds.ring_bytes;
        let state = start.map_or_else(FeedState::live, |start| FeedState::catch_up(start, ring_bytes));
        let limits = Limits { ring_bytes, unread_bytes: UNREAD_MAX, idle: IDLE };
        let sources: Vec<_> = key.stores().map(source).collect();
        let feed = Rc::new(Self {
            key,
            generation: Cell::new(generation),
            router: Rc::downgrade(router),
            machine: RefCell::new(FeedMachine::new(sources.len(), limits)),
            state: RefCell::new(state),
            sources: RefCell::new(sources),
            asking: RefCell::default(),
            readers: RefCell::default(),
            next_reader: Cell::new(0),
            due: Cell::new(None),
            recorded: RefCell::default(),
        });
        let (this, world) = (feed.clone(), router.world.clone());
        router.world.spawn(router.life, async move {
            this.step(Event::Begin);
            while !this.has_ended() {
                world.sleep(Micros::try_from(TICK.as_micros()).unwrap_or(SECOND)).await;
                let has_readers = this.has_readers();
                this.step(Event::Tick { has_readers });
            }
        });
        feed
    }

    // ---- for readers

    /// The events at `position`.
    pub(super) fn take(self: &Rc<Self>, position: Revision, passed: &mut Passed, limit: Limit) -> Take {
        let (take, kick) = self.state.borrow_mut().take(position, passed, limit);
        if kick {
            self.kick();
        }
        take
    }

    /// The events behind `stand`, for all watches that rest there.
    pub(super) fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        self.state.borrow().look(stand, limit)
    }

    /// The events of these entries that a watch with this filter wants.
    pub(super) fn encoded(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded> {
        self.state.borrow_mut().encoded(entries, filter)
    }

    /// The position of readers that have everything.
    pub(super) fn present(&self) -> Option<Stand> {
        self.state.borrow().present()
    }

    /// The generation of the map that requests to its stores carry.
    pub(super) fn generation(&self) -> Epoch {
        self.generation.get()
    }

    /// Notes that a map of this generation places watches here.
    pub(super) fn is_placed_by(&self, generation: Epoch) {
        self.generation.set(self.generation.get().max(generation));
    }

    /// Whether it has ended because its keys move.
    pub(super) fn has_moved(&self) -> bool {
        self.state.borrow().moved
    }

    /// No event at or below this is still to come.
    pub(super) fn covered(&self) -> Option<Revision> {
        self.state.borrow().covered()
    }

    /// Asks for the feed to come to this revision.
    pub(super) fn want(self: &Rc<Self>, to: Revision) {
        if self.state.borrow_mut().want(to) {
            self.kick();
        }
    }

    /// The highest current revision of its stores, asked from now on.
    pub(super) fn current(self: &Rc<Self>) -> Answered<Result<Revision, ()>> {
        let (to, current) = answer();
        if !self.has_ended() {
            self.asking.borrow_mut().push(to);
            self.step(Event::CallersWait);
        }
        current
    }

    pub(super) fn is_near(&self, position: Revision, near: i64) -> bool {
        self.state.borrow().is_near(position, near)
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.readers.borrow().is_empty()
    }

    pub(super) fn end(&self) {
        self.state.borrow_mut().end();
        self.asking.borrow_mut().clear();
        self.close_all();
        self.wake_readers();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    fn count_readers(&self) {
        self.state.borrow_mut().readers = self.readers.borrow().len() * READER_COUNTS;
    }

    fn wake_readers(&self) {
        let readers: Vec<_> = self.readers.borrow().values().cloned().collect();
        readers.iter().for_each(|(bells, who)| bells.ring(*who));
    }

    fn kick(self: &Rc<Self>) {
        self.later(Event::Kick, 0);
    }

    fn later(self: &Rc<Self>, event: Event, delay: Micros) {
        let Some(router) = self.router.upgrade() else { return };
        let this = self.clone();
        router.world.after(delay, router.life, move || this.step(event));
    }

    // ---- its machine

    fn step(self: &Rc<Self>, event: Event) {
        let Some(router) = self.router.upgrade() else { return };
        if self.has_ended() {
            return;
        }
        let now = router.instant();
        let commands = self.machine.borrow_mut().step(now, &mut self.state.borrow_mut(), event);
        self.record(&router);
        commands.into_iter().for_each(|command| self.carry_out(&router, command));
        let due = self.machine.borrow().due();
        if let Some(due) = due.filter(|due| self.due.get().is_none_or(|planned| *due < planned)) {
            self.due.set(Some(due));
            let this = self.clone();
            let delay = due.saturating_duration_since(now).as_micros();
            router.world.after(Micros::try_from(delay).unwrap_or(0), router.life, move || {
                this.due.set(None);
                this.step(Event::Due);
            });
        }
        let this = self.clone();
        router.world.after(1, router.life, move || this.read_messages());
    }

    fn carry_out(self: &Rc<Self>, router: &Rc<Router>, command: Command) {
        match command {
            Command::Ask { delay } => self.ask(router, delay),
            Command::Open { at, from, delay } => self.open(router, at, from, delay),
            Command::CloseAll => self.close_all(),
            Command::Advance { at, to } => {
                let stream = self.sources.borrow()[at].stream.clone();
                if let Some(stream) = stream {
                    router.net.send_in(&stream, StreamIn::Advance(to));
                }
            }
            Command::WakeReaders => self.wake_readers(),
            Command::Retire => drop(router.feeds.retire(self)),
            Command::End => router.feeds.take_out(self),
            Command::Broke { .. } | Command::Lost { .. } => {}
            Command::Breach(error) => {
                router.world.note(format_args!("r{} a feed broke its contract: {error}", router.at));
            }
        }
    }

    /// Records what has become readable since the last time, and a new beginning.
    fn record(&self, router: &Router) {
        let (state, mut recorded) = (self.state.borrow(), self.recorded.borrow_mut());
        let Some(ring) = &state.ring else {
            *recorded = None;
            return;
        };
        let record = &mut *router.history.write();
        let known = recorded.get_or_insert_with(|| {
            let after = state.start.map_or_else(|| ring.covered(), Revision::prev);
            let parts = self.key.stores().enumerate();
            let parts = parts.map(|(at, store)| (store, self.key.ranges(at).to_vec())).collect();
            record.feeds.push(FeedRecord {
                after,
                generation: self.generation.get(),
                parts,
                told: Vec::new(),
            });
            Recorded { at: record.feeds.len() - 1, covered: after }
        });
        let told = &mut record.feeds[known.at].told;
        if ring.floor() > known.covered {
            told.push((router.world.order(), Told::Dropped(known.covered, ring.floor())));
            known.covered = ring.floor();
        }
        let all = Limit { last: None, bytes: usize::MAX };
        if let Look::Taken(taken) = cursor::look(ring, known.covered.next(), all) {
            for Entry { revision, payload, .. } in taken.entries {
                let keys = payload.iter().map(|event| event.key().to_vec()).collect();
                told.push((router.world.order(), Told::Emit(revision, keys)));
            }
        }
        if ring.covered() > known.covered {
            known.covered = ring.covered();
            told.push((router.world.order(), Told::Watermark(known.covered)));
        }
    }

    // ---- its stores

    /// Asks the stores for their common current revision, for all watches that wait for it now.
    fn ask(self: &Rc<Self>, router: &Rc<Router>, delay: Duration) {
        let asked = std::mem::take(&mut *self.asking.borrow_mut());
        let (this, router) = (self.clone(), router.clone());
        router.world.clone().spawn(router.life, async move {
            router.world.sleep(Micros::try_from(delay.as_micros()).unwrap_or(0)).await;
            let revision = router.feed_snapshot(&this.key, this.generation.get()).await;
            this.step(Event::Answered(revision.ok()));
            asked.into_iter().for_each(|waiting| waiting.send(revision));
            if !this.asking.borrow().is_empty() {
                this.step(Event::CallersWait);
            }
        });
    }

    pub(super) fn close_all(&self) {
        let mut streams = Vec::new();
        for source in self.sources.borrow_mut().iter_mut() {
            source.attempt += 1;
            source.messages.clear();
            streams.extend(source.stream.take());
        }
        if let Some(router) = self.router.upgrade() {
            streams.iter().for_each(|stream| router.net.close(stream));
        }
    }

    fn open(self: &Rc<Self>, router: &Rc<Router>, at: usize, from: Revision, delay: Duration) {
        let (old, store, attempt) = {
            let source = &mut self.sources.borrow_mut()[at];
            source.opened = false;
            source.messages.clear();
            source.attempt += 1;
            (source.stream.take(), source.store, source.attempt)
        };
        if let Some(old) = old {
            router.net.close(&old);
            if router.is(Sabotage::NoResume) {
                return;
            }
        }
        let (this, router) = (self.clone(), router.clone());
        router.world.clone().spawn(router.life, async move {
            router.world.sleep(Micros::try_from(delay.as_micros()).unwrap_or(0)).await;
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
            this.sources.borrow_mut()[at].stream = Some(stream.clone());
            let ranges = this.key.ranges(at).to_vec();
            let generation = this.generation.get();
            router.net.send_in(&stream, StreamIn::Feed { ranges, start: from, generation });
            router.world.sleep(Micros::try_from(OPEN_MAX.as_micros()).unwrap_or(SECOND)).await;
            if this.is_attempt(at, attempt) && !this.sources.borrow()[at].opened {
                this.step(Event::Message { at, message: Message::Broken("too late".to_owned()) });
            }
        });
    }

    fn is_attempt(&self, at: usize, attempt: u64) -> bool {
        !self.has_ended() && self.sources.borrow()[at].attempt == attempt
    }

    fn on_stream(self: &Rc<Self>, at: usize, message: StreamOut) {
        match message {
            StreamOut::Feed(out) => {
                self.sources.borrow_mut()[at].messages.push_back(out);
                self.read_messages();
            }
            StreamOut::Broken => {
                self.step(Event::Message { at, message: Message::Broken("broken".to_owned()) });
            }
            StreamOut::Refused(status) if NotOwned::of(&status).is_some() => {
                self.step(Event::Message { at, message: Message::Moved });
            }
            StreamOut::Refused(status) => {
                self.step(Event::Message { at, message: Message::Broken(status.message().to_owned()) });
            }
            _ => {}
        }
    }

    /// Reads the sources that may be read until they are empty.
    fn read_messages(self: &Rc<Self>) {
        loop {
            let next = {
                let (machine, mut sources) = (self.machine.borrow(), self.sources.borrow_mut());
                let mut ready = sources.iter_mut().enumerate().filter(|(at, _)| machine.reads(*at));
                ready.find_map(|(at, source)| {
                    let out = source.messages.pop_front()?;
                    let first = !std::mem::replace(&mut source.opened, true);
                    Some((at, first, out, source.stream.clone()))
                })
            };
            let Some((at, first, out, stream)) = next.filter(|_| !self.has_ended()) else { return };
            if let Some(stream) = stream {
                stream.read_one();
            }
            let attempt = self.sources.borrow()[at].attempt;
            let lossy = self.router.upgrade().is_some_and(|router| router.is(Sabotage::NoGaps));
            for message in messages(out, first, lossy) {
                if !self.is_attempt(at, attempt) {
                    break;
                }
                match message {
                    Message::More(batch, watermark) if self.shows_at_once() => self.show(batch, watermark),
                    message => self.step(Event::Message { at, message }),
                }
            }
        }
    }

    fn shows_at_once(&self) -> bool {
        self.router.upgrade().is_some_and(|router| router.is(Sabotage::NoWatermarks))
    }

    /// Publishes what a store sent without waiting for the others (a sabotage).
    fn show(&self, batch: Vec<Entry<Events>>, watermark: Option<Revision>) {
        let Some(router) = self.router.upgrade() else { return };
        let (mut state, mut recorded) = (self.state.borrow_mut(), self.recorded.borrow_mut());
        let (Some(ring), Some(known)) = (&mut state.ring, &mut *recorded) else { return };
        let record = &mut *router.history.write();
        for entry in batch {
            let keys = entry.payload.iter().map(|event| event.key().to_vec()).collect();
            let told = Told::Emit(entry.revision, keys);
            record.feeds[known.at].told.push((router.world.order(), told));
            let _ = ring.push(entry);
        }
        if let Some(revision) = watermark {
            record.feeds[known.at].told.push((router.world.order(), Told::Watermark(revision)));
            let _ = ring.watermark(revision);
        }
        known.covered = ring.covered();
        drop(state);
        self.wake_readers();
    }
}

impl Router {
    /// The highest current revision of the feed's stores, promised by all.
    async fn feed_snapshot(&self, key: &FeedKey, generation: Epoch) -> Result<Revision, ()> {
        let stores: Vec<_> = key.stores().collect();
        let one = |at: usize, to| {
            let request = Request::Raise { ranges: key.ranges(at).to_vec(), to, generation };
            let called = self.call(stores[at], request);
            async move {
                match called.await {
                    Ok(Reply::Raised { current, .. }) => Ok(current),
                    Ok(_) => Err(CallError::Down),
                    Err(error) => Err(error),
                }
            }
        };
        let raising = async {
            if self.is(Sabotage::LooseStart) {
                let currents = try_join_all((0..stores.len()).map(|at| one(at, Revision::ZERO))).await?;
                return Ok(currents[0]);
            }
            common(stores.len(), one).await?.ok_or(CallError::Down)
        };
        self.world.within(RAISE_MAX, raising).await.and_then(Result::ok).ok_or(())
    }
}

/// A shard's message as a router's source reads it.
fn messages(out: FeedOut, first: bool, lossy: bool) -> Vec<Message> {
    let gap = |gap: &kindred_engine::engine::Gap| Gap { after: gap.after, until: gap.until };
    let gaps: Vec<_> = out.gaps.iter().filter(|_| !lossy).map(gap).collect();
    if let Some(floor) = out.compacted {
        if lossy {
            return vec![Message::Opened(floor.prev(), gaps)];
        }
        let lost = gaps.iter().find(|gap| gap.until == floor && first).copied();
        return vec![lost.map_or(Message::Compacted(floor), |gap| Message::Lost(gap, gaps))];
    }
    let mut messages = Vec::new();
    if first {
        messages.push(Message::Opened(out.opened.unwrap_or(Revision::ZERO), gaps));
    }
    let batch = entries(&out.events);
    let watermark = out.watermark.max(out.moved);
    if !batch.is_empty() || watermark.is_some() {
        messages.push(Message::More(batch, watermark));
    }
    if out.moved.is_some() {
        messages.push(Message::Moved);
    }
    messages
}

/// Groups events into whole revisions, through the encoding that a shard would send.
fn entries(events: &[EngineEvent]) -> Vec<Entry<Events>> {
    let mut batch = Vec::new();
    for of_revision in events.chunk_by(|a, b| a.kv.mod_revision() == b.kv.mod_revision()) {
        let encoded = of_revision.iter().map(|event| {
            let whole = StoredEvent {
                event_type: if event.is_delete() { EventType::Delete } else { EventType::Put },
                kv: event.kv.encoded(),
                prev_kv: event.prev.as_ref().map(Version::encoded),
            };
            let mut bytes = Vec::with_capacity(whole.encoded_len());
            whole.encode_into(&mut bytes);
            FeedEvent::parse(Bytes::from(bytes)).expect("an engine's event is an event")
        });
        batch.push(entry(of_revision[0].kv.mod_revision(), encoded.collect()));
    }
    batch
}

/// A reader's hold on a feed. It keeps the feed alive and wakes the reader when there is more.
pub struct Reader {
    pub feed: Rc<Feed>,
    id: u64,
}

impl Reader {
    pub(super) fn new(feed: Rc<Feed>, bells: &Rc<Bells>, who: Rung) -> Self {
        let id = feed.next_reader.get();
        feed.next_reader.set(id + 1);
        feed.readers.borrow_mut().insert(id, (bells.clone(), who));
        feed.count_readers();
        // There may be something already.
        bells.ring(who);
        Self { feed, id }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.readers.borrow_mut().remove(&self.id);
        self.feed.count_readers();
        self.feed.kick();
    }
}
