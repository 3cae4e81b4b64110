//! A standby whose disk takes nothing more.

use std::time::Duration;

use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    client::Client,
    scenario::{self, wait_for},
    small_disk::SmallDisk,
};
use serde_json::json;

use crate::failover::{
    cluster::{Cluster, STORE},
    members::LIMIT,
};

const KEY: &str = "/registry/pods/a/b";
/// A log meets the end of its disk after a few writes, and a checkpoint still finds room when there is some again.
const VALUE_BYTES: usize = 512 << 10;
const DISK: &str = "400m";
/// Between two writes.
const PAUSE: Duration = Duration::from_millis(100);

async fn put(client: &Client, byte: u8) -> anyhow::Result<i64> {
    let put = PutRequest { key: KEY.into(), value: vec![byte; VALUE_BYTES].into(), ..PutRequest::default() };
    let header = client.kv.clone().put(put).await?.into_inner().header;
    Ok(header.map_or(0, |header| header.revision))
}

/// It stayed in sync, took what came into memory without an end, and could not take over.
#[test]
fn f73_a_standby_with_a_full_disk_leaves_the_record_until_there_is_room() {
    scenario::run("failover_full_disk", 3 * LIMIT, |dir| async move {
        let Some(disk) = SmallDisk::mount(&dir.join("second"), DISK)? else { return Ok(()) };
        let mut cluster = Cluster::start(&dir).await?;
        cluster.add_standbys(&dir, &["second"], json!({})).await?;
        let primary = cluster.in_sync(1).await?;

        disk.fill()?;
        let client = cluster.routers[0].client.clone();
        wait_for("the standby to leave the record", LIMIT, || async {
            put(&client, 1).await?;
            tokio::time::sleep(PAUSE).await;
            let group = cluster.group().await?;
            Ok(group["members"]["inSync"].as_array().is_some_and(Vec::is_empty).then_some(()))
        })
        .await?;
        wait_for("the reason to be told", LIMIT, || async {
            let trouble = cluster.shown().await?["standbyTrouble"].to_string();
            Ok(trouble.contains("cannot write its log").then_some(()))
        })
        .await?;
        let last = put(&client, 2).await?;

        disk.free()?;
        cluster.in_sync(1).await?;
        let standby = cluster.other(&primary)?.url.clone();
        cluster.failover(&json!({ "store": STORE, "to": standby })).await?;
        let range = RangeRequest { key: KEY.into(), ..RangeRequest::default() };
        let read = client.kv.clone().range(range).await?.into_inner();
        anyhow::ensure!(read.kvs.len() == 1 && read.kvs[0].mod_revision == last, "{:?}", read.header);
        Ok(())
    });
}
