//! Every shard is killed with `kill -9` while clients create objects through the apiserver, with Kinds of every mode.
//! The apiserver recovers by itself, acknowledged objects survive as their mode promises, and its caches have nothing
//! else.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_tests::{
    kube_client::{KubeClient, items, revision},
    scenario::{report, wait_for},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::kube::{
    cluster::{Cluster, SEEN_LIMIT},
    load::many,
    objects::{
        NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection, configmap, event, namespace, pod, renewed,
        secret,
    },
};

const WRITERS: usize = 4;
/// The number of acknowledged objects to wait for before the kill, and again after it.
const SOME: usize = 40;
/// The pause of a writer after a refusal, so that writers do not slow the start of the shard.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(50);
/// The time for a dead shard to start again and recover, and for router and apiserver to reach it.
const BACK_LIMIT: Duration = Duration::from_secs(60);

/// Which of the objects that were acknowledged before the kill a mode promises to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    Everything,
    /// All but the last ones.
    Beginning,
    Nothing,
}

/// A Kind whose objects are created while its shard is killed.
struct Kind {
    resource: &'static str,
    store: &'static str,
    promise: Promise,
    path: String,
    object: fn(&str) -> Value,
}

fn kinds() -> [Kind; 6] {
    const HOME: &str = NAMESPACES[0];
    let kind = |resource, store, promise, path: &str, object| Kind {
        resource,
        store,
        promise,
        path: path.to_owned(),
        object,
    };
    let here = |resource| collection(HOME, resource);
    let lease = |name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed(0)},
        })
    };
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    [
        kind("nodes", "nodes", Promise::Everything, NODE_COLLECTION, node),
        kind("configmaps", "default", Promise::Everything, &here("configmaps"), |name| {
            configmap(HOME, name, "0")
        }),
        kind("secrets", "default", Promise::Beginning, &here("secrets"), |name| secret(HOME, name)),
        kind("pods", "pods", Promise::Beginning, &here("pods"), |name| pod(HOME, name)),
        kind("leases", "leases", Promise::Nothing, NODE_LEASES, lease),
        kind("events", "events", Promise::Nothing, &here("events"), |name| event(HOME, name)),
    ]
}

/// The names of the acknowledged objects, by revision.
#[derive(Default)]
struct Acknowledged {
    objects: Mutex<BTreeMap<u64, String>>,
    next: AtomicUsize,
}

/// Kills the shard of each Kind once. Returns how many objects were acknowledged, and how many of them were lost.
pub async fn run(cluster: &Cluster) -> anyhow::Result<(usize, usize)> {
    let client = &cluster.first.client;
    for home in [NAMESPACES[0], "kube-node-lease"] {
        // The apiserver creates the namespace for leases itself, at some time.
        let made = client.create("/api/v1/namespaces", &namespace(home)).await?;
        ensure!(made.status == 201 || made.status == 409, "namespace {home}: {made:?}");
    }
    let mut total = (0, 0);
    for kind in kinds() {
        let what = || format!("{} on {}", kind.resource, kind.store);
        let (acknowledged, lost) = crash(cluster, &kind).await.with_context(what)?;
        report(&format!(
            "kube crash store={} kind={} mode={:?} acknowledged={acknowledged} lost={lost}",
            kind.store, kind.resource, kind.promise
        ));
        cluster.tally.add_objects(acknowledged);
        total = (total.0 + acknowledged, total.1 + lost);
    }
    Ok(total)
}

async fn crash(cluster: &Cluster, kind: &Kind) -> anyhow::Result<(usize, usize)> {
    let kindred = cluster.kindred().context("a real etcd has no shards")?;
    let client = &cluster.first.client;
    // Only a Kind that loses nothing has to keep its cache. Events have none at all.
    let caches = match kind.promise {
        Promise::Everything => Some(initializations(cluster, kind.resource).await?),
        Promise::Beginning | Promise::Nothing => None,
    };
    let (done, written) = (AtomicBool::new(false), Acknowledged::default());
    let acknowledged = || written.objects.lock().len();
    let more = |count: usize| {
        let acknowledged = &acknowledged;
        wait_for("objects to be created", BACK_LIMIT, move || async move {
            Ok((acknowledged() >= count).then_some(()))
        })
    };
    let writers = many(WRITERS, |_| create(client, kind, &done, &written));
    let killing = async {
        let killed = async {
            more(SOME).await?;
            let pid = kindred.up.shard_pid(kind.store)?;
            kindred.up.kill_shard(kind.store)?;
            wait_for("a new process of the shard", BACK_LIMIT, || async {
                Ok(kindred.up.shard_pid(kind.store).ok().filter(|now| *now != pid))
            })
            .await?;
            more(acknowledged() + SOME).await
        }
        .await;
        done.store(true, Relaxed);
        killed
    };
    tokio::try_join!(writers, killing)?;
    wait_for("the apiserver to be ready", BACK_LIMIT, || async {
        Ok(client.get("/readyz").await.is_ok_and(|answer| answer.status == 200).then_some(()))
    })
    .await?;

    let written = written.objects.into_inner();
    let lost = judge(cluster, kind, &written).await?;
    cache_is_right(client, kind).await?;
    if let Some(caches) = caches {
        let now = initializations(cluster, kind.resource).await?;
        cluster.tally.equal(&now, &caches, "nothing was lost, and yet a watch cache was filled again")?;
    }
    Ok((written.len(), lost))
}

