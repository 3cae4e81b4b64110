//! etcd's API as a client sees it: checks, limits, streams of ranges, leases, alarms, the end of a process.

use crate::common::*;
use bytes::Bytes;
use kindred_proto::{
    etcdserverpb::{
        self as pb, cluster_client::ClusterClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, request_op::Request, response_op,
    },
    raw::kv::k_v_client::KVClient,
};
use kindred_shard::config::Options;
use kindred_wire::error::EtcdError;
use prost::Message as _;
use tonic::{Code, Status};

fn is(status: &Status, error: EtcdError) {
    assert_eq!(status.message(), error.message());
    assert_eq!(status.code() as i32, i32::from(error.grpc_code().number()));
}

#[tokio::test]
async fn requests_are_checked_as_etcd_checks_them() {
    let shard = Shard::with(Options { max_txn_ops: Some(3), ..Options::default() }).await;
    let client = shard.client().await;
    is(&client.range(range_request("", "")).await.unwrap_err(), EtcdError::EmptyKey);
    let odd = pb::RangeRequest { sort_order: 9, ..range_request("a", "") };
    is(&client.range(odd).await.unwrap_err(), EtcdError::InvalidSortOption);
    let put = |request: pb::PutRequest| client.put_request(request);
    is(&put(put_request("", "v")).await.unwrap_err(), EtcdError::EmptyKey);
    let request = pb::PutRequest { ignore_value: true, ..put_request("a", "v") };
    is(&put(request).await.unwrap_err(), EtcdError::ValueProvided);
    let request = pb::PutRequest { ignore_lease: true, lease: 5, ..put_request("a", "v") };
    is(&put(request).await.unwrap_err(), EtcdError::LeaseProvided);
    let request = pb::PutRequest { ignore_value: true, ..put_request("missing", "") };
    is(&put(request).await.unwrap_err(), EtcdError::KeyNotFound);
    let request = pb::PutRequest { lease: 5, ..put_request("a", "v") };
    is(&put(request).await.unwrap_err(), EtcdError::LeaseNotFound);
    is(&client.delete("", "").await.unwrap_err(), EtcdError::EmptyKey);

    let txn = |success| client.txn(pb::TxnRequest { compare: vec![], success, failure: vec![] });
    is(&txn(vec![put_op("a", "1"), put_op("a", "2")]).await.unwrap_err(), EtcdError::DuplicateKey);
    let many = (0..4).map(|i| put_op(&i.to_string(), "v")).collect();
    is(&txn(many).await.unwrap_err(), EtcdError::TooManyOps);
    is(&txn(vec![pb::RequestOp { request: None }]).await.unwrap_err(), EtcdError::KeyNotFound);
    let current = client.put("a", "1").await;
    is(&client.compact(current + (1 << 40), false).await.unwrap_err(), EtcdError::FutureRevision);
    client.compact(current, true).await.unwrap();
    is(&client.compact(current, false).await.unwrap_err(), EtcdError::Compacted);
}

#[tokio::test]
async fn sizes_are_limited_as_in_etcd() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    const LIMIT: usize = 1_572_864;
    let error = client.put_request(put_request("a", vec![0; LIMIT])).await.unwrap_err();
    is(&error, EtcdError::RequestTooLarge);
    client.put("a", vec![0; LIMIT - 64]).await;
    let error = client.put_request(put_request("a", vec![0; LIMIT + (512 << 10)])).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    let expected =
        format!("grpc: received message larger than max ({} vs. {})", LIMIT + (512 << 10) + 8, 2_097_152);
    assert_eq!(error.message(), expected);
}

