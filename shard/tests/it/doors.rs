//! Which clients get access to a shard, and which users to its files.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use crate::common::*;
use bytes::Bytes;
use kindred_proto::{
    etcdserverpb::{self as pb, lease_client::LeaseClient, maintenance_client::MaintenanceClient},
    raw::{
        batches::batches_client::BatchesClient, kv::k_v_client::KVClient, watch::watch_client::WatchClient,
    },
    shard_v1::{
        self as shard, shard_client::ShardClient, standbys_client::StandbysClient, units_client::UnitsClient,
    },
};
use kindred_shard::{
    config::{Args, Options, Settings},
    server,
};
use kindred_transport::{Connector, tls::ServerTlsArgs};
use prost::Message as _;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Finds everything below a folder that users other than its owner may read, write or enter. Answers how many entries
/// it saw.
fn open_to_others(folder: &Path, found: &mut Vec<String>) -> usize {
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        if mode & 0o077 != 0 {
            found.push(format!("{} {mode:o}", path.display()));
        }
        seen += 1 + if path.is_dir() { open_to_others(&path, found) } else { 0 };
    }
    seen
}

/// This also holds in a folder that an earlier version, or systemd, made readable for all users.
#[tokio::test]
async fn f34_nothing_of_a_store_is_open_to_other_users() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    for _ in 0..2 {
        let options = Options { data_dir: Some(data.clone()), ..Options::default() };
        let shard = Shard::with(options).await;
        let client = shard.client().await;
        client.put("/registry/secrets/a", "secret").await;
        shard.stop().await;
        let mut found = Vec::new();
        assert!(open_to_others(directory.path(), &mut found) > 6);
        assert_eq!(found, [""; 0]);
        // An earlier version left the folder like this.
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        for inner in ["wal/buffered", "wal/fsync"] {
            fs::set_permissions(data.join(inner), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

fn micros() -> u64 {
    u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

/// Makes the reads of an etcd client. Returns the codes of their answers.
async fn reads(stranger: tonic::transport::Channel) -> Vec<(&'static str, Code)> {
    let mut kv = KVClient::new(stranger.clone());
    let range = Bytes::from(range_request("/registry/pods/a", "").encode_to_vec());
    let create = pb::WatchCreateRequest { key: "/registry/pods/a".into(), ..Default::default() };
    let create = pb::watch_request::RequestUnion::CreateRequest(create);
    let create = Bytes::from(pb::WatchRequest { request_union: Some(create) }.encode_to_vec());
    let watch = WatchClient::new(stranger.clone()).watch(tokio_stream::iter([create])).await;
    let mut maintenance = MaintenanceClient::new(stranger.clone());
    let units = UnitsClient::new(stranger.clone()).list(shard::UnitsListRequest {}).await;
    vec![
        ("range", code(kv.range(range.clone()).await)),
        ("stream", code(kv.range_stream(range).await)),
        ("watch", code(watch)),
        ("status", code(maintenance.status(pb::StatusRequest {}).await)),
        ("alarms", code(maintenance.alarm(pb::AlarmRequest::default()).await)),
        ("hash", code(maintenance.hash_kv(pb::HashKvRequest::default()).await)),
        ("units", code(units)),
        ("leases", code(LeaseClient::new(stranger).lease_leases(pb::LeaseLeasesRequest {}).await)),
    ]
}

/// Makes all calls that change something, and all internal calls. Returns the codes of their answers.
async fn changes(stranger: tonic::transport::Channel) -> Vec<(&'static str, Code)> {
    let mut kv = KVClient::new(stranger.clone());
    let encoded = |request: &dyn Fn() -> Vec<u8>| Bytes::from(request());
    let put = encoded(&|| put_request("/registry/pods/a", "stranger").encode_to_vec());
    let delete = encoded(&|| delete_request("/registry/pods/", "/registry/pods0").encode_to_vec());
    let txn = pb::TxnRequest { success: vec![put_op("/registry/pods/a", "stranger")], ..Default::default() };
    let txn = encoded(&|| txn.encode_to_vec());
    let compact = encoded(&|| pb::CompactionRequest { revision: 1, physical: true }.encode_to_vec());
    let (mut lease, mut maintenance) =
        (LeaseClient::new(stranger.clone()), MaintenanceClient::new(stranger.clone()));
    let (mut shard, mut units) = (ShardClient::new(stranger.clone()), UnitsClient::new(stranger.clone()));
    let mut batches = BatchesClient::new(stranger.clone());
    let modes = shard::SetModesRequest { generation: u64::MAX, ..Default::default() };
    let alarm = pb::AlarmRequest { action: 1, member_id: 0, alarm: 1 };
    let run = async move {
        match batches.run(tokio_stream::empty::<Bytes>()).await {
            Ok(answers) => answers.into_inner().message().await.map(|_| ()),
            Err(status) => Err(status),
        }
    };
    vec![
        ("put", code(kv.put(put).await)),
        ("delete", code(kv.delete_range(delete).await)),
        ("txn", code(kv.txn(txn).await)),
        ("compact", code(kv.compact(compact).await)),
        ("grant", code(lease.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 7 }).await)),
        ("revoke", code(lease.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await)),
        ("alarm", code(maintenance.alarm(alarm).await)),
        ("defragment", code(maintenance.defragment(pb::DefragmentRequest {}).await)),
        ("hello", code(shard.hello(shard::HelloRequest::default()).await)),
        ("modes", code(shard.set_modes(modes).await)),
        ("freeze", code(units.freeze(shard::FreezeRequest::default()).await)),
        ("drop", code(units.drop(shard::DropRequest::default()).await)),
        ("batches", run.await.map_or_else(|status| status.code(), |()| Code::Ok)),
    ]
}

fn code<T>(answer: Result<T, tonic::Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

fn refused(answers: &[(&str, Code)]) {
    for (call, code) in answers {
        assert_eq!(*code, Code::PermissionDenied, "{call}");
    }
}

async fn started(options: Options, tls: ServerTlsArgs) -> anyhow::Result<server::Running> {
    let listen = options.listen.clone().or(Some("127.0.0.1:0".to_owned()));
    let options = Options { listen, ..options };
    server::start(Settings::resolve(Args { options, tls, ..Args::default() })?).await
}

/// Makes the shard serve: a router confirms its clock.
async fn met(router: &Channel) {
    let hello = shard::HelloRequest { protocol_version: 1, reference_micros: micros(), ..Default::default() };
    let mut shard = ShardClient::new(router.clone());
    assert!(!shard.hello(hello).await.unwrap().into_inner().awaits_clock);
}

/// Any local process, and any certificate of the shards' CA, could read all at a shard: Secrets, and at a meta store the key
/// by which tokens are signed.
#[tokio::test]
async fn f80_a_shard_that_knows_its_routers_serves_nobody_else() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), SECRET).unwrap();
    for in_cluster in [true, false] {
        let cluster_secret_file = Some(file.path().to_owned());
        let running = Shard::with(Options { in_cluster, cluster_secret_file, ..Options::default() }).await;
        met(&running.channel().await).await;
        let router = running.client().await;
        router.put("/registry/pods/a", "router").await;
        // A client that says that it is a router but does not know the secret.
        let pretender = Connector::default().router_channel(&[running.url().parse().unwrap()]).unwrap();
        let pretender = Client { channel: pretender };
        let put = pretender.put_request(put_request("/registry/pods/a", "x")).await.unwrap_err();
        assert_eq!(put.code(), Code::PermissionDenied, "{put:?}");
        assert!(put.message().contains("--cluster-secret-file"), "{put:?}");
        let stranger =
            tonic::transport::Channel::from_shared(running.url()).unwrap().connect().await.unwrap();
        refused(&reads(stranger.clone()).await);
        refused(&changes(stranger.clone()).await);
        let mut health = HealthClient::new(stranger);
        let health = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(health.status(), ServingStatus::Serving, "it says no more than that it is there");
        let found = router.range(range_request("/registry/pods/a", "")).await.unwrap();
        assert_eq!((found.kvs[0].value.as_ref(), found.kvs[0].version), (&b"router"[..], 1));
        running.stop().await;
    }
}

