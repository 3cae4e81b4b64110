//! `etcdserverpb.Maintenance` over all stores.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use kindred_database::serve::{Sender, Stream};
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::auth::methods::Who;
use kindred_transport::admin::{DB_BYTES_MIN, ETCD_VERSION};
use tonic::{Request, Response, Status, service::Routes};

use crate::auth::{Credentials, Gate};
use crate::execute::raise::raise_shards;
use crate::execute::{Deadline, Effect, call};
use crate::identity::Identity;
use crate::meta::{Cluster, routers};
use crate::stores::{Store, Stores};

/// The time limit of a status: kube-apiserver asks often and decides features by it, so no store may delay it for long.
const STATUS_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Maintenance {
    stores: Stores,
    identity: Arc<Identity>,
    cluster: Arc<Cluster>,
    snapshots: Sender<Routes>,
    gate: Arc<Gate>,
}

/// The types of the alarms that reachable stores have raised.
pub async fn alarms(stores: &Stores) -> Vec<String> {
    let deadline = Deadline::within(STATUS_LIMIT);
    let asked = stores.iter().filter(|store| store.ready().is_ok()).map(|store| async move {
        let listed = call(store, Effect::Read, deadline, || async {
            store.maintenance().alarm(deadline.request(pb::AlarmRequest::default())).await
        });
        listed.await.map(|listed| listed.alarms).unwrap_or_default()
    });
    let raised = join_all(asked).await.into_iter().flatten();
    let mut types: Vec<_> = raised.map(|alarm| alarm.alarm().as_str_name().to_owned()).collect();
    types.sort_unstable();
    types.dedup();
    types
}

type Each<T> = Vec<(Arc<Store>, Result<T, Status>)>;

impl Maintenance {
    #[must_use]
    pub fn new(
        stores: Stores,
        identity: Arc<Identity>,
        cluster: Arc<Cluster>,
        snapshots: Sender<Routes>,
        gate: Arc<Gate>,
    ) -> Self {
        Self { stores, identity, cluster, snapshots, gate }
    }

    /// Makes the same call to every store at once.
    async fn each<T, F, Fut>(&self, effect: Effect, deadline: Deadline, send: F) -> Each<T>
    where
        F: Fn(Arc<Store>) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let send = &send;
        join_all(self.stores.iter().map(|store| async move {
            (store.clone(), call(store, effect, deadline, || send(store.clone())).await)
        }))
        .await
    }
}

/// All answers, or the first error if any store failed.
fn all<T>(each: Each<T>) -> Result<Vec<(Arc<Store>, T)>, Status> {
    each.into_iter().map(|(store, result)| result.map(|value| (store, value))).collect()
}

/// The answers of the reachable stores, or the first error if there are none.
fn reached<T>(each: Each<T>) -> Result<Vec<(Arc<Store>, T)>, Status> {
    let mut failed = None;
    let mut answers = Vec::new();
    for (store, result) in each {
        match result {
            Ok(value) => answers.push((store, value)),
            Err(status) => failed = failed.or(Some(status)),
        }
    }
    match failed {
        Some(status) if answers.is_empty() => Err(status),
        _ => Ok(answers),
    }
}

