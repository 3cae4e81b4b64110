//! Loads: the types of operations, the objects that they use, and how operations follow each other, in a closed
//! loop or at a rate.

pub mod lease;
mod run;

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicUsize, Ordering},
};

use anyhow::Context;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use kindred_proto::etcdserverpb as pb;
use kindred_transport::{coalesce::Coalesce, tls::ClientTls};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tonic::transport::{Channel, Endpoint};

use crate::servers::Server;
use pb::{compare, kv_client::KvClient, request_op};

/// The type of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A put of one of `keys` keys.
    Put,
    /// Kubernetes' optimistic update: compare mod_revision, put, else get.
    TxnPut,
    /// Optimistic updates of all nodes' Lease objects in turn, as kubelets renew them.
    LeaseFlood,
    Get,
    Probe,
    List,
    /// Per hundred operations: 60 lease renewals, 20 optimistic updates, 15 gets, 4 probes, 1 page.
    Mixed,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::TxnPut => "txn put",
            Self::LeaseFlood => "lease flood",
            Self::Get => "get",
            Self::Probe => "probe limit=1",
            Self::List => "list 500",
            Self::Mixed => "mixed",
        }
    }

    /// The divisor for the number of operations, so that all types take about as long.
    pub fn part(self) -> u64 {
        match self {
            Self::List => 50,
            Self::Probe | Self::Mixed => 4,
            Self::Put | Self::TxnPut | Self::LeaseFlood | Self::Get => 1,
        }
    }

    /// The type of the operation with this number.
    fn of(self, number: u64) -> Self {
        if self != Self::Mixed {
            return self;
        }
        // 37 and 100 are coprime, so a hundred operations in a row have every remainder once, in a mixed order.
        match number.wrapping_mul(37) % 100 {
            0..60 => Self::LeaseFlood,
            60..80 => Self::TxnPut,
            80..95 => Self::Get,
            95..99 => Self::Probe,
            _ => Self::List,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub connections: usize,
    /// The number of concurrent calls over all connections.
    pub in_flight: usize,
    pub keys: usize,
    /// The length of a value.
    pub value_bytes: usize,
}

/// The prefix of the keys.
pub const PREFIX: &str = "/registry/leases/bench/";

/// The length of a key.
pub const KEY_BYTES: usize = PREFIX.len() + "node-0000000".len();

/// The number of puts in a transaction that fills, below etcd's limit of 128 operations.
const FILL_PUTS: usize = 100;
/// The number of keys in a page.
pub const PAGE: usize = 500;
/// A prime. Its multiples modulo the number of keys visit all keys in a cache-unfriendly order.
const STRIDE: usize = 2_654_435_761;

pub fn key(i: usize) -> Bytes {
    format!("{PREFIX}node-{i:07}").into()
}

fn settings(url: String) -> anyhow::Result<Endpoint> {
    Ok(Endpoint::from_shared(url)?
        .initial_connection_window_size(16 << 20)
        .initial_stream_window_size(4 << 20)
        .tcp_nodelay(true))
}

/// A connection that sends the head of a request and its message together, as the client of grpc-go does, which
/// kube-apiservers have. h2 by itself would send two segments, and the server would be woken twice.
fn combined<T: AsyncRead + AsyncWrite + Unpin>(stream: T) -> TokioIo<Coalesce<T>> {
    TokioIo::new(Coalesce::new(stream))
}

async fn dial(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub async fn connect(endpoint: &str, shape: Shape) -> anyhow::Result<Vec<Channel>> {
    let settings = settings(format!("http://{endpoint}"))?;
    let mut channels = Vec::new();
    for _ in 0..shape.connections {
        let address = endpoint.to_owned();
        let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
            let address = address.clone();
            async move { dial(&address).await.map(combined) }
        });
        let channel = settings.connect_with_connector(connector).await;
        channels.push(channel.context("connecting to the server under test")?);
    }
    Ok(channels)
}

/// The same with TLS; only the encryption differs.
pub async fn connect_by_tls(endpoint: &str, tls: &ClientTls, shape: Shape) -> anyhow::Result<Vec<Channel>> {
    let settings = settings(format!("http://{endpoint}"))?.origin(format!("https://{endpoint}").parse()?);
    let host = endpoint.rsplit_once(':').context("an endpoint without a port")?.0;
    let name = ServerName::try_from(host.to_owned())?;
    let mut channels = Vec::new();
    for _ in 0..shape.connections {
        let (address, tls, name) = (endpoint.to_owned(), TlsConnector::from(tls.fresh()), name.clone());
        let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
            let (address, tls, name) = (address.clone(), tls.clone(), name.clone());
            async move { std::io::Result::Ok(combined(tls.connect(name, dial(&address).await?).await?)) }
        });
        let channel = settings.connect_with_connector(connector).await;
        channels.push(channel.context("connecting with TLS to the server under test")?);
    }
    Ok(channels)
}

