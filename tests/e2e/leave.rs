//! `kindred leave`: what elections and clients with leases need of it.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, PutRequest, RangeRequest,
};
use kindred_tests::{
    client::Client,
    etcdctl::{self, Output},
    process::our_binary,
    scenario,
    servers::{Etcd, Up},
};
use tokio_stream::StreamExt as _;

const LIMIT: Duration = Duration::from_secs(120);
const SHORT_S: i64 = 4;
const CONFIG: &str = "default: default\nstores:\n- {name: default, slot: 1}\n";
/// Two Kinds have stores of their own, and one of them has two.
const SPLIT: &str = "default: default\nstores:\n- {name: default, slot: 1}\n- {name: a, slot: 2}\n- {name: b, slot: 3}\npartitions:\n\
    - {metadata: {name: pods}, resource: pods, serviceGroupId: a}\n\
    - {metadata: {name: configmaps}, resource: configmaps, ring: {stores: [a, b]}}\n";

async fn kindred(words: &[&str]) -> anyhow::Result<Output> {
    etcdctl::run(&our_binary("kindred")?, words, "").await
}

/// A cluster of one shard, and an etcd that can take what it has.
async fn cluster(dir: &Path) -> anyhow::Result<(Up, Etcd)> {
    cluster_of(dir, CONFIG).await
}

async fn cluster_of(dir: &Path, text: &str) -> anyhow::Result<(Up, Etcd)> {
    let config = dir.join("config.yaml");
    std::fs::write(&config, text)?;
    let up = Up::start(dir, "kindred", &[format!("--config={}", config.display())]).await?;
    let prepared = dir.join("prepared.db");
    kindred(&["leave", "prepare", prepared.to_str().context("a path")?]).await?.ok()?;
    Ok((up, Etcd::restored(dir, "home", &prepared).await?))
}

async fn leave(up: &Up, home: &Etcd, more: &[&str]) -> anyhow::Result<String> {
    let (admin, to) = (format!("--admin=http://{}", up.admin), format!("--to=http://{}", home.address));
    kindred(&[&["leave", &admin, &to], more].concat()).await?.ok()
}

/// Begins to leave, and kills the command after a time unless it has ended. Answers whether it has.
async fn leave_killed_after(up: &Up, home: &Etcd, more: &[&str], after: Duration) -> anyhow::Result<bool> {
    let (admin, to) = (format!("--admin=http://{}", up.admin), format!("--to=http://{}", home.address));
    let mut command = tokio::process::Command::new(our_binary("kindred")?);
    command.args(["leave", &admin, &to]).args(more).kill_on_drop(true);
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut running = command.spawn()?;
    match tokio::time::timeout(after, running.wait()).await {
        Ok(ended) => {
            ensure!(ended?.success(), "leave failed");
            Ok(true)
        }
        // SIGKILL.
        Err(_) => running.kill().await.map(|()| false).context("kill"),
    }
}

async fn grant(client: &Client, id: i64, ttl: i64) -> anyhow::Result<i64> {
    Ok(client.lease.clone().lease_grant(LeaseGrantRequest { id, ttl }).await?.into_inner().id)
}

async fn put(client: &Client, key: &str, lease: i64) -> anyhow::Result<()> {
    let put = PutRequest { key: key.to_owned().into(), lease, ..Default::default() };
    client.kv.clone().put(put).await.with_context(|| format!("put {key}")).map(drop)
}

async fn leases(client: &Client) -> anyhow::Result<Vec<i64>> {
    let listed = client.lease.clone().lease_leases(LeaseLeasesRequest {}).await?.into_inner();
    let mut ids: Vec<i64> = listed.leases.into_iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    Ok(ids)
}

async fn all_keys(client: &Client) -> anyhow::Result<Vec<String>> {
    let (key, range_end) = ("/registry/".into(), "/registry0".into());
    let range = RangeRequest { key, range_end, keys_only: true, ..Default::default() };
    let kvs = client.kv.clone().range(range).await?.into_inner().kvs;
    Ok(kvs.into_iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect())
}

/// The keys with a prefix, in the order in which they were created.
async fn by_creation(client: &Client, prefix: &str, end: &str) -> anyhow::Result<Vec<String>> {
    let (key, range_end) = (prefix.to_owned().into(), end.to_owned().into());
    let range = RangeRequest { key, range_end, ..Default::default() };
    let mut kvs = client.kv.clone().range(range).await?.into_inner().kvs;
    kvs.sort_by_key(|kv| kv.create_revision);
    ensure!(
        kvs.windows(2).all(|two| two[0].create_revision < two[1].create_revision),
        "two of one revision: {kvs:?}"
    );
    Ok(kvs.into_iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect())
}

