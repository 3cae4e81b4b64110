//! A ring of real shards between which a test moves keys by calls alone, and the router in front of them.

use kindred_partition_config::ids::Epoch;
use kindred_partition_config::kind::KindScheme;
use kindred_partition_config::map::{Placement, StoreIdx};
use kindred_partition_config::ring::BucketSet;
use kindred_partition_config::transfers::{Transfer, with_transfers};
use kindred_partition_config::unit::{Unit, UnitBuckets};
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient};
use kindred_proto::shard_v1::{self as shard, units_client::UnitsClient};
use kindred_router::run::Bound;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreKind;
use tonic::transport::Channel;

use crate::support::{Shard, all_up, direct, kindred, router_with, spread_config};

pub const PODS: &str = "/registry/pods/";
pub const STORES: usize = 3;

/// Pods in a ring of three shards, under a changing map.
pub struct World {
    pub shards: Vec<Shard>,
    pub channel: Channel,
    pub bound: Bound,
    _drain: kindred_transport::Drain,
}

impl World {
    pub async fn start() -> Self {
        let binary = kindred();
        let shards: Vec<_> = (1..=STORES).map(|slot| Shard::start(&binary, slot as u16)).collect();
        let urls: Vec<_> = shards.iter().map(Shard::url).collect();
        let (bound, drain, channel) = router_with(&spread_config(&urls, true), &[]).await;
        all_up(&bound).await;
        let world = Self { shards, channel, bound, _drain: drain };
        world.transferred(&[], 1);
        world
    }

    /// Gives the router the map after these transfers.
    pub fn transferred(&self, transfers: &[Transfer], generation: u64) {
        let routes = self.bound.app.routing.load();
        let map = with_transfers(routes.map(), transfers, Epoch(generation)).unwrap();
        let stores = (1..=STORES).map(|slot| (format!("s{slot}"), StoreKind::Shard)).collect();
        let default = kindred_router_core::store::StoreIx(0);
        let routes = Routes::new(map, KindScheme::new("/registry"), stores, default);
        self.bound.app.routing.swap(routes.of_generation(Epoch(generation)));
    }

    pub fn buckets_of(&self, store: u16) -> BucketSet {
        match &self.bound.app.routing.load().map().lookup(b"/registry/pods/x").placement {
            Placement::Ring(table) => table.of(StoreIdx(store)),
            single => panic!("{single:?} is no ring"),
        }
    }

    pub fn owner(&self, key: &str) -> u16 {
        self.bound.app.routing.load().map().store_of(key.as_bytes()).0
    }

    pub async fn units(&self, store: u16) -> UnitsClient<Channel> {
        UnitsClient::new(direct(&self.shards[usize::from(store)]).await)
    }

    /// The number of pods at a shard.
    pub async fn count(&self, store: u16) -> i64 {
        let mut kv = KvClient::new(direct(&self.shards[usize::from(store)]).await);
        let request = pb::RangeRequest { count_only: true, ..all() };
        kv.range(request).await.unwrap().into_inner().count
    }
}

pub fn all() -> pb::RangeRequest {
    pb::RangeRequest { key: PODS.into(), range_end: "/registry/pods0".into(), ..Default::default() }
}

pub fn unit(set: BucketSet) -> Unit {
    let range = kindred_partition_config::key::KeyRange::from_wire(all().key, all().range_end);
    Unit { range, buckets: Some(UnitBuckets { prefix_len: PODS.len(), set }) }
}

pub fn by(id: u64, set: BucketSet) -> Option<shard::UnitMove> {
    let (buckets, prefix_len) = unit(set).buckets_to_wire();
    let range = Some(shard::KeyRange { key: all().key, range_end: all().range_end });
    Some(shard::UnitMove { r#move: id, term: 1, unit: Some(shard::Unit { range, buckets, prefix_len }) })
}

pub async fn frozen(units: &mut UnitsClient<Channel>, by: Option<shard::UnitMove>) -> i64 {
    while !units.track(shard::TrackRequest { r#move: by.clone() }).await.unwrap().into_inner().ready {}
    units
        .freeze(shard::FreezeRequest { r#move: by, ..Default::default() })
        .await
        .unwrap()
        .into_inner()
        .final_revision
}

/// Moves keys between two shards completely.
pub async fn moved(world: &World, by: Option<shard::UnitMove>, from: u16, to: u16, epoch: u64) {
    sealed(world, by.clone(), from, to).await;
    let (mut source, mut target) = (world.units(from).await, world.units(to).await);
    source.release(shard::ReleaseRequest { r#move: by.clone(), epoch }).await.unwrap();
    target.open(shard::OpenRequest { r#move: by, epoch }).await.unwrap();
}

/// Moves keys between two shards up to the decision.
pub async fn sealed(world: &World, by: Option<shard::UnitMove>, from: u16, to: u16) {
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
    target
        .seal(shard::SealRequest { r#move: by.clone(), final_revision, ..Default::default() })
        .await
        .unwrap();
}
