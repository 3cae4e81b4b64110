//! The task of one client stream: its state, its requests, and the loop that drives both.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::kind::KindPrefix;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::progress::{self, Progress};
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::{EtcdError, WatchRefusal};
use kindred_wire::kv::WatchHead;
use kindred_wire::refusal::KindredError;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::message;
use super::readers::{Created, FeedNo, FeedWatch, Followed};
use super::round::{Raised, Request};
use super::upstream::{Inbound, Upstream};
use crate::app::App;
use crate::feeds::bell::Bells;
use kindred_router_core::place::{FeedKey, Placed, place};

/// How long a create waits for a store that is down before it is refused.
pub const CREATE_WAIT: Duration = Duration::from_secs(10);
/// Messages queued for the client; while the queue is full, the session reads neither client nor stores.
const OUTGOING_MAX: usize = 32;
/// Unanswered creates; beyond this many, the session reads no more requests of the client.
const CREATES_MAX: usize = 1024;
/// Capacity of the channel through which all upstream streams of a session deliver their messages.
const INBOUND_MAX: usize = 16;

/// The id that a store sees: the low `UID_BITS` are the session's number of the watch, the others count placements.
pub(super) const UID_BITS: u32 = 40;
const PLACES_MASK: u32 = (1 << 22) - 1;

/// Where the events of a watch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    Store(StoreIx),
    Feed(FeedNo),
}

impl progress::Member for Origin {
    fn relays(self) -> bool {
        matches!(self, Self::Store(_))
    }
}

#[derive(Debug)]
pub(super) struct Watch {
    pub client_id: i64,
    pub origin: Origin,
    /// Set exactly while the watch reads a feed.
    pub feed: Option<FeedWatch>,
    /// The Kinds, each on several stores, for which the revisions in its headers count as shown (R8).
    pub spread: Vec<KindPrefix>,
    /// The create as the client sent it, except that an empty key has become `\0`.
    pub create: pb::WatchCreateRequest,
    /// The first revision that the client has not been given; 0 until `created` sets the start of a watch without one.
    pub next: i64,
    /// The revision at which the watch starts: no progress below it may be shown.
    pub floor: i64,
    /// The client has received `created`.
    pub announced: bool,
    /// The store has confirmed the watch on the present upstream stream, or the watch reads a feed.
    pub live: bool,
    /// The client has some fragments of a message, but not yet the last one.
    pub in_fragment: bool,
    /// The client has cancelled the watch and waits for the answer.
    pub cancel: bool,
    /// The store has refused or ended the watch because its keys are moving.
    pub displaced: bool,
    /// How often the watch was placed at another store or feed.
    pub places: u32,
}

impl Watch {
    /// The watch's id at its store. It differs for each placement, so that messages of a placement that the watch has
    /// left are not taken for messages of the next one.
    pub(super) fn upstream_id(&self, uid: i64) -> i64 {
        uid | (i64::from(self.places & PLACES_MASK) << UID_BITS)
    }

    pub(super) fn on(&self, store: StoreIx) -> bool {
        self.origin == Origin::Store(store)
    }
}

/// A create that is not answered yet; creates are answered in the order of the requests.
#[derive(Debug)]
pub(super) enum Due {
    /// The answer is known, and waits for its turn.
    Answer(Bytes),
    /// The create is to be sent to the store, or is sent and waits for the store's answer.
    Store { uid: i64, sent: bool, since: Instant },
    /// A watch on a feed; `current`, once known, is the revision for the header of `created`.
    Feed { uid: i64, current: Option<Revision> },
}

/// Where a new watch begins, and the generation of the map that says so.
struct Place {
    placed: Placed,
    spread: Vec<KindPrefix>,
    client_id: i64,
    generation: u64,
}

