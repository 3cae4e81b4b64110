//! `kindred.shard.v1`: the handshake, raises, and leases over stores.

use crate::common::*;
use bytes::Bytes;
use kindred_proto::{
    etcdserverpb::{self as pb, lease_client::LeaseClient, request_op},
    raw::kv::k_v_client::KVClient,
    shard_v1::{self as shard, shard_client::ShardClient},
};
use kindred_shard::config::Options;
use prost::Message;
use tonic::Code;

#[tokio::test]
async fn hello_and_raise() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options {
        data_dir: Some(directory.path().to_owned()),
        slot: Some(9),
        cluster_id: Some("0x2a".to_owned()),
        ..Options::default()
    };
    let first = Shard::with(options()).await;
    let mut client = ShardClient::new(first.channel().await);
    let hello = client.hello(hello(0, 0)).await.unwrap().into_inner();
    assert_eq!((hello.cluster_id, hello.slot, hello.incarnation), (42, 9, 1));
    assert_eq!((hello.revisions.as_str(), hello.protocol_version), ("hlc", 1));

    let ranges = vec![shard::KeyRange { key: "/registry/pods/".into(), range_end: "/registry/pods0".into() }];
    let to = (i64::try_from(hello.now_micros).unwrap() + 1_000_000) << 10;
    let raised = client
        .raise(shard::RaiseRequest { ranges: ranges.clone(), to, ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    assert!(raised.current >= to);
    // The next write is above what was promised, and a clock that is far off is refused.
    assert!(first.client().await.put("/registry/pods/a", "v").await > raised.current);
    let far = to + ((3600_i64 * 1_000_000) << 10);
    let refused =
        client.raise(shard::RaiseRequest { ranges, to: far, ..Default::default() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    first.stop().await;
    let second = Shard::with(options()).await;
    let again = ShardClient::new(second.channel().await);
    let again = { again }.hello(shard::HelloRequest::default()).await.unwrap().into_inner();
    assert_eq!((again.store_uuid, again.incarnation), (hello.store_uuid, 2));
}

fn hello(reference_micros: u64, cluster_id: u64) -> shard::HelloRequest {
    shard::HelloRequest { protocol_version: 1, cluster_id, reference_micros, ..Default::default() }
}

fn micros() -> u64 {
    u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

/// R1, R3: nothing is served before a router of the shard's own cluster has confirmed its clock, and no wrong time is
/// used after that.
#[tokio::test]
async fn r3_a_shard_of_a_cluster_serves_once_its_clock_is_confirmed_and_never_follows_a_wrong_one() {
    const HOUR: u64 = 3_600_000_000;
    let running = Shard::with(Options {
        slot: Some(9),
        cluster_id: Some("42".to_owned()),
        in_cluster: true,
        wall_clock_offset: Some("1h".to_owned()),
        ..Options::default()
    })
    .await;
    let (client, mut shard) = (running.client().await, ShardClient::new(running.channel().await));
    let refused = client.put_request(put_request("/registry/pods/a", "v")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("clock"), "{refused:?}");
    assert!(client.range(range_request("/registry/pods/a", "")).await.is_err());
    let foreign = shard.hello(hello(micros(), 43)).await.unwrap_err();
    assert_eq!(foreign.code(), Code::FailedPrecondition);
    assert!(foreign.message().contains("0x2b"), "{foreign:?}");
    // The shard shows its clock, and does not serve for a reference that its clock does not agree with.
    for reference in [0, micros()] {
        let met = shard.hello(hello(reference, 42)).await.unwrap().into_inner();
        assert!(met.awaits_clock && met.now_micros.abs_diff(micros() + HOUR) < 60_000_000, "{met:?}");
    }
    assert!(client.put_request(put_request("/registry/pods/a", "v")).await.is_err());

    let set_wrong = |micros| running.running.handle.inspect(move |core| core.clock.set_wall_offset(micros));
    set_wrong(0).await.unwrap();
    assert!(!shard.hello(hello(micros(), 42)).await.unwrap().into_inner().awaits_clock);
    let wrong = |revision: i64| (revision >> 10).unsigned_abs().abs_diff(micros()) > 60_000_000;
    let first = client.put("/registry/pods/a", "v").await;
    assert!(!wrong(first), "nothing of the wrong hour is left");
    // A wall clock that steps away is reported and not followed, even if a router that is wrong too confirms it.
    for step in [3_600_000_000, -3_600_000_000] {
        set_wrong(step).await.unwrap();
        let revision = client.put("/registry/pods/a", "v").await;
        assert!(!wrong(revision), "{revision}");
        let met = shard.hello(hello(micros(), 42)).await.unwrap().into_inner();
        assert!(!met.awaits_clock && wrong(i64::try_from(met.now_micros << 10).unwrap()), "{met:?}");
    }
    let last = client.put("/registry/pods/a", "v").await;
    assert!(last > first && !wrong(last));
    // When the whole cluster is an hour ahead, the shard follows.
    set_wrong(3_600_000_000).await.unwrap();
    shard.hello(hello(micros() + HOUR, 42)).await.unwrap();
    assert!(wrong(client.put("/registry/pods/a", "v").await));
}

#[tokio::test]
async fn a_lease_over_two_stores_ends_at_its_home_first() {
    let home = Shard::with(Options { slot: Some(1), ..Options::default() }).await;
    let other = Shard::with(Options { slot: Some(2), ..Options::default() }).await;
    let (mut at_home, mut at_other) =
        (ShardClient::new(home.channel().await), ShardClient::new(other.channel().await));
    let mut leases = LeaseClient::new(home.channel().await);
    let id = leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 0 }).await.unwrap().into_inner().id;

    let mut ended = at_home.lease_ended(shard::LeaseEndedRequest {}).await.unwrap().into_inner();
    let attach = shard::LeaseAttachRequest { id, store_slot: 2 };
    let granted_ttl = at_home.lease_attach(attach).await.unwrap().into_inner().granted_ttl;
    let adopt = shard::LeaseAdoptRequest { id, granted_ttl, home_slot: 1, ..Default::default() };
    at_other.lease_adopt(adopt).await.unwrap();
    let client = other.client().await;
    let put = pb::PutRequest { lease: id, ..put_request("/registry/events/a", "v") };
    client.put_request(put).await.unwrap();
    let keys =
        at_other.lease_keys(shard::LeaseKeysRequest { id, ..Default::default() }).await.unwrap().into_inner();
    assert!(keys.known && keys.keys.len() == 1);

    let revoked = at_home.lease_revoke(shard::LeaseRevokeRequest { id }).await.unwrap().into_inner();
    assert_eq!(revoked.attached_slots, [2]);
    let told = ended.message().await.unwrap().unwrap();
    assert_eq!((told.id, told.attached_slots), (id, vec![2]));
    assert_eq!(at_home.lease_attach(attach).await.unwrap_err().code(), Code::NotFound);
    // A second listener first hears of the leases that wait.
    let mut late = at_home.lease_ended(shard::LeaseEndedRequest {}).await.unwrap().into_inner();
    assert_eq!(late.message().await.unwrap().unwrap().id, id);

    at_other.lease_end(shard::LeaseEndRequest { id, ..Default::default() }).await.unwrap();
    assert_eq!(client.range(range_request("/registry/events/a", "")).await.unwrap().count, 0);
    at_home.lease_forget(shard::LeaseForgetRequest { id }).await.unwrap();
    assert_eq!(
        at_home.lease_revoke(shard::LeaseRevokeRequest { id }).await.unwrap_err().code(),
        Code::NotFound
    );
}

fn pods() -> Vec<shard::KeyRange> {
    vec![shard::KeyRange { key: "/registry/pods/".into(), range_end: "/registry/pods0".into() }]
}

fn hinted<T>(message: T, hints: &[(&'static str, String)]) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    for (name, value) in hints {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn r5_a_pinned_revision_stays_readable_and_says_what_changed() {
    let running = Shard::start().await;
    let (client, mut shard) = (running.client().await, ShardClient::new(running.channel().await));
    let first = client.put("/registry/pods/a", "1").await;
    let raise =
        |since, pin| shard::RaiseSinceRequest { ranges: pods(), to: first, since, pin, ..Default::default() };
    let pinned = shard.raise_since(raise(first, 1)).await.unwrap().into_inner();
    assert_eq!((pinned.current, pinned.changed), (first, false));
    client.put("/registry/minions/n", "1").await;
    assert!(!shard.raise_since(raise(first, 0)).await.unwrap().into_inner().changed);
    let second = client.put("/registry/pods/a", "2").await;
    let changed = shard.raise_since(raise(first, 0)).await.unwrap().into_inner();
    assert_eq!((changed.current, changed.changed), (second, true));

    // A compaction above the pin waits for it, but not for pins that came later.
    let began = std::time::Instant::now();
    let compacting = tokio::spawn({
        let client = client.clone();
        async move { client.compact(second, true).await }
    });
    let at_first = || pb::RangeRequest { revision: first, ..range_request("/registry/pods/a", "") };
    while !compacting.is_finished() {
        assert!(began.elapsed() < PATIENCE, "it waits for what is pinned since");
        let elapsed = began.elapsed();
        let read = client.range(at_first()).await;
        match read {
            Ok(read) => assert_eq!(read.kvs[0].value, "1"),
            Err(_) => assert!(elapsed >= std::time::Duration::from_millis(4_500), "{elapsed:?}"),
        }
        shard.raise_since(raise(first, 1)).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    compacting.await.unwrap().unwrap();
    assert!(client.range(at_first()).await.is_err());
}

#[tokio::test]
async fn r5_a_compaction_goes_on_once_what_it_waits_for_is_released() {
    let running = Shard::start().await;
    let (client, mut shard) = (running.client().await, ShardClient::new(running.channel().await));
    let first = client.put("/registry/pods/a", "1").await;
    let mut kv = KVClient::new(running.channel().await);
    for pin in ["7", "8"] {
        let range = Bytes::from(range_request("/registry/pods/a", "").encode_to_vec());
        kv.range(hinted(range, &[("kindred-pin", pin.to_owned())])).await.unwrap();
    }
    let second = client.put("/registry/pods/a", "2").await;
    let compacting = tokio::spawn({
        let client = client.clone();
        async move { client.compact(second, true).await }
    });
    let handle = &running.running.handle;
    let waits = || async { handle.inspect(|core| core.compact_deadline().is_some()).await.unwrap() };
    crate::common::eventually("the compaction waits", waits).await;
    let at_first = || pb::RangeRequest { revision: first, ..range_request("/registry/pods/a", "") };
    let release = |pins: &[u64]| shard::ReleasePinsRequest { pins: pins.to_vec() };
    // Releases one of the two pins, and ids that are not pinned.
    shard.release_pins(release(&[7, 99, 0])).await.unwrap();
    assert_eq!(client.range(at_first()).await.unwrap().kvs[0].value, "1");
    shard.release_pins(release(&[8])).await.unwrap();
    assert!(client.range(at_first()).await.is_err(), "compacted at once");
    compacting.await.unwrap().unwrap();
    let many = shard.release_pins(release(&[1; 5000])).await.unwrap_err();
    assert_eq!(many.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn r8_wishes_are_fulfilled_or_ignored() {
    let running = Shard::with(Options { slot: Some(9), ..Options::default() }).await;
    let mut kv = KVClient::new(running.channel().await);
    let mut shard = ShardClient::new(running.channel().await);
    let now = shard.hello(shard::HelloRequest::default()).await.unwrap().into_inner().now_micros;
    let ahead = |seconds: i64| (i64::try_from(now).unwrap() + seconds * 1_000_000) << 10;
    let min_revision = |revision: i64| ("kindred-min-revision", revision.to_string());
    let range = || Bytes::from(range_request("/registry/pods/a", "").encode_to_vec());
    let header = |answer: Bytes| pb::RangeResponse::decode(answer).unwrap().header.unwrap().revision;

    let before = header(kv.range(range()).await.unwrap().into_inner());
    for ignored in [min_revision(ahead(3600)), ("kindred-min-revision", "x".to_owned())] {
        let shown = header(kv.range(hinted(range(), &[ignored])).await.unwrap().into_inner());
        assert_eq!(shown, before);
    }
    let shown = header(kv.range(hinted(range(), &[min_revision(ahead(1))])).await.unwrap().into_inner());
    assert_eq!(shown, ahead(1));
    // A revision that was shown is readable, also in a stream.
    let at_shown = pb::RangeRequest { revision: shown, ..range_request("/registry/pods/a", "") };
    let request = hinted(Bytes::from(at_shown.encode_to_vec()), &[("kindred-pin", "1".to_owned())]);
    let chunk = kv.range_stream(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(decode_chunk(chunk).header.unwrap().revision, shown);

    let put = Bytes::from(put_request("/registry/pods/a", "v").encode_to_vec());
    let answer = kv.put(hinted(put, &[min_revision(ahead(2))])).await.unwrap().into_inner();
    let written = pb::PutResponse::decode(answer).unwrap().header.unwrap().revision;
    assert!(written > ahead(2));
    let read = op(request_op::Request::RequestRange(range_request("/registry/pods/a", "")));
    let txn = Bytes::from(pb::TxnRequest { success: vec![read], ..Default::default() }.encode_to_vec());
    let answer = kv.txn(hinted(txn, &[min_revision(ahead(3))])).await.unwrap().into_inner();
    assert_eq!(pb::TxnResponse::decode(answer).unwrap().header.unwrap().revision, ahead(3));
    assert_eq!(header(kv.range(range()).await.unwrap().into_inner()), ahead(3), "what was shown stays");

    // A dense shard does not follow the revision that it is asked for.
    let dense = Shard::dense().await;
    let mut kv = KVClient::new(dense.channel().await);
    assert_eq!(header(kv.range(hinted(range(), &[min_revision(5)])).await.unwrap().into_inner()), 1);
}

#[tokio::test]
async fn load_tells_what_a_move_would_find() {
    let directory = tempfile::tempdir().unwrap();
    let running = Shard::with(Options {
        data_dir: Some(directory.path().to_owned()),
        durability: Some("fsync".to_owned()),
        quota: Some("pods=100000,nodes=7000".to_owned()),
        quota_backend_bytes: Some(1 << 20),
        ..Options::default()
    })
    .await;
    let (client, shard) = (running.client().await, ShardClient::new(running.channel().await));
    let load = |key: &'static str, range_end: &'static str| {
        let ranges = vec![shard::KeyRange { key: key.into(), range_end: range_end.into() }];
        let mut shard = shard.clone();
        async move { shard.load(shard::LoadRequest { ranges }).await.unwrap().into_inner() }
    };
    let before = load("/registry/pods/", "/registry/pods0").await;
    let quotas: Vec<_> =
        before.kinds.iter().map(|kind| (&kind.prefix[..], kind.quota_bytes, kind.keys)).collect();
    assert_eq!(quotas, [(&b"/registry/pods/"[..], 100_000, 0)], "a quota of what is not there yet");
    for number in 0..10 {
        client.put(format!("/registry/pods/{number}"), "x".repeat(1000)).await;
    }
    client.put("/registry/pods/0", "x".repeat(500)).await;
    client.put("/registry/leases/l", "y").await;
    // The loop looks at its logs about once a second.
    eventually("a time of the disk", || async { load("\0", "\0").await.fsync_p99_micros > 0 }).await;
    let after = load("/registry/pods/5", "").await;
    let modes: Vec<_> = after.logs.iter().map(shard::LogLoad::mode).collect();
    assert_eq!(modes, [shard::Durability::Fsync, shard::Durability::Buffered]);
    assert!(
        after.logs.iter().any(|log| log.wal_bytes > 0) && after.kinds.iter().all(|kind| kind.mode > 0),
        "{after:?}"
    );
    let [pods] = &after.kinds[..] else { panic!("{after:?}") };
    assert_eq!((pods.keys, pods.quota_bytes), (10, 100_000));
    assert!((10_500..12_000).contains(&pods.written_bytes), "{pods:?}");
    assert!((1000..=pods.written_bytes).contains(&pods.written_per_second), "{pods:?}");
    assert!(pods.bytes > pods.live_bytes + 500 && pods.held_bytes == pods.bytes, "{pods:?}");
    assert!(after.quota_bytes == 1 << 20 && !after.full && after.held_bytes > pods.bytes, "{after:?}");
    let all = load("\0", "\0").await;
    let mut prefixes: Vec<_> = all.kinds.iter().map(|kind| kind.prefix.clone()).collect();
    prefixes.sort();
    assert_eq!(prefixes, ["", "/registry/leases/", "/registry/minions/", "/registry/pods/"]);
    // An operator can raise the alarm like this, or a full disk.
    running.running.handle.inspect(|core| core.alarm_raise(pb::AlarmType::Nospace as i32, 1)).await.unwrap();
    assert!(load("\0", "\0").await.full);
    running.stop().await;
}

/// R14: a store that replaces a lost one begins when the lost one's clock cannot have got further, and not before.
#[tokio::test]
async fn r14_a_store_in_the_place_of_another_opens_when_its_own_clock_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options {
        data_dir: Some(directory.path().to_owned()),
        slot: Some(9),
        in_cluster: true,
        cluster_id: Some("42".to_owned()),
        ..Options::default()
    };
    let running = Shard::with(options()).await;
    let (client, shard) = (running.client().await, ShardClient::new(running.channel().await));
    let opens_at = micros() + 1_500_000;
    let meet = |mut shard: ShardClient<_>, opens_at_micros| async move {
        let request = shard::HelloRequest { opens_at_micros, ..hello(micros(), 42) };
        shard.hello(request).await.map(tonic::Response::into_inner)
    };
    let met = meet(shard.clone(), opens_at).await.unwrap();
    assert!(met.awaits_clock && met.now_micros < opens_at, "{met:?}");
    let refused = client.put_request(put_request("/registry/pods/a", "v")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    // A router that does not know of this does not open the store early.
    assert!(meet(shard.clone(), 0).await.unwrap().awaits_clock);
    eventually("the time", || async { !meet(shard.clone(), opens_at).await.unwrap().awaits_clock }).await;
    assert!(micros() >= opens_at);
    let first = client.put("/registry/pods/a", "v").await;
    assert!(first >> 10 >= i64::try_from(opens_at).unwrap(), "{first}");
    let before = pb::RangeRequest {
        revision: (i64::try_from(opens_at).unwrap() << 10) - 1,
        ..range_request("/registry/pods/a", "")
    };
    assert!(client.range(before).await.unwrap_err().message().contains("compacted"));
    // A store that began earlier may not replace a lost one.
    let refused = meet(shard.clone(), micros() + 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("without data"), "{refused}");
    running.stop().await;
    // After a restart the store gives the same answer when it is asked again.
    let again = Shard::with(options()).await;
    let shard = ShardClient::new(again.channel().await);
    assert!(!meet(shard, opens_at).await.unwrap().awaits_clock);
    assert_eq!(again.client().await.range(range_request("/registry/pods/a", "")).await.unwrap().count, 1);
}
