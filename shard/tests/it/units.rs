//! Units over real sockets: moves between two shards that are made by calls alone, the answers that all other clients
//! get meanwhile, and that a shard without unit records behaves as before.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::common::{moves::*, *};
use bytes::Bytes;
use kindred_partition_config::ids::Epoch;
use kindred_proto::{
    etcdserverpb::{self as pb, lease_client::LeaseClient},
    mvccpb::event::EventType,
    raw::kv::k_v_client::KVClient,
    shard_v1::{self as shard, feed_request, feeds_client::FeedsClient, shard_client::ShardClient},
};
use kindred_shard::config::Options;
use prost::Message;
use tonic::{Code, Status, Streaming};

const PODS: &str = "/registry/pods/";

async fn pair() -> (Shard, Shard) {
    let slot = |slot| Options { slot: Some(slot), ..Options::default() };
    (Shard::with(slot(1)).await, Shard::with(slot(2)).await)
}

fn pod(i: usize) -> String {
    format!("{PODS}{i:05}")
}

/// The generation in a refusal for ownership.
fn not_owned(refused: &Status) -> Epoch {
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.message().starts_with("kindred: "), "{refused:?}");
    let epoch = refused.metadata().get("kindred-not-owned").expect("it says so");
    Epoch(epoch.to_str().unwrap().parse().unwrap())
}

fn by_map<T>(message: T, generation: Epoch) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("kindred-map", generation.to_string().parse().unwrap());
    request
}

/// A client that knows two shards and a map, like a router.
#[derive(Clone)]
struct Routed {
    stores: [KVClient<Channel>; 2],
    generation: Arc<AtomicU64>,
}

impl Routed {
    async fn new(source: &Shard, target: &Shard) -> Self {
        let client =
            async |shard: &Shard| KVClient::new(shard.channel().await).max_decoding_message_size(usize::MAX);
        Self { stores: [client(source).await, client(target).await], generation: Arc::new(AtomicU64::new(1)) }
    }

    /// Makes the next map. Map 1 has the unit on the first store, and each newer map has it on the other store.
    fn decide(&self) -> Epoch {
        Epoch(self.generation.fetch_add(1, Ordering::SeqCst)).next()
    }

    fn map(&self) -> (Epoch, KVClient<Channel>) {
        let generation = self.generation.load(Ordering::SeqCst);
        (Epoch(generation), self.stores[usize::from(generation.is_multiple_of(2))].clone())
    }

