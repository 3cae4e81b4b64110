//! `etcdserverpb.Lease` over several stores (R12): each call goes to the lease's home.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::join_all;
use futures_util::{Stream, StreamExt};
use kindred_partition_config::ids::LeaseId;
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use kindred_router_core::lease_fanout::{grant_home, union};
use kindred_transport::{ending, grpc};
use kindred_wire::error::EtcdError;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::app::App;
use crate::execute::{Deadline, Effect, call};
use crate::leases::at_home;
use crate::not_owned::NotOwned;
use crate::stores::Store;
use crate::waiting::Waiting;

/// How many keepalives of one client stream are under way at a time.
const KEEPALIVES_AT_ONCE: usize = 64;

#[derive(Debug, Clone)]
pub struct Lease {
    app: Arc<App>,
}

impl Lease {
    #[must_use]
    pub fn new(app: Arc<App>) -> Self {
        Self { app }
    }
}

impl App {
    /// As [`at_home`]; retries while the home changes or keys of the lease are moving.
    async fn at_settled_home<T, F, Fut>(
        &self,
        lease: LeaseId,
        effect: Effect,
        deadline: Deadline,
        ask: F,
    ) -> Result<Option<(Arc<Store>, T)>, Status>
    where
        F: Fn(Arc<Store>) -> Fut,
        Fut: Future<Output = Result<Option<T>, Status>>,
    {
        let mut waiting = Waiting::new(&self.routing, effect, deadline.at());
        loop {
            let known = *self.routing.generations().borrow();
            let asked = |home| ask(self.stores.get(home).clone());
            match at_home(self.lease_homes(lease)?.stores, asked).await {
                // Nothing was executed.
                Err(status) if NotOwned::of(&status).is_some() => waiting.wait(known, &[]).await?,
                Ok(found) => return Ok(found.map(|(home, value)| (self.stores.get(home).clone(), value))),
                Err(status) => return Err(status),
            }
        }
    }

