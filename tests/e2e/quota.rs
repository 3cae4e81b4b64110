//! A full store refuses what would need space, as etcd refuses it, and refuses nothing else. This holds for operations
//! in a batch stream and for calls of their own. The same steps run against a real etcd.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::RangeRequest;
use kindred_tests::{
    client::Client,
    etcdctl::Etcdctl,
    scenario::{self, report, wait_for},
    servers::Etcd,
};
use tonic::{Code, Status};

use crate::e2e::{
    cluster::Cluster,
    ops::{self, below, delete_op, get_op, mod_is, put_op, value_of},
};

const LIMIT: Duration = Duration::from_secs(60);
const ROOM_LIMIT: Duration = Duration::from_secs(20);
const PODS: &str = "/registry/pods/";
const EVENTS: &str = "/registry/events/";
const QUOTA: &str = "--quota-backend-bytes=600000";
const QUOTA_OF_ETCD: &str = "--quota-backend-bytes=2000000";
/// An etcd measures its file, which grows some time after a write, so it takes more values than its quota allows.
const FULL_MAX: usize = 5000;
/// A value of this size travels in the batch stream.
const SMALL: usize = 50_000;
/// A value of this size gets a call of its own.
const LARGE: usize = 100_000;
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n- {name: small, slot: 2}\npartitions:\n\
    - {metadata: {name: pods}, resource: pods, serviceGroupId: small}\n";

fn pod(number: usize) -> String {
    format!("{PODS}ns/{number:04}")
}

fn is_full(what: &str, refused: Option<Status>) -> anyhow::Result<()> {
    let refused = refused.with_context(|| format!("{what} found room"))?;
    let told = (refused.code(), refused.message());
    ensure!(
        told == (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        "{what}: {told:?}"
    );
    Ok(())
}

/// Puts keys below a prefix until one is refused. Returns the number of accepted ones.
async fn fill(client: &Client, prefix: &str) -> anyhow::Result<usize> {
    let value = "x".repeat(SMALL);
    for number in 0..FULL_MAX {
        if let Err(refused) = ops::put(client, &format!("{prefix}ns/{number:04}"), &value).await {
            is_full("a put", Some(refused))?;
            return Ok(number);
        }
    }
    anyhow::bail!("there is room for {FULL_MAX} values of {SMALL} bytes")
}

/// The system under test. An etcd may execute the first write that it refuses, because it checks the space once more
/// while it applies the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Kindred,
    Etcd,
}

/// Takes a store from its first refusal until there is space again. Asserts what etcd does at each step.
async fn full_of_pods(asked: Asked, address: &str) -> anyhow::Result<usize> {
    let (client, etcdctl) = (Client::connect(address).await?, Etcdctl::new(address));
    let first = ops::put(&client, &pod(0), "first").await?;
    let taken = fill(&client, PODS).await?;
    ensure!(taken > 2, "there was room for {taken}");
    let alarms = etcdctl.ok(&["alarm", "list"]).await?;
    ensure!(alarms.lines().count() == 1 && alarms.contains("alarm:NOSPACE"), "{alarms}");

    // Every request that may put a value is refused, however small it is.
    let (key, absent) = (pod(0), format!("{PODS}ns/absent"));
    for bytes in [1, LARGE] {
        let value = "y".repeat(bytes);
        is_full("a put", ops::put(&client, &key, &value).await.err())?;
        let txn = |compare, success, failure| ops::txn(&client, compare, success, failure);
        let put = || vec![put_op(&key, &value)];
        is_full("a txn that puts", txn(vec![], put(), vec![]).await.err())?;
        let not_now = || vec![mod_is(&key, 1)];
        is_full("a txn that would put", txn(not_now(), put(), vec![get_op(&key)]).await.err())?;
        is_full("a txn that puts else", txn(not_now(), vec![get_op(&key)], put()).await.err())?;
        let both = vec![delete_op(&absent), put_op(&key, &value)];
        is_full("a txn that deletes and puts", txn(vec![], both, vec![]).await.err())?;
    }
    // A refused request changes nothing, and reads still work.
    let found = ops::get(&client, &key).await?;
    ensure!(found.kvs[0].version == 2 && found.kvs[0].create_revision == first, "{:?}", found.kvs[0].version);
    let count = ops::range(&client, RangeRequest { count_only: true, ..below(PODS) }).await?.count;
    let more = count - i64::try_from(taken)?;
    ensure!(more == 0 || (more == 1 && asked == Asked::Etcd), "{count} pods, {taken} were taken");
    for probe in [RangeRequest { limit: 1, ..below(PODS) }, RangeRequest { keys_only: true, ..below(PODS) }] {
        ensure!(ops::range(&client, probe).await?.count == count);
    }
    let reads = ops::txn(&client, vec![mod_is(&absent, 0)], vec![get_op(&key)], vec![]).await?;
    ensure!(reads.succeeded);
    // Deletes still work too, and free space.
    let deletes = ops::txn(&client, vec![mod_is(&absent, 0)], vec![delete_op(&key)], vec![]).await?;
    ensure!(deletes.succeeded && ops::get(&client, &key).await?.kvs.is_empty());
    ensure!(ops::delete(&client, &pod(1)).await?.0 == 1);
    let gone = etcdctl.ok(&["del", PODS, "--prefix"]).await?;
    ensure!(gone.trim() == (count - 2).to_string(), "{gone}");
    is_full("a put before the alarm is disarmed", ops::put(&client, &key, "v").await.err())?;

    let now = ops::get(&client, &key).await?.header.context("header")?.revision;
    etcdctl.ok(&["compact", &now.to_string(), "--physical"]).await?;
    etcdctl.ok(&["defrag"]).await?;
    is_full("a put before the alarm is disarmed", ops::put(&client, &key, "v").await.err())?;
    ensure!(etcdctl.ok(&["alarm", "disarm"]).await? == alarms);
    ensure!(etcdctl.ok(&["alarm", "list"]).await?.is_empty());
    let written = ops::put(&client, &key, "v").await?;
    ensure!(value_of(&ops::get(&client, &key).await?)? == ("v".into(), written));
    let again = ops::txn(&client, vec![mod_is(&key, written)], vec![put_op(&key, "w")], vec![]).await?;
    ensure!(again.succeeded);
    // The store fills up again and raises the same alarm.
    ensure!(fill(&client, PODS).await? > 2);
    ensure!(etcdctl.ok(&["alarm", "list"]).await? == alarms);
    Ok(taken)
}