fn revision_of(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

#[tonic::async_trait]
impl pb::maintenance_server::Maintenance for Maintenance {
    type SnapshotStream = Stream;

    /// Sends etcd's database file with all keys of all stores.
    async fn snapshot(&self, _: Request<pb::SnapshotRequest>) -> Result<Response<Stream>, Status> {
        Ok(Response::new(self.snapshots.stream()))
    }

    /// Lists the alarms of all reachable stores. Activating and disarming reaches every store; the member ids are those
    /// of the list.
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Write);
        let listing = request.get_ref().action() == pb::alarm_request::AlarmAction::Get;
        let who = if listing { Who::User } else { Who::Root };
        self.gate.may_call(who, || Credentials::of(&request)).await?;
        let request = request.into_inner();
        let each = self
            .each(Effect::Read, deadline, |store| async move {
                store.maintenance().alarm(deadline.request(request)).await
            })
            .await;
        let answers = if listing { reached(each)? } else { all(each)? };
        let revision = answers.iter().map(|(_, a)| revision_of(a.header.as_ref())).max().unwrap_or(0);
        let mut alarms: Vec<pb::AlarmMember> = answers.into_iter().flat_map(|(_, a)| a.alarms).collect();
        alarms.sort_unstable_by_key(|alarm| (alarm.member_id, alarm.alarm));
        alarms.dedup();
        Ok(Response::new(pb::AlarmResponse { header: self.identity.typed_header(revision), alarms }))
    }

    /// Always answers, with the version that this router serves; names the stores that failed in `errors`.
    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let deadline = Deadline::within(STATUS_LIMIT);
        let each = self
            .each(Effect::Read, deadline, |store| async move {
                store.maintenance().status(deadline.request(pb::StatusRequest {})).await
            })
            .await;
        let mut status = pb::StatusResponse {
            version: ETCD_VERSION.to_owned(),
            storage_version: ETCD_VERSION.to_owned(),
            leader: routers::leader(&self.cluster, &routers::Member::of(&self.identity)),
            raft_term: kindred_router_core::header_ids::RAFT_TERM,
            ..Default::default()
        };
        let mut revision = 0;
        for (store, result) in each {
            match result {
                Ok(of_store) => {
                    status.db_size += of_store.db_size;
                    status.db_size_in_use += of_store.db_size_in_use;
                    status.db_size_quota += of_store.db_size_quota;
                    revision = revision.max(revision_of(of_store.header.as_ref()));
                    let errors = of_store.errors.into_iter();
                    status.errors.extend(errors.map(|error| format!("store {:?}: {error}", store.name())));
                }
                Err(error) => status.errors.push(format!("store {:?}: {}", store.name(), error.message())),
            }
        }
        status.db_size = status.db_size.max(DB_BYTES_MIN);
        status.header = self.identity.typed_header(revision);
        // Clients take a growing index as a sign of a live cluster, and revisions grow.
        status.raft_index = revision.unsigned_abs();
        status.raft_applied_index = status.raft_index;
        Ok(Response::new(status))
    }

    async fn defragment(
        &self,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let each = self
            .each(Effect::Read, deadline, |store| async move {
                store.maintenance().defragment(deadline.request(pb::DefragmentRequest {})).await
            })
            .await;
        all(each)?;
        // etcd's answer has no header either.
        Ok(Response::new(pb::DefragmentResponse { header: None }))
    }

    /// Combines the hashes of all stores in the order of the configuration; every store must answer.
    async fn hash(&self, request: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let each = self
            .each(Effect::Read, deadline, |store| async move {
                store.maintenance().hash(deadline.request(pb::HashRequest {})).await
            })
            .await;
        let answers = all(each)?;
        let revision = answers.iter().map(|(_, a)| revision_of(a.header.as_ref())).max().unwrap_or(0);
        let hash = combine(answers.iter().map(|(_, answer)| answer.hash));
        Ok(Response::new(pb::HashResponse { header: self.identity.typed_header(revision), hash }))
    }

    /// Like `hash`. A revision is one of the shards, which are all raised to it if one of them has reached it. A stock
    /// etcd beside shards is hashed at its own current revision.
    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let revision = request.into_inner().revision;
        let shards = self.stores.iter().any(|store| store.is_shard());
        if revision > 0 {
            raise_shards(&self.stores, Revision(revision), deadline).await?;
        }
        let each = self
            .each(Effect::Read, deadline, |store| async move {
                let revision = if shards && !store.is_shard() { 0 } else { revision };
                store.maintenance().hash_kv(deadline.request(pb::HashKvRequest { revision })).await
            })
            .await;
        let answers = all(each)?;
        let max = |of: fn(&pb::HashKvResponse) -> i64| answers.iter().map(|(_, a)| of(a)).max().unwrap_or(0);
        let at = max(|answer| revision_of(answer.header.as_ref()));
        Ok(Response::new(pb::HashKvResponse {
            header: self.identity.typed_header(at),
            hash: combine(answers.iter().map(|(_, answer)| answer.hash)),
            compact_revision: max(|answer| answer.compact_revision),
            hash_revision: max(|answer| answer.hash_revision),
        }))
    }
}

/// The hash of a single store is unchanged; several are folded in order (FNV-1a over their bytes).
fn combine(mut hashes: impl Iterator<Item = u32>) -> u32 {
    let first = hashes.next().unwrap_or(0);
    hashes.fold(first, |sum, hash| {
        hash.to_be_bytes().iter().fold(sum, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_order_and_one_is_itself() {
        assert_eq!(combine([7].into_iter()), 7);
        assert_ne!(combine([7, 8].into_iter()), combine([8, 7].into_iter()));
    }
}
