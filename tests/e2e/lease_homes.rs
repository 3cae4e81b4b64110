//! Leases whose home is removed or lost, or whose keys moved away. None is lost, none ends early, and each ends at last
//! (R12).

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest,
};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
    servers::{Shard, Up},
};

use crate::e2e::moves::Cli;

const LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(60);
/// A store that `kindred up` does not start needs the cluster's id as a flag.
const CLUSTER: &str = "--cluster-id=0x1ee7";
const CONFIG: &str = "default: d\nstores:\n- {name: d, slot: 1}\n- {name: a, slot: 2}\n- {name: b, slot: 3}\npartitions:\n\
    - {metadata: {name: nodes}, resource: nodes, serviceGroupId: a}\n\
    - {metadata: {name: configmaps}, resource: configmaps, serviceGroupId: d}\n";

async fn up(dir: &Path) -> anyhow::Result<(Up, Cli, Client)> {
    let config = dir.join("config.yaml");
    std::fs::write(&config, CONFIG)?;
    let up = Up::start(dir, "up", &[CLUSTER.to_owned(), format!("--config={}", config.display())]).await?;
    let (cli, client) = (Cli::new(&up)?, up.client().await?);
    Ok((up, cli, client))
}

async fn grant(client: &Client, id: i64, ttl: i64) -> Result<i64, tonic::Status> {
    Ok(client.lease.clone().lease_grant(LeaseGrantRequest { id, ttl }).await?.into_inner().id)
}

async fn put(client: &Client, key: &str, lease: i64) -> Result<(), tonic::Status> {
    let key = Bytes::from(key.to_owned());
    let request = PutRequest { key, value: Bytes::from_static(b"v"), lease, ..Default::default() };
    client.kv.clone().put(request).await.map(drop)
}

async fn there(client: &Client, key: &str) -> anyhow::Result<bool> {
    let request = RangeRequest { key: key.to_owned().into(), ..Default::default() };
    Ok(client.kv.clone().range(request).await?.into_inner().count == 1)
}

/// The TTL that a keep-alive answers, in seconds; 0 for a lease that has ended.
async fn renew(client: &Client, id: i64) -> anyhow::Result<i64> {
    let asked = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut answers = client
        .lease
        .clone()
        .lease_keep_alive(tokio_stream::StreamExt::chain(asked, tokio_stream::pending()))
        .await?
        .into_inner();
    Ok(answers.message().await?.context("no answer")?.ttl)
}

async fn told(client: &Client, id: i64) -> anyhow::Result<(i64, Vec<String>)> {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let told = client.lease.clone().lease_time_to_live(request).await?.into_inner();
    let mut keys: Vec<String> =
        told.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    keys.sort();
    Ok((told.granted_ttl, keys))
}

async fn revoke(client: &Client, id: i64) -> Result<(), tonic::Status> {
    client.lease.clone().lease_revoke(LeaseRevokeRequest { id }).await.map(drop)
}

