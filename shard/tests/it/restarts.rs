//! What is there after a restart: after a clean stop, after kill -9 in each mode, after a checkpoint, and with files
//! that are torn or damaged.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::common::{moves::*, process::ShardProcess, *};
use kindred_partition_config::ids::Epoch;
use kindred_proto::{
    etcdserverpb::{
        self as pb, lease_client::LeaseClient, maintenance_client::MaintenanceClient, watch_request,
    },
    mvccpb::event::EventType,
    shard_v1::{self, units_client::UnitsClient},
};
use kindred_shard::config::Options;
use kindred_wal::{
    ClockFile, RealDisk,
    format::{FILE_HEADER_BYTES, FileHeader, FrameHeader},
};
use tonic::Code;

const PODS: &str = "/registry/pods/";
const PODS_END: &str = "/registry/pods0";
const MODES: [&str; 2] = ["buffered", "fsync"];

fn options(directory: &Path, mode: &str) -> Options {
    Options { data_dir: Some(directory.to_owned()), durability: Some(mode.to_owned()), ..Options::default() }
}

/// The header's revision, and everything about every key: value, create and mod revision, version, lease.
async fn all(client: &Client) -> (i64, BTreeMap<String, (String, i64, i64, i64, i64)>) {
    let answer = client.range(range_request("\0", "\0")).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let kvs = answer.kvs.iter().map(|kv| {
        (text(&kv.key), (text(&kv.value), kv.create_revision, kv.mod_revision, kv.version, kv.lease))
    });
    (answer.header.unwrap().revision, kvs.collect())
}

async fn grant(client: &Client, ttl: i64) -> i64 {
    let mut leases = LeaseClient::new(client.channel.clone());
    leases.lease_grant(pb::LeaseGrantRequest { ttl, id: 0 }).await.unwrap().into_inner().id
}

#[tokio::test]
async fn a_clean_stop_keeps_everything() {
    for mode in MODES {
        let directory = tempfile::tempdir().unwrap();
        let shard = Shard::with(options(directory.path(), mode)).await;
        let client = shard.client().await;
        let lease = grant(&client, 600).await;
        let first = client.put(format!("{PODS}a"), "1").await;
        let floor = client.put(format!("{PODS}a"), "2").await;
        let leased = pb::PutRequest { lease, ..put_request(format!("{PODS}leased"), "l") };
        client.put_request(leased).await.unwrap();
        client.put(format!("{PODS}gone"), "x").await;
        client.delete(&format!("{PODS}gone"), "").await.unwrap();
        client.put("compact_rev_key", "of no Kind").await;
        let txn = pb::TxnRequest {
            compare: vec![mod_is(&format!("{PODS}a"), floor)],
            success: vec![put_op(&format!("{PODS}a"), "3"), put_op(&format!("{PODS}b"), "1")],
            failure: vec![],
        };
        assert!(client.txn(txn).await.unwrap().succeeded);
        client.compact(floor, true).await.unwrap();
        let (revision, before) = all(&client).await;
        shard.stop().await;

        let shard = Shard::with(options(directory.path(), mode)).await;
        let client = shard.client().await;
        let (again, after) = all(&client).await;
        assert_eq!(after, before, "{mode}");
        assert!(again >= revision, "{mode}: {again} after {revision}");
        // The history is there, from the floor on.
        let at = |revision| pb::RangeRequest { revision, ..range_request(PODS, PODS_END) };
        assert_eq!(client.range(at(floor)).await.unwrap().kvs[0].value, "2");
        assert_eq!(client.range(at(first)).await.unwrap_err().code(), Code::OutOfRange);
        let mut watcher = client.watch().await;
        watcher.create(watch_prefix(PODS, floor)).await;
        let events = watcher.events(6).await;
        let last = events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).max();
        assert_eq!(last, Some(before[&format!("{PODS}b")].2));
        assert_eq!(events.iter().filter(|event| event.r#type() == EventType::Delete).count(), 1);
        // Leases are there, and their end deletes their keys.
        let mut leases = LeaseClient::new(client.channel.clone());
        let ask = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
        let view = leases.lease_time_to_live(ask).await.unwrap().into_inner();
        assert_eq!((view.granted_ttl, view.keys.len()), (600, 1), "{mode}");
        leases.lease_revoke(pb::LeaseRevokeRequest { id: lease }).await.unwrap();
        assert!(!all(&client).await.1.contains_key(&format!("{PODS}leased")));
        assert!(client.put(format!("{PODS}c"), "1").await > again);
        shard.stop().await;

        let shard = Shard::with(options(directory.path(), mode)).await;
        let (_, last) = all(&shard.client().await).await;
        assert_eq!(last.len(), before.len(), "one came and one went");
        shard.stop().await;
    }
}

#[tokio::test]
async fn a_dense_shard_counts_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options {
        data_dir: Some(directory.path().to_owned()),
        revisions: Some("dense".to_owned()),
        ..Options::default()
    };
    let shard = Shard::with(options()).await;
    let client = shard.client().await;
    for expected in 2..=5 {
        assert_eq!(client.put("k", "v").await, expected);
    }
    client.compact(3, false).await.unwrap();
    shard.stop().await;
    let shard = Shard::with(options()).await;
    let client = shard.client().await;
    assert_eq!(all(&client).await.0, 5);
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix("k", 3)).await;
    assert_eq!(watcher.events(3).await.len(), 3);
    assert_eq!(client.put("k", "v").await, 6);
    shard.stop().await;
}