/// The state of one client stream.
pub struct Session {
    pub(super) app: Arc<App>,
    pub(super) outgoing: VecDeque<Bytes>,
    pub(super) watches: BTreeMap<i64, Watch>,
    pub(super) upstreams: HashMap<StoreIx, Upstream>,
    pub(super) creates: VecDeque<Due>,
    /// The first `.0` creates are settled: each is an answer, or was sent to store `.1`. See
    /// [`Session::advance_creates`].
    advanced: (usize, Option<StoreIx>),
    pub(super) progress: Progress<Origin>,
    /// Messages above the target of the progress round, held back until it ends; each with its watch.
    pub(super) held: VecDeque<(i64, Bytes)>,
    pub(super) held_bytes: usize,
    pub(super) calls: JoinSet<Raised>,
    pub(super) round_since: Option<Instant>,
    /// The highest revision in any header from upstream; the header revision of messages that the router makes.
    pub(super) seen: i64,
    pub(super) end: Option<Status>,
    pub(super) feeds: BTreeMap<FeedNo, Followed>,
    pub(super) next_feed: FeedNo,
    /// Questions to feeds for their current revision, which creates wait for.
    pub(super) creating: JoinSet<Created>,
    /// Watches that get a progress notification when the present round is answered.
    pub(super) periodic: BTreeSet<i64>,
    /// The round under way answers the periodic notifications only, no request of the client.
    pub(super) only_periodic: bool,
    pub(super) next_periodic: Option<Instant>,
    /// The client's latest unanswered progress request.
    pub(super) requested: Option<Request>,
    /// Rung by feeds when they have more.
    pub(super) wake: Arc<Bells>,
    /// Feeds may have something for the client, so [`Session::pump`] has work.
    pub(super) dirty: bool,
    /// The target of the progress round when feeds were last read.
    pub(super) read_to: Option<Revision>,
    /// Watches on feeds whose turn it is to be read, each at most once.
    pub(super) ready: VecDeque<i64>,
    /// Feeds of which [`Session::pump`] has looked through a part only.
    pub(super) looked_at: BTreeSet<FeedNo>,
    pub(super) feed_numbers: HashMap<FeedKey, FeedNo>,
    /// The number of watches on each store's upstream stream.
    pub(super) on_store: HashMap<StoreIx, usize>,
    /// When to place the watches again, even if no newer map has come by then.
    pub(super) place_at: Option<Instant>,
    by_client: HashMap<i64, i64>,
    next_auto: i64,
    next_uid: i64,
    /// The generation of the map by which all watches were placed last; newer watches may be placed by a newer map.
    pub(super) placed_by: u64,
    next_generation: u64,
    inbound: mpsc::Sender<Inbound>,
}

impl Session {
    pub async fn serve<S>(app: Arc<App>, mut requests: S, to: mpsc::Sender<Result<Bytes, Status>>)
    where
        S: Stream<Item = Result<Bytes, Status>> + Unpin,
    {
        app.metrics.watch_streams.increment(1.0);
        let (inbound, mut upstream) = mpsc::channel(INBOUND_MAX);
        let mut session = Self::new(app, inbound);
        let ended = session.run(&mut requests, &mut upstream, &to).await;
        session.app.metrics.watch_streams.decrement(1.0);
        session.app.metrics.watchers.decrement(session.watches.len() as f64);
        if let Some(status) = ended {
            // The client has to make room for the status; if it does not read, its connection ends anyway.
            let _ = to.send_timeout(Err(status), Duration::from_secs(1)).await;
        }
    }

    fn new(app: Arc<App>, inbound: mpsc::Sender<Inbound>) -> Self {
        let placed_by = app.routes.load().generation();
        Self {
            app,
            outgoing: VecDeque::new(),
            watches: BTreeMap::new(),
            upstreams: HashMap::new(),
            creates: VecDeque::new(),
            advanced: (0, None),
            progress: Progress::default(),
            held: VecDeque::new(),
            held_bytes: 0,
            calls: JoinSet::new(),
            round_since: None,
            seen: 0,
            end: None,
            feeds: BTreeMap::new(),
            next_feed: FeedNo(0),
            creating: JoinSet::new(),
            periodic: BTreeSet::new(),
            only_periodic: false,
            next_periodic: None,
            requested: None,
            wake: Arc::default(),
            dirty: false,
            read_to: None,
            ready: VecDeque::new(),
            looked_at: BTreeSet::new(),
            feed_numbers: HashMap::new(),
            on_store: HashMap::new(),
            place_at: None,
            by_client: HashMap::new(),
            next_auto: 0,
            next_uid: 1,
            next_generation: 1,
            placed_by,
            inbound,
        }
    }

