//! Reads over several shards through their streams of batches: the questions to each, and the release of pins (R5).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::scripted::{Opened, PATIENCE, Unary, in_time, scripted};
use kindred_proto::raw::batches::batches_server::BatchesServer;
use kindred_proto::raw::kv::k_v_server::KVServer;
use kindred_proto::{FEATURE_BATCHED_SNAPSHOTS, FEATURE_BATCHES, etcdserverpb as pb, shard_v1 as shard};
use kindred_router::run::Bound;
use kindred_transport::Drain;
use kindred_wire::batch::Method;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

const BOTH: u64 = FEATURE_BATCHES | FEATURE_BATCHED_SNAPSHOTS;

/// Pods, by name, on two scripted shards.
struct Cluster {
    channel: Channel,
    streams: [mpsc::Receiver<Opened>; 2],
    unary: Arc<AtomicUsize>,
    _bound: Bound,
    _drain: Drain,
}

type Reading = tokio::task::JoinHandle<Result<pb::RangeResponse, Status>>;

impl Cluster {
    async fn start(features: u64) -> Self {
        let unary = Arc::new(AtomicUsize::new(0));
        let (mut urls, mut streams) = (Vec::new(), Vec::new());
        for slot in 1..=2 {
            let (service, opened) = scripted();
            let kv = KVServer::new(Unary(unary.clone()));
            let fake = Fake::with(slot, features, |server| {
                server.add_service(kv).add_service(BatchesServer::new(service))
            });
            urls.push(fake.await.url);
            streams.push(opened);
        }
        let (bound, drain, channel) =
            crate::support::router_with(&crate::support::spread_config(&urls, false), &[]).await;
        crate::support::all_up(&bound).await;
        let streams = <[_; 2]>::try_from(streams).unwrap();
        Self { channel, streams, unary, _bound: bound, _drain: drain }
    }

    /// Probes all pods.
    fn probe(&self, limit: Duration) -> Reading {
        let mut client = pb::kv_client::KvClient::new(self.channel.clone());
        let mut request = Request::new(pb::RangeRequest {
            key: "/registry/pods/".into(),
            range_end: "/registry/pods0".into(),
            limit: 1,
            ..Default::default()
        });
        request.set_timeout(limit);
        tokio::spawn(async move { client.range(request).await.map(tonic::Response::into_inner) })
    }

    /// The streams, which the first operations open.
    async fn opened(&mut self) -> [Opened; 2] {
        let [first, second] = &mut self.streams;
        [in_time(first.recv()).await.unwrap(), in_time(second.recv()).await.unwrap()]
    }
}

fn range_of(op: &shard::BatchOp) -> pb::RangeRequest {
    assert_eq!(op.method, Method::Range as i32);
    pb::RangeRequest::decode(op.request.clone()).unwrap()
}

fn raise_of(op: &shard::BatchOp) -> shard::RaiseSinceRequest {
    assert_eq!(op.method, Method::RaiseSince as i32);
    shard::RaiseSinceRequest::decode(op.request.clone()).unwrap()
}

/// The pins that the next operation of the stream releases.
async fn released(stream: &mut Opened) -> Vec<u64> {
    let op = stream.op().await;
    assert_eq!(op.method, Method::ReleasePins as i32);
    stream.answer(op.id, &shard::ReleasePinsResponse {}).await;
    shard::ReleasePinsRequest::decode(op.request).unwrap().pins
}

fn answer(revision: i64, count: i64, key: Option<&'static str>) -> pb::RangeResponse {
    let kv = |key: &'static str| kindred_proto::mvccpb::KeyValue {
        key: key.into(),
        create_revision: 1,
        mod_revision: 1,
        version: 1,
        ..Default::default()
    };
    let header = Some(pb::ResponseHeader { revision, ..Default::default() });
    let kvs: Vec<_> = key.map(kv).into_iter().collect();
    pb::RangeResponse { header, more: count > kvs.len() as i64, kvs, count }
}

#[tokio::test]
async fn r5_a_probe_is_one_round_of_operations_and_its_pins_are_released() {
    let mut cluster = Cluster::start(BOTH).await;
    let reading = cluster.probe(PATIENCE);
    let [mut low, mut high] = cluster.opened().await;
    let (first, second) = (low.op().await, high.op().await);
    let (page, count) = (range_of(&first), range_of(&second));
    assert_eq!((page.limit, page.count_only, page.revision), (1, false, 0));
    assert_eq!((count.limit, count.count_only, count.revision), (0, true, 0));
    assert!(first.pin != 0 && first.pin == second.pin, "what they show stays readable");
    assert!(first.timeout_micros > 0 && first.timeout_micros <= PATIENCE.as_micros() as u64);
    low.answer(first.id, &answer(1009 << 10, 3, Some("/registry/pods/a"))).await;
    high.answer(second.id, &answer(1009 << 10, 4, None)).await;
    let read = in_time(reading).await.unwrap().unwrap();
    assert_eq!((read.header.unwrap().revision, read.count, read.more), (1009 << 10, 7, true));
    assert_eq!(released(&mut low).await, [first.pin]);
    assert_eq!(released(&mut high).await, [first.pin]);

    // The next probe asks for at least what was shown; the store below the other is raised and asked for changes.
    let reading = cluster.probe(PATIENCE);
    let (first, second) = (low.op().await, high.op().await);
    assert_eq!((first.min_revision, second.min_revision), (1009 << 10, 1009 << 10));
    low.answer(first.id, &answer(1009 << 10, 3, Some("/registry/pods/a"))).await;
    high.answer(second.id, &answer(1012 << 10, 5, None)).await;
    let confirm = low.op().await;
    let raise = raise_of(&confirm);
    assert_eq!((raise.since, raise.to, raise.pin), (1009 << 10, 1012 << 10, first.pin));
    let done = shard::RaiseSinceResponse { current: 1012 << 10, changed: true };
    low.answer(confirm.id, &done).await;
    let again = low.op().await;
    assert_eq!((range_of(&again).revision, again.pin), (1012 << 10, 0), "pinned already");
    low.answer(again.id, &answer(1012 << 10, 2, Some("/registry/pods/b"))).await;
    let read = in_time(reading).await.unwrap().unwrap();
    assert_eq!((read.header.unwrap().revision, read.count), (1012 << 10, 7));
    assert_eq!(read.kvs[0].key, "/registry/pods/b");
    assert_eq!(released(&mut low).await, [first.pin]);
    assert_eq!(released(&mut high).await, [first.pin]);
    assert_eq!(cluster.unary.load(Ordering::SeqCst), 0, "none was a call of its own");
}

