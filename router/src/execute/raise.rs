//! Asks stores for their current revisions, and raises them.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_proto::shard_v1 as shard;
use kindred_transport::grpc;
use kindred_wire::batch::Method;
use kindred_wire::error::EtcdError;
use prost::Message as _;
use tonic::{Response, Status};

use super::{Deadline, Effect, attempt, over_batches};
use crate::stores::batch_stream::Op;
use crate::stores::failure::Failure;
use crate::stores::{Store, Stores};

#[must_use]
pub fn everything() -> Vec<shard::KeyRange> {
    let zero = Bytes::from_static(&[0]);
    vec![shard::KeyRange { key: zero.clone(), range_end: zero }]
}

/// The store's current revision for the ranges, raised to at least `to`. With a `generation`, only the parts of the
/// ranges count that this map places at the store; [`Epoch::NONE`] means everything that the store has.
///
/// # Errors
/// When the store cannot be reached or refuses.
pub async fn raise(
    store: &Store,
    ranges: Vec<shard::KeyRange>,
    to: Revision,
    generation: Epoch,
    deadline: Deadline,
) -> Result<Revision, Status> {
    let (ranged, to, generation) = (ranges.clone(), to.get(), generation.0);
    let over_batches = shard::RaiseSinceRequest { ranges, to, since: 0, pin: 0, generation }.encode_to_vec();
    let over_batches = Bytes::from(over_batches);
    let raised = attempt(store, Effect::Read, deadline, || async {
        if let Some(raised) = raise_over_batches(store, &over_batches, deadline).await {
            return Ok(raised?.current);
        }
        let request = shard::RaiseRequest { ranges: ranged.clone(), to, generation };
        let raised = store.shard().raise(deadline.request(request)).await.map_err(Failure::of)?;
        Ok(raised.into_inner().current)
    });
    raised.await.map(Revision)
}

/// Like [`raise`]; also returns whether anything has changed since a revision, and can pin the result.
///
/// # Errors
/// As [`raise`].
pub async fn raise_since(
    store: &Store,
    request: shard::RaiseSinceRequest,
    deadline: Deadline,
) -> Result<shard::RaiseSinceResponse, Status> {
    let over_batches = Bytes::from(request.encode_to_vec());
    attempt(store, Effect::Read, deadline, || async {
        if let Some(raised) = raise_over_batches(store, &over_batches, deadline).await {
            return raised;
        }
        let raised = store.shard().raise_since(deadline.request(request.clone())).await;
        raised.map(Response::into_inner).map_err(Failure::of)
    })
    .await
}

/// Raises every shard to a revision that a client has named.
///
/// # Errors
/// etcd's future revision if it is above all shards' current ones, and then no shard is raised; `Unavailable`
/// naming a shard that is away.
pub async fn raise_shards(stores: &Stores, revision: Revision, deadline: Deadline) -> Result<(), Status> {
    let shards: Vec<&Arc<Store>> = stores.iter().filter(|store| store.is_shard()).collect();
    let to = async |revision| {
        let raised = shards.iter().map(|store| raise(store, everything(), revision, Epoch::NONE, deadline));
        try_join_all(raised).await
    };
    let top = to(Revision::ZERO).await?.into_iter().max();
    if top.is_some_and(|top| revision > top) {
        return Err(grpc::status(EtcdError::FutureRevision));
    }
    to(revision).await.map(drop)
}

/// Sends a `RaiseSince` in a batch; `None` if the store takes none there.
async fn raise_over_batches(
    store: &Store,
    request: &Bytes,
    deadline: Deadline,
) -> Option<Result<shard::RaiseSinceResponse, Failure>> {
    let stream = store.snapshot_batches()?;
    // The request itself names the map and the pin.
    let op = Op {
        method: Method::RaiseSince,
        request: request.clone(),
        min_revision: Revision::ZERO,
        generation: Epoch::NONE,
        pin: 0,
        until: deadline.at(),
    };
    let answered = over_batches(store, &stream, op).await?;
    let malformed = |error: prost::DecodeError| Failure::Answered(Status::internal(error.to_string()));
    Some(answered.and_then(|answer| shard::RaiseSinceResponse::decode(answer).map_err(malformed)))
}