    /// Sends a put until it is not refused for ownership (R11: a refused request is certainly not executed).
    async fn put(&self, key: &str, value: &str) -> i64 {
        loop {
            let (generation, mut store) = self.map();
            let put = Bytes::from(put_request(key, value).encode_to_vec());
            match store.put(by_map(put, generation)).await {
                Ok(answer) => {
                    return pb::PutResponse::decode(answer.into_inner()).unwrap().header.unwrap().revision;
                }
                Err(refused) => _ = not_owned(&refused),
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn delete(&self, key: &str) -> i64 {
        loop {
            let (generation, mut store) = self.map();
            let delete = Bytes::from(delete_request(key, "").encode_to_vec());
            match store.delete_range(by_map(delete, generation)).await {
                Ok(answer) => {
                    let answer = pb::DeleteRangeResponse::decode(answer.into_inner()).unwrap();
                    return answer.header.unwrap().revision;
                }
                Err(refused) => _ = not_owned(&refused),
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn range(&self, request: pb::RangeRequest) -> pb::RangeResponse {
        loop {
            let (generation, mut store) = self.map();
            match ranged(&mut store, request.clone(), generation).await {
                Ok(answer) => return answer,
                Err(refused) => _ = not_owned(&refused),
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

async fn ranged(
    store: &mut KVClient<Channel>,
    request: pb::RangeRequest,
    generation: Epoch,
) -> Result<pb::RangeResponse, Status> {
    let answer = store.range(by_map(Bytes::from(request.encode_to_vec()), generation)).await?;
    Ok(pb::RangeResponse::decode(answer.into_inner()).unwrap())
}

/// A router's feed of the pods, from now on.
async fn feed(shard: &Shard, generation: Epoch) -> Streaming<shard::FeedResponse> {
    let open = shard::FeedOpen { ranges: vec![prefix(PODS)], generation: generation.0, ..Default::default() };
    let open = shard::FeedRequest { request: Some(feed_request::Request::Open(open)) };
    // A feed continues when its requests are half-closed.
    FeedsClient::new(shard.channel().await).feed(tokio_stream::once(open)).await.unwrap().into_inner()
}

fn all_pods() -> pb::RangeRequest {
    range_request(PODS, "/registry/pods0")
}

/// What was acknowledged: for each revision the key and the value, or `None` for a deletion.
type Written = Arc<Mutex<BTreeMap<i64, (String, Option<String>)>>>;

/// Writes, deletes and reads pods until it is stopped, one request after another, so that it knows what must be there.
async fn writer(routed: Routed, written: Written, stop: Arc<AtomicBool>, first: usize) {
    let mut i = 0;
    while !stop.load(Ordering::SeqCst) {
        let key = pod(first + i % 50);
        let (revision, value) = match i % 7 {
            6 => (routed.delete(&key).await, None),
            _ => (routed.put(&key, &i.to_string()).await, Some(i.to_string())),
        };
        // A deletion of a missing key has no revision of its own.
        let there = routed.range(range_request(&key, "")).await;
        assert_eq!(there.kvs.first().map(|kv| kv.value.to_vec()), value.clone().map(String::into_bytes));
        assert!(there.header.unwrap().revision >= revision);
        if i % 7 != 6
            || written.lock().unwrap().values().rev().find(|(k, _)| *k == key).is_some_and(|w| w.1.is_some())
        {
            let before = written.lock().unwrap().insert(revision, (key, value));
            assert_eq!(before, None, "a revision of its own");
        }
        i += 1;
    }
}

/// The key that is written last.
const END: &str = "/registry/pods/end";

/// Follows the pods from `start` on over both stores, as a router does, until it has seen [`END`].
async fn follow(routed: Routed, shards: [Client; 2], start: i64) -> Vec<(i64, String, Option<String>)> {
    let (mut seen, mut next, mut over) = (Vec::new(), start, false);
    while !over {
        let generation = routed.generation.load(Ordering::SeqCst);
        let mut watch = shards[usize::from(generation.is_multiple_of(2))].watch().await;
        let mut create = watch_prefix(PODS, next);
        create.watch_id = 77;
        let created = watch.create(create).await;
        assert_eq!(created.watch_id, 77, "{created:?}");
        let mut ended = created.canceled.then_some(created);
        while ended.is_none() && !over {
            let answer = watch.next().await;
            assert_eq!(answer.watch_id, 77);
            for event in &answer.events {
                let kv = event.kv.as_ref().unwrap();
                let value = (event.r#type() == EventType::Put).then(|| text(&kv.value));
                over |= kv.key == END;
                seen.push((kv.mod_revision, text(&kv.key), value));
                next = kv.mod_revision + 1;
            }
            ended = answer.canceled.then_some(answer);
        }
        if let Some(ended) = ended {
            assert_eq!(ended.compact_revision, 0, "nothing is lost by a move: {ended:?}");
            assert!(kindred_wire::refusal::is_not_owned(&ended.cancel_reason), "{ended:?}");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
    seen
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_unit_moves_there_and_back_while_it_is_written_read_and_watched() {
    let (source, target) = pair().await;
    let (mut at_source, mut at_target) = (units(&source).await, units(&target).await);
    let routed = Routed::new(&source, &target).await;
    let written: Written = Written::default();
    let mut first = 0;
    // There are more keys than fit into one chunk, and they have a history.
    for i in 0..1500 {
        let revision = routed.put(&pod(1000 + i), "old").await;
        first = if i == 0 { revision } else { first };
        written.lock().unwrap().insert(revision, (pod(1000 + i), Some("old".to_owned())));
        if i % 10 == 0 {
            let revision = routed.put(&pod(1000 + i), "new").await;
            written.lock().unwrap().insert(revision, (pod(1000 + i), Some("new".to_owned())));
        }
    }
    source.client().await.put("/registry/minions/n", "stays").await;

    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(writer(routed.clone(), written.clone(), stop.clone(), 0));
    let shards = [source.client().await, target.client().await];
    let following = tokio::spawn(follow(routed.clone(), shards, first));

    // The unit moves there.
    let there = moved(1, 1, PODS);
    let tracking = track(&mut at_source, &there).await;
    assert!(tracking.keys >= 1500 && tracking.bytes > 1500 * 30 && tracking.events >= 1650, "{tracking:?}");
    let (at, keys) = copy(&mut at_source, &mut at_target, &there).await;
    assert!(keys >= 1500, "{keys}");
    let mut tail = Tail::begin(&source, at_target.clone(), &there, at).await;
    let mark = routed.put(&pod(99_999), "mark").await;
    written.lock().unwrap().insert(mark, (pod(99_999), Some("mark".to_owned())));
    tail.until(mark).await;
    let (ours, theirs) =
        (digests(&mut at_source, &there, 0, mark).await, digests(&mut at_target, &there, 0, mark).await);
    assert_eq!(ours, theirs);
    assert!(ours.len() >= 2 && ours.iter().map(|digest| digest.versions).sum::<u64>() >= 1650, "{ours:?}");

    let mut fed = feed(&source, Epoch(1)).await;
    let last = freeze(&mut at_source, &there).await;
    assert!(last >= mark);
    // A router's feed ends at the final revision.
    let (mut watermark, mut ended) = (0, 0);
    while let Some(message) = fed.message().await.unwrap() {
        assert!(message.watermark <= last && message.events.iter().all(|event| event.revision <= last));
        (watermark, ended) = (message.watermark.max(watermark), message.moved.max(ended));
    }
    assert_eq!(ended, last, "{watermark}");
    tail.until(last).await;
    assert_eq!(tail.through, last, "nothing is promised above it");
    seal(&mut at_target, &there, last).await.unwrap();
    let epoch = routed.decide();
    assert_eq!(epoch, Epoch(2));
    release(&mut at_source, &there, epoch).await;
    open(&mut at_target, &there, epoch).await;
    assert_eq!(records(&mut at_source).await[0].0, shard::UnitState::Following);
    assert_eq!(records(&mut at_target).await[0].0, shard::UnitState::Owned);

    // What was current at the final revision can still be read at that revision.
    let at_last = pb::RangeRequest { revision: last, limit: 2, ..all_pods() };
    let answer = ranged(&mut routed.stores[1].clone(), at_last, epoch).await.unwrap();
    assert!(answer.count >= 1500 && answer.kvs.len() == 2, "{}", answer.count);
    // A router that does not know of the switch gets the generation of the newer map.
    let mut old = routed.stores[0].clone();
    assert_eq!(not_owned(&ranged(&mut old, all_pods(), Epoch(1)).await.unwrap_err()), Epoch(2));
    assert_eq!(
        not_owned(&ranged(&mut old, range_request(&pod(1000), ""), Epoch(1)).await.unwrap_err()),
        Epoch(2)
    );
    let raise = shard::RaiseRequest { ranges: vec![prefix(PODS)], to: 0, generation: 1 };
    let mut raises = ShardClient::new(source.channel().await);
    assert_eq!(not_owned(&raises.raise(raise).await.unwrap_err()), Epoch(2));
    let since = shard::RaiseSinceRequest { ranges: vec![prefix(PODS)], generation: 1, ..Default::default() };
    assert_eq!(not_owned(&raises.raise_since(since).await.unwrap_err()), Epoch(2));
    assert_eq!(not_owned(&feed(&source, Epoch(1)).await.message().await.unwrap_err()), Epoch(2));
    // So does a request for the Kind's revision.
    assert_eq!(
        not_owned(&ranged(&mut old, range_request("/registry/pods", ""), Epoch(1)).await.unwrap_err()),
        Epoch(2)
    );
    // But what was settled such a router can read here as it would there (R13): as a whole, by pages, counted and key
    // by key.
    let settled = pb::RangeRequest { revision: last, ..all_pods() };
    let mut new = routed.stores[1].clone();
    for asked in [
        settled.clone(),
        pb::RangeRequest { limit: 7, ..settled.clone() },
        pb::RangeRequest { count_only: true, ..settled.clone() },
        pb::RangeRequest { revision: mark, ..settled.clone() },
        pb::RangeRequest { revision: mark, ..range_request(&pod(99_999), "") },
    ] {
        let here = ranged(&mut old, asked.clone(), Epoch(1)).await.unwrap();
        let there = ranged(&mut new, asked, epoch).await.unwrap();
        assert!(here.count > 0);
        assert_eq!((here.kvs, here.count, here.more), (there.kvs, there.count, there.more));
        assert!(here.header.unwrap().revision <= last, "nothing above is promised");
    }
    assert_eq!(
        not_owned(&ranged(&mut old, settled, Epoch(2)).await.unwrap_err()),
        Epoch(2),
        "it ought to know"
    );
    // A router that knows of the switch may ask for more than the unit.
    let nodes = ranged(&mut old, range_request("/registry/", "/registry0"), Epoch(2)).await.unwrap();
    assert_eq!(nodes.kvs.iter().map(|kv| text(&kv.key)).collect::<Vec<_>>(), ["/registry/minions/n"]);

    // The unit moves back, with everything that is written there meanwhile.
    let back = moved(1, 2, PODS);
    track(&mut at_target, &back).await;
    let mut tail = Tail::begin(&target, at_source.clone(), &back, last).await;
    let mark = routed.put(&pod(99_999), "there").await;
    written.lock().unwrap().insert(mark, (pod(99_999), Some("there".to_owned())));
    tail.until(mark).await;
    let (ours, theirs) =
        (digests(&mut at_source, &back, 0, mark).await, digests(&mut at_target, &back, 0, mark).await);
    assert_eq!(ours, theirs);
    let last = freeze(&mut at_target, &back).await;
    tail.until(last).await;
    assert_eq!(tail.through, last, "nothing is promised above it");
    seal(&mut at_source, &back, last).await.unwrap();
    let epoch = routed.decide();
    release(&mut at_target, &back, epoch).await;
    open(&mut at_source, &back, epoch).await;
    let mark = routed.put(&pod(99_999), "back").await;
    written.lock().unwrap().insert(mark, (pod(99_999), Some("back".to_owned())));

    stop.store(true, Ordering::SeqCst);
    writing.await.unwrap();
    let mark = routed.put(END, "end").await;
    written.lock().unwrap().insert(mark, (END.to_owned(), Some("end".to_owned())));
    let seen = following.await.unwrap();
    let expected: Vec<_> =
        written.lock().unwrap().iter().map(|(at, (key, value))| (*at, key.clone(), value.clone())).collect();
    assert_eq!(seen.len(), expected.len());
    assert_eq!(seen, expected);

    let mut live = BTreeMap::new();
    for (key, value) in written.lock().unwrap().values() {
        match value {
            Some(value) => live.insert(key.clone(), value.clone()),
            None => live.remove(key),
        };
    }
    let list = routed.range(all_pods()).await;
    let listed: BTreeMap<_, _> = list.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value))).collect();
    assert_eq!(listed, live);
    assert_eq!(list.count, live.len() as i64);

    // The other store forgets everything, and still refuses requests by an old map.
    drop_unit(&mut at_target, &back, epoch).await;
    assert_eq!(records(&mut at_target).await, [(shard::UnitState::Gone, epoch, 0)]);
    let keys = target.running.handle.inspect(|core| core.engine.stats().keys).await.unwrap();
    assert_eq!(keys, 0);
    assert_eq!(
        not_owned(&ranged(&mut routed.stores[1].clone(), all_pods(), Epoch(2)).await.unwrap_err()),
        epoch
    );
    let more = range_request("/registry/", "/registry0");
    assert_eq!(ranged(&mut routed.stores[1].clone(), more, epoch).await.unwrap().count, 0);
}

/// Tracks a unit with a few keys, and copies it to the other store.
async fn copied(source: &Shard, target: &Shard, by: &shard::UnitMove) -> (Units, Units, i64) {
    let client = source.client().await;
    for i in 0..10 {
        client.put(pod(i), "v").await;
    }
    let (mut at_source, mut at_target) = (units(source).await, units(target).await);
    track(&mut at_source, by).await;
    let (at, keys) = copy(&mut at_source, &mut at_target, by).await;
    assert_eq!(keys, 10);
    (at_source, at_target, at)
}

#[tokio::test]
async fn r13_a_frozen_unit_refuses_all_and_is_served_again_after_an_abort() {
    let (source, target) = pair().await;
    let by = moved(1, 1, PODS);
    let (mut at_source, mut at_target, _) = copied(&source, &target, &by).await;
    let client = source.client().await;
    let mut watch = client.watch().await;
    watch.create(pb::WatchCreateRequest { watch_id: 5, ..watch_prefix(PODS, 0) }).await;
    watch.create(pb::WatchCreateRequest { watch_id: 6, ..watch_prefix("/registry/minions/", 0) }).await;

    let last = freeze(&mut at_source, &by).await;
    assert_eq!(freeze(&mut at_source, &by).await, last, "as often as one likes");
    assert_eq!(records(&mut at_source).await, [(shard::UnitState::Frozen, Epoch::NONE, 10)]);
    let key = pod(1);
    let in_txn = |op| pb::TxnRequest { success: vec![op], ..Default::default() };
    let list = op(pb::request_op::Request::RequestRange(all_pods()));
    let refused = [
        client.put_request(put_request(&key, "w")).await.unwrap_err(),
        client.delete(PODS, "/registry/pods0").await.unwrap_err(),
        client.range(range_request(&key, "")).await.unwrap_err(),
        client.range(all_pods()).await.unwrap_err(),
        client.range_stream(all_pods()).await.unwrap_err(),
        client.txn(in_txn(put_op(&key, "w"))).await.unwrap_err(),
        client.txn(in_txn(list)).await.unwrap_err(),
        client
            .txn(pb::TxnRequest {
                compare: vec![mod_is(&key, 0)],
                success: vec![put_op("/registry/minions/n", "w")],
                ..Default::default()
            })
            .await
            .unwrap_err(),
    ];
    for refused in &refused {
        assert_eq!(not_owned(refused), Epoch::NONE, "{refused:?}");
    }
    let at_last = client.range(pb::RangeRequest { revision: last, ..all_pods() }).await.unwrap();
    assert_eq!((at_last.count, at_last.header.unwrap().revision <= last), (10, true));
    client.put("/registry/minions/n", "served").await;
    // A raise of the whole shard, which a compaction needs, is not held up; a raise of the unit is.
    let mut raises = ShardClient::new(source.channel().await);
    let raise = |range, generation| shard::RaiseRequest { ranges: vec![range], to: last + 5, generation };
    let all = shard::KeyRange { key: Bytes::from_static(&[0]), range_end: Bytes::from_static(&[0]) };
    assert!(raises.raise(raise(all, 0)).await.unwrap().into_inner().current >= last + 5);
    assert_eq!(not_owned(&raises.raise(raise(prefix(PODS), 1)).await.unwrap_err()), Epoch::NONE);
    let at_last = client.range(pb::RangeRequest { revision: last, ..all_pods() }).await.unwrap();
    assert!(at_last.header.unwrap().revision <= last);
    client.compact(last, false).await.unwrap();

    // The watch of the unit ends under its own id, and the other continues; a new one is refused under the id that it
    // wants.
    let (mut ended, mut minion) = (None, None);
    while ended.is_none() || minion.is_none() {
        let answer = watch.next().await;
        match answer.watch_id {
            5 => ended = Some(answer),
            id => minion = Some((id, answer.events.len())),
        }
    }
    let ended = ended.unwrap();
    assert!(ended.canceled && kindred_wire::refusal::is_not_owned(&ended.cancel_reason), "{ended:?}");
    assert!(ended.header.unwrap().revision <= last);
    assert_eq!(minion, Some((6, 1)));
    let refused = watch.create(pb::WatchCreateRequest { watch_id: 9, ..watch_prefix(PODS, 0) }).await;
    assert!(refused.canceled && refused.watch_id == 9, "{refused:?}");
    assert!(kindred_wire::refusal::is_not_owned(&refused.cancel_reason), "{refused:?}");

    // The attempt is given up, and with it the move.
    let next = moved(1, 2, PODS);
    unfreeze(&mut at_source, &next).await;
    assert!(client.put(&key, "w").await > last);
    assert_eq!(client.range(all_pods()).await.unwrap().count, 10);
    drop_unit(&mut at_target, &next, Epoch::NONE).await;
    assert_eq!(records(&mut at_target).await, [], "it never owned anything");
    let keys = target.running.handle.inspect(|core| core.engine.stats().keys).await.unwrap();
    assert_eq!(keys, 0);
    at_source.forget(shard::ForgetRequest { r#move: Some(next.clone()) }).await.unwrap();
    assert_eq!(client.range(all_pods()).await.unwrap().count, 10);

    // Every call of a coordinator whose move was taken over is refused.
    let stale = at_source
        .freeze(shard::FreezeRequest { r#move: Some(by.clone()), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(stale.code(), Code::FailedPrecondition);
    assert!(stale.message().contains("has a coordinator of term 2"), "{stale:?}");
    let request = shard::CopyRequest { r#move: Some(by.clone()), ..Default::default() };
    let mut stale = at_source.copy(request).await.unwrap().into_inner();
    assert_eq!(stale.message().await.unwrap_err().code(), Code::FailedPrecondition);
}

/// A target whose clock is some seconds behind has a ceiling below the source's final revision. The ceiling is raised
/// for the seal, up to the maximum offset and not further (R2, R3).
#[tokio::test]
async fn f21_a_target_whose_clock_is_behind_is_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let kept = Options {
        slot: Some(2),
        data_dir: Some(directory.path().to_owned()),
        durability: Some("fsync".to_owned()),
        ..Options::default()
    };
    let source = Shard::with(Options { slot: Some(1), ..Options::default() }).await;
    let target = Shard::with(kept).await;
    let by = moved(1, 1, PODS);
    let (mut at_source, mut at_target) = (units(&source).await, units(&target).await);
    source.client().await.put(pod(1), "v").await;
    track(&mut at_source, &by).await;
    let (at, _) = copy(&mut at_source, &mut at_target, &by).await;
    let ahead = |seconds: i64| at + ((seconds * 1_000_000) << 10);
    let import = |through| shard::ImportRequest { r#move: Some(by.clone()), through, ..Default::default() };
    for seconds in [3, 5, 8] {
        at_target.import(import(ahead(seconds))).await.unwrap();
        seal(&mut at_target, &by, ahead(seconds)).await.unwrap();
    }
    // A seal further ahead than a clock may be raised is refused, and the ceiling stays where it is.
    at_target.import(import(ahead(3_600))).await.unwrap();
    let refused = seal(&mut at_target, &by, ahead(3_600)).await.unwrap_err();
    assert!(refused.message().contains("further above"), "{refused:?}");
    let ceiling = target.running.handle.inspect(|core| core.engine.ceiling()).await.unwrap();
    assert!(ceiling.get() < ahead(60), "{ceiling:?}");
}

/// The end of a move waits for lists that began before the switch: their clients see no error.
#[tokio::test]
async fn a_list_that_began_before_the_switch_ends_before_the_unit_is_dropped() {
    let (source, target) = pair().await;
    let by = moved(1, 1, PODS);
    let (mut at_source, mut at_target) = (units(&source).await, units(&target).await);
    let client = source.client().await;
    // The list is larger than what fits into the buffers on the way.
    let value = "v".repeat(400_000);
    for i in 0..100 {
        client.put(pod(i), &value).await;
    }
    let mut list = client.open_range_stream(all_pods()).await;
    let first = list.message().await.unwrap().unwrap();
    track(&mut at_source, &by).await;
    let (at, _) = copy(&mut at_source, &mut at_target, &by).await;
    let tail = Tail::begin(&source, at_target.clone(), &by, at).await;
    switch(&mut at_source, &mut at_target, tail, &by, Epoch(2)).await;

    let drop = shard::DropRequest { r#move: Some(by.clone()), epoch: 2 };
    let waits = at_source.drop(drop.clone()).await.unwrap_err();
    assert_eq!(waits.code(), Code::Unavailable, "{waits:?}");
    assert!(waits.message().contains("still read here by a long read"), "{waits:?}");
    assert_eq!(records(&mut at_source).await[0].0, shard::UnitState::Following);

    let mut seen = 0;
    let mut next = Some(first);
    while let Some(message) = next {
        let part = pb::RangeStreamResponse::decode(message).unwrap().range_response.unwrap();
        seen += part.kvs.len();
        next = list.message().await.unwrap();
    }
    assert_eq!(seen, 100);
    let asked = at_source.clone();
    eventually("nobody reads it", async || asked.clone().drop(drop.clone()).await.is_ok()).await;
    eventually("the unit is gone", async || {
        records(&mut asked.clone()).await == [(shard::UnitState::Gone, Epoch(2), 0)]
    })
    .await;
}

/// A key that is written often between two compactions has a history of any size.
#[tokio::test]
async fn f30_the_history_of_a_key_is_copied_in_messages_of_bounded_size() {
    let (source, target) = pair().await;
    let by = moved(1, 1, PODS);
    let (mut at_source, mut at_target) = (units(&source).await, units(&target).await);
    let client = source.client().await;
    let value = "v".repeat(1 << 20);
    client.put(pod(0), "before").await;
    for i in 0..14 {
        client.put(pod(1), format!("{i}{value}")).await;
        if i == 6 {
            client.delete(&pod(1), "").await.unwrap();
        }
    }
    client.put(pod(2), "behind").await;
    track(&mut at_source, &by).await;

    let request = shard::CopyRequest { r#move: Some(by.clone()), after: Bytes::new(), at: 0 };
    let mut messages = at_source.copy(request).await.unwrap().into_inner();
    let (mut keys, mut longest, mut count) = (Vec::new(), 0, 0);
    while let Some(message) = messages.message().await.unwrap() {
        (longest, count) = (longest.max(message.encoded_len()), count + 1);
        keys.extend(message.keys.into_iter().map(|key| (text(&key.key), key.versions.len())));
    }
    assert!(longest < 3 << 20 && count >= 14, "{count} messages of up to {longest} bytes");
    let of =
        |name: &str| keys.iter().filter(|(key, _)| key == name).map(|(_, versions)| versions).sum::<usize>();
    assert_eq!([of(&pod(0)), of(&pod(1)), of(&pod(2))], [1, 15, 1]);

    let (at, _) = copy(&mut at_source, &mut at_target, &by).await;
    let (there, here) =
        (digests(&mut at_source, &by, 1, at).await, digests(&mut at_target, &by, 1, at).await);
    assert_eq!(there.iter().map(|digest| digest.versions).sum::<u64>(), 17);
    assert_eq!(there, here);
}

#[tokio::test]
async fn a_seal_wants_all_events_and_all_leases() {
    let (source, target) = pair().await;
    let by = moved(7, 1, PODS);
    let mut at_home = LeaseClient::new(source.channel().await);
    let id = at_home.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 0 }).await.unwrap().into_inner().id;
    let client = source.client().await;
    client.put_request(pb::PutRequest { lease: id, ..put_request(pod(3), "v") }).await.unwrap();
    let (mut at_source, mut at_target) = (units(&source).await, units(&target).await);
    track(&mut at_source, &by).await;
    assert_eq!(leases(&mut at_source, &by, false).await, [id]);
    let (at, _) = copy(&mut at_source, &mut at_target, &by).await;
    let written = client.put(pod(4), "v").await;
    let last = freeze(&mut at_source, &by).await;
    let behind = seal(&mut at_target, &by, last).await.unwrap_err();
    assert_eq!(behind.code(), Code::FailedPrecondition, "{behind:?}");
    // The frozen source cannot delete keys that it may not own any more, so the end of the lease waits.
    let waits = at_home.lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap_err();
    assert_eq!(not_owned(&waits), Epoch::NONE);

    let mut tail = Tail::begin(&source, at_target.clone(), &by, at).await;
    tail.until(last).await;
    assert!(written <= last);
    let unknown = seal(&mut at_target, &by, last).await.unwrap_err();
    assert!(unknown.message().contains("leases of its keys are not attached"), "{unknown:?}");
    assert_eq!(leases(&mut at_target, &by, true).await, [id]);
    let adopt = shard::LeaseAdoptRequest { id, granted_ttl: 600, home_slot: 1, ..Default::default() };
    ShardClient::new(target.channel().await).lease_adopt(adopt).await.unwrap();
    assert!(leases(&mut at_target, &by, true).await.is_empty());
    seal(&mut at_target, &by, last).await.unwrap();
    release(&mut at_source, &by, Epoch(5)).await;
    open(&mut at_target, &by, Epoch(5)).await;
    let kept = target.client().await.range(range_request(&pod(3), "")).await.unwrap();
    assert_eq!(kept.kvs[0].lease, id);
}

#[tokio::test]
async fn calls_that_make_no_sense_are_refused_and_without_records_all_is_as_it_was() {
    let (shard, other) = pair().await;
    let mut here = units(&shard).await;
    let client = shard.client().await;
    client.put(pod(1), "v").await;
    assert_eq!(records(&mut here).await, []);
    // The shard answers whatever map a request was sent by.
    let mut kv = KVClient::new(shard.channel().await);
    assert_eq!(ranged(&mut kv, all_pods(), Epoch(1_000)).await.unwrap().count, 1);
    let mut raises = ShardClient::new(shard.channel().await);
    let raise = shard::RaiseRequest { ranges: vec![prefix(PODS)], to: 0, generation: 9 };
    assert!(raises.raise(raise).await.unwrap().into_inner().current > 0);

    let by = moved(1, 1, PODS);
    let bare = |unit| shard::TrackRequest { r#move: Some(shard::UnitMove { r#move: 1, term: 1, unit }) };
    let single = shard::KeyRange { key: "k".into(), range_end: Bytes::new() };
    let unit = |range, buckets: &'static [u8]| {
        Some(shard::Unit { range: Some(range), buckets: buckets.into(), prefix_len: 0 })
    };
    for wrong in [bare(None), bare(unit(single, b"")), bare(unit(prefix(PODS), b"short"))] {
        assert_eq!(here.track(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(seal(&mut here, &by, 0).await.unwrap_err().code(), Code::InvalidArgument);
    let open = shard::OpenRequest { r#move: Some(by.clone()), epoch: 0 };
    assert_eq!(here.open(open).await.unwrap_err().code(), Code::InvalidArgument);
    // Calls about units that are not there, or that are already there.
    let unknown = here
        .freeze(shard::FreezeRequest { r#move: Some(by.clone()), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition);
    let import = shard::ImportRequest { r#move: Some(by.clone()), through: 1, ..Default::default() };
    let occupied = here.import(import).await.unwrap_err();
    assert!(occupied.message().contains("is here already"), "{occupied:?}");
    let event = shard::FeedEvent { revision: 5, event: Bytes::from_static(b"\x0f") };
    let import = shard::ImportRequest { r#move: Some(by), events: vec![event], ..Default::default() };
    let broken = units(&other).await.import(import).await.unwrap_err();
    assert_eq!(broken.code(), Code::InvalidArgument, "{broken:?}");
    assert_eq!(records(&mut units(&other).await).await, []);
    client.put(pod(1), "still").await;
}

/// One call can hold the calls about all units of a leg: each has its own answer, one that is refused stops none of the
/// others, and all of it may be repeated.
#[tokio::test]
async fn f18_calls_about_many_units_are_made_as_one() {
    use shard::{unit_answer::Answer, unit_call::Call};

    const UNITS: usize = 250;
    async fn made(units: &mut Units, calls: Vec<Call>) -> Vec<Answer> {
        let calls = calls.into_iter().map(|call| shard::UnitCall { call: Some(call) }).collect();
        let answers = units.together(shard::UnitCalls { calls }).await.unwrap().into_inner();
        assert_ne!(answers.incarnation, 0);
        answers.answers.into_iter().map(|answer| answer.answer.unwrap()).collect()
    }
    let (source, target) = pair().await;
    let (mut from, mut to) = (units(&source).await, units(&target).await);
    let parts: Vec<shard::UnitMove> = (0..UNITS).map(|at| moved(1, 1, &format!("{PODS}{at:03}/"))).collect();
    let client = Routed::new(&source, &target).await;
    let written = client.put(&format!("{PODS}007/a"), "v").await;
    let each = |call: &dyn Fn(Option<shard::UnitMove>) -> Call| {
        parts.iter().map(|by| call(Some(by.clone()))).collect::<Vec<_>>()
    };
    let tracked = made(&mut from, each(&|by| Call::Track(shard::TrackRequest { r#move: by }))).await;
    assert!(tracked.iter().all(|answer| matches!(answer, Answer::Track(tracked) if tracked.ready)));
    for by in &parts {
        copy(&mut from, &mut to, by).await;
    }
    let last = client.put(&format!("{PODS}200/a"), "v").await;

    // A unit that nobody tracks cannot be frozen; the others are frozen.
    let freeze = |by| Call::Freeze(shard::FreezeRequest { r#move: by, ..Default::default() });
    let mut calls = each(&freeze);
    calls.insert(5, freeze(Some(moved(1, 1, "/registry/nodes/"))));
    let mut frozen = made(&mut from, calls).await;
    let Answer::Refused(refused) = frozen.remove(5) else { panic!("{frozen:?}") };
    assert_eq!(Code::from(refused.code.cast_signed()), Code::FailedPrecondition, "{refused:?}");
    let finals: Vec<i64> = frozen
        .iter()
        .map(|answer| match answer {
            Answer::Freeze(frozen) => frozen.final_revision,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(finals.iter().all(|revision| *revision >= last && last > written));
    assert_eq!(made(&mut from, each(&freeze)).await, frozen, "asked again, it is the same");

    // One question asks for the state of all of them.
    let look = |by| Call::Look(shard::LookRequest { r#move: by });
    let tails = made(&mut to, each(&look)).await.into_iter().zip(&parts).map(|(answer, by)| {
        let Answer::Look(look) = answer else { panic!("{answer:?}") };
        shard::TailRequest { unit: by.unit.clone(), start: look.record.unwrap().through + 1 }
    });
    let mut tails: Vec<_> = tails.collect();
    tails.push(shard::TailRequest { unit: moved(1, 1, "/registry/nodes/").unit, start: 1 });
    let mut said = from.tails(shard::TailsRequest { tails }).await.unwrap().into_inner().tails;
    assert!(said.pop().unwrap().refused.is_some(), "nobody tracks it");
    let imports = said.into_iter().zip(&parts).enumerate().map(|(at, (tail, by))| {
        let said = tail.said.unwrap();
        assert_eq!((said.events.len(), said.watermark), (usize::from(at == 200), finals[at]), "{at}");
        Call::Import(shard::ImportRequest {
            r#move: Some(by.clone()),
            events: said.events,
            through: said.watermark,
            ..Default::default()
        })
    });
    let imported = made(&mut to, imports.collect()).await;
    for (answer, last) in imported.iter().zip(&finals) {
        assert_eq!(*answer, Answer::Import(shard::ImportResponse { through: *last }));
    }
    for _ in 0..2 {
        let seals = parts.iter().zip(&finals).map(|(by, last)| {
            let (r#move, final_revision) = (Some(by.clone()), *last);
            Call::Seal(shard::SealRequest { r#move, final_revision, ..Default::default() })
        });
        let sealed = made(&mut to, seals.collect()).await;
        assert!(sealed.iter().all(|answer| matches!(answer, Answer::Seal(_))), "{sealed:?}");
    }
    let epoch = client.decide();
    for _ in 0..2 {
        let release = |by| Call::Release(shard::ReleaseRequest { r#move: by, epoch: epoch.0 });
        let released = made(&mut from, each(&release)).await;
        assert!(released.iter().all(|answer| matches!(answer, Answer::Release(_))), "{released:?}");
        let open = |by| Call::Open(shard::OpenRequest { r#move: by, epoch: epoch.0 });
        let opened = made(&mut to, each(&open)).await;
        assert!(opened.iter().all(|answer| matches!(answer, Answer::Open(_))), "{opened:?}");
    }
    assert_eq!(client.range(all_pods()).await.count, 2);
    // A coordinator whose move another has taken over is refused everything.
    let mut later = parts[0].clone();
    later.term = 2;
    made(&mut to, vec![look(Some(later.clone())), Call::Track(shard::TrackRequest { r#move: Some(later) })])
        .await;
    let track = |by| Call::Track(shard::TrackRequest { r#move: by });
    let refused = made(&mut to, each(&track)).await;
    assert!(refused.iter().all(|answer| matches!(answer, Answer::Refused(_))), "{refused:?}");
}