    /// Runs until the stream ends; returns the status to send, `None` if the client is gone.
    async fn run<S>(
        &mut self,
        requests: &mut S,
        upstream: &mut mpsc::Receiver<Inbound>,
        to: &mpsc::Sender<Result<Bytes, Status>>,
    ) -> Option<Status>
    where
        S: Stream<Item = Result<Bytes, Status>> + Unpin,
    {
        let (stopping, wake) = (self.app.drain.stopping(), self.wake.clone());
        let mut generations = self.app.generations();
        let mut half_closed = false;
        loop {
            self.pump();
            self.answer_request();
            if let Some(status) = self.end.take() {
                return Some(status);
            }
            let room = self.outgoing.len() < OUTGOING_MAX;
            let timer = self.timer();
            tokio::select! {
                () = stopping.cancelled() => return Some(grpc::status(EtcdError::Stopped)),
                () = to.closed() => return None,
                permit = to.reserve(), if !self.outgoing.is_empty() => {
                    let permit = permit.ok()?;
                    if let Some(message) = self.outgoing.pop_front() {
                        permit.send(Ok(message));
                    }
                }
                request = requests.next(), if !half_closed && room && self.creates.len() < CREATES_MAX => {
                    match request {
                        Some(Ok(request)) => self.on_request(&request),
                        Some(Err(_)) => return None,
                        None => half_closed = true,
                    }
                }
                Some(inbound) = upstream.recv(), if room => self.on_inbound(inbound),
                Some(raised) = self.calls.join_next(), if !self.calls.is_empty() => {
                    // A call that panicked or was aborted counts as failed.
                    self.on_raised(raised.unwrap_or(Raised::Failed));
                }
                Some(created) = self.creating.join_next(), if !self.creating.is_empty() => {
                    // The calls do not panic, and nothing aborts them while the session lives.
                    if let Ok(created) = created {
                        self.on_feed_present(created);
                    }
                }
                () = wake.rung() => self.dirty = true,
                // The sender lives as long as the router.
                Ok(()) = generations.changed() => self.place_again(),
                () = tokio::task::yield_now(), if self.dirty && self.can_pump() => {}
                () = sleep_until(timer) => self.on_timer(),
            }
        }
    }

    fn on_request(&mut self, request: &Bytes) {
        let request = match pb::WatchRequest::decode(request.clone()) {
            Ok(request) => request,
            Err(error) => {
                let error = KindredError::Malformed { reason: error.to_string() };
                self.end = Some(grpc::refusal(&error));
                return;
            }
        };
        match request.request_union {
            Some(pb::watch_request::RequestUnion::CreateRequest(create)) => {
                self.on_create(create);
                self.advance_creates();
            }
            Some(pb::watch_request::RequestUnion::CancelRequest(cancel)) => self.on_cancel(cancel.watch_id),
            Some(pb::watch_request::RequestUnion::ProgressRequest(_)) => self.on_progress_request(),
            None => {}
        }
    }

    fn on_create(&mut self, mut create: pb::WatchCreateRequest) {
        if create.key.is_empty() {
            // As in etcd, an empty key means that the range begins at the first key.
            create.key = Bytes::from_static(&[0]);
        }
        let due = match self.place(&create) {
            Ok(Place { placed, spread, client_id, generation }) => {
                let uid = self.next_uid;
                self.next_uid += 1;
                self.by_client.insert(client_id, uid);
                self.app.metrics.watchers.increment(1.0);
                let start = create.start_revision;
                let (origin, feed) = match placed {
                    Placed::Store(store) => (Origin::Store(store), None),
                    Placed::Feed(key) => {
                        (Origin::Feed(self.follow_feed(key, generation)), Some(FeedWatch::new(&create)))
                    }
                };
                let watch = Watch {
                    client_id,
                    origin,
                    feed,
                    spread,
                    create,
                    next: start,
                    floor: start,
                    announced: false,
                    live: false,
                    in_fragment: false,
                    cancel: false,
                    displaced: false,
                    places: 0,
                };
                self.watches.insert(uid, watch);
                self.join(uid, origin);
                match origin {
                    Origin::Store(_) => Due::Store { uid, sent: false, since: Instant::now() },
                    Origin::Feed(no) => Due::Feed { uid, current: self.ask_present(uid, no) },
                }
            }
            Err(reason) => Due::Answer(message::refused(self.app.identity.header(self.seen), &reason)),
        };
        self.creates.push_back(due);
    }

    /// Chooses the place and the id of a new watch, or refuses it; makes etcd's checks in etcd's order.
    fn place(&mut self, create: &pb::WatchCreateRequest) -> Result<Place, String> {
        let end = create.range_end.as_ref();
        if create.start_revision < 0 {
            return Err(WatchRefusal::NegativeStart.reason().to_owned());
        }
        if !end.is_empty() && end != [0] && create.key.as_ref() >= end {
            return Err(WatchRefusal::EmptyRange.reason().to_owned());
        }
        let routes = self.app.routes.load_full();
        let (placed, spread) = place(&create.key, end, &routes).map_err(|refusal| refusal.to_string())?;
        let client_id = match create.watch_id {
            0 => {
                while self.by_client.contains_key(&self.next_auto) {
                    self.next_auto += 1;
                }
                self.next_auto += 1;
                self.next_auto - 1
            }
            chosen if self.by_client.contains_key(&chosen) => {
                return Err(WatchRefusal::DuplicateId.reason().to_owned());
            }
            chosen => chosen,
        };
        Ok(Place { placed, spread, client_id, generation: routes.generation() })
    }

