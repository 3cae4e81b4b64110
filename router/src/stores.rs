//! The stores behind the router: channels, handshake and state of each.
//!
//! A store that cannot be reached makes its own requests fail at once and nothing else: every store has connections and
//! a monitor task of its own. Watches have connections apart from unary calls, so that a backlog of events never stands
//! before an answer.

pub mod clocks;
pub mod failure;
pub mod monitor;
pub mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kindred_partition_config::ids::{Slot, StoreName};
use kindred_proto::etcdserverpb::{lease_client::LeaseClient, maintenance_client::MaintenanceClient};
use kindred_proto::raw::{kv::k_v_client::KVClient, watch::watch_client::WatchClient};
use kindred_proto::shard_v1::{feeds_client::FeedsClient, shard_client::ShardClient};
use kindred_router_core::store::{Member, StoreIx, StoreKind};
use kindred_transport::clock::WallClock;
use kindred_transport::connect::ConnectError;
use kindred_transport::{Connector, Endpoint};
use kindred_wire::refusal::KindredError;
use tonic::Status;
use tonic::transport::Channel;

use clocks::Clocks;
use state::{Phase, StateCell};

/// Connections for watch streams of one store: a client that stops reading holds part of a connection's window.
const WATCH_CONNECTIONS: usize = 4;

/// What the configuration says of a store.
#[derive(Debug, Clone)]
pub struct StoreSpec {
    /// Its name.
    pub name: StoreName,
    /// What it is.
    pub kind: StoreKind,
    /// Its slot, for shards.
    pub slot: Option<Slot>,
    /// The UUID that it must have, when the configuration pins one.
    pub uuid: Option<String>,
    /// Where it listens.
    pub endpoints: Vec<Endpoint>,
}

/// One store.
#[derive(Debug)]
pub struct Store {
    /// Its position in the list of stores.
    pub index: StoreIx,
    /// What the configuration says.
    pub spec: StoreSpec,
    unary: Channel,
    watches: Vec<Channel>,
    /// For feeds that are always read: nobody's slow client stands before their events.
    feeds: Channel,
    next_watch: AtomicUsize,
    state: StateCell,
}

impl Store {
    /// A store that is not connected yet.
    ///
    /// # Errors
    /// When TLS is asked for and cannot be set up.
    pub fn new(index: StoreIx, spec: StoreSpec, connector: &Connector) -> Result<Self, ConnectError> {
        let unary = connector.channel_any(&spec.endpoints)?;
        let watches: Result<Vec<_>, _> =
            (0..WATCH_CONNECTIONS).map(|_| connector.channel_any(&spec.endpoints)).collect();
        let feeds = connector.channel_any(&spec.endpoints)?;
        let state = StateCell::default();
        Ok(Self { index, spec, unary, watches: watches?, feeds, next_watch: AtomicUsize::new(0), state })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name.0
    }

    /// Its state, for those who wait for it or show it.
    #[must_use]
    pub fn state(&self) -> &StateCell {
        &self.state
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
        Member { index: self.index, slot: self.slot(), kind: self.spec.kind, up: self.state.is_up() }
    }

    /// The slot: the configured one, or what the shard said.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        self.spec.slot.or_else(|| match &*self.state.phase() {
            Phase::Up(identity) => identity.slot,
            _ => None,
        })
    }

    /// KV as bytes.
    #[must_use]
    pub fn kv(&self) -> KVClient<Channel> {
        KVClient::new(self.unary.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Watch as bytes, on one of the connections for watches.
    #[must_use]
    pub fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.watch_channel()).max_decoding_message_size(usize::MAX)
    }

    fn watch_channel(&self) -> Channel {
        let next = self.next_watch.fetch_add(1, Ordering::Relaxed) % self.watches.len();
        self.watches[next].clone()
    }

    /// The shard's feeds: for a live one, or for one that waits for clients.
    #[must_use]
    pub fn feeds(&self, live: bool) -> FeedsClient<Channel> {
        let channel = if live { self.feeds.clone() } else { self.watch_channel() };
        FeedsClient::new(channel).max_decoding_message_size(usize::MAX)
    }

    /// etcd's leases.
    #[must_use]
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.unary.clone()).max_decoding_message_size(usize::MAX)
    }

    /// etcd's maintenance.
    #[must_use]
    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.unary.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The shard's own API. Only for stores of that kind.
    #[must_use]
    pub fn shard(&self) -> ShardClient<Channel> {
        ShardClient::new(self.unary.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Whether it is a shard.
    #[must_use]
    pub fn is_shard(&self) -> bool {
        self.spec.kind == StoreKind::Shard
    }
}

/// All stores, in the order of the configuration.
#[derive(Debug, Clone)]
pub struct Stores {
    all: Arc<[Arc<Store>]>,
    default: StoreIx,
    clocks: Arc<Clocks>,
}

impl Stores {
    /// The stores; `default` serves keys of no Kind and leases whose ids clients chose; `wall_clock` is the
    /// router's own.
    #[must_use]
    pub fn new(all: Vec<Arc<Store>>, default: StoreIx, wall_clock: WallClock) -> Self {
        let clocks = Arc::new(Clocks::new(all.len(), wall_clock));
        Self { all: all.into(), default, clocks }
    }

    /// What is known of their clocks.
    #[must_use]
    pub fn clocks(&self) -> &Arc<Clocks> {
        &self.clocks
    }

    /// One of them. Indexes come from the same list.
    #[must_use]
    pub fn get(&self, index: StoreIx) -> &Arc<Store> {
        &self.all[index.0]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.all.iter()
    }

    /// Those that can be reached now.
    pub fn up(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.all.iter().filter(|store| store.state.is_up())
    }

    /// The default store.
    #[must_use]
    pub fn default_store(&self) -> StoreIx {
        self.default
    }

    /// How the pure half sees them now.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.all.iter().map(|store| store.member()).collect()
    }

    /// The shard with this slot.
    #[must_use]
    pub fn by_slot(&self, slot: u32) -> Option<&Arc<Store>> {
        self.all.iter().find(|store| store.slot().is_some_and(|own| u32::from(own.get()) == slot))
    }
}
