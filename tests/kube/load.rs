//! Fills the cluster with what nodes, controllers and users write, through kubectl and directly over HTTP.

use std::{collections::BTreeSet, future::Future};

use anyhow::Context;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kindred_tests::kube_client::{full_name, items, revision};
use serde_json::{Value, json};

use crate::kube::{
    cluster::Cluster,
    objects::{
        ALL_PODS, ALL_WIDGETS, NAMESPACES, NODE_COLLECTION, NODE_LEASES, NODES, PODS, SMALL_OBJECTS, WIDGETS,
        collection, configmap, documents, endpoints, event, load_pod, namespace, new_event, node, node_lease,
        pod_namespace, renewed, secret, service, spread, widget, widget_definition,
    },
};

/// The number of requests under way at a time.
const WIDTH: usize = 16;

/// Runs `count` requests, `WIDTH` at a time. Fails if any of them fails.
pub async fn many<T, F, Fut>(count: usize, request: F) -> anyhow::Result<Vec<T>>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    stream::iter(0..count).map(request).buffer_unordered(WIDTH).try_collect().await
}

/// The names of a collection, read in one consistent list.
pub async fn names(cluster: &Cluster, path: &str) -> anyhow::Result<BTreeSet<String>> {
    let list = cluster.first.client.get(path).await?.ok()?;
    Ok(items(&list)?.iter().map(full_name).collect())
}

/// Writes the objects that stay until the end of the run.
pub async fn run(cluster: &Cluster) -> anyhow::Result<()> {
    with_kubectl(cluster).await?;
    custom_objects(cluster).await?;
    small_objects(cluster).await?;
    node_heartbeats(cluster).await?;
    pod_statuses(cluster).await
}

/// Runs `kubectl apply` with many new objects, and checks that its output says `created` for each.
async fn apply(
    cluster: &Cluster,
    what: &str,
    objects: impl IntoIterator<Item = Value>,
) -> anyhow::Result<()> {
    let objects: Vec<Value> = objects.into_iter().collect();
    let wanted = objects.len();
    // kubectl prints deprecation warnings, here of v1 Endpoints, on stderr.
    let said = cluster.first.kubectl.ok(&["apply", "-f", "-"], &documents(objects)).await?;
    let created = said.lines().filter(|line| line.ends_with(" created")).count();
    cluster.tally.add_objects(created);
    cluster.tally.equal(&created, &wanted, format_args!("{what} created by kubectl apply"))
}

async fn with_kubectl(cluster: &Cluster) -> anyhow::Result<()> {
    const REPEATED: usize = 40;
    apply(cluster, "namespaces", NAMESPACES.map(namespace)).await?;
    apply(cluster, "nodes", (0..NODES).map(node)).await?;
    apply(cluster, "node leases", (0..NODES).map(node_lease)).await?;
    apply(cluster, "pods", (0..PODS).map(load_pod)).await?;
    // A second apply of some pods changes nothing. It takes only some, as kubectl sends at most 50 requests a second.
    let again = documents((0..REPEATED).map(load_pod));
    let said = cluster.first.kubectl.ok(&["apply", "-f", "-"], &again).await?;
    let unchanged = said.lines().filter(|line| line.ends_with(" unchanged")).count();
    cluster.tally.equal(&unchanged, &REPEATED, "pods unchanged by the second apply")?;

    let raw = documents([load_pod(PODS)]).replace("---\n", "");
    let path = collection(pod_namespace(PODS), "pods");
    cluster.first.kubectl.ok(&["create", "--raw", &path, "-f", "-"], &raw).await?;
    let list: Value =
        serde_json::from_str(&cluster.first.kubectl.ok(&["get", "--raw", ALL_PODS], "").await?)?;
    cluster.tally.equal(&items(&list)?.len(), &(PODS + 1), "pods listed by kubectl get --raw")?;
    let name = spread("pod", PODS / NAMESPACES.len());
    cluster.first.kubectl.ok(&["delete", "pod", "-n", pod_namespace(PODS), &name, "--now"], "").await?;

    let pods = names(cluster, ALL_PODS).await?;
    let wanted: BTreeSet<String> = (0..PODS).map(|index| full_name(&load_pod(index))).collect();
    cluster.tally.equal(&pods, &wanted, "pods")?;
    cluster.tally.equal(&names(cluster, NODE_COLLECTION).await?.len(), &NODES, "nodes")?;
    let racked = cluster.first.kubectl.ok(&["get", "nodes", "-l", "rack=r1", "-o", "name"], "").await?;
    cluster.tally.equal(&racked.lines().count(), &(NODES - 1).div_ceil(4), "nodes of one rack")
}

