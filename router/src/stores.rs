//! The stores behind the router: channels, handshake and state of each.
//!
//! A store that cannot be reached makes its own requests fail at once and nothing else: every store has connections and
//! a monitor task of its own. Each class of traffic has its own ([`Link`]), so that nothing long stands before an answer, and
//! no client can take the window of a connection from others, whatever it leaves unread ([`pool`]).

pub mod background;
pub mod clocks;
pub mod failure;
pub mod fence;
mod identify;
pub mod lane;
mod list;
pub mod modes;
pub mod monitor;
pub mod pool;
pub mod releases;
pub mod state;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use kindred_partition_config::ids::{Revision, Slot, StoreName};
use kindred_proto::etcdserverpb::{lease_client::LeaseClient, maintenance_client::MaintenanceClient};
use kindred_proto::raw::{kv::k_v_client::KVClient, watch::watch_client::WatchClient};
use kindred_proto::shard_v1::{
    feeds_client::FeedsClient, leases_client::LeasesClient, shard_client::ShardClient,
    units_client::UnitsClient,
};
use kindred_router_core::plan::Call;
use kindred_router_core::store::{Member, StoreIx, StoreKind};
use kindred_transport::connect::{ConnectError, Cut, RouterChannel as Channel};
use kindred_transport::unary::ask::ask;
use kindred_transport::workers::PerThread;
use kindred_transport::{Connector, Endpoint, Workers};
use kindred_wire::refusal::KindredError;
use kindred_wire::rope::Rope;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use fence::FenceCell;
use lane::Lane;
pub use list::{STORES_MAX, StoreListError, Stores};
use modes::ToldCell;
use pool::{Pool, Pooled};
use releases::Releases;
use state::{Phase, StateCell};

/// What the configuration says of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSpec {
    /// Its name.
    pub name: StoreName,
    /// What it is.
    pub kind: StoreKind,
    /// Its slot, for shards.
    pub slot: Option<Slot>,
    /// The UUID that it must have, when the configuration pins one.
    pub uuid: Option<String>,
    /// When it opens, microseconds since the Unix epoch, if it is in the place of another store (R14).
    pub opens_at: Option<u64>,
    /// Where it listens.
    pub endpoints: Vec<Endpoint>,
}

/// With what stores are reached.
#[derive(Debug)]
struct Linking {
    connector: Connector,
    workers: Workers,
}

/// What is known of a store, and how it is reached now. Replaced as a whole when its address changes.
#[derive(Debug)]
struct Link {
    spec: Arc<StoreSpec>,
    ways: Arc<Ways>,
}

/// The connections to a store.
#[derive(Debug)]
struct Ways {
    /// Ends all of its connections.
    cut: Cut,
    /// A connection for handshakes and short calls, and a lane, for each thread that serves clients: what is asked there is
    /// answered there.
    unary: PerThread<Channel>,
    /// For long reads, and what else is read only as fast as a client takes it.
    reads: PerThread<Pool>,
    /// For watches, which wait for their clients.
    watches: Pool,
    /// For feeds that are always read: nobody's slow client stands before their events.
    feeds: Pool,
    /// For the data of units that move.
    bulk: Pool,
    /// For small operations, which no list stands before. Of shards alone.
    lane: Option<PerThread<Arc<Lane>>>,
}

impl Link {
    fn new(spec: StoreSpec, Linking { connector, workers }: &Linking) -> Result<Self, ConnectError> {
        let connector = match spec.kind {
            StoreKind::Shard => connector,
            StoreKind::Etcd => &connector.without_secret(),
        };
        // Without an address yet, every connect fails at once.
        let nowhere = [Endpoint::unix("/dev/null/no-address-yet")];
        let endpoints = if spec.endpoints.is_empty() { &nowhere[..] } else { &spec.endpoints };
        let (connector, cut) = &connector.with_cut();
        let unary = workers.each(|| connector.router_channel(endpoints))?;
        let reads = workers.each(|| Pool::new(connector, endpoints))?;
        let pool = || Pool::new(connector, endpoints);
        let (watches, feeds, bulk) = (pool()?, pool()?, pool()?);
        let lane =
            match spec.kind {
                StoreKind::Shard => Some(workers.each(|| {
                    connector.router_channel(endpoints).map(|channel| Arc::new(Lane::new(channel)))
                })?),
                StoreKind::Etcd => None,
            };
        let ways = Arc::new(Ways { cut: cut.clone(), unary, reads, watches, feeds, bulk, lane });
        Ok(Self { spec: Arc::new(spec), ways })
    }
}

/// One store.
#[derive(Debug)]
pub struct Store {
    /// Its position in the list of stores.
    pub index: StoreIx,
    name: StoreName,
    kind: StoreKind,
    link: ArcSwap<Link>,
    state: StateCell,
    /// Its UUID, while the cluster's state cannot be told of it: without a meta store, or as long as that is away.
    met: Mutex<Option<String>>,
    /// What it cannot do though it serves, as it said last.
    trouble: Mutex<String>,
    /// Held while the link is replaced, or a handshake over it is believed: never across an await.
    relinking: Mutex<()>,
    /// Ends its tasks; it serves no keys any more.
    removed: CancellationToken,
    releases: Releases,
    told: ToldCell,
    fence: FenceCell,
    /// The highest revision that it has shown to clients.
    shown: AtomicI64,
    /// A revision at or above the beginning of its present life.
    begun: AtomicI64,
}