/// Kinds on the other store are not affected, and reads over both stores are answered.
async fn others(client: &Client) -> anyhow::Result<()> {
    let key = "/registry/configmaps/ns/a";
    let (next, _) = ops::add_one(client, key).await?;
    ensure!(ops::add_one(client, key).await? == (next + 1, 0));
    ops::put(client, "/registry/configmaps/ns/large", &"z".repeat(LARGE)).await?;
    let all = ops::range(client, RangeRequest { count_only: true, ..below("/registry/") }).await?;
    ensure!(all.count > 2, "{all:?}");
    Ok(())
}

/// A Kind reaches its own quota on a store that has space. Only that Kind is refused, and there is no alarm.
async fn full_of_events(cluster: &Cluster, client: &Client) -> anyhow::Result<()> {
    ensure!((3..6).contains(&fill(client, EVENTS).await?));
    let key = format!("{EVENTS}ns/0000");
    let event = "x".repeat(SMALL);
    let txn = ops::txn(
        client,
        vec![],
        vec![put_op("/registry/configmaps/ns/b", "1"), put_op(&key, &event)],
        vec![],
    );
    is_full("a txn with an event", txn.await.err())?;
    ensure!(ops::get(client, "/registry/configmaps/ns/b").await?.kvs.is_empty());
    others(client).await?;
    let etcdctl = Etcdctl::new(&cluster.address);
    etcdctl.ok(&["del", EVENTS, "--prefix"]).await?;
    let now = ops::get(client, &key).await?.header.context("header")?.revision;
    etcdctl.ok(&["compact", &now.to_string(), "--physical"]).await?;
    wait_for("room for events", ROOM_LIMIT, || async { Ok(ops::put(client, &key, &event).await.ok()) })
        .await?;
    Ok(())
}

async fn start(dir: &Path) -> anyhow::Result<Cluster> {
    let flags = |name: &str| match name {
        "small" => vec![QUOTA.to_owned()],
        _ => vec!["--quota=events=250000".to_owned()],
    };
    Cluster::start(dir, CONFIG, &["main", "small"], flags).await
}

#[test]
fn a_full_store_refuses_what_needs_room_and_nothing_else() {
    scenario::run("quota", LIMIT, |dir| async move {
        let cluster = start(&dir).await?;
        let client = cluster.client().await?;
        full_of_events(&cluster, &client).await?;
        let taken = full_of_pods(Asked::Kindred, &cluster.address).await?;
        // `full_of_pods` leaves the store full.
        is_full("a pod", ops::put(&client, &pod(0), "v").await.err())?;
        others(&client).await?;
        let lease = Etcdctl::new(&cluster.address).ok(&["lease", "grant", "600"]).await?;
        ensure!(lease.contains("granted with TTL(600s)"), "its home has room: {lease}");
        let etcd = Etcd::start_with(&dir, "etcd", &[QUOTA_OF_ETCD]).await?;
        let by_etcd = full_of_pods(Asked::Etcd, &etcd.address).await?;
        report(&format!("e2e quota pods={taken} pods_of_etcd={by_etcd}"));
        Ok(())
    });
}
