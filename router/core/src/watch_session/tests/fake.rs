//! A router in which only happens what a test says. Its feeds are the product's [`FeedState`]s that the test writes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::{Key, KeyRange};
use kindred_partition_config::kind::{KindPrefix, KindScheme};
use kindred_partition_config::map::{Partition, PartitionMap, Placement, StoreIdx};
use kindred_wire::kv::{EventRef, EventType, KeyValueRef, encode_key_value};
use kindred_wire::peek::{WatchCreateRequest, WatchRequest};

use super::super::{Ask, Count, FeedNo, FeedReader, Origin, Outside, Rung};
use crate::cursor::{Limit, Taken};
use crate::feed_event::{Encoded, Events, FeedEvent, Filter, entry};
use crate::feed_ring::FeedRing;
use crate::feed_state::{FeedState, Stand, Take};
use crate::gaps::{Gap, Passed};
use crate::place::FeedKey;
use crate::routes::Routes;
use crate::store::{StoreIx, StoreKind};
use crate::watch_merge::Entry;

pub const A: StoreIx = StoreIx(0);
pub const B: StoreIx = StoreIx(1);
pub const ETCD: StoreIx = StoreIx(2);
const NAMES: [&str; 3] = ["A", "B", "etcd"];

/// Pods below and from `m` on these stores, config maps on that one, secrets on a stock etcd, all else on A.
pub fn map(generation: u64, pods: [StoreIx; 2], configmaps: StoreIx) -> Arc<Routes> {
    let scheme = KindScheme::new("/registry");
    let part = |name: &str, start: Option<&str>, end: Option<&str>, store: StoreIx| {
        let kind = scheme.resolve(name).unwrap();
        let at = |text: &str| Key::from(format!("{kind}{text}").as_str());
        let start = start.map_or_else(|| kind.as_key().clone(), at);
        let range = KeyRange::Span { start, end: Some(end.map_or_else(|| kind.end(), at)) };
        let placement = Placement::Single(StoreIdx(u16::try_from(store.0).unwrap()));
        Partition { range, kind: Some(kind), placement, epoch: Epoch(generation) }
    };
    let parts = vec![
        part("pods", None, Some("m"), pods[0]),
        part("pods", Some("m"), None, pods[1]),
        part("configmaps", None, None, configmaps),
        part("secrets", None, None, ETCD),
    ];
    let map = PartitionMap::filled(parts, StoreIdx(0), Epoch(generation)).unwrap();
    let kind = |at| if at == ETCD.0 { StoreKind::Etcd } else { StoreKind::Shard };
    let stores = NAMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), kind(at))).collect();
    Arc::new(Routes::new(map, scheme, stores, A).of_generation(Epoch(generation)))
}

/// A key of the registry.
pub fn key(name: &str) -> Bytes {
    format!("/registry/{name}").into_bytes().into()
}

/// An encoded put at this revision, with the key-value before it, and with a value of so many bytes.
pub fn sized(name: &str, revision: i64, bytes: usize) -> Bytes {
    event(EventType::Put, name, revision, &vec![b'x'; bytes])
}

pub fn put(name: &str, revision: i64) -> Bytes {
    event(EventType::Put, name, revision, b"value")
}

pub fn delete(name: &str, revision: i64) -> Bytes {
    event(EventType::Delete, name, revision, b"")
}

fn event(event_type: EventType, name: &str, revision: i64, value: &[u8]) -> Bytes {
    let key = key(name);
    let now = KeyValueRef { key: &key, mod_revision: revision, value, ..Default::default() };
    let before = KeyValueRef { key: &key, mod_revision: 1, value: b"old", ..Default::default() };
    let (kv, prev_kv) = (encode_key_value(&now), encode_key_value(&before));
    let mut encoded = Vec::new();
    EventRef { event_type, kv: &kv, prev_kv: Some(&prev_kv) }.encode_into(&mut encoded);
    encoded.into()
}

type Bells = Rc<RefCell<BTreeSet<Rung>>>;

