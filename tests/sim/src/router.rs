//! A router: the product's machines and functions, over simulated calls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kindred_engine::error::EngineError;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::state::StoreState;
use kindred_router::leases::Leases;
use kindred_router_core::compaction::Owed;
use kindred_router_core::consistent_read::RevisionScope;
use kindred_router_core::shown::ShownRevisions;
use kindred_router_core::store::{Member, StoreIx, StoreKind};

use crate::history::History;
use crate::messages::{CallError, Reply, Request};
use crate::meta::MetaStore;
use crate::net::Net;
use crate::sabotage::Sabotage;
use crate::topology::Topology;
use crate::world::{Life, World};

pub mod compact;
pub mod feed;
pub mod feeds;
pub mod leases;
pub mod moves;
pub mod one;
pub mod reads;
pub mod routes;
pub mod session;

pub use session::Session;

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fail {
    /// etcd's `ErrCompacted`.
    Compacted,
    /// etcd's `ErrFutureRev`.
    Future,
    /// etcd's `ErrLeaseNotFound`.
    NoLease,
    /// Certainly not executed.
    Unavailable,
    /// It may have been executed.
    Unknown,
}

impl From<CallError> for Fail {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Down => Self::Unavailable,
            CallError::Lost => Self::Unknown,
            CallError::Refused(EngineError::Compacted { .. }) => Self::Compacted,
            CallError::Refused(EngineError::Future { .. }) => Self::Future,
            CallError::Refused(EngineError::LeaseNotFound(_)) => Self::NoLease,
            CallError::Refused(_) | CallError::Other(_) => Self::Unavailable,
        }
    }
}

/// One life of a router.
pub struct Router {
    /// The world.
    pub world: World,
    /// Its connections.
    pub net: Rc<Net>,
    /// Which router it is.
    pub at: usize,
    /// Which life.
    pub life: Life,
    /// The stores, and the first map.
    pub topology: Rc<Topology>,
    /// The meta store.
    pub meta: Rc<MetaStore>,
    known: routes::Known,
    /// What it has shown.
    pub shown: ShownRevisions,
    /// Which lease is known where.
    leases: Leases,
    owed: RefCell<Owed>,
    /// Clients' compactions up to here.
    compacted: Cell<Revision>,
    feeds: feeds::Feeds,
    /// The start of the run, as the product's machines count time.
    epoch: std::time::Instant,
    /// What happened.
    pub history: Rc<History>,
    /// What is wrong with it.
    pub sabotage: Option<Sabotage>,
}

impl Router {
    /// Starts a router, with what it does by itself.
    #[must_use]
    pub fn start(
        world: &World,
        net: &Rc<Net>,
        at: usize,
        (topology, meta): (&Rc<Topology>, &Rc<MetaStore>),
        history: &Rc<History>,
        sabotage: Option<Sabotage>,
    ) -> Rc<Self> {
        let life = world.born();
        world.note(format_args!("r{at} starts"));
        let router = Rc::new(Self {
            world: world.clone(),
            net: net.clone(),
            at,
            life,
            topology: topology.clone(),
            meta: meta.clone(),
            known: routes::Known::new(meta.cached(at)),
            shown: ShownRevisions::new(RevisionScope::Kind),
            leases: Leases::default(),
            owed: RefCell::default(),
            compacted: Cell::new(Revision::ZERO),
            feeds: feeds::Feeds::new(world),
            epoch: crate::clocks::epoch(),
            history: history.clone(),
            sabotage,
        });
        for store in 0..net.shards().len() {
            let (this, store) = (router.clone(), StoreIx(store));
            world.spawn(life, async move { this.follow_ended(store).await });
        }
        let this = router.clone();
        world.spawn(life, async move { this.settle_compactions().await });
        router.start_moves();
        router
    }

    async fn call(&self, store: StoreIx, request: Request) -> Result<Reply, CallError> {
        self.net.call(self.at, store, request).await
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    fn members(&self) -> Vec<Member> {
        let member = |index: StoreIx| Member {
            index,
            slot: Some(self.topology.slots[index.0]),
            kind: StoreKind::Shard,
            up: self.net.is_up(self.at, index),
        };
        self.stores().map(member).collect()
    }

    /// The stores that were not removed.
    fn stores(&self) -> impl Iterator<Item = StoreIx> + use<> {
        let state = self.state();
        (0..state.stores.len()).filter(move |at| state.stores[*at].state != StoreState::Removed).map(StoreIx)
    }

    /// The Kind, if it is on several stores.
    fn spread(&self, kind: usize) -> Vec<kindred_partition_config::kind::KindPrefix> {
        use kindred_router_core::plan::Placement;
        self.routes().spread_in(&self.topology.kind_range(kind))
    }

    /// Its sessions, feeds and tasks end.
    pub fn stop(&self) {
        self.world.note(format_args!("r{} stops", self.at));
        self.world.kill(self.life);
        self.net.end_life(self.life);
        self.feeds.clear();
    }
}
