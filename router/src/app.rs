//! The state that all requests share: the map, the stores, the identity of this router.

use std::sync::Arc;

use kindred_transport::Drain;

use crate::execute::compact::Compactor;
use crate::execute::fan_out::live::ReadPath;
use crate::execute::fan_out::shared::SharedReads;
use crate::feeds::{self, Feeds};
use crate::identity::Identity;
use crate::leases::LeaseRouter;
use crate::meta::Cluster;
use crate::meta::take::StateKeeper;
use crate::metrics::WatchMetrics;
use crate::moves::rate::CopySpeed;
use crate::routing::Routing;
use crate::snapshots::Snapshots;
use crate::stores::Stores;
use crate::stores::releases::PinNames;
use crate::watch::around::WatchPath;

/// The shared state of a router. It holds nothing that must outlive the process.
#[derive(Debug)]
pub struct App {
    pub routing: Arc<Routing>,
    pub stores: Stores,
    /// The cluster's state, and the meta store that it comes from.
    pub cluster: Arc<Cluster>,
    pub keeper: Arc<StateKeeper>,
    pub identity: Arc<Identity>,
    /// Merged event streams of key ranges, shared by all watches.
    pub feeds: Arc<Feeds>,
    pub leases: Arc<LeaseRouter>,
    pub compactor: Arc<Compactor>,
    pub reads: Arc<ReadPath>,
    pub shared_reads: Arc<SharedReads>,
    pub snapshots: Arc<Snapshots>,
    /// How fast this router copies the data of moves.
    pub copy_speed: CopySpeed,
    /// The shutdown of the router.
    pub drain: Drain,
}

impl App {
    #[must_use]
    pub fn new(
        routing: Arc<Routing>,
        stores: Stores,
        cluster: Arc<Cluster>,
        identity: Arc<Identity>,
        drain: Drain,
        feeds: feeds::Options,
    ) -> Arc<Self> {
        let pins = Arc::new(PinNames::default());
        let (ids, drained) = (identity.ids(), drain.clone());
        let reads = ReadPath::new(stores.clone(), routing.clone(), pins.clone(), ids, drained);
        let snapshots = Snapshots::new(stores.clone(), routing.clone(), pins);
        let leases = LeaseRouter::new(stores.clone(), cluster.clone(), routing.clone());
        let keeper = Arc::new(StateKeeper {
            cluster: cluster.clone(),
            stores: stores.clone(),
            routing: routing.clone(),
            leases: leases.clone(),
            identity: identity.clone(),
            drain: drain.clone(),
        });
        Arc::new(Self {
            leases,
            keeper,
            compactor: Compactor::new(stores.clone()),
            routing,
            feeds: Feeds::new(stores.clone(), feeds, drain.killed()),
            stores,
            cluster,
            identity,
            shared_reads: SharedReads::new(reads.clone()),
            reads,
            snapshots,
            copy_speed: CopySpeed::default(),
            drain,
        })
    }

    /// What watches use.
    #[must_use]
    pub fn watch_path(&self) -> Arc<WatchPath> {
        Arc::new(WatchPath {
            routing: self.routing.clone(),
            stores: self.stores.clone(),
            feeds: self.feeds.clone(),
            compactor: self.compactor.clone(),
            ids: self.identity.ids(),
            metrics: WatchMetrics::default(),
            drain: self.drain.clone(),
        })
    }
}
