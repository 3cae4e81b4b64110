//! The meta store is restored from before a failover, and every process is started again.

use anyhow::ensure;
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    client::Client,
    scenario::{self, wait_for},
};
use serde_json::json;

use crate::failover::{cluster::Cluster, members::LIMIT};

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

        cluster.restore_meta(&dir).await?;
        let told = wait_for("the routers to say what is wrong", LIMIT, || async {
            let trouble = cluster.shown().await?["standbyTrouble"].as_str().unwrap_or_default().to_owned();
            Ok(trouble.contains("older than its members").then_some(trouble))
        })
        .await?;
        ensure!(told.contains(&format!("--to {newest} --force")), "{told}");
        cluster.force(&newest).await?;
        cluster.in_sync(2).await?;
        let range = RangeRequest { key: KEY.into(), ..RangeRequest::default() };
        let read = cluster.routers[1].client.kv.clone().range(range).await?.into_inner();
        ensure!(read.kvs.len() == 1 && read.kvs[0].value == "new", "{read:?}");
        Ok(())
    });
}
