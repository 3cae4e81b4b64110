//! Broken connections to a store, and progress under load.

use std::time::Duration;

use crate::support::{Proxy, Shard, WatchStream, all_up, direct, kindred, put, router};
use kindred_proto::etcdserverpb as pb;
use pb::watch_request::RequestUnion;

fn revision(event: &pb::WatchResponse) -> Vec<i64> {
    event.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect()
}

#[tokio::test]
async fn a_cut_connection_loses_and_repeats_nothing() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let proxy = Proxy::start(&pods).await;
    // The shard listens a little later than it is started.
    while tokio::net::UnixStream::connect(&pods.socket).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (bound, _drain, channel) = router(&default.url(), &proxy.address).await;
    all_up(&bound).await;
    let behind = direct(&pods).await;

    let mut watch = WatchStream::open(&channel).await;
    watch.create("/registry/pods/", 0, 0).await;
    assert!(watch.next().await.created);
    for round in 0..3 {
        let mut written = vec![put(&behind, "/registry/pods/a").await];
        proxy.cut(true);
        for _ in 0..5 {
            written.push(put(&behind, "/registry/pods/b").await);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.cut(false);
        written.push(put(&behind, "/registry/pods/c").await);
        let mut seen = Vec::new();
        while seen.len() < written.len() {
            let event = watch.next().await;
            assert!(!event.created && !event.canceled, "{event:?}");
            seen.extend(revision(&event));
        }
        assert_eq!(seen, written, "round {round}");
    }
    watch.nothing(100).await;
}

#[tokio::test]
async fn progress_over_two_stores_is_a_true_promise_under_load() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut watch = WatchStream::open(&channel).await;
    for prefix in ["/registry/pods/", "/registry/secrets/"] {
        watch.create(prefix, 0, 0).await;
        assert!(watch.next().await.created);
    }
    let writers: Vec<_> = ["/registry/pods/x", "/registry/secrets/x"]
        .into_iter()
        .map(|key| {
            let channel = channel.clone();
            tokio::spawn(async move {
                let mut written = Vec::new();
                for _ in 0..300 {
                    written.push(put(&channel, key).await);
                }
                written
            })
        })
        .collect();
    let requests = watch.requests.clone();
    let asking = tokio::spawn(async move {
        loop {
            let union = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
            if requests.send(pb::WatchRequest { request_union: Some(union) }).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    });
    let (mut seen, mut highest, mut promised, mut promises) = (Vec::new(), 0, 0, 0);
    while seen.len() < 600 {
        let answer = watch.next().await;
        if answer.watch_id == -1 {
            let at = answer.header.unwrap().revision;
            assert!(at >= highest && at >= promised, "{at} is below {highest} or {promised}");
            (promised, promises) = (at, promises + 1);
            continue;
        }
        for revision in revision(&answer) {
            assert!(revision > promised, "{revision} was promised away by {promised}");
            highest = highest.max(revision);
            seen.push(revision);
        }
    }
    asking.abort();
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.unwrap());
    }
    seen.sort_unstable();
    written.sort_unstable();
    assert_eq!(seen, written, "every event once");
    assert!(promises > 3, "{promises} promises");
}

#[tokio::test]
async fn a_store_that_forgot_a_lease_gets_it_again() {
    let binary = kindred();
    let (default, mut pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut leases = pb::lease_client::LeaseClient::new(channel.clone());
    let mut kv = pb::kv_client::KvClient::new(channel.clone());
    let lease = leases.lease_grant(pb::LeaseGrantRequest { ttl: 6, id: 0 }).await.unwrap().into_inner().id;
    let put = pb::PutRequest { key: "/registry/pods/l".into(), lease, ..Default::default() };
    kv.put(put.clone()).await.unwrap();
    pods.kill().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    pods.again();
    all_up(&bound).await;
    leases
        .lease_keep_alive(tokio_stream::once(pb::LeaseKeepAliveRequest { id: lease }))
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .expect("kept alive");
    for attempt in 0.. {
        match kv.put(put.clone()).await {
            Ok(_) => break,
            // The router may not have noticed yet that the store is gone.
            Err(status) if status.code() == tonic::Code::Unavailable && attempt < 3000 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(status) => panic!("{status:?}"),
        }
    }
    // The lease expires at its home, and the router ends it at the other store.
    let range = pb::RangeRequest { key: "/registry/pods/l".into(), ..Default::default() };
    let mut gone = false;
    for _ in 0..1200 {
        gone = kv.range(range.clone()).await.unwrap().into_inner().count == 0;
        if gone {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(gone, "the key outlives its lease");
}
