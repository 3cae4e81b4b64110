//! A shard frees old history although no client compacts it by its own revisions. The first test compacts a stock etcd
//! that is the default store. In the second no client compacts at all.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{CompactionRequest, PutRequest, RangeRequest};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
    servers::{Etcd, Shard, Up},
};

const LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(90);
const POD: &str = "/registry/pods/ns/x";

async fn put(client: &Client, key: &str) -> anyhow::Result<i64> {
    let request = PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() };
    let answer = client.kv.clone().put(request).await?.into_inner();
    Ok(answer.header.context("header")?.revision)
}

/// Whether a read of the pod at this revision is refused as compacted.
async fn is_compacted(client: &Client, revision: i64) -> anyhow::Result<bool> {
    match client.kv.clone().range(RangeRequest { key: POD.into(), revision, ..Default::default() }).await {
        Ok(_) => Ok(false),
        Err(status) if status.message().contains("required revision has been compacted") => Ok(true),
        Err(status) => Err(status.into()),
    }
}

async fn up(dir: &Path, old: &Etcd) -> anyhow::Result<Up> {
    let config = format!(
        "default: old\nstores:\n- {{name: old, type: etcd, endpoints: [\"http://{}\"]}}\n- {{name: b, slot: 2}}\n\
         partitions:\n- {{metadata: {{name: pods}}, resource: pods, serviceGroupId: b}}\n",
        old.address
    );
    let path = dir.join("config.yaml");
    std::fs::write(&path, config)?;
    Up::start(dir, "up", &[format!("--config={}", path.display())]).await
}

#[test]
fn f17_a_compaction_of_the_default_etcd_reaches_the_shards() {
    scenario::run("compact-beside", LIMIT, |dir| async move {
        let old = Etcd::start(&dir, "old").await?;
        let up = up(&dir, &old).await?;
        let client = up.client().await?;
        let first = put(&client, POD).await?;
        for _ in 0..100 {
            put(&client, POD).await?;
        }
        ensure!(!is_compacted(&client, first).await?);
        // An apiserver compacts repeatedly. The router may have learned too late which revision of the shard belongs to
        // the first of these compactions.
        let asked = std::cell::Cell::new(0);
        wait_for("the shard to be compacted", SOON, async || {
            let revision = put(&client, "/registry/secrets/ns/y").await?;
            client.kv.clone().compact(CompactionRequest { revision, physical: false }).await?;
            asked.set(asked.get() + 1);
            Ok(is_compacted(&client, first).await?.then_some(()))
        })
        .await?;
        // Versions written after the compaction can still be read.
        let last = put(&client, POD).await?;
        put(&client, POD).await?;
        ensure!(!is_compacted(&client, last).await?, "a revision above every compaction was compacted");
        report(&format!("compaction: a stock etcd's revision reached a shard at the {}. time", asked.get()));
        Ok(())
    });
}

#[test]
fn f17_history_that_nobody_compacts_goes_when_it_is_old() {
    scenario::run("history-age", LIMIT, |dir| async move {
        let shard = Shard::start(&dir, "alone", &["--history-max-age=10s".to_owned()]).await?;
        let client = Client::connect(&shard.address).await?;
        let first = put(&client, POD).await?;
        put(&client, POD).await?;
        ensure!(!is_compacted(&client, first).await?);
        wait_for("old history to go", SOON, async || {
            let now = put(&client, POD).await?;
            ensure!(!is_compacted(&client, now).await?, "a recent revision was compacted");
            Ok(is_compacted(&client, first).await?.then_some(()))
        })
        .await?;
        report("compaction: history older than 10 s went by itself");
        Ok(())
    });
}
