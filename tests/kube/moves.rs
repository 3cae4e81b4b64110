//! Kinds move while an apiserver writes, lists and watches them. Its caches and watches continue without interruption.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context;
use kindred_tests::{admin::Admin, kube_client::KubeClient, scenario::env_number};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::kube::{
    cluster::Cluster,
    load::names,
    objects::{ALL_PODS, NAMESPACES},
    watches::{Change, follow, now, script},
};

/// How often each Kind moves away and comes back. `KINDRED_KUBE_MOVES` overrides it.
const ROUNDS: u64 = 3;
const PODS_AT_ONCE: usize = 6;
const MOVE_LIMIT: Duration = Duration::from_secs(60);
/// The bound of the scripts whose changes the watch has not delivered yet.
const SCRIPTS_MAX: usize = 1024;

/// Moves pods and the leases of nodes away and back, while pods are created, changed and deleted. Returns the number of
/// moves.
pub async fn run(cluster: &Cluster) -> anyhow::Result<usize> {
    let kindred = cluster.kindred().context("a real etcd moves nothing")?;
    let admins = kindred.up.addresses("admin")?;
    let admin = Admin::over_tls(admins.first().context("an admin port")?, kindred.admin_tls.clone())?;
    let client = &cluster.first.client;
    let before = names(cluster, ALL_PODS).await?;
    let mut watch = client.watch(ALL_PODS, Some(now(client, ALL_PODS).await?)).await?;
    let done = AtomicBool::new(false);
    let (wrote, mut written) = mpsc::channel(SCRIPTS_MAX);
    let writing = write(client, &done, wrote);
    let following = async {
        while let Some(changes) = written.recv().await {
            follow(&cluster.tally, &mut watch, &changes, "watch over moves").await?;
        }
        anyhow::Ok(())
    };
    let moving = async {
        let moved = there_and_back(&admin).await;
        done.store(true, Relaxed);
        moved
    };
    let ((), (), moves) = tokio::try_join!(writing, following, moving)?;
    cluster.tally.equal(&names(cluster, ALL_PODS).await?, &before, "pods after the moves")?;
    Ok(moves)
}

async fn write(
    client: &KubeClient,
    done: &AtomicBool,
    wrote: mpsc::Sender<Vec<Change>>,
) -> anyhow::Result<()> {
    let mut round = 0;
    while !done.load(Relaxed) {
        let home = NAMESPACES[round % NAMESPACES.len()];
        let changes = script(&[client], home, &format!("moving{round}"), PODS_AT_ONCE).await?;
        wrote.send(changes).await.context("the watch that follows has ended")?;
        round += 1;
    }
    Ok(())
}

async fn there_and_back(admin: &Admin) -> anyhow::Result<usize> {
    let mut moves = 0;
    for _ in 0..env_number("KINDRED_KUBE_MOVES", ROUNDS)? {
        for (kind, away, home) in
            [("pods", "nodes", "pods"), ("leases.coordination.k8s.io", "default", "leases")]
        {
            for to in [away, home] {
                for id in admin.change("move", &json!({ "kind": kind, "to": to })).await? {
                    admin.until(id, MOVE_LIMIT, |shown: &Value| shown["phase"] == "Switched").await?;
                    admin.request(id, "complete").await?;
                    admin.until(id, MOVE_LIMIT, |shown: &Value| shown["over"] == true).await?;
                    moves += 1;
                }
            }
        }
    }
    Ok(moves)
}
