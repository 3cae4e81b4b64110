//! R3: a shard whose clock is an hour ahead serves nothing and changes no other clock.

use std::{
    collections::HashMap,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
};

use crate::e2e::cluster::Cluster;

const LIMIT: Duration = Duration::from_secs(120);
const CHANGE_LIMIT: Duration = Duration::from_secs(30);
/// No healthy clock is further ahead of this machine's, not even after a raise or a burst.
const NEAR_SECONDS: u64 = 30;

/// Pods are on two stores, and events only on `late`.
const CONFIG: &str = "default: first\nstores:\n\
    - {name: first, slot: 1}\n- {name: second, slot: 2}\n- {name: late, slot: 3}\npartitions:\n\
    - {metadata: {name: a}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: first}\n\
    - {metadata: {name: b}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: second}\n\
    - {metadata: {name: c}, resource: events, serviceGroupId: late}\n\
    - {metadata: {name: d}, resource: configmaps, ring: {stores: [first, late]}}\n";

async fn put(client: &mut Client, key: &str) -> Result<i64, tonic::Status> {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let request = PutRequest { key, value: Bytes::from_static(b"x"), ..Default::default() };
    Ok(client.kv.put(request).await?.into_inner().header.map_or(0, |header| header.revision))
}

async fn list(client: &mut Client, prefix: &str) -> Result<i64, tonic::Status> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("not empty") += 1;
    let key = Bytes::copy_from_slice(prefix.as_bytes());
    let request = RangeRequest { key, range_end: end.into(), ..Default::default() };
    Ok(client.kv.range(request).await?.into_inner().header.map_or(0, |header| header.revision))
}

fn near(revision: i64) -> anyhow::Result<()> {
    let now = UNIX_EPOCH.elapsed()?.as_secs();
    let seconds = (revision >> 10).unsigned_abs() / 1_000_000;
    ensure!(seconds.abs_diff(now) < NEAR_SECONDS, "revision {revision} is of {seconds}, now is {now}");
    Ok(())
}

#[test]
fn r3_a_shard_an_hour_ahead_is_left_out_and_poisons_nothing() {
    scenario::run("wrong_clock", LIMIT, |dir| async move {
        let flags = |name: &str| {
            let offset = (name == "late").then(|| "--wall-clock-offset=1h".to_owned());
            ["--in-cluster".to_owned()].into_iter().chain(offset).collect()
        };
        let mut cluster = Cluster::start(&dir, CONFIG, &["first", "second", "late"], flags).await?;
        let mut client = cluster.client().await?;

        // Requests for its Kinds are refused at once, and the error says what to do.
        let mut refusals = 0;
        for (what, refused) in [
            ("a put", put(&mut client, "/registry/events/ns/1").await),
            ("a list", list(&mut client, "/registry/events/").await),
            ("a list over a good store and it", list(&mut client, "/registry/configmaps/").await),
        ] {
            let status = refused.err().with_context(|| format!("{what} was answered"))?;
            ensure!(status.code() == tonic::Code::Unavailable, "{what}: {status}");
            ensure!(status.message().contains("\"late\""), "{what}: {status}");
            ensure!(status.message().contains("its clock is 3"), "{what}: {status}");
            refusals += 1;
        }
        // Nor does it serve clients without a router, so it never assigns a revision from the wrong hour.
        let mut direct = cluster.shards[2].client().await?;
        let refused = put(&mut direct, "/registry/events/ns/1").await.err().context("it answered a put")?;
        ensure!(
            refused.code() == tonic::Code::Unavailable && refused.message().contains("clock"),
            "{refused}"
        );

        let line = cluster.ready_line(&["store-late", "skewed", "ahead"]).await?;
        ensure!(line.is_some(), "{}", cluster.admin("/readyz?verbose").await?);
        let offset = cluster.metric("kindred_router_store_clock_offset_seconds", "late").await?;
        ensure!((offset - 3600.0).abs() < 30.0, "offset {offset}");
        ensure!(cluster.metric("kindred_router_store_clock_offset_seconds", "first").await?.abs() < 10.0);
        ensure!(cluster.metric("kindred_router_store_up", "late").await? == 0.0);
        let log = std::fs::read_to_string(dir.join("router.err.log"))?;
        ensure!(log.contains("skewed") && log.contains("store=\"late\""), "{log}");

        // Everything else works, with revisions near the real time.
        let mut last = HashMap::new();
        let mut writes = 0;
        for round in 0..50 {
            for half in ["a", "z"] {
                let revision = put(&mut client, &format!("/registry/pods/{half}/{round}")).await?;
                near(revision)?;
                ensure!(last.insert(half, revision).is_none_or(|before| before < revision));
                writes += 1;
            }
            let header = list(&mut client, "/registry/pods/").await?;
            near(header)?;
            ensure!(last.values().all(|revision| *revision <= header), "{header} below {last:?}");
        }

        // The store comes back by itself once its clock is right.
        let late = &mut cluster.shards[2].process;
        late.stop().await?;
        late.set_arg("--wall-clock-offset", "0s");
        late.restart().await?;
        let first = wait_for("the store to come back", CHANGE_LIMIT, || {
            let mut client = client.clone();
            async move { Ok(put(&mut client, "/registry/events/ns/1").await.ok()) }
        })
        .await?;
        near(first)?;
        near(list(&mut client, "/registry/configmaps/").await?)?;
        ensure!(cluster.ready_line(&["skewed"]).await?.is_none());
        report(&format!("e2e wrong_clock refusals={refusals} writes={writes} dragged=0"));
        Ok(())
    });
}

#[test]
fn r1_a_router_of_another_cluster_is_refused() {
    scenario::run("foreign_cluster", LIMIT, |dir| async move {
        let config = "default: only\nstores:\n- {name: only, slot: 1}\n";
        let other = |_: &str| vec!["--cluster-id=7".to_owned()];
        let cluster = Cluster::start(&dir, config, &["only"], other).await?;
        let mut client = cluster.client().await?;
        let refused = put(&mut client, "/registry/pods/a/1").await.err().context("it answered a put")?;
        ensure!(refused.message().contains("cluster 0x7"), "{refused}");
        ensure!(cluster.ready_line(&["store-only", "refused", "0x7"]).await.is_err(), "no store: not ready");
        report("e2e foreign_cluster refused=1");
        Ok(())
    });
}
