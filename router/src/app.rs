//! Builds the parts of a router, and hands each endpoint and task what it uses.

use std::sync::Arc;

use kindred_database::serve::Sender;
use kindred_proto::etcdserverpb::{
    auth_server::AuthServer, cluster_server::ClusterServer, lease_server::LeaseServer,
    maintenance_server::MaintenanceServer,
};
use kindred_proto::raw::{kv::k_v_server::KVServer, watch::watch_server::WatchServer};
use kindred_router_core::watch_session;
use kindred_transport::Drain;
use kindred_transport::health::OfProcess;
use kindred_transport::unary::UnaryCalls as _;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::service;

use crate::admin;
use crate::admission::Admission;
use crate::auth::guarded::Guarded;
use crate::endpoint::{auth, cluster, kv, lease, maintenance, refuse, watch};
use crate::execute::compact::Compactor;
use crate::execute::fan_out::live::ReadPath;
use crate::execute::fan_out::shared::SharedReads;
use crate::feeds::{self, Feeds};
use crate::identity::Identity;
use crate::leases::LeaseRouter;
use crate::meta;
use crate::meta::auth::Users;
use crate::meta::take::StateKeeper;
use crate::metrics::WatchMetrics;
use crate::moves;
use crate::moves::mover::Mover;
use crate::moves::rate::CopySpeed;
use crate::moves::taken::Taken;
use crate::routing::Routing;
use crate::snapshots::Snapshots;
use crate::stores::{Stores, background};
use crate::traffic::{Traffic, samples};
use crate::watch::around::WatchPath;

/// The parts that endpoints and tasks share. None holds anything that must outlive the process.
#[derive(Debug)]
pub struct App {
    pub stores: Stores,
    pub routing: Arc<Routing>,
    pub keeper: Arc<StateKeeper>,
    pub identity: Arc<Identity>,
    /// Merged event streams of key ranges, shared by all watches.
    pub feeds: Arc<Feeds>,
    leases: Arc<LeaseRouter>,
    compactor: Arc<Compactor>,
    /// The users and roles of clients.
    pub users: Arc<Users>,
    /// What clients ask, counted.
    pub traffic: Arc<Traffic>,
    /// Admits long lists.
    pub admission: Arc<Admission>,
    /// The shutdown of the router.
    drain: Drain,
}

impl App {
    #[must_use]
    pub fn new(
        routing: Arc<Routing>,
        stores: Stores,
        users: Arc<Users>,
        identity: Identity,
        drain: Drain,
        feeds: feeds::Options,
        admission: Arc<Admission>,
    ) -> Self {
        let (cluster, identity) = (users.cluster.clone(), Arc::new(identity));
        let leases = LeaseRouter::new(stores.clone(), cluster.clone(), routing.clone());
        let traffic = Traffic::new();
        traffic.kinds.set_limits(&cluster.state().scheme(), &meta::take::limits(&cluster.state()));
        let keeper = Arc::new(StateKeeper {
            traffic: traffic.clone(),
            cluster,
            stores: stores.clone(),
            routing: routing.clone(),
            leases: leases.clone(),
            identity: identity.clone(),
            drain: drain.clone(),
        });
        let compactor = Compactor::new(stores.clone());
        let feeds = Feeds::new(stores.clone(), feeds, drain.killed());
        Self { stores, routing, keeper, identity, feeds, leases, compactor, users, traffic, admission, drain }
    }

    /// KV for clients, and the reads that they share.
    #[must_use]
    pub fn kv(&self, max_request_bytes: usize) -> kv::Kv {
        let (stores, routing, ids) = (self.stores.clone(), self.routing.clone(), self.identity.ids());
        let reads = ReadPath::new(stores.clone(), routing.clone(), ids, self.drain.clone());
        let parts = kv::Parts {
            stores,
            routing,
            shared_reads: SharedReads::new(reads.clone()),
            reads,
            leases: self.leases.clone(),
            compactor: self.compactor.clone(),
            identity: self.identity.clone(),
            traffic: self.traffic.clone(),
            admission: self.admission.clone(),
        };
        kv::Kv::new(parts, max_request_bytes, self.users.gate.clone())
    }

    /// What watches use.
    #[must_use]
    pub fn watch_path(&self, sessions: watch_session::Settings) -> Arc<WatchPath> {
        Arc::new(WatchPath {
            sessions,
            routing: self.routing.clone(),
            stores: self.stores.clone(),
            feeds: self.feeds.clone(),
            compactor: self.compactor.clone(),
            ids: self.identity.ids(),
            metrics: WatchMetrics::default(),
            traffic: self.traffic.clone(),
            gate: self.users.gate.clone(),
            drain: self.drain.clone(),
        })
    }

