//! Lists in pages during writes, consistent lists, lists from the cache, and lists at a revision.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::Context;
use kindred_router_core::digest::Digest;
use kindred_tests::{
    admin::Admin,
    kube_client::{KubeClient, full_name, items, revision},
};
use serde_json::{Value, json};

use crate::kube::{
    cluster::{Cluster, Tally},
    load::names,
    objects::{
        ALL_PODS, ALL_WIDGETS, NAMESPACES, NODE_COLLECTION, NODES, PODS, WIDGETS, collection, configmap,
        load_pod, pod, spread,
    },
};

pub const PAGE: usize = 7;

pub async fn run(cluster: &Cluster) -> anyhow::Result<()> {
    pages_while_others_write(cluster, &[&cluster.first.client]).await?;
    kubectl_pages(cluster).await?;
    own_writes(cluster, &cluster.first.client, &cluster.first.client).await?;
    digests(cluster).await?;
    at_a_revision(cluster).await
}

/// The digest of a Kind is that of the objects which the apiserver lists at its revision.
async fn digests(cluster: &Cluster) -> anyhow::Result<()> {
    let Some(kindred) = cluster.kindred() else { return Ok(()) };
    let admin = Admin::over_tls(&kindred.up.admin, kindred.admin_tls.clone())?;
    for (kind, path) in [("pods", ALL_PODS), ("nodes", NODE_COLLECTION), ("widgets.example.com", ALL_WIDGETS)]
    {
        let shown = admin.ok("GET", &format!("/api/v1/kinds/{kind}/digest"), &Value::Null).await?;
        let at = shown["revision"].as_i64().context("a revision")?;
        let exactly = format!("{path}?resourceVersion={at}&resourceVersionMatch=Exact");
        let list = cluster.first.client.read(&exactly).await?;
        let mut digest = Digest::default();
        for object in items(&list)? {
            digest.add(full_name(object).as_bytes(), i64::try_from(revision(object)?)?);
        }
        let what = format!("digest of {kind} at {at}");
        cluster.tally.equal(&shown["keys"], &json!(items(&list)?.len()), &what)?;
        cluster.tally.equal(&shown["digest"], &json!(digest.to_hex()), &what)?;
    }
    Ok(())
}

/// Lists a collection in pages, which the clients request in turn. Returns the names in their order.
async fn paged(tally: &Tally, clients: &[&KubeClient], path: &str) -> anyhow::Result<Vec<String>> {
    let mut listed = Vec::new();
    let mut token = String::new();
    let mut at = None;
    let mut remaining: Option<u64> = None;
    for client in clients.iter().cycle() {
        let page = client.get(&format!("{path}?limit={PAGE}&continue={token}")).await?.ok()?;
        tally.add_page();
        let here = items(&page)?;
        tally.check(here.len() <= PAGE, format_args!("{path}: {} on a page of {PAGE}", here.len()))?;
        let same = *at.get_or_insert(revision(&page)?);
        tally.equal(&revision(&page)?, &same, format_args!("{path}: revision of a later page"))?;
        let left = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        if let Some(before) = remaining.replace(left + here.len() as u64) {
            tally.equal(&(left + here.len() as u64), &before, format_args!("{path}: objects left"))?;
        }
        remaining = Some(left);
        listed.extend(here.iter().map(full_name));
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => break,
        }
    }
    tally.equal(&remaining, &Some(0), format_args!("{path}: objects left after the last page"))?;
    let mut sorted = listed.clone();
    sorted.sort();
    sorted.dedup();
    tally.equal(&listed, &sorted, format_args!("{path}: pages in order without doubles"))?;
    Ok(listed)
}

/// Other pods are created, changed and deleted during the list. Each pod that stays is listed once.
pub async fn pages_while_others_write(cluster: &Cluster, clients: &[&KubeClient]) -> anyhow::Result<()> {
    let done = AtomicBool::new(false);
    let read = async {
        let outcome = read_pages(cluster, clients).await;
        done.store(true, Relaxed);
        outcome
    };
    tokio::try_join!(read, churn(cluster, &done))?;
    Ok(())
}

async fn read_pages(cluster: &Cluster, clients: &[&KubeClient]) -> anyhow::Result<()> {
    let tally = &cluster.tally;
    let stable: BTreeSet<String> = (0..PODS).map(|index| full_name(&load_pod(index))).collect();
    for _ in 0..2 {
        let listed: BTreeSet<String> = paged(tally, clients, ALL_PODS).await?.into_iter().collect();
        let missing: Vec<&String> = stable.difference(&listed).collect();
        tally.check(missing.is_empty(), format_args!("pods missing in pages: {missing:?}"))?;
        let strange = listed.difference(&stable).find(|name| !name.contains("-churn-"));
        tally.check(strange.is_none(), format_args!("{strange:?} was never there"))?;
    }
    tally.equal(&paged(tally, clients, NODE_COLLECTION).await?.len(), &NODES, "nodes in pages")?;
    tally.equal(&paged(tally, clients, ALL_WIDGETS).await?.len(), &WIDGETS, "custom objects in pages")
}

