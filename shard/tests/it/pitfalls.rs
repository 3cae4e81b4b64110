//! What others got wrong and a shard alone can show; the ids are those of the list of pitfalls.

use std::time::Duration;

use crate::common::*;
use kindred_proto::{etcdserverpb as pb, mvccpb};
use tonic::Code;

/// Concurrent creates of one key: exactly one wins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_a2_one_of_two_creates_wins() {
    let shard = Shard::start().await;
    let clients = [shard.client().await, shard.client().await];
    for round in 0..200 {
        let key = format!("/registry/pods/ns/{round}");
        let create = |client: Client, value: &'static str| {
            let request = pb::TxnRequest {
                compare: vec![mod_is(&key, 0)],
                success: vec![put_op(&key, value)],
                failure: vec![],
            };
            async move { client.txn(request).await.unwrap() }
        };
        let (a, b) = tokio::join!(create(clients[0].clone(), "a"), create(clients[1].clone(), "b"));
        assert!(a.succeeded != b.succeeded, "round {round}");
        let winner = if a.succeeded { (a, "a") } else { (b, "b") };
        let got = clients[0].range(range_request(&key, "")).await.unwrap();
        assert_eq!(got.kvs[0].value, winner.1);
        assert_eq!(got.kvs[0].mod_revision, winner.0.header.unwrap().revision);
    }
}

/// A list at its header's revision is whole: list, then watch from the next revision, misses and doubles nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_a3_list_then_watch_is_complete() {
    const KEYS: usize = 400;
    let shard = Shard::start().await;
    let writer = shard.client().await;
    let writing = tokio::spawn(async move {
        for key in 0..KEYS {
            writer.put(format!("/registry/pods/ns/{key:04}"), "v").await;
        }
    });
    let client = shard.client().await;
    let mut lists = 0;
    while !writing.is_finished() {
        let list = client.range(range_request("/registry/pods/", "/registry/pods0")).await.unwrap();
        assert_eq!(list.count, list.kvs.len() as i64);
        let mut watcher = client.watch().await;
        watcher.create(watch_prefix("/registry/pods/", list.header.unwrap().revision + 1)).await;
        let events = watcher.events(KEYS - list.kvs.len()).await;
        let mut keys: Vec<_> = list.kvs.iter().map(|kv| kv.key.clone()).collect();
        keys.extend(events.into_iter().map(|event| event.kv.unwrap().key));
        keys.dedup();
        assert_eq!(keys.len(), KEYS);
        assert!(keys.is_sorted());
        lists += 1;
    }
    assert!(lists > 0);
}

/// Many watches on one stream each have their own id; a watch with a compacted start is canceled with the floor, not by
/// an EOF.
#[tokio::test]
async fn pitfall_a6_many_watches_on_a_stream_and_a_compacted_start() {
    const WATCHES: i64 = 1000;
    let shard = Shard::dense().await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    for id in 0..WATCHES {
        let created = watcher.create(watch_prefix(&format!("/registry/pods/{id}/"), 0)).await;
        assert_eq!(created.watch_id, id);
    }
    assert_eq!(shard.watches().await, WATCHES as u64);
    for id in 0..WATCHES {
        client.put(format!("/registry/pods/{id}/x"), "v").await;
    }
    let mut seen = std::collections::HashSet::new();
    while seen.len() < WATCHES as usize {
        let answer = watcher.next().await;
        assert_eq!(answer.events.len(), 1);
        assert!(seen.insert(answer.watch_id));
    }

    let floor = client.put("a", "1").await;
    client.compact(floor, false).await.unwrap();
    let created = watcher.create(watch_prefix("/registry/pods/", floor - 5)).await;
    assert!(!created.canceled);
    let canceled = watcher.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled), (created.watch_id, true));
    assert_eq!(canceled.compact_revision, floor);
    assert_eq!(canceled.header.unwrap().revision, 0, "no promise, as in etcd");
    // The stream continues.
    client.put("/registry/pods/7/x", "v").await;
    assert_eq!(watcher.next().await.watch_id, 7);
}

/// A manual progress comes after every event that it covers, and covers every write acknowledged before it was asked.
#[tokio::test]
async fn pitfall_a7_progress_overtakes_nothing() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix("/registry/pods/", 0)).await;
    for round in 0..200 {
        let acknowledged = client.put("/registry/pods/a", format!("{round}")).await;
        watcher.progress().await;
        let mut last = 0;
        loop {
            let answer = watcher.next().await;
            if answer.events.is_empty() {
                assert_eq!(answer.watch_id, -1);
                let promised = answer.header.unwrap().revision;
                assert!(promised >= acknowledged, "a probe may have shown {acknowledged}");
                assert_eq!(last, acknowledged, "delivered before the promise");
                break;
            }
            last = answer.events.last().unwrap().kv.as_ref().unwrap().mod_revision;
        }
    }
}

