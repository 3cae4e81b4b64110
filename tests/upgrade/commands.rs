//! What is not traffic: commands of one build at routers of the other, backups, and a state that a router cannot read.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{LeaseGrantRequest, PutRequest, RangeRequest};
use kindred_tests::{
    admin::Admin,
    client::Client,
    etcdctl,
    scenario::{report, wait_for},
};
use serde_json::{Value, json};

use crate::upgrade::{
    builds::{Build, Builds},
    cluster::{Cluster, DEFAULT, LIMIT, PAIR, SINGLE},
};

/// The key of the cluster's state in the meta store.
const STATE: &str = "/kindred/state";
/// A field that no version has.
const LATER: &str = "fieldOfALaterVersion";
/// A Kind of each store.
const PREFIXES: [&str; 4] =
    ["/registry/secrets/", "/registry/deployments/", "/registry/jobs/", "/registry/services/"];

/// stdout of `kindred --admin …` of a build, which must succeed.
async fn kindred(builds: &Builds, build: Build, at: &Admin, words: &[&str]) -> anyhow::Result<String> {
    let admin = format!("http://{}", at.address());
    let all: Vec<&str> = ["--admin", &admin].iter().chain(words).copied().collect();
    let output = etcdctl::run(&builds.program(build)?, &all, "").await?;
    output.ok().with_context(|| format!("kindred {} of the {build:?} build", words.join(" ")))
}

/// A router of each build, and commands of the other at it: what they show, and what they change.
pub async fn work(dir: &Path, builds: &Builds) -> anyhow::Result<()> {
    let cluster = Cluster::start(dir, builds, Build::Previous).await?;
    cluster.routers[1].server.change(Build::Current).await?;
    cluster.in_sync().await?;
    fill(&cluster.routers[0].client, 0).await?;
    let mut stores = [SINGLE, DEFAULT].into_iter();
    for (router, build) in Build::BOTH.into_iter().enumerate() {
        let (at, other) = (&cluster.routers[router].admin, build.other());
        let status = kindred(builds, other, at, &["status"]).await?;
        for store in [DEFAULT, SINGLE, PAIR] {
            ensure!(status.lines().any(|line| line.starts_with(store)), "no store {store}: {status}");
        }
        let to = stores.next().context("a store")?;
        kindred(builds, other, at, &["move", "secrets", "--to", to]).await?;
        kindred(builds, other, at, &["move", "complete"]).await?;
        let get = ["get", "datapartitionconfigs", "secrets", "-o", "json"];
        let shown: Value = serde_json::from_str(&kindred(builds, other, at, &get).await?)?;
        ensure!(shown.to_string().contains(&format!("\"serviceGroupId\":\"{to}\"")), "{shown}");
        let map = kindred(builds, other, at, &["get", "partitions"]).await?;
        ensure!(map.contains("/registry/secrets"), "{map}");
        let said = kindred(builds, other, at, &["store", "failover", PAIR]).await?;
        ensure!(said.contains("is served by"), "{said}");
        cluster.in_sync().await?;
        for router in &cluster.routers {
            ensure!(contents(&router.client).await?.len() == PREFIXES.len(), "keys are lost");
        }
    }
    report("upgrade commands status=2 get=4 move=2 failover=2");
    Ok(())
}

/// A backup that the previous build made of its cluster is restored by this one into a new cluster.
pub async fn back_up(dir: &Path, builds: &Builds) -> anyhow::Result<()> {
    let folders = ["old", "new"].map(|name| dir.join(name));
    for folder in &folders {
        std::fs::create_dir(folder)?;
    }
    let backup = dir.join("backup").display().to_string();
    let before = {
        let old = Cluster::start(&folders[0], builds, Build::Previous).await?;
        let (client, admin) = (&old.routers[0].client, &old.routers[0].admin);
        let granted = client.lease.clone().lease_grant(LeaseGrantRequest { ttl: 6000, id: 0 }).await?;
        fill(client, granted.into_inner().id).await?;
        kindred(builds, Build::Previous, admin, &["backup", "--to", &backup]).await?;
        contents(client).await?
    };
    let new = Cluster::start(&folders[1], builds, Build::Current).await?;
    let admin = &new.routers[0].admin;
    let whole = kindred(builds, Build::Current, admin, &["backup", "verify", &backup]).await?;
    ensure!(whole.contains("whole"), "{whole}");
    kindred(builds, Build::Current, admin, &["restore", &backup]).await?;
    let after = contents(&new.routers[1].client).await?;
    ensure!(before == after && after.len() == PREFIXES.len(), "{before:?} was restored as {after:?}");
    report(&format!("upgrade backup keys={}", after.len()));
    Ok(())
}