impl Store {
    /// A store that is not connected yet.
    ///
    /// # Errors
    /// When TLS is asked for and cannot be set up.
    fn new(index: StoreIx, spec: StoreSpec, linking: &Linking) -> Result<Self, ConnectError> {
        Ok(Self {
            index,
            name: spec.name.clone(),
            kind: spec.kind,
            link: ArcSwap::from_pointee(Link::new(spec, linking)?),
            state: StateCell::default(),
            met: Mutex::default(),
            trouble: Mutex::default(),
            relinking: Mutex::new(()),
            removed: CancellationToken::new(),
            releases: Releases::default(),
            told: ToldCell::default(),
            fence: FenceCell::default(),
            shown: AtomicI64::new(0),
            begun: AtomicI64::new(0),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// What the configuration says of it now.
    #[must_use]
    pub fn spec(&self) -> Arc<StoreSpec> {
        self.link.load().spec.clone()
    }

    /// It is reached another way from now on. Requests are refused until the process there has said who it is (R1);
    /// those under way end where they are.
    fn relink(&self, spec: StoreSpec, linking: &Linking) -> Result<(), ConnectError> {
        let link = Link::new(spec, linking)?;
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        self.link.store(Arc::new(link));
        self.state.set(Phase::Down("its address has changed, not connected yet".to_owned()));
        self.state.suspect();
        Ok(())
    }

    /// Who it is becomes known, by this router's handshake or another's; it is reached as before. One that is up and was
    /// found to be another is not used any more.
    fn learn(&self, spec: StoreSpec) {
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        let ways = self.link.load().ways.clone();
        if let (Phase::Up(identity), Some(known)) = (&*self.state.phase(), &spec.uuid)
            && identity.uuid.as_ref().is_some_and(|met| met != known)
        {
            self.state
                .set(Phase::Down("it may be another store than it was: being asked who it is".to_owned()));
        }
        self.link.store(Arc::new(Link { spec: Arc::new(spec), ways }));
        self.state.suspect();
    }

    /// The UUID that it had at its last good handshake with this router.
    #[must_use]
    pub fn met(&self) -> Option<String> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes who it is.
    pub(crate) fn meet(&self, uuid: &str) {
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = Some(uuid.to_owned());
    }

    /// Whether what a handshake was begun with is still what is known of the store.
    #[must_use]
    pub fn is_current(&self, asked: &Arc<StoreSpec>) -> bool {
        Arc::ptr_eq(asked, &self.link.load().spec)
    }

    /// Believes a handshake, unless the store's address has changed since it began; whether the kind of state changed.
    pub fn settle(&self, asked: &Arc<StoreSpec>, phase: Phase) -> bool {
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        let same = self.is_current(asked) && !self.removed.is_cancelled();
        same && self.state.set(phase)
    }

    /// Ends its connections: it is silent, and those who wait for an answer learn that there is none. What was sent there may be
    /// executed later, so a write is told that nobody knows, as after any lost connection (R11).
    pub fn cut(&self) {
        self.link.load().ways.cut.now();
    }

    /// What it cannot do though it serves; `None` when it can do everything.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        Some(trouble.clone()).filter(|trouble| !trouble.is_empty() && self.state.is_up())
    }

    /// Notes what it said that it cannot do; whether that is news.
    pub(crate) fn set_trouble(&self, said: &str) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *trouble != said;
        said.clone_into(&mut trouble);
        news
    }

    /// Whether the configuration has it no more. It keeps its place in the list.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.is_cancelled()
    }

    /// Ends when it is removed.
    #[must_use]
    pub fn removed(&self) -> &CancellationToken {
        &self.removed
    }

    fn remove(&self) {
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        self.removed.cancel();
        self.state.set(Phase::Refused("it was removed from the configuration".to_owned()));
    }

    /// Its state, for those who wait for it or show it.
    #[must_use]
    pub fn state(&self) -> &StateCell {
        &self.state
    }

    /// Pins to be released there.
    #[must_use]
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// What it has answered to the durability modes that it was told.
    #[must_use]
    pub fn told(&self) -> &ToldCell {
        &self.told
    }

    /// What is known of its fence; of stock etcds only.
    #[must_use]
    pub fn fence(&self) -> &FenceCell {
        &self.fence
    }

    /// Whether requests may be sent to it.
    ///
    /// # Errors
    /// `Unavailable` with the store's name and why, at once.
    pub fn ready(&self) -> Result<(), Status> {
        if self.state.is_up() { Ok(()) } else { Err(self.unavailable(&self.state.reason())) }
    }

    /// The answer for a request that was not executed because the store cannot be reached.
    #[must_use]
    pub fn unavailable(&self, reason: &str) -> Status {
        let error =
            KindredError::StoreUnavailable { store: self.name().to_owned(), reason: reason.to_owned() };
        kindred_transport::grpc::refusal(&error)
    }