/// An empty value is a put.
#[tokio::test]
async fn pitfall_a8_an_empty_value_is_a_put() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix("/registry/pods/", 0)).await;
    client.put("/registry/pods/a", "").await;
    let events = watcher.events(1).await;
    assert_eq!(events[0].r#type(), mvccpb::event::EventType::Put);
    assert_eq!(client.range(range_request("/registry/pods/a", "")).await.unwrap().kvs.len(), 1);
    client.delete("/registry/pods/a", "").await.unwrap();
    assert_eq!(watcher.events(1).await[0].r#type(), mvccpb::event::EventType::Delete);
}

/// A client that reads nothing stops neither writes nor other watches (A9, B6), loses no event (B3), and is forgotten
/// when it goes.
#[tokio::test]
async fn pitfall_a9_b3_b6_a_slow_watcher_slows_nobody_and_loses_nothing() {
    const WRITES: usize = 400;
    let shard = Shard::start().await;
    let (slow_client, client) = (shard.client().await, shard.client().await);
    let mut slow = slow_client.watch().await;
    slow.create(watch_prefix("/registry/pods/", 0)).await;
    let mut quick = client.watch().await;
    quick.create(watch_prefix("/registry/pods/", 0)).await;
    // Far more than all windows and buffers between the two hold.
    let value = vec![b'x'; 64 << 10];
    let mut revisions = Vec::new();
    for _ in 0..WRITES {
        let put = client.put("/registry/pods/a", &value);
        revisions.push(tokio::time::timeout(PATIENCE, put).await.expect("writes go on"));
        assert_eq!(quick.events(1).await[0].kv.as_ref().unwrap().mod_revision, *revisions.last().unwrap());
    }
    let events = slow.events(WRITES).await;
    let seen: Vec<_> = events.into_iter().map(|event| event.kv.unwrap().mod_revision).collect();
    assert_eq!(seen, revisions);

    drop((slow, slow_client));
    let shard = &shard;
    eventually("the slow watch is forgotten", || async move { shard.watches().await == 1 }).await;
}

/// A client that closes its sending half keeps its watches, as in etcd, and costs nothing once it is gone.
#[tokio::test]
async fn pitfall_a9_half_closed_and_vanished_clients() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix("/registry/pods/", 0)).await;
    watcher.half_close();
    client.put("/registry/pods/a", "1").await;
    watcher.events(1).await;
    drop(watcher);
    let shard = &shard;
    let gone = || async move {
        shard.running.handle.inspect(|core| core.open_counts()).await.unwrap() == (0, 0)
            && shard.watches().await == 0
    };
    eventually("everything is freed", gone).await;
}

/// Unusual compares, ranges and counts.
#[tokio::test]
async fn pitfall_a10_compares_and_odd_ranges() {
    let shard = Shard::dense().await;
    let client = shard.client().await;
    let first = client.put("/registry/pods/a", "1").await;
    client.put("/registry/pods/b", "2").await;
    // The operator of a compare counts, and all compares do.
    let mut greater = mod_is("/registry/pods/a", first);
    greater.result = pb::compare::CompareResult::Greater as i32;
    for (compare, holds) in [
        (vec![mod_is("/registry/pods/a", first)], true),
        (vec![greater], false),
        (vec![mod_is("/registry/pods/a", first), mod_is("/registry/pods/b", 0)], false),
        (vec![mod_is("/registry/pods/a", -1)], false),
    ] {
        let txn = pb::TxnRequest { compare, success: vec![], failure: vec![] };
        assert_eq!(client.txn(txn).await.unwrap().succeeded, holds);
    }
    // start > end is empty, a missing key is no error, and a prefix over Kinds reads them all.
    assert_eq!(client.range(range_request("b", "a")).await.unwrap().count, 0);
    assert_eq!(client.delete("b", "a").await.unwrap().deleted, 0);
    assert_eq!(client.delete("missing", "").await.unwrap().deleted, 0);
    client.put("/registry/minions/n", "3").await;
    assert_eq!(client.range(range_request("/registry/", "/registry0")).await.unwrap().kvs.len(), 3);
    // Counts leave deleted keys out.
    client.delete("/registry/pods/a", "").await.unwrap();
    let count = pb::RangeRequest { count_only: true, ..range_request("/registry/pods/", "/registry/pods0") };
    assert_eq!(client.range(count).await.unwrap().count, 1);
    // Revisions that are too old or too new are refused as such.
    let at = |revision| pb::RangeRequest { revision, ..range_request("/registry/pods/a", "") };
    assert_eq!(client.range(at(1000)).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(client.range(at(-5)).await.unwrap().count, 0, "below zero is the current revision");
}

/// More than 100 streams on one connection, none of which waits for another.
#[tokio::test]
async fn pitfall_a12_many_streams_on_a_connection() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut watchers = Vec::new();
    for _ in 0..300 {
        let mut watcher = client.watch().await;
        watcher.create(watch_prefix("/registry/pods/", 0)).await;
        watchers.push(watcher);
    }
    client.put("/registry/pods/a", "1").await;
    for watcher in &mut watchers {
        watcher.events(1).await;
    }
}

