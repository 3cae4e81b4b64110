//! `etcdserverpb.Lease` over several stores (R12): each call goes to the lease's home.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{Stream, StreamExt, TryStreamExt as _};
use kindred_partition_config::ids::LeaseId;
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use kindred_router_core::lease_fanout::{grant_home, union};
use kindred_transport::{Drain, ending, grpc};
use kindred_wire::error::EtcdError;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::auth::{Credentials, Entered, Gate};
use crate::execute::{Deadline, Effect, call};
use crate::identity::Identity;
use crate::leases::LeaseRouter;
use crate::stores::{Store, Stores};
use crate::traffic::Traffic;
use crate::traffic::leases::LeaseCall;
use crate::traffic::trace::Method;

/// How many keepalives of one client stream are under way at a time.
const KEEPALIVES_AT_ONCE: usize = 64;

/// The pause before a store that could not be reached is told once more that a lease is over.
const REVOKE_AGAIN: Duration = Duration::from_millis(50);

/// The time limit of a renewal.
const RENEWAL_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Lease {
    leases: Arc<LeaseRouter>,
    stores: Stores,
    identity: Arc<Identity>,
    /// Whom this serves; `None` for the router itself.
    gate: Option<Arc<Gate>>,
    traffic: Arc<Traffic>,
    drain: Drain,
}

impl Lease {
    #[must_use]
    pub fn new(
        leases: Arc<LeaseRouter>,
        stores: Stores,
        identity: Arc<Identity>,
        gate: Arc<Gate>,
        traffic: Arc<Traffic>,
        drain: Drain,
    ) -> Self {
        Self { leases, stores, identity, gate: Some(gate), traffic, drain }
    }

    /// The same for the router's own calls, which nobody checks.
    #[must_use]
    pub fn for_router(&self) -> Self {
        Self { gate: None, ..self.clone() }
    }

    /// Lets a call in that needs a user; `None` while clients need not say who they are.
    async fn enter<T: Sync>(&self, request: &Request<T>) -> Result<Option<Checked>, Status> {
        let Some(gate) = &self.gate else { return Ok(None) };
        let Some(entered) = gate.enter(|| Credentials::of(request)).await? else { return Ok(None) };
        entered.is_user()?;
        Ok(Some(Checked { gate: gate.clone(), entered }))
    }

    async fn grant(&self, request: Request<pb::LeaseGrantRequest>) -> Result<pb::LeaseGrantResponse, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Write);
        self.enter(&request).await?;
        let request = request.into_inner();
        let stores = &self.stores;
        let chosen = LeaseId::from_wire(request.id);
        let home = grant_home(chosen, &self.leases.members(), stores.default_store());
        let home = stores.get(home);
        if let Some(id) = chosen {
            self.leases.is_free(id, home, deadline).await?;
        }
        let mut granted = call(home, Effect::Write, deadline, || async {
            home.lease().lease_grant(deadline.request(request)).await
        })
        .await?;
        if let (true, Some(etcd), Some(lease)) =
            (home.is_shard(), self.leases.only_etcd(), LeaseId::from_wire(granted.id))
            && let Err(status) = self.leases.attach_all(&[lease], etcd, deadline).await
        {
            // It comes there with its first key, or when the leases of its home are looked through.
            tracing::debug!(%lease, error = status.message(), "a lease is not known yet at the etcd that has all keys");
        }
        let revision = granted.header.map_or(0, |header| header.revision);
        granted.header = self.identity.typed_header(revision);
        Ok(granted)
    }

    async fn revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<pb::LeaseRevokeResponse, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Write);
        let checked = self.enter(&request).await?;
        let id = request.into_inner().id;
        let lease = LeaseId(id);
        if let Some(Checked { entered, .. }) = &checked {
            self.leases.may_write(entered, lease, deadline).await?;
        }
        let revoke = |home: Arc<Store>| async move { revoke_at(&home, id, deadline).await };
        let revoked = self.leases.at_settled_home(lease, Effect::Write, deadline, revoke).await?;
        let Some((home, (revision, attached))) = revoked else {
            return Err(grpc::status(EtcdError::LeaseNotFound));
        };
        if home.is_shard() {
            // All its keys are gone when this is acknowledged. If it does not complete in time, the follower of the home's list of
            // ended leases does it.
            while !self.leases.finish(lease, &home, &attached).await {
                if deadline.at() <= Instant::now() + REVOKE_AGAIN {
                    return Err(deadline.passed());
                }
                tokio::time::sleep(REVOKE_AGAIN).await;
            }
        }
        let header = self.identity.typed_header(revision);
        Ok(pb::LeaseRevokeResponse { header })
    }
}

