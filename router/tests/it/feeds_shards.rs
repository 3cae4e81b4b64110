//! Watches of a Kind over several real shards give what one etcd would give.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::support::{Shard, WatchStream, all_up, kindred, put, router_with, spread_config};
use kindred_proto::etcdserverpb as pb;
use kindred_router::run::Bound;
use pb::watch_request::RequestUnion;
use tonic::transport::Channel;

/// By name, a key on each of three shards; in a ring, on any.
const NAMES: [&str; 3] = ["a", "k", "z"];
const ROUNDS: usize = 80;

struct Spread {
    shards: Vec<Shard>,
    bound: Bound,
    channel: Channel,
    _drain: kindred_transport::Drain,
}

async fn spread(count: u16, ring: bool) -> Spread {
    let binary = kindred();
    let shards: Vec<_> = (1..=count).map(|slot| Shard::start(&binary, slot)).collect();
    let urls: Vec<_> = shards.iter().map(Shard::url).collect();
    let (bound, drain, channel) =
        router_with(&spread_config(&urls, ring), &["--feed-ring-bytes", "4096"]).await;
    all_up(&bound).await;
    Spread { shards, bound, channel, _drain: drain }
}

type Seen = Vec<(i64, Vec<u8>)>;

/// Reads up to the event with this revision; checks the order, and that each revision is whole in one message.
async fn read_to(watch: &mut WatchStream, last: i64) -> Seen {
    let mut seen = Seen::new();
    while seen.last().is_none_or(|(revision, _)| *revision < last) {
        let response = watch.next().await;
        assert!(!response.canceled && !response.created, "{response:?}");
        let header = response.header.unwrap().revision;
        let first = response.events.first().map(|event| event.kv.as_ref().unwrap().mod_revision);
        let before = seen.last().map_or(0, |(revision, _)| *revision);
        assert!(first.is_some_and(|first| first > before), "{first:?} after {before}");
        for event in response.events {
            let kv = event.kv.unwrap();
            assert!(seen.last().is_none_or(|(revision, _)| *revision <= kv.mod_revision));
            assert!(kv.mod_revision <= header);
            seen.push((kv.mod_revision, kv.key.to_vec()));
        }
    }
    seen
}

/// Writes two keys of one shard in one revision.
async fn put_two(channel: &Channel, name: &str) -> i64 {
    let key = format!("/registry/pods/{name}/same");
    let op = |key: String| pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
            key: key.into(),
            value: "v".into(),
            ..Default::default()
        })),
    };
    let txn = pb::TxnRequest { success: vec![op(key.clone() + "1"), op(key + "2")], ..Default::default() };
    let answer = pb::kv_client::KvClient::new(channel.clone()).txn(txn).await.unwrap();
    answer.into_inner().header.unwrap().revision
}

async fn pods(channel: &Channel, start: i64) -> (WatchStream, i64) {
    let mut watch = WatchStream::open(channel).await;
    watch.create("/registry/pods/", start, 0).await;
    let created = watch.next().await;
    assert!(created.created && !created.canceled, "{created:?}");
    (watch, created.header.unwrap().revision)
}

/// Writes to all shards at once; returns the number of keys written at each revision.
async fn write_everywhere(channel: &Channel, by_name: bool) -> BTreeMap<i64, usize> {
    let writers: Vec<_> = (0..6)
        .map(|writer| {
            let (channel, name) = (channel.clone(), NAMES[writer % 3]);
            tokio::spawn(async move {
                let mut written = Vec::new();
                for round in 0..ROUNDS {
                    written.push(if by_name && round % 8 == 0 {
                        (put_two(&channel, name).await, 2)
                    } else {
                        (put(&channel, &format!("/registry/pods/{name}/{writer}-{}", round % 10)).await, 1)
                    });
                }
                written
            })
        })
        .collect();
    let mut written = BTreeMap::new();
    for writer in writers {
        written.extend(writer.await.unwrap());
    }
    written
}

async fn complete_and_in_order(world: &Spread, by_name: bool) {
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(pods(&world.channel, 0).await.0);
    }
    let (mut late, begin) = pods(&world.channel, 0).await;
    let written = write_everywhere(&world.channel, by_name).await;
    let expected: Vec<i64> = written.iter().flat_map(|(revision, keys)| vec![*revision; *keys]).collect();
    let last = *expected.last().unwrap();
    let seen = read_to(&mut late, last).await;
    assert!(expected[0] > begin);
    assert_eq!(seen.iter().map(|(revision, _)| *revision).collect::<Vec<_>>(), expected);
    for watch in &mut watches {
        assert_eq!(read_to(watch, last).await, seen);
    }
    for at in (0..expected.len()).step_by(37) {
        let (mut resumed, _) = pods(&world.channel, expected[at]).await;
        let from = seen.partition_point(|(revision, _)| *revision < expected[at]);
        assert_eq!(read_to(&mut resumed, last).await, seen[from..], "resumed at {at}");
    }
    assert_eq!(world.bound.app.feeds.held().live, 1);
}