#[tokio::test]
async fn ranges_that_are_long_and_their_streams_agree() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    for key in 0..1500 {
        client.put(format!("/registry/pods/ns/{key:05}"), format!("{}", 1500 - key)).await;
    }
    let all = || range_request("/registry/pods/", "/registry/pods0");
    let whole = client.range(all()).await.unwrap();
    assert_eq!((whole.kvs.len(), whole.count, whole.more), (1500, 1500, false));
    assert!(whole.kvs.is_sorted_by_key(|kv| kv.key.clone()));

    let chunks = client.range_stream(all()).await.unwrap();
    assert!(chunks.len() > 1);
    let (last, rest) = chunks.split_last().unwrap();
    assert!(rest.iter().all(|chunk| chunk.header.is_none() && chunk.count == 0 && !chunk.kvs.is_empty()));
    assert_eq!((last.header, last.count, last.more), (whole.header, 1500, false));
    let kvs: Vec<_> = chunks.iter().flat_map(|chunk| chunk.kvs.clone()).collect();
    assert_eq!(kvs, whole.kvs);

    let limited = client.range_stream(pb::RangeRequest { limit: 700, ..all() }).await.unwrap();
    let last = limited.last().unwrap();
    assert_eq!((last.more, last.count), (true, 1500));
    assert_eq!(limited.iter().map(|chunk| chunk.kvs.len()).sum::<usize>(), 700);
    let limited = client.range(pb::RangeRequest { limit: 700, ..all() }).await.unwrap();
    assert_eq!((limited.kvs.len(), limited.count, limited.more), (700, 1500, true));

    let counted = client.range(pb::RangeRequest { count_only: true, limit: 1, ..all() }).await.unwrap();
    assert_eq!((counted.kvs.len(), counted.count, counted.more), (0, 1500, false));

    let by_mod = pb::RangeRequest { sort_order: 2, sort_target: 3, limit: 3, keys_only: true, ..all() };
    let sorted = client.range(by_mod.clone()).await.unwrap();
    assert_eq!(sorted.kvs[0].key, "/registry/pods/ns/01499");
    assert!(sorted.more && sorted.count == 1500 && sorted.kvs.iter().all(|kv| kv.value.is_empty()));
    is(&client.range_stream(by_mod).await.unwrap_err(), EtcdError::RangeStreamSortOrder);
    keys_only_answers_come_from_an_index(&shard, &client).await;
    let newer = pb::RangeRequest { min_mod_revision: whole.kvs[1400].mod_revision, ..all() };
    let filtered = client.range(newer.clone()).await.unwrap();
    assert_eq!((filtered.kvs.len(), filtered.count, filtered.more), (100, 1500, false));
    is(&client.range_stream(newer).await.unwrap_err(), EtcdError::RangeStreamRevisionFilter);
    let counted = client.range_stream(pb::RangeRequest { count_only: true, ..all() }).await.unwrap();
    assert!(counted.len() == 1 && counted[0].count == 1500 && counted[0].kvs.is_empty());
    assert_eq!(shard.running.handle.inspect(|core| core.open_counts().0).await.unwrap(), 0);
}

/// etcd answers `keys_only` without looking at the stored values, so without leases, unless it sorts by value.
async fn keys_only_answers_come_from_an_index(shard: &Shard, client: &Client) {
    let mut leases = LeaseClient::new(shard.channel().await);
    let lease = leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 0 }).await.unwrap().into_inner().id;
    client.put_request(pb::PutRequest { lease, ..put_request("leased", "v") }).await.unwrap();
    let keys_only =
        |sort_target| pb::RangeRequest { keys_only: true, sort_target, ..range_request("leased", "leased0") };
    for (sort_target, expected) in [(0, 0), (3, 0), (4, lease)] {
        let request = keys_only(sort_target);
        assert_eq!(client.range(request.clone()).await.unwrap().kvs[0].lease, expected);
        assert_eq!(client.range_stream(request.clone()).await.unwrap()[0].kvs[0].lease, expected);
        let nested = vec![op(Request::RequestRange(request))];
        let answer = client.txn(pb::TxnRequest { success: nested, ..Default::default() }).await.unwrap();
        let Some(response_op::Response::ResponseRange(range)) = &answer.responses[0].response else {
            panic!()
        };
        assert_eq!((range.kvs[0].lease, range.kvs[0].value.len()), (expected, 0));
    }
    client.delete("leased", "").await.unwrap();
}

