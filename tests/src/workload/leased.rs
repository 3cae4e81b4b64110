//! Clients with leases. Each has a key that no other client writes. The key must exist as long as its lease, and no
//! longer.

use std::time::Duration;

use anyhow::Context;
use kindred_checker::{
    Key,
    history::{LeaseId, Outcome, Request},
};
use kindred_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
};
use rand::Rng as _;
use tonic::Status;

use super::{keys::KINDS, workers::Worker};

/// The lease never expires, as it is revoked before.
const TTL_S: i64 = 60;
/// A namespace that other clients read but do not write.
const NAMESPACE: &str = "lima";
const ROUNDS_MAX: u32 = 12;

/// Repeats rounds until the end of the run. Each round grants a lease, puts a key with it, renews the lease and reads
/// the key for a while, and then revokes the lease.
///
/// # Errors
/// If an answer does not fit its request.
pub async fn work(mut worker: Worker, number: usize) -> anyhow::Result<()> {
    let kind = &KINDS[number % 2];
    let key = Key::from(format!("{}{NAMESPACE}/leased{number}", kind.prefix));
    while !*worker.done.borrow() {
        if let Err(status) = round(&mut worker, &key).await? {
            let what = format!("a lease of {key}: {:?}: {}", status.code(), status.message());
            worker.caller.recorder.oddity(what);
        }
    }
    Ok(())
}

async fn round(worker: &mut Worker, key: &Key) -> anyhow::Result<Result<(), Status>> {
    let mut leases = worker.caller.client.lease.clone();
    let id = match leases.lease_grant(LeaseGrantRequest { ttl: TTL_S, id: 0 }).await {
        Ok(granted) => granted.into_inner().id,
        Err(status) => return Ok(Err(status)),
    };
    let value = worker.caller.recorder.value().into();
    let put = Request::Put { key: key.clone(), value, lease: LeaseId(id) };
    if !matches!(call(worker, put).await?, Outcome::Written { .. }) {
        return Ok(Ok(()));
    }
    for _ in 0..worker.rng.random_range(1..ROUNDS_MAX) {
        tokio::time::sleep(Duration::from_millis(worker.rng.random_range(5..80))).await;
        worker.caller.reconnect(&mut worker.rng)?;
        leases = worker.caller.client.lease.clone();
        if worker.rng.random_bool(0.5) {
            let ask = LeaseTimeToLiveRequest { id, keys: true };
            let told = match leases.lease_time_to_live(ask).await {
                Ok(told) => told.into_inner(),
                Err(status) => return Ok(Err(status)),
            };
            if told.ttl <= 0 || told.keys != [key.as_bytes().to_vec()] {
                worker.caller.recorder.oddity(format!("the lease of {key} is said to be {told:?}"));
            }
        } else {
            let asks = tokio_stream::iter([LeaseKeepAliveRequest { id }]);
            let answer = match leases.lease_keep_alive(asks).await {
                Ok(answers) => answers.into_inner().message().await,
                Err(status) => Err(status),
            };
            match answer {
                Ok(Some(answer)) if answer.ttl > 0 => {}
                Ok(other) => worker.caller.recorder.oddity(format!("keep-alive for {key}: {other:?}")),
                Err(status) => return Ok(Err(status)),
            }
        }
        let found = call(worker, Request::get(key.clone())).await?;
        if let Outcome::Read { result, .. } = &found
            && result.kvs.first().is_none_or(|kv| kv.lease != LeaseId(id))
        {
            worker.caller.recorder.oddity(format!("{key} is to have lease {id:x}: {found:?}"));
        }
    }
    if let Err(status) = leases.lease_revoke(LeaseRevokeRequest { id }).await {
        return Ok(Err(status));
    }
    let gone = call(worker, Request::get(key.clone())).await?;
    let result = match &gone {
        Outcome::Read { result, .. } => result,
        _ => return Ok(Ok(())),
    };
    if !result.kvs.is_empty() {
        worker.caller.recorder.oddity(format!("{key} outlives its lease {id:x}: {gone:?}"));
    }
    Ok(Ok(()))
}

async fn call(worker: &mut Worker, request: Request) -> anyhow::Result<Outcome> {
    worker.caller.call(&mut worker.rng, request).await.context("a client with a lease")
}
