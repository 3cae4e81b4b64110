//! Two apiservers on one store, restarts of both, and compacted revisions. One apiserver also runs without caches, so
//! that its lists and watches go to the store.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail, ensure};
use kindred_tests::{
    kube_client::{KubeClient, full_name, items, revision},
    scenario::wait_for,
};
use serde_json::Value;

use crate::kube::{
    cluster::{COMPACTION_INTERVAL, Cluster, SEEN_LIMIT},
    lists::{PAGE, own_writes, pages_while_others_write},
    objects::{ALL_EVENTS, ALL_PODS, ALL_WIDGETS, NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection},
    watches::{follow, now, script},
};

/// The time until a revision is compacted. An apiserver compacts what was current at its previous compaction, and on a
/// busy machine it may be late.
const COMPACTED_LIMIT: Duration = Duration::from_secs(6 * COMPACTION_INTERVAL.as_secs());

/// Collections that always have objects.
const LASTING: [&str; 6] =
    [ALL_PODS, NODE_COLLECTION, NODE_LEASES, ALL_WIDGETS, "/api/v1/secrets", "/api/v1/services"];

pub async fn run(cluster: &mut Cluster) -> anyhow::Result<()> {
    cluster.start_second(false).await?;
    let uncached = cluster.second()?.client.clone();
    serves_custom_objects(&uncached).await?;
    let old = old_positions(cluster, &uncached).await?;
    both_see_all(cluster, "one uncached").await?;
    pages_while_others_write(cluster, &[&uncached]).await?;
    own_writes(cluster, &cluster.first.client, &uncached).await?;
    own_writes(cluster, &uncached, &cluster.first.client).await?;
    too_old(cluster, &uncached, &old).await?;

    cluster.start_second(true).await?;
    serves_custom_objects(&cluster.second()?.client).await?;
    both_see_all(cluster, "both cached").await?;
    let second = cluster.second()?.client.clone();
    pages_while_others_write(cluster, &[&cluster.first.client, &second]).await?;
    own_writes(cluster, &cluster.first.client, &second).await?;

    let before = everything(&second).await?;
    let from = now(&second, ALL_PODS).await?;
    let writer = [&second];
    let (restarted, written) =
        tokio::join!(cluster.first.restart(None), script(&writer, NAMESPACES[2], "meanwhile", 6));
    restarted.context("restart of the first apiserver")?;
    serves_custom_objects(&cluster.first.client).await?;
    let after = everything(&cluster.first.client).await?;
    for path in LASTING {
        let what = format!("{path} after a restart");
        cluster.tally.check(!before[path].is_empty(), format_args!("{what}: nothing was there"))?;
        cluster.tally.equal(&after[path], &before[path], what)?;
    }
    let mut watch = second.watch(ALL_PODS, Some(from)).await?;
    follow(&cluster.tally, &mut watch, &written?, "written while the other one restarted").await?;
    both_see_all(cluster, "after a restart").await?;
    // The cache of the first apiserver begins with its restart.
    let outcome =
        expired(&cluster.first.client, ALL_PODS, before[ALL_PODS].values().min().copied().unwrap_or(1)).await;
    cluster.tally.check(outcome.is_ok(), format_args!("a watch from before the cache: {outcome:?}"))
}

/// Waits until custom objects are served. An apiserver is ready before it has read their definitions and filled their
/// caches.
async fn serves_custom_objects(client: &KubeClient) -> anyhow::Result<()> {
    wait_for("custom objects to be served", SEEN_LIMIT, || async {
        let answer = client.get(ALL_WIDGETS).await?;
        ensure!(matches!(answer.status, 200 | 404 | 429 | 503), "{}: {}", answer.status, answer.body);
        Ok((answer.status == 200).then_some(()))
    })
    .await
}

/// Writes through both apiservers in turn. A watch through each delivers all changes in the same order.
async fn both_see_all(cluster: &Cluster, when: &str) -> anyhow::Result<()> {
    let (first, second) = (&cluster.first.client, &cluster.second()?.client);
    let tally = &cluster.tally;
    let mut watches = Vec::new();
    for (client, who) in [(first, "the first"), (second, "the second")] {
        watches.push((client.watch(ALL_PODS, Some(now(client, ALL_PODS).await?)).await?, who));
    }
    let changes = script(&[first, second], NAMESPACES[1], "paired", 8).await?;
    for (watch, who) in &mut watches {
        follow(tally, watch, &changes, &format!("watch of {who}, {when}")).await?;
    }
    Ok(())
}