#[tokio::test]
async fn watches_fragment_filter_cancel_and_refuse() {
    let shard = Shard::dense().await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    let chosen = pb::WatchCreateRequest { watch_id: 42, prev_kv: true, ..watch_prefix("p/", 0) };
    assert_eq!(watcher.create(chosen.clone()).await.watch_id, 42);
    let refused = watcher.create(chosen).await;
    assert!(refused.canceled && refused.watch_id == -1);
    assert_eq!(refused.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    let empty = pb::WatchCreateRequest { range_end: Bytes::from_static(b"a"), ..watch_prefix("p/", 0) };
    assert_eq!(watcher.create(empty).await.cancel_reason, "mvcc: watcher range is empty");
    let negative = watcher.create(watch_prefix("p/", -1)).await;
    assert_eq!(negative.cancel_reason, EtcdError::Compacted.message());
    // Inside a txn such a revision is as good as none while nothing is compacted, as in etcd.
    let of = |revision| pb::RangeRequest { revision, ..range_request("q", "") };
    let nested = |revision| vec![op(Request::RequestRange(of(revision)))];
    client.put("q", "").await;
    let answer = client.txn(pb::TxnRequest { success: nested(-1), ..Default::default() }).await.unwrap();
    let Some(response_op::Response::ResponseRange(range)) = &answer.responses[0].response else { panic!() };
    assert_eq!(range.count, 1);
    let refused = client.txn(pb::TxnRequest { success: nested(-2), ..Default::default() }).await;
    is(&refused.unwrap_err(), EtcdError::Compacted);

    client.put("p/a", "1").await;
    client.put("p/a", "2").await;
    let events = watcher.events(2).await;
    assert!(events[0].prev_kv.is_none());
    assert_eq!(events[1].prev_kv.as_ref().unwrap().value, "1");
    watcher.cancel(42).await;
    let canceled = watcher.next().await;
    assert!(canceled.canceled && canceled.watch_id == 42 && canceled.compact_revision == 0);
    watcher.cancel(43).await;
    watcher.silent().await;

    // A watch that starts in the future sends nothing before its start.
    let now = client.put("p/a", "3").await;
    watcher.create(watch_prefix("p/", now + 3)).await;
    client.put("p/a", "4").await;
    client.put("p/a", "5").await;
    watcher.silent().await;
    client.put("p/a", "6").await;
    assert_eq!(watcher.events(1).await[0].kv.as_ref().unwrap().value, "6");

    let mut deletes = client.watch().await;
    let no_puts = pb::WatchCreateRequest { filters: vec![0], ..watch_prefix("p/", 0) };
    deletes.create(no_puts).await;
    client.put("p/b", "1").await;
    client.delete("p/", "p0").await.unwrap();
    assert!(deletes.events(2).await.iter().all(|event| event.r#type == 1));
}

#[tokio::test]
async fn one_revision_in_fragments() {
    let shard = Shard::dense().await;
    let client = shard.client().await;
    let value = "x".repeat(1 << 20);
    for key in ["p/a", "p/b", "p/c", "p/d"] {
        client.put(key, &value).await;
    }
    let mut watcher = client.watch().await;
    let request = pb::WatchCreateRequest { fragment: true, prev_kv: true, ..watch_prefix("p/", 0) };
    watcher.create(request).await;
    client.delete("p/", "p0").await.unwrap();
    let mut fragments = Vec::new();
    loop {
        let answer = watcher.next().await;
        assert!(prost::Message::encoded_len(&answer) < 2_097_152);
        fragments.push((answer.events.len(), answer.fragment));
        if !answer.fragment {
            break;
        }
    }
    assert_eq!(fragments.iter().map(|(events, _)| events).sum::<usize>(), 4);
    assert!(fragments.len() > 1);
}

#[tokio::test]
async fn leases_expire_with_a_delete_event() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut leases = LeaseClient::new(client.channel.clone());
    let granted = leases.lease_grant(pb::LeaseGrantRequest { ttl: 1, id: 0 }).await.unwrap().into_inner();
    assert_eq!(granted.ttl, 2, "etcd's shortest");
    assert!(granted.id > 0 && granted.id & 1023 == 1, "the own slot in the low bits");
    let other = leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 7 }).await.unwrap().into_inner();
    let again = leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 7 }).await.unwrap_err();
    is(&again, EtcdError::LeaseExists);

    let mut watcher = client.watch().await;
    watcher.create(watch_prefix("/registry/events/", 0)).await;
    for (key, lease) in [("/registry/events/a", granted.id), ("/registry/events/b", other.id)] {
        client.put_request(pb::PutRequest { lease, ..put_request(key, "v") }).await.unwrap();
    }
    watcher.events(2).await;
    let view = pb::LeaseTimeToLiveRequest { id: other.id, keys: true };
    let view = leases.lease_time_to_live(view).await.unwrap().into_inner();
    assert_eq!((view.granted_ttl, view.keys), (60, vec![Bytes::from_static(b"/registry/events/b")]));

    let deleted = watcher.events(1).await;
    assert_eq!(
        (deleted[0].r#type, &deleted[0].kv.as_ref().unwrap().key[..]),
        (1, &b"/registry/events/a"[..])
    );
    let requests = [granted.id, other.id].map(|id| pb::LeaseKeepAliveRequest { id });
    let mut alive = leases.lease_keep_alive(tokio_stream::iter(requests)).await.unwrap().into_inner();
    assert_eq!(alive.message().await.unwrap().unwrap().ttl, 0, "expired");
    assert_eq!(alive.message().await.unwrap().unwrap().ttl, 60);
    let gone = pb::LeaseTimeToLiveRequest { id: granted.id, keys: false };
    assert_eq!(leases.lease_time_to_live(gone).await.unwrap().into_inner().ttl, -1);

    leases.lease_revoke(pb::LeaseRevokeRequest { id: other.id }).await.unwrap();
    assert_eq!(watcher.events(1).await[0].r#type, 1);
    let revoked = leases.lease_revoke(pb::LeaseRevokeRequest { id: other.id }).await.unwrap_err();
    is(&revoked, EtcdError::LeaseNotFound);
}

#[tokio::test]
async fn alarms_refuse_what_etcd_refuses() {
    let shard = Shard::with(Options { quota_backend_bytes: Some(200_000), ..Options::default() }).await;
    let client = shard.client().await;
    let mut maintenance = MaintenanceClient::new(client.channel.clone());
    client.put("a", vec![0; 100_000]).await;
    let error = client.put_request(put_request("b", vec![0; 100_000])).await.unwrap_err();
    is(&error, EtcdError::NoSpace);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.version, "3.7.0");
    let member = status.header.unwrap().member_id;
    assert_eq!(status.errors, [format!("memberID:{member} alarm:NOSPACE")]);
    is(&client.put_request(put_request("c", "small")).await.unwrap_err(), EtcdError::NoSpace);
    // Reads and deletes are still served.
    assert_eq!(client.range(range_request("a", "")).await.unwrap().kvs.len(), 1);
    assert_eq!(client.delete("a", "").await.unwrap().deleted, 1);
    let clear = pb::AlarmRequest { action: 2, member_id: member, alarm: 1 };
    assert_eq!(maintenance.alarm(clear).await.unwrap().into_inner().alarms.len(), 1);
    client.put("c", "small").await;

    maintenance.alarm(pb::AlarmRequest { action: 1, member_id: 9, alarm: 2 }).await.unwrap();
    is(&client.put_request(put_request("c", "v")).await.unwrap_err(), EtcdError::Corrupt);
    let listed = maintenance.alarm(pb::AlarmRequest::default()).await.unwrap().into_inner().alarms;
    assert_eq!(listed, [pb::AlarmMember { member_id: 9, alarm: 2 }]);
}