/// Progress follows the stream's own events under concurrent writes: nothing at or below a promise comes after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_b1_progress_is_in_step_with_the_stream() {
    let interval = Some("100ms".to_owned());
    let options =
        kindred_shard::config::Options { watch_progress_notify_interval: interval, ..Default::default() };
    let shard = Shard::with(options).await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    let request = pb::WatchCreateRequest { progress_notify: true, ..watch_prefix("/registry/pods/", 0) };
    watcher.create(request).await;
    let writer = shard.client().await;
    let writing = tokio::spawn(async move {
        for round in 0..600 {
            writer.put(format!("/registry/pods/{}", round % 7), "v").await;
        }
    });
    let (mut promised, mut events, mut promises) = (0, 0, 0);
    while events < 600 || promises < 5 {
        if promises < 5 {
            watcher.progress().await;
        }
        let answer = watcher.next().await;
        if answer.events.is_empty() {
            let revision = answer.header.unwrap().revision;
            assert!(revision >= promised);
            promised = revision;
            promises += 1;
        }
        for event in answer.events {
            assert!(event.kv.unwrap().mod_revision > promised);
            events += 1;
        }
    }
    writing.await.unwrap();
    // Idle watchers are promised the present again and again.
    let first = watcher.next().await.header.unwrap().revision;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut later = watcher.next().await;
    while later.watch_id != 0 {
        later = watcher.next().await;
    }
    assert!(later.events.is_empty() && later.header.unwrap().revision > first);
}

/// For a client that stops in the middle of a big list nothing is kept: not the loop, not the pin, not the memory for
/// the rest.
#[tokio::test]
async fn pitfall_b9_a_big_list_that_nobody_reads() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let value = vec![b'x'; 32 << 10];
    for key in 0..1000 {
        client.put(format!("/registry/pods/{key}"), &value).await;
    }
    let reader = shard.client().await;
    let mut list = reader.open_range_stream(range_request("/registry/pods/", "/registry/pods0")).await;
    assert!(list.message().await.unwrap().is_some());
    let open = || async { shard.running.handle.inspect(|core| core.open_counts().0).await.unwrap() };
    eventually("the list waits for its reader", || async { open().await == 1 }).await;
    // Writes continue, and the list does not see them.
    let newest = client.put("/registry/pods/zzz", "new").await;
    client.compact(newest, true).await.unwrap();
    drop(list);
    eventually("the pin is gone", || async { open().await == 0 }).await;
}

/// A long read stays whole at its revision while keys change and a compaction passes it (A4).
#[tokio::test]
async fn pitfall_a4_a_long_read_is_one_snapshot() {
    let shard = Shard::dense().await;
    let client = shard.client().await;
    let value = vec![b'x'; 8 << 10];
    for key in 0..2000 {
        client.put(format!("/registry/pods/{key:04}"), &value).await;
    }
    let reader = shard.client().await;
    let mut list = reader.open_range_stream(range_request("/registry/pods/", "/registry/pods0")).await;
    let mut messages = vec![list.message().await.unwrap().unwrap()];
    for key in 0..2000 {
        client.delete(&format!("/registry/pods/{key:04}"), "").await.unwrap();
    }
    let newest = client.put("/registry/pods/new", "new").await;
    client.compact(newest, true).await.unwrap();
    while let Some(message) = list.message().await.unwrap() {
        messages.push(message);
    }
    let chunks: Vec<_> = messages.into_iter().map(crate::common::decode_chunk).collect();
    let last = chunks.last().unwrap();
    assert_eq!((last.count, last.header.unwrap().revision), (2000, 2001));
    assert_eq!(chunks.iter().map(|chunk| chunk.kvs.len()).sum::<usize>(), 2000);
    assert!(chunks.iter().flat_map(|chunk| &chunk.kvs).all(|kv| kv.value == value));
}
