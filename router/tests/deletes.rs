//! Deletes over several shards of which some are handing keys over meanwhile: what was done is not repeated.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Epoch;
use kindred_partition_config::kind::KindScheme;
use kindred_partition_config::map::{Placement, StoreIdx};
use kindred_partition_config::ring::{Bucket, BucketSet, RingHash};
use kindred_partition_config::transfers::{Transfer, with_transfers};
use kindred_partition_config::unit::{Unit, UnitBuckets};
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient};
use kindred_proto::shard_v1::{self as shard, units_client::UnitsClient};
use kindred_router::run::Bound;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreKind;
use support::{Shard, all_up, direct, put, router_with, shard_binary, spread_config};
use tonic::transport::Channel;

const PODS: &str = "/registry/pods/";
const STORES: usize = 3;

/// Pods in a ring of three shards, by a map that changes.
struct World {
    shards: Vec<Shard>,
    channel: Channel,
    bound: Bound,
    _drain: kindred_transport::Drain,
}

impl World {
    async fn start() -> Self {
        let binary = shard_binary();
        let shards: Vec<_> = (1..=STORES).map(|slot| Shard::start(&binary, slot as u16)).collect();
        let urls: Vec<_> = shards.iter().map(Shard::url).collect();
        let (bound, drain, channel) = router_with(&spread_config(&urls, true), &[]).await;
        all_up(&bound).await;
        let world = Self { shards, channel, bound, _drain: drain };
        world.transferred(&[], 1);
        world
    }

    /// Gives the router the map after these transfers.
    fn transferred(&self, transfers: &[Transfer], generation: u64) {
        let routes = self.bound.app.routes.load();
        let map = with_transfers(routes.map(), transfers, Epoch(generation)).unwrap();
        let stores = (1..=STORES).map(|slot| (format!("s{slot}"), StoreKind::Shard)).collect();
        let default = kindred_router_core::store::StoreIx(0);
        let routes = Routes::new(map, KindScheme::new("/registry"), stores, default);
        self.bound.app.swap(routes.of_generation(generation));
    }

    fn buckets_of(&self, store: u16) -> BucketSet {
        match &self.bound.app.routes.load().map().lookup(b"/registry/pods/x").placement {
            Placement::Ring(table) => table.of(StoreIdx(store)),
            single => panic!("{single:?} is no ring"),
        }
    }

    fn owner(&self, key: &str) -> u16 {
        self.bound.app.routes.load().map().store_of(key.as_bytes()).0
    }

    async fn units(&self, store: u16) -> UnitsClient<Channel> {
        UnitsClient::new(direct(&self.shards[usize::from(store)]).await)
    }

    /// How many pods a shard has.
    async fn count(&self, store: u16) -> i64 {
        let mut kv = KvClient::new(direct(&self.shards[usize::from(store)]).await);
        let request = pb::RangeRequest { count_only: true, ..all() };
        kv.range(request).await.unwrap().into_inner().count
    }
}

fn all() -> pb::RangeRequest {
    pb::RangeRequest { key: PODS.into(), range_end: "/registry/pods0".into(), ..Default::default() }
}

fn unit(set: BucketSet) -> Unit {
    let range = kindred_partition_config::key::KeyRange::from_wire(all().key, all().range_end);
    Unit { range, buckets: Some(UnitBuckets { prefix_len: PODS.len(), set }) }
}

fn by(id: u64, set: BucketSet) -> Option<shard::UnitMove> {
    let (buckets, prefix_len) = unit(set).buckets_to_wire();
    let range = Some(shard::KeyRange { key: all().key, range_end: all().range_end });
    Some(shard::UnitMove { r#move: id, term: 1, unit: Some(shard::Unit { range, buckets, prefix_len }) })
}

async fn frozen(units: &mut UnitsClient<Channel>, by: Option<shard::UnitMove>) -> i64 {
    while !units.track(shard::TrackRequest { r#move: by.clone() }).await.unwrap().into_inner().ready {}
    units.freeze(shard::FreezeRequest { r#move: by }).await.unwrap().into_inner().final_revision
}

/// Moves keys between two shards, from beginning to end.
async fn moved(world: &World, by: Option<shard::UnitMove>, from: u16, to: u16, epoch: u64) {
    let (mut source, mut target) = (world.units(from).await, world.units(to).await);
    let final_revision = frozen(&mut source, by.clone()).await;
    let request = shard::CopyRequest { r#move: by.clone(), ..Default::default() };
    let mut copied = source.copy(request).await.unwrap().into_inner();
    while let Some(chunk) = copied.message().await.unwrap() {
        let import = shard::ImportRequest {
            r#move: by.clone(),
            keys: chunk.keys,
            floor: chunk.floor,
            ..Default::default()
        };
        target.import(import).await.unwrap();
    }
    let whole = shard::ImportRequest { r#move: by.clone(), through: final_revision, ..Default::default() };
    target.import(whole).await.unwrap();
    target.seal(shard::SealRequest { r#move: by.clone(), final_revision }).await.unwrap();
    source.release(shard::ReleaseRequest { r#move: by.clone(), epoch }).await.unwrap();
    target.open(shard::OpenRequest { r#move: by, epoch }).await.unwrap();
}

async fn until_empty(world: &World, store: u16) {
    let empty = async {
        while world.count(store).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), empty).await.expect("the part is done");
}

/// The last of three shards is frozen while the first two are done. Before it thaws, keys are written again to these, and
/// one of them moves: to the shard that is still to be asked, or to one that has been.
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
