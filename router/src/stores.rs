//! The stores behind the router: the connections, the handshake and the state of each.
//!
//! Every store has its own connections and its own monitor task, so an unreachable store fails only the requests to
//! itself, and those at once. Each class of traffic has its own connections (`Link`): nothing long delays a short
//! answer, and a client that does not read takes no window from others ([`pool`]).

pub mod background;
pub mod batch_stream;
pub mod clocks;
pub mod failure;
pub mod fence;
mod identify;
mod list;
pub mod members;
pub mod modes;
pub mod monitor;
pub mod pool;
pub mod releases;
pub mod standing;
pub mod state;
pub mod writes;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use kindred_partition_config::ids::{MemberId, Revision, Slot, StoreName};
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
use kindred_wire::protocol::NOT_PRIMARY;
use kindred_wire::refusal::KindredError;
use kindred_wire::rope::Rope;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use batch_stream::BatchStream;
use fence::FenceCell;
pub use list::{STORES_MAX, StoreListError, Stores};
use members::StoreMembers;
use modes::ToldCell;
use pool::{Pool, Pooled};
use releases::Releases;
use standing::Stands;
use state::{Phase, StateCell};
use writes::Writes;

/// The configuration of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSpec {
    pub name: StoreName,
    /// Whether it is a shard or a stock etcd.
    pub kind: StoreKind,
    /// The slot; shards only.
    pub slot: Option<Slot>,
    /// The UUID that the store must have, if the configuration pins one.
    pub uuid: Option<String>,
    /// For a replacement of a lost store, when it opens, in microseconds since the Unix epoch (R14).
    pub opens_at: Option<u64>,
    /// The addresses at which it listens.
    pub endpoints: Vec<Endpoint>,
    /// The member that serves it, if it has a record of its members (R19).
    pub primary: Option<MemberId>,
    /// Whether another member takes over when the one that serves is lost.
    pub has_standbys: bool,
}

/// What connections to stores are made with.
#[derive(Debug)]
struct Linking {
    connector: Connector,
    workers: Workers,
}

/// A store's configuration and connections. Replaced as a whole when either changes.
#[derive(Debug)]
struct Link {
    spec: Arc<StoreSpec>,
    ways: Arc<Ways>,
}

/// The connections to a store, by class of traffic.
#[derive(Debug)]
struct Ways {
    /// Closes all of them.
    cut: Cut,
    /// For handshakes and short calls: one per serving thread, so that a call and its answer stay on a thread.
    unary: PerThread<Channel>,
    /// For long reads and other streams that are read only as fast as a client takes them.
    reads: PerThread<Pool>,
    /// For watches, which may wait for their clients.
    watches: Pool,
    /// For live feeds, which are always read, so that no slow client delays their events.
    feeds: Pool,
    /// For the data of units that move.
    bulk: Pool,
    /// For batches of small operations, which no long answer delays; shards only.
    batches: Option<PerThread<Arc<BatchStream>>>,
}

impl Link {
    fn new(spec: StoreSpec, Linking { connector, workers }: &Linking) -> Result<Self, ConnectError> {
        let connector = match spec.kind {
            StoreKind::Shard => connector,
            StoreKind::Etcd => &connector.outside(),
        };
        // A store without an address gets one to which every connect fails at once.
        let nowhere = [Endpoint::unix("/dev/null/no-address-yet")];
        let endpoints = if spec.endpoints.is_empty() { &nowhere[..] } else { &spec.endpoints };
        let (connector, cut) = &connector.with_cut();
        let unary = workers.each(|| connector.router_channel(endpoints))?;
        let reads = workers.each(|| Pool::new(connector, endpoints))?;
        let pool = || Pool::new(connector, endpoints);
        let (watches, feeds, bulk) = (pool()?, pool()?, pool()?);
        let batches = match spec.kind {
            StoreKind::Shard => Some(workers.each(|| {
                connector.router_channel(endpoints).map(|channel| Arc::new(BatchStream::new(channel)))
            })?),
            StoreKind::Etcd => None,
        };
        let ways = Arc::new(Ways { cut: cut.clone(), unary, reads, watches, feeds, bulk, batches });
        Ok(Self { spec: Arc::new(spec), ways })
    }
}

/// How long requests to a store with standbys wait for one of them to take over, after the store went down.
const TAKES_OVER_MAX: Duration = Duration::from_secs(4);
/// How long the connections to a former primary stay after another one took over from it in good order, so that it
/// refuses what is under way.
const FORMER_STAYS: Duration = Duration::from_millis(150);

/// Closes the connections to a former primary. What it sends is of the past.
fn cut_former(former: Arc<Link>, served: bool) {
    if !served {
        // It may hang, and hold what is under way.
        former.ways.cut.now();
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep(FORMER_STAYS).await;
        former.ways.cut.now();
    });
}

