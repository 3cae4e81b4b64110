//! Leases whose keys are moving (R12): the keys of a lease are reported completely, once that is possible.

use crate::support::moving::{PODS, World, by, sealed, unit};
use kindred_partition_config::kind::KindScheme;
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::ring::{Bucket, BucketSet, RingHash};
use kindred_partition_config::transfers::Transfer;
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient, lease_client::LeaseClient};
use kindred_proto::shard_v1 as shard;

/// Between the release of a key by its old owner and its opening at the new one, no store has it.
#[tokio::test]
async fn the_keys_of_a_lease_are_told_when_what_moves_has_an_owner_again() {
    let world = World::start().await;
    let mut leases = LeaseClient::new(world.channel.clone());
    let lease = leases.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 0 }).await.unwrap().into_inner().id;
    let keys: Vec<String> = (0..12).map(|i| format!("{PODS}ns/p{i:02}")).collect();
    let mut kv = KvClient::new(world.channel.clone());
    for key in &keys {
        kv.put(pb::PutRequest { key: key.clone().into(), lease, ..Default::default() }).await.unwrap();
    }
    let ask = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
    assert_eq!(leases.lease_time_to_live(ask).await.unwrap().into_inner().keys, keys);

    // One key moves between two shards.
    let from = world.owner(&keys[0]);
    let to = (from + 1) % 3;
    let bucket: Bucket = RingHash::V1.bucket(&keys[0].as_bytes()[PODS.len()..]);
    let set: BucketSet = [bucket].into_iter().collect();
    attached(&world, lease, to).await;
    sealed(&world, by(1, set), from, to).await;
    let mut asked = leases.clone();
    let asking = tokio::spawn(async move { asked.lease_time_to_live(ask).await });
    let still = |at: &'static str| assert!(!asking.is_finished(), "{at}");
    pause().await;
    still("frozen and sealed");
    let release = shard::ReleaseRequest { r#move: by(1, set), epoch: 2 };
    world.units(from).await.release(release).await.unwrap();
    pause().await;
    still("released and not opened");
    // A request for the TTL alone does not wait.
    let times = pb::LeaseTimeToLiveRequest { id: lease, keys: false };
    assert!(leases.lease_time_to_live(times).await.unwrap().into_inner().ttl > 0);
    world.units(to).await.open(shard::OpenRequest { r#move: by(1, set), epoch: 2 }).await.unwrap();
    pause().await;
    // The old owner knows of a newer map than the router.
    still("opened, but the router has not heard of it");
    let kind = KindScheme::new("/registry").resolve("pods").ok();
    let transfer = Transfer { unit: unit(set), from: StoreIdx(from), to: StoreIdx(to), kind };
    world.transferred(&[transfer], 2);
    assert_eq!(asking.await.unwrap().unwrap().into_inner().keys, keys);
}

/// Long enough for a router to retry several times, but not to give up.
async fn pause() {
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
}

/// Attaches the lease to a store, as a coordinator does before a switch.
async fn attached(world: &World, lease: i64, store: u16) {
    let home = world.bound.app.stores.get(world.bound.app.stores.default_store()).index.0 as u16;
    let client = async |store: u16| {
        let channel = crate::support::direct(&world.shards[usize::from(store)]).await;
        shard::shard_client::ShardClient::new(channel)
    };
    if store == home {
        return;
    }
    let attach = shard::LeaseAttachRequest { id: lease, store_slot: u32::from(store) + 1 };
    let granted = client(home).await.lease_attach(attach).await.unwrap().into_inner().granted_ttl;
    let adopt = shard::LeaseAdoptRequest {
        id: lease,
        granted_ttl: granted,
        home_slot: u32::from(home) + 1,
        ..Default::default()
    };
    client(store).await.lease_adopt(adopt).await.unwrap();
}
