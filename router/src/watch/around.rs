//! What a session's machine uses of this router: its feeds, its stores, what it has shown.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::kind::KindPrefix;
use kindred_proto::shard_v1::KeyRange;
use kindred_router_core::cursor::{Limit, Taken};
use kindred_router_core::feed_event::{Encoded, Events, Filter};
use kindred_router_core::feed_state::{Stand, Take};
use kindred_router_core::gaps::Passed;
use kindred_router_core::header_ids::HeaderIds;
use kindred_router_core::place::{FeedKey, place};
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;
use kindred_router_core::watch_merge::Entry;
use kindred_router_core::watch_session::{
    self, Ask, CREATE_WAIT, Count, FeedNo, FeedReader, Outside, Present, ROUND_MAX, Rung,
};
use kindred_transport::{Drain, grpc};
use kindred_wire::error::EtcdError;
use kindred_wire::peek::WatchCreateRequest;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::upstream::{Inbound, Upstream};
use crate::auth::{Credentials, Entered, Gate};
use crate::execute::Deadline;
use crate::execute::compact::Compactor;
use crate::execute::raise::raise;
use crate::feeds::bell::Bells;
use crate::feeds::feed::Reader;
use crate::feeds::{Counts, Feeds};
use crate::metrics::WatchMetrics;
use crate::routing::Routing;
use crate::stores::Stores;
use crate::traffic::Traffic;
use crate::traffic::clients::OpenConnection;
use crate::traffic::watches::OpenWatch;

/// How long to wait before asking a feed again that could not tell its current revision.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What watches use of a router; the streams of all clients share it.
#[derive(Debug)]
pub struct WatchPath {
    pub routing: Arc<Routing>,
    pub stores: Stores,
    pub feeds: Arc<Feeds>,
    pub compactor: Arc<Compactor>,
    /// In the headers of messages.
    pub ids: HeaderIds,
    pub metrics: WatchMetrics,
    pub traffic: Arc<Traffic>,
    pub gate: Arc<Gate>,
    pub drain: Drain,
    /// Of each stream's session.
    pub sessions: watch_session::Settings,
}

/// See the text above.
#[derive(Debug)]
pub struct Around {
    path: Arc<WatchPath>,
    /// Of the stream's client.
    credentials: Credentials,
    client: Arc<OpenConnection>,
    upstreams: HashMap<StoreIx, Upstream>,
    inbound: mpsc::Sender<Inbound>,
    /// The session's watches, as they are counted.
    watched: HashMap<i64, OpenWatch>,
    /// Rung by feeds when they have more.
    pub bells: Arc<Bells>,
    /// Questions of the progress round.
    pub asking: JoinSet<(Ask, Option<Revision>)>,
    /// Questions to feeds for their current revision, which creates wait for.
    pub creating: JoinSet<(i64, Present)>,
}

impl Around {
    pub(super) fn new(
        path: Arc<WatchPath>,
        credentials: Credentials,
        client: Arc<OpenConnection>,
        inbound: mpsc::Sender<Inbound>,
    ) -> Self {
        Self {
            path,
            credentials,
            client,
            upstreams: HashMap::new(),
            inbound,
            watched: HashMap::new(),
            bells: Arc::default(),
            asking: JoinSet::new(),
            creating: JoinSet::new(),
        }
    }
}

impl Outside for Around {
    type Reader = Reader;

    fn may_watch(&self, key: &[u8], range_end: &[u8]) -> Result<(), String> {
        match self.path.gate.enter_now(&self.credentials) {
            Ok(None) => Ok(()),
            Ok(Some(Entered { rules, caller })) => {
                rules.may_read(caller.as_ref(), key, range_end).map_err(EtcdError::cancel_reason)
            }
            Err(status) => Err(grpc::etcd_error(&status)
                .map_or_else(|| status.message().to_owned(), EtcdError::cancel_reason)),
        }
    }

    fn routes(&self) -> Arc<Routes> {
        self.path.routing.load_full()
    }

    fn is_shard(&self, store: StoreIx) -> bool {
        self.path.stores.get(store).is_shard()
    }

    fn away(&self, store: StoreIx) -> Option<String> {
        self.path.stores.get(store).ready().err().map(|status| status.message().to_owned())
    }

    fn compacted(&self) -> Revision {
        self.path.compactor.compacted()
    }

    fn live(&mut self, key: &FeedKey, generation: Epoch, no: FeedNo) -> Reader {
        self.path.feeds.live(key, generation, self.bells.bell(Rung::Feed(no)))
    }