async fn churn(cluster: &Cluster, done: &AtomicBool) -> anyhow::Result<()> {
    let client = &cluster.first.client;
    let mut index: usize = 0;
    while !done.load(Relaxed) || index < 20 {
        let home = NAMESPACES[index % NAMESPACES.len()];
        let pods = collection(home, "pods");
        let name = spread("churn", index);
        client.create(&pods, &pod(home, &name)).await?.ok()?;
        let label = json!({"metadata": {"labels": {"round": index.to_string()}}});
        client.merge(&format!("{pods}/{}", spread("pod", index % 26)), &label).await?.ok()?;
        client.delete(&format!("{pods}/{name}")).await?.ok()?;
        index += 1;
    }
    Ok(())
}

async fn kubectl_pages(cluster: &Cluster) -> anyhow::Result<()> {
    let (kubectl, tally) = (&cluster.first.kubectl, &cluster.tally);
    for (resource, wanted) in [("pods", PODS), ("nodes", NODES), ("widgets", WIDGETS)] {
        let chunk = format!("--chunk-size={PAGE}");
        let listed = kubectl.ok(&["get", resource, "-A", &chunk, "-o", "name"], "").await?;
        // The output has no namespaces, so a name may come once for each of them. Only the lines are counted.
        tally.equal(&listed.lines().count(), &wanted, format_args!("{resource} by kubectl in pages"))?;
    }
    Ok(())
}

/// A read after an acknowledged write has the write, also if another apiserver took it.
pub async fn own_writes(cluster: &Cluster, writer: &KubeClient, reader: &KubeClient) -> anyhow::Result<()> {
    const ROUNDS: usize = 12;
    let tally = &cluster.tally;
    let home = NAMESPACES[1];
    let maps = collection(home, "configmaps");
    let written = format!("{home}/own");
    let mut at = revision(&writer.create(&maps, &configmap(home, "own", "0")).await?.ok()?)?;
    for round in 1..=ROUNDS {
        for query in ["", "?limit=500", &format!("?resourceVersion={at}&resourceVersionMatch=NotOlderThan")] {
            let list = reader.get(&format!("{maps}{query}")).await?.ok()?;
            let own = items(&list)?.iter().find(|object| full_name(object) == written);
            let own = own.with_context(|| format!("{maps}{query}: the object just written is missing"))?;
            tally.equal(&revision(own)?, &at, format_args!("{maps}{query}: the version just written"))?;
            tally.check(revision(&list)? >= at, format_args!("{maps}{query}: the list is of before"))?;
        }
        let value = json!({"data": {"value": round.to_string()}});
        at = revision(&writer.merge(&format!("{maps}/own"), &value).await?.ok()?)?;
    }
    writer.delete(&format!("{maps}/own")).await?.ok()?;
    let after = reader.get(&format!("{maps}/own")).await?;
    tally.equal(&after.status, &404, "the object just deleted")
}

/// Lists from the cache (`resourceVersion=0`), and of the past (`resourceVersionMatch=Exact`).
async fn at_a_revision(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let consistent = client.get(ALL_PODS).await?.ok()?;
    let before = revision(&consistent)?;
    let cached = client.get(&format!("{ALL_PODS}?resourceVersion=0")).await?.ok()?;
    tally.equal(&items(&cached)?.len(), &PODS, "pods in the cache")?;
    tally.check(revision(&cached)? <= before, "the cache is not ahead of the store")?;

    let home = NAMESPACES[0];
    let path = format!("{}/{}", collection(home, "pods"), spread("pod", 1));
    let old = client.get(&path).await?.ok()?;
    let label = json!({"metadata": {"labels": {"round": "exact"}}});
    let new = client.merge(&path, &label).await?.ok()?;
    for (at, wanted) in [(before, &old), (revision(&new)?, &new)] {
        let query = format!("{ALL_PODS}?resourceVersion={at}&resourceVersionMatch=Exact");
        let list = client.get(&query).await?.ok()?;
        tally.equal(&revision(&list)?, &at, "revision of an exact list")?;
        tally.equal(&items(&list)?.len(), &PODS, "pods in an exact list")?;
        let found = items(&list)?.iter().find(|object| full_name(object) == full_name(wanted));
        let found = found.context("the pod in an exact list")?;
        tally.equal(&revision(found)?, &revision(wanted)?, "the pod's version in an exact list")?;
    }
    // A revision that no store has assigned yet.
    let future = revision(&new)? + (1 << 50);
    let refused = client.get(&format!("{path}?resourceVersion={future}")).await?;
    tally.equal(&refused.status, &504, "a read at a future revision")?;
    tally.equal(&names(cluster, ALL_PODS).await?.len(), &PODS, "pods after all")
}