    /// How the pure half sees it now.
    #[must_use]
    pub fn member(&self) -> Member {
        Member { index: self.index, slot: self.slot(), kind: self.kind, up: self.state.is_up() }
    }

    /// The slot: the configured one, or what the shard said.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        let configured = self.link.load().spec.slot;
        configured.or_else(|| match &*self.state.phase() {
            Phase::Up(identity) => identity.slot,
            _ => None,
        })
    }

    /// KV as bytes.
    #[must_use]
    pub fn kv(&self) -> KVClient<Channel> {
        KVClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The same for a `RangeStream`, which is read as fast as its client reads.
    #[must_use]
    pub fn range_streams(&self) -> KVClient<Pooled> {
        KVClient::new(self.reads()).max_decoding_message_size(usize::MAX)
    }

    /// One of KV's unary calls; its answer stays the pieces that it came in. A long one stands before no short one's.
    ///
    /// # Errors
    /// The store's, or what happened to the connection.
    pub async fn ask(&self, method: Call, long: bool, request: Request<Bytes>) -> Result<Rope, Status> {
        let path = match method {
            Call::Range | Call::RangeStream => "/etcdserverpb.KV/Range",
            Call::Put => "/etcdserverpb.KV/Put",
            Call::DeleteRange => "/etcdserverpb.KV/DeleteRange",
            Call::Txn => "/etcdserverpb.KV/Txn",
        };
        if long {
            let pooled = self.reads();
            return ask(pooled.channel(), path, request).await;
        }
        ask(self.unary(), path, request).await
    }

    /// The stream of batches, when it is a shard that serves them.
    #[must_use]
    pub fn lane(&self) -> Option<Arc<Lane>> {
        if self.state.has_batches() {
            self.link.load().ways.lane.as_ref().map(|lanes| lanes.get().clone())
        } else {
            None
        }
    }

    /// The same, when what a read over several stores asks may go over it.
    #[must_use]
    pub fn cut_lane(&self) -> Option<Arc<Lane>> {
        if self.state.has_batched_cuts() { self.lane() } else { None }
    }

    /// Watch as bytes.
    #[must_use]
    pub fn watch(&self) -> WatchClient<Pooled> {
        WatchClient::new(self.link.load().ways.watches.take()).max_decoding_message_size(usize::MAX)
    }

    fn unary(&self) -> Channel {
        self.link.load().ways.unary.get().clone()
    }

    fn reads(&self) -> Pooled {
        self.link.load().ways.reads.get().take()
    }

    /// The shard's feeds: for a live one, or for one that waits for clients.
    #[must_use]
    pub fn feeds(&self, live: bool) -> FeedsClient<Pooled> {
        let link = self.link.load();
        let pool = if live { &link.ways.feeds } else { &link.ways.watches };
        FeedsClient::new(pool.take()).max_decoding_message_size(usize::MAX)
    }

    /// etcd's leases.
    #[must_use]
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// etcd's maintenance.
    #[must_use]
    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The shard's own API. Only for stores of that kind.
    #[must_use]
    pub fn shard(&self) -> ShardClient<Channel> {
        ShardClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The shard's leases whose home changes. Only for stores of that kind.
    #[must_use]
    pub fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.unary())
    }

    /// The shard's units, for calls that say little. Only for stores of that kind.
    #[must_use]
    pub fn units(&self) -> UnitsClient<Channel> {
        UnitsClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The same for calls that carry data, which stand before nobody's answer.
    #[must_use]
    pub fn units_in_bulk(&self) -> UnitsClient<Pooled> {
        UnitsClient::new(self.link.load().ways.bulk.take()).max_decoding_message_size(usize::MAX)
    }

    /// The feed of a unit that moves.
    #[must_use]
    pub fn feed_in_bulk(&self) -> FeedsClient<Pooled> {
        FeedsClient::new(self.link.load().ways.bulk.take()).max_decoding_message_size(usize::MAX)
    }

    /// Whether it is a shard.
    #[must_use]
    pub fn is_shard(&self) -> bool {
        self.kind == StoreKind::Shard
    }

    /// Notes a revision that a client is shown, in the one order of [`crate::shown`].
    pub(crate) fn shows(&self, revision: Revision) {
        if self.shown.load(Ordering::SeqCst) < revision.get() {
            self.shown.fetch_max(revision.get(), Ordering::SeqCst);
        }
    }

    /// Notes a revision at or above its beginning, in the same order.
    pub(crate) fn has_begun(&self, at: Revision) {
        self.begun.fetch_max(at.get(), Ordering::SeqCst);
    }

    /// A revision at or above its beginning; zero before the first handshake.
    pub(crate) fn begun(&self) -> Revision {
        Revision(self.begun.load(Ordering::SeqCst))
    }

    /// The highest revision that clients were shown of it.
    pub(crate) fn highest_shown(&self) -> Revision {
        Revision(self.shown.load(Ordering::SeqCst))
    }
}