/// The name and the revision of every object in the lasting collections.
async fn everything(client: &KubeClient) -> anyhow::Result<BTreeMap<&'static str, BTreeMap<String, u64>>> {
    let mut all = BTreeMap::new();
    for path in LASTING {
        let list = client.get(path).await?.ok()?;
        let versions: anyhow::Result<BTreeMap<String, u64>> =
            items(&list)?.iter().map(|object| Ok((full_name(object), revision(object)?))).collect();
        all.insert(path, versions?);
    }
    Ok(all)
}

/// Revisions and a continue token that are valid now and will be compacted.
struct OldPositions {
    pods: u64,
    events: u64,
    token: String,
}

async fn old_positions(cluster: &Cluster, uncached: &KubeClient) -> anyhow::Result<OldPositions> {
    let page = uncached.get(&format!("{ALL_PODS}?limit={PAGE}")).await?.ok()?;
    let token = page["metadata"]["continue"].as_str().context("more than a page of pods")?.to_owned();
    let events = revision(&cluster.first.client.get(ALL_EVENTS).await?.ok()?)?;
    Ok(OldPositions { pods: revision(&page)?, events, token })
}

/// A request for a compacted revision is answered with 410. A client can then list and watch again.
async fn too_old(cluster: &Cluster, uncached: &KubeClient, old: &OldPositions) -> anyhow::Result<()> {
    let (first, tally) = (&cluster.first.client, &cluster.tally);
    // Each Kind now has a write after the old positions.
    script(&[first], NAMESPACES[0], "newer", 2).await?;
    let exact = format!("{ALL_PODS}?resourceVersion={}&resourceVersionMatch=Exact", old.pods);
    wait_for("an old revision to be compacted", COMPACTED_LIMIT, || async {
        let answer = uncached.get(&exact).await?;
        ensure!(matches!(answer.status, 200 | 410), "{exact}: {} {}", answer.status, answer.body);
        // Each answer is a list of all pods, so the test does not ask too often.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok((answer.status == 410).then_some(()))
    })
    .await?;
    let page = uncached.get(&format!("{ALL_PODS}?limit={PAGE}&continue={}", old.token)).await?;
    tally.equal(&page.body["reason"], &Value::from("Expired"), "reason for a page of a compacted list")?;
    // The refusal has a token with which a client may continue, but the pages are then not one snapshot.
    let onward = page.body["metadata"]["continue"].as_str().context("a token to go on")?;
    let onward = uncached.get(&format!("{ALL_PODS}?limit={PAGE}&continue={onward}")).await?.ok()?;
    tally.equal(&items(&onward)?.len(), &PAGE, "pods on the page after that")?;

    for path in [ALL_PODS.to_owned(), collection(NAMESPACES[0], "pods")] {
        let outcome = expired(uncached, &path, old.pods).await;
        tally.check(outcome.is_ok(), format_args!("a watch from a compacted revision: {outcome:?}"))?;
    }
    // Events have no cache, so in any apiserver this watch goes to the store.
    wait_for("old events to be compacted", COMPACTED_LIMIT, || async {
        Ok(expired(first, ALL_EVENTS, old.events).await.ok())
    })
    .await?;
    let mut watch = uncached.watch(ALL_PODS, Some(now(uncached, ALL_PODS).await?)).await?;
    let changes = script(&[uncached], NAMESPACES[0], "relisted", 2).await?;
    follow(tally, &mut watch, &changes, "watch after a new list").await
}

/// Asserts that the first event of a watch is the error 410.
async fn expired(client: &KubeClient, path: &str, after: u64) -> anyhow::Result<()> {
    let mut watch = client.watch(path, Some(after)).await?;
    match watch.next(SEEN_LIMIT).await? {
        Some(event) if event.change == "ERROR" && event.object["code"] == 410 => Ok(()),
        other => bail!("a watch of {path} from {after} began with {other:?}"),
    }
}