#[tokio::test]
async fn the_member_names_itself_and_nested_txns_work() {
    let urls = Some("http://one:1,http://two:2".to_owned());
    let options =
        Options { name: Some("pods".to_owned()), advertise_client_urls: urls, ..Options::default() };
    let shard = Shard::with(options).await;
    let client = shard.client().await;
    let members = ClusterClient::new(client.channel.clone())
        .member_list(pb::MemberListRequest { linearizable: true })
        .await
        .unwrap()
        .into_inner()
        .members;
    assert_eq!(members.len(), 1);
    assert_eq!((members[0].name.as_str(), members[0].client_ur_ls.len()), ("pods", 2));

    let inner = pb::TxnRequest {
        compare: vec![mod_is("a", 0)],
        success: vec![put_op("a", "1"), op(Request::RequestRange(range_request("a", "")))],
        failure: vec![],
    };
    let outer = pb::TxnRequest {
        compare: vec![],
        success: vec![
            op(Request::RequestTxn(inner)),
            op(Request::RequestDeleteRange(delete_request("b", ""))),
        ],
        failure: vec![],
    };
    let answer = client.txn(outer).await.unwrap();
    let Some(pb::response_op::Response::ResponseTxn(nested)) = &answer.responses[0].response else {
        panic!("{answer:?}");
    };
    assert!(nested.succeeded && nested.responses.len() == 2);
    let stored = client.range(range_request("a", "")).await.unwrap();
    assert_eq!(stored.kvs[0].mod_revision, answer.header.unwrap().revision);
}