async fn create(
    client: &KubeClient,
    kind: &Kind,
    done: &AtomicBool,
    written: &Acknowledged,
) -> anyhow::Result<()> {
    while !done.load(Relaxed) {
        // Each attempt has a name of its own, because a failed one may have created its object.
        let name = format!("crash-{}", written.next.fetch_add(1, Relaxed));
        match client.create(&kind.path, &(kind.object)(&name)).await {
            Ok(made) if made.status == 201 => {
                written.objects.lock().insert(revision(&made.body)?, name);
            }
            Ok(_) | Err(_) => tokio::time::sleep(AFTER_A_REFUSAL).await,
        }
    }
    Ok(())
}

/// The objects of a list with their revisions. An apiserver whose watch was canceled as compacted fills its cache
/// again, and answers 429 meanwhile.
async fn listed(client: &KubeClient, path: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let list = wait_for("the apiserver's cache", SEEN_LIMIT, || async {
        let answer = client.get(path).await?;
        Ok(if answer.status == 429 { None } else { Some(answer.ok()?) })
    })
    .await?;
    let object = |item: &Value| {
        let name = item["metadata"]["name"].as_str().context("a name")?;
        Ok((name.to_owned(), revision(item)?))
    };
    items(&list)?.iter().map(object).collect()
}

/// The number of acknowledged objects that are lost. They must follow one another: everything that was written before
/// them is there, and everything that the restarted shard wrote is.
async fn judge(cluster: &Cluster, kind: &Kind, written: &BTreeMap<u64, String>) -> anyhow::Result<usize> {
    let found = listed(&cluster.first.client, &kind.path).await?;
    let there: Vec<bool> = written.iter().map(|(at, name)| found.get(name) == Some(at)).collect();
    let lost = there.iter().filter(|there| !**there).count();
    let first = there.iter().position(|there| !there).unwrap_or(0);
    let together = there[first..].iter().take_while(|there| !**there).count();
    cluster.tally.equal(&together, &lost, "lost objects that were written one after the other")?;
    let (most, least) = match kind.promise {
        Promise::Everything => (0, 0),
        // The process may have answered some more clients between the signal and its death.
        Promise::Beginning => (written.len().saturating_sub(SOME), 0),
        Promise::Nothing => (written.len().saturating_sub(SOME), SOME),
    };
    cluster.tally.check((least..=most).contains(&lost), format_args!("{lost} of {} lost", there.len()))?;
    if kind.promise == Promise::Nothing {
        cluster.tally.equal(&first, &0, "the first object is lost")?;
    }
    Ok(lost)
}

/// Waits until the apiserver's cache has the same objects as the store, and so none that was lost.
async fn cache_is_right(client: &KubeClient, kind: &Kind) -> anyhow::Result<()> {
    let cached = format!("{}?resourceVersion=0", kind.path);
    wait_for("the cache to show what is stored", SEEN_LIMIT, || async {
        let (cached, stored) = (listed(client, &cached).await?, listed(client, &kind.path).await?);
        Ok((cached == stored).then_some(()))
    })
    .await
}

/// How often the apiserver has filled the watch cache of a resource.
async fn initializations(cluster: &Cluster, resource: &str) -> anyhow::Result<f64> {
    let metrics = cluster.first.metrics().await?;
    let filled =
        metrics.sum("apiserver_watch_cache_initializations_total", &format!("resource=\"{resource}\""));
    ensure!(filled > 0.0, "there is a watch cache of {resource}");
    Ok(filled)
}