fn client(channel: &Channel) -> KvClient<Channel> {
    KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX)
}

/// The known revision of each object; 0 if there is none.
type Revisions = Arc<Vec<AtomicI64>>;

fn unknown(count: usize) -> Revisions {
    Arc::new((0..count).map(|_| AtomicI64::new(0)).collect())
}

/// A server with connections to it, and the known revisions of its objects.
#[derive(Clone)]
pub struct Target {
    channels: Vec<Channel>,
    shape: Shape,
    objects: Revisions,
    leases: Revisions,
    /// The number of keys used so far, if keys are scattered.
    scattered: Option<Arc<AtomicUsize>>,
}

impl Target {
    /// A target on these connections, with unknown revisions.
    pub fn new(channels: Vec<Channel>, shape: Shape) -> Self {
        Self { channels, shape, objects: unknown(shape.keys), leases: unknown(shape.keys), scattered: None }
    }

    /// Connects to a server, with TLS if it needs that.
    pub async fn connect(server: &Server, shape: Shape) -> anyhow::Result<Self> {
        let channels = match &server.tls {
            None => connect(&server.endpoint, shape).await?,
            Some(tls) => connect_by_tls(&server.endpoint, tls, shape).await?,
        };
        Ok(Self::new(channels, shape))
    }

    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The same target with another number of concurrent calls.
    pub fn with_in_flight(&self, in_flight: usize) -> Self {
        Self { shape: Shape { in_flight, ..self.shape }, ..self.clone() }
    }

    /// The same target with this many new connections.
    pub async fn on_connections(&self, server: &Server, connections: usize) -> anyhow::Result<Self> {
        let shape = Shape { connections, ..self.shape };
        Ok(Self { channels: connect(&server.endpoint, shape).await?, shape, ..self.clone() })
    }

    /// The same target with scattered access: keys come from everywhere, differ in each run, and pages begin
    /// anywhere. So no request finds its data cached because a neighbour was requested before.
    pub fn scattered(self) -> Self {
        Self { scattered: Some(Arc::default()), ..self }
    }

    /// Forgets all revisions, so that the first update of each object is refused.
    pub fn forget(&self) {
        for revision in self.objects.iter().chain(self.leases.iter()) {
            revision.store(0, Ordering::Relaxed);
        }
    }

    pub async fn fill(&self) -> anyhow::Result<()> {
        self.fill_with(Kind::Put).await
    }

