//! The stream of batches to a shard: which answer belongs to which operation, what is known of an operation when a
//! stream ends (R11), and shards that do not serve batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::scripted::{Opened, PATIENCE, Unary, in_time, scripted};
use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::raw::batches::batches_server::BatchesServer;
use kindred_proto::raw::kv::k_v_server::KVServer;
use kindred_proto::{FEATURE_BATCHES, etcdserverpb as pb, shard_v1 as shard};
use kindred_router::run::Bound;
use kindred_router::stores::batch_stream::{BatchStream, BatchStreamError, Op};
use kindred_router::stores::failure::Failure;
use kindred_transport::{Connector, Drain};
use kindred_wire::batch::Method;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

async fn stream_to(url: &str) -> Arc<BatchStream> {
    let channel = Connector::default().router_channel(&[url.parse().unwrap()]).unwrap();
    Arc::new(BatchStream::new(channel))
}

async fn batches() -> (Arc<BatchStream>, mpsc::Receiver<Opened>) {
    let (service, streams) = scripted();
    let fake = Fake::with(1, FEATURE_BATCHES, |server| server.add_service(BatchesServer::new(service))).await;
    (stream_to(&fake.url).await, streams)
}

fn op(request: &'static str) -> Op {
    Op {
        method: Method::Put,
        request: Bytes::from_static(request.as_bytes()),
        min_revision: Revision(5),
        generation: kindred_partition_config::ids::Epoch(7),
        pin: 0,
        until: Instant::now() + PATIENCE,
    }
}

type Calling = tokio::task::JoinHandle<Result<Bytes, BatchStreamError>>;

fn call(stream: &Arc<BatchStream>, request: &'static str) -> Calling {
    let stream = stream.clone();
    tokio::spawn(async move { stream.call(op(request)).await })
}