/// A state with a field that routers do not know, as a later version may write it: they serve on, say why they do not
/// take it, and take the next that they can read.
pub async fn refuse_a_state(dir: &Path, builds: &Builds) -> anyhow::Result<()> {
    let cluster = Cluster::start(dir, builds, Build::Previous).await?;
    cluster.routers[1].server.change(Build::Current).await?;
    cluster.in_sync().await?;
    let meta = Client::lazy(cluster.meta.url.trim_start_matches("http://"))?;
    let state = RangeRequest { key: STATE.into(), ..Default::default() };
    let known = meta.kv.clone().range(state).await?.into_inner().kvs;
    let known = known.first().context("a state")?.value.clone();
    let mut later: Value = serde_json::from_slice(&known)?;
    later[LATER] = json!(true);
    put(&meta, STATE, later.to_string(), 0).await?;
    for router in 0..cluster.routers.len() {
        wait_for("a router to refuse the state", LIMIT, || async {
            let (_, said) = cluster.readyz(router).await?;
            Ok(said.lines().any(|line| line.contains("meta") && line.contains(LATER)).then_some(()))
        })
        .await?;
        let (code, said) = cluster.readyz(router).await?;
        ensure!(code == 200, "router {router} is not ready: {said}");
        fill(&cluster.routers[router].client, 0).await?;
        ensure!(contents(&cluster.routers[router].client).await?.len() == PREFIXES.len(), "keys are lost");
        let path = "/api/v1/datapartitionconfigs/secrets";
        let config = cluster.routers[router].admin.ok("GET", path, &json!({})).await?;
        let (code, said) = cluster.routers[router].admin.ask("PUT", path, &config.to_string()).await?;
        ensure!(code >= 400 && said.contains(LATER), "a change is to be refused: {code} {said}");
    }
    // One that starts now does not know where keys are, and says why it ends.
    cluster.routers[0].server.stop().await?;
    let log = dir.join("router-one.err.log");
    wait_for("a router that does not start", LIMIT, || async {
        let text = std::fs::read_to_string(&log)?;
        let refused =
            |line: &str| line.contains(&format!("{STATE} in the meta store")) && line.contains(LATER);
        Ok(text.lines().any(refused).then_some(()))
    })
    .await?;
    put(&meta, STATE, known, 0).await?;
    cluster.routers[0].server.is_of(Build::Previous).await?;
    for router in 0..cluster.routers.len() {
        wait_for("a router to take the state", LIMIT, || async {
            let (code, said) = cluster.readyz(router).await?;
            Ok((code == 200 && !said.contains(LATER)).then_some(()))
        })
        .await?;
        let path = "/api/v1/datapartitionconfigs/secrets";
        let mut config = cluster.routers[router].admin.ok("GET", path, &json!({})).await?;
        config["historyMax"] = json!(format!("{}m", router + 10));
        cluster.routers[router].admin.ok("PUT", path, &config).await?;
        let other = &cluster.routers[1 - router].admin;
        wait_for("the change at the other router", LIMIT, || async {
            let shown = other.ok("GET", path, &json!({})).await?;
            Ok((shown["historyMax"] == config["historyMax"]).then_some(()))
        })
        .await?;
    }
    report("upgrade state refused=3 taken=2");
    Ok(())
}

async fn put(client: &Client, key: &str, value: impl Into<Bytes>, lease: i64) -> anyhow::Result<()> {
    let put = PutRequest { key: key.to_owned().into(), value: value.into(), lease, ..Default::default() };
    client.kv.clone().put(put).await.with_context(|| format!("a write of {key}"))?;
    Ok(())
}

/// Writes a key of each Kind.
async fn fill(client: &Client, lease: i64) -> anyhow::Result<()> {
    for prefix in PREFIXES {
        put(client, &format!("{prefix}default/one"), "value", lease).await?;
    }
    Ok(())
}

/// The value and the lease of each key.
async fn contents(client: &Client) -> anyhow::Result<BTreeMap<Bytes, (Bytes, i64)>> {
    let mut found = BTreeMap::new();
    for prefix in PREFIXES {
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let all = RangeRequest { key: prefix.into(), range_end: end.into(), ..Default::default() };
        let kvs = client.kv.clone().range(all).await?.into_inner().kvs;
        found.extend(kvs.into_iter().map(|kv| (kv.key, (kv.value, kv.lease))));
    }
    Ok(found)
}