    /// Writes every key once, in large transactions.
    pub async fn fill_fast(&self) -> anyhow::Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        let (next, keys) = (Arc::new(AtomicUsize::new(0)), self.shape.keys);
        for worker in 0..self.shape.in_flight {
            let (next, mut caller) = (next.clone(), self.caller(worker));
            tasks.spawn(async move {
                loop {
                    let first = next.fetch_add(FILL_PUTS, Ordering::Relaxed);
                    if first >= keys {
                        return anyhow::Ok(());
                    }
                    caller.put_all(first..(first + FILL_PUTS).min(keys)).await?;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }

    pub async fn fill_leases(&self) -> anyhow::Result<()> {
        self.fill_with(Kind::LeaseFlood).await
    }

    async fn fill_with(&self, kind: Kind) -> anyhow::Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..self.shape.in_flight {
            let mut caller = self.caller(worker);
            tasks.spawn(async move {
                for i in (worker..caller.target.shape.keys).step_by(caller.target.shape.in_flight) {
                    caller.one(kind, i, 0).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }

    /// A caller on one of the connections, chosen by `number`.
    fn caller(&self, number: usize) -> Caller {
        Caller {
            kv: client(&self.channels[number % self.channels.len()]),
            value: Bytes::from(vec![b'v'; self.shape.value_bytes]),
            target: self.clone(),
        }
    }
}

/// The key to use in a turn of scattered access.
fn scatter(turn: usize, keys: usize) -> usize {
    turn.wrapping_mul(STRIDE) % keys
}

/// Makes one call at a time.
#[derive(Clone)]
struct Caller {
    kv: KvClient<Channel>,
    value: Bytes,
    target: Target,
}

impl Caller {
    /// Puts these keys in one transaction.
    async fn put_all(&mut self, keys: std::ops::Range<usize>) -> anyhow::Result<()> {
        let puts = keys.clone().map(|i| (key(i), self.value.clone()));
        let header = self.kv.txn(puts_txn(puts)).await?.into_inner().header.context("header")?;
        self.target.objects[keys].iter().for_each(|known| known.store(header.revision, Ordering::Relaxed));
        Ok(())
    }

    /// Makes one operation; false if an update was refused because the object's revision was not the known one.
    async fn one(&mut self, kind: Kind, i: usize, number: u64) -> anyhow::Result<bool> {
        match kind.of(number) {
            Kind::Put => {
                let put = pb::PutRequest { key: key(i), value: self.value.clone(), ..Default::default() };
                let header = self.kv.put(put).await?.into_inner().header.context("header")?;
                self.target.objects[i].store(header.revision, Ordering::Relaxed);
                Ok(true)
            }
            Kind::TxnPut => self.update(false, i, key(i), self.value.clone()).await,
            Kind::LeaseFlood => self.update(true, i, lease::key(i), lease::object(i, number)).await,
            Kind::Get => {
                let get = pb::RangeRequest { key: key(i), limit: 1, ..Default::default() };
                let answer = self.kv.range(get).await?;
                anyhow::ensure!(answer.into_inner().kvs.len() == 1, "key {i} is missing");
                Ok(true)
            }
            Kind::Probe => self.page(PREFIX.into(), 1).await,
            Kind::List | Kind::Mixed => {
                let from = self.target.scattered.as_ref().map_or_else(
                    || PREFIX.into(),
                    |_| key(i.min(self.target.shape.keys.saturating_sub(PAGE))),
                );
                self.page(from, PAGE as i64).await
            }
        }
    }

    async fn update(&mut self, lease: bool, i: usize, key: Bytes, value: Bytes) -> anyhow::Result<bool> {
        let revisions = if lease { &self.target.leases } else { &self.target.objects };
        let known = revisions[i].load(Ordering::Relaxed);
        let (updated, revision) = update(&mut self.kv, key, value, known).await?;
        // There are no other writers; of two concurrent updates the newer one counts.
        revisions[i].fetch_max(revision, Ordering::Relaxed);
        Ok(updated)
    }

    async fn page(&mut self, from: Bytes, limit: i64) -> anyhow::Result<bool> {
        let range = pb::RangeRequest {
            key: from,
            range_end: "/registry/leases/bench0".into(),
            limit,
            ..Default::default()
        };
        let answer = self.kv.range(range).await?.into_inner();
        anyhow::ensure!(answer.kvs.len() as i64 == limit.min(answer.count), "short page");
        Ok(true)
    }
}

/// Kubernetes' optimistic update of a key that should have this revision: whether it succeeded, and the key's
/// revision after it.
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

/// A transaction of these puts.
pub fn puts_txn(puts: impl Iterator<Item = (Bytes, Bytes)>) -> pb::TxnRequest {
    let put = |(key, value)| {
        let put = pb::PutRequest { key, value, ..Default::default() };
        pb::RequestOp { request: Some(request_op::Request::RequestPut(put)) }
    };
    pb::TxnRequest { success: puts.map(put).collect(), ..Default::default() }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn scattered_keys_are_all_keys() {
        for keys in [1, 16, 1_000, 78_125] {
            let taken: std::collections::BTreeSet<usize> =
                (0..keys).map(|turn| scatter(turn, keys)).collect();
            assert_eq!(taken.len(), keys);
        }
        let near = (0..1_000).filter(|turn| scatter(*turn, 78_125).abs_diff(scatter(turn + 1, 78_125)) < 100);
        assert_eq!(near.count(), 0, "neighbours do not follow each other");
    }

    #[test]
    fn a_mixed_load_has_its_parts_in_every_hundred() {
        let mut parts = BTreeMap::new();
        for number in 700..800 {
            *parts.entry(Kind::Mixed.of(number)).or_insert(0) += 1;
        }
        let expected =
            [(Kind::TxnPut, 20), (Kind::LeaseFlood, 60), (Kind::Get, 15), (Kind::Probe, 4), (Kind::List, 1)];
        assert_eq!(parts, BTreeMap::from(expected));
        assert_eq!(Kind::Put.of(7), Kind::Put);
    }
}
