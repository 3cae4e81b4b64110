//! The meta store is restored from before a failover, or lost, and every process is started again. What the members know of
//! themselves says who serves.

use anyhow::ensure;
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    client::Client,
    scenario::{self, wait_for},
};
use serde_json::json;

use crate::failover::{
    cluster::{Cluster, STORE},
    members::LIMIT,
};

const KEY: &str = "/registry/pods/a/b";

/// Writes as soon as the store takes a write.
async fn put(client: &Client, value: &str) -> anyhow::Result<()> {
    wait_for("a write", LIMIT, || async {
        let value = value.as_bytes().to_vec().into();
        let put = PutRequest { key: KEY.into(), value, ..PutRequest::default() };
        Ok(client.kv.clone().put(put).await.ok())
    })
    .await?;
    Ok(())
}

async fn holds(cluster: &Cluster, value: &str) -> anyhow::Result<()> {
    let range = RangeRequest { key: KEY.into(), ..RangeRequest::default() };
    let read = cluster.routers[1].client.kv.clone().range(range).await?.into_inner();
    ensure!(read.kvs.len() == 1 && read.kvs[0].value == value.as_bytes(), "{read:?}");
    Ok(())
}

/// Waits until the routers say of the store what is wrong.
async fn says(cluster: &Cluster, what: &str) -> anyhow::Result<String> {
    wait_for("the routers to say what is wrong", LIMIT, || async {
        let trouble = cluster.shown().await?["standbyTrouble"].as_str().unwrap_or_default().to_owned();
        Ok(trouble.contains(what).then_some(trouble))
    })
    .await
}

/// The former primary was confirmed, and the disk of the one that had served since was wiped.
#[test]
fn f67_a_record_from_before_a_failover_wipes_nothing() {
    scenario::run("failover_older_record", 4 * LIMIT, |dir| async move {
        let mut cluster = Cluster::start(&dir).await?;
        cluster.add_standbys(&dir, &["second", "third"], json!({})).await?;
        let former = cluster.in_sync(2).await?;
        put(&cluster.routers[0].client, "old").await?;
        cluster.keep_meta(&dir).await?;

        cluster.member(&former)?.kill().await?;
        put(&cluster.routers[0].client, "new").await?;
        let newest = cluster.in_sync_of(1).await?;
        ensure!(newest != former, "{newest} serves");

        // The third one says that it has begun anew.
        cluster.restore_meta(&dir).await?;
        let now = cluster.in_sync(2).await?;
        ensure!(now == newest, "{now} serves");
        holds(&cluster, "new").await
    });
}

/// A primary in doubt waited for its standby, and that for its copy: no command ended it.
#[test]
fn f68_a_store_whose_record_is_lost_comes_back_by_itself_or_by_a_command() {
    scenario::run("failover_lost_record", 6 * LIMIT, |dir| async move {
        let mut cluster = Cluster::start(&dir).await?;
        cluster.add_standbys(&dir, &["second"], json!({})).await?;
        let former = cluster.in_sync(1).await?;
        let newest = cluster.other(&former)?.url.clone();
        put(&cluster.routers[0].client, "old").await?;
        cluster.failover(&json!({ "store": STORE, "to": newest })).await?;
        cluster.in_sync(1).await?;
        put(&cluster.routers[0].client, "new").await?;

        // The configuration has the former primary.
        cluster.lose_meta(&dir, None).await?;
        let now = cluster.in_sync(1).await?;
        ensure!(now == newest, "{now} serves");
        holds(&cluster, "new").await?;

        // Whether the former one was promoted, nobody says any more.
        cluster.lose_meta(&dir, Some(&former)).await?;
        let told = says(&cluster, "there is no record of its members any more").await?;
        ensure!(told.contains(&format!("--to {newest} --force")), "{told}");
        cluster.force(&newest).await?;
        cluster.member(&former)?.up();
        cluster.in_sync(1).await?;
        holds(&cluster, "new").await
    });
}
