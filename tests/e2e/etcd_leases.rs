//! Leases with keys at a real etcd and at a shard: those that the etcd granted, and those of the shard. Pods, with leases of
//! both, move from the one to the other.

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, PutRequest, RangeRequest,
};
use kindred_tests::{
    client::Client,
    etcdctl,
    process::our_binary,
    scenario::{self, wait_for},
    servers::Shard,
};
use serde_json::json;
use tokio_stream::StreamExt as _;

use crate::e2e::{
    from_etcd::{CLUSTER, Cluster, begin},
    to_etcd::prepared,
};

const LIMIT: Duration = Duration::from_secs(120);
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// The TTL of leases that end in the test, in seconds. A shard and an etcd have whole seconds, and this machine may be slow.
const SHORT_S: i64 = 8;

async fn grant(client: &Client, ttl: i64) -> anyhow::Result<i64> {
    Ok(client.lease.clone().lease_grant(LeaseGrantRequest { id: 0, ttl }).await?.into_inner().id)
}

async fn put(client: &Client, key: &str, lease: i64) -> anyhow::Result<()> {
    let put = PutRequest { key: key.to_owned().into(), lease, ..PutRequest::default() };
    client.kv.clone().put(put).await.with_context(|| format!("put {key} with lease {lease:x}"))?;
    Ok(())
}

async fn told(client: &Client, id: i64) -> anyhow::Result<LeaseTimeToLiveResponse> {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let mut told = client.lease.clone().lease_time_to_live(request).await?.into_inner();
    told.keys.sort_unstable();
    Ok(told)
}

/// Checks the granted TTL of a lease and its keys.
async fn holds(client: &Client, id: i64, ttl: i64, keys: &[&str]) -> anyhow::Result<()> {
    let told = told(client, id).await?;
    let of: Vec<String> = told.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    ensure!(told.granted_ttl == ttl && of == keys, "lease {id:x}: {told:?}, not {ttl} and {keys:?}");
    Ok(())
}

async fn is_there(client: &Client, key: &str) -> anyhow::Result<bool> {
    let get = RangeRequest { key: key.to_owned().into(), count_only: true, ..RangeRequest::default() };
    Ok(client.kv.clone().range(get).await?.into_inner().count == 1)
}

async fn gone(client: &Client, key: &str) -> anyhow::Result<()> {
    let what = format!("the end of {key}");
    wait_for(&what, STEP_LIMIT, || async { Ok((!is_there(client, key).await?).then_some(())) }).await
}

async fn revoke(client: &Client, id: i64) -> anyhow::Result<()> {
    client.lease.clone().lease_revoke(LeaseRevokeRequest { id }).await?;
    Ok(())
}

#[test]
fn r12_a_lease_has_keys_at_an_etcd_and_at_a_shard() {
    scenario::run("etcd-leases", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let (one, two) = (cluster.router("one", "").await?, cluster.router("two", "").await?);
        let (client, other) = (Client::connect(&one.address).await?, Client::connect(&two.address).await?);
        let direct = cluster.old.client().await?;

        // A lease of the shard, with keys at both: the etcd adopts it, and it ends at both.
        let ours = grant(&client, 600).await?;
        put(&client, "/registry/pods/a/ours", ours).await?;
        put(&client, "/registry/configmaps/a/ours", ours).await?;
        let both = ["/registry/configmaps/a/ours", "/registry/pods/a/ours"];
        holds(&other, ours, 600, &both).await?;
        revoke(&other, ours).await?;
        for key in both {
            ensure!(!is_there(&client, key).await?, "{key} is there behind the answer to the revoke");
        }
        let left = direct.lease.clone().lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
        ensure!(left.is_empty(), "{left:?}");
        let refused = put(&client, "/registry/pods/a/ours", ours).await;
        ensure!(refused.is_err_and(|e| format!("{e:#}").contains("requested lease not found")));

        // A lease of the etcd's own is used at the shard: the shard becomes its home.
        let theirs = grant(&direct, 600).await?;
        put(&direct, "/registry/pods/a/theirs", theirs).await?;
        holds(&client, theirs, 600, &["/registry/pods/a/theirs"]).await?;
        put(&client, "/registry/configmaps/a/theirs", theirs).await?;
        put(&other, "/registry/pods/a/more", theirs).await?;
        let three = ["/registry/configmaps/a/theirs", "/registry/pods/a/more", "/registry/pods/a/theirs"];
        holds(&other, theirs, 600, &three).await?;

        // Pods move with leases of both.
        let moved = grant(&client, 600).await?;
        put(&client, "/registry/pods/b/moved", moved).await?;
        let own = grant(&direct, 600).await?;
        put(&direct, "/registry/pods/b/own", own).await?;
        let short = grant(&direct, SHORT_S).await?;
        put(&direct, "/registry/pods/b/short", short).await?;
        let kept = grant(&direct, SHORT_S).await?;
        put(&direct, "/registry/pods/b/kept", kept).await?;
        put(&client, "/registry/configmaps/b/kept", kept).await?;
        let keeping = {
            let client = other.clone();
            tokio::spawn(async move { keep_alive(&client, kept).await })
        };
        let id = begin(&one.admin).await?;
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        holds(&other, theirs, 600, &three).await?;
        holds(&client, moved, 600, &["/registry/pods/b/moved"]).await?;
        holds(&client, own, 600, &["/registry/pods/b/own"]).await?;
        // One that nobody keeps alive ends, and one that is kept alive does not.
        gone(&client, "/registry/pods/b/short").await?;
        tokio::time::sleep(Duration::from_secs(SHORT_S.unsigned_abs())).await;
        ensure!(is_there(&client, "/registry/pods/b/kept").await?, "it is kept alive");
        ensure!(is_there(&client, "/registry/configmaps/b/kept").await?, "it is kept alive");
        ensure!(!keeping.is_finished(), "keepalives ended: {:?}", keeping.await);
        keeping.abort();
        gone(&client, "/registry/pods/b/kept").await?;
        gone(&client, "/registry/configmaps/b/kept").await?;
        // What moved is the shard's: what happens in the etcd does not matter any more.
        revoke(&direct, own).await?;
        ensure!(is_there(&client, "/registry/pods/b/own").await?, "the etcd has it no more");
        put(&client, "/registry/pods/b/again", own).await?;
        revoke(&client, own).await?;
        revoke(&client, theirs).await?;
        for key in three.iter().chain(&["/registry/pods/b/own", "/registry/pods/b/again"]) {
            gone(&client, key).await?;
        }
        ensure!(is_there(&client, "/registry/pods/b/moved").await?);
        Ok(())
    });
}