#[tokio::test]
async fn a_client_that_waits_no_longer_ends_what_was_asked_of_every_shard() {
    let mut cluster = Cluster::start(BOTH).await;
    let reading = cluster.probe(Duration::from_secs(3));
    let [mut low, mut high] = cluster.opened().await;
    let (first, second) = (low.op().await, high.op().await);
    // One store has answered; the other does not.
    low.answer(first.id, &answer(9 << 10, 3, Some("/registry/pods/a"))).await;
    let status = in_time(reading).await.unwrap().unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    let (mut cancelled, mut pins) = (Vec::new(), Vec::new());
    while pins.is_empty() {
        let message = in_time(high.requests.next()).await.unwrap().unwrap();
        let message = shard::BatchRequest::decode(message).unwrap();
        cancelled.extend(message.cancelled);
        for op in message.ops {
            assert_eq!(op.method, Method::ReleasePins as i32);
            pins.extend(shard::ReleasePinsRequest::decode(op.request).unwrap().pins);
        }
    }
    assert_eq!((cancelled, pins), (vec![second.id], vec![second.pin]), "told before its pin is released");
    assert_eq!(released(&mut low).await, [first.pin]);
}

/// R4, R5: a read shares no round that began before it came.
#[tokio::test]
async fn who_probes_while_two_rounds_are_under_way_shares_the_next() {
    let mut cluster = Cluster::start(BOTH).await;
    let (one, two) = (cluster.probe(PATIENCE), cluster.probe(PATIENCE));
    let [mut low, mut high] = cluster.opened().await;
    let (first, second) = (low.ops(2).await.0, high.ops(2).await.0);
    let later: Vec<_> = (0..4).map(|_| cluster.probe(PATIENCE)).collect();
    let quiet = tokio::time::timeout(Duration::from_millis(100), low.requests.next()).await;
    assert!(quiet.is_err(), "they wait: {quiet:?}");
    low.answer(first[0].id, &answer(9 << 10, 3, Some("/registry/pods/a"))).await;
    high.answer(second[0].id, &answer(9 << 10, 4, None)).await;
    // One round for all four. The stores are asked again, because something may have been written since.
    let (next, rest) = (next_range(&mut low).await, next_range(&mut high).await);
    // A client that goes away does not affect the others.
    later[0].abort();
    low.answer(next.id, &answer(15 << 10, 3, Some("/registry/pods/b"))).await;
    high.answer(rest.id, &answer(15 << 10, 5, None)).await;
    for probe in later.into_iter().skip(1) {
        let read = in_time(probe).await.unwrap().unwrap();
        assert_eq!((read.header.unwrap().revision, read.count), (15 << 10, 8));
        assert_eq!(read.kvs[0].key, "/registry/pods/b");
    }
    low.answer(first[1].id, &answer(9 << 10, 3, Some("/registry/pods/a"))).await;
    high.answer(second[1].id, &answer(9 << 10, 4, None)).await;
    for probe in [one, two] {
        assert_eq!(in_time(probe).await.unwrap().unwrap().header.unwrap().revision, 9 << 10);
    }
}

/// The next read; releases before it are answered.
async fn next_range(stream: &mut Opened) -> shard::BatchOp {
    let mut read = None;
    while read.is_none() {
        let message = in_time(stream.requests.next()).await.unwrap().unwrap();
        for op in shard::BatchRequest::decode(message).unwrap().ops {
            if op.method == Method::Range as i32 {
                assert!(read.replace(op).is_none(), "one read");
            } else {
                assert_eq!(op.method, Method::ReleasePins as i32);
                stream.answer(op.id, &shard::ReleasePinsResponse {}).await;
            }
        }
    }
    read.unwrap()
}

#[tokio::test]
async fn a_shard_that_refuses_an_operation_refuses_the_read() {
    let mut cluster = Cluster::start(BOTH).await;
    let reading = cluster.probe(PATIENCE);
    let [mut low, mut high] = cluster.opened().await;
    let (_, second) = (low.op().await, high.op().await);
    let refused =
        Some(shard::BatchRefusal { code: Code::Internal as i32, message: "no".into(), ..Default::default() });
    let answers = vec![shard::BatchAnswer { id: second.id, response: Default::default(), refused }];
    high.say(shard::BatchResponse { answers, last: None }).await;
    let status = in_time(reading).await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Internal, "no"));
}

#[tokio::test]
async fn a_shard_that_would_not_pin_in_a_batch_gets_calls_of_their_own() {
    let cluster = Cluster::start(FEATURE_BATCHES).await;
    let read = in_time(cluster.probe(PATIENCE)).await.unwrap().unwrap();
    assert_eq!(read.header.unwrap().revision, 1);
    // The first store had no pod, so the second is asked for its first key.
    assert_eq!(cluster.unary.load(Ordering::SeqCst), 3);
}