    /// Answers creates, and sends creates to stores, as far as the order of answers allows.
    pub(super) fn advance_creates(&mut self) {
        loop {
            match self.creates.front() {
                Some(Due::Answer(_)) => {
                    if let Some(Due::Answer(answer)) = self.pop_create() {
                        self.outgoing.push_back(answer);
                    }
                }
                Some(Due::Feed { uid, current: Some(current) }) => {
                    let (uid, current) = (*uid, *current);
                    self.pop_create();
                    self.announce(uid, current);
                }
                _ => break,
            }
        }
        let mut sending = Vec::new();
        // No answer is in front here, so if any create is settled, the first one was sent to the store in `advanced`.
        let (mut advanced, mut only) = if self.advanced.0 > 0 { self.advanced } else { (0, None) };
        for due in self.creates.iter_mut().skip(advanced) {
            // Skip an answer that waits for its turn: the store answers in order, so no create sent behind it is
            // answered too early.
            let (uid, sent) = match due {
                Due::Store { uid, sent, .. } => (uid, sent),
                Due::Feed { .. } => break,
                Due::Answer(_) => {
                    advanced += 1;
                    continue;
                }
            };
            let Some(Watch { origin: Origin::Store(store), .. }) = self.watches.get(uid) else {
                advanced += 1;
                continue;
            };
            if *only.get_or_insert(*store) != *store {
                break;
            }
            advanced += 1;
            if !*sent {
                *sent = true;
                sending.push(*uid);
            }
        }
        self.advanced = (advanced, only);
        let Some(store) = only.filter(|_| !sending.is_empty()) else { return };
        if !self.upstreams.contains_key(&store) {
            // The new stream begins with all these creates.
            return self.open(store, 0);
        }
        for uid in sending {
            self.send_create(uid, store);
        }
    }

    /// Removes the first create.
    pub(super) fn pop_create(&mut self) -> Option<Due> {
        self.advanced.0 = self.advanced.0.saturating_sub(1);
        self.creates.pop_front()
    }

    /// Some create other than the first was replaced or removed, so [`Session::advance_creates`] must look at all of
    /// them again.
    pub(super) fn creates_changed(&mut self) {
        self.advanced = (0, None);
    }

    pub(super) fn send_create(&mut self, uid: i64, store: StoreIx) {
        let Some(watch) = self.watches.get(&uid) else { return };
        let fenced = !self.app.stores.get(store).is_shard();
        let request = message::create(&watch.create, watch.upstream_id(uid), watch.next, fenced);
        if let Some(upstream) = self.upstreams.get(&store) {
            // If the queue is full or closed, the stream is about to break, and the next one begins with this watch.
            let _ = upstream.send(request);
        }
    }

    /// Opens the store's upstream stream and creates all watches of that store on it.
    pub(super) fn open(&mut self, store: StoreIx, failures: u32) {
        let mut first = Vec::new();
        let waiting = |uid: i64| {
            self.creates
                .iter()
                .any(|due| matches!(due, Due::Store { uid: due, sent: false, .. } if *due == uid))
        };
        let fenced = !self.app.stores.get(store).is_shard();
        // The map is ordered by the session's numbers, which is the order of the creates.
        for (uid, watch) in &mut self.watches {
            if watch.on(store) && (watch.announced || !waiting(*uid)) {
                (watch.live, watch.displaced) = (false, false);
                first.push(message::create(&watch.create, watch.upstream_id(*uid), watch.next, fenced));
            }
        }
        if first.is_empty() {
            self.upstreams.remove(&store);
            return;
        }
        let generation = self.next_generation;
        self.next_generation += 1;
        let store_ref = self.app.stores.get(store).clone();
        let upstream = Upstream::open(store_ref, generation, failures, first, self.inbound.clone());
        self.upstreams.insert(store, upstream);
    }

    pub(super) fn on_cancel(&mut self, client_id: i64) {
        // etcd ignores unknown ids.
        let Some(uid) = self.by_client.get(&client_id).copied() else { return };
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        watch.cancel = true;
        if !watch.announced {
            return;
        }
        let (live, upstream_id) = (watch.live, watch.upstream_id(uid));
        let upstream = match watch.origin {
            Origin::Store(store) => self.upstreams.get(&store),
            Origin::Feed(_) => None,
        };
        if upstream.is_some_and(|upstream| upstream.send(message::cancel(upstream_id))) && live {
            // The store's answer ends the watch, after the events that are already under way.
            return;
        }
        self.canceled(uid);
    }

