//! One client's stream, taken through its turns as `router/src/watch` does, and what it hears in words.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::kv::{EventRef, EventType, KeyValueRef, WatchHead, put_watch_event};
use kindred_wire::peek::ResponseHeader;
use kindred_wire::watch_request;

use super::super::message::Create;
use super::super::{Ask, End, Event, Present, Said, Session, Settings};
use super::fake::{A, B, Fake, Feed, key, map};
use crate::header_ids::HeaderIds;
use crate::store::StoreIx;

/// More turns than any test needs: a session that has still something to do spins.
const TURNS_MAX: usize = 1000;

pub struct Client {
    pub session: Session<Fake>,
    pub now: Instant,
    /// How the stream has ended.
    pub end: Option<End>,
}

/// A create of this range, under an id that the session chooses, from now on.
pub fn range(from: &str, end: &str) -> Create {
    Create {
        key: key(from),
        range_end: key(end),
        start_revision: 0,
        watch_id: 0,
        progress_notify: false,
        no_put: false,
        no_delete: false,
        prev_kv: false,
        fragment: false,
    }
}

/// All pods: a feed over the stores A and B.
pub fn pods() -> Create {
    range("pods/", "pods0")
}

/// All config maps: a feed over one store.
pub fn configmaps() -> Create {
    range("configmaps/", "configmaps0")
}

/// One key: a watch of its own at its store.
pub fn single(name: &str) -> Create {
    Create { range_end: Bytes::new(), ..range(name, "") }
}

impl Create {
    pub fn from(self, start_revision: i64) -> Self {
        Self { start_revision, ..self }
    }

    pub fn id(self, watch_id: i64) -> Self {
        Self { watch_id, ..self }
    }
}

impl Client {
    /// Of a router whose feeds are open behind revision 10.
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        let now = Instant::now();
        let ids = HeaderIds { cluster_id: 7, member_id: 8 };
        Self { session: Session::new(Fake::new(map(1, [A, B], A)), ids, settings, now), now, end: None }
    }

    pub fn outside(&mut self) -> &mut Fake {
        &mut self.session.outside
    }

    /// The feed or catch-up that began as this one, counted from 0.
    pub fn feed(&self, at: usize) -> Rc<Feed> {
        self.session.outside.feeds[at].clone()
    }

    pub fn step(&mut self, event: Event<'_>) {
        self.session.step(self.now, event);
        self.turns();
    }

    pub fn turns(&mut self) {
        for _ in 0..TURNS_MAX {
            if let Some(end) = self.session.turn(self.now) {
                self.end = Some(end);
            }
            if !self.session.has_work() {
                return;
            }
        }
        panic!("the session spins");
    }

    pub fn create(&mut self, create: Create) {
        self.request(watch_request::create(&create.asked()).into());
    }

    pub fn cancel(&mut self, watch_id: i64) {
        self.request(watch_request::cancel(watch_id).into());
    }

    pub fn progress(&mut self) {
        self.request(watch_request::progress().into());
    }

    pub fn request(&mut self, request: Bytes) {
        self.step(Event::Request(&request));
    }

    /// The store sends a message on its present stream.
    pub fn says(&mut self, store: StoreIx, message: Bytes) {
        self.said(store, Said::Message(message));
    }

    pub fn said(&mut self, store: StoreIx, said: Said) {
        let number = self.session.outside.streams[&store];
        self.step(Event::Upstream { store, number, said });
    }

    pub fn present(&mut self, uid: i64, revision: i64) {
        self.step(Event::Present { uid, present: Present::At(Revision(revision)) });
    }

    /// Takes the questions that have no answer.
    pub fn asks(&mut self) -> Vec<Ask> {
        self.session.outside.asks.drain(..).collect()
    }

    /// Answers all questions with this revision, or the one to which a store was to be raised, and those that follow.
    pub fn answer(&mut self, revision: i64) {
        while let Some(ask) = self.session.outside.asks.pop_front() {
            let at = ask.to.unwrap_or(Revision(revision));
            self.step(Event::Asked(ask, Some(at)));
        }
    }

    /// The router takes this map.
    pub fn new_map(&mut self, generation: u64, pods: [StoreIx; 2], configmaps: StoreIx) {
        self.outside().routes = map(generation, pods, configmaps);
        self.step(Event::NewMap);
    }

    /// A client compacts.
    pub fn compacts(&mut self, at: i64) {
        self.outside().compacted = at;
        self.step(Event::Compacted);
    }

    /// Lets time pass; timers ring as they are due.
    pub fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        for _ in 0..TURNS_MAX {
            let Some(at) = self.session.timer().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(at);
            self.step(Event::Timer);
        }
        panic!("a timer rings again and again");
    }

    /// Rings the bells of feeds that have more.
    pub fn ring(&mut self) {
        if self.outside().has_rung() {
            self.step(Event::Rung);
        }
    }

    /// Reads one message.
    pub fn hear(&mut self) -> Option<String> {
        let message = self.session.next_message()?.into_bytes();
        self.turns();
        Some(words(&message))
    }

    /// Reads everything that there is.
    pub fn hears(&mut self) -> Vec<String> {
        self.ring();
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// What the session has done since the last call.
    pub fn did(&mut self) -> Vec<String> {
        std::mem::take(&mut self.outside().did)
    }
}

