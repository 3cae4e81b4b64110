//! Objects come back from a backup while an apiserver runs. Its caches and watches receive ordinary events with new
//! revisions.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl,
    kube_client::{KubeClient, Watch, full_name, items, revision},
    process::our_binary,
};
use serde_json::{Value, json};

use crate::kube::{
    cluster::Cluster,
    objects::{NAMESPACES, collection, configmap, namespace},
};

const OBJECTS: usize = 20;
const DELETED: usize = 5;
const EVENT_LIMIT: Duration = Duration::from_secs(30);

/// Runs `kindred` as an operator of this cluster.
pub async fn kindred(cluster: &Cluster, words: &[&str]) -> anyhow::Result<String> {
    let kindred = cluster.kindred().context("a real etcd has no such command")?;
    let admin = format!("https://{}", kindred.up.admin);
    let tls = &kindred.admin_tls;
    let (cert, key) = tls.identity.as_ref().context("an identity")?;
    let ca = tls.trusted_ca_file.as_ref().context("an authority")?;
    let files = [("--cacert", ca), ("--cert", cert), ("--key", key)];
    let files = files.map(|(flag, path)| format!("{flag}={}", path.display()));
    let mut all = vec!["--admin", &admin];
    all.extend(files.iter().map(String::as_str));
    all.extend(words);
    etcdctl::run(&our_binary("kindred")?, &all, "").await?.ok()
}

/// The objects of a list by name, and the list's resourceVersion. The objects have none, because a restore changes it.
async fn listed(client: &KubeClient, path: &str) -> anyhow::Result<(BTreeMap<String, Value>, u64)> {
    let list = client.get(path).await?.ok()?;
    let objects = items(&list)?.iter().map(|object| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"].take();
        (full_name(&object), object)
    });
    Ok((objects.collect(), revision(&list)?))
}

/// Counts the next events of a watch by their type. Each must be above the revision `above`.
async fn changes(watch: &mut Watch, count: usize, above: u64) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut changes = BTreeMap::new();
    for _ in 0..count {
        let event = watch.change(EVENT_LIMIT).await?;
        ensure!(revision(&event.object)? > above, "{}: not above {above}", event.object);
        *changes.entry(event.change).or_insert(0) += 1;
    }
    Ok(changes)
}

fn counts(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
    pairs.iter().map(|(change, count)| ((*change).to_owned(), *count)).collect()
}

/// The ConfigMaps of one namespace are deleted and changed, and a restore brings them back. It leaves those of another
/// namespace as they are.
pub async fn run(cluster: &Cluster, dir: &Path) -> anyhow::Result<()> {
    let client = &cluster.first.client;
    let [home, other, ..] = NAMESPACES;
    for of in [home, other] {
        client.create("/api/v1/namespaces", &namespace(of)).await?.ok()?;
        for at in 0..OBJECTS {
            let made = configmap(of, &format!("kept-{at:02}"), "first");
            client.create(&collection(of, "configmaps"), &made).await?.ok()?;
        }
    }
    let (path, beside) = (collection(home, "configmaps"), collection(other, "configmaps"));
    let backup = dir.join("backup");
    let target = backup.to_str().context("path")?;
    kindred(cluster, &["backup", "--to", target]).await?;
    let old = client.get(&format!("{path}/kept-10")).await?.ok()?;
    let ((before, at), (untouched, _)) = (listed(client, &path).await?, listed(client, &beside).await?);

    let mut watch = client.watch(&path, Some(at)).await?;
    client.merge(&format!("{path}/kept-10"), &json!({ "data": { "value": "second" } })).await?.ok()?;
    for gone in 0..DELETED {
        client.delete(&format!("{path}/kept-{gone:02}")).await?.ok()?;
    }
    client.create(&path, &configmap(home, "younger", "second")).await?.ok()?;
    client.merge(&format!("{beside}/kept-10"), &json!({ "data": { "value": "second" } })).await?.ok()?;
    let seen = changes(&mut watch, DELETED + 2, at).await?;
    cluster.tally.equal(&seen, &counts(&[("ADDED", 1), ("DELETED", DELETED), ("MODIFIED", 1)]), "lost")?;

    let (_, last) = listed(client, &path).await?;
    let words =
        ["restore", target, "--kind", "configmaps", "--namespace", home, "--overwrite", "--delete-extra"];
    kindred(cluster, &words).await?;
    let seen = changes(&mut watch, DELETED + 2, last).await?;
    cluster.tally.equal(
        &seen,
        &counts(&[("ADDED", DELETED), ("DELETED", 1), ("MODIFIED", 1)]),
        "restored",
    )?;
    let (after, now) = listed(client, &path).await?;
    cluster.tally.check(now > last, format_args!("the list's revision {now} is above {last}"))?;
    // The comparison includes UIDs, times and owners.
    cluster.tally.equal(&after, &before, "objects as they were")?;
    let (beside, _) = listed(client, &beside).await?;
    let changed = beside.iter().filter(|(name, object)| untouched.get(*name) != Some(object)).count();
    cluster.tally.equal(&changed, &1, "objects of the other namespace are left as they are")?;
    // A client with the object from before the restore gets a conflict.
    client.replace(&format!("{path}/kept-10"), &old).await?.refused(409)?;
    let again = kindred(cluster, &["restore", target, "--kind", "configmaps", "--namespace", home]).await?;
    cluster.tally.check(again.contains("0 keys restored"), again)
}
