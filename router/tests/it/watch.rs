//! One client stream with watches on two stores.

use std::time::Duration;

use crate::support::{Shard, WatchStream, all_up, kindred, put, router};
use kindred_proto::etcdserverpb as pb;
use pb::watch_request::RequestUnion;

#[tokio::test]
async fn two_stores_on_one_stream() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;

    let mut watch = WatchStream::open(&channel).await;
    watch.create("/registry/pods/", 0, 0).await;
    watch.create("/registry/secrets/", 0, 0).await;
    watch.create("/registry/pods/", 0, 1).await;
    watch.create("/registry/", 0, 0).await;
    let (first, second) = (watch.next().await, watch.next().await);
    assert!(first.created && second.created);
    assert_eq!((first.watch_id, second.watch_id), (0, 1), "in the order of the requests");
    let duplicate = watch.next().await;
    assert!(duplicate.created && duplicate.canceled && duplicate.watch_id == -1, "{duplicate:?}");
    assert_eq!(duplicate.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    let spanning = watch.next().await;
    assert!(spanning.created && !spanning.canceled && spanning.watch_id == 2, "{spanning:?}");
    watch.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 2 })).await;
    assert!(watch.next().await.canceled);

    let pod = put(&channel, "/registry/pods/a").await;
    let event = watch.next().await;
    assert_eq!((event.watch_id, event.events[0].kv.as_ref().unwrap().mod_revision), (0, pod));
    assert_eq!(event.header.unwrap().cluster_id, bound.app.identity.cluster_id);
    let secret = put(&channel, "/registry/secrets/a").await;
    let event = watch.next().await;
    assert_eq!((event.watch_id, event.events[0].kv.as_ref().unwrap().mod_revision), (1, secret));

    let mut last = 0;
    for _ in 0..5 {
        let written = put(&channel, "/registry/pods/b").await;
        watch.next().await;
        watch.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
        let progress = watch.next().await;
        assert_eq!((progress.watch_id, progress.events.len()), (-1, 0));
        let at = progress.header.unwrap().revision;
        assert!(at >= written && at > last, "{at} covers {written} and does not go back from {last}");
        last = at;
    }

    watch.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 1 })).await;
    let canceled = watch.next().await;
    assert!(canceled.canceled && canceled.watch_id == 1, "{canceled:?}");

    drain.begin();
    let ended = watch.answers.message().await.unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unavailable, "never the end of the stream");
}

