//! R25: a data directory of an earlier moment, as a snapshot of a volume restores it.

use std::{fs, path::Path};

use crate::common::{clock::*, *};
use kindred_proto::etcdserverpb as pb;
use tonic::Code;

const KEY: &str = "/registry/pods/a";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Whether a watch from here is told that what it has seen is gone. If not, it is sent what is written now.
async fn is_told(client: &Client, from: i64) -> bool {
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix(KEY, from)).await;
    let written = client.put(KEY, "later").await;
    loop {
        let answer = watcher.next().await;
        if answer.compact_revision > 0 {
            assert!(answer.compact_revision >= from);
            return true;
        }
        let mut events = answer.events.iter().filter_map(|event| event.kv.as_ref());
        if events.any(|kv| kv.mod_revision == written) {
            return false;
        }
    }
}

/// A folder that went back was served silently: open watches kept what the store did not have any more.
#[tokio::test]
async fn f66_who_has_seen_what_an_older_disk_lacks_is_told() {
    for (mode, in_cluster) in [("fsync", false), ("fsync", true), ("buffered", true)] {
        let (dir, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let wall = Wall::at(T0);
        let at = async |dir: &Path, seconds: u64| {
            wall.set(T0 + seconds * SECOND);
            let shard = start_in(dir, &wall, in_cluster, Some(mode)).await;
            hello(&shard, T0 + seconds * SECOND).await;
            shard
        };
        let shard = at(dir.path(), 0).await;
        let kept = shard.client().await.put(KEY, "1").await;
        shard.stop().await;
        copy(dir.path(), old.path());
        let shard = at(dir.path(), 60).await;
        let lost = shard.client().await.put(KEY, "2").await;
        shard.stop().await;
        let shard = at(old.path(), 120).await;
        let client = shard.client().await;
        assert_eq!(client.range(range_request(KEY, "")).await.unwrap().kvs[0].value, "1");
        let then = pb::RangeRequest { revision: lost, ..range_request(KEY, "") };
        assert_eq!(client.range(then).await.unwrap_err().code(), Code::OutOfRange);
        for (from, told) in [(kept, false), (kept + 1, false), (lost, true), (lost + 1, true)] {
            assert_eq!(is_told(&client, from).await, told, "{mode}, in a cluster {in_cluster}: from {from}");
        }
        shard.stop().await;
        // The next start knows it too.
        let shard = at(old.path(), 180).await;
        assert!(is_told(&shard.client().await, lost + 1).await);
        shard.stop().await;
        // Nobody else is told anything.
        let shard = at(dir.path(), 240).await;
        assert!(!is_told(&shard.client().await, lost + 1).await, "{mode}");
        shard.stop().await;
    }
}