/// Of the certificates of one CA, only those of routers may write; without a certificate there is no connection.
#[tokio::test]
async fn f33_a_shard_knows_its_routers_by_their_certificates_names() {
    use kindred_transport::{auto_tls, tls::ClientTls};
    let dir = tempfile::tempdir().unwrap();
    let made = auto_tls::create(dir.path(), &[]).unwrap();
    let tls = ServerTlsArgs {
        cert_file: Some(made.server_cert.clone()),
        key_file: Some(made.server_key.clone()),
        trusted_ca_file: Some(made.ca_cert.clone()),
        ..ServerTlsArgs::default()
    };
    let router_names = Some(format!("other,{}", auto_tls::ROUTER_NAME));
    let running =
        started(Options { in_cluster: true, router_names, ..Options::default() }, tls).await.unwrap();
    let url = [running.listen[0].clone()];
    let connector = |identity| {
        let settings = kindred_transport::tls::ClientTlsSettings { identity, ..made.client_settings() };
        Connector::with_tls(Some(ClientTls::load(settings).unwrap()))
    };
    let router = connector(Some((made.router_cert.clone(), made.router_key.clone())));
    let router = router.router_channel(&url).unwrap();
    met(&router).await;
    Client { channel: router }.put("/registry/pods/a", "router").await;
    // For example the certificate of an apiserver, or of Prometheus.
    let client = connector(Some((made.client_cert.clone(), made.client_key.clone())));
    refused(&reads(client.channel_any(&url).unwrap()).await);
    refused(&changes(client.channel_any(&url).unwrap()).await);
    let pretender = Client { channel: client.router_channel(&url).unwrap() };
    let put = pretender.put_request(put_request("/registry/pods/a", "x")).await.unwrap_err();
    assert_eq!(put.code(), Code::PermissionDenied, "{put:?}");
    let nobody = Client { channel: connector(None).router_channel(&url).unwrap() };
    let range = nobody.range(range_request("/registry/pods/a", "")).await.unwrap_err();
    assert!(matches!(range.code(), Code::Unavailable | Code::Unknown), "{range:?}");
    running.drain.begin();
    running.finish().await.unwrap();
}

