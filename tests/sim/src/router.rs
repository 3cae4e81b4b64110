//! A router. The machines and functions are the product's; calls are simulated.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fail {
    /// etcd's `ErrCompacted`.
    Compacted,
    /// etcd's `ErrFutureRev`.
    Future,
    /// etcd's `ErrLeaseNotFound`.
    NoLease,
    /// The request was certainly not executed.
    Unavailable,
    /// The request may have been executed.
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

/// One process of a router.
pub struct Router {
    pub world: World,
    pub net: Rc<Net>,
    pub at: usize,
    pub life: Life,
    /// The stores, and the first map.
    pub topology: Rc<Topology>,
    pub meta: Rc<MetaStore>,
    known: routes::Known,
    pub shown: ShownRevisions,
    /// The stores that know each lease.
    leases: Leases,
    owed: RefCell<Owed>,
    /// The highest revision that clients have compacted.
    compacted: Cell<Revision>,
    feeds: feeds::Feeds,
    /// The start of the run, as the product's machines count time.
    epoch: std::time::Instant,
    pub history: Rc<History>,
    /// The sabotage of this run.
    pub sabotage: Option<Sabotage>,
}

impl Router {
    /// Starts a router and its own tasks.
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

    /// Ends its sessions, feeds and tasks.
    pub fn stop(&self) {
        self.world.note(format_args!("r{} stops", self.at));
        self.world.kill(self.life);
        self.net.end_life(self.life);
        self.feeds.clear();
    }
}