/// Whoever makes a lease may choose its id, and an etcd does. One whose id had the slot of the store that was to take its keys was
/// taken for that store's own: no shard took the Kind, and no etcd, as it had the keys without the lease.
#[test]
fn r12_a_lease_whose_id_has_the_slot_of_a_store_goes_there_as_any_other() {
    scenario::run("lease-slots", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let one = cluster.router("one", "").await?;
        let (client, direct) = (Client::connect(&one.address).await?, cluster.old.client().await?);
        let flags = ["--name=other", "--slot=2", "--durability=fsync", CLUSTER].map(str::to_owned);
        let (other, next) = (Shard::start(&dir, "other", &flags).await?, prepared(&dir, "next").await?);
        let admin = format!("--admin=http://{}", one.admin.address());
        for (store, address) in [("other", &other.address), ("next", &next.address)] {
            let endpoint = format!("http://{address}");
            let mut words = vec![&*admin, "store", "add", store, "--endpoint", &endpoint];
            words.extend((store == "next").then_some("--etcd"));
            etcdctl::run(&our_binary("kindred")?, &words, "").await?.ok()?;
        }
        let stores = one.admin.ok("GET", "/api/v1/stores", &json!({})).await?;
        let slots =
            stores["stores"].as_array().into_iter().flatten().filter_map(|store| store["slot"].as_i64());
        let slots: Vec<i64> = slots.collect();
        ensure!(slots.len() == 4 && slots.contains(&1022), "{slots:?}");

        let (short, brief) = (76 << 10 | 2, "/registry/pods/76/2");
        direct.lease.clone().lease_grant(LeaseGrantRequest { id: short, ttl: 600 }).await?;
        put(&client, brief, short).await?;
        for (round, to) in (77..).zip(["other", "next"]) {
            let of = |slot: &i64| (round << 10 | slot, format!("/registry/pods/{round}/{slot}"));
            for (id, key) in slots.iter().map(of) {
                let granter = if to == "other" { &direct } else { &client };
                granter.lease.clone().lease_grant(LeaseGrantRequest { id, ttl: 600 }).await?;
                put(&client, &key, id).await?;
            }
            let ids = one.admin.change("move", &json!({ "kind": "pods", "to": to })).await?;
            let moved = ids.first().copied().context("a move")?;
            one.admin.until(moved, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
            for (id, key) in slots.iter().map(of) {
                holds(&client, id, 600, &[&key]).await?;
            }
            if to == "other" {
                revoke(&client, short).await?;
                gone(&client, brief).await?;
            }
        }
        let first = |slot: &i64| (77 << 10 | slot, format!("/registry/pods/77/{slot}"));
        let there = next.client().await?;
        for (id, key) in slots.iter().map(first) {
            holds(&there, id, 600, &[&key]).await?;
            revoke(&client, id).await?;
            gone(&client, &key).await?;
        }
        Ok(())
    });
}

/// Keeps a lease alive, until it is over.
async fn keep_alive(client: &Client, id: i64) -> anyhow::Result<()> {
    loop {
        let requests = tokio_stream::once(LeaseKeepAliveRequest { id }).chain(tokio_stream::pending());
        let mut answers = client.lease.clone().lease_keep_alive(requests).await?.into_inner();
        let answer = answers.message().await?.context("an answer")?;
        ensure!(answer.ttl == SHORT_S, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