/// What was acknowledged: the key's number and its revision.
type Acknowledged = Arc<Mutex<Vec<(usize, i64)>>>;

/// Starts writers that remember what was acknowledged, and kills the shard.
async fn write_until_killed(process: ShardProcess, kind: &'static str) -> Vec<(usize, i64)> {
    let acknowledged = Acknowledged::default();
    let mut writers = Vec::new();
    for writer in 0..8 {
        let (client, acknowledged) = (process.client().await, acknowledged.clone());
        writers.push(tokio::spawn(async move {
            for round in 0.. {
                let number = round * 8 + writer;
                let put = put_request(format!("{kind}{number:06}"), number.to_string());
                let Ok(answer) = client.put_request(put).await else { return };
                acknowledged.lock().unwrap().push((number, answer.header.unwrap().revision));
            }
        }));
    }
    // This is long enough for at least one flush, however fast the machine is.
    let some_flushes = Instant::now() + Duration::from_millis(100);
    eventually("writes", || {
        let acknowledged = acknowledged.clone();
        async move { acknowledged.lock().unwrap().len() >= 400 && Instant::now() >= some_flushes }
    })
    .await;
    process.kill();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    acknowledged.sort_unstable_by_key(|(_, revision)| *revision);
    acknowledged
}

fn key(kind: &str, number: usize) -> String {
    format!("{kind}{number:06}")
}

/// Lets the machine lose power, too: what was not synced of the log of mode buffered is gone.
fn lose_power(directory: &Path) {
    let path = files(directory, "wal/buffered").pop().unwrap();
    let (clock, _) = ClockFile::open(&RealDisk, &directory.join("clock")).unwrap().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, seed) = FileHeader::decode(&bytes).unwrap();
    let (mut synced, mut at) = (header.whole, FILE_HEADER_BYTES);
    while let Some(frame) = FrameHeader::decode(seed, &bytes[at..]) {
        at += usize::try_from(frame.frame_bytes()).unwrap();
        let known = if frame.seq <= clock.durable().buffered { at as u64 } else { 0 };
        synced = synced.max(frame.synced).max(known);
    }
    bytes[usize::try_from(synced).unwrap()..].fill(0);
    std::fs::write(&path, bytes).unwrap();
}

/// A shard in mode `buffered` that has acknowledged writes, whose machine lost power, and that was started again.
struct Lossy {
    directory: tempfile::TempDir,
    process: ShardProcess,
    acknowledged: Vec<(usize, i64)>,
    /// The last revision that is still there; less than the last that was acknowledged.
    kept: i64,
}

/// Kills shards until some writes are lost: a kill right after a flush loses nothing, and then there is nothing to
/// test.
async fn ended_with_a_loss(flags: &[&str]) -> Lossy {
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let acknowledged = write_until_killed(ShardProcess::start(directory.path(), flags), PODS).await;
        lose_power(directory.path());
        let process = ShardProcess::start(directory.path(), flags);
        let (_, found) = all(&process.client().await).await;
        let kept = found.values().map(|kv| kv.2).max().unwrap_or(0);
        if kept < acknowledged.last().unwrap().1 {
            return Lossy { directory, process, acknowledged, kept };
        }
        process.kill();
    }
    panic!("power was lost ten times, and nothing else");
}

/// In mode buffered the operating system has everything that is acknowledged, and here only the process dies, however
/// long ago the last flush was.
#[tokio::test]
async fn f11_kill_9_in_mode_buffered_loses_nothing_acknowledged_and_no_watch_relists() {
    nothing_acknowledged_is_lost(&["--durability=buffered", "--flush-interval=1s"]).await;
}

