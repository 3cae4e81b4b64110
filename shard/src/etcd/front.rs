//! The entry of the etcd port: finds the service of a path, answers the paths that have no generated service, counts
//! calls, and translates the transport's own refusals into etcd's texts.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use kindred_proto::{
    etcdserverpb::{
        cluster_server::ClusterServer, lease_server::LeaseServer, maintenance_server::MaintenanceServer,
    },
    raw::{
        batches::batches_server::BatchesServer, feeds::feeds_server::FeedsServer,
        kv::k_v_server::KVServer as KvServer, watch::watch_server::WatchServer,
    },
    shard_v1::{
        leases_server::LeasesServer, shard_server::ShardServer, standbys_server::StandbysServer,
        units_server::UnitsServer,
    },
};
use kindred_transport::{
    health::{HealthServer, OfProcess},
    listener::ConnectionInfo,
};
use tonic::{
    Code, Status,
    body::Body,
    codec::CompressionEncoding::Gzip,
    codegen::{BoxFuture, Service, http},
    service::Routes,
};

use super::{
    Member, auth, cluster::ClusterService, kv::KvService, lease::LeaseService,
    maintenance::MaintenanceService, snapshot, watch::WatchService,
};
use crate::{
    etcd_status::{KvError, status},
    internal::{
        ShardService,
        batch::{self, BatchService},
        feed::FeedService,
        leases::LeasesService,
        standbys::StandbyService,
        units::{self, UnitService},
    },
};

/// Calls that exist on etcd's port and that a shard does not serve.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("/etcdserverpb.Maintenance/MoveLeader", "a shard has one member"),
    ("/etcdserverpb.Maintenance/Downgrade", "stop the process and start the other version"),
    ("/etcdserverpb.Cluster/MemberAdd", "a shard has one member"),
    ("/etcdserverpb.Cluster/MemberRemove", "a shard has one member"),
    ("/etcdserverpb.Cluster/MemberUpdate", "change --advertise-client-urls and restart"),
    ("/etcdserverpb.Cluster/MemberPromote", "a shard has one member"),
];

/// The call that a shard of a cluster awaits before it serves any other.
const HELLO: &str = "/kindred.shard.v1.Shard/Hello";
/// Says whether a process serves, to anybody, and nothing of what it has.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// The calls about the roles of members, which those that do not serve take too.
const STANDBYS: &str = "/kindred.shard.v1.Standbys/";

#[derive(Clone)]
pub struct Front {
    member: Member,
    kv: KvServer<KvService>,
    watch: WatchServer<WatchService>,
    lease: LeaseServer<LeaseService>,
    maintenance: MaintenanceServer<MaintenanceService>,
    cluster: ClusterServer<ClusterService>,
    shard: ShardServer<ShardService>,
    batches: BatchesServer<BatchService>,
    feeds: FeedsServer<FeedService>,
    units: UnitsServer<UnitService>,
    leases: LeasesServer<LeasesService>,
    standbys: StandbysServer<StandbyService>,
    health: HealthServer<OfProcess>,
}

impl Front {
    #[must_use]
    pub fn new(member: Member, in_cluster: bool, shard: ShardService, standbys: StandbyService) -> Self {
        let units = UnitService::new(&member, member.membership.shared_incarnation());
        let bytes_max = member.receive_bytes_max();
        let snapshots = (!in_cluster).then(|| {
            let kv = KvServer::new(KvService::new(member.clone()));
            let lease = LeaseServer::new(LeaseService(member.clone()));
            snapshot::sender(&member, Routes::new(kv).add_service(lease).prepare())
        });
        Self {
            kv: KvServer::new(KvService::new(member.clone()))
                .accept_compressed(Gzip)
                .max_decoding_message_size(bytes_max),
            watch: WatchServer::new(WatchService(member.clone()))
                .accept_compressed(Gzip)
                .max_decoding_message_size(bytes_max),
            lease: LeaseServer::new(LeaseService(member.clone()))
                .accept_compressed(Gzip)
                .max_decoding_message_size(bytes_max),
            maintenance: MaintenanceServer::new(MaintenanceService::new(member.clone(), snapshots))
                .accept_compressed(Gzip),
            cluster: ClusterServer::new(ClusterService(member.clone())).accept_compressed(Gzip),
            shard: ShardServer::new(shard),
            batches: BatchesServer::new(BatchService(member.clone()))
                .max_decoding_message_size(batch::MESSAGE_BYTES_MAX),
            feeds: FeedsServer::new(FeedService(member.clone())),
            units: UnitsServer::new(units).max_decoding_message_size(units::MESSAGE_BYTES_MAX),
            leases: LeasesServer::new(LeasesService(member.clone())),
            standbys: StandbysServer::new(standbys),
            health: {
                let (stopping, member) = (member.stopping.clone(), member.clone());
                OfProcess::service(move || member.is_serving(), stopping)
            },
            member,
        }
    }