    async fn keep_alive(&self, id: i64) -> Result<pb::LeaseKeepAliveResponse, Status> {
        let deadline = Deadline::within(std::time::Duration::from_secs(5));
        let request = pb::LeaseKeepAliveRequest { id };
        let kept = self.at_settled_home(LeaseId(id), Effect::Read, deadline, |home| async move {
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
            Some((_, answer)) => (answer.header.map_or(0, |header| header.revision), answer.ttl),
            None => (0, 0),
        };
        Ok(pb::LeaseKeepAliveResponse { header: self.identity.typed_header(revision), id, ttl })
    }

    /// Refuses an id that a client chose if another store that may be the home of such ids has a lease with it.
    async fn is_free(&self, id: LeaseId, home: &Store, deadline: Deadline) -> Result<(), Status> {
        for other in self.lease_homes(id)?.stores.into_iter().filter(|other| *other != home.index) {
            let other = self.stores.get(other);
            let request = pb::LeaseTimeToLiveRequest { id: id.get(), keys: false };
            let told = call(other, Effect::Read, deadline, || async {
                other.lease().lease_time_to_live(deadline.request(request)).await
            });
            // A store that is away does not stop grants; the home makes its own check.
            if told.await.is_ok_and(|told| told.ttl >= 0) {
                return Err(grpc::status(EtcdError::LeaseExists));
            }
        }
        Ok(())
    }

    /// The keys of a lease at all reachable shards, together with `own`, the keys that its home reported. While some of
    /// them are moving a store may refuse to list them; then all are asked again.
    async fn lease_keys(
        &self,
        id: i64,
        own: Vec<bytes::Bytes>,
        deadline: Deadline,
    ) -> Result<Vec<bytes::Bytes>, Status> {
        let mut waiting = Waiting::new(&self.routing, Effect::Read, deadline.at());
        loop {
            let generation = self.routing.load().generation();
            let shards: Vec<_> = self.stores.up().filter(|store| store.is_shard()).collect();
            let parts = join_all(shards.into_iter().map(|store| async move {
                call(store, Effect::Read, deadline, || async {
                    let request = shard::LeaseKeysRequest { id, generation: generation.0 };
                    store.shard().lease_keys(deadline.request(request)).await
                })
                .await
            }));
            let parts = parts.await;
            let moving = |part: &Result<_, Status>| part.as_ref().is_err_and(|e| NotOwned::of(e).is_some());
            if parts.iter().any(moving) {
                waiting.wait(generation, &[]).await?;
                continue;
            }
            let parts = parts.into_iter().map(|part| part.map(|answer| answer.keys).unwrap_or_default());
            return Ok(union(parts.chain([own])));
        }
    }
}

type KeepAlives = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

#[tonic::async_trait]
impl pb::lease_server::Lease for Lease {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Write);
        let request = request.into_inner();
        let stores = &self.app.stores;
        let chosen = LeaseId::from_wire(request.id);
        let home = grant_home(chosen, &self.app.lease_members(), stores.default_store());
        let home = stores.get(home);
        if let Some(id) = chosen {
            self.app.is_free(id, home, deadline).await?;
        }
        let mut granted = call(home, Effect::Write, deadline, || async {
            home.lease().lease_grant(deadline.request(request)).await
        })
        .await?;
        let revision = granted.header.map_or(0, |header| header.revision);
        granted.header = self.app.identity.typed_header(revision);
        Ok(Response::new(granted))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Write);
        let id = request.into_inner().id;
        let lease = LeaseId(id);
        let revoke = |home: Arc<Store>| async move { revoke_at(&home, id, deadline).await };
        let revoked = self.app.at_settled_home(lease, Effect::Write, deadline, revoke).await?;
        let Some((home, (revision, attached))) = revoked else {
            return Err(grpc::status(EtcdError::LeaseNotFound));
        };
        if home.is_shard() {
            // If this does not complete, the follower of the home's list of ended leases does.
            self.app.finish_lease(lease, &home, &attached).await;
        }
        let header = self.app.identity.typed_header(revision);
        Ok(Response::new(pb::LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = KeepAlives;

    /// If the home of a lease cannot be reached, its keepalive is not answered, as by a slow server: the client tries
    /// again before the lease ends, and its other leases are not disturbed.
    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<KeepAlives>, Status> {
        let app = self.app.clone();
        let stopping = self.app.drain.stopping();
        let answers = request.into_inner().map(move |request| {
            let app = app.clone();
            async move {
                match request {
                    Ok(request) => {
                        app.keep_alive(request.id).await.map(Some).or_else(|status| match status.code() {
                            Code::Unavailable | Code::DeadlineExceeded => Ok(None),
                            _ => Err(status),
                        })
                    }
                    Err(status) => Err(status),
                }
            }
        });
        let answers =
            answers.buffered(KEEPALIVES_AT_ONCE).filter_map(|answer| async move { answer.transpose() });
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
        let request = request.into_inner();
        let found =
            self.app.at_settled_home(LeaseId(request.id), Effect::Read, deadline, |home| async move {
                // Shards are asked for their keys together, below.
                let request =
                    pb::LeaseTimeToLiveRequest { keys: request.keys && !home.is_shard(), ..request };
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
            let own = std::mem::take(&mut answer.keys);
            answer.keys = self.app.lease_keys(request.id, own, deadline).await?;
        }
        answer.header = self.app.identity.typed_header(answer.header.map_or(0, |header| header.revision));
        Ok(Response::new(answer))
    }

    /// The leases of all reachable stores, each once.
    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let lists = join_all(self.app.stores.iter().map(|store| async move {
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
        let leases = union(parts).into_iter().map(|id| pb::LeaseStatus { id }).collect();
        let header = self.app.identity.typed_header(revision);
        Ok(Response::new(pb::LeaseLeasesResponse { header, leases }))
    }
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