/// A feed that the test writes. Whoever reads it hears its bell each time.
#[derive(Debug)]
pub struct Feed {
    pub key: FeedKey,
    state: RefCell<FeedState>,
    pub generation: Cell<Epoch>,
    readers: RefCell<Vec<Rung>>,
    bells: Bells,
}

impl Feed {
    fn write<T>(&self, change: impl FnOnce(&mut FeedState) -> T) -> T {
        let done = change(&mut self.state.borrow_mut());
        self.bells.borrow_mut().extend(self.readers.borrow().iter().copied());
        done
    }

    fn ring<T>(&self, change: impl FnOnce(&mut FeedRing<Events>) -> T) -> T {
        self.write(|state| change(state.ring.as_mut().expect("the feed is open")))
    }

    /// Opens a live feed behind this revision, with room for so many bytes.
    pub fn open(&self, after: i64, bytes: usize) {
        self.write(|state| state.ring = Some(FeedRing::new(Revision(after), bytes)));
    }

    /// All events of one revision.
    pub fn gets(&self, revision: i64, events: &[Bytes]) {
        let events = events.iter().map(|event| FeedEvent::parse(event.clone()).unwrap()).collect();
        self.ring(|ring| ring.push(entry(Revision(revision), events))).unwrap();
    }

    /// One put at each of these revisions, of a key of its Kind.
    pub fn puts(&self, puts: &[(&str, i64)]) {
        let kind =
            if self.key.ranges(0)[0].start().starts_with(b"/registry/pods") { "pods" } else { "configmaps" };
        puts.iter()
            .for_each(|(name, revision)| self.gets(*revision, &[put(&format!("{kind}/{name}"), *revision)]));
    }

    pub fn watermark(&self, revision: i64) {
        self.ring(|ring| ring.watermark(Revision(revision))).unwrap();
    }

    pub fn compact(&self, floor: i64) {
        self.write(|state| state.compacted = Revision(floor));
    }

    /// A store comes back from an unclean restart.
    pub fn loses(&self, after: i64, until: i64) {
        self.write(|state| state.gaps.note(Gap { after: Revision(after), until: Revision(until) }));
    }

    /// What was there is gone up to this floor, and the feed is being opened again.
    pub fn begins_anew(&self, floor: i64) {
        self.write(|state| (state.compacted, state.ring) = (Revision(floor), None));
    }

    pub fn ends(&self) {
        self.write(FeedState::end);
    }

    /// It ends because its keys are moving.
    pub fn moves(&self) {
        self.write(|state| state.moved = true);
        self.ends();
    }

    pub fn wanted(&self) -> i64 {
        self.state.borrow().wanted.get()
    }

    pub fn start(&self) -> Option<i64> {
        self.state.borrow().start.map(Revision::get)
    }

    pub fn readers(&self) -> usize {
        self.readers.borrow().len()
    }
}

/// A hold on a feed.
#[derive(Debug)]
pub struct Reader {
    feed: Rc<Feed>,
    bell: Rung,
}

impl Reader {
    fn of(feed: &Rc<Feed>, bell: Rung, generation: Epoch) -> Self {
        feed.generation.set(generation);
        feed.readers.borrow_mut().push(bell);
        // There may be something already.
        feed.bells.borrow_mut().insert(bell);
        Self { feed: feed.clone(), bell }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.feed.readers.borrow_mut();
        let at = readers.iter().position(|bell| *bell == self.bell).unwrap();
        readers.remove(at);
    }
}

impl FeedReader for Reader {
    fn take(&self, position: Revision, passed: &mut Passed, limit: Limit) -> Take {
        self.feed.state.borrow_mut().take(position, passed, limit).0
    }

    fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        self.feed.state.borrow().look(stand, limit)
    }

    fn encoded(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded> {
        self.feed.state.borrow_mut().encoded(entries, filter)
    }

    fn present(&self) -> Option<Stand> {
        self.feed.state.borrow().present()
    }

    fn covered(&self) -> Option<Revision> {
        self.feed.state.borrow().covered()
    }

    fn want(&self, to: Revision) {
        let _ = self.feed.state.borrow_mut().want(to);
    }

    fn generation(&self) -> Epoch {
        self.feed.generation.get()
    }

    fn is_placed_by(&self, generation: Epoch) {
        self.feed.generation.set(generation);
    }

    fn has_ended(&self) -> bool {
        self.feed.state.borrow().ended
    }

    fn has_moved(&self) -> bool {
        self.feed.state.borrow().moved
    }
}

/// What a session uses.
#[derive(Debug)]
pub struct Fake {
    pub routes: Arc<Routes>,
    pub away: BTreeSet<StoreIx>,
    pub compacted: i64,
    /// Live feeds are open behind this revision as soon as they are there; `None` if the test opens them.
    pub open_after: Option<i64>,
    /// A gap that live feeds know from their beginning on, because another session has begun them.
    pub lost: Option<Gap>,
    /// Every feed and catch-up, in the order in which they began.
    pub feeds: Vec<Rc<Feed>>,
    /// Whether there is room for requests to stores.
    pub has_room: bool,
    bells: Bells,
    live: BTreeMap<FeedKey, Rc<Feed>>,
    /// What the session has done.
    pub did: Vec<String>,
    /// The numbers of the open streams.
    pub streams: BTreeMap<StoreIx, u64>,
    /// Questions without an answer.
    pub asks: VecDeque<Ask>,
    pub shown: i64,
    pub watchers: i64,
    /// What watches were sent: the revision of the first event, if it was new.
    pub delivered: Vec<(i64, Option<Revision>)>,
    /// How many watches were read one by one.
    pub turns: usize,
}

impl Fake {
    pub fn new(routes: Arc<Routes>) -> Self {
        Self {
            routes,
            away: BTreeSet::new(),
            compacted: 0,
            open_after: Some(10),
            lost: None,
            feeds: Vec::new(),
            has_room: true,
            bells: Bells::default(),
            live: BTreeMap::new(),
            did: Vec::new(),
            streams: BTreeMap::new(),
            asks: VecDeque::new(),
            shown: 0,
            watchers: 0,
            delivered: Vec::new(),
            turns: 0,
        }
    }

    pub fn has_rung(&self) -> bool {
        !self.bells.borrow().is_empty()
    }

    fn begin(&mut self, key: &FeedKey, state: FeedState) -> Rc<Feed> {
        let feed = Rc::new(Feed {
            key: key.clone(),
            state: RefCell::new(state),
            generation: Cell::new(Epoch::NONE),
            readers: RefCell::default(),
            bells: self.bells.clone(),
        });
        self.feeds.push(feed.clone());
        feed
    }
}

pub fn name(store: StoreIx) -> &'static str {
    NAMES[store.0]
}

/// A request to a store in words. An id is the session's number, and how often the watch was placed elsewhere.
fn words(request: &Bytes) -> String {
    let id = |id: i64| match id >> 40 {
        0 => id.to_string(),
        places => format!("{}/{places}", id & ((1 << 40) - 1)),
    };
    match WatchRequest::parse(request).expect("the session writes requests") {
        WatchRequest::Create(create) => {
            let key = String::from_utf8_lossy(create.key);
            let from = create.start_revision;
            format!("create {} {} from {from}", id(create.watch_id), key.trim_start_matches("/registry/"))
        }
        WatchRequest::Cancel(cancel) => format!("cancel {}", id(cancel.watch_id)),
        WatchRequest::Progress => "progress".to_owned(),
        WatchRequest::Nothing => "nothing".to_owned(),
    }
}

/// The keys that the client may not watch begin so.
const FORBIDDEN: &[u8] = b"/registry/tokens";

impl Outside for Fake {
    type Reader = Reader;

    fn may_watch(&self, key: &[u8], _: &[u8]) -> Result<(), String> {
        if key.starts_with(FORBIDDEN) { Err("forbidden".to_owned()) } else { Ok(()) }
    }

