//! A Kind by name over three shards and a Kind by hash over four: clients see what one shard would show.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Shard, all_up, direct, kindred, put};
use clap::Parser;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::kv_client::KvClient;
use kindred_router::config::Args;
use kindred_router::run::{Bound, bind};
use kindred_transport::Drain;
use tonic::transport::Channel;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Pods by name on p1, p2 and p3; events in a ring of r1 … r4; the rest on `default`, which is p1.
struct Spread {
    shards: Vec<Shard>,
    channel: Channel,
    bound: Bound,
    drain: Drain,
    _dir: tempfile::TempDir,
}

impl Spread {
    async fn start() -> Self {
        let binary = kindred();
        let shards: Vec<_> = (1..=4).map(|slot| Shard::start(&binary, slot)).collect();
        let (bound, drain, channel, dir) = router(&shards).await;
        Self { shards, channel, bound, drain, _dir: dir }
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    async fn range(&self, request: pb::RangeRequest) -> pb::RangeResponse {
        self.kv().range(request).await.unwrap().into_inner()
    }
}

async fn router(shards: &[Shard]) -> (Bound, Drain, Channel, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut text = "default: s1\nstores:\n".to_owned();
    for (i, shard) in shards.iter().enumerate() {
        let n = i + 1;
        text.push_str(&format!("- {{name: s{n}, slot: {n}, endpoints: ['{}']}}\n", shard.url()));
    }
    text.push_str(
        "partitions:\n\
         - {metadata: {name: low}, resource: pods, serviceGroupId: s1, rangeEnd: h, isRangeEndValid: true}\n\
         - {metadata: {name: mid}, resource: pods, serviceGroupId: s2, rangeStart: h, isRangeStartValid: true, \
           rangeEnd: q, isRangeEndValid: true}\n\
         - {metadata: {name: high}, resource: pods, serviceGroupId: s3, rangeStart: q, isRangeStartValid: true}\n\
         - {metadata: {name: ring}, resource: events, ring: {stores: [s1, s2, s3, s4]}}\n",
    );
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, text).unwrap();
    let flags =
        ["x", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let settings = Cli::parse_from(flags).args.settings().unwrap();
    let drain = Drain::new(Duration::from_secs(2));
    let bound = bind(settings, &drain, None).await.unwrap();
    all_up(&bound).await;
    let url = format!("http://{}", bound.listen[0].trim_start_matches("http://"));
    (bound, drain, Channel::from_shared(url).unwrap().connect_lazy(), dir)
}

fn all_of(prefix: &str) -> pb::RangeRequest {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    pb::RangeRequest { key: prefix.to_owned().into(), range_end: end.into(), ..Default::default() }
}

fn keys(answer: &pb::RangeResponse) -> Vec<String> {
    answer.kvs.iter().map(|kv| String::from_utf8(kv.key.to_vec()).unwrap()).collect()
}

/// Replaces revisions of one server by those of the other, by the keys that have them.
fn translated(answer: &pb::RangeResponse, of: &BTreeMap<i64, i64>) -> Vec<(String, Vec<u8>, i64, i64, i64)> {
    let kv = |kv: &kindred_proto::mvccpb::KeyValue| {
        let key = String::from_utf8(kv.key.to_vec()).unwrap();
        (key, kv.value.to_vec(), of[&kv.create_revision], of[&kv.mod_revision], kv.version)
    };
    answer.kvs.iter().map(kv).collect()
}

/// Names in all partitions and buckets, each written one to three times; some deleted.
fn history(prefix: &str) -> Vec<(String, Option<String>)> {
    let mut writes = Vec::new();
    for round in 0..3 {
        for i in (round..60).step_by(round + 1) {
            let name = format!("{prefix}{}{i:02}/x", char::from(b'a' + (i * 7 % 26) as u8));
            let value = (i % 11 != round + 5).then(|| format!("{}-{round}", i * 37 % 60));
            writes.push((name, value));
        }
    }
    writes
}

async fn write(channel: &Channel, key: &str, value: Option<&String>) -> i64 {
    let mut kv = KvClient::new(channel.clone());
    match value {
        Some(value) => {
            let put = pb::PutRequest {
                key: key.to_owned().into(),
                value: value.clone().into(),
                ..Default::default()
            };
            kv.put(put).await.unwrap().into_inner().header.unwrap().revision
        }
        None => {
            let delete = pb::DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
            kv.delete_range(delete).await.unwrap().into_inner().header.unwrap().revision
        }
    }
}

#[tokio::test]
async fn every_option_as_one_shard_answers() {
    let spread = Spread::start().await;
    let whole = Shard::start(&kindred(), 9);
    let one = direct(&whole).await;
    let ready = async {
        while KvClient::new(one.clone()).range(all_of("/x")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready).await.unwrap();
    for prefix in ["/registry/pods/", "/registry/events/"] {
        // (here, there) for every write.
        let mut revisions = Vec::new();
        for (key, value) in history(prefix) {
            let here = write(&spread.channel, &key, value.as_ref()).await;
            revisions.push((here, write(&one, &key, value.as_ref()).await));
        }
        let to_one: BTreeMap<i64, i64> = revisions.iter().copied().collect();
        let same: BTreeMap<i64, i64> = revisions.iter().map(|(_, there)| (*there, *there)).collect();
        let middle = revisions[revisions.len() / 2];
        for mut here in requests(prefix) {
            let mut there = here.clone();
            if here.revision != 0 {
                (here.revision, there.revision) = middle;
            }
            for (here, there) in [
                (&mut here.min_mod_revision, &mut there.min_mod_revision),
                (&mut here.max_mod_revision, &mut there.max_mod_revision),
                (&mut here.min_create_revision, &mut there.min_create_revision),
                (&mut here.max_create_revision, &mut there.max_create_revision),
            ] {
                if *here != 0 {
                    (*here, *there) = middle;
                }
            }
            let got = spread.range(here.clone()).await;
            let expected = KvClient::new(one.clone()).range(there).await.unwrap().into_inner();
            assert_eq!(translated(&got, &to_one), translated(&expected, &same), "{here:?}");
            assert_eq!((got.count, got.more), (expected.count, expected.more), "{here:?}");
            if here.sort_order == 0 && here.sort_target == 0 {
                assert_streams_alike(&spread, here, &got).await;
            }
        }
    }
}

/// Requests with every option and with pairs of options; 1 stands for a revision in the middle.
fn requests(prefix: &str) -> Vec<pb::RangeRequest> {
    let mut requests = Vec::new();
    for revision in [0, 1] {
        for limit in [0, 1, 7, 1000] {
            for (sort_order, sort_target) in
                [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (1, 2), (2, 3), (1, 4), (2, 4)]
            {
                for (keys_only, count_only) in [(false, false), (true, false), (false, true)] {
                    for filter in 0..3 {
                        requests.push(pb::RangeRequest {
                            revision,
                            limit,
                            sort_order,
                            sort_target,
                            keys_only,
                            count_only,
                            min_mod_revision: i64::from(filter == 1),
                            max_create_revision: i64::from(filter == 2),
                            ..all_of(prefix)
                        });
                    }
                }
            }
        }
    }
    requests
}

async fn assert_streams_alike(spread: &Spread, request: pb::RangeRequest, expected: &pb::RangeResponse) {
    let answer = spread.kv().range_stream(request.clone()).await;
    let filtered = request.min_mod_revision + request.max_create_revision > 0;
    let mut chunks = match answer {
        Ok(chunks) => chunks.into_inner(),
        Err(status) if filtered => return assert_eq!(status.code(), tonic::Code::Unimplemented),
        Err(status) => panic!("{status} {request:?}"),
    };
    let mut merged = pb::RangeResponse::default();
    while let Some(chunk) = match chunks.message().await {
        Ok(chunk) => chunk,
        Err(status) if filtered => return assert_eq!(status.code(), tonic::Code::Unimplemented),
        Err(status) => panic!("{status} {request:?}"),
    } {
        let chunk = chunk.range_response.unwrap();
        assert!(merged.header.is_none(), "only the last chunk has a header");
        merged.kvs.extend(chunk.kvs);
        (merged.header, merged.more, merged.count) = (chunk.header, chunk.more, chunk.count);
    }
    assert_eq!(
        (&merged.kvs, merged.count, merged.more),
        (&expected.kvs, expected.count, expected.more),
        "{request:?}"
    );
    assert!(merged.header.unwrap().revision >= expected.header.as_ref().unwrap().revision);
}

#[tokio::test]
async fn pages_under_writes_miss_nothing_and_double_nothing() {
    let spread = Spread::start().await;
    for prefix in ["/registry/pods/", "/registry/events/"] {
        for i in 0..120u8 {
            put(&spread.channel, &format!("{prefix}{}{i}", char::from(b'a' + i % 26))).await;
        }
        let channel = spread.channel.clone();
        let writer = tokio::spawn(async move {
            for i in 0u32.. {
                let letter = char::from(b'a' + (i % 26) as u8);
                put(&channel, &format!("{prefix}{letter}new{i}")).await;
                write(&channel, &format!("{prefix}{letter}{}", i % 120), None).await;
            }
        });
        for _ in 0..20 {
            let first = spread.range(pb::RangeRequest { limit: 7, ..all_of(prefix) }).await;
            let revision = first.header.as_ref().unwrap().revision;
            let (mut listed, mut more) = (keys(&first), first.more);
            while more {
                let next = format!("{}\0", listed.last().unwrap());
                let request = pb::RangeRequest { key: next.into(), limit: 7, revision, ..all_of(prefix) };
                let page = spread.range(request).await;
                assert!(page.header.as_ref().unwrap().revision >= revision, "C1: the current revision");
                assert_eq!(page.count + listed.len() as i64, first.count, "old counts stay");
                more = page.more;
                listed.extend(keys(&page));
            }
            assert!(listed.is_sorted_by(|a, b| a < b), "twice or out of order: {listed:?}");
            let whole = spread.range(pb::RangeRequest { revision, ..all_of(prefix) }).await;
            assert_eq!((listed, first.count), (keys(&whole), whole.count));
        }
        writer.abort();
    }
}

/// R8: Q2, the probe for the current revision of a Kind.
#[tokio::test]
async fn the_probe_covers_every_acknowledged_write_and_never_falls() {
    let spread = Spread::start().await;
    let (second, other_drain, other, _dir) = router(&spread.shards).await;
    for prefix in ["/registry/pods", "/registry/events"] {
        let mut last = 0;
        for i in 0..60u8 {
            let key = format!("{prefix}/{}{i}", char::from(b'a' + i % 26));
            let through = if i % 2 == 0 { &spread.channel } else { &other };
            let written = put(if i % 3 == 0 { &other } else { &spread.channel }, &key).await;
            let probe = pb::RangeRequest { key: prefix.to_owned().into(), limit: 1, ..Default::default() };
            let answer = KvClient::new(through.clone()).range(probe).await.unwrap().into_inner();
            let shown = answer.header.unwrap().revision;
            assert!(answer.kvs.is_empty() && shown >= written && shown >= last, "{shown} {written} {last}");
            // A read of one key shows no less through the same router, whichever store has the key.
            let one = pb::RangeRequest { key: format!("{prefix}/z").into(), ..Default::default() };
            let one = KvClient::new(through.clone()).range(one).await.unwrap().into_inner();
            assert!(one.header.unwrap().revision >= shown);
            // What was shown can be listed through either router.
            for channel in [&spread.channel, &other] {
                let at = pb::RangeRequest { revision: shown, ..all_of(&format!("{prefix}/")) };
                let list = KvClient::new(channel.clone()).range(at).await.unwrap().into_inner();
                assert!(keys(&list).contains(&key) && list.header.unwrap().revision >= shown);
            }
            // So can a single key, at a store that may not have reached the revision yet.
            let at = pb::RangeRequest { key: key.into(), revision: shown, ..Default::default() };
            assert_eq!(KvClient::new(other.clone()).range(at).await.unwrap().into_inner().kvs.len(), 1);
            last = shown;
        }
    }
    other_drain.begin();
    drop(second);
}

/// R4: a revision that one router has shown is not in the future for another, whichever stores of the Kind that asks.
#[tokio::test]
async fn r4_a_revision_of_another_store_is_not_the_future() {
    let spread = Spread::start().await;
    let (second, other_drain, other, _dir) = router(&spread.shards).await;
    let future = "etcdserver: mvcc: required revision is a future revision";
    let pods = |start: &str, end: &str| pb::RangeRequest {
        key: format!("/registry/pods/{start}").into(),
        range_end: format!("/registry/pods/{end}").into(),
        ..Default::default()
    };
    put(&spread.channel, "/registry/pods/a").await;
    put(&spread.channel, "/registry/pods/k").await;
    // Two of the three stores, and the second alone.
    for (part, expected) in [(pods("a", "p"), 2), (pods("i", "p"), 1)] {
        // The revision of the third store, unknown to the other two and to the second router.
        let revision = put(&spread.channel, "/registry/pods/z").await;
        let request = pb::RangeRequest { revision, ..part.clone() };
        let answer = KvClient::new(other.clone()).range(request).await.unwrap().into_inner();
        assert_eq!(answer.count, expected);
        assert!(answer.header.unwrap().revision >= revision);

        let revision = put(&spread.channel, "/registry/pods/z").await;
        let request = pb::RangeRequest { revision, ..part.clone() };
        let mut chunks = KvClient::new(other.clone()).range_stream(request).await.unwrap().into_inner();
        let mut last = None;
        while let Some(chunk) = chunks.message().await.unwrap() {
            last = chunk.range_response;
        }
        let last = last.unwrap();
        assert_eq!(last.count, expected);
        assert!(last.header.unwrap().revision >= revision);

        let request = pb::RangeRequest { revision: revision + 1, ..part };
        let refused = KvClient::new(other.clone()).range(request.clone()).await.unwrap_err();
        assert_eq!(refused.message(), future);
        let refused = KvClient::new(other.clone()).range_stream(request).await.unwrap_err();
        assert_eq!(refused.message(), future);
    }
    other_drain.begin();
    drop(second);
}

#[tokio::test]
async fn deletes_compaction_hash_and_a_dead_store() {
    let mut spread = Spread::start().await;
    let names = ["a", "f", "h", "k", "q", "z"];
    for name in names {
        put(&spread.channel, &format!("/registry/pods/{name}")).await;
        put(&spread.channel, &format!("/registry/events/{name}")).await;
    }
    let everything = pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    let all = spread.range(everything.clone()).await;
    assert_eq!((all.kvs.len(), all.count), (12, 12));
    assert!(keys(&all).is_sorted());

    let revision = all.header.unwrap().revision;
    let range = all_of("/registry/events/");
    let delete =
        pb::DeleteRangeRequest { key: range.key.clone(), range_end: range.range_end.clone(), prev_kv: true };
    let deleted = spread.kv().delete_range(delete.clone()).await.unwrap().into_inner();
    let previous: Vec<_> = deleted.prev_kvs.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!((deleted.deleted, previous.len()), (6, 6));
    assert!(previous.is_sorted() && deleted.header.unwrap().revision > revision);
    assert_eq!(spread.range(range.clone()).await.count, 0);
    assert_eq!(spread.range(pb::RangeRequest { revision, ..range.clone() }).await.count, 6);

    let mut maintenance = pb::maintenance_client::MaintenanceClient::new(spread.channel.clone());
    let hash = maintenance.hash_kv(pb::HashKvRequest { revision }).await.unwrap().into_inner();
    assert_eq!(
        maintenance.hash_kv(pb::HashKvRequest { revision }).await.unwrap().into_inner().hash,
        hash.hash
    );
    let future = maintenance.hash_kv(pb::HashKvRequest { revision: i64::MAX - 1 }).await.unwrap_err();
    assert_eq!(future.message(), "etcdserver: mvcc: required revision is a future revision");

    let now = spread.range(range.clone()).await.header.unwrap().revision;
    let compact = pb::CompactionRequest { revision: now, physical: true };
    tokio::time::timeout(Duration::from_secs(60), spread.kv().compact(compact)).await.unwrap().unwrap();
    let old = spread.kv().range(pb::RangeRequest { revision, ..range.clone() }).await.unwrap_err();
    assert_eq!(old.message(), "etcdserver: mvcc: required revision has been compacted");
    assert_eq!(spread.range(everything.clone()).await.count, 6);

    spread.shards[2].kill().await;
    let away = spread.kv().range(all_of("/registry/pods/")).await.unwrap_err();
    assert_eq!(away.code(), tonic::Code::Unavailable);
    assert!(away.message().contains("\"s3\""), "{away:?}");
    let served = spread.range(all_of("/registry/pods/a")).await;
    assert_eq!(keys(&served), ["/registry/pods/a"]);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert!(status.errors.iter().any(|error| error.contains("s3")), "{status:?}");
    assert!(spread.bound.app.stores.iter().any(|store| store.name() == "s3"));
    spread.drain.begin();
}

/// However a list ends, a compaction does not wait for it; with pins left behind, each of these would take 5 s.
#[tokio::test]
async fn r5_a_compaction_does_not_wait_for_lists_that_have_ended() {
    let spread = Spread::start().await;
    let value = "v".repeat(64 << 10);
    for name in ["a", "k", "t"] {
        for i in 0..20 {
            write(&spread.channel, &format!("/registry/pods/{name}/{i}"), Some(&value)).await;
        }
    }
    let all = async {
        for round in 0..15 {
            let at = put(&spread.channel, "/registry/pods/k/0").await;
            match round % 5 {
                0 => drop(spread.range(all_of("/registry/pods/")).await),
                1 => {
                    let list = spread.kv().range_stream(all_of("/registry/pods/")).await.unwrap();
                    let mut chunks = list.into_inner();
                    while chunks.message().await.unwrap().is_some() {}
                }
                3 => {
                    // Probes go over the streams of batches; most of these clients go away before the answer.
                    let probe = pb::RangeRequest { limit: 1, ..all_of("/registry/pods/") };
                    let probes: Vec<_> = (0..40)
                        .map(|_| {
                            let (mut kv, probe) = (spread.kv(), probe.clone());
                            tokio::spawn(async move { kv.range(probe).await.unwrap().into_inner().count })
                        })
                        .collect();
                    for (at, probe) in probes.into_iter().enumerate() {
                        if at % 4 == 0 {
                            assert_eq!(probe.await.unwrap(), 60);
                        } else {
                            probe.abort();
                        }
                    }
                }
                2 => {
                    // The client goes away after the first chunk.
                    let list = spread.kv().range_stream(all_of("/registry/pods/")).await.unwrap();
                    assert!(list.into_inner().message().await.unwrap().is_some());
                }
                // The list fails.
                _ => {
                    let future = pb::RangeRequest { revision: i64::MAX, ..all_of("/registry/pods/") };
                    spread.kv().range(future).await.unwrap_err();
                }
            }
            put(&spread.channel, "/registry/pods/a/0").await;
            let compact = pb::CompactionRequest { revision: at, physical: true };
            spread.kv().compact(compact).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
}
