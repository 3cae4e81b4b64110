//! Requests to a stock etcd, each nested in a transaction that checks the etcd's fence (R13). The fence is a key that
//! says which keys have been, or are being, taken away from the etcd. Because the etcd itself compares it, a router
//! that has not heard of a move can neither read nor write there.
//!
//! A refusal is certain: nothing was executed (R11). As with a shard's refusal, the request waits for a newer map.

use std::ops::ControlFlow;

use bytes::Bytes;
use kindred_partition_config::ids::Epoch;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::fence::FenceDoc;
use kindred_router_core::plan::Call;
use kindred_transport::grpc;
use kindred_wire::fence::{self, FENCE_KEY, Nested, Unnested};
use kindred_wire::peek::{self, WireError};
use kindred_wire::refusal::KindredError;
use prost::Message as _;
use tonic::{Status, Streaming};

use super::{Deadline, Effect, call};
use crate::not_owned::NotOwned;
use crate::stores::Store;
use crate::stores::fence::Known;

/// How often a request is sent if the fence keeps changing.
const TRIES: usize = 16;

/// How a call is nested in the transaction; for `RangeStream`, only its probe is.
fn nested(method: Call) -> Nested {
    match method {
        Call::Range | Call::RangeStream => Nested::Range,
        Call::Put => Nested::Put,
        Call::DeleteRange => Nested::DeleteRange,
        Call::Txn => Nested::Txn,
    }
}

/// Sends a request behind the fence.
///
/// # Errors
/// As [`call`]; also a refusal if the etcd no longer owns the keys.
pub async fn send(
    store: &Store,
    method: Call,
    effect: Effect,
    body: &Bytes,
    deadline: Deadline,
) -> Result<Bytes, Status> {
    guarded(store, method, effect, body, body, deadline).await
}

/// Opens a `RangeStream` at the current revision, or at the request's; also returns the revision for the header.
///
/// Only the opening is checked against the fence: the revision that is read lies before any later move, so its data
/// does not change.
///
/// # Errors
/// As [`call`]; also a refusal if the etcd no longer owns the keys.
pub async fn open(
    store: &Store,
    body: &Bytes,
    deadline: Deadline,
) -> Result<(Streaming<Bytes>, i64), Status> {
    let asked = peek::RangeRequest::parse(body).map_err(|error| malformed(&error))?;
    let key = fence::begins_behind(asked.key, asked.range_end).unwrap_or(asked.key);
    let revision = asked.revision;
    let probe = pb::RangeRequest { key: Bytes::copy_from_slice(key), revision, ..Default::default() };
    let probe = Bytes::from(probe.encode_to_vec());
    let answer = guarded(store, Call::Range, Effect::Read, body, &probe, deadline).await?;
    let current = peek::header_revision(&answer).map_err(|error| unreadable(store, &error))?;
    let streamed = Bytes::from(fence::streamed_at(body, if revision > 0 { revision } else { current }));
    let chunks = call(store, Effect::Read, deadline, || async {
        store.range_streams().range_stream(deadline.request(streamed.clone())).await
    });
    Ok((chunks.await?, current))
}