#[tokio::test]
async fn kill_9_in_mode_fsync_loses_nothing_acknowledged_and_no_watch_relists() {
    nothing_acknowledged_is_lost(&["--durability=fsync"]).await;
}

async fn nothing_acknowledged_is_lost(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let acknowledged = write_until_killed(ShardProcess::start(directory.path(), flags), PODS).await;
    let process = ShardProcess::start(directory.path(), flags);
    let client = process.client().await;
    let (revision, found) = all(&client).await;
    for (number, written) in &acknowledged {
        let kv = found.get(&key(PODS, *number)).unwrap_or_else(|| panic!("{number} is lost"));
        assert_eq!((kv.0.as_str(), kv.2), (number.to_string().as_str(), *written));
    }
    // A client can continue from every revision that it has seen.
    let (_, last) = *acknowledged.last().unwrap();
    let at = pb::RangeRequest { revision: last, ..range_request(PODS, PODS_END) };
    assert!(client.range(at).await.unwrap().kvs.len() >= acknowledged.len());
    let (_, first) = acknowledged[0];
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix(PODS, first)).await;
    assert_eq!(watcher.events(found.len()).await.len(), found.len());
    assert!(client.put(format!("{PODS}x"), "v").await > revision);
    process.kill();
}

#[tokio::test]
async fn lost_power_in_mode_buffered_leaves_a_beginning_and_says_so() {
    let flags = ["--durability=buffered", "--flush-interval=20ms"];
    let Lossy { directory, process, acknowledged, kept } = ended_with_a_loss(&flags).await;
    let client = process.client().await;
    let (revision, found) = all(&client).await;
    let (_, last) = *acknowledged.last().unwrap();
    assert!(revision > last, "revisions never go back");
    for (number, written) in &acknowledged {
        assert_eq!(
            found.contains_key(&key(PODS, *number)),
            *written <= kept,
            "{number} at {written}, kept to {kept}"
        );
    }
    // A watch that has seen later revisions is canceled, rather than left without events.
    let mut watcher = client.watch().await;
    watcher.send(watch_request::RequestUnion::CreateRequest(watch_prefix(PODS, last + 1))).await;
    assert!(watcher.next().await.created);
    let canceled = watcher.next().await;
    assert!(canceled.canceled && canceled.compact_revision > last, "{canceled:?}");
    let at = pb::RangeRequest { revision: last, ..range_request(PODS, PODS_END) };
    assert_eq!(client.range(at).await.unwrap_err().code(), Code::OutOfRange);
    // Revision s itself is readable, and watches can continue from it.
    let at = pb::RangeRequest { revision, ..range_request(PODS, PODS_END) };
    assert_eq!(client.range(at).await.unwrap().kvs.len(), found.len());
    process.kill();
    // The gap is still there after another restart.
    let process = ShardProcess::start(directory.path(), &flags);
    let at = pb::RangeRequest { revision: last, ..range_request(PODS, PODS_END) };
    assert_eq!(process.client().await.range(at).await.unwrap_err().code(), Code::OutOfRange);
    process.kill();
}

