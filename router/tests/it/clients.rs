//! What clients of etcd send beside plain messages.

use kindred_proto::etcdserverpb::{
    self as pb, kv_client::KvClient, lease_client::LeaseClient, maintenance_client::MaintenanceClient,
    watch_client::WatchClient,
};
use tonic::Code;
use tonic::codec::CompressionEncoding::Gzip;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::support::{Shard, all_up, kindred, router};

/// Clients that compress their messages (`UseCompressor` of grpc-go, `withCompression` of grpc-java) were told that the
/// method is not implemented.
#[tokio::test]
async fn f59_messages_may_be_compressed() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let mut kv = KvClient::new(channel.clone()).send_compressed(Gzip);
    let (key, value) = ("/registry/pods/a/b", vec![b'z'; 5000]);
    let put = pb::PutRequest { key: key.into(), value: value.clone().into(), ..Default::default() };
    let at = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
    let get = pb::RangeRequest { key: key.into(), ..Default::default() };
    assert_eq!(kv.range(get.clone()).await.unwrap().into_inner().kvs[0].value, value);
    let mut chunks = kv.range_stream(get).await.unwrap().into_inner();
    assert!(chunks.message().await.unwrap().is_some());
    let mut lease = LeaseClient::new(channel.clone()).send_compressed(Gzip);
    assert!(lease.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 0 }).await.unwrap().into_inner().id > 0);
    let mut maintenance = MaintenanceClient::new(channel.clone()).send_compressed(Gzip);
    maintenance.status(pb::StatusRequest {}).await.unwrap();
    let create = pb::WatchCreateRequest { key: key.into(), start_revision: at, ..Default::default() };
    let create = pb::watch_request::RequestUnion::CreateRequest(create);
    let create = pb::WatchRequest { request_union: Some(create) };
    // The client's half stays open.
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
    let watch = WatchClient::new(channel).send_compressed(Gzip).watch(requests).await;
    let mut watch = watch.unwrap().into_inner();
    assert!(watch.message().await.unwrap().unwrap().created);
    assert_eq!(watch.message().await.unwrap().unwrap().events.len(), 1);
}

#[tokio::test]
async fn f60_a_router_and_its_shards_say_that_they_serve() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    let of = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for channel in [channel, crate::support::direct(&default).await] {
        let mut health = HealthClient::new(channel);
        let found = health.check(of("")).await.unwrap().into_inner();
        assert_eq!(found.status(), ServingStatus::Serving);
        assert_eq!(health.check(of("etcdserverpb.KV")).await.unwrap_err().code(), Code::NotFound);
        let mut watch = health.watch(of("")).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    }
}

/// etcdctl divides by the size of the database when it makes a table of it.
#[tokio::test]
async fn f61_the_database_of_an_empty_cluster_has_a_size() {
    let binary = kindred();
    let (default, pods) = (Shard::start(&binary, 1), Shard::start(&binary, 4));
    let (bound, _drain, channel) = router(&default.url(), &pods.url()).await;
    all_up(&bound).await;
    for channel in [channel, crate::support::direct(&default).await] {
        let status = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await.unwrap().into_inner();
        assert!(status.db_size > 0 && status.db_size_in_use <= status.db_size, "{status:?}");
    }
}