/// A standby had to show a router's certificate, so every pod of a store held the key with which everything may be read and
/// written at every shard.
#[tokio::test]
async fn f83_a_member_of_a_store_may_follow_it_and_nothing_else() {
    use kindred_transport::{auto_tls, tls::ClientTls};
    let dir = tempfile::tempdir().unwrap();
    let made = auto_tls::create(dir.path(), &[]).unwrap();
    let tls = ServerTlsArgs {
        cert_file: Some(made.server_cert.clone()),
        key_file: Some(made.server_key.clone()),
        trusted_ca_file: Some(made.ca_cert.clone()),
        ..ServerTlsArgs::default()
    };
    let options = |member: &str| Options {
        in_cluster: true,
        router_names: Some(auto_tls::ROUTER_NAME.to_owned()),
        member_names: Some(format!("other,{member}")),
        data_dir: Some(dir.path().join(member)),
        ..Options::default()
    };
    for (member, admitted) in [(auto_tls::CLIENT_NAME, true), ("kindred-member", false)] {
        let running = started(options(member), tls.clone()).await.unwrap();
        let url = [running.listen[0].clone()];
        let connector = |identity| {
            let settings = kindred_transport::tls::ClientTlsSettings { identity, ..made.client_settings() };
            Connector::with_tls(Some(ClientTls::load(settings).unwrap()))
        };
        met(&connector(Some((made.router_cert.clone(), made.router_key.clone())))
            .router_channel(&url)
            .unwrap())
        .await;
        let connector = connector(Some((made.client_cert.clone(), made.client_key.clone())));
        refused(&reads(connector.channel_any(&url).unwrap()).await);
        refused(&changes(connector.channel_any(&url).unwrap()).await);
        let mut standbys = StandbysClient::new(connector.router_channel(&url).unwrap());
        let begin = shard::FollowBegin {
            member: "0123456789abcdef".to_owned(),
            name: "default".to_owned(),
            slot: 1,
            ..Default::default()
        };
        let says = Some(shard::follow_request::Says::Begin(begin));
        let follow = standbys.follow(tokio_stream::iter([shard::FollowRequest { says }])).await;
        assert_eq!(code(follow), if admitted { Code::Ok } else { Code::PermissionDenied }, "{member}");
        for (call, code) in [
            ("member", code(standbys.member(shard::MemberRequest::default()).await)),
            ("count", code(standbys.count(shard::CountRequest::default()).await)),
            ("yield", code(standbys.r#yield(shard::YieldRequest::default()).await)),
            ("prepare", code(standbys.prepare(shard::PrepareRequest::default()).await)),
            ("promote", code(standbys.promote(shard::PromoteRequest::default()).await)),
            ("supersede", code(standbys.supersede(shard::SupersedeRequest::default()).await)),
        ] {
            assert_eq!(code, Code::PermissionDenied, "{call}");
        }
        running.drain.begin();
        running.finish().await.unwrap();
    }
}

#[tokio::test]
async fn f33_a_shard_does_not_listen_for_everybody_by_mistake() {
    let far = |options: Options| {
        started(Options { listen: Some("0.0.0.0:0".to_owned()), ..options }, ServerTlsArgs::default())
    };
    let said = |refused: anyhow::Result<server::Running>| match refused {
        Ok(_) => panic!("it starts"),
        Err(error) => error.to_string(),
    };
    let alone = said(far(Options::default()).await);
    assert!(alone.contains("--insecure-listen") && alone.contains("0.0.0.0:0"), "{alone}");
    let of_cluster =
        said(far(Options { in_cluster: true, insecure_listen: true, ..Options::default() }).await);
    assert!(
        of_cluster.contains("--router-names") && of_cluster.contains("--cluster-secret-file"),
        "{of_cluster}"
    );
    // Users of this machine are others too.
    let here = Options { in_cluster: true, ..Options::default() };
    assert!(said(started(here, ServerTlsArgs::default()).await).contains("--cluster-secret-file"));
    let admin = started(
        Options { admin_listen: Some("0.0.0.0:0".to_owned()), ..Options::default() },
        ServerTlsArgs::default(),
    );
    let admin = said(admin.await);
    assert!(admin.contains("--admin-client-ca-file") && admin.contains("--admin-token-file"), "{admin}");
    let names = Some("kindred-router".to_owned());
    for options in [
        Options { router_names: names.clone(), ..Options::default() },
        Options { member_names: names, ..Options::default() },
    ] {
        assert!(said(started(options, ServerTlsArgs::default()).await).contains("--trusted-ca-file"));
    }
}

/// Neither a client that is let in by mistake nor a faulty router can keep later ones out for good with a very high
/// number.
#[tokio::test]
async fn f33_a_number_that_no_cluster_counts_to_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let running =
        Shard::with(Options { data_dir: Some(directory.path().to_owned()), ..Options::default() }).await;
    let channel = running.channel().await;
    let (mut shard, mut units) = (ShardClient::new(channel.clone()), UnitsClient::new(channel));
    let modes = |generation| shard::SetModesRequest {
        generation,
        default_mode: shard::Durability::Fsync as i32,
        ..Default::default()
    };
    for wrong in [u64::MAX, 1 << 33] {
        assert_eq!(code(shard.set_modes(modes(wrong)).await), Code::InvalidArgument, "{wrong}");
    }
    let taken = shard.set_modes(modes(7)).await.unwrap().into_inner();
    assert_eq!((taken.generation, taken.unmet.len()), (7, 0));
    let range = shard::KeyRange { key: "/registry/pods/".into(), range_end: "/registry/pods0".into() };
    let unit = shard::Unit { range: Some(range), ..Default::default() };
    let by = |id, term| Some(shard::UnitMove { r#move: id, term, unit: Some(unit.clone()) });
    for (id, term) in [(1, u64::MAX), (u64::MAX, 1)] {
        let freeze = shard::FreezeRequest { r#move: by(id, term), generation: 0 };
        assert_eq!(code(units.freeze(freeze).await), Code::InvalidArgument, "{id} {term}");
    }
    let release = shard::ReleaseRequest { r#move: by(1, 1), epoch: u64::MAX };
    assert_eq!(code(units.release(release).await), Code::InvalidArgument);
    running.stop().await;
}
