//! A shard in this process on port 0, and a client that sends protobuf through the raw services.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use bytes::Bytes;
use kindred_proto::{
    etcdserverpb::{self as pb, compare, request_op, watch_request},
    raw::{kv::k_v_client::KVClient, watch::watch_client::WatchClient},
};
use kindred_shard::{
    config::{Args, Options, Settings},
    server::{self, Running},
};
use kindred_transport::{ConnectOptions, Connector, connect::RouterChannel, who::Secret};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Status, Streaming};

pub mod clock;
pub mod moves;
pub mod process;

/// Every client here says that it is a router; `doors.rs` tests what other clients may do.
pub type Channel = RouterChannel;

/// The secret of the clusters of these tests.
pub const SECRET: &str = "0123456789abcdef";

/// A channel to a shard, whose secret it shows.
pub fn channel(url: &str) -> Channel {
    let secret = Some(Secret::of(SECRET).unwrap());
    let connector = Connector::new(ConnectOptions { secret, ..ConnectOptions::default() });
    connector.router_channel(&[url.parse().unwrap()]).unwrap()
}

pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Shard {
    pub running: Running,
    /// The file with the secret of a shard of a cluster.
    _secret: tempfile::NamedTempFile,
}

impl Shard {
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn dense() -> Self {
        Self::with(Options { revisions: Some("dense".to_owned()), ..Options::default() }).await
    }

    pub async fn with(options: Options) -> Self {
        Self::changed(options, |_| {}).await
    }

    /// A shard with these options, and with settings that no option has.
    pub async fn changed(options: Options, change: impl FnOnce(&mut Settings)) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), SECRET).unwrap();
        let of_cluster = options.in_cluster.then(|| file.path().to_owned());
        let options = Options {
            listen: Some("127.0.0.1:0".to_owned()),
            cluster_secret_file: options.cluster_secret_file.or(of_cluster),
            ..options
        };
        let mut settings = Settings::resolve(Args { options, ..Args::default() }).unwrap();
        change(&mut settings);
        Self { running: server::start(settings).await.unwrap(), _secret: file }
    }

    /// Stops the shard as SIGTERM does.
    pub async fn stop(self) {
        self.running.drain.begin();
        self.running.finish().await.unwrap();
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.running.listen[0].authority())
    }

    pub async fn channel(&self) -> Channel {
        channel(&self.url())
    }

    pub async fn client(&self) -> Client {
        Client { channel: self.channel().await }
    }

    /// The number of open watches that the engine counts.
    pub async fn watches(&self) -> u64 {
        self.running.handle.inspect(|core| core.engine.stats().watches).await.unwrap()
    }
}

pub fn decode_chunk(message: Bytes) -> pb::RangeResponse {
    pb::RangeStreamResponse::decode(message).unwrap().range_response.unwrap()
}

#[derive(Clone)]
pub struct Client {
    pub channel: Channel,
}

fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

pub fn range_request(key: &str, end: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: bytes(key), range_end: bytes(end), ..Default::default() }
}

pub fn put_request(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> pb::PutRequest {
    pb::PutRequest { key: bytes(key), value: bytes(value), ..Default::default() }
}

pub fn delete_request(key: &str, end: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: bytes(key), range_end: bytes(end), prev_kv: false }
}

