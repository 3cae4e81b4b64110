//! The processes of stores with standbys are killed, paused and told to hand over, while clients write and watch through
//! an apiserver. For the apiserver that is a moment in which requests wait or fail: no watch ends, no cache is filled
//! again, and nothing acknowledged is lost, whatever the mode of the Kind.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use kindred_tests::{
    admin::Admin,
    kube_client::KubeClient,
    scenario::{report, wait_for},
};
use serde_json::{Value, json};

use crate::kube::{
    backups,
    cluster::{Cluster, Kindred},
    health::{Baseline, CONSISTENCY},
    objects::{NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection, configmap, namespace, node_lease, pod},
    steady::{Informer, Pauses, Steady},
};

const WRITERS: usize = 2;
/// The number of acknowledged writes to wait for before a fault, and after it.
const SOME: usize = 20;
const ROLES_LIMIT: Duration = Duration::from_secs(60);
/// The longest time without a write that is no error on a busy machine. Usually it is below 3 s.
const PAUSE_MAX: Duration = Duration::from_secs(30);
const READY_EVERY: Duration = Duration::from_millis(50);
const HOME: &str = NAMESPACES[0];

/// What happens to the primary of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Pause,
    Handover,
}

/// The second fault of a store finds the primary in the folder of the standbys.
const ROUNDS: [(&str, Fault); 7] = [
    ("pods", Fault::Kill),
    ("pods", Fault::Kill),
    ("pods", Fault::Pause),
    ("pods", Fault::Handover),
    ("leases", Fault::Kill),
    ("nodes", Fault::Pause),
    ("default", Fault::Kill),
];

fn kinds() -> Vec<Steady> {
    let lease = |name: &str| {
        let mut lease = node_lease(0);
        lease["metadata"]["name"] = name.into();
        lease
    };
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    vec![
        Steady::new("pods", "pods", collection(HOME, "pods"), |name| pod(HOME, name)),
        Steady::new("leases", "leases", NODE_LEASES, lease),
        Steady::new("nodes", "nodes", NODE_COLLECTION, node),
        Steady::new("configmaps", "default", collection(HOME, "configmaps"), |name| {
            configmap(HOME, name, "0")
        }),
    ]
}

/// Continues a process that was paused, also when the test fails, so that it ends with its supervisor.
struct Paused(u32);

impl Drop for Paused {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = signal(self.0, "-CONT");
    }
}

fn signal(pid: u32, signal: &str) -> anyhow::Result<()> {
    ensure!(Command::new("kill").args([signal, &pid.to_string()]).status()?.success(), "kill {signal} {pid}");
    Ok(())
}

/// The members of stores, as a router sees them.
struct Members<'c> {
    kindred: &'c Kindred,
    admin: Admin,
}

impl<'c> Members<'c> {
    fn of(kindred: &'c Kindred) -> anyhow::Result<Self> {
        let admins = kindred.up.addresses("admin")?;
        let admin = Admin::over_tls(admins.first().context("an admin port")?, kindred.admin_tls.clone())?;
        Ok(Self { kindred, admin })
    }

    async fn group(&self, store: &str) -> anyhow::Result<Value> {
        self.admin.ok("GET", &format!("/api/v1/servicegroups/{store}"), &json!({})).await
    }

    async fn shown(&self, store: &str) -> anyhow::Result<Value> {
        let stores = self.admin.ok("GET", "/api/v1/stores", &json!({})).await?;
        let found = stores["stores"].as_array().into_iter().flatten().find(|shown| shown["name"] == store);
        found.cloned().context("the store")
    }

    async fn primary(&self, store: &str) -> anyhow::Result<String> {
        Ok(self.group(store).await?["endpoints"][0].as_str().context("a primary")?.to_owned())
    }

    /// Waits until the standby of a store may take over. Returns the address of the primary.
    async fn in_sync(&self, store: &str) -> anyhow::Result<String> {
        let waited = wait_for("a standby in sync", ROLES_LIMIT, || async {
            let (group, shown) = (self.group(store).await?, self.shown(store).await?);
            let recorded = group["members"]["inSync"].as_array().is_some_and(|members| members.len() == 1);
            let asked = shown["members"].as_array().is_some_and(|members| members.len() == 2);
            let well = shown["state"] == "up" && shown["standbyTrouble"].is_null();
            Ok((recorded && asked && well).then_some(()))
        });
        if let Err(error) = waited.await {
            let (group, shown) = (self.group(store).await?, self.shown(store).await?);
            return Err(error.context(format!("{group}\n{shown}")));
        }
        self.primary(store).await
    }

    /// The process at an address of a store.
    fn pid(&self, store: &str, address: &str) -> anyhow::Result<u32> {
        let stores = self.kindred.up.stores()?;
        let (_, first) = stores.iter().find(|(name, _)| name == store).context("the store")?;
        let folder = if address.ends_with(first) { "stores" } else { "standbys" };
        self.kindred.up.pid_in(&self.kindred.up.data_dir.join(folder).join(store))
    }
}

