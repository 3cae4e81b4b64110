//! Deletes over several shards while keys move between them: parts that are done are not repeated.

use std::time::Duration;

use crate::support::moving::{PODS, World, all, by, frozen, moved, unit};
use crate::support::put;
use bytes::Bytes;
use kindred_partition_config::kind::KindScheme;
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::ring::{Bucket, BucketSet, RingHash};
use kindred_partition_config::transfers::Transfer;
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient, request_op::Request as Op};
use kindred_proto::shard_v1 as shard;
use tonic::transport::Channel;

async fn until_empty(world: &World, store: u16) {
    let empty = async {
        while world.count(store).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), empty).await.expect("the part is done");
}

/// The last of three shards is frozen while the first two are done. Before it is unfrozen, keys are written again to
/// the first two, and one bucket of them moves: to the shard that is still to be asked, or to the one that is done.
async fn written_after_its_part_was_done(to: u16) {
    let world = World::start().await;
    let names: Vec<String> = (0..60).map(|i| format!("{PODS}ns/p{i:02}")).collect();
    for name in &names {
        put(&world.channel, name).await;
    }
    for store in 0..3 {
        assert!(names.iter().any(|name| world.owner(name) == store), "every shard has some");
    }

    let last = by(1, world.buckets_of(2));
    frozen(&mut world.units(2).await, last.clone()).await;
    let mut kv = KvClient::new(world.channel.clone());
    let request = pb::DeleteRangeRequest { key: all().key, range_end: all().range_end, prev_kv: true };
    let deleting = tokio::spawn(async move { kv.delete_range(request).await });
    until_empty(&world, 0).await;
    until_empty(&world, 1).await;

    let again: Vec<&String> =
        [0, 1].iter().map(|store| names.iter().find(|name| world.owner(name) == *store).unwrap()).collect();
    for name in &again {
        put(&world.channel, name).await;
    }
    let bucket: Bucket = RingHash::V1.bucket(&again[0].as_bytes()[PODS.len()..]);
    let set: BucketSet = [bucket].into_iter().collect();
    moved(&world, by(2, set), 0, to, 2).await;
    let kind = KindScheme::new("/registry").resolve("pods").ok();
    let transfer = Transfer { unit: unit(set), from: StoreIdx(0), to: StoreIdx(to), kind };
    world.transferred(&[transfer], 2);
    assert_eq!(world.owner(again[0]), to);
    world.units(2).await.unfreeze(shard::UnfreezeRequest { r#move: last }).await.unwrap();

    let deleted = deleting.await.unwrap().unwrap().into_inner();
    let previous: Vec<Bytes> = deleted.prev_kvs.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(previous, names.iter().map(|name| Bytes::from(name.clone())).collect::<Vec<_>>());
    assert_eq!(deleted.deleted, 60);
    let left = KvClient::new(world.channel.clone()).range(all()).await.unwrap().into_inner().kvs;
    let mut left: Vec<_> = left.iter().map(|kv| String::from_utf8(kv.key.to_vec()).unwrap()).collect();
    let mut expected: Vec<String> = again.into_iter().cloned().collect();
    left.sort();
    expected.sort();
    assert_eq!(left, expected, "what was written after its part was done stays");
}

#[tokio::test]
async fn a_done_part_that_moves_to_a_shard_still_to_be_asked_is_not_repeated() {
    written_after_its_part_was_done(2).await;
}

#[tokio::test]
async fn a_done_part_that_moves_to_a_shard_that_was_asked_is_not_repeated() {
    written_after_its_part_was_done(1).await;
}

/// A delete with an empty key and a range end was split over the stores before anybody checked it, so its first part
/// began at the first of all keys: it emptied every store. What stores get whole, they check; what a router splits or
/// refuses for a reason of its own, it checks first, as etcd does.
#[tokio::test]
async fn f55_requests_over_all_stores_that_etcd_refuses_change_nothing() {
    let world = World::start().await;
    for i in 0..30 {
        put(&world.channel, &format!("{PODS}ns/p{i:02}")).await;
    }
    let mut kv = KvClient::new(world.channel.clone());
    let no_key = "etcdserver: key is not provided";
    for range_end in [&b"\0"[..], b"\xff", b"/registry0"] {
        let delete = pb::DeleteRangeRequest { range_end: range_end.into(), ..Default::default() };
        let range = pb::RangeRequest { range_end: range_end.into(), ..Default::default() };
        assert_eq!(kv.delete_range(delete.clone()).await.unwrap_err().message(), no_key);
        assert_eq!(kv.range(range.clone()).await.unwrap_err().message(), no_key);
        assert_eq!(streamed(&mut kv, range.clone()).await, no_key);
        for request in [Op::RequestDeleteRange(delete), Op::RequestRange(range)] {
            let once = pb::TxnRequest {
                success: vec![pb::RequestOp { request: Some(request) }],
                ..Default::default()
            };
            assert_eq!(kv.txn(once.clone()).await.unwrap_err().message(), no_key);
            let nested = pb::TxnRequest {
                failure: vec![pb::RequestOp { request: Some(Op::RequestTxn(once)) }],
                ..Default::default()
            };
            assert_eq!(kv.txn(nested).await.unwrap_err().message(), no_key);
        }
        let compare = pb::Compare { range_end: range_end.into(), ..Default::default() };
        let compares = pb::TxnRequest { compare: vec![compare], ..Default::default() };
        assert_eq!(kv.txn(compares).await.unwrap_err().message(), no_key);
    }
    for (sort_order, sort_target) in [(7, 0), (0, 9)] {
        let sorted = pb::RangeRequest { sort_order, sort_target, ..all() };
        let text = "etcdserver: invalid sort option";
        assert_eq!(kv.range(sorted.clone()).await.unwrap_err().message(), text);
        assert_eq!(streamed(&mut kv, sorted).await, text);
    }
    assert_eq!(kv.range(all()).await.unwrap().into_inner().count, 30);
}

/// The text that a stream of a range is refused with.
async fn streamed(kv: &mut KvClient<Channel>, request: pb::RangeRequest) -> String {
    match kv.range_stream(request).await {
        Err(status) => status.message().to_owned(),
        Ok(stream) => match stream.into_inner().message().await {
            Err(status) => status.message().to_owned(),
            Ok(chunk) => panic!("no refusal, but {chunk:?}"),
        },
    }
}