fn shown(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// A call of a user.
struct Checked {
    gate: Arc<Gate>,
    entered: Entered,
}

impl Checked {
    /// Refuses an answer that was permitted by rules that are not in use any more.
    fn is_as_it_was(checked: Option<&Self>) -> Result<(), Status> {
        checked.map_or(Ok(()), |Self { gate, entered }| gate.is_as_it_was(entered))
    }
}

/// A lease that was kept alive.
struct Kept {
    id: i64,
    /// Of the header.
    revision: i64,
    /// 0 for an unknown lease.
    ttl: i64,
}

impl Kept {
    async fn at_home(leases: &LeaseRouter, id: i64) -> Result<Self, Status> {
        let deadline = Deadline::within(RENEWAL_MAX);
        let request = pb::LeaseKeepAliveRequest { id };
        let kept = leases.at_settled_home(LeaseId(id), Effect::Read, deadline, |home| async move {
            let mut answers = call(&home, Effect::Read, deadline, || async {
                // The request stream stays open until the answer is here, because a server ends the call when the
                // client's half ends.
                let requests = tokio_stream::once(request).chain(tokio_stream::pending());
                home.lease().lease_keep_alive(deadline.request(requests)).await
            })
            .await?;
            // etcd answers an unknown lease with TTL 0. The end of the stream says nothing about the lease.
            let answer = answers.message().await?.ok_or_else(ending::broken_off)?;
            Ok(Some(answer).filter(|answer| answer.ttl > 0))
        });
        let (revision, ttl) = match kept.await? {
            Some((home, answer)) => {
                if home.is_shard() {
                    leases.keep_alive_at_etcds(LeaseId(id), deadline).await?;
                }
                (answer.header.map_or(0, |header| header.revision), answer.ttl)
            }
            None => (0, 0),
        };
        Ok(Self { id, revision, ttl })
    }
}

type KeepAlives = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

#[tonic::async_trait]
impl pb::lease_server::Lease for Lease {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let call =
            LeaseCall::begin(&self.traffic, request.extensions(), Method::LeaseGrant, request.get_ref());
        let granted = self.grant(request).await;
        if let Some(call) = call {
            let said = granted.as_ref().map(|granted| (granted.id, shown(granted.header.as_ref())));
            call.ended(said);
        }
        granted.map(Response::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = request.get_ref().id;
        let call =
            LeaseCall::begin(&self.traffic, request.extensions(), Method::LeaseRevoke, request.get_ref());
        let revoked = self.revoke(request).await;
        if let Some(call) = call {
            call.ended(revoked.as_ref().map(|revoked| (id, shown(revoked.header.as_ref()))));
        }
        revoked.map(Response::new)
    }

    type LeaseKeepAliveStream = KeepAlives;

    /// If the home of a lease cannot be reached, its keepalive is not answered, as by a slow server: the client tries
    /// again before the lease ends, and its other leases are not disturbed.
    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<KeepAlives>, Status> {
        let (leases, identity) = (self.leases.clone(), self.identity.clone());
        let stopping = self.drain.stopping();
        let (traffic, client) = (self.traffic.clone(), self.traffic.clients.of_call(request.extensions()));
        let (gate, credentials) = (self.gate.clone(), Arc::new(Credentials::of(&request)));
        let answers = request.into_inner().map(move |request| {
            let (leases, gate, credentials) = (leases.clone(), gate.clone(), credentials.clone());
            let (traffic, client) = (traffic.clone(), client.clone());
            async move {
                match request {
                    Ok(request) => {
                        let call = LeaseCall::begin_of(&traffic, &client, Method::LeaseKeepAlive, &request);
                        let kept = renew(&leases, gate.as_deref(), &credentials, request.id).await;
                        if let Some(call) = call {
                            call.ended(kept.as_ref().map(|kept| (kept.id, kept.revision)));
                        }
                        kept.map(Some).or_else(|status| match status.code() {
                            Code::Unavailable | Code::DeadlineExceeded => Ok(None),
                            _ => Err(status),
                        })
                    }
                    Err(status) => Err(status),
                }
            }
        });
        let answers = answers.buffered(KEEPALIVES_AT_ONCE).filter_map(move |kept| {
            let answer = |Kept { id, revision, ttl }| {
                let header = identity.typed_header(revision);
                pb::LeaseKeepAliveResponse { header, id, ttl }
            };
            std::future::ready(kept.transpose().map(|kept| kept.map(answer)))
        });
        // A drain ends the stream with Unavailable: an OK end would look to the client like its own close.
        let drained = stopping.clone();
        let ended = futures_util::stream::once(async { Err(grpc::status(EtcdError::Stopped)) })
            .filter(move |_| std::future::ready(drained.is_cancelled()));
        let answers = answers.take_until(stopping.cancelled_owned()).chain(ended);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let checked = self.enter(&request).await?.filter(|_| request.get_ref().keys);
        let request = request.into_inner();
        if let Some(Checked { entered, .. }) = &checked {
            self.leases.may_read(entered, LeaseId(request.id), deadline).await?;
        }
        let found =
            self.leases.at_settled_home(LeaseId(request.id), Effect::Read, deadline, |home| async move {
                // All stores are asked for their keys together, below.
                let request = pb::LeaseTimeToLiveRequest { keys: false, ..request };
                let answer = call(&home, Effect::Read, deadline, || async {
                    home.lease().lease_time_to_live(deadline.request(request)).await
                });
                // etcd answers an unknown lease with TTL -1.
                Ok(Some(answer.await?).filter(|answer| answer.ttl >= 0))
            });
        let mut answer = match found.await? {
            Some((_, answer)) => answer,
            None => pb::LeaseTimeToLiveResponse { id: request.id, ttl: -1, ..Default::default() },
        };
        if request.keys && answer.ttl >= 0 {
            answer.keys = self.leases.keys(request.id, deadline).await?;
        }
        if let Some(Checked { entered, .. }) = &checked {
            // Some may have been attached since, which nobody has checked.
            let may = |key: &bytes::Bytes| entered.rules.may_read(entered.caller.as_ref(), key, &[]);
            answer.keys.iter().try_for_each(may).map_err(grpc::status)?;
        }
        Checked::is_as_it_was(checked.as_ref())?;
        answer.header = self.identity.typed_header(answer.header.map_or(0, |header| header.revision));
        Ok(Response::new(answer))
    }

    /// The leases of all reachable stores, each once.
    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let checked = self.enter(&request).await?;
        let lists = join_all(self.stores.iter().map(|store| async move {
            call(store, Effect::Read, deadline, || async {
                store.lease().lease_leases(deadline.request(pb::LeaseLeasesRequest {})).await
            })
            .await
        }))
        .await;
        let (mut revision, mut parts, mut failed) = (0, Vec::new(), None);
        for list in lists {
            match list {
                Ok(list) => {
                    revision = revision.max(list.header.map_or(0, |header| header.revision));
                    parts.push(list.leases.into_iter().map(|lease| lease.id).collect::<Vec<_>>());
                }
                Err(status) => failed = Some(status),
            }
        }
        if let (true, Some(status)) = (parts.is_empty(), failed) {
            return Err(status);
        }
        let leases = union(parts);
        if let Some(Checked { entered, .. }) = checked.as_ref().filter(|checked| !checked.entered.is_root()) {
            let checks = futures_util::stream::iter(leases.clone())
                .map(|id| self.leases.may_read(entered, LeaseId(id), deadline))
                .buffer_unordered(KEEPALIVES_AT_ONCE);
            checks.try_collect::<()>().await?;
        }
        Checked::is_as_it_was(checked.as_ref())?;
        let leases = leases.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        let header = self.identity.typed_header(revision);
        Ok(Response::new(pb::LeaseLeasesResponse { header, leases }))
    }
}