#[tokio::test]
async fn a_dead_store_disturbs_only_its_own_kinds_and_resumes_without_loss() {
    let binary = kindred();
    let (default, mut pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut watch = WatchStream::open(&channel).await;
    watch.create("/registry/pods/", 0, 0).await;
    watch.create("/registry/secrets/", 0, 0).await;
    watch.next().await;
    watch.next().await;

    pods.kill().await;
    let request = pb::PutRequest { key: "/registry/pods/a".into(), ..Default::default() };
    let refused = pb::kv_client::KvClient::new(channel.clone()).put(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    let named = async {
        loop {
            let request = pb::RangeRequest { key: "/registry/pods/a".into(), ..Default::default() };
            let refused = pb::kv_client::KvClient::new(channel.clone()).range(request).await.unwrap_err();
            if refused.message().contains("store \"pods\" is unavailable") {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), named)
        .await
        .expect("the store is named once it is known as gone");
    for _ in 0..3 {
        let revision = put(&channel, "/registry/secrets/a").await;
        let event = watch.next().await;
        assert_eq!((event.watch_id, event.events[0].kv.as_ref().unwrap().mod_revision), (1, revision));
    }
    let health = pb::RangeRequest { key: "/registry/health".into(), ..Default::default() };
    pb::kv_client::KvClient::new(channel.clone()).range(health).await.unwrap();

    pods.again();
    all_up(&bound).await;
    // The store keeps its data in memory: either the watch goes on, or it is cancelled because it stands in a gap.
    let revision = put(&channel, "/registry/pods/b").await;
    let event = watch.next().await;
    assert_eq!(event.watch_id, 0, "{event:?}");
    if !event.canceled {
        assert_eq!(event.events[0].kv.as_ref().unwrap().mod_revision, revision);
    } else {
        assert!(event.compact_revision > 0, "{event:?}");
    }
    watch.nothing(200).await;
}

#[tokio::test]
async fn leases_span_stores_and_compaction_reaches_all() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut leases = pb::lease_client::LeaseClient::new(channel.clone());
    let mut kv = pb::kv_client::KvClient::new(channel.clone());
    for id in [0, 4711 << 10 | 4] {
        let granted = leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id }).await.unwrap().into_inner();
        for key in ["/registry/pods/l", "/registry/secrets/l"] {
            let put = pb::PutRequest { key: key.into(), lease: granted.id, ..Default::default() };
            kv.put(put).await.unwrap();
        }
        let ask = pb::LeaseTimeToLiveRequest { id: granted.id, keys: true };
        let told = leases.lease_time_to_live(ask).await.unwrap().into_inner();
        assert_eq!(told.keys, ["/registry/pods/l", "/registry/secrets/l"], "id {id}");
        leases.lease_revoke(pb::LeaseRevokeRequest { id: granted.id }).await.unwrap();
        for key in ["/registry/pods/l", "/registry/secrets/l"] {
            let range = pb::RangeRequest { key: key.into(), ..Default::default() };
            assert_eq!(kv.range(range).await.unwrap().into_inner().count, 0, "{key} with id {id}");
        }
        let put = pb::PutRequest { key: "/registry/pods/l".into(), lease: granted.id, ..Default::default() };
        let refused = kv.put(put).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: requested lease not found");
    }

    let old = put(&channel, "/registry/pods/c").await;
    let revision = put(&channel, "/registry/secrets/c").await;
    let future = pb::CompactionRequest { revision: i64::MAX, physical: false };
    let refused = kv.compact(future).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: mvcc: required revision is a future revision");
    kv.compact(pb::CompactionRequest { revision, physical: false }).await.unwrap();
    let range = pb::RangeRequest { key: "/registry/pods/c".into(), revision: old - 1, ..Default::default() };
    let refused = kv.range(range).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: mvcc: required revision has been compacted");
}

#[tokio::test]
async fn creates_sent_ahead_are_answered_in_order() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut watch = WatchStream::open(&channel).await;
    let prefixes = ["pods", "secrets", "configmaps", "pods", "pods", "secrets"];
    for prefix in prefixes {
        watch.create(&format!("/registry/{prefix}/"), 0, 0).await;
    }
    for id in 0..prefixes.len() {
        let created = watch.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        assert_eq!(created.watch_id, id as i64);
    }
    put(&channel, "/registry/pods/a").await;
    let mut told: Vec<i64> = vec![];
    for _ in 0..3 {
        told.push(watch.next().await.watch_id);
    }
    told.sort_unstable();
    assert_eq!(told, [0, 3, 4]);
}

#[tokio::test]
async fn range_streams_and_status_of_what_is_alive() {
    let binary = kindred();
    let (default, mut pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut kv = pb::kv_client::KvClient::new(channel.clone());
    for i in 0..20 {
        put(&channel, &format!("/registry/pods/{i:02}")).await;
    }
    let all = pb::RangeRequest {
        key: "/registry/pods/".into(),
        range_end: "/registry/pods0".into(),
        ..Default::default()
    };
    let mut chunks = kv.range_stream(all).await.unwrap().into_inner();
    let (mut keys, mut last) = (0, None);
    while let Some(chunk) = chunks.message().await.unwrap() {
        let range = chunk.range_response.unwrap();
        keys += range.kvs.len();
        last = range.header.map(|header| (header.cluster_id, range.count));
    }
    assert_eq!((keys, last), (20, Some((bound.app.identity.cluster_id, 20))));

    pods.kill().await;
    let mut maintenance = pb::maintenance_client::MaintenanceClient::new(channel.clone());
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.version, "3.7.0");
    assert!(status.errors.len() == 1 && status.errors[0].contains("\"pods\""), "{:?}", status.errors);
}
