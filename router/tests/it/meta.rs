//! Routers with a meta store: one state for all, changes by the admin API, and an unavailable meta store.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::support::{Shard, all_up, direct, kindred, put, router_with};
use kindred_partition_config::ids::Epoch;
use kindred_partition_config::state::ClusterState;
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient};
use kindred_router::meta::{MetaError, Next, STATE};
use kindred_router::run::Bound;
use kindred_transport::Drain;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tonic::transport::Channel;

struct Rig {
    meta: Shard,
    default: Shard,
    pods: Shard,
}

impl Rig {
    fn start() -> Self {
        let binary = kindred();
        let meta = Shard::start_with(&binary, 0, &["--revisions", "dense"]);
        Self { meta, default: Shard::start(&binary, 1), pods: Shard::start(&binary, 4) }
    }

    fn config(&self, mode: &str) -> String {
        format!(
            "default: default\nstores:\n- {{name: default, slot: 1, endpoints: ['{}']}}\n\
             - {{name: pods, slot: 4, endpoints: ['{}']}}\npartitions:\n\
             - {{metadata: {{name: pods}}, resource: pods, serviceGroupId: pods, durability: {mode}}}\n",
            self.default.url(),
            self.pods.url()
        )
    }

    async fn router(&self, mode: &str, flags: &[&str]) -> (Bound, Drain, Channel) {
        let meta = self.meta.url();
        let flags: Vec<&str> = ["--meta", &meta].into_iter().chain(flags.iter().copied()).collect();
        router_with(&self.config(mode), &flags).await
    }
}

