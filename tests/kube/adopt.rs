//! A cluster on a stock etcd goes to kindred and leaves it again for another etcd. Its apiservers are pointed there one by
//! one, and both ways are in use at once. Nothing else is restarted, no object is lost or changed. Other clients of the etcd
//! come along: leaders stay leaders, who waits stays in the queue, and leases that are renewed live.
//!
//! `KINDRED_ADOPT_OBJECTS` sets the number of objects; `make test ONLY=kubernetes_adopts` runs it.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl::{self, Output},
    kube::{Apiserver, ClusterFiles},
    kube_client::{KubeClient, full_name, items},
    process::our_binary,
    scenario::{env_number, report, wait_for},
    servers::{Etcd, Up},
};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::kube::{
    busy::{Busy, Object},
    objects::{
        NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection, configmap, event, namespace, node, node_lease,
        pod, secret, widget, widget_definition,
    },
    strangers::Strangers,
};

/// The number of objects, unless the environment says otherwise.
const OBJECTS: u64 = 350;
/// How many are created at a time.
const AT_ONCE: usize = 8;
const EVENT_LIMIT: Duration = Duration::from_secs(30);
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// The changes that are made before and after a step.
const SOME: u64 = 50;
const WIDGETS: &str = "/apis/example.com/v1/widgets";
const COLLECTIONS: [&str; 11] = [
    "/api/v1/namespaces",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/nodes",
    "/api/v1/events",
    "/api/v1/pods",
    "/api/v1/services",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    NODE_LEASES,
    WIDGETS,
];
/// The Kinds that move out to a shard of their own.
const KINDS: [&str; 4] = ["events", "leases", "nodes", "pods"];
const HOME: &str = NAMESPACES[0];

/// All objects that nobody changes, without their resourceVersions.
async fn all(client: &KubeClient) -> anyhow::Result<BTreeMap<String, Value>> {
    // An apiserver that has just begun serves custom resources a little later.
    wait_for("the custom resource", STEP_LIMIT, || async {
        Ok((client.get(WIDGETS).await?.status != 404).then_some(()))
    })
    .await?;
    let mut all = BTreeMap::new();
    for path in COLLECTIONS {
        let list = client.read(path).await?;
        for object in items(&list)? {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"].take();
            all.insert(format!("{path} {}", full_name(&object)), object);
        }
    }
    all.retain(|name, _| !name.contains("busy-"));
    Ok(all)
}

/// Creates the objects, in equal parts: configmaps, secrets, pods, events with a TTL, nodes, leases and custom resources.
async fn fill(client: &KubeClient, objects: u64) -> anyhow::Result<()> {
    for name in NAMESPACES {
        client.create("/api/v1/namespaces", &namespace(name)).await?.ok()?;
    }
    client
        .create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &widget_definition())
        .await?
        .ok()?;
    wait_for("the custom resource", STEP_LIMIT, || async {
        Ok((client.get(WIDGETS).await?.status == 200).then_some(()))
    })
    .await?;
    let mut made = Vec::new();
    for at in 0..usize::try_from(objects.div_ceil(7))? {
        let custom = widget(at);
        let of_custom = custom["metadata"]["namespace"].as_str().context("a namespace")?;
        let of_custom = format!("/apis/example.com/v1/namespaces/{of_custom}/widgets");
        made.extend([
            (collection(HOME, "configmaps"), configmap(HOME, &format!("kept-{at:04}"), "value")),
            (collection(HOME, "secrets"), secret(HOME, &format!("secret-{at:04}"))),
            (collection(HOME, "pods"), pod(HOME, &format!("pod-{at:04}"))),
            (collection(HOME, "events"), event(HOME, &format!("event-{at:04}"))),
            (NODE_COLLECTION.to_owned(), node(at)),
            (NODE_LEASES.to_owned(), node_lease(at)),
            (of_custom, custom),
        ]);
    }
    let mut creating = JoinSet::new();
    for (path, object) in made {
        while creating.len() >= AT_ONCE {
            creating.join_next().await.context("one")???;
        }
        let client = client.clone();
        creating.spawn(async move { client.create(&path, &object).await?.ok().map(drop) });
    }
    while let Some(created) = creating.join_next().await {
        created??;
    }
    Ok(())
}

/// The objects that controllers change, one of each Kind that moves, and one that does not.
fn changed() -> Vec<Object> {
    let object = |collection: String, mut object: Value| {
        object["metadata"]["name"] = "busy-one".into();
        Object { collection, object }
    };
    vec![
        object(NODE_COLLECTION.to_owned(), node(0)),
        object(NODE_LEASES.to_owned(), node_lease(0)),
        object(collection(HOME, "pods"), pod(HOME, "busy")),
        object(collection(HOME, "events"), event(HOME, "busy")),
        object(collection(HOME, "configmaps"), configmap(HOME, "busy", "value")),
    ]
}

