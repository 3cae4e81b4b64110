//! Leases at a stock etcd (R12). An etcd tells nobody when a lease is over, so a shard is the home of every lease that has
//! keys at several stores.
//!
//! * **Adopted**: a lease of a shard that has keys at the etcd. The etcd grants it under its id with the same TTL.
//! * **Taken over**: a lease that the etcd granted, when a shard is to have keys of it. The shard grants it with the same
//!   TTL, which begins anew, as in an etcd whose leader changes, and notes that the etcd has keys of it too.
//! * All others are the etcd's own.
//!
//! The shard's end of a lease is told to the etcd, unless that has all keys: then clients may renew it there, and it ends by
//! the etcd's own time. A keepalive goes to both before it is answered, so the etcd ends none
//! earlier than one TTL behind the last answer. If the shard is lost, the etcd ends it alone.

use bytes::Bytes;
use futures_util::StreamExt as _;
use kindred_partition_config::ids::LeaseId;
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use kindred_router_core::parts::store_ix;
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tonic::{Code, Status};

use super::LeaseRouter;
use crate::execute::{Deadline, Effect, call};
use crate::stores::Store;

/// The lease of an etcd: its granted TTL, and its keys if they are asked for.
async fn look(
    etcd: &Store,
    id: i64,
    keys: bool,
    deadline: Deadline,
) -> Result<Option<pb::LeaseTimeToLiveResponse>, Status> {
    let request = pb::LeaseTimeToLiveRequest { id, keys };
    let told = call(etcd, Effect::Read, deadline, || async {
        etcd.lease().lease_time_to_live(deadline.request(request)).await
    });
    // An unknown lease has TTL -1.
    Ok(Some(told.await?).filter(|told| told.ttl >= 0))
}

/// Tells an etcd of a lease that a shard has. It may have it already: adopted, or as one that was taken over; then its time
/// begins anew, because nobody may have renewed it there since.
///
/// # Errors
/// When it cannot be asked.
pub async fn adopt(etcd: &Store, lease: LeaseId, ttl: i64, deadline: Deadline) -> Result<(), Status> {
    let request = pb::LeaseGrantRequest { id: lease.get(), ttl };
    let granted = call(etcd, Effect::Read, deadline, || async {
        etcd.lease().lease_grant(deadline.request(request)).await
    });
    match granted.await {
        Err(status) if grpc::etcd_error(&status) == Some(EtcdError::LeaseExists) => {
            keep_alive(etcd, lease.get(), deadline).await
        }
        granted => granted.map(drop),
    }
}

/// Ends a lease at an etcd, which deletes its keys there. Idempotent.
///
/// # Errors
/// When it cannot be asked.
pub async fn end(etcd: &Store, lease: LeaseId, deadline: Deadline) -> Result<(), Status> {
    let request = pb::LeaseRevokeRequest { id: lease.get() };
    let revoked = call(etcd, Effect::Read, deadline, || async {
        etcd.lease().lease_revoke(deadline.request(request)).await
    });
    match revoked.await {
        Err(status) if status.code() != Code::NotFound => Err(status),
        _ => Ok(()),
    }
}

/// Makes a shard the home of a lease of which no shard knows. Returns the shard; `None` if the etcd has no such lease, or
/// there is no shard.
///
/// # Errors
/// When one of the two cannot be asked, or the etcd has no slot.
pub async fn take_over(
    leases: &LeaseRouter,
    lease: LeaseId,
    etcd: &Store,
    deadline: Deadline,
) -> Result<Option<StoreIx>, Status> {
    let Some(told) = look(etcd, lease.get(), false, deadline).await? else { return Ok(None) };
    let home = leases.cluster.state().lease_home().map(u32::from);
    let Some(home) = home.and_then(|slot| leases.stores.by_slot(slot)) else { return Ok(None) };
    let slot = etcd.slot().ok_or_else(|| super::lease_across_etcd(etcd))?;
    let request = pb::LeaseGrantRequest { id: lease.get(), ttl: told.granted_ttl };
    let granted = call(home, Effect::Read, deadline, || async {
        home.lease().lease_grant(deadline.request(request)).await
    });
    let is_new = match granted.await {
        Ok(_) => true,
        // Another router has taken it over.
        Err(status) if grpc::etcd_error(&status) == Some(EtcdError::LeaseExists) => false,
        Err(status) => return Err(status),
    };
    let request = shard::LeaseAttachRequest { id: lease.get(), store_slot: slot.get().into() };
    let attached = call(home, Effect::Read, deadline, || async {
        home.shard().lease_attach(deadline.request(request)).await
    });
    match attached.await {
        Ok(_) if !is_new || look(etcd, lease.get(), false, deadline).await?.is_some() => Ok(Some(home.index)),
        // It has ended at the etcd between the two looks, so nobody was told that it lives on here.
        Ok(_) => {
            let request = pb::LeaseRevokeRequest { id: lease.get() };
            call(home, Effect::Read, deadline, || async {
                home.lease().lease_revoke(deadline.request(request)).await
            })
            .await?;
            Ok(None)
        }
        // It has ended since.
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Renews a lease that an etcd may have.
///
/// # Errors
/// When the etcd cannot be asked.
pub async fn keep_alive(etcd: &Store, id: i64, deadline: Deadline) -> Result<(), Status> {
    let kept = call(etcd, Effect::Read, deadline, || async {
        // The request stream stays open until the answer is here.
        let requests = tokio_stream::once(pb::LeaseKeepAliveRequest { id }).chain(tokio_stream::pending());
        etcd.lease().lease_keep_alive(deadline.request(requests)).await
    });
    kept.await?.message().await.map(drop)
}

/// The keys of a lease that an etcd serves. Keys that have moved away are still there, and are not served.
///
/// # Errors
/// When it cannot be asked.
pub async fn keys(
    leases: &LeaseRouter,
    etcd: &Store,
    id: i64,
    deadline: Deadline,
) -> Result<Vec<Bytes>, Status> {
    let told = look(etcd, id, true, deadline).await?;
    let mut keys = told.map(|told| told.keys).unwrap_or_default();
    let routes = leases.routing.load_full();
    keys.retain(|key| {
        let stores = routes.map().lookup(key).placement.stores();
        stores.into_iter().any(|store| store_ix(store) == etcd.index)
    });
    Ok(keys)
}