/// Rows 84, 85 and 90 of the findings: who waited in an election led it; a lease that was renewed at the etcd alone ended with its
/// keys, because its home was a shard still; and a lease without keys stayed behind.
#[test]
fn f84_leases_and_the_order_of_elections_come_along() {
    scenario::run("leave", LIMIT, |dir| async move {
        let (up, home) = cluster(&dir).await?;
        let (served, direct) = (up.client().await?, home.client().await?);
        // The last comes first in the order of keys.
        for id in [3000, 2000, 1000] {
            grant(&served, id, 600).await?;
            put(&served, &format!("election/{id:x}"), id).await?;
        }
        let (short, idle) = (grant(&served, 0, SHORT_S).await?, grant(&served, 0, 600).await?);
        put(&served, "/service/leader", short).await?;
        let renew = |client: Client| async move {
            let requests =
                tokio_stream::once(LeaseKeepAliveRequest { id: short }).chain(tokio_stream::pending());
            let mut answers = client.lease.clone().lease_keep_alive(requests).await?.into_inner();
            let kept = answers.message().await?.context("an answer")?;
            ensure!(kept.ttl == SHORT_S, "{kept:?}");
            anyhow::Ok(())
        };
        let leaving = leave(&up, &home, &[]);
        let renewing = async {
            loop {
                if let Err(error) = renew(served.clone()).await {
                    break error;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let said = tokio::select! {
            said = leaving => said?,
            failed = renewing => return Err(failed),
        };
        ensure!(said.contains("5 leases at the etcd"), "{said}");
        ensure!(
            by_creation(&direct, "election/", "election0").await?
                == ["election/bb8", "election/7d0", "election/3e8"]
        );
        ensure!(leases(&direct).await?.contains(&idle), "the lease without keys");
        // From here on its client knows the etcd alone.
        let end = Instant::now() + Duration::from_secs(3 * SHORT_S.unsigned_abs());
        while Instant::now() < end {
            renew(direct.clone()).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        ensure!(by_creation(&direct, "/service/", "/service0").await? == ["/service/leader"]);
        // Both ways are in use: a lease of kindred is known at the etcd at once, and the other way round.
        let late = grant(&served, 0, 600).await?;
        put(&direct, "/service/late", late).await?;
        renew(served.clone()).await
    });
}

/// Row 90: the leases of what was rehearsed stayed at the etcd for their whole time.
#[test]
fn f90_a_rehearsal_leaves_no_lease_behind() {
    scenario::run("leave-rehearsed", LIMIT, |dir| async move {
        let (up, home) = cluster(&dir).await?;
        let (served, direct) = (up.client().await?, home.client().await?);
        let own = grant(&direct, 77, 600).await?;
        for name in ["a", "b"] {
            let lease = grant(&served, 0, 600).await?;
            put(&served, &format!("/registry/leases/{name}"), lease).await?;
        }
        leave(&up, &home, &["--rehearse"]).await?;
        ensure!(leases(&direct).await? == [own], "the etcd's own alone");
        ensure!(by_creation(&direct, "/registry/", "/registry0").await?.is_empty());
        ensure!(leases(&served).await?.len() == 2);
        Ok(())
    });
}

/// Row 90: the page says "run it again" of a `leave` that was interrupted, but a second run met the moves of the first one, and did
/// not know what to do with them.
#[test]
fn f90_a_leave_that_is_killed_is_run_again() {
    scenario::run("leave-killed", LIMIT, |dir| async move {
        let (up, home) = cluster_of(&dir, SPLIT).await?;
        let (served, direct) = (up.client().await?, home.client().await?);
        let mut keys = Vec::new();
        for number in 0..400 {
            let kind = ["configmaps", "pods", "secrets", "events"][number % 4];
            let key = format!("/registry/{kind}/ns/{number:03}");
            put(&served, &key, 0).await?;
            keys.push(key);
        }
        keys.sort_unstable();
        for rehearse in [&["--rehearse"][..], &[]] {
            let mut after = Duration::from_millis(150);
            while !leave_killed_after(&up, &home, rehearse, after).await? {
                after = after.mul_f64(1.4);
            }
            let at = if rehearse.is_empty() { &direct } else { &served };
            let found = all_keys(at).await?;
            ensure!(found == keys, "{} of {}", found.len(), keys.len());
            if !rehearse.is_empty() {
                ensure!(all_keys(&direct).await?.is_empty());
                let moves =
                    kindred(&["move", "status", &format!("--admin=http://{}", up.admin)]).await?.ok()?;
                ensure!(!moves.contains("Ready") && !moves.contains("Copying"), "{moves}");
            }
        }
        Ok(())
    });
}

/// A move to an etcd deleted what the etcd had in the range of the Kind, and asked nobody.
#[test]
fn f90_keys_of_others_are_deleted_only_if_that_is_asked_for() {
    scenario::run("leave-foreign", LIMIT, |dir| async move {
        let (up, home) = cluster(&dir).await?;
        let (served, direct) = (up.client().await?, home.client().await?);
        put(&served, "/registry/pods/ns/ours", 0).await?;
        let (admin, url) = (format!("--admin=http://{}", up.admin), format!("http://{}", home.address));
        kindred(&["store", "add", "home", "--etcd", "--endpoint", &url, &admin]).await?.ok()?;
        let theirs = ["/registry/pods/ns/theirs", "/their/app"];
        for key in theirs {
            put(&direct, key, 0).await?;
        }
        let move_pods = ["move", "pods", "--to=home", &admin];
        let refused = kindred(&move_pods).await?.failed()?;
        ensure!(refused.contains(theirs[0]) && refused.contains("--delete-its-keys"), "{refused}");
        let planned = kindred(&[&move_pods[..], &["--dry-run"]].concat()).await?.ok()?;
        ensure!(planned.contains(theirs[0]), "{planned}");
        // The store is known, so the command's own check welcomes keys.
        let to = format!("--to={url}");
        let refused = kindred(&["leave", &to, &admin]).await?.failed()?;
        ensure!(refused.contains("store \"home\" has"), "{refused}");
        ensure!(by_creation(&direct, "/", "0").await? == theirs, "they are where they were");
        kindred(&[&move_pods[..], &["--delete-its-keys"]].concat()).await?.ok()?;
        ensure!(by_creation(&direct, "/", "0").await? == ["/their/app", "/registry/pods/ns/ours"]);
        Ok(())
    });
}
