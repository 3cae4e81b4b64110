//! Closed-loop load: a fixed number of calls in flight on a few connections, for a fixed number of operations.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use tonic::transport::{Channel, Endpoint};

use pb::{compare, kv_client::KvClient, request_op};

/// What one operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Put of one of `keys` keys.
    Put,
    /// Kubernetes' optimistic update: compare mod_revision, put, else get.
    TxnPut,
    /// Get of one key.
    Get,
    /// `limit=1` over the whole Kind.
    Probe,
    /// A page of 500 keys.
    List,
}

impl Kind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::TxnPut => "txn put",
            Self::Get => "get",
            Self::Probe => "probe limit=1",
            Self::List => "list 500",
        }
    }
}

/// The shape of a load.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// TCP connections.
    pub connections: usize,
    /// Calls in flight, over all connections.
    pub in_flight: usize,
    /// Keys written and read.
    pub keys: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// What a run measured.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Operations that succeeded.
    pub ops: u64,
    /// Half of the operations took at most this long.
    pub p50: Duration,
    /// 99 of 100 took at most this long.
    pub p99: Duration,
}

const PREFIX: &str = "/registry/leases/bench/";

/// Bytes of a key.
pub const KEY_BYTES: usize = PREFIX.len() + "node-0000000".len();

fn key(i: usize) -> Bytes {
    format!("{PREFIX}node-{i:07}").into()
}

/// Connects `shape.connections` channels.
pub async fn connect(endpoint: &str, shape: Shape) -> anyhow::Result<Vec<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?
        .initial_connection_window_size(16 << 20)
        .initial_stream_window_size(4 << 20)
        .tcp_nodelay(true);
    let mut channels = Vec::new();
    for _ in 0..shape.connections {
        channels.push(endpoint.connect().await.context("connecting to the server under test")?);
    }
    Ok(channels)
}

fn client(channel: &Channel) -> KvClient<Channel> {
    KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX)
}

/// Writes every key once.
pub async fn fill(channels: &[Channel], shape: Shape) -> anyhow::Result<()> {
    let mut tasks = Vec::new();
    for worker in 0..shape.in_flight {
        let mut kv = client(&channels[worker % channels.len()]);
        tasks.push(tokio::spawn(async move {
            let value = Bytes::from(vec![b'v'; shape.value_bytes]);
            for i in (worker..shape.keys).step_by(shape.in_flight) {
                one(&mut kv, Kind::Put, i, &value, &mut 0).await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Runs `ops` operations and measures them.
pub async fn run(channels: &[Channel], kind: Kind, shape: Shape, ops: u64) -> anyhow::Result<Outcome> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for worker in 0..shape.in_flight {
        let (next, mut kv) = (next.clone(), client(&channels[worker % channels.len()]));
        tasks.push(tokio::spawn(async move {
            let value = Bytes::from(vec![b'v'; shape.value_bytes]);
            let mut revisions = vec![0; shape.keys.div_ceil(shape.in_flight)];
            let mut latencies = Vec::new();
            let mut turn = 0;
            while next.fetch_add(1, Ordering::Relaxed) < ops {
                let slot = turn % revisions.len();
                // Each worker owns its keys, so that optimistic updates succeed.
                let i = (slot * shape.in_flight + worker) % shape.keys;
                turn += 1;
                let began = Instant::now();
                one(&mut kv, kind, i, &value, &mut revisions[slot]).await?;
                latencies.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
            }
            anyhow::Ok(latencies)
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    latencies.sort_unstable();
    let at = |share: f64| {
        let rank = (latencies.len() as f64 * share) as usize;
        Duration::from_nanos(latencies.get(rank.min(latencies.len() - 1)).copied().unwrap_or(0).into())
    };
    anyhow::ensure!(!latencies.is_empty(), "no operation ran");
    Ok(Outcome { ops: latencies.len() as u64, p50: at(0.5), p99: at(0.99) })
}

async fn one(
    kv: &mut KvClient<Channel>,
    kind: Kind,
    i: usize,
    value: &Bytes,
    revision: &mut i64,
) -> anyhow::Result<()> {
    match kind {
        Kind::Put => {
            kv.put(pb::PutRequest { key: key(i), value: value.clone(), ..Default::default() }).await?;
        }
        Kind::TxnPut => {
            *revision = update(kv, key(i), value.clone(), *revision).await?.1;
        }
        Kind::Get => {
            let answer = kv.range(pb::RangeRequest { key: key(i), limit: 1, ..Default::default() }).await?;
            anyhow::ensure!(answer.into_inner().kvs.len() == 1, "key {i} is missing");
        }
        Kind::Probe | Kind::List => {
            let limit = if kind == Kind::Probe { 1 } else { 500 };
            let range = pb::RangeRequest {
                key: PREFIX.into(),
                range_end: "/registry/leases/bench0".into(),
                limit,
                ..Default::default()
            };
            let answer = kv.range(range).await?.into_inner();
            anyhow::ensure!(answer.kvs.len() as i64 == limit.min(answer.count), "short page");
        }
    }
    Ok(())
}

/// Kubernetes' optimistic update of a key whose revision was `revision`: whether it was, and what it is now.
pub async fn update(
    kv: &mut KvClient<Channel>,
    key: Bytes,
    value: Bytes,
    revision: i64,
) -> anyhow::Result<(bool, i64)> {
    let answer = kv.txn(txn_put(key, value, revision)).await?.into_inner();
    if answer.succeeded {
        return Ok((true, answer.header.context("header")?.revision));
    }
    match answer.responses.into_iter().next().and_then(|r| r.response) {
        Some(pb::response_op::Response::ResponseRange(range)) => {
            Ok((false, range.kvs.first().map_or(0, |kv| kv.mod_revision)))
        }
        other => anyhow::bail!("the else branch answered {other:?}"),
    }
}

fn txn_put(key: Bytes, value: Bytes, revision: i64) -> pb::TxnRequest {
    let compare = pb::Compare {
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Mod as i32,
        key: key.clone(),
        target_union: Some(compare::TargetUnion::ModRevision(revision)),
        ..Default::default()
    };
    let put = pb::PutRequest { key: key.clone(), value, ..Default::default() };
    let get = pb::RangeRequest { key, ..Default::default() };
    pb::TxnRequest {
        compare: vec![compare],
        success: vec![pb::RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
        failure: vec![pb::RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
    }
}