async fn failure(calling: Calling) -> Failure {
    match in_time(calling).await.unwrap() {
        Err(BatchStreamError::Failed(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn answers_come_out_of_order_and_one_that_takes_long_holds_up_none() {
    let (stream, mut streams) = batches().await;
    let calls = ["a", "b", "c"].map(|request| call(&stream, request));
    let mut opened = in_time(streams.recv()).await.unwrap();
    let (ops, _) = opened.ops(3).await;
    assert_eq!(ops.iter().map(|op| op.request.as_ref()).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    assert!(ops.is_sorted_by(|a, b| a.id < b.id));
    assert_eq!((ops[0].method, ops[0].min_revision, ops[0].generation), (2, 5, 7));
    assert!(ops[0].timeout_micros > 0 && ops[0].timeout_micros <= PATIENCE.as_micros() as u64);
    opened.echo(&[&ops[2], &ops[0]]).await;
    let [a, b, c] = calls;
    assert_eq!(in_time(a).await.unwrap().unwrap(), "a");
    assert_eq!(in_time(c).await.unwrap().unwrap(), "c");
    let d = call(&stream, "d");
    let later = opened.op().await;
    opened.echo(&[&later]).await;
    assert_eq!(in_time(d).await.unwrap().unwrap(), "d");
    assert!(!b.is_finished());
    opened.echo(&[&ops[1]]).await;
    assert_eq!(in_time(b).await.unwrap().unwrap(), "b");
}

#[tokio::test]
async fn a_refusal_is_the_shards_own() {
    let (stream, mut streams) = batches().await;
    let calling = call(&stream, "a");
    let mut opened = in_time(streams.recv()).await.unwrap();
    let id = opened.op().await.id;
    let metadata = vec![shard::BatchMetadata { name: "kindred-not-owned".into(), value: "17".into() }];
    let (message, details) = ("no \"é\"".to_owned(), "x".into());
    let refused = Some(shard::BatchRefusal { code: 9, message, details, metadata });
    let answers = vec![shard::BatchAnswer { id, response: Bytes::new(), refused }];
    opened.say(shard::BatchResponse { answers, last: None }).await;
    let Failure::Answered(status) = failure(calling).await else { panic!("it was answered") };
    assert_eq!(
        (status.code(), status.message(), status.details()),
        (Code::FailedPrecondition, "no \"é\"", &b"x"[..])
    );
    assert_eq!(kindred_router::not_owned::NotOwned::of(&status).unwrap().epoch.0, 17);
}

#[tokio::test]
async fn a_cancelled_operation_is_told_and_disturbs_no_other() {
    let (stream, mut streams) = batches().await;
    let (a, b) = (call(&stream, "a"), call(&stream, "b"));
    let mut opened = in_time(streams.recv()).await.unwrap();
    let (ops, _) = opened.ops(2).await;
    a.abort();
    in_time(a).await.unwrap_err();
    let message = in_time(opened.requests.next()).await.unwrap().unwrap();
    let message = shard::BatchRequest::decode(message).unwrap();
    assert_eq!((message.ops, message.cancelled), (vec![], vec![ops[0].id]));
    opened.echo(&[&ops[0], &ops[1]]).await;
    assert_eq!(in_time(b).await.unwrap().unwrap(), "b");
}

#[tokio::test]
async fn what_had_left_when_the_stream_broke_may_have_been_executed() {
    let (stream, mut streams) = batches().await;
    let calling = call(&stream, "a");
    let mut opened = in_time(streams.recv()).await.unwrap();
    opened.op().await;
    drop(opened);
    assert!(matches!(failure(calling).await, Failure::Lost(_)));
    let calling = call(&stream, "b");
    let mut next = in_time(streams.recv()).await.unwrap();
    let op = next.op().await;
    next.echo(&[&op]).await;
    assert_eq!(in_time(calling).await.unwrap().unwrap(), "b", "another stream is opened");
}

#[tokio::test]
async fn what_never_left_was_not_executed() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let stream = stream_to(&nobody.to_string()).await;
    let (a, b) = (call(&stream, "a"), call(&stream, "b"));
    assert!(matches!(failure(a).await, Failure::NotConnected(_)));
    assert!(matches!(failure(b).await, Failure::NotConnected(_)));
}

#[tokio::test]
async fn a_shard_that_stops_answers_what_it_has_read_and_the_rest_was_not_executed() {
    let (stream, mut streams) = batches().await;
    let calls = ["a", "b", "c"].map(|request| call(&stream, request));
    let mut opened = in_time(streams.recv()).await.unwrap();
    let (ops, _) = opened.ops(3).await;
    opened.stop_behind(ops[1].id).await;
    let [a, b, c] = calls;
    assert!(matches!(failure(c).await, Failure::NotSent(_)));
    let d = call(&stream, "d");
    let mut next = in_time(streams.recv()).await.expect("operations that come now go elsewhere");
    let later = next.op().await;
    next.echo(&[&later]).await;
    assert_eq!(in_time(d).await.unwrap().unwrap(), "d");
    opened.echo(&[&ops[0]]).await;
    assert_eq!(in_time(a).await.unwrap().unwrap(), "a", "it is answered over the old stream");
    drop(opened);
    assert!(matches!(failure(b).await, Failure::Lost(_)), "it was read, and never answered");
    let e = call(&stream, "e");
    let later = next.op().await;
    next.echo(&[&later]).await;
    assert_eq!(in_time(e).await.unwrap().unwrap(), "e", "the end of the old stream is not the new one's");
}

#[tokio::test]
async fn a_refused_stream_is_the_answer_to_all_that_waits_for_it() {
    let (mut service, _streams) = scripted();
    service.refusal = Some(Status::failed_precondition("not yet"));
    let fake = Fake::with(1, FEATURE_BATCHES, |server| server.add_service(BatchesServer::new(service))).await;
    let stream = stream_to(&fake.url).await;
    for calling in ["a", "b"].map(|request| call(&stream, request)) {
        let Failure::Answered(status) = failure(calling).await else { panic!("it was answered") };
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "not yet"));
    }
    let older = Fake::start(1).await;
    let unsupported = in_time(call(&stream_to(&older.url).await, "a")).await.unwrap();
    assert!(matches!(unsupported, Err(BatchStreamError::Unsupported)), "{unsupported:?}");
}

#[tokio::test]
async fn who_waits_for_room_gets_it_in_turn() {
    let (stream, mut streams) = batches().await;
    let many: Vec<_> = (0..9000).map(|_| call(&stream, "x")).collect();
    let mut opened = in_time(streams.recv()).await.unwrap();
    let (ops, _) = opened.ops(8192).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(100), opened.requests.next()).await.is_err(),
        "no more"
    );
    opened.echo(&ops.iter().collect::<Vec<_>>()).await;
    let (rest, _) = opened.ops(9000 - 8192).await;
    opened.echo(&rest.iter().collect::<Vec<_>>()).await;
    for calling in many {
        assert_eq!(in_time(calling).await.unwrap().unwrap(), "x");
    }
}

