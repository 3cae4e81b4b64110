//! R1: a store stays the one of its first handshake, and a cluster keeps its lineage.

use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::{Shard, all_up, direct, kindred, put, router_with};
use kindred_partition_config::ids::StoreName;
use kindred_partition_config::state::ClusterState;
use kindred_proto::etcdserverpb as pb;
use kindred_router::meta::{MetaError, STATE, cache};
use kindred_router::run::Bound;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::Channel;
use tonic::{Code, Status};

const PATIENCE: Duration = Duration::from_secs(30);

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{what} in time"));
}

fn word(bound: &Bound, name: &str) -> &'static str {
    bound.app.stores.iter().find(|store| store.name() == name).unwrap().state().phase().word()
}

async fn refused_put(channel: &Channel, key: &str) -> Status {
    let request = pb::PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() };
    pb::kv_client::KvClient::new(channel.clone()).put(request).await.unwrap_err()
}

async fn get(bound: &Bound, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(bound.admin.trim_start_matches("http://")).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn two(first: &str, second: &str, pods: &str) -> String {
    format!(
        "default: a\nstores:\n- {{name: a, slot: 1, endpoints: ['{first}']}}\n\
         - {{name: b, slot: 2, endpoints: ['{second}']}}\npartitions:\n\
         - {{metadata: {{name: pods}}, resource: pods, serviceGroupId: b, durability: {pods}}}\n"
    )
}

#[tokio::test]
async fn f02_an_emptied_store_is_not_routed_to_and_everybody_is_told() {
    let stores = [Fake::start(1).await, Fake::start(2).await];
    stores.iter().zip(["ua", "ub"]).for_each(|(store, uuid)| store.be(uuid, false));
    let (bound, _drain, channel) = router_with(&two(&stores[0].url, &stores[1].url, "fsync"), &[]).await;
    all_up(&bound).await;
    assert!(get(&bound, "/readyz").await == "ok");
    // Another process at the address, also in its first incarnation.
    stores[1].be("uc", false);
    until("b is foreign", || word(&bound, "b") == "foreign").await;
    let told = stores[1].modes().len();
    let refused = refused_put(&channel, "/registry/pods/x").await;
    assert_eq!(refused.code(), Code::Unavailable);
    for part in ["store b is ub, and uc", "emptied", "kindred store replace b --endpoint URL --force"] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    let stores_shown: Value = serde_json::from_str(&get(&bound, "/api/v1/stores").await).unwrap();
    let shown = &stores_shown["stores"][1];
    assert_eq!((&shown["state"], &shown["uuid"]), (&"foreign".into(), &"ub".into()), "{shown}");
    assert!(shown["lastError"].as_str().unwrap().contains("old data folder"), "{shown}");
    for path in ["/readyz", "/readyz?verbose"] {
        let ready = get(&bound, path).await;
        assert!(
            ready.contains("[!]store-b foreign: store b is ub") && !ready.contains("store-b ok"),
            "{ready}"
        );
    }
    assert_eq!(word(&bound, "a"), "up", "the others serve");
    assert_eq!(stores[1].modes().len(), told, "it is told nothing");
    // The store with its old folder again.
    stores[1].be("ub", false);
    all_up(&bound).await;
    assert_eq!(get(&bound, "/readyz").await, "ok");
}

#[tokio::test]
async fn f02_a_store_in_memory_comes_back_empty_only_where_nothing_is_to_be_kept() {
    for (durability, expected) in [("none", "up"), ("buffered", "foreign"), ("fsync", "foreign")] {
        let stores = [Fake::start(1).await, Fake::start(2).await];
        stores[0].be("ua", false);
        stores[1].be("ub", true);
        let (bound, _drain, _) = router_with(&two(&stores[0].url, &stores[1].url, durability), &[]).await;
        all_up(&bound).await;
        let ready = get(&bound, "/readyz").await;
        assert_eq!(ready.contains("has no --data-dir"), durability != "none", "{durability}: {ready}");
        let told = stores[1].modes().len();
        stores[1].be("uc", true);
        match expected {
            // It was told the modes in each incarnation, although both are the first incarnation of a store.
            "up" => {
                until("told again", || stores[1].modes().len() > told).await;
                until("up", || word(&bound, "b") == "up").await;
                assert_eq!(stores[1].meant().1, "uc");
            }
            _ => until("foreign", || word(&bound, "b") == expected).await,
        }
    }
}

#[tokio::test]
async fn f51_a_store_that_cannot_write_its_log_is_told_of() {
    let stores = [Fake::start(1).await, Fake::start(2).await];
    let (bound, _drain, _) = router_with(&two(&stores[0].url, &stores[1].url, "fsync"), &[]).await;
    all_up(&bound).await;
    let trouble =
        |name: &str| bound.app.stores.iter().find(|store| store.name() == name).unwrap().trouble().is_some();
    stores[1].say_trouble("cannot write its log of mode fsync: see its disk");
    until("trouble", || trouble("b")).await;
    let ready = get(&bound, "/readyz").await;
    assert!(ready.contains("[!]store-b up, and cannot write its log of mode fsync"), "{ready}");
    assert!(!trouble("a") && get(&bound, "/health").await.contains("\"health\":\"true\""));
    stores[1].say_trouble("");
    until("no trouble", || !trouble("b")).await;
}

struct Rig {
    meta: Shard,
    stores: [Shard; 2],
}

impl Rig {
    fn start() -> Self {
        let binary = kindred();
        let meta = Shard::start_with(&binary, 0, &["--revisions", "dense", "--durability", "fsync"]);
        let store = |slot| Shard::start_with(&binary, slot, &["--durability", "fsync", "--in-cluster"]);
        Self { meta, stores: [store(1), store(2)] }
    }

    fn config(&self) -> String {
        two(&self.stores[0].url(), &self.stores[1].url(), "fsync")
    }

    async fn router(&self, flags: &[&str]) -> (Bound, kindred_transport::Drain, Channel) {
        let meta = self.meta.url();
        let flags: Vec<&str> = ["--meta", &meta].into_iter().chain(flags.iter().copied()).collect();
        router_with(&self.config(), &flags).await
    }

    /// The state in the meta store.
    async fn stored(&self) -> ClusterState {
        let mut meta = pb::kv_client::KvClient::new(direct(&self.meta).await);
        let get = pb::RangeRequest { key: STATE.into(), ..Default::default() };
        let kvs = meta.range(get).await.unwrap().into_inner().kvs;
        ClusterState::from_json(&kvs[0].value).unwrap()
    }
}

fn uuid(state: &ClusterState, name: &str) -> Option<String> {
    state.store(&StoreName(name.to_owned())).unwrap().1.uuid.clone()
}

/// The disk of one of two stores is emptied; later their folders are exchanged.
#[tokio::test]
async fn f02_f50_stores_are_known_by_every_router_and_in_every_life() {
    let mut rig = Rig::start();
    let (a, drain_a, kv_a) = rig.router(&[]).await;
    let (b, _drain_b, kv_b) = rig.router(&[]).await;
    all_up(&a).await;
    all_up(&b).await;
    let state = rig.stored().await;
    assert!(
        uuid(&state, "a").is_some() && uuid(&state, "b").is_some() && uuid(&state, "a") != uuid(&state, "b")
    );
    put(&kv_a, "/registry/pods/x/1").await;

    rig.stores[1].kill().await;
    rig.stores[1].empty();
    rig.stores[1].again();
    for bound in [&a, &b] {
        until("foreign", || word(bound, "b") == "foreign").await;
    }
    // A router that starts at this point has not met the original store.
    drain_a.kill();
    let (c, _drain_c, kv_c) = rig.router(&[]).await;
    until("foreign", || word(&c, "b") == "foreign").await;
    for kv in [&kv_b, &kv_c] {
        let refused = refused_put(kv, "/registry/pods/x/2").await;
        assert!(refused.message().contains("kindred store replace b"), "{refused}");
    }
    put(&kv_c, "/registry/secrets/x/1").await;
    // The emptied store got no reference time, so it serves no client that asks it directly.
    let mut emptied = pb::kv_client::KvClient::new(direct(&rig.stores[1]).await);
    let read = pb::RangeRequest { key: "/registry/pods/x/1".into(), ..Default::default() };
    assert_eq!(emptied.range(read).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(uuid(&rig.stored().await, "b"), uuid(&state, "b"));

    // With exchanged folders neither process starts.
    for store in &mut rig.stores {
        store.kill().await;
    }
    rig.stores[0].exchange_folders(&rig.stores[1]);
    for store in &mut rig.stores {
        store.again();
        assert!(!tokio::time::timeout(PATIENCE, store.ended()).await.unwrap().success());
    }
    rig.stores[0].exchange_folders(&rig.stores[1]);
    rig.stores.iter_mut().for_each(Shard::again);
    until("a is up again", || word(&c, "a") == "up").await;
    until("b is still foreign", || word(&c, "b") == "foreign").await;
}

#[tokio::test]
async fn f03_f36_two_clusters_of_one_configuration_never_touch_each_other() {
    let (one, other) = (Rig::start(), Rig::start());
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let cluster = ["--cluster-id", "0x77"];
    let (a, _drain_a, kv_a) = one.router(&[&cluster[..], &["--meta-cache", &file("a.json")]].concat()).await;
    let (b, _drain_b, kv_b) = other.router(&cluster).await;
    all_up(&a).await;
    all_up(&b).await;
    put(&kv_a, "/registry/pods/x/of-a").await;
    put(&kv_b, "/registry/pods/x/of-b").await;
    // The first cluster's state has higher numbers.
    for store in ["a", "b"] {
        let endpoints = one.stored().await.store(&StoreName(store.to_owned())).unwrap().1.endpoints.clone();
        let moved = |state: &ClusterState| {
            let name = StoreName(store.to_owned());
            let away = state.readdress_store(&name, vec!["127.0.0.1:1".to_owned()])?;
            away.readdress_store(&name, endpoints.clone()).map(Into::into)
        };
        a.app.keeper.change(moved).await.unwrap();
    }
    let newest = a.app.keeper.cluster.state();
    let path = std::path::PathBuf::from(file("a.json"));
    until("the file has it", || cache::read(&path).ok().flatten().as_ref() == Some(&*newest)).await;
    let before = other.stored().await;
    assert!(newest.revision > before.revision && newest.lineage != before.lineage);

    // A second router of the second cluster starts with the first one's file.
    std::fs::copy(file("a.json"), file("c.json")).unwrap();
    let (c, _drain_c, kv_c) =
        other.router(&[&cluster[..], &["--meta-cache", &file("c.json")]].concat()).await;
    all_up(&c).await;
    assert_eq!(c.app.keeper.cluster.state().lineage, before.lineage);
    assert_eq!(other.stored().await, before, "nothing is written over it");
    put(&kv_c, "/registry/pods/x/of-c").await;
    let aside = cache::read(std::path::Path::new(&file("c.json.foreign-1"))).unwrap();
    assert_eq!(aside.as_ref(), Some(&*newest), "the file is put aside");

    // Routers of the second cluster are given an address of the first.
    let lost = format!("a={}", one.stores[0].url());
    let (d, _drain_d, _) = other.router(&[&cluster[..], &["--store", &lost]].concat()).await;
    until("refused", || word(&d, "a") == "refused").await;
    let refused = d.app.stores.iter().next().unwrap().state().reason();
    let lineages = [&newest, &before].map(|state| state.lineage.as_ref().unwrap().to_string());
    assert!(lineages.iter().all(|lineage| refused.contains(lineage)), "{refused}");
    // A router without a meta store belongs to no cluster.
    let (e, _drain_e, _) = router_with(&one.config(), &[]).await;
    until("refused", || word(&e, "a") == "refused").await;
}

#[tokio::test]
async fn f03_a_router_that_began_with_another_clusters_file_uses_no_store() {
    let (mut one, other) = (Rig::start(), Rig::start());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.json");
    let (b, drain_b, _) = other.router(&["--meta-cache", file.to_str().unwrap()]).await;
    all_up(&b).await;
    until("the file", || cache::read(&file).ok().flatten().as_ref() == Some(&*b.app.keeper.cluster.state()))
        .await;
    drain_b.kill();
    let (a, _drain_a, _) = one.router(&[]).await;
    all_up(&a).await;
    let before = one.stored().await;
    // Meta is away when the router starts, and then turns out to be another cluster's.
    one.meta.kill().await;
    let (c, _drain_c, kv_c) = one.router(&["--meta-cache", file.to_str().unwrap()]).await;
    one.meta.again();
    until("no store is used", || ["a", "b"].iter().all(|name| word(&c, name) == "refused")).await;
    let refused = refused_put(&kv_c, "/registry/pods/x/1").await;
    assert!(refused.message().contains("of another cluster"), "{refused}");
    assert!(get(&c, "/readyz").await.contains("check failed"));
    assert_eq!(one.stored().await.lineage, before.lineage);
    let unchanged = |state: &ClusterState| Ok::<_, MetaError>(state.clone().into());
    let error = c.app.keeper.change(unchanged).await.unwrap_err().to_string();
    assert!(error.contains("another cluster's"), "{error}");
}

/// A file of the same cluster overwrites no later change by another router; nor do new addresses.
#[tokio::test]
async fn f51_a_restart_with_other_addresses_loses_nobodys_change() {
    let rig = Rig::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.json");
    let (a, drain_a, _) = rig.router(&["--meta-cache", file.to_str().unwrap()]).await;
    all_up(&a).await;
    until("the file", || cache::read(&file).ok().flatten().as_ref() == Some(&*a.app.keeper.cluster.state()))
        .await;
    drain_a.kill();
    // Meanwhile another router adds a store.
    let (b, _drain_b, _) = rig.router(&[]).await;
    let followed = || b.app.keeper.cluster.meta.as_ref().unwrap().problem().is_none();
    until("followed", followed).await;
    let added = |state: &ClusterState| {
        let store = kindred_partition_config::model::StoreConfig {
            standby: None,
            adopting: false,
            name: StoreName("c".to_owned()),
            slot: None,
            endpoints: vec!["127.0.0.1:1".to_owned()],
            store_type: kindred_partition_config::model::StoreType::Shard,
        };
        state.add_store(store).map(|(next, _)| next.into())
    };
    b.app.keeper.change(added).await.unwrap();
    let [first, second] =
        rig.stores.each_ref().map(|store| format!("unix:///proc/self/root{}", &store.url()[5..]));
    let flags = [format!("--store=a={first}"), format!("--store=b={second}")];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (c, _drain_c, kv) =
        rig.router(&[&flags[..], &["--meta-cache", file.to_str().unwrap()]].concat()).await;
    until("its addresses are known", || {
        let state = b.app.keeper.cluster.state();
        ["a", "b"].iter().all(|name| {
            state.store(&StoreName((*name).to_owned())).unwrap().1.endpoints[0].contains("/proc/self/root")
        })
    })
    .await;
    let state = rig.stored().await;
    assert!(state.store(&StoreName("c".to_owned())).is_some(), "it was lost");
    until("both go by it", || {
        *c.app.keeper.cluster.state() == state && *b.app.keeper.cluster.state() == state
    })
    .await;
    put(&kv, "/registry/pods/x/1").await;
}
