//! Units over real sockets: moves between two shards by calls alone, what everybody else is told meanwhile, and that a
//! shard without records is what it was.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use common::{moves::*, *};
use kindred_proto::{
    etcdserverpb as pb, mvccpb::event::EventType, raw::kv::k_v_client::KVClient, shard_v1 as shard,
};
use kindred_shard::config::Options;
use prost::Message;
use tonic::{Code, Status, transport::Channel};

const PODS: &str = "/registry/pods/";

async fn pair() -> (Shard, Shard) {
    let slot = |slot| Options { slot: Some(slot), ..Options::default() };
    (Shard::with(slot(1)).await, Shard::with(slot(2)).await)
}

fn pod(i: usize) -> String {
    format!("{PODS}{i:05}")
}

/// The generation of a refusal for ownership.
fn not_owned(refused: &Status) -> u64 {
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.message().starts_with("kindred: "), "{refused:?}");
    let epoch = refused.metadata().get("kindred-not-owned").expect("it says so");
    epoch.to_str().unwrap().parse().unwrap()
}

fn by_map<T>(message: T, generation: u64) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("kindred-map", generation.to_string().parse().unwrap());
    request
}

/// A client that knows two shards and a map, as a router does.
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

    /// Map 1 has the unit on the first store, and each newer one on the other.
    fn decide(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn map(&self) -> (u64, KVClient<Channel>) {
        let generation = self.generation.load(Ordering::SeqCst);
        (generation, self.stores[usize::from(generation % 2 == 0)].clone())
    }

    /// Sends until it is not refused for ownership (R11: a refusal is certain).
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
    generation: u64,
) -> Result<pb::RangeResponse, Status> {
    let answer = store.range(by_map(Bytes::from(request.encode_to_vec()), generation)).await?;
    Ok(pb::RangeResponse::decode(answer.into_inner()).unwrap())
}

fn all_pods() -> pb::RangeRequest {
    range_request(PODS, "/registry/pods0")
}

/// What was acknowledged: for each revision the key and the value, `None` for a deletion.
type Written = Arc<Mutex<BTreeMap<i64, (String, Option<String>)>>>;

/// Writes, deletes and reads pods until it is stopped; one after another, so that it knows what must be there.
async fn writer(routed: Routed, written: Written, stop: Arc<AtomicBool>, first: usize) {
    let mut i = 0;
    while !stop.load(Ordering::SeqCst) {
        let key = pod(first + i % 50);
        let (revision, value) = match i % 7 {
            6 => (routed.delete(&key).await, None),
            _ => (routed.put(&key, &i.to_string()).await, Some(i.to_string())),
        };
        // A deletion of what was not there has no revision of its own.
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

/// A key, the last that is written.
const END: &str = "/registry/pods/end";

/// Follows the pods from `start` on over both stores as a router does, until it has seen [`END`].
async fn follow(routed: Routed, shards: [Client; 2], start: i64) -> Vec<(i64, String, Option<String>)> {
    let (mut seen, mut next, mut over) = (Vec::new(), start, false);
    while !over {
        let generation = routed.generation.load(Ordering::SeqCst);
        let mut watch = shards[usize::from(generation % 2 == 0)].watch().await;
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
    // More than one chunk of everything, with history.
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

    // There.
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

    let last = freeze(&mut at_source, &there).await;
    assert!(last >= mark);
    tail.until(last).await;
    assert_eq!(tail.through, last, "nothing is promised above it");
    seal(&mut at_target, &there, last).await.unwrap();
    let epoch = routed.decide();
    assert_eq!(epoch, 2);
    release(&mut at_source, &there, epoch).await;
    open(&mut at_target, &there, epoch).await;
    assert_eq!(records(&mut at_source).await[0].0, shard::UnitState::Following);
    assert_eq!(records(&mut at_target).await[0].0, shard::UnitState::Owned);

    // What was current at the end is still to be read at that revision.
    let at_last = pb::RangeRequest { revision: last, limit: 2, ..all_pods() };
    let answer = ranged(&mut routed.stores[1].clone(), at_last, epoch).await.unwrap();
    assert!(answer.count >= 1500 && answer.kvs.len() == 2, "{}", answer.count);
    // A router that has not heard of it is told.
    let mut old = routed.stores[0].clone();
    assert_eq!(not_owned(&ranged(&mut old, all_pods(), 1).await.unwrap_err()), 2);
    assert_eq!(not_owned(&ranged(&mut old, range_request(&pod(1000), ""), 1).await.unwrap_err()), 2);
    // One that has may ask for more than the unit.
    let nodes = ranged(&mut old, range_request("/registry/", "/registry0"), 2).await.unwrap();
    assert_eq!(nodes.kvs.iter().map(|kv| text(&kv.key)).collect::<Vec<_>>(), ["/registry/minions/n"]);

    // And back, behind what is written there meanwhile.
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

    // The other forgets it all, and goes on refusing who does not know.
    drop_unit(&mut at_target, &back, epoch).await;
    assert_eq!(records(&mut at_target).await, [(shard::UnitState::Gone, epoch, 0)]);
    let keys = target.running.handle.call(|core| core.engine.stats().keys).await.unwrap();
    assert_eq!(keys, 0);
    assert_eq!(not_owned(&ranged(&mut routed.stores[1].clone(), all_pods(), 2).await.unwrap_err()), epoch);
    let more = range_request("/registry/", "/registry0");
    assert_eq!(ranged(&mut routed.stores[1].clone(), more, epoch).await.unwrap().count, 0);
}