#[derive(Debug)]
pub struct Store {
    /// Its index in the list of stores.
    pub index: StoreIx,
    name: StoreName,
    kind: StoreKind,
    link: ArcSwap<Link>,
    state: StateCell,
    /// The UUID that this router has met. It counts while the cluster's state has none: without a meta store, or while
    /// that is away.
    met: Mutex<Option<String>>,
    /// What the store last said that it cannot do, although it serves; empty if nothing.
    trouble: Mutex<String>,
    /// Held while the link is replaced or a handshake over it is accepted; never across an await.
    relinking: Mutex<()>,
    /// Its members.
    members: StoreMembers,
    /// Told when it is reached at another address, so that it is asked who it is at once.
    relinked: Notify,
    /// Cancelled when the store is removed; ends its tasks.
    removed: CancellationToken,
    releases: Releases,
    told: ToldCell,
    fence: FenceCell,
    writes: Writes,
    stands: Stands,
    /// The highest revision that clients were shown from this store.
    shown: AtomicI64,
    /// A revision at or above the first one of its present incarnation.
    begun: AtomicI64,
}

impl Store {
    /// A store that is not connected yet.
    ///
    /// # Errors
    /// When TLS is configured and cannot be set up.
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
            members: StoreMembers::default(),
            relinked: Notify::new(),
            removed: CancellationToken::new(),
            releases: Releases::default(),
            told: ToldCell::default(),
            fence: FenceCell::default(),
            writes: Writes::default(),
            stands: Stands::default(),
            shown: AtomicI64::new(0),
            begun: AtomicI64::new(0),
        })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// The configuration of the store at this time.
    #[must_use]
    pub fn spec(&self) -> Arc<StoreSpec> {
        self.link.load().spec.clone()
    }

    /// Changes how the store is reached. New requests are refused until the process at the new address has identified
    /// itself (R1); requests under way finish over the old connections.
    fn relink(&self, spec: StoreSpec, linking: &Linking) -> Result<(), ConnectError> {
        let other_member = self.spec().primary.is_some() && self.spec().primary != spec.primary;
        let link = Link::new(spec, linking)?;
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.state.is_up();
        let former = self.link.swap(Arc::new(link));
        let why = if other_member { "another member takes over" } else { "its address has changed" };
        self.state.set(Phase::Down(format!("{why}, not connected yet")));
        self.relinked.notify_one();
        if other_member {
            cut_former(former, served);
        }
        Ok(())
    }

    /// The members of the store.
    #[must_use]
    pub fn members(&self) -> &StoreMembers {
        &self.members
    }

    /// Told when the store may be reached at once, whatever was tried before.
    #[must_use]
    pub fn relinked(&self) -> &Notify {
        &self.relinked
    }

    /// Takes over a changed UUID, found by this router's handshake or another's; the connections stay. If the store is
    /// up under another UUID, it is set down until a handshake says who it is.
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
        self.relinked.notify_one();
    }

    /// The UUID at its last accepted handshake with this router.
    #[must_use]
    pub fn met(&self) -> Option<String> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn meet(&self, uuid: &str) {
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = Some(uuid.to_owned());
    }

    /// Whether `asked` is still the store's configuration, so that a handshake that began with it counts.
    #[must_use]
    pub fn is_current(&self, asked: &Arc<StoreSpec>) -> bool {
        Arc::ptr_eq(asked, &self.link.load().spec)
    }

    /// Accepts the result of a handshake, unless the configuration has changed since it began. Returns whether the kind
    /// of state changed.
    pub fn settle(&self, asked: &Arc<StoreSpec>, phase: Phase) -> bool {
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        let same = self.is_current(asked) && !self.removed.is_cancelled();
        same && self.state.set(phase)
    }

    /// Closes the store's connections because it is silent, so that waiting calls fail. The store may still execute
    /// what was sent, so writes end as after any lost connection (R11).
    pub fn cut(&self) {
        self.link.load().ways.cut.now();
    }

    /// What the store said that it cannot do although it serves; `None` if it can do everything, or is not up.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        Some(trouble.clone()).filter(|trouble| !trouble.is_empty() && self.state.is_up())
    }

    /// Notes what the store said that it cannot do; returns whether that is news.
    pub(crate) fn set_trouble(&self, said: &str) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *trouble != said;
        said.clone_into(&mut trouble);
        news
    }

    /// Who writes to it, if it is a stock etcd that is being adopted.
    #[must_use]
    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// How it answers when it is asked to stand at a revision.
    #[must_use]
    pub fn stands(&self) -> &Stands {
        &self.stands
    }

    /// Whether the store was removed from the configuration. It keeps its place in the list.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.is_cancelled()
    }

    /// Cancelled when the store is removed.
    #[must_use]
    pub fn removed(&self) -> &CancellationToken {
        &self.removed
    }

    fn remove(&self) {
        let _relinking = self.relinking.lock().unwrap_or_else(PoisonError::into_inner);
        self.removed.cancel();
        self.state.set(Phase::Refused("it was removed from the configuration".to_owned()));
    }

    #[must_use]
    pub fn state(&self) -> &StateCell {
        &self.state
    }

    /// The pins that are to be released at the store.
    #[must_use]
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// The store's answer to the durability modes that it was told.
    #[must_use]
    pub fn told(&self) -> &ToldCell {
        &self.told
    }

    /// What is known of its fence; stock etcds only.
    #[must_use]
    pub fn fence(&self) -> &FenceCell {
        &self.fence
    }

    /// Checks without waiting whether requests may be sent to it.
    ///
    /// # Errors
    /// `Unavailable` with the store's name and the reason.
    pub fn ready(&self) -> Result<(), Status> {
        if self.state.is_up() { Ok(()) } else { Err(self.unavailable(&self.state.reason())) }
    }

    /// The status for a request that was not executed because the store cannot be reached.
    #[must_use]
    pub fn unavailable(&self, reason: &str) -> Status {
        let error =
            KindredError::StoreUnavailable { store: self.name().to_owned(), reason: reason.to_owned() };
        let mut status = kindred_transport::grpc::refusal(&error);
        let down_for = self.state.down_for();
        if self.link.load().spec.has_standbys && down_for.is_none_or(|down| down < TAKES_OVER_MAX) {
            status.metadata_mut().insert(NOT_PRIMARY, MetadataValue::from_static(""));
        }
        status
    }

    /// A snapshot of the store for the pure crate.
    #[must_use]
    pub fn member(&self) -> Member {
        Member { index: self.index, slot: self.slot(), kind: self.kind, up: self.state.is_up() }
    }

    /// The configured slot, or else the one that the shard reported.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        let configured = self.link.load().spec.slot;
        configured.or_else(|| match &*self.state.phase() {
            Phase::Up(identity) => identity.slot,
            _ => None,
        })
    }

    /// KV with raw bytes.
    #[must_use]
    pub fn kv(&self) -> KVClient<Channel> {
        KVClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// KV for a `RangeStream`, which is read only as fast as its client reads.
    #[must_use]
    pub fn range_streams(&self) -> KVClient<Pooled> {
        KVClient::new(self.reads()).max_decoding_message_size(usize::MAX)
    }

    /// Makes a unary call of KV; the answer stays in the pieces in which it arrived. A `long` call uses the connections
    /// for long reads, so that it delays no short answer.
    ///
    /// # Errors
    /// The store's own, or what happened to the connection.
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

    /// The stream of batches; `None` for a store that does not serve them.
    #[must_use]
    pub fn batches(&self) -> Option<Arc<BatchStream>> {
        if self.state.has_batches() {
            self.link.load().ways.batches.as_ref().map(|streams| streams.get().clone())
        } else {
            None
        }
    }

    /// The stream of batches, if the store also takes the questions of a read over several stores there.
    #[must_use]
    pub fn snapshot_batches(&self) -> Option<Arc<BatchStream>> {
        if self.state.has_batched_snapshots() { self.batches() } else { None }
    }

    /// Watch with raw bytes.
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

    /// The shard's feeds; a `live` feed uses other connections than one that waits for its readers.
    #[must_use]
    pub fn feeds(&self, live: bool) -> FeedsClient<Pooled> {
        let link = self.link.load();
        let pool = if live { &link.ways.feeds } else { &link.ways.watches };
        FeedsClient::new(pool.take()).max_decoding_message_size(usize::MAX)
    }

    #[must_use]
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    #[must_use]
    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The shard's own API; shards only.
    #[must_use]
    pub fn shard(&self) -> ShardClient<Channel> {
        ShardClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The API for leases whose home changes; shards only.
    #[must_use]
    pub fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.unary())
    }

    /// The API for units, for calls with little data; shards only.
    #[must_use]
    pub fn units(&self) -> UnitsClient<Channel> {
        UnitsClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The API for units, for calls that carry data and must not delay short answers.
    #[must_use]
    pub fn units_in_bulk(&self) -> UnitsClient<Pooled> {
        UnitsClient::new(self.link.load().ways.bulk.take()).max_decoding_message_size(usize::MAX)
    }

    /// Whether it is a shard.
    #[must_use]
    pub fn is_shard(&self) -> bool {
        self.kind == StoreKind::Shard
    }

    /// Notes a revision that a client is shown from this store; ordered as [`crate::routing`] requires.
    pub(crate) fn shows(&self, revision: Revision) {
        if self.shown.load(Ordering::SeqCst) < revision.get() {
            self.shown.fetch_max(revision.get(), Ordering::SeqCst);
        }
    }

    /// Notes a revision at or above the first one of its present incarnation; ordered likewise.
    pub(crate) fn has_begun(&self, at: Revision) {
        self.begun.fetch_max(at.get(), Ordering::SeqCst);
    }

    /// A revision at or above the first one of its present incarnation; zero before the first handshake.
    pub(crate) fn begun(&self) -> Revision {
        Revision(self.begun.load(Ordering::SeqCst))
    }

    /// The highest revision that clients were shown from this store.
    pub(crate) fn highest_shown(&self) -> Revision {
        Revision(self.shown.load(Ordering::SeqCst))
    }
}