/// A5, A7, B2, E5, E6
#[tokio::test]
async fn three_name_ranges_are_complete_and_in_order() {
    let world = spread(3, false).await;
    complete_and_in_order(&world, true).await;
    assert_eq!(world.bound.app.feeds.counts().broken.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_ring_of_four_is_complete_and_in_order() {
    let world = spread(4, true).await;
    complete_and_in_order(&world, false).await;
}

/// The watch of `etcdctl watch "" --prefix`, with progress over everything, and a watch of one key beside it.
#[tokio::test]
async fn everything_is_watched_and_promised() {
    let world = spread(3, false).await;
    let mut watch = WatchStream::open(&world.channel).await;
    let all = pb::WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    let one = pb::WatchCreateRequest { key: "/registry/pods/a/1".into(), ..Default::default() };
    for create in [all, one] {
        watch.send(RequestUnion::CreateRequest(create)).await;
        assert!(watch.next().await.created);
    }
    let mut promised = 0;
    for round in 0..30 {
        let key =
            ["compact_rev_key", "/registry/pods/a/1", "/registry/pods/k/1", "/registry/pods/z/1"][round % 4];
        let written = put(&world.channel, key).await;
        assert!(written > promised, "{key}");
        let copies = if key.ends_with("a/1") { 2 } else { 1 };
        for _ in 0..copies {
            let event = watch.next().await;
            assert_eq!(event.events[0].kv.as_ref().unwrap().mod_revision, written);
        }
        watch.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
        let answer = watch.next().await;
        assert_eq!((answer.watch_id, answer.events.len()), (-1, 0), "{answer:?}");
        let at = answer.header.unwrap().revision;
        assert!(at >= written && at >= promised);
        promised = at;
    }
}

/// R8: no read of a Kind shows less than a watch on one shard has shown, even if another shard answers it.
#[tokio::test]
async fn a_read_shows_no_less_than_a_watch_of_the_same_kind() {
    let world = spread(3, false).await;
    let one = pb::WatchCreateRequest { key: "/registry/pods/k/1".into(), ..Default::default() };
    let span = pb::WatchCreateRequest {
        key: "/registry/pods/k/".into(),
        range_end: "/registry/pods/k0".into(),
        ..one.clone()
    };
    for create in [one, span] {
        let mut watch = WatchStream::open(&world.channel).await;
        watch.send(RequestUnion::CreateRequest(create)).await;
        assert!(watch.next().await.created);
        // Bypasses the router, because its own answer to a put would count as shown.
        put(&crate::support::direct(&world.shards[1]).await, "/registry/pods/k/1").await;
        let shown = watch.next().await.header.unwrap().revision;
        let read = pb::RangeRequest { key: "/registry/pods/a/1".into(), ..Default::default() };
        let answer = pb::kv_client::KvClient::new(world.channel.clone()).range(read).await.unwrap();
        assert!(answer.into_inner().header.unwrap().revision >= shown);
    }
}

/// R10
#[tokio::test]
async fn a_killed_shard_delays_its_ranges_alone() {
    let mut world = spread(3, false).await;
    let (mut all, _) = pods(&world.channel, 0).await;
    let mut narrow = WatchStream::open(&world.channel).await;
    narrow.create("/registry/pods/a/", 0, 0).await;
    assert!(narrow.next().await.created);
    let first = put(&world.channel, "/registry/pods/k/1").await;
    read_to(&mut all, first).await;
    world.shards[1].kill().await;
    let mut last = 0;
    for round in 0..5 {
        last = put(&world.channel, &format!("/registry/pods/a/{round}")).await;
        read_to(&mut narrow, last).await;
    }
    all.nothing(1500).await;
    assert_eq!(world.bound.app.feeds.lags().len(), 1, "it shows");
    world.shards[1].again();
    all_up(&world.bound).await;
    // The shard keeps its data in memory; what it may have lost is never passed over silently.
    let canceled = all.next().await;
    if canceled.canceled {
        assert!(canceled.compact_revision > last, "{canceled:?}");
    } else {
        assert_eq!(canceled.events[0].kv.as_ref().unwrap().key, "/registry/pods/a/0");
    }
    let (mut again, _) = pods(&world.channel, 0).await;
    let written = put(&world.channel, "/registry/pods/k/2").await;
    assert_eq!(read_to(&mut again, written).await.len(), 1);
    let later = put(&world.channel, "/registry/pods/a/9").await;
    read_to(&mut again, later).await;
}
