//! `kindred leave`: what elections and clients with leases need of it.

use std::{
    path::Path,
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

async fn kindred(words: &[&str]) -> anyhow::Result<Output> {
    etcdctl::run(&our_binary("kindred")?, words, "").await
}

/// A cluster of one shard, and an etcd that can take what it has.
async fn cluster(dir: &Path) -> anyhow::Result<(Up, Etcd)> {
    let config = dir.join("config.yaml");
    std::fs::write(&config, CONFIG)?;
    let up = Up::start(dir, "kindred", &[format!("--config={}", config.display())]).await?;
    let prepared = dir.join("prepared.db");
    kindred(&["leave", "prepare", prepared.to_str().context("a path")?]).await?.ok()?;
    Ok((up, Etcd::restored(dir, "home", &prepared).await?))
}

async fn leave(up: &Up, home: &Etcd, more: &[&str]) -> anyhow::Result<String> {
    let (admin, to) = (format!("--admin=http://{}", up.admin), format!("--to=http://{}", home.address));
    kindred(&[&["leave", &admin, &to], more].concat()).await?.ok()
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