/// The cluster, and what it was at first.
struct Cluster {
    first: Apiserver,
    second: Apiserver,
    before: BTreeMap<String, Value>,
    yaml: String,
    strangers: Strangers,
}

impl Cluster {
    /// Asserts that everything that nobody changes is as it was at first, for an HTTP client and for kubectl.
    async fn same(&self, what: &str, by: &Apiserver) -> anyhow::Result<()> {
        let now = all(&by.client).await?;
        for (name, object) in &self.before {
            ensure!(now.get(name) == Some(object), "{what}: {name}: {:?}, not {object}", now.get(name));
        }
        ensure!(now.len() == self.before.len(), "{what}: {} objects, not {}", now.len(), self.before.len());
        let yaml = yaml(by).await?;
        ensure!(yaml == self.yaml, "{what}: kubectl shows something else");
        let bytes: usize = now.values().map(|object| object.to_string().len()).sum();
        report(&format!("{what}: {} objects, {bytes} bytes, are equal, and kubectl's YAML is", now.len()));
        Ok(())
    }
}

/// The cluster as kubectl shows it, without the versions, which an etcd that takes keys assigns anew.
async fn yaml(apiserver: &Apiserver) -> anyhow::Result<String> {
    let get =
        ["get", "--all-namespaces", "--output=yaml", "configmaps,secrets,pods,events,nodes,leases,widgets"];
    let shown = apiserver.kubectl.ok(&get, "").await?;
    // What controllers change, and what apiservers renew, is left out.
    let documents = shown.split("\n- apiVersion:");
    let still =
        documents.filter(|text| !["name: busy-", "name: apiserver-"].iter().any(|name| text.contains(name)));
    let lines = still.flat_map(str::lines).filter(|line| !line.contains("resourceVersion:"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Runs a command of kindred.
async fn kindred(up: &Up, words: &[&str]) -> anyhow::Result<Output> {
    let admin = format!("--admin=http://{}", up.admin);
    let mut all = words.to_vec();
    if !words.starts_with(&["leave", "prepare"]) {
        all.push(&admin);
    }
    etcdctl::run(&our_binary("kindred")?, &all, "").await
}

async fn tell(up: &Up, words: &[&str]) -> anyhow::Result<()> {
    report(&format!("$ kindred {}", words.join(" ")));
    let said = kindred(up, words).await?.ok()?;
    report(said.trim_end());
    Ok(())
}

pub async fn run(dir: &Path) -> anyhow::Result<()> {
    let old = Etcd::start(dir, "old").await?;
    let files = ClusterFiles::create(dir)?;
    let flags = vec![format!("--etcd-servers=http://{}", old.address), "--event-ttl=1h".to_owned()];
    let first = Apiserver::start(dir, "apiserver-1", &files, &flags).await?;
    let second = Apiserver::start(dir, "apiserver-2", &files, &flags).await?;
    fill(&first.client, env_number("KINDRED_ADOPT_OBJECTS", OBJECTS)?).await?;
    let (before, yaml) = (all(&first.client).await?, yaml(&first).await?);
    let strangers = Strangers::start(dir, &old.address).await?;
    let mut cluster = Cluster { first, second, before, yaml, strangers };
    cluster.strangers.pass("at the old etcd").await?;
    report(&format!("a stock etcd with {} objects, and two apiservers", cluster.before.len()));

    let up = adopted(dir, &old, &mut cluster).await?;
    let mut busy = Busy::start(&cluster.first.client, changed()).await?;
    moved_out(&up, &mut cluster, &mut busy).await?;
    killed(&up, &mut cluster, &mut busy).await?;
    let (new, endpoint) = left(dir, &up, &mut cluster, &mut busy).await?;
    let outcome = busy.finish().await?;
    report(&format!(
        "changes={} failed_without_a_kill=0 failed_while_killed={} conflicts_of_one_object={}",
        outcome.changes, outcome.failed, outcome.conflicts
    ));
    ensure!(outcome.changes > SOME && outcome.conflicts <= 4, "{outcome:?}");

    // The apiservers go there one by one, and both ways are in use.
    cluster.second.restart(Some(("--etcd-servers", &endpoint))).await?;
    cluster.same("the second apiserver at the new etcd", &cluster.second).await?;
    cluster.same("the first one still at kindred", &cluster.first).await?;
    cluster.first.restart(Some(("--etcd-servers", &endpoint))).await?;
    cluster.strangers.go(&new.address).await?;
    drop(up);
    cluster.same("kindred is gone", &cluster.first).await?;
    let path = collection(HOME, "configmaps");
    cluster.first.client.create(&path, &configmap(HOME, "busy-left", "value")).await?.ok()?;
    // Each of the four is the leader in its turn.
    for _ in 0..4 {
        cluster.strangers.pass("at the new etcd").await?;
    }
    cluster.strangers.finish().await?;
    cluster.first.process.stop().await?;
    cluster.second.process.stop().await?;
    drop(new);
    Ok(())
}

/// One apiserver goes through kindred, the other still to the etcd. Nothing moves until both do.
async fn adopted(dir: &Path, old: &Etcd, cluster: &mut Cluster) -> anyhow::Result<Up> {
    report(&format!("$ kindred adopt --from http://{}", old.address));
    let up = Up::adopt(dir, "kindred", &format!("http://{}", old.address), &[]).await?;
    let through = format!("http://{}", up.address);
    cluster.first.restart(Some(("--etcd-servers", &through))).await?;
    cluster.same("the first apiserver at kindred", &cluster.first).await?;
    cluster.same("the second one still at the etcd", &cluster.second).await?;
    let path = collection(HOME, "configmaps");
    let mut watch = cluster.second.client.watch(&path, None).await?;
    cluster.first.client.create(&path, &configmap(HOME, "busy-both", "ways")).await?.ok()?;
    while !full_name(&watch.change(EVENT_LIMIT).await?.object).contains("busy-both") {}
    drop(watch);
    tell(&up, &["store", "add", "events", "--local"]).await?;
    let refused = kindred(&up, &["move", "events", "--to", "events"]).await?.failed()?;
    ensure!(refused.contains("is being adopted"), "{refused}");
    // The other apiserver renews its Lease directly.
    wait_for("its direct writes", STEP_LIMIT, || async {
        let said = kindred(&up, &["adopt", "status"]).await?.ok()?;
        Ok(said.contains("/apiserver-").then(|| report(said.trim_end())))
    })
    .await?;
    let refused = kindred(&up, &["adopt", "finish", "--timeout=1s"]).await?.failed()?;
    ensure!(refused.contains("point every apiserver at kindred"), "{refused}");
    cluster.second.restart(Some(("--etcd-servers", &through))).await?;
    cluster.strangers.same("beside kindred").await?;
    let refused = kindred(&up, &["adopt", "finish", "--quiet=2s", "--timeout=4s"]).await?.failed()?;
    ensure!(refused.contains("cilium/") || refused.contains("/calico/"), "{refused}");
    cluster.strangers.go(&up.address).await?;
    tell(&up, &["adopt", "finish", "--quiet=12s"]).await?;
    cluster.strangers.pass("through kindred").await?;
    Ok(up)
}

/// Kinds move out while they change.
async fn moved_out(up: &Up, cluster: &mut Cluster, busy: &mut Busy) -> anyhow::Result<()> {
    for kind in KINDS {
        busy.some(SOME).await?;
        if kind != "events" {
            tell(up, &["store", "add", kind, "--local"]).await?;
        }
        tell(up, &["move", kind, "--to", kind]).await?;
        busy.some(SOME).await?;
        cluster.same(&format!("{kind} on a shard"), &cluster.second).await?;
    }
    cluster.strangers.pass("moved out").await?;
    Ok(())
}

/// Shards are killed. What was acknowledged is there.
async fn killed(up: &Up, cluster: &mut Cluster, busy: &mut Busy) -> anyhow::Result<()> {
    // The shard of the events keeps nothing on disk, by default.
    for victim in ["nodes", "pods"] {
        busy.hurt(true);
        up.kill_shard(victim)?;
        report(&format!("$ kill -9 the shard {victim}"));
        wait_for("every store", STEP_LIMIT, || async {
            let (status, _) =
                kindred_tests::admin::Admin::at(&up.admin).ask("GET", "/readyz?verbose", "").await?;
            Ok((status == 200).then_some(()))
        })
        .await?;
        busy.some(SOME * 4).await?;
        busy.hurt(false);
        cluster.same(&format!("{victim} was killed"), &cluster.second).await?;
    }
    cluster.strangers.same("shards were killed").await?;
    Ok(())
}

/// Everything goes to another etcd, after a rehearsal.
async fn left(dir: &Path, up: &Up, cluster: &mut Cluster, busy: &mut Busy) -> anyhow::Result<(Etcd, String)> {
    let prepared = dir.join("prepared.db");
    tell(up, &["leave", "prepare", prepared.to_str().context("a path")?]).await?;
    let new = Etcd::restored(dir, "new", &prepared).await?;
    let endpoint = format!("http://{}", new.address);
    tell(up, &["leave", "--to", &endpoint, "--rehearse"]).await?;
    busy.some(SOME).await?;
    cluster.same("rehearsed", &cluster.second).await?;
    cluster.strangers.pass("rehearsed").await?;
    tell(up, &["leave", "--to", &endpoint]).await?;
    busy.some(SOME).await?;
    cluster.same("all on the new etcd", &cluster.second).await?;
    // A leader that has not begun anew there cannot resign: it compares the create revision that its key had at the old etcd.
    cluster.strangers.same("all on the new etcd").await?;
    Ok((new, endpoint))
}