/// Sends `body` behind the fence; the fence is checked for the keys of `asked`.
async fn guarded(
    store: &Store,
    method: Call,
    effect: Effect,
    asked: &Bytes,
    body: &Bytes,
    deadline: Deadline,
) -> Result<Bytes, Status> {
    let nested = nested(method);
    if fence::touches_fence(nested, asked).map_err(|error| malformed(&error))? {
        return Err(grpc::refusal(&KindredError::Unsupported {
            what: "the key \"\\x00\" on a stock etcd",
            instead: "kindred keeps there what it has moved away; use another key",
        }));
    }
    for _ in 0..TRIES {
        let mut known = store.fence().known();
        let mut refused = refusal(&known.doc, nested, asked)?;
        if refused.is_some() && !known.is_fresh() {
            known = read(store, deadline).await?;
            refused = refusal(&known.doc, nested, asked)?;
        }
        if let Some(epoch) = refused {
            return Err(NotOwned { epoch }.status(first_key(nested, asked)));
        }
        let request = Bytes::from(fence::nest(nested, body, known.mod_revision));
        let answer = call(store, effect, deadline, || async {
            store.kv().txn(deadline.request(request.clone())).await
        })
        .await?;
        match fence::unnest(nested, &answer).map_err(|error| unreadable(store, &error))? {
            Unnested::Executed { answer, header } => {
                store.writes().answered(method, answer, header.revision);
                return Ok(fence::with_header(answer, header).into());
            }
            Unnested::Refused(fence) => learn(store, fence).map(drop)?,
        }
    }
    Err(NotOwned { epoch: Epoch::NONE }.status(first_key(nested, asked)))
}

/// Reads the fence key of an etcd.
///
/// # Errors
/// When the etcd cannot be reached, or the key holds something that is no fence.
pub async fn read(store: &Store, deadline: Deadline) -> Result<std::sync::Arc<Known>, Status> {
    let request = pb::RangeRequest { key: Bytes::from_static(FENCE_KEY), ..Default::default() };
    let request = Bytes::from(request.encode_to_vec());
    let answer = call(store, Effect::Read, deadline, || async {
        store.kv().range(deadline.request(request.clone())).await
    })
    .await?;
    let revision = peek::header_revision(&answer).map_err(|error| unreadable(store, &error))?;
    let fence = fence::fence_of(&answer, revision).map_err(|error| unreadable(store, &error))?;
    learn(store, fence)
}

fn learn(store: &Store, fence: fence::Fence<'_>) -> Result<std::sync::Arc<Known>, Status> {
    store.fence().learn(fence).map_err(|error| store.unavailable(&error.to_string()))
}

/// The lowest epoch by which the fence refuses a key of the request; `None` if it refuses none.
fn refusal(doc: &FenceDoc, nested: Nested, request: &[u8]) -> Result<Option<Epoch>, Status> {
    if doc.is_open() {
        return Ok(None);
    }
    let mut refused: Option<Epoch> = None;
    let mut look = |key: &[u8], range_end: &[u8]| {
        let more = doc.refuses(key, range_end);
        refused = match (refused, more) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    };
    let parsed = match nested {
        Nested::Range => peek::RangeRequest::parse(request).map(|range| look(range.key, range.range_end)),
        Nested::Put => peek::PutRequest::parse(request).map(|put| look(put.key, &[])),
        Nested::DeleteRange => {
            peek::DeleteRangeRequest::parse(request).map(|delete| look(delete.key, delete.range_end))
        }
        Nested::Txn => peek::visit_txn(request, &mut |part| {
            if let Some((key, range_end)) = part.span() {
                look(key, range_end);
            }
            ControlFlow::<()>::Continue(())
        })
        .map(drop),
    };
    parsed.map_err(|error| malformed(&error))?;
    Ok(refused)
}

/// The first key of a request, for the text of a refusal.
fn first_key(nested: Nested, request: &[u8]) -> Vec<u8> {
    let mut first = Vec::new();
    // The request was parsed before, so this cannot fail.
    let _ = match nested {
        Nested::Txn => peek::visit_txn(request, &mut |part| match part.span() {
            Some((key, _)) => {
                first = key.to_vec();
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        })
        .map(drop),
        // In all of these messages field 1 is the key.
        _ => peek::PutRequest::parse(request).map(|put| first = put.key.to_vec()),
    };
    first
}

fn malformed(error: &WireError) -> Status {
    grpc::refusal(&KindredError::Malformed { reason: error.to_string() })
}

fn unreadable(store: &Store, error: &WireError) -> Status {
    tracing::error!(store = store.name(), %error, "the etcd sent an answer that does not parse");
    store.unavailable(&error.to_string())
}