async fn send(bound: &Bound, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(bound.admin.trim_start_matches("http://")).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The status code and the body of an answer.
async fn raw(bound: &Bound, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = send(bound, method, path, headers, body).await;
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(60), stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn ask(bound: &Bound, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (code, text) = raw(bound, method, path, "", &body).await;
    (code, serde_json::from_str(&text).unwrap())
}

const CONFIGS: &str = "/api/v1/datapartitionconfigs";
const GROUPS: &str = "/api/v1/servicegroups";

/// Waits until this router's state has the revision.
async fn reached(bound: &Bound, revision: u64) {
    let mut states = bound.app.keeper.cluster.states();
    let reached = states.wait_for(|state| state.revision >= revision);
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the change arrives").unwrap();
}

/// Waits until meta is followed, so that changes are possible.
async fn followed(bound: &Bound) {
    let meta = bound.app.keeper.cluster.meta.clone().unwrap();
    tokio::time::timeout(Duration::from_secs(60), async {
        while meta.problem().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("meta is followed");
}

/// A router reads the state to change it, and learns of a newer one before it handles the answer: that is no lost data.
#[tokio::test]
async fn a_state_that_is_newer_than_an_answer_on_its_way_is_read_again() {
    let rig = Rig::start();
    let ((a, _drain_a, _kv_a), (b, _drain_b, _kv_b)) =
        tokio::join!(rig.router("none", &[]), rig.router("none", &[]));
    followed(&a).await;
    followed(&b).await;
    let next = |state: &ClusterState| {
        let mut next = state.clone();
        next.revision += 1;
        Ok::<_, MetaError>(Next::from(next))
    };
    let mut changing = std::pin::pin!(a.app.keeper.change(next));
    let asks = poll_fn(|context| Poll::Ready(changing.as_mut().poll(context).is_pending())).await;
    assert!(asks, "it waits for meta's answer");
    // Answers of one connection come in order, so the first one has come too, but is not handled yet.
    a.app.keeper.cluster.meta.as_ref().unwrap().client.get(STATE).await.unwrap();
    let faster = b.app.keeper.change(next).await.unwrap();
    reached(&a, faster.revision).await;
    let changed = changing.await.expect("meta has lost nothing");
    assert_eq!(changed.revision, faster.revision + 1);
}

#[tokio::test]
async fn racing_routers_go_by_one_state_and_see_the_same_changes() {
    let rig = Rig::start();
    // Each router brings another configuration; one of them becomes the cluster's.
    let ((a, _drain_a, kv_a), (b, _drain_b, kv_b)) =
        tokio::join!(rig.router("none", &[]), rig.router("buffered", &[]));
    all_up(&a).await;
    all_up(&b).await;
    assert_eq!(a.app.keeper.cluster.state(), b.app.keeper.cluster.state());
    assert_eq!((a.app.routing.load().generation(), b.app.routing.load().generation()), (Epoch(1), Epoch(1)));
    put(&kv_a, "/registry/pods/x/1").await;
    put(&kv_b, "/registry/pods/x/2").await;
    followed(&a).await;
    followed(&b).await;

    // A watch at router b that begins at the list.
    let (code, list) = ask(&b, "GET", CONFIGS, &Value::Null).await;
    assert_eq!(
        (code, list["kind"].as_str(), list["items"].as_array().unwrap().len()),
        (200, Some("DataPartitionConfigList"), 1)
    );
    let from = list["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = send(&b, "GET", &format!("{CONFIGS}?watch=true&resourceVersion={from}"), "", "").await;
    let mut events = BufReader::new(watch).lines();

    // A change of settings moves nothing.
    let mut pods = list["items"][0].clone();
    pods["durability"] = json!("fsync");
    let stale = pods.clone();
    let (code, updated) = ask(&a, "PUT", &format!("{CONFIGS}/pods"), &pods).await;
    assert_eq!((code, &updated["durability"]), (200, &json!("fsync")), "{updated}");
    let (code, conflict) = ask(&b, "PUT", &format!("{CONFIGS}/pods"), &stale).await;
    assert_eq!(
        (code, conflict["reason"].as_str(), conflict["kind"].as_str()),
        (409, Some("Conflict"), Some("Status"))
    );

    // A config that confirms where keys are changes the map, but moves nothing.
    let yaml =
        "kind: DataPartitionConfig\nmetadata: {name: secrets}\nresource: secrets\nserviceGroupId: default\n";
    let (code, made) =
        raw(&a, "POST", CONFIGS, "Content-Type: application/yaml\r\nAccept: application/yaml\r\n", yaml)
            .await;
    assert!(code == 201 && made.contains("serviceGroupId: default"), "{code} {made}");
    assert_eq!(
        ask(&a, "POST", CONFIGS, &json!({"metadata": {"name": "secrets"}, "resource": "secrets"})).await.0,
        409
    );
    let revision = a.app.keeper.cluster.state().revision;
    reached(&b, revision).await;
    assert_eq!(b.app.keeper.cluster.state(), a.app.keeper.cluster.state());
    assert_eq!(b.app.routing.load().generation(), a.app.keeper.cluster.state().generation);

    let mut seen = Vec::new();
    while seen.len() < 2 {
        let line = tokio::time::timeout(Duration::from_secs(60), events.next_line())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        if line.starts_with('{') {
            let event: Value = serde_json::from_str(&line).unwrap();
            seen.push((event["type"].clone(), event["object"]["metadata"]["name"].clone()));
        }
    }
    assert_eq!(seen, [(json!("MODIFIED"), json!("pods")), (json!("ADDED"), json!("secrets"))]);
    let (code, gone) = ask(&b, "GET", &format!("{CONFIGS}?watch=1&resourceVersion=1"), &Value::Null).await;
    assert_eq!((code, gone["reason"].as_str()), (410, Some("Expired")));

    // Errors are reported by field, and nothing changes.
    let wrong = json!({"metadata": {"name": "x"}, "resource": "podz", "serviceGroupId": "nowhere"});
    let (code, status) = ask(&a, "POST", CONFIGS, &wrong).await;
    let causes = status["details"]["causes"].as_array().unwrap();
    let names = |field: &str| causes.iter().any(|cause| cause["field"].as_str().unwrap().contains(field));
    assert!(code == 422 && names("serviceGroupId"), "{status}");
    assert_eq!(a.app.keeper.cluster.state().revision, revision);
    assert_eq!(ask(&a, "GET", &format!("{CONFIGS}/x"), &Value::Null).await.0, 404);

    // A store is added at all routers, gets a slot, changes its address and is removed.
    let third = Shard::start(&kindred(), 2);
    let group = json!({"metadata": {"name": "third"}, "endpoints": ["127.0.0.1:1"]});
    let (code, made) = ask(&a, "POST", GROUPS, &group).await;
    assert_eq!((code, &made["slot"], &made["state"]), (201, &json!(2), &json!("active")), "{made}");
    let mut moved = made;
    moved["endpoints"] = json!([third.url()]);
    assert_eq!(ask(&b, "PUT", &format!("{GROUPS}/third"), &moved).await.0, 200);
    reached(&a, b.app.keeper.cluster.state().revision).await;
    all_up(&a).await;
    all_up(&b).await;
    assert_eq!(a.app.stores.iter().count(), 3);
    let (_, table) = raw(&a, "GET", GROUPS, "Accept: application/json;as=Table\r\n", "").await;
    let table: Value = serde_json::from_str(&table).unwrap();
    assert_eq!((table["kind"].as_str(), &table["rows"][2]["cells"][0]), (Some("Table"), &json!("third")));
    assert_eq!(ask(&b, "DELETE", &format!("{GROUPS}/third"), &Value::Null).await.0, 200);
    assert_eq!(b.app.stores.iter().count(), 2);
    let (code, status) = ask(&b, "DELETE", &format!("{GROUPS}/pods"), &Value::Null).await;
    assert!(code == 422 && status["message"].as_str().unwrap().contains("still owns"), "{status}");
}

#[tokio::test]
async fn traffic_goes_on_while_meta_is_away_and_a_meta_that_lost_its_data_gets_it_back() {
    let mut rig = Rig::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.json");
    let (a, drain_a, kv_a) = rig.router("none", &["--meta-cache", file.to_str().unwrap()]).await;
    let (b, _drain_b, kv_b) = rig.router("none", &[]).await;
    all_up(&a).await;
    all_up(&b).await;
    followed(&a).await;
    followed(&b).await;
    let secrets =
        json!({"metadata": {"name": "secrets"}, "resource": "secrets", "serviceGroupId": "default"});
    assert_eq!(ask(&a, "POST", CONFIGS, &secrets).await.0, 201);
    let before = a.app.keeper.cluster.state();
    reached(&b, before.revision).await;

    rig.meta.kill().await;
    put(&kv_a, "/registry/pods/x/1").await;
    put(&kv_b, "/registry/secrets/x/1").await;
    let nodes = json!({"metadata": {"name": "nodes"}, "resource": "nodes", "serviceGroupId": "default"});
    let (code, status) = ask(&a, "POST", CONFIGS, &nodes).await;
    assert!(code == 503 && status["reason"] == "ServiceUnavailable", "{status}");
    assert_eq!(ask(&b, "GET", CONFIGS, &Value::Null).await.1["items"].as_array().unwrap().len(), 2);

    // The file suffices for a start, and wins over the configuration.
    for _ in 0..1200 {
        if kindred_router::meta::cache::read(&file).unwrap().as_ref() == Some(&*before) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drain_a.kill();
    let (c, _drain_c, kv_c) = rig.router("buffered", &["--meta-cache", file.to_str().unwrap()]).await;
    assert_eq!(c.app.keeper.cluster.state(), before);
    all_up(&c).await;
    put(&kv_c, "/registry/pods/x/2").await;

    // Meta kept its data in memory: the routers write the state back, and changes are possible again.
    rig.meta.again();
    let changed = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let (code, status) = ask(&c, "POST", CONFIGS, &nodes).await;
            match code {
                201 => break status,
                503 => tokio::time::sleep(Duration::from_millis(50)).await,
                other => panic!("{other}: {status}"),
            }
        }
    });
    changed.await.expect("meta is used again");
    reached(&b, before.revision + 1).await;
    assert_eq!(b.app.keeper.cluster.state(), c.app.keeper.cluster.state());
    assert_eq!(b.app.keeper.cluster.state().configs.len(), 3);
}

#[tokio::test]
async fn snapshots_are_found_at_the_path_of_earlier_versions_too() {
    let rig = Rig::start();
    let (bound, _drain, _channel) = rig.router("none", &[]).await;
    for path in ["/api/v1/snapshots/none", "/api/v1/cuts/none"] {
        let (code, status) = ask(&bound, "DELETE", path, &Value::Null).await;
        assert_eq!(code, 404, "{path}");
        assert!(status["message"].as_str().unwrap().contains("is not the name of a snapshot"), "{status}");
    }
}

/// A move's claim is deleted by its holder, whatever happened to its reports.
#[tokio::test]
async fn a_claim_goes_with_its_move_though_the_answer_to_a_report_was_lost() {
    let rig = Rig::start();
    let (bound, _drain, _channel) = rig.router("none", &[]).await;
    all_up(&bound).await;
    followed(&bound).await;
    let (code, made) = ask(&bound, "POST", "/api/v1/move", &json!({"kind": "pods", "to": "default"})).await;
    assert!((200..300).contains(&code), "{code} {made}");
    let wait = |phase: &'static str| {
        let bound = &bound;
        async move {
            for _ in 0..6000 {
                let (_, shown) = ask(bound, "GET", "/api/v1/moves/1", &Value::Null).await;
                if shown["phase"] == phase {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("the move does not come to {phase}");
        }
    };
    wait("Switched").await;
    let mut meta = KvClient::new(direct(&rig.meta).await);
    let get = pb::RangeRequest { key: "/kindred/coordinators/1".into(), ..Default::default() };
    let claim = meta.range(get.clone()).await.unwrap().into_inner().kvs.remove(0);
    assert_ne!(claim.lease, 0, "a claim ends with its router");
    // A report that was written, without its router knowing.
    let report =
        pb::PutRequest { key: claim.key, value: claim.value, lease: claim.lease, ..Default::default() };
    meta.put(report).await.unwrap();
    let (code, asked) = ask(&bound, "POST", "/api/v1/moves/1/complete", &Value::Null).await;
    assert!((200..300).contains(&code), "{code} {asked}");
    wait("Done").await;
    for _ in 0..6000 {
        if meta.range(get.clone()).await.unwrap().into_inner().kvs.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the claim stays");
}