    /// All services of etcd's API, for clients.
    #[must_use]
    pub fn services(&self, kv: &kv::Kv, sessions: watch_session::Settings) -> Guarded<service::Routes> {
        let max_message = kv.message_bytes_max();
        let (stores, identity) = (self.stores.clone(), self.identity.clone());
        let gate = self.users.gate.clone();
        let lease = lease::Lease::new(
            self.leases.clone(),
            stores.clone(),
            identity.clone(),
            gate.clone(),
            self.traffic.clone(),
            self.drain.clone(),
        );
        let watch = WatchServer::new(watch::Watch::new(self.watch_path(sessions)));
        let snapshots = Sender::new(
            // Whoever may take a snapshot may read everything.
            service::Routes::new(KVServer::new(kv.for_router()).max_decoding_message_size(max_message))
                .add_service(LeaseServer::new(lease.for_router()))
                .prepare(),
            Snapshots::new(stores.clone(), self.routing.clone()),
        );
        let of_meta = self.keeper.cluster.clone();
        let maintenance =
            maintenance::Maintenance::new(stores, identity.clone(), of_meta.clone(), snapshots, gate.clone());
        let maintenance = MaintenanceServer::new(maintenance).accept_compressed(Gzip);
        let cluster =
            ClusterServer::new(cluster::Cluster::new(identity.clone(), of_meta)).accept_compressed(Gzip);
        let auth = AuthServer::new(auth::Auth::new(identity, self.users.clone(), kv)).accept_compressed(Gzip);
        let kv = KVServer::new(kv.clone()).accept_compressed(Gzip).max_decoding_message_size(max_message);
        let services = service::Routes::new(kv)
            .add_service(watch.accept_compressed(Gzip).max_decoding_message_size(max_message))
            .add_service(LeaseServer::new(lease).accept_compressed(Gzip))
            .add_service(refuse::Refuse::new(maintenance, refuse::MAINTENANCE))
            .add_service(refuse::Refuse::new(cluster, refuse::CLUSTER))
            .add_service(auth)
            .add_service(OfProcess::service(|| true, self.drain.stopping()))
            .prepare();
        Guarded::new(services, gate)
    }

    /// What moves use, and the admin port, which begins them.
    #[must_use]
    pub fn mover(&self) -> Arc<Mover> {
        Arc::new(Mover {
            keeper: self.keeper.clone(),
            stores: self.stores.clone(),
            routing: self.routing.clone(),
            leases: self.leases.clone(),
            identity: self.identity.clone(),
            copy_speed: CopySpeed::default(),
            taken: Taken::default(),
        })
    }

    /// What the admin port shows and changes.
    #[must_use]
    pub fn admin(&self, mover: Arc<Mover>, kv: &kv::Kv) -> admin::Parts {
        let snapshots = Snapshots::new(self.stores.clone(), self.routing.clone());
        let (feeds, traffic) = (self.feeds.clone(), self.traffic.clone());
        let admission = self.admission.clone();
        let kv = kv.for_router();
        admin::Parts { mover, feeds, snapshots, traffic, admission, kv, drain: self.drain.clone() }
    }

    /// Starts the tasks that run as long as the router and have nothing to finish when it stops.
    pub fn start(&self, mover: &Arc<Mover>, moves: moves::Settings) {
        let until_stopped = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let killed = self.drain.killed();
            tokio::spawn(async move { killed.run_until_cancelled(task).await });
        };
        let (keeper, compactor) = (&self.keeper, &self.compactor);
        match keeper.cluster.meta.clone() {
            // The stores' tasks were started when the state was taken.
            Some(meta) => {
                let following = meta::follow::run(keeper.clone(), compactor.clone(), meta.clone());
                until_stopped(Box::pin(following));
                until_stopped(Box::pin(moves::run(mover.clone(), meta, moves)));
            }
            None => self.stores.iter().for_each(|store| background::start(keeper, store)),
        }
        until_stopped(Box::pin(self.users.clone().follow()));
        until_stopped(Box::pin(samples::run(self.traffic.clone(), self.stores.ticks())));
        until_stopped(Box::pin(compactor.clone().settle_owed()));
        until_stopped(Box::pin(compactor.observed.clone().run(keeper.cluster.meta.clone())));
    }
}