/// R10: a gap is part of the unit's history and moves with it.
#[tokio::test]
async fn a_gap_moves_with_its_unit() {
    let flags = ["--durability=buffered", "--flush-interval=20ms", "--slot=1"];
    let Lossy { directory: _directory, process, acknowledged, .. } = ended_with_a_loss(&flags).await;
    let client = process.client().await;
    let (_, last) = *acknowledged.last().unwrap();
    let target = Shard::with(Options { slot: Some(2), ..Options::default() }).await;
    let (mut from, mut to) = (UnitsClient::new(client.channel.clone()), units(&target).await);
    let by = moved(1, 1, PODS);
    track(&mut from, &by).await;
    copy(&mut from, &mut to, &by).await;
    let frozen = freeze(&mut from, &by).await;
    let rest = shard_v1::ImportRequest { r#move: Some(by.clone()), through: frozen, ..Default::default() };
    to.import(rest).await.unwrap();
    seal(&mut to, &by, frozen).await.unwrap();
    release(&mut from, &by, Epoch(2)).await;
    open(&mut to, &by, Epoch(2)).await;

    let client = target.client().await;
    let at = pb::RangeRequest { revision: last, ..range_request(PODS, PODS_END) };
    assert_eq!(client.range(at).await.unwrap_err().code(), Code::OutOfRange);
    let mut watcher = client.watch().await;
    watcher.send(watch_request::RequestUnion::CreateRequest(watch_prefix(PODS, last + 1))).await;
    assert!(watcher.next().await.created);
    let canceled = watcher.next().await;
    assert!(canceled.canceled && canceled.compact_revision > last, "{canceled:?}");
    // Everything that was kept is there, from the first write on.
    let first = acknowledged[0].1;
    let at = pb::RangeRequest { revision: first, ..range_request(PODS, PODS_END) };
    assert_eq!(client.range(at).await.unwrap().kvs.len(), 1);
    process.kill();
    target.stop().await;
}

#[tokio::test]
async fn a_kind_of_mode_none_comes_back_empty_and_its_watchers_relist() {
    let directory = tempfile::tempdir().unwrap();
    let leases = "/registry/leases/";
    let process = ShardProcess::start(directory.path(), &[]);
    let client = process.client().await;
    client.put(format!("{PODS}a"), "v").await;
    let last = client.put(format!("{leases}a"), "v").await;
    let mut maintenance = MaintenanceClient::new(client.channel.clone());
    // The defragmentation brings the data to disk, so that the kill only loses the lease object.
    maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
    process.kill();
    let process = ShardProcess::start(directory.path(), &[]);
    let client = process.client().await;
    let (revision, found) = all(&client).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), [&format!("{PODS}a")]);
    assert!(revision > last);
    let mut watcher = client.watch().await;
    watcher.send(watch_request::RequestUnion::CreateRequest(watch_prefix(leases, last + 1))).await;
    assert!(watcher.next().await.created);
    assert!(watcher.next().await.canceled);
    process.kill();
}

/// Everything that a client sees of the leases, revisions included.
async fn leases_of(client: &Client) -> pb::RangeResponse {
    client.range(range_request("/registry/leases/", "/registry/leases0")).await.unwrap()
}

#[tokio::test]
async fn f41_a_stop_in_good_order_keeps_the_kinds_of_mode_none_for_one_start() {
    let directory = tempfile::tempdir().unwrap();
    let shard = || Shard::with(Options { data_dir: Some(directory.path().to_owned()), ..Options::default() });
    let first = shard().await;
    let client = first.client().await;
    let lease = grant(&client, 600).await;
    client.put_request(pb::PutRequest { lease, ..put_request("/registry/leases/a", "1") }).await.unwrap();
    client.put("/registry/leases/b", "1").await;
    client.delete("/registry/leases/b", "").await.unwrap();
    let last = client.put("/registry/leases/a", "2").await;
    client.put("/registry/events/e", "1").await;
    client.put("/registry/pods/p", "1").await;
    let before = leases_of(&client).await;
    drop(client);
    first.stop().await;

    let second = shard().await;
    let client = second.client().await;
    assert_eq!(leases_of(&client).await.kvs, before.kvs);
    assert_eq!(client.range(range_request("/registry/events/e", "")).await.unwrap().count, 1);
    // Nothing is missing from the history either: a watch continues where it was.
    let mut watcher = client.watch().await;
    let start = before.kvs[0].create_revision + 1;
    watcher.send(watch_request::RequestUnion::CreateRequest(watch_prefix("/registry/leases/", start))).await;
    assert!(watcher.next().await.created);
    let seen: Vec<i64> =
        watcher.events(3).await.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect();
    assert!(seen.len() == 3 && seen.is_sorted() && seen[2] == last, "{seen:?}");
    // A crash is different: the data of the clean stop is older than the crash.
    client.put("/registry/leases/a", "3").await;
    drop((client, watcher));
    let copy = tempfile::tempdir().unwrap();
    copied(directory.path(), copy.path());
    second.stop().await;
    let crashed = ShardProcess::start(copy.path(), &[]);
    assert_eq!(leases_of(&crashed.client().await).await.count, 0);
    crashed.kill();
}

