//! Requests as apiservers send them, small enough for the batch stream between router and shard, and a shard's counters
//! of them.

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
};
use kindred_tests::{admin::Admin, client::Client};
use tonic::Status;

pub fn put_of(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

/// A read of all keys below a prefix that ends in a slash.
pub fn below(prefix: &str) -> RangeRequest {
    let end = format!("{}0", prefix.trim_end_matches('/'));
    RangeRequest { key: prefix.to_owned().into(), range_end: end.into(), ..Default::default() }
}

pub fn put_op(key: &str, value: &str) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(put_of(key, value))) }
}

pub fn get_op(key: &str) -> RequestOp {
    let get = RangeRequest { key: key.to_owned().into(), ..Default::default() };
    RequestOp { request: Some(Request::RequestRange(get)) }
}

pub fn delete_op(key: &str) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

pub fn mod_is(key: &str, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Default::default()
    }
}

/// Puts a key and returns the revision of the write.
pub async fn put(client: &Client, key: &str, value: &str) -> Result<i64, Status> {
    let answer = client.kv.clone().put(put_of(key, value)).await?.into_inner();
    Ok(answer.header.unwrap_or_default().revision)
}

pub async fn range(client: &Client, request: RangeRequest) -> Result<RangeResponse, Status> {
    Ok(client.kv.clone().range(request).await?.into_inner())
}

pub async fn get(client: &Client, key: &str) -> Result<RangeResponse, Status> {
    range(client, RangeRequest { key: key.to_owned().into(), ..Default::default() }).await
}

/// Deletes a key. Returns the number of deleted keys and the revision.
pub async fn delete(client: &Client, key: &str) -> Result<(i64, i64), Status> {
    let request = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    let answer = client.kv.clone().delete_range(request).await?.into_inner();
    Ok((answer.deleted, answer.header.unwrap_or_default().revision))
}

pub async fn txn(
    client: &Client,
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
) -> Result<TxnResponse, Status> {
    Ok(client.kv.clone().txn(TxnRequest { compare, success, failure }).await?.into_inner())
}

/// Adds one to a number by optimistic transactions. Returns the new number, and how many transactions failed before one
/// succeeded.
pub async fn add_one(client: &Client, key: &str) -> anyhow::Result<(u64, usize)> {
    let mut found = get(client, key).await.with_context(|| format!("get {key}"))?;
    for conflicts in 0.. {
        let (next, revision) = match found.kvs.first() {
            Some(kv) => (std::str::from_utf8(&kv.value)?.parse::<u64>()? + 1, kv.mod_revision),
            None => (1, 0),
        };
        let success = vec![put_op(key, &next.to_string())];
        let answer = txn(client, vec![mod_is(key, revision)], success, vec![get_op(key)]).await;
        let answer = answer.with_context(|| format!("txn on {key}"))?;
        if answer.succeeded {
            return Ok((next, conflicts));
        }
        let other = answer.responses.into_iter().next().and_then(|op| op.response);
        let Some(Response::ResponseRange(range)) = other else { anyhow::bail!("no range: {other:?}") };
        found = range;
    }
    unreachable!("an endless loop")
}

/// The value and the mod revision of the only key of an answer.
pub fn value_of(answer: &RangeResponse) -> anyhow::Result<(Bytes, i64)> {
    let [kv] = answer.kvs.as_slice() else { anyhow::bail!("one key is expected: {answer:?}") };
    Ok((kv.value.clone(), kv.mod_revision))
}

/// The sum of a shard's counters with this name for one method.
pub async fn calls(shard_admin: &str, counter: &str, method: &str) -> anyhow::Result<u64> {
    let (_, text) = Admin::at(shard_admin).ask("GET", "/metrics", "").await?;
    let (start, method) = (format!("{counter}{{"), format!("grpc_method=\"{method}\""));
    let lines = text.lines().filter(|line| line.starts_with(&start) && line.contains(&method));
    let values = lines.map(|line| Ok(line.rsplit(' ').next().context("a value")?.parse::<f64>()? as u64));
    values.sum()
}

/// How many calls of a method a shard has read and not answered, whether they came alone or in a batch.
pub async fn open_calls(shard_admin: &str, method: &str) -> anyhow::Result<u64> {
    // The counter of ended calls is read first, so the difference is never negative.
    let handled = calls(shard_admin, "grpc_server_handled_total", method).await?;
    let started = calls(shard_admin, "grpc_server_started_total", method).await?;
    Ok(started - handled)
}
