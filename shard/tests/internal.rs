//! `kindred.shard.v1`: the handshake, raises, and leases over stores.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use kindred_proto::{
    etcdserverpb::{self as pb, lease_client::LeaseClient},
    shard_v1::{self as shard, shard_client::ShardClient},
};
use kindred_shard::config::Options;
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
    let hello = client.hello(shard::HelloRequest::default()).await.unwrap().into_inner();
    assert_eq!((hello.cluster_id, hello.slot, hello.incarnation), (42, 9, 1));
    assert_eq!((hello.revisions.as_str(), hello.protocol_version), ("hlc", 1));
    let second = Shard::with(options()).await;
    let again = ShardClient::new(second.channel().await);
    let again = { again }.hello(shard::HelloRequest::default()).await.unwrap().into_inner();
    assert_eq!((again.store_uuid, again.incarnation), (hello.store_uuid, 2));

    let ranges = vec![shard::KeyRange { key: "/registry/pods/".into(), range_end: "/registry/pods0".into() }];
    let to = (i64::try_from(hello.now_micros).unwrap() + 1_000_000) << 10;
    let raised = client.raise(shard::RaiseRequest { ranges: ranges.clone(), to }).await.unwrap().into_inner();
    assert!(raised.current >= to);
    // The next write is above what was promised, and a clock far off is refused.
    assert!(first.client().await.put("/registry/pods/a", "v").await > raised.current);
    let far = to + ((3600_i64 * 1_000_000) << 10);
    let refused = client.raise(shard::RaiseRequest { ranges, to: far }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
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
    let adopt = shard::LeaseAdoptRequest { id, granted_ttl, home_slot: 1 };
    at_other.lease_adopt(adopt).await.unwrap();
    let client = other.client().await;
    let put = pb::PutRequest { lease: id, ..put_request("/registry/events/a", "v") };
    client.put_request(put).await.unwrap();
    let keys = at_other.lease_keys(shard::LeaseKeysRequest { id }).await.unwrap().into_inner();
    assert!(keys.known && keys.keys.len() == 1);

    let revoked = at_home.lease_revoke(shard::LeaseRevokeRequest { id }).await.unwrap().into_inner();
    assert_eq!(revoked.attached_slots, [2]);
    let told = ended.message().await.unwrap().unwrap();
    assert_eq!((told.id, told.attached_slots), (id, vec![2]));
    assert_eq!(at_home.lease_attach(attach).await.unwrap_err().code(), Code::NotFound);
    // A second listener hears first of what waits.
    let mut late = at_home.lease_ended(shard::LeaseEndedRequest {}).await.unwrap().into_inner();
    assert_eq!(late.message().await.unwrap().unwrap().id, id);

    at_other.lease_end(shard::LeaseEndRequest { id }).await.unwrap();
    assert_eq!(client.range(range_request("/registry/events/a", "")).await.unwrap().count, 0);
    at_home.lease_forget(shard::LeaseForgetRequest { id }).await.unwrap();
    assert_eq!(
        at_home.lease_revoke(shard::LeaseRevokeRequest { id }).await.unwrap_err().code(),
        Code::NotFound
    );
}
