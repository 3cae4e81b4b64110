//! A shard stops answering. Only the watches that need it are delayed, the router names the shard, and events stay in
//! order.

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::FutureExt as _;
use kindred_proto::etcdserverpb::PutRequest;
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
};

use crate::e2e::{
    cluster::Cluster,
    watchers::{read_events, watch},
};

const LIMIT: Duration = Duration::from_secs(120);
const SHOWN_LIMIT: Duration = Duration::from_secs(40);
const HELD: usize = 50;

const CONFIG: &str = "default: other\nstores:\n\
    - {name: low, slot: 1}\n- {name: high, slot: 2}\n- {name: other, slot: 3}\npartitions:\n\
    - {metadata: {name: a}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: low}\n\
    - {metadata: {name: b}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: high}\n";

async fn put(client: &mut Client, key: String) -> anyhow::Result<()> {
    let request = PutRequest { key: Bytes::from(key), value: Bytes::from_static(b"x"), ..Default::default() };
    client.kv.put(request).await?;
    Ok(())
}

/// Sends a signal, such as `-STOP` or `-CONT`.
pub fn signal(pid: u32, signal: &str) -> anyhow::Result<()> {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status()?;
    ensure!(sent.success(), "kill {signal} {pid} failed");
    Ok(())
}

#[test]
fn r6_a_stopped_shard_delays_its_own_ranges_visibly_and_in_order() {
    scenario::run("stopped_shard", LIMIT, |dir| async move {
        let flags = |_: &str| vec!["--in-cluster".to_owned()];
        let cluster = Cluster::start(&dir, CONFIG, &["low", "high", "other"], flags).await?;
        let mut client = cluster.client().await?;
        let (_all_requests, mut all) = watch(&client, "/registry/pods/", 1).await?;
        let (_low_requests, mut low) = watch(&client, "/registry/pods/a/", 1).await?;
        let (_other_requests, mut other) = watch(&client, "/registry/configmaps/", 1).await?;
        put(&mut client, "/registry/pods/z/0".to_owned()).await?;
        put(&mut client, "/registry/pods/a/0".to_owned()).await?;
        read_events(&mut all, 2).await?;
        read_events(&mut low, 1).await?;

        let high = cluster.shards[1].process.pid().context("the shard runs")?;
        signal(high, "-STOP")?;
        for index in 1..=HELD {
            put(&mut client, format!("/registry/pods/a/{index}")).await?;
            put(&mut client, format!("/registry/configmaps/ns/{index}")).await?;
        }
        // Watches that do not need the stopped shard receive their events.
        read_events(&mut low, HELD).await?;
        read_events(&mut other, HELD).await?;
        // A watch that needs it is held back. The router names the store and how long it has lagged.
        let line = wait_for("the store to be named", SHOWN_LIMIT, || {
            cluster.ready_line(&["watches", "store high has held back"])
        })
        .await?;
        let waited = wait_for("the metric", SHOWN_LIMIT, || async {
            let lag = cluster.metric("kindred_router_feed_lag_seconds", "high").await?;
            Ok((lag > 0.0).then_some(lag))
        })
        .await?;
        for store in ["low", "other"] {
            let lag = cluster.metric("kindred_router_feed_lag_seconds", store).await?;
            ensure!(lag == 0.0, "{store} is said to lag by {lag} s");
        }
        let early = all.message().now_or_never();
        ensure!(early.is_none(), "an event was shown before what may still come: {early:?}");

        signal(high, "-CONT")?;
        wait_for("writes to the store", SHOWN_LIMIT, || {
            let mut client = client.clone();
            async move { Ok(put(&mut client, "/registry/pods/z/1".to_owned()).await.ok()) }
        })
        .await?;
        put(&mut client, "/registry/pods/a/last".to_owned()).await?;
        // After the shard continues, every event comes once and in order.
        read_events(&mut all, HELD + 2).await?;
        read_events(&mut low, 1).await?;
        wait_for("no store to lag", SHOWN_LIMIT, || async {
            Ok(cluster.ready_line(&["held back"]).await?.is_none().then_some(()))
        })
        .await?;
        report(&format!("e2e stopped_shard held={HELD} shown_lag_s={waited:.1} line={line:?}"));
        Ok(())
    });
}