pub fn op(request: request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

pub fn put_op(key: &str, value: &str) -> pb::RequestOp {
    op(request_op::Request::RequestPut(put_request(key, value)))
}

pub fn mod_is(key: &str, revision: i64) -> pb::Compare {
    pb::Compare {
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Mod as i32,
        key: bytes(key),
        range_end: Bytes::new(),
        target_union: Some(compare::TargetUnion::ModRevision(revision)),
    }
}

impl Client {
    fn kv(&self) -> KVClient<Channel> {
        KVClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        let answer = self.kv().range(Bytes::from(request.encode_to_vec())).await?.into_inner();
        Ok(pb::RangeResponse::decode(answer).unwrap())
    }

    pub async fn range_stream(&self, request: pb::RangeRequest) -> Result<Vec<pb::RangeResponse>, Status> {
        let answers = self.kv().range_stream(Bytes::from(request.encode_to_vec())).await?.into_inner();
        answers.map(|answer| answer.map(decode_chunk)).collect().await
    }

    pub async fn open_range_stream(&self, request: pb::RangeRequest) -> Streaming<Bytes> {
        self.kv().range_stream(Bytes::from(request.encode_to_vec())).await.unwrap().into_inner()
    }

    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> i64 {
        self.put_request(put_request(key, value)).await.unwrap().header.unwrap().revision
    }

    pub async fn put_request(&self, request: pb::PutRequest) -> Result<pb::PutResponse, Status> {
        let answer = self.kv().put(Bytes::from(request.encode_to_vec())).await?.into_inner();
        Ok(pb::PutResponse::decode(answer).unwrap())
    }

    pub async fn delete(&self, key: &str, end: &str) -> Result<pb::DeleteRangeResponse, Status> {
        let request = delete_request(key, end).encode_to_vec();
        let answer = self.kv().delete_range(Bytes::from(request)).await?.into_inner();
        Ok(pb::DeleteRangeResponse::decode(answer).unwrap())
    }

    pub async fn txn(&self, request: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
        let answer = self.kv().txn(Bytes::from(request.encode_to_vec())).await?.into_inner();
        Ok(pb::TxnResponse::decode(answer).unwrap())
    }

    pub async fn compact(&self, revision: i64, physical: bool) -> Result<pb::CompactionResponse, Status> {
        let request = pb::CompactionRequest { revision, physical }.encode_to_vec();
        let answer = self.kv().compact(Bytes::from(request)).await?.into_inner();
        Ok(pb::CompactionResponse::decode(answer).unwrap())
    }

    pub async fn watch(&self) -> Watcher {
        let (requests, outgoing) = mpsc::channel(2000);
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let answers = client.watch(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        Watcher { requests: Some(requests), answers }
    }
}

pub struct Watcher {
    requests: Option<mpsc::Sender<Bytes>>,
    pub answers: Streaming<Bytes>,
}

pub fn watch_prefix(prefix: &str, start_revision: i64) -> pb::WatchCreateRequest {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    pb::WatchCreateRequest { key: bytes(prefix), range_end: bytes(end), start_revision, ..Default::default() }
}

impl Watcher {
    pub async fn send(&self, request: watch_request::RequestUnion) {
        let request = pb::WatchRequest { request_union: Some(request) }.encode_to_vec();
        self.requests.as_ref().unwrap().send(request.into()).await.unwrap();
    }

    pub fn half_close(&mut self) {
        self.requests = None;
    }

    /// Creates a watch and waits for its answer, which must be the next message.
    pub async fn create(&mut self, request: pb::WatchCreateRequest) -> pb::WatchResponse {
        self.send(watch_request::RequestUnion::CreateRequest(request)).await;
        let created = self.next().await;
        assert!(created.created, "{created:?}");
        created
    }

    pub async fn progress(&self) {
        self.send(watch_request::RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    }

    pub async fn cancel(&self, watch_id: i64) {
        let cancel = pb::WatchCancelRequest { watch_id };
        self.send(watch_request::RequestUnion::CancelRequest(cancel)).await;
    }

    pub async fn next(&mut self) -> pb::WatchResponse {
        self.try_next().await.expect("the stream goes on")
    }

    pub async fn try_next(&mut self) -> Result<pb::WatchResponse, Status> {
        let next = tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("an answer in time");
        let message = next?.ok_or_else(|| Status::ok("end of stream"))?;
        Ok(pb::WatchResponse::decode(message).unwrap())
    }

    /// Checks that no message comes for a while.
    pub async fn silent(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(150), self.answers.message()).await;
        assert!(next.is_err(), "unexpected: {next:?}");
    }

    /// Collects this many events, over however many messages.
    pub async fn events(&mut self, count: usize) -> Vec<kindred_proto::mvccpb::Event> {
        let mut events = Vec::new();
        while events.len() < count {
            let answer = self.next().await;
            assert!(!answer.canceled, "{answer:?}");
            events.extend(answer.events);
        }
        assert_eq!(events.len(), count);
        events
    }
}

pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !check().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