async fn gone(client: &Client, keys: &[&str]) -> anyhow::Result<()> {
    wait_for("keys to end with their lease", SOON, async || {
        for key in keys {
            if there(client, key).await? {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await
}

/// Completes both moves of a drain: that of the Kind, and that of the keys without a configured Kind.
async fn complete(cli: &Cli) -> anyhow::Result<()> {
    for number in ["1", "2"] {
        cli.ok(&["move", "complete", number]).await?;
    }
    Ok(())
}

/// The default store, which is the home of every lease, is drained and removed.
#[test]
fn f04_a_drained_home_hands_its_leases_to_an_heir() {
    scenario::run("drained-home", LIMIT, |dir| async move {
        let (_up, cli, client) = up(&dir).await?;
        const CHOSEN: i64 = (7 << 10) | 900;
        let keys = ["/registry/minions/x1", "/registry/configmaps/ns/x2"];
        let long = grant(&client, 0, 600).await?;
        // This lease is renewed during the whole drain, and no keep-alive may answer that it has ended.
        let short = grant(&client, 0, 30).await?;
        grant(&client, CHOSEN, 600).await?;
        for (lease, name) in [(long, "long"), (short, "short"), (CHOSEN, "chosen")] {
            for key in keys {
                put(&client, &format!("{key}-{name}"), lease).await?;
            }
        }
        let renewing = tokio::spawn({
            let client = client.clone();
            async move {
                loop {
                    match renew(&client, short).await {
                        Ok(30) => tokio::time::sleep(Duration::from_millis(100)).await,
                        other => return other,
                    }
                }
            }
        });
        let all = |name: &str| vec![format!("{}-{name}", keys[1]), format!("{}-{name}", keys[0])];
        cli.ok(&["drain", "d", "--to", "b"]).await?;
        for (lease, name, ttl) in [(long, "long", 600), (short, "short", 30), (CHOSEN, "chosen", 600)] {
            ensure!(renew(&client, lease).await? == ttl, "{name}, drained");
        }
        complete(&cli).await?;
        cli.ok(&["store", "remove", "d"]).await?;
        for (lease, name, ttl) in [(long, "long", 600), (short, "short", 30), (CHOSEN, "chosen", 600)] {
            ensure!(renew(&client, lease).await? == ttl, "{name}, removed");
            let (granted, held) = told(&client, lease).await?;
            ensure!((granted, &held) == (ttl, &all(name)), "{name}: {granted} {held:?}");
        }
        let taken = grant(&client, CHOSEN, 60).await.err().context("the id is in use")?;
        ensure!(taken.message().contains("lease already exists"), "{taken}");
        put(&client, "/registry/minions/x3-long", long).await?;
        // The short lease expires without renewal. The other two are revoked.
        ensure!(!renewing.is_finished(), "{:?}", renewing.await);
        renewing.abort();
        revoke(&client, long).await?;
        revoke(&client, CHOSEN).await?;
        gone(
            &client,
            &["/registry/minions/x1-long", "/registry/minions/x3-long", "/registry/minions/x1-chosen"],
        )
        .await?;
        gone(&client, &["/registry/configmaps/ns/x2-chosen", "/registry/minions/x1-short"]).await?;
        gone(&client, &["/registry/configmaps/ns/x2-short"]).await?;
        for lease in [long, short, CHOSEN, 4711] {
            let refused = put(&client, "/registry/minions/x4", lease).await.err().context("it is over")?;
            ensure!(refused.message().contains("requested lease not found"), "{refused}");
            ensure!(renew(&client, lease).await? == 0);
        }
        grant(&client, CHOSEN, 60).await?;
        report("leases: 3 of a default store that was drained and removed went to its heir");
        Ok(())
    });
}

async fn ext(up: &Up, dir: &Path, folder: &str, slot: u16) -> anyhow::Result<Shard> {
    let (slot, secret) =
        (format!("--slot={slot}"), format!("--cluster-secret-file={}", up.secret().display()));
    let flags = ["--name=ext", &slot, "--in-cluster", &secret, CLUSTER, "--durability=buffered"];
    Shard::start(dir, folder, &flags.map(str::to_owned)).await
}

/// A home is lost with its data. Its leases are rebuilt at another home from what other stores adopted.
#[test]
fn f04_leases_of_a_lost_home_live_on_and_end() {
    scenario::run("lost-home", LIMIT, |dir| async move {
        let (up, cli, client) = up(&dir).await?;
        let mut old = ext(&up, &dir, "old", 4).await?;
        cli.ok(&["store", "add", "ext", "--endpoint", &format!("http://{}", old.address)]).await?;
        cli.ok(&["drain", "d", "--to", "ext"]).await?;
        complete(&cli).await?;
        let (long, short) = (grant(&client, 0, 600).await?, grant(&client, 0, 5).await?);
        ensure!(long & 1023 == 4, "{long} is at home at the store with slot 4");
        put(&client, "/registry/minions/long", long).await?;
        put(&client, "/registry/minions/short", short).await?;
        let new = ext(&up, &dir, "new", 5).await?;
        old.process.kill()?;
        let url = format!("http://{}", new.address);
        wait_for("the store to be replaced", SOON, async || {
            let replaced = cli.output(&["store", "replace", "ext", "--endpoint", &url, "--force"]).await?;
            Ok(replaced.ok().is_ok().then_some(()))
        })
        .await?;
        wait_for("the lease to be at home again", SOON, async || {
            let renewed = tokio::time::timeout(Duration::from_secs(5), renew(&client, long)).await;
            Ok(renewed.is_ok_and(|ttl| ttl.is_ok_and(|ttl| ttl == 600)).then_some(()))
        })
        .await?;
        gone(&client, &["/registry/minions/short"]).await?;
        ensure!(there(&client, "/registry/minions/long").await?);
        revoke(&client, long).await?;
        gone(&client, &["/registry/minions/long"]).await?;
        for lease in [long, short] {
            let refused = put(&client, "/registry/minions/x", lease).await.err().context("it is over")?;
            ensure!(refused.message().contains("requested lease not found"), "{refused}");
        }
        report("leases: 2 of a lost home, one revoked and one expired in its place");
        Ok(())
    });
}

/// Leases of keys that moved away end as usual, while the move can still be reversed.
#[test]
fn f19_leases_of_moved_keys_expire_and_are_revoked() {
    scenario::run("moved-leases", LIMIT, |dir| async move {
        let (_up, cli, client) = up(&dir).await?;
        let (short, long) = (grant(&client, 0, 5).await?, grant(&client, 0, 600).await?);
        put(&client, "/registry/configmaps/ns/short", short).await?;
        put(&client, "/registry/configmaps/ns/long", long).await?;
        cli.ok(&["move", "configmaps", "--to", "b"]).await?;
        revoke(&client, long).await?;
        gone(&client, &["/registry/configmaps/ns/long", "/registry/configmaps/ns/short"]).await?;
        ensure!(renew(&client, short).await? == 0);
        // The reversed move does not bring their keys back.
        cli.ok(&["move", "reverse", "1"]).await?;
        gone(&client, &["/registry/configmaps/ns/long", "/registry/configmaps/ns/short"]).await?;
        report("leases: 2 of moved keys ended while the way back was open");
        Ok(())
    });
}

/// It was acknowledged while a store was away, and a moment later the key was there again, with a lease that had ended.
#[test]
fn r12_a_revoke_is_acknowledged_when_the_keys_are_gone_wherever_they_are() {
    scenario::run("revoked-away", LIMIT, |dir| async move {
        let (up, _, client) = up(&dir).await?;
        for round in 0..3 {
            let (lease, key) = (grant(&client, 0, 600).await?, format!("/registry/minions/n{round}"));
            put(&client, &key, lease).await?;
            up.kill_shard("a")?;
            match revoke(&client, lease).await {
                Ok(()) => ensure!(!there(&client, &key).await?, "{key} is there behind the answer"),
                // The shard was not back in time.
                Err(status) => gone(&client, &[&key]).await.with_context(|| status.to_string())?,
            }
        }
        Ok(())
    });
}
