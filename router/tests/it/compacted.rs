//! Watches that start below a compaction.

use crate::support::{Shard, WatchStream, all_up, kindred, put, router};
use kindred_proto::etcdserverpb as pb;

/// A feed that was opened before the compaction still holds the events, but etcd would cancel the watch.
#[tokio::test]
async fn a_watch_below_a_compaction_is_told_so_whatever_a_feed_still_holds() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;

    let first = put(&channel, "/registry/pods/a").await;
    let mut early = WatchStream::open(&channel).await;
    early.create("/registry/pods/", first, 0).await;
    assert!(early.next().await.created);
    assert_eq!(early.next().await.events.len(), 1);
    let second = put(&channel, "/registry/pods/a").await;
    let third = put(&channel, "/registry/pods/a").await;
    assert_eq!(early.next().await.events[0].kv.as_ref().unwrap().mod_revision, second);
    let compact = pb::CompactionRequest { revision: third, physical: true };
    pb::kv_client::KvClient::new(channel.clone()).compact(compact).await.unwrap();

    for (start, compacted) in [(first, true), (second, true), (third, false)] {
        let mut late = WatchStream::open(&channel).await;
        late.create("/registry/pods/", start, 0).await;
        assert!(late.next().await.created);
        let next = late.next().await;
        assert_eq!(next.canceled, compacted, "{next:?}");
        if compacted {
            assert_eq!(next.compact_revision, third);
        } else {
            assert_eq!(next.events[0].kv.as_ref().unwrap().mod_revision, third);
        }
    }
    drain.kill();
}