/// Renews a lease for a client, which must be able to write all keys of it.
async fn renew(
    leases: &LeaseRouter,
    gate: Option<&Gate>,
    credentials: &Credentials,
    id: i64,
) -> Result<Kept, Status> {
    if let Some(gate) = gate
        && let Some(entered) = gate.enter(|| credentials.clone()).await?
    {
        entered.is_user()?;
        leases.may_write(&entered, LeaseId(id), Deadline::within(RENEWAL_MAX)).await?;
    }
    Kept::at_home(leases, id).await
}

/// Revokes a lease at a possible home. Returns the header revision and the slots of stores that still hold keys of it;
/// `None` if this store has no such lease.
async fn revoke_at(home: &Store, id: i64, deadline: Deadline) -> Result<Option<(i64, Vec<u32>)>, Status> {
    let revoked = if home.is_shard() {
        call(home, Effect::Write, deadline, || async {
            home.shard().lease_revoke(deadline.request(shard::LeaseRevokeRequest { id })).await
        })
        .await
        .map(|answer| (answer.revision, answer.attached_slots))
    } else {
        call(home, Effect::Write, deadline, || async {
            home.lease().lease_revoke(deadline.request(pb::LeaseRevokeRequest { id })).await
        })
        .await
        .map(|answer| (answer.header.map_or(0, |header| header.revision), Vec::new()))
    };
    match revoked {
        Ok(revoked) => Ok(Some(revoked)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}
