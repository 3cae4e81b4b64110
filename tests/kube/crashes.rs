//! `kill -9` of every shard while clients create objects through the apiserver, with Kinds of every durability: the
//! apiserver goes on by itself, acknowledged objects are there as their mode promises, and its caches show nothing else.

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

use crate::{
    cluster::{Cluster, SEEN_LIMIT},
    load::many,
    objects::{
        NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection, configmap, event, namespace, pod, renewed,
        secret,
    },
};

const WRITERS: usize = 4;
/// Acknowledged before the kill, and again after it.
const SOME: usize = 40;
/// A writer that was refused is not to be in the way of a shard that starts.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(50);
/// A dead shard is started again, recovers, and routers and apiserver find it.
const BACK_LIMIT: Duration = Duration::from_secs(60);

/// What a mode promises of what was acknowledged before the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// All of it.
    Everything,
    /// All but the last.
    Beginning,
    /// Nothing.
    Nothing,
}

/// Objects of one Kind that are created while its shard is killed.
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

/// What was acknowledged: names with their revisions.
#[derive(Default)]
struct Acknowledged {
    objects: Mutex<BTreeMap<u64, String>>,
    next: AtomicUsize,
}

/// Kills the shard of each Kind once; how many objects were acknowledged, and how many of them were lost.
pub async fn run(cluster: &Cluster) -> anyhow::Result<(usize, usize)> {
    let client = &cluster.first.client;
    for home in [NAMESPACES[0], "kube-node-lease"] {
        // The apiserver makes the one for leases itself, some time.
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
    // Events have no cache; of them, as of whatever is lost, nothing is claimed.
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
        // A name of its own for each: one that failed may have been created.
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

/// The objects of a list, with the revisions that they were written at. An apiserver that was told *compacted* fills its
/// cache again, and lets clients wait meanwhile.
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

/// How many acknowledged objects are not there. They stand together: all that was written before them is there, and all
/// that the new process wrote is.
async fn judge(cluster: &Cluster, kind: &Kind, written: &BTreeMap<u64, String>) -> anyhow::Result<usize> {
    let found = listed(&cluster.first.client, &kind.path).await?;
    let there: Vec<bool> = written.iter().map(|(at, name)| found.get(name) == Some(at)).collect();
    let lost = there.iter().filter(|there| !**there).count();
    let first = there.iter().position(|there| !there).unwrap_or(0);
    let together = there[first..].iter().take_while(|there| !**there).count();
    cluster.tally.equal(&together, &lost, "lost objects that were written one after the other")?;
    let (most, least) = match kind.promise {
        Promise::Everything => (0, 0),
        // The clients had been answered by a process that was alive for a moment longer than it was asked to be.
        Promise::Beginning => (written.len().saturating_sub(SOME), 0),
        Promise::Nothing => (written.len().saturating_sub(SOME), SOME),
    };
    cluster.tally.check((least..=most).contains(&lost), format_args!("{lost} of {} lost", there.len()))?;
    if kind.promise == Promise::Nothing {
        cluster.tally.equal(&first, &0, "the first object is lost")?;
    }
    Ok(lost)
}

/// What the apiserver's cache shows comes to be what the store holds: nothing that was lost stands in it.
async fn cache_is_right(client: &KubeClient, kind: &Kind) -> anyhow::Result<()> {
    let cached = format!("{}?resourceVersion=0", kind.path);
    wait_for("the cache to show what is stored", SEEN_LIMIT, || async {
        let (cached, stored) = (listed(client, &cached).await?, listed(client, &kind.path).await?);
        Ok((cached == stored).then_some(()))
    })
    .await
}

/// How often the watch cache of a resource was filled.
async fn initializations(cluster: &Cluster, resource: &str) -> anyhow::Result<f64> {
    let metrics = cluster.first.metrics().await?;
    let filled =
        metrics.sum("apiserver_watch_cache_initializations_total", &format!("resource=\"{resource}\""));
    ensure!(filled > 0.0, "there is a watch cache of {resource}");
    Ok(filled)
}