/// `7 @30: put a 12` for events of watch 7 at header 30; with the revision of the key-value before if it came, too.
pub fn words(message: &Bytes) -> String {
    let response = WatchResponse::parse(message).expect("a watch response");
    let header = response.header.expect("with a header");
    assert_eq!((header.cluster_id, header.member_id, header.raft_term), (7, 8, 1), "the router's own ids");
    let events: Vec<String> =
        watch_events(message).map(|event| event_words(EventRef::parse(event.unwrap()).unwrap())).collect();
    let mut words = format!("{} @{}", response.watch_id, header.revision);
    let is = |set: bool, word: &str| if set { format!(" {word}") } else { String::new() };
    words += &is(response.created, "created");
    words += &is(response.canceled, "canceled");
    words += &is(response.fragment, "fragment");
    words += &is(response.is_progress(), "progress");
    if response.compact_revision != 0 {
        words += &format!(" compacted {}", response.compact_revision);
    }
    if !response.cancel_reason.is_empty() {
        words += &format!(" ({})", String::from_utf8_lossy(response.cancel_reason));
    }
    if !events.is_empty() {
        words += &format!(": {}", events.join(", "));
    }
    words
}

fn event_words(event: EventRef<'_>) -> String {
    let kv = KeyValueRef::parse(event.kv).unwrap();
    let key = String::from_utf8_lossy(kv.key);
    let name = key.rsplit('/').next().unwrap_or_default();
    let what = if event.event_type == EventType::Delete { "delete" } else { "put" };
    let before = event.prev_kv.map(|prev| KeyValueRef::parse(prev).unwrap().mod_revision);
    let before = before.map(|before| format!(" after {before}")).unwrap_or_default();
    format!("{what} {name} {}{before}", kv.mod_revision)
}

/// The id at its store of a watch that was placed elsewhere so often.
pub fn placed(uid: i64, places: i64) -> i64 {
    uid | (places << 40)
}

/// A store's message, with a header of its own.
pub fn message(head: WatchHead<'_>, revision: i64, events: &[Bytes]) -> Bytes {
    let header = ResponseHeader { cluster_id: 1, member_id: 2, revision, raft_term: 3 };
    let mut message = Vec::new();
    WatchHead { header, ..head }.put(&mut message);
    events.iter().for_each(|event| put_watch_event(&mut message, event));
    message.into()
}

/// A store confirms a watch.
pub fn created(watch_id: i64, revision: i64) -> Bytes {
    message(WatchHead { watch_id, created: true, ..WatchHead::default() }, revision, &[])
}

pub fn canceled(watch_id: i64, revision: i64) -> Bytes {
    message(WatchHead { watch_id, canceled: true, ..WatchHead::default() }, revision, &[])
}

/// A store has compacted the position of a watch that it knew.
pub fn compacted(watch_id: i64, revision: i64, floor: i64) -> Bytes {
    let head = WatchHead { watch_id, canceled: true, compact_revision: floor, ..WatchHead::default() };
    message(head, revision, &[])
}

/// A store refuses, or ends, a watch for this reason.
pub fn ended(watch_id: i64, created: bool, revision: i64, reason: &str) -> Bytes {
    let head = WatchHead { watch_id, created, canceled: true, cancel_reason: reason, ..WatchHead::default() };
    message(head, revision, &[])
}

/// A store sends events.
pub fn events(watch_id: i64, revision: i64, events: &[Bytes]) -> Bytes {
    message(WatchHead { watch_id, ..WatchHead::default() }, revision, events)
}

/// A store's progress for its whole stream.
pub fn progressed(revision: i64) -> Bytes {
    events(-1, revision, &[])
}
