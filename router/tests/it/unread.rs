//! Clients that do not read and stores that hang: what they hold is bounded, and no other client is affected.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::fake::Fake;
use crate::support::scripted::in_time;
use crate::support::{WatchStream, all_up, router_with, spread_config};
use bytes::Bytes;
use kindred_proto::raw::kv::k_v_server::{KV, KVServer};
use kindred_proto::{etcdserverpb as pb, mvccpb};
use prost::Message as _;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// The bytes that a fake store sends at a time.
const CHUNK: usize = 256 << 10;

/// A KV service whose `RangeStream`s never end, and whose other calls are answered at once or not at all.
#[derive(Clone, Default)]
struct Endless {
    /// Bytes that were passed to streams.
    given: Arc<AtomicUsize>,
    /// Whether no calls are answered.
    stuck: Arc<AtomicBool>,
    /// The number of unanswered calls.
    waiting: Arc<AtomicUsize>,
}

impl Endless {
    async fn answer(&self, answer: impl prost::Message) -> Result<Response<Bytes>, Status> {
        if self.stuck.load(Ordering::SeqCst) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        Ok(Response::new(answer.encode_to_vec().into()))
    }
}

fn header() -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision: 1, ..Default::default() })
}

#[tonic::async_trait]
impl KV for Endless {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn range_stream(&self, _: Request<Bytes>) -> Result<Response<Self::RangeStreamStream>, Status> {
        let kv = mvccpb::KeyValue { key: "k".into(), value: vec![b'v'; CHUNK].into(), ..Default::default() };
        let range_response = Some(pb::RangeResponse { kvs: vec![kv], ..Default::default() });
        let chunk = Bytes::from(pb::RangeStreamResponse { range_response }.encode_to_vec());
        let given = self.given.clone();
        Ok(Response::new(Box::pin(tokio_stream::iter(std::iter::repeat(chunk)).map(move |chunk| {
            given.fetch_add(chunk.len(), Ordering::SeqCst);
            Ok(chunk)
        }))))
    }
    async fn range(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer(pb::RangeResponse { header: header(), ..Default::default() }).await
    }
    async fn put(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer(pb::PutResponse { header: header(), ..Default::default() }).await
    }
    async fn delete_range(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
    async fn txn(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
    async fn compact(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

fn one_store(url: &str) -> String {
    format!("default: s1\nstores:\n- {{name: s1, slot: 1, endpoints: ['{url}']}}\n")
}

/// A client with a connection of its own and HTTP/2's smallest windows.
fn client(listen: &str) -> pb::kv_client::KvClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{}", listen.trim_start_matches("http://"))).unwrap();
    let small = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    pb::kv_client::KvClient::new(small.connect_lazy()).max_decoding_message_size(usize::MAX)
}

fn keys(key: &str, end: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.to_owned().into(), range_end: end.to_owned().into(), ..Default::default() }
}

#[tokio::test]
async fn f13_clients_that_do_not_read_take_a_store_from_nobody() {
    const CLIENTS: usize = 64;
    let endless = Endless::default();
    let given = endless.given.clone();
    let fake = Fake::with(1, 0, |server| server.add_service(KVServer::new(endless))).await;
    let (bound, _drain, channel) = router_with(&one_store(&fake.url), &[]).await;
    all_up(&bound).await;
    let mut unread = Vec::new();
    for _ in 0..CLIENTS {
        // Each finds room at the store, although none before it reads.
        let asked = client(&bound.listen[0]).range_stream(keys("/registry/pods/", "/registry/pods0")).await;
        let mut chunks = asked.unwrap().into_inner();
        let first = in_time(chunks.message()).await.unwrap().unwrap();
        assert_eq!(first.range_response.unwrap().kvs[0].value.len(), CHUNK);
        unread.push(chunks);
    }
    // Wait until all windows between the store and the router are full.
    let full = async {
        while given.load(Ordering::SeqCst) < CLIENTS * (1 << 20) {
            tokio::task::yield_now().await;
        }
    };
    in_time(full).await;
    let mut others = pb::kv_client::KvClient::new(channel);
    for _ in 0..3 {
        in_time(others.range(keys("/registry/pods/a", ""))).await.unwrap();
        in_time(others.range(keys("/registry/pods/", "/registry/pods0"))).await.unwrap();
    }
    // Handshakes still get through.
    let before = fake.handshakes();
    let again = async {
        while fake.handshakes() < before + 2 {
            tokio::task::yield_now().await;
        }
    };
    in_time(again).await;
    assert!(bound.app.stores.iter().all(|store| store.state().is_up()));
    // What a client leaves unread is bounded: the windows on the way, and the buffers of each process.
    let each = given.load(Ordering::SeqCst) / CLIENTS;
    assert!(each <= 4 << 20, "{each} bytes were taken from the store for each client");
}

#[tokio::test]
async fn f14_a_store_that_stands_still_stops_no_watch_of_what_is_not_on_it() {
    const KINDS: usize = 12;
    const EVENTS: usize = 16;
    const BYTES: usize = 512 << 10;
    let (healthy, hung) = (Fake::start(1).await, Fake::start(2).await);
    let mut config = format!(
        "default: s1\nstores:\n- {{name: s1, slot: 1, endpoints: ['{}']}}\n\
         - {{name: s2, slot: 2, endpoints: ['{}']}}\npartitions:\n",
        healthy.url, hung.url
    );
    for kind in 0..KINDS {
        config += &format!(
            "- {{metadata: {{name: a{kind}}}, resource: kind{kind}.example.com, rangeEnd: m, isRangeEndValid: true, \
             serviceGroupId: s1}}\n\
             - {{metadata: {{name: b{kind}}}, resource: kind{kind}.example.com, rangeStart: m, \
             isRangeStartValid: true, serviceGroupId: s2}}\n"
        );
    }
    let (bound, _drain, channel) = router_with(&config, &[]).await;
    all_up(&bound).await;
    let mut spread = Vec::new();
    for kind in 0..KINDS {
        let mut watch = WatchStream::open(&channel).await;
        watch.create(&format!("/registry/example.com/kind{kind}/"), 0, 1).await;
        assert!(watch.next().await.created);
        spread.push(watch);
    }
    let mut nodes = WatchStream::open(&channel).await;
    nodes.create("/registry/minions/", 0, 1).await;
    assert!(nodes.next().await.created);
    hung.mute(true);
    // Feeds of Kinds on both stores cannot advance and are paused.
    for event in 0..EVENTS {
        healthy.write_sized(&[&format!("/registry/example.com/kind0/a/{event}")], BYTES);
        let node = healthy.write(&["/registry/minions/n"]);
        let seen = in_time(nodes.next()).await;
        assert_eq!(seen.events.len(), 1, "event {event}: {seen:?}");
        assert_eq!(seen.events[0].kv.as_ref().unwrap().mod_revision, node);
    }
    // A new watch also gets a connection to the healthy store.
    let mut late = WatchStream::open(&channel).await;
    late.create("/registry/configmaps/", 0, 1).await;
    assert!(late.next().await.created);
    hung.mute(false);
    let first = in_time(spread[0].next()).await;
    assert_eq!(first.events[0].kv.as_ref().unwrap().key, "/registry/example.com/kind0/a/0");
}

/// R17: no request waits for a store that hangs, although its connections stand and its kernel answers.
#[tokio::test]
async fn f48_calls_under_way_end_when_their_store_is_silent() {
    let endless = Endless::default();
    let kv = endless.clone();
    let fake = Fake::with(1, 0, |server| server.add_service(KVServer::new(kv))).await;
    let (bound, _drain, channel) = router_with(&one_store(&fake.url), &[]).await;
    all_up(&bound).await;
    let mut client = pb::kv_client::KvClient::new(channel);
    let put = || pb::PutRequest { key: "/registry/pods/a".into(), ..Default::default() };
    in_time(client.put(put())).await.unwrap();
    endless.stuck.store(true, Ordering::SeqCst);
    let (mut writer, mut reader, mut lister) = (client.clone(), client.clone(), client.clone());
    let write = tokio::spawn(async move { writer.put(put()).await });
    let read = tokio::spawn(async move { reader.range(keys("/registry/pods/a", "")).await });
    let list = tokio::spawn(async move { lister.range(keys("/registry/pods/", "/registry/pods0")).await });
    let under_way = async {
        while endless.waiting.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
    };
    in_time(under_way).await;
    fake.silence(true);
    // The write may still be executed, and its error says so (R11); a read is refused with the store's name.
    let write = in_time(write).await.unwrap().unwrap_err();
    assert_eq!(write.message(), "etcdserver: request timed out, possibly due to connection lost");
    for read in [read, list] {
        let read = in_time(read).await.unwrap().unwrap_err();
        assert_eq!(read.code(), tonic::Code::Unavailable, "{read:?}");
        assert!(read.message().contains("s1"), "{read:?}");
    }
    let refused = in_time(client.put(put())).await.unwrap_err();
    assert!(refused.message().contains("s1"), "{refused:?}");
    assert_eq!(endless.waiting.load(Ordering::SeqCst), 3, "nothing was sent to it since");
    // The store continues as if nothing had happened.
    endless.stuck.store(false, Ordering::SeqCst);
    fake.silence(false);
    all_up(&bound).await;
    in_time(client.put(put())).await.unwrap();
}

/// A request that comes while rounds of its question hang does not wait for them.
#[tokio::test]
async fn f29_probes_do_not_wait_for_rounds_that_stand_still() {
    let kv: Vec<Endless> = (0..2).map(|_| Endless::default()).collect();
    let mut urls = Vec::new();
    for (slot, kv) in (1..).zip(&kv) {
        let kv = kv.clone();
        urls.push(Fake::with(slot, 0, |server| server.add_service(KVServer::new(kv))).await.url);
    }
    let (bound, _drain, channel) = router_with(&spread_config(&urls, false), &[]).await;
    all_up(&bound).await;
    let client = pb::kv_client::KvClient::new(channel);
    let probe = || pb::RangeRequest { count_only: true, ..keys("/registry/pods/", "/registry/pods0") };
    kv[1].stuck.store(true, Ordering::SeqCst);
    let mut standing = Vec::new();
    for _ in 0..2 {
        let mut client = client.clone();
        standing.push(tokio::spawn(async move { client.range(probe()).await }));
    }
    let both = async {
        while kv[1].waiting.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    };
    in_time(both).await;
    kv[1].stuck.store(false, Ordering::SeqCst);
    // Two rounds, the most at a time, are under way and never end.
    for _ in 0..3 {
        in_time(client.clone().range(probe())).await.unwrap();
    }
    standing.iter().for_each(|standing| assert!(!standing.is_finished()));
}