/// Copies the files as they are at this moment: this is what a crash would leave.
fn copied(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            std::fs::create_dir(&to).unwrap();
            copied(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

fn files(directory: &Path, of: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory.join(of)) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_checkpoint_and_the_log_behind_it_are_everything() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--durability=fsync"];
    let process = ShardProcess::start(directory.path(), &flags);
    let client = process.client().await;
    let lease = grant(&client, 600).await;
    let mut maintenance = MaintenanceClient::new(client.channel.clone());
    for round in 0..3 {
        for number in 0..60 {
            let lease = if number % 7 == 0 { lease } else { 0 };
            let put = pb::PutRequest { lease, ..put_request(key(PODS, number), format!("{round}")) };
            client.put_request(put).await.unwrap();
        }
        // Writes continue while the checkpoint is made.
        let (written, made) = tokio::join!(
            client.put(key(PODS, 900 + round), "meanwhile"),
            maintenance.defragment(pb::DefragmentRequest {}),
        );
        made.unwrap();
        assert!(written > 0);
    }
    client.delete(&key(PODS, 5), "").await.unwrap();
    let (_, before) = all(&client).await;
    let checkpoints = files(directory.path(), "checkpoint");
    assert_eq!(checkpoints.len(), 2, "older ones are dropped: {checkpoints:?}");
    process.kill();
    let process = ShardProcess::start(directory.path(), &flags);
    let client = process.client().await;
    assert_eq!(all(&client).await.1, before);
    let ask = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
    let view = LeaseClient::new(client.channel.clone()).lease_time_to_live(ask).await.unwrap().into_inner();
    assert_eq!((view.granted_ttl, view.keys.len()), (600, 60_usize.div_ceil(7)));
    process.kill();
}

/// Makes a shard with a hundred or so acknowledged writes in its log, and kills it.
async fn written(directory: &Path) -> BTreeMap<String, (String, i64, i64, i64, i64)> {
    let process = ShardProcess::start(directory, &["--durability=fsync"]);
    let client = process.client().await;
    for number in 0..60 {
        client.put(key(PODS, number), "v").await;
    }
    let (_, found) = all(&client).await;
    process.kill();
    found
}

#[tokio::test]
async fn a_torn_tail_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let before = written(directory.path()).await;
    let last = files(directory.path(), "wal/fsync").pop().unwrap();
    let mut bytes = std::fs::read(&last).unwrap();
    bytes.extend_from_slice(&[0x55; 777]);
    std::fs::write(&last, bytes).unwrap();
    let process = ShardProcess::start(directory.path(), &["--durability=fsync"]);
    assert_eq!(all(&process.client().await).await.1, before);
    process.kill();
}

#[tokio::test]
async fn damage_refuses_the_start_and_names_the_file_and_the_way_on() {
    let directory = tempfile::tempdir().unwrap();
    let before = written(directory.path()).await;
    let log = files(directory.path(), "wal/fsync").pop().unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    // The damage is among the first frames, because the file is longer than what is written of it.
    bytes[2000] ^= 0x40;
    std::fs::write(&log, &bytes).unwrap();
    let refused = ShardProcess::refused(directory.path(), &["--durability=fsync"]);
    let name = log.file_name().unwrap().to_str().unwrap();
    assert!(refused.contains(name) && refused.contains("--accept-data-loss"), "{refused}");
    // The refused start changed nothing.
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
    let process = ShardProcess::start(directory.path(), &["--durability=fsync", "--accept-data-loss"]);
    let client = process.client().await;
    let (revision, found) = all(&client).await;
    assert!(!found.is_empty() && found.len() < before.len(), "{} of {}", found.len(), before.len());
    assert!(found.iter().all(|(key, kv)| before.get(key) == Some(kv)));
    assert!(revision > before.values().map(|kv| kv.2).max().unwrap());
    process.kill();
}

#[tokio::test]
async fn one_process_at_a_time_uses_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let process = ShardProcess::start(directory.path(), &[]);
    let refused = ShardProcess::refused(directory.path(), &[]);
    assert!(
        refused.contains("--data-dir") && refused.contains(directory.path().to_str().unwrap()),
        "{refused}"
    );
    process.client().await.put("k", "v").await;
    process.kill();
}

#[tokio::test]
async fn a_kind_that_is_full_stops_its_own_writes_only() {
    let quota = Some("events=20000".to_owned());
    let shard = Shard::with(Options { quota, ..Options::default() }).await;
    let client = shard.client().await;
    let event = |number| put_request(format!("/registry/events/{number}"), "x".repeat(4000));
    let mut taken = 0;
    let refused = loop {
        match client.put_request(event(taken)).await {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert!((3..5).contains(&taken), "{taken}");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    client.put(format!("{PODS}a"), "x".repeat(30_000)).await;
    // Space is freed by the same requests as in etcd.
    let deleted = client.delete("/registry/events/", "/registry/events0").await.unwrap();
    client.compact(deleted.header.unwrap().revision, true).await.unwrap();
    eventually("room", || async { client.put_request(event(9)).await.is_ok() }).await;
    shard.stop().await;
}