async fn custom_objects(cluster: &Cluster) -> anyhow::Result<()> {
    apply(cluster, "definition", [widget_definition()]).await?;
    let established = ["wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=60s"];
    cluster.first.kubectl.ok(&established, "").await?;
    apply(cluster, "custom objects", (0..WIDGETS).map(widget)).await?;
    cluster.tally.equal(&names(cluster, ALL_WIDGETS).await?.len(), &WIDGETS, "custom objects")
}

async fn small_objects(cluster: &Cluster) -> anyhow::Result<()> {
    let client = &cluster.first.client;
    many(SMALL_OBJECTS, |index| async move {
        let (home, name) = (pod_namespace(index), spread("small", index));
        for (resource, object) in [
            ("configmaps", configmap(home, &name, "0")),
            ("secrets", secret(home, &name)),
            ("services", service(home, &name)),
            ("endpoints", endpoints(home, &name)),
            ("events", event(home, &name)),
        ] {
            client.create(&collection(home, resource), &object).await?.ok().context(resource)?;
        }
        let events = format!("/apis/events.k8s.io/v1/namespaces/{home}/events");
        client.create(&events, &new_event(home, &spread("new", index))).await?.ok().context(events)
    })
    .await?;
    cluster.tally.add_objects(SMALL_OBJECTS * 6);
    for resource in ["configmaps", "secrets", "services", "endpoints"] {
        let mut found = 0;
        for home in NAMESPACES {
            found += names(cluster, &collection(home, resource)).await?.len();
        }
        cluster.tally.equal(&found, &SMALL_OBJECTS, resource)?;
    }
    Ok(())
}

/// Each node renews its lease and reports its status a few times. Like a kubelet it reads, changes and replaces.
async fn node_heartbeats(cluster: &Cluster) -> anyhow::Result<()> {
    const ROUNDS: usize = 3;
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    many(NODES, |index| async move {
        let path = format!("{NODE_LEASES}/{}", spread("node", index));
        let mut lease = client.get(&path).await?.ok()?;
        for round in 1..=ROUNDS {
            let before = revision(&lease)?;
            lease["spec"]["renewTime"] = renewed(round).into();
            lease = client.replace(&path, &lease).await?.ok()?;
            tally.check(revision(&lease)? > before, "a renewed lease has a higher revision")?;
        }
        let status = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "Run", "message": "ready"},
        ]}});
        let path = format!("{NODE_COLLECTION}/{}/status", spread("node", index));
        client.merge(&path, &status).await?.ok()
    })
    .await?;
    let list = client.get(NODE_LEASES).await?.ok()?;
    let last = renewed(ROUNDS);
    let renewed = items(&list)?.iter().filter(|lease| lease["spec"]["renewTime"] == *last).count();
    tally.equal(&renewed, &NODES, "leases renewed last")
}

async fn pod_statuses(cluster: &Cluster) -> anyhow::Result<()> {
    let client = &cluster.first.client;
    many(PODS, |index| async move {
        let name = spread("pod", index / NAMESPACES.len());
        let path = format!("{}/{name}/status", collection(pod_namespace(index), "pods"));
        client.merge(&path, &json!({"status": {"phase": "Running"}})).await?.ok()
    })
    .await?;
    let list = client.get(&format!("{ALL_PODS}?fieldSelector=status.phase%3DRunning")).await?.ok()?;
    cluster.tally.equal(&items(&list)?.len(), &PODS, "running pods")
}