/// A router over one scripted store, which counts its unary calls.
async fn router(features: u64, with_batches: bool) -> (Routed, mpsc::Receiver<Opened>) {
    let (service, streams) = scripted();
    let unary = Arc::new(AtomicUsize::new(0));
    let kv = KVServer::new(Unary(unary.clone()));
    let fake = Fake::with(1, features, |server| {
        let server = server.add_service(kv);
        if with_batches { server.add_service(BatchesServer::new(service)) } else { server }
    });
    let fake = fake.await;
    let config = format!("default: s1\nstores:\n- {{name: s1, slot: 1, endpoints: ['{}']}}\n", fake.url);
    let (bound, drain, channel) = crate::support::router_with(&config, &[]).await;
    crate::support::all_up(&bound).await;
    (Routed { unary, channel, _bound: bound, _drain: drain }, streams)
}

struct Routed {
    unary: Arc<AtomicUsize>,
    channel: Channel,
    _bound: Bound,
    _drain: Drain,
}

impl Routed {
    fn put(&self, limit: Duration) -> tokio::task::JoinHandle<Result<i64, Status>> {
        let mut client = pb::kv_client::KvClient::new(self.channel.clone());
        let mut request = Request::new(pb::PutRequest { key: "k".into(), ..Default::default() });
        request.set_timeout(limit);
        tokio::spawn(async move {
            Ok(client.put(request).await?.into_inner().header.unwrap_or_default().revision)
        })
    }

    fn unary_calls(&self) -> usize {
        self.unary.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn an_older_shard_gets_calls_of_their_own() {
    let (routed, _streams) = router(0, true).await;
    assert_eq!(in_time(routed.put(PATIENCE)).await.unwrap().unwrap(), 1);
    assert_eq!(routed.unary_calls(), 1, "it did not say that it has batches");
    let (routed, _streams) = router(FEATURE_BATCHES, false).await;
    assert_eq!(in_time(routed.put(PATIENCE)).await.unwrap().unwrap(), 1);
    assert_eq!(routed.unary_calls(), 1, "it was replaced by an older one since");
}

#[tokio::test]
async fn a_write_that_was_not_read_goes_once_more_and_one_that_was_does_not() {
    let (routed, mut streams) = router(FEATURE_BATCHES, true).await;
    let put = routed.put(PATIENCE);
    let mut opened = in_time(streams.recv()).await.unwrap();
    opened.op().await;
    opened.stop_behind(0).await;
    let mut opened = in_time(streams.recv()).await.unwrap();
    let again = opened.op().await;
    opened.put_done(again.id, 9).await;
    assert_eq!(in_time(put).await.unwrap().unwrap(), 9);

    let put = routed.put(PATIENCE);
    opened.op().await;
    drop(opened);
    let status = in_time(put).await.unwrap().unwrap_err();
    assert!(status.message().contains("possibly due to connection lost"), "{status:?}");
    assert!(
        tokio::time::timeout(Duration::from_millis(100), streams.recv()).await.is_err(),
        "it is not sent again"
    );
    assert_eq!(routed.unary_calls(), 0);
}

#[tokio::test]
async fn a_read_goes_once_more_when_its_stream_is_lost() {
    let (routed, mut streams) = router(FEATURE_BATCHES, true).await;
    let mut client = pb::kv_client::KvClient::new(routed.channel.clone());
    let get = tokio::spawn(async move {
        client.range(pb::RangeRequest { key: "k".into(), ..Default::default() }).await.map(drop)
    });
    let mut opened = in_time(streams.recv()).await.unwrap();
    opened.op().await;
    drop(opened);
    let mut opened = in_time(streams.recv()).await.unwrap();
    let again = opened.op().await;
    assert_eq!(again.method, Method::Range as i32);
    opened.put_done(again.id, 9).await;
    in_time(get).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_clients_deadline_ends_the_wait_and_cancels() {
    let (routed, mut streams) = router(FEATURE_BATCHES, true).await;
    let put = routed.put(Duration::from_secs(3));
    let mut opened = in_time(streams.recv()).await.unwrap();
    let op = opened.op().await;
    assert!(op.timeout_micros > 0 && op.timeout_micros <= 3_000_000, "{}", op.timeout_micros);
    let status = in_time(put).await.unwrap().unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    let message = in_time(opened.requests.next()).await.unwrap().unwrap();
    assert_eq!(shard::BatchRequest::decode(message).unwrap().cancelled, [op.id]);
}
