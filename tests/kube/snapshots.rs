//! A snapshot as etcd's tools take it becomes a stock etcd, and an apiserver goes on with that: every object is as it was,
//! with its resourceVersion, so clients' locks and watches go on too.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Context;
use kindred_tests::{
    etcdctl::Etcdctl,
    kube_client::{KubeClient, full_name, items, revision},
    servers::Etcd,
};
use serde_json::{Value, json};

use crate::kube::{
    cluster::{Cluster, Store},
    objects::{NAMESPACES, collection, configmap},
};

/// What nobody writes meanwhile: the apiserver renews its Leases.
const COLLECTIONS: [&str; 6] = [
    "/api/v1/namespaces",
    "/api/v1/configmaps",
    "/api/v1/services",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
];
const EVENT_LIMIT: Duration = Duration::from_secs(30);

/// All objects of these collections, with their resourceVersions.
async fn all(client: &KubeClient) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for path in COLLECTIONS {
        let list = client.get(path).await?.ok()?;
        all.extend(items(&list)?.iter().map(|of| (format!("{path} {}", full_name(of)), of.clone())));
    }
    Ok(all)
}

pub async fn run(cluster: &Cluster, dir: &Path) -> anyhow::Result<()> {
    let Store::Kindred(kindred) = &cluster.store else { return Ok(()) };
    let before = all(&cluster.first.client).await?;
    cluster.tally.check(before.len() > 100, format_args!("{} objects", before.len()))?;
    let at = revision(&cluster.first.client.get(COLLECTIONS[1]).await?.ok()?)?;

    let tls = &kindred.client_tls;
    let (cert, key) = tls.identity.as_ref().context("an identity")?;
    let ca = tls.trusted_ca_file.as_ref().context("an authority")?;
    let files = [("--cacert", ca), ("--cert", cert), ("--key", key)];
    let flags = files.map(|(flag, path)| format!("{flag}={}", path.display()));
    let file = dir.join("snapshot.db");
    let address = format!("https://{}", kindred.up.address);
    let etcdctl = Etcdctl::new(&address).with(&flags);
    etcdctl.ok(&["snapshot", "save", file.to_str().context("a path")?]).await?;

    let etcd = Etcd::restored(dir, "of-snapshot", &file).await?;
    let mut apiserver = cluster.apiserver_on("apiserver-of-snapshot", &etcd).await?;
    cluster.tally.equal(&all(&apiserver.client).await?, &before, "objects of the snapshot")?;
    cluster.tally.add_objects(before.len());

    // A client goes on with what it read before.
    let path = collection(NAMESPACES[0], "configmaps");
    let list = apiserver.client.get(COLLECTIONS[1]).await?.ok()?;
    let now = revision(&list)?;
    cluster.tally.check(now >= at, format_args!("the list's revision {now} is not below {at}"))?;
    let mut watch = apiserver.client.watch(&path, Some(now)).await?;
    let old = format!("{path}/kept-10");
    let mut object = cluster.first.client.get(&old).await?.ok()?;
    object["data"] = json!({ "value": "at the etcd" });
    let replaced = apiserver.client.replace(&old, &object).await?.ok()?;
    cluster.tally.check(revision(&replaced)? > now, "revisions go on")?;
    apiserver.client.create(&path, &configmap(NAMESPACES[0], "new", "at the etcd")).await?.ok()?;
    let seen = [watch.change(EVENT_LIMIT).await?.change, watch.change(EVENT_LIMIT).await?.change];
    cluster.tally.equal(&seen, &["MODIFIED".to_owned(), "ADDED".to_owned()], "events at the etcd")?;
    apiserver.process.stop().await?;
    Ok(())
}