#[tokio::test]
async fn a_stop_ends_streams_with_unavailable_and_answers_what_came_before() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix("/registry/pods/", 0)).await;
    client.put("/registry/pods/a", "1").await;
    shard.running.drain.begin();
    let mut end = watcher.try_next().await;
    while end.is_ok() {
        end = watcher.try_next().await;
    }
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    drop((client, watcher));
    tokio::time::timeout(PATIENCE, shard.running.finish()).await.expect("in time").unwrap();
}

/// A put nested in this many txns, as bytes: prost cannot read such an answer either.
fn nested_put(depth: usize, key: &str) -> Bytes {
    let mut txn = pb::TxnRequest { success: vec![put_op(key, "v")], ..Default::default() }.encode_to_vec();
    // The bytes are written from the end to the beginning.
    txn.reverse();
    for _ in 0..depth {
        for tag in [4 << 3 | 2, 2 << 3 | 2] {
            let mut head = vec![tag];
            prost::encoding::encode_varint(txn.len() as u64, &mut head);
            txn.extend(head.iter().rev());
        }
    }
    txn.reverse();
    txn.into()
}

/// etcd accepts as many levels as there may be operations, as each level has one. A deeper txn does not end the
/// process.
#[tokio::test]
async fn f38_txns_are_nested_as_deep_as_etcd_takes_them() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut kv = KVClient::new(client.channel.clone());
    for depth in [0, 49, 50, 100, 127] {
        let key = format!("/registry/pods/{depth}");
        kv.txn(nested_put(depth, &key)).await.unwrap_or_else(|refused| panic!("{depth}: {refused:?}"));
        assert_eq!(client.range(range_request(&key, "")).await.unwrap().kvs[0].value, "v", "{depth}");
    }
    for depth in [128, 256, 257, 1000, 10_000, 150_000] {
        let refused = kv.txn(nested_put(depth, "k")).await.unwrap_err();
        assert_eq!(refused.message(), EtcdError::TooManyOps.message(), "{depth}");
    }
    shard.stop().await;

    // A higher limit of operations allows more levels, up to what every stack has room for.
    let shard = Shard::with(Options { max_txn_ops: Some(5000), ..Options::default() }).await;
    let mut kv = KVClient::new(shard.channel().await);
    kv.txn(nested_put(256, "k")).await.unwrap();
    let refused = kv.txn(nested_put(257, "k")).await.unwrap_err();
    assert_eq!(refused.message(), EtcdError::TooManyOps.message());
    shard.stop().await;
}
