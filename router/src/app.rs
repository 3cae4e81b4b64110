//! The state that all requests share: the map, the stores, the identity of this router.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use kindred_partition_config::ids::Epoch;
use kindred_router_core::compaction::Owed;
use kindred_router_core::consistent_read::RevisionScope;
use kindred_router_core::plan::Refusal;
use kindred_router_core::revision_pairs::RevisionPairs;
use kindred_transport::{Drain, grpc};
use tokio::sync::watch;
use tonic::Status;

use crate::execute::fan_out::shared::SharedReads;
use crate::feeds::{self, Feeds};
use crate::identity::Identity;
use crate::leases::attach::Leases;
use crate::meta::Cluster;
use crate::metrics::Metrics;
use crate::move_buffer::MoveBuffer;
use crate::moves::rate::CopySpeed;
use crate::stores::Stores;
use crate::stores::releases::PinNames;
use crate::taken::Taken;
use kindred_router_core::routes::Routes;
use kindred_router_core::shown::ShownRevisions;

/// The shared state of a router. It holds nothing that must outlive the process.
#[derive(Debug)]
pub struct App {
    /// The routing table. A request loads it once and so sees one whole map. Only [`App::swap`] replaces it.
    pub routes: ArcSwap<Routes>,
    /// The generation of `routes`, for tasks that wait for a newer one.
    generation: watch::Sender<Epoch>,
    /// Limits the requests that wait while their keys move.
    pub move_buffer: MoveBuffer,
    pub stores: Stores,
    /// The cluster's state, and the meta store that it comes from.
    pub cluster: Cluster,
    pub identity: Arc<Identity>,
    /// Merged event streams of key ranges, shared by all watches.
    pub feeds: Arc<Feeds>,
    /// Which leases are attached to stores other than their homes, as far as this router has seen.
    pub leases: Leases,
    /// Compactions that stores missed while they were away. Never locked across an await.
    pub owed: Mutex<Owed>,
    /// The highest revision that a client compacted through this router. Watches must not begin below it, although a
    /// feed may still hold older events.
    pub compacted: AtomicI64,
    /// Which shard revisions correspond to those of a default store that is a stock etcd. Never locked across an await.
    pub revision_pairs: Mutex<RevisionPairs>,
    /// Makes ids for the pins of reads over several stores.
    pub pins: PinNames,
    /// Small reads over several stores that are under way.
    pub shared_reads: SharedReads,
    /// The highest revisions shown of Kinds that are on several stores.
    pub shown: ShownRevisions,
    /// How fast this router copies the data of moves.
    pub copy_speed: CopySpeed,
    pub(crate) taken: Taken,
    pub metrics: Metrics,
    /// The shutdown of the router.
    pub drain: Drain,
}

impl App {
    #[must_use]
    pub fn new(
        routes: Routes,
        stores: Stores,
        cluster: Cluster,
        identity: Arc<Identity>,
        scope: RevisionScope,
        drain: Drain,
        feeds: feeds::Options,
    ) -> Arc<Self> {
        Arc::new(Self {
            generation: watch::Sender::new(routes.generation()),
            taken: Taken::new(routes.generation()),
            move_buffer: MoveBuffer::default(),
            routes: ArcSwap::from_pointee(routes),
            metrics: Metrics::new(),
            feeds: Feeds::new(stores.clone(), feeds, drain.killed()),
            stores,
            cluster,
            identity,
            leases: Leases::default(),
            owed: Mutex::default(),
            compacted: AtomicI64::new(0),
            revision_pairs: Mutex::default(),
            pins: PinNames::default(),
            shared_reads: SharedReads::default(),
            shown: ShownRevisions::new(scope),
            copy_speed: CopySpeed::default(),
            drain,
        })
    }

    /// Replaces the map if this one is newer. All its stores must have been added before. Requests that began by the
    /// old map finish by it.
    pub fn swap(&self, routes: Routes) {
        let generation = routes.generation();
        self.generation.send_if_modified(|known| {
            let newer = generation > *known;
            if newer {
                // Stored before the generation is announced, and under the channel's lock, so that two swaps cannot
                // overtake each other.
                self.replace(routes);
                *known = generation;
            }
            newer
        });
    }

    /// A receiver of the map's generation, to wait for a newer one.
    #[must_use]
    pub fn generations(&self) -> watch::Receiver<Epoch> {
        self.generation.subscribe()
    }
}

/// The gRPC status of a refusal by the plan.
#[must_use]
pub fn refused(refusal: &Refusal) -> Status {
    grpc::refusal(&refusal.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kindred_partition_config::kind::KindScheme;
    use kindred_partition_config::map::{PartitionMap, StoreIdx};
    use kindred_router_core::store::StoreIx;
    use kindred_transport::{Connector, Workers};

    use super::*;

    fn routes(generation: u64) -> Routes {
        let map = PartitionMap::single(StoreIdx(0), Epoch(1));
        Routes::new(map, KindScheme::new("/registry"), Vec::new(), StoreIx(0))
            .of_generation(Epoch(generation))
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_newer_map_and_an_older_one_is_not_taken() {
        let stores = Stores::new(
            Connector::default(),
            Workers::default(),
            StoreIx(0),
            kindred_transport::clock::WallClock::System,
        );
        let config =
            kindred_partition_config::parse::parse_config(kindred_partition_config::parse::DEFAULT_CONFIG);
        let state = kindred_partition_config::state::ClusterState::bootstrap(&config.unwrap()).unwrap();
        let cluster = Cluster::new(state, None);
        let identity = Arc::new(Identity::new(1, 1, String::new(), Vec::new()));
        let drain = Drain::new(Duration::ZERO);
        let app = App::new(
            routes(1),
            stores,
            cluster,
            identity,
            RevisionScope::Kind,
            drain,
            feeds::Options::default(),
        );
        let mut known = app.generations();
        let waiting =
            tokio::spawn(async move { known.wait_for(|known| *known > Epoch(1)).await.map(|known| *known) });
        tokio::task::yield_now().await;
        app.swap(routes(3));
        assert_eq!(waiting.await.unwrap().ok(), Some(Epoch(3)));
        app.swap(routes(2));
        assert_eq!((app.routes.load().generation(), *app.generations().borrow()), (Epoch(3), Epoch(3)));
    }
}
