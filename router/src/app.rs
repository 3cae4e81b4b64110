//! The state that all requests share: the map, the stores, the identity of this router.

use std::sync::Arc;

use kindred_router_core::plan::Refusal;
use kindred_transport::{Drain, grpc};
use tonic::Status;

use crate::execute::compact::Compactor;
use crate::execute::fan_out::shared::SharedReads;
use crate::feeds::{self, Feeds};
use crate::identity::Identity;
use crate::leases::LeaseRouter;
use crate::meta::Cluster;
use crate::metrics::Metrics;
use crate::moves::rate::CopySpeed;
use crate::routing::Routing;
use crate::stores::Stores;
use crate::stores::releases::PinNames;

/// The shared state of a router. It holds nothing that must outlive the process.
#[derive(Debug)]
pub struct App {
    pub routing: Arc<Routing>,
    pub stores: Stores,
    /// The cluster's state, and the meta store that it comes from.
    pub cluster: Arc<Cluster>,
    pub identity: Arc<Identity>,
    /// Merged event streams of key ranges, shared by all watches.
    pub feeds: Arc<Feeds>,
    pub leases: Arc<LeaseRouter>,
    pub compactor: Arc<Compactor>,
    /// Makes ids for the pins of reads over several stores.
    pub pins: PinNames,
    /// Small reads over several stores that are under way.
    pub shared_reads: SharedReads,
    /// How fast this router copies the data of moves.
    pub copy_speed: CopySpeed,
    pub metrics: Metrics,
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
        Arc::new(Self {
            leases: LeaseRouter::new(stores.clone(), cluster.clone(), routing.clone()),
            compactor: Compactor::new(stores.clone()),
            routing,
            metrics: Metrics::new(),
            feeds: Feeds::new(stores.clone(), feeds, drain.killed()),
            stores,
            cluster,
            identity,
            pins: PinNames::default(),
            shared_reads: SharedReads::default(),
            copy_speed: CopySpeed::default(),
            drain,
        })
    }
}

/// The gRPC status of a refusal by the plan.
#[must_use]
pub fn refused(refusal: &Refusal) -> Status {
    grpc::refusal(&refusal.0)
}