/// Runs all rounds. Returns the number of events that watches delivered.
pub async fn run(cluster: &Cluster) -> anyhow::Result<usize> {
    let kindred = cluster.kindred().context("a real etcd has no standbys")?;
    let (client, members) = (&cluster.first.client, Members::of(kindred)?);
    let made = client.create("/api/v1/namespaces", &namespace(HOME)).await?;
    ensure!(made.status == 201 || made.status == 409, "{made:?}");
    wait_for("the namespace of leases", ROLES_LIMIT, || async {
        Ok((client.get("/api/v1/namespaces/kube-node-lease").await?.status == 200).then_some(()))
    })
    .await?;
    let kinds = kinds();
    let mut informers = Vec::new();
    for kind in &kinds {
        members.in_sync(kind.store).await?;
        informers.push(kind.watch(client).await?);
    }
    let at_start = Baseline::take(cluster).await?;
    let lists = lists(cluster, &kinds).await?;
    let (done, ready) = (AtomicBool::new(false), Pauses::default());
    let writers = kinds.iter().flat_map(|kind| (0..WRITERS).map(move |writer| (kind, writer)));
    let writers = try_join_all(writers.map(|(kind, writer)| kind.write(client, writer, &done)));
    let faults = async {
        let faults = rounds(cluster, &members, &kinds, &informers, &ready).await;
        done.store(true, Relaxed);
        faults
    };
    tokio::try_join!(writers, faults, ask_for_readiness(client, &done, &ready))?;

    let mut events = 0;
    for (kind, informer) in kinds.iter().zip(&informers) {
        let told = kind.check(client, informer).await?;
        events += told;
        report(&format!(
            "kube failover kind={} acknowledged={} events={told} errors={:?}",
            kind.resource,
            kind.acknowledged(),
            kind.errors.lock()
        ));
    }
    at_start.same_caches_now(cluster).await?;
    let after = self::lists(cluster, &kinds).await?;
    // The apiserver compares its caches with the store every few minutes, for which it lists.
    if after.compared == lists.compared {
        cluster.tally.equal(&after.of_kinds, &lists.of_kinds, "lists that the apiserver made")?;
    }
    for kind in &kinds {
        cluster.tally.add_objects(kind.check_stored(client).await?);
    }
    for informer in &informers {
        informer.lives()?;
    }
    cluster.tally.add_watch_events(events);
    Ok(events)
}

/// How often the apiserver has listed Kinds at its store.
struct Lists {
    of_kinds: Vec<(&'static str, f64)>,
    /// How often it has compared a cache with the store.
    compared: f64,
}

async fn lists(cluster: &Cluster, kinds: &[Steady]) -> anyhow::Result<Lists> {
    const LISTS: &str = "etcd_request_duration_seconds_count";
    let metrics = cluster.first.metrics().await?;
    let of = |kind: &Steady| {
        let name = format!("resource=\"{}\"", kind.resource);
        let lists = metrics
            .samples(LISTS)
            .filter(|(labels, _)| labels.contains("operation=\"list") && labels.contains(&name));
        let count: f64 = lists.map(|(_, count)| count).sum();
        ensure!(count > 0.0, "the apiserver counts how often it lists {}", kind.resource);
        Ok((kind.resource, count))
    };
    let of_kinds: anyhow::Result<_> = kinds.iter().map(of).collect();
    Ok(Lists { of_kinds: of_kinds?, compared: metrics.sum(CONSISTENCY, "") })
}

/// Notes when the apiserver says that it is ready.
async fn ask_for_readiness(client: &KubeClient, done: &AtomicBool, ready: &Pauses) -> anyhow::Result<()> {
    while !done.load(Relaxed) {
        if client.get("/readyz").await.is_ok_and(|answer| answer.status == 200) {
            ready.happened();
        }
        tokio::time::sleep(READY_EVERY).await;
    }
    Ok(())
}

async fn rounds(
    cluster: &Cluster,
    members: &Members<'_>,
    kinds: &[Steady],
    informers: &[Informer],
    ready: &Pauses,
) -> anyhow::Result<()> {
    for (round, (store, fault)) in ROUNDS.into_iter().enumerate() {
        let kind = kinds.iter().find(|kind| kind.store == store).context("a Kind of the store")?;
        let faulted = one_round(cluster, members, kind, fault, ready);
        let (without_writes, not_ready) =
            faulted.await.with_context(|| format!("round {round}, {fault:?} of {store}"))?;
        for (kind, informer) in kinds.iter().zip(informers) {
            informer.lives().with_context(|| format!("{}, round {round}", kind.resource))?;
        }
        report(&format!(
            "kube failover round={round} store={store} fault={fault:?} no_write_ms={} not_ready_ms={}",
            without_writes.as_millis(),
            not_ready.as_millis()
        ));
        for (pause, what) in [(without_writes, "a write"), (not_ready, "being ready")] {
            cluster.tally.check(pause < PAUSE_MAX, format_args!("{pause:?} without {what}"))?;
        }
    }
    Ok(())
}

/// Returns the longest times without a write of the Kind, and without the answer that the apiserver is ready.
async fn one_round(
    cluster: &Cluster,
    members: &Members<'_>,
    kind: &Steady,
    fault: Fault,
    ready: &Pauses,
) -> anyhow::Result<(Duration, Duration)> {
    let store = kind.store;
    let former = members.in_sync(store).await?;
    kind.more(SOME).await?;
    let pid = members.pid(store, &former)?;
    let (_, _) = (kind.pauses.longest(), ready.longest());
    let mut paused = None;
    match fault {
        Fault::Kill => signal(pid, "-KILL")?,
        Fault::Pause => {
            paused = Some(Paused(pid));
            signal(pid, "-STOP")?;
        }
        Fault::Handover => {
            let said = backups::kindred(cluster, &["store", "failover", store]).await?;
            report(&format!("kube failover: {}", said.trim()));
        }
    }
    wait_for("another primary", ROLES_LIMIT, || async {
        Ok((members.primary(store).await? != former).then_some(()))
    })
    .await?;
    kind.more(SOME).await?;
    drop(paused);
    let primary = members.in_sync(store).await?;
    ensure!(primary != former, "{former} is the primary again");
    kind.more(SOME).await?;
    wait_for("the apiserver to be ready", ROLES_LIMIT, || async {
        Ok(cluster.first.client.get("/readyz").await.is_ok_and(|answer| answer.status == 200).then_some(()))
    })
    .await?;
    Ok((kind.pauses.longest(), ready.longest()))
}