    fn routes(&self) -> Arc<Routes> {
        self.routes.clone()
    }

    fn is_shard(&self, store: StoreIx) -> bool {
        store != ETCD
    }

    fn away(&self, store: StoreIx) -> Option<String> {
        self.away.contains(&store).then(|| format!("{} is away", name(store)))
    }

    fn compacted(&self) -> Revision {
        Revision(self.compacted)
    }

    fn live(&mut self, key: &FeedKey, generation: Epoch, no: FeedNo) -> Reader {
        let there = self.live.get(key).filter(|feed| !feed.state.borrow().ended).cloned();
        let feed = there.unwrap_or_else(|| {
            let ring = self.open_after.map(|after| FeedRing::new(Revision(after), 16 << 20));
            let mut state = FeedState { ring, ..FeedState::live() };
            self.lost.into_iter().for_each(|gap| assert!(state.gaps.note(gap)));
            self.begin(key, state)
        });
        self.live.insert(key.clone(), feed.clone());
        Reader::of(&feed, Rung::Feed(no), generation)
    }

    fn catch_up(&mut self, key: &FeedKey, generation: Epoch, position: Revision, uid: i64) -> Reader {
        self.did.push(format!("catch up {uid} from {position}"));
        let feed = self.begin(key, FeedState::catch_up(position, 1 << 20));
        Reader::of(&feed, Rung::Watch(uid), generation)
    }

    fn rung(&mut self) -> Vec<Rung> {
        std::mem::take(&mut *self.bells.borrow_mut()).into_iter().collect()
    }

    fn open(&mut self, store: StoreIx, number: u64, delay: Duration, first: Vec<Bytes>) {
        let first: Vec<String> = first.iter().map(words).collect();
        let after = if delay.is_zero() { String::new() } else { format!(" in {delay:?}") };
        self.did.push(format!("{}: open{after}, {}", name(store), first.join(", ")));
        self.streams.insert(store, number);
    }

    fn send(&mut self, store: StoreIx, request: Bytes) -> bool {
        if self.has_room {
            self.did.push(format!("{}: {}", name(store), words(&request)));
        }
        self.has_room
    }

    fn close(&mut self, store: StoreIx) {
        self.did.push(format!("{}: close", name(store)));
        self.streams.remove(&store);
    }

    fn ask_store(&mut self, ask: Ask, store: StoreIx, _: Vec<(Bytes, Bytes)>) {
        assert_eq!(ask.member, Origin::Store(store));
        self.did.push(match ask.to {
            None => format!("{}: ask", name(store)),
            Some(to) => format!("{}: raise to {to}", name(store)),
        });
        self.asks.push_back(ask);
    }

    fn ask_feed(&mut self, ask: Ask, _: &Reader) {
        self.did.push("ask a feed".to_owned());
        self.asks.push_back(ask);
    }

    fn give_up_asking(&mut self) {}

    fn ask_present(&mut self, uid: i64, _: &Reader) {
        self.did.push(format!("ask for watch {uid}"));
    }

    fn show(&mut self, _: &[KindPrefix], revision: Revision) {
        self.shown = self.shown.max(revision.get());
    }

    fn show_of_store(
        &mut self,
        _: StoreIx,
        _: &[KindPrefix],
        revision: Revision,
        _: Epoch,
        _: (&[u8], &[u8]),
    ) {
        self.shown = self.shown.max(revision.get());
    }

    fn begun(&mut self, _uid: i64, _create: &WatchCreateRequest<'_>) {
        self.watchers += 1;
    }

    fn ended(&mut self, _uid: i64) {
        self.watchers -= 1;
    }

    fn delivered(&mut self, uid: i64, bytes: usize, first: Option<Revision>) {
        assert!(bytes > 0);
        self.delivered.push((uid, first));
    }

    fn count(&mut self, count: Count) {
        match count {
            Count::Turn => self.turns += 1,
            Count::Moved | Count::Reopened => {}
        }
    }
}