    fn catch_up(&mut self, key: &FeedKey, generation: Epoch, position: Revision, uid: i64) -> Reader {
        self.path.feeds.catch_up(key, generation, position, self.bells.bell(Rung::Watch(uid)))
    }

    fn rung(&mut self) -> Vec<Rung> {
        self.bells.heard()
    }

    fn open(&mut self, store: StoreIx, number: u64, delay: Duration, first: Vec<Bytes>) {
        let of = self.path.stores.get(store).clone();
        self.upstreams.insert(store, Upstream::open(of, number, delay, first, self.inbound.clone()));
    }

    fn send(&mut self, store: StoreIx, request: Bytes) -> bool {
        self.upstreams.get(&store).is_some_and(|upstream| upstream.send(request))
    }

    fn close(&mut self, store: StoreIx) {
        self.upstreams.remove(&store);
    }

    fn ask_store(&mut self, ask: Ask, store: StoreIx, ranges: Vec<(Bytes, Bytes)>) {
        let store = self.path.stores.get(store).clone();
        let ranges = ranges.into_iter().map(|(key, range_end)| KeyRange { key, range_end }).collect();
        let (to, generation) = (ask.to.unwrap_or(Revision::ZERO), *self.path.routing.generations().borrow());
        self.asking.spawn(async move {
            let raised = raise(&store, ranges, to, generation, Deadline::within(ROUND_MAX)).await;
            (ask, raised.ok())
        });
    }

    fn ask_feed(&mut self, ask: Ask, feed: &Reader) {
        let feed = feed.feed().clone();
        self.asking.spawn(async move { (ask, feed.current().await.ok()) });
    }

    fn give_up_asking(&mut self) {
        self.asking = JoinSet::new();
    }

    fn ask_present(&mut self, uid: i64, feed: &Reader) {
        let feed = feed.feed().clone();
        self.creating.spawn(async move {
            let asking = async {
                loop {
                    match feed.current().await {
                        Ok(present) => return Present::At(present),
                        Err(()) if feed.has_ended() => return Present::Ended,
                        Err(()) => tokio::time::sleep(ASK_AGAIN).await,
                    }
                }
            };
            (uid, tokio::time::timeout(CREATE_WAIT, asking).await.unwrap_or(Present::Away))
        });
    }

    fn show(&mut self, spread: &[KindPrefix], revision: Revision) {
        self.path.routing.show(spread, revision);
    }

    fn show_of_store(
        &mut self,
        store: StoreIx,
        spread: &[KindPrefix],
        revision: Revision,
        generation: Epoch,
        (key, range_end): (&[u8], &[u8]),
    ) {
        let now =
            |routes: &Routes| place(key, range_end, routes).map(|(_, spread)| spread).unwrap_or_default();
        self.path.routing.show_of_store(self.path.stores.get(store), spread, revision, generation, now);
    }

    fn begun(&mut self, uid: i64, create: &WatchCreateRequest<'_>) {
        self.path.metrics.watchers.increment(1.0);
        let open = self.path.traffic.watched(self.path.routing.load().scheme(), create, &self.client);
        self.watched.insert(uid, open);
    }

    fn ended(&mut self, uid: i64) {
        self.path.metrics.watchers.decrement(1.0);
        self.watched.remove(&uid);
    }

    fn delivered(&mut self, uid: i64, bytes: usize, first: Option<Revision>) {
        if let Some(watched) = self.watched.get_mut(&uid) {
            watched.delivered(bytes, first.and_then(|first| self.path.stores.clocks().age(first)));
        }
    }

    fn count(&mut self, count: Count) {
        match count {
            Count::Moved => self.path.metrics.moved.increment(1),
            Count::Reopened => self.path.metrics.reopened.increment(1),
            Count::Turn => Counts::one(&self.path.feeds.counts().turns),
        }
    }
}

impl FeedReader for Reader {
    fn take(&self, position: Revision, passed: &mut Passed, limit: Limit) -> Take {
        self.feed().take(position, passed, limit)
    }

    fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        self.feed().look(stand, limit)
    }

    fn encoded(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded> {
        self.feed().encoded(entries, filter)
    }

    fn present(&self) -> Option<Stand> {
        self.feed().present()
    }

    fn covered(&self) -> Option<Revision> {
        self.feed().covered()
    }

    fn want(&self, to: Revision) {
        self.feed().want(to);
    }

    fn generation(&self) -> Epoch {
        self.feed().generation()
    }

    fn is_placed_by(&self, generation: Epoch) {
        self.feed().is_placed_by(generation);
    }

    fn has_ended(&self) -> bool {
        self.feed().has_ended()
    }

    fn has_moved(&self) -> bool {
        self.feed().has_moved()
    }
}