    /// The calls that are answered without passing through here.
    #[must_use]
    pub fn unary_calls(&self) -> KvService {
        KvService::new(self.member.clone())
    }

    /// Answers what no generated service does.
    fn by_path(&self, request: http::Request<Body>) -> BoxFuture<http::Response<Body>, Infallible> {
        let member = self.member.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if let Some((what, instead)) = UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == path) {
                let what = what.trim_start_matches("/etcdserverpb.");
                return Ok(status(&KvError::Unsupported { what, instead }).into_http());
            }
            if let Some(method) = path.strip_prefix("/etcdserverpb.Auth/") {
                let current = match member.handle.current().await {
                    Ok(current) => current,
                    Err(error) => return Ok(status(&error).into_http()),
                };
                if let Some(answer) = auth::serve(member.ids, method, current, request).await {
                    return Ok(answer);
                }
            }
            let (service, method) =
                path.trim_start_matches('/').split_once('/').unwrap_or((path.as_str(), ""));
            Ok(Status::unimplemented(format!("unknown method {method} for service {service}")).into_http())
        })
    }
}

impl Service<http::Request<Body>> for Front {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        let path = request.uri().path();
        let of_standbys = path.starts_with(STANDBYS);
        let inner: BoxFuture<_, _> = if path.starts_with(HEALTH) {
            self.health.call(request)
        } else if !self.member.is_serving() && path != HELLO && !of_standbys {
            Box::pin(std::future::ready(Ok(status(&self.member.serves_not()).into_http())))
        } else if let Err(refused) =
            self.member.door.admits_at(path, ConnectionInfo::of(request.extensions()), request.headers())
        {
            Box::pin(std::future::ready(Ok(refused.into_http())))
        } else if UNSUPPORTED.iter().any(|(unsupported, _)| *unsupported == path) {
            self.by_path(request)
        } else if path.starts_with("/etcdserverpb.KV/") {
            self.kv.call(request)
        } else if path.starts_with("/etcdserverpb.Watch/") {
            self.watch.call(request)
        } else if path.starts_with("/etcdserverpb.Lease/") {
            self.lease.call(request)
        } else if path.starts_with("/etcdserverpb.Maintenance/") {
            self.maintenance.call(request)
        } else if path.starts_with("/etcdserverpb.Cluster/") {
            self.cluster.call(request)
        } else if path.starts_with("/kindred.shard.v1.Shard/") {
            self.shard.call(request)
        } else if path.starts_with("/kindred.shard.v1.Batches/") {
            self.batches.call(request)
        } else if path.starts_with("/kindred.shard.v1.Feeds/") {
            self.feeds.call(request)
        } else if path.starts_with("/kindred.shard.v1.Units/") {
            self.units.call(request)
        } else if path.starts_with("/kindred.shard.v1.Leases/") {
            self.leases.call(request)
        } else if of_standbys {
            self.standbys.call(request)
        } else {
            self.by_path(request)
        };
        Answering { inner }
    }
}

/// A call in progress.
pub struct Answering {
    inner: BoxFuture<http::Response<Body>, Infallible>,
}

impl Future for Answering {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(self.inner.as_mut().poll(cx));
        // A refusal has no body, and its status is in the headers.
        let refused = Status::from_header_map(response.headers());
        let response = match refused.as_ref().and_then(grpc_go_size_error) {
            Some(refused) => refused.into_http(),
            None => response,
        };
        Poll::Ready(Ok(response))
    }
}

/// A status of the transport in the middle of a stream, translated if etcd has a text for it.
#[must_use]
pub fn transport_status(status: Status) -> Status {
    grpc_go_size_error(&status).unwrap_or(status)
}

/// Translates tonic's refusal of an oversized message into grpc-go's text and code.
fn grpc_go_size_error(refused: &Status) -> Option<Status> {
    if refused.code() != Code::OutOfRange {
        return None;
    }
    let numbers = refused.message().strip_prefix("Error, decoded message length too large: found ")?;
    let mut numbers = numbers.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    let (found, limit) = (numbers.next()?, numbers.next()?);
    Some(Status::resource_exhausted(format!("grpc: received message larger than max ({found} vs. {limit})")))
}