    /// Tells the client that the watch it cancelled has ended, and removes the watch.
    pub(super) fn canceled(&mut self, uid: i64) {
        let Some(client_id) = self.watches.get(&uid).map(|watch| watch.client_id) else { return };
        let header = self.app.identity.header(self.seen);
        let canceled = message::own(header, client_id, WatchHead { canceled: true, ..WatchHead::default() });
        self.emit_behind(uid, canceled);
        self.remove(uid);
    }

    /// Ends those of the selected watches that the client has cancelled. Used where the store's answer to the cancel
    /// can no longer come: its stream broke, or the session ignores it.
    pub(super) fn cancel_left(&mut self, which: impl Fn(&Watch) -> bool) {
        let left = |watch: &Watch| watch.cancel && watch.announced && which(watch);
        let uids: Vec<i64> =
            self.watches.iter().filter(|(_, watch)| left(watch)).map(|(uid, _)| *uid).collect();
        uids.into_iter().for_each(|uid| self.canceled(uid));
    }

    /// Removes a watch; removing the last watch of a store or feed also closes its upstream stream or leaves the feed.
    pub(super) fn remove(&mut self, uid: i64) {
        let Some(watch) = self.watches.remove(&uid) else { return };
        self.by_client.remove(&watch.client_id);
        self.app.metrics.watchers.decrement(1.0);
        self.periodic.remove(&uid);
        self.leave(uid, watch.origin);
        self.leave_if_empty(watch.origin);
        self.watches_changed();
    }

    /// Registers a watch at the store or feed that it reads from.
    pub(super) fn join(&mut self, uid: i64, origin: Origin) {
        match origin {
            Origin::Store(store) => *self.on_store.entry(store).or_default() += 1,
            Origin::Feed(no) => self.join_feed(no, uid),
        }
    }

    /// Unregisters a watch from a store or feed.
    pub(super) fn leave(&mut self, uid: i64, origin: Origin) {
        match origin {
            Origin::Store(store) => {
                if let Some(count) = self.on_store.get_mut(&store) {
                    *count = count.saturating_sub(1);
                }
            }
            Origin::Feed(no) => self.leave_feed(no, uid),
        }
    }

    /// Closes the upstream stream of a store, or leaves a feed, if no watch is there.
    pub(super) fn leave_if_empty(&mut self, origin: Origin) {
        match origin {
            Origin::Store(store) if self.on_store.get(&store).is_none_or(|count| *count == 0) => {
                self.on_store.remove(&store);
                self.upstreams.remove(&store);
            }
            Origin::Feed(no) if self.feeds.get(&no).is_some_and(Followed::is_empty) => self.unfollow_feed(no),
            Origin::Store(_) | Origin::Feed(_) => {}
        }
    }

    /// The earliest time at which the session has to act by itself.
    fn timer(&self) -> Option<Instant> {
        let create = match self.creates.front() {
            Some(Due::Store { since, .. }) => Some(*since + CREATE_WAIT),
            _ => None,
        };
        let round = self.round_since.map(|since| since + super::round::ROUND_MAX);
        let timers = create.into_iter().chain(round).chain(self.next_periodic);
        timers.chain(self.place_at).chain(self.request_due()).min()
    }

    fn on_timer(&mut self) {
        self.expire_round();
        self.on_period();
        if self.place_at.is_some_and(|at| at <= Instant::now()) {
            self.place_again();
        }
        let Some(Due::Store { uid, since, .. }) = self.creates.front_mut() else { return };
        if since.elapsed() < CREATE_WAIT {
            return;
        }
        let uid = *uid;
        let store = self.watches.get(&uid).and_then(|watch| match watch.origin {
            Origin::Store(store) => Some(self.app.stores.get(store).clone()),
            Origin::Feed(_) => None,
        });
        let Some(store) = store.filter(|store| !store.state().is_up()) else {
            // The store is up and will answer.
            *since = Instant::now();
            return;
        };
        let status = store.unavailable(&store.state().reason());
        self.outgoing.push_back(message::refused(self.app.identity.header(self.seen), status.message()));
        self.pop_create();
        // The create may be in the stream's queue: without a cancel, the store would keep a watch that no client has.
        if let (Some(upstream), Some(watch)) = (self.upstreams.get(&store.index), self.watches.get(&uid)) {
            let _ = upstream.send(message::cancel(watch.upstream_id(uid)));
        }
        self.remove(uid);
        self.advance_creates();
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
