//! A backup is exactly the state at its snapshot, although keys are deleted and compacted while it is read.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    request_op::Request,
};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
    servers::Up,
};

use crate::e2e::moves::Cli;

const LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(60);
/// Nodes are on one store, pods on two.
const CONFIG: &str = "default: d\nstores:\n- {name: d, slot: 1}\n- {name: a, slot: 2}\npartitions:\n\
    - {metadata: {name: nodes}, resource: nodes, serviceGroupId: a}\n\
    - {metadata: {name: p1}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: a}\n\
    - {metadata: {name: p2}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: d}\n";
/// More keys than a shard puts into one answer.
const KEYS: usize = 1_500;
/// A number of large keys that the backup reads first. They take it some seconds.
const FILL: usize = 40;
const FILL_BYTES: usize = 20_000;
const RATE: &str = "200000";

async fn fill(client: &Client, keys: impl Iterator<Item = String>, bytes: usize) -> anyhow::Result<()> {
    let keys: Vec<String> = keys.collect();
    for some in keys.chunks(50) {
        let put = |key: &String| {
            let value = format!("{key} ").repeat(bytes / (key.len() + 1) + 1).into();
            let request = PutRequest { key: key.clone().into(), value, ..Default::default() };
            RequestOp { request: Some(Request::RequestPut(request)) }
        };
        let txn = TxnRequest { success: some.iter().map(put).collect(), ..Default::default() };
        client.kv.clone().txn(txn).await?;
    }
    Ok(())
}

async fn all(client: &Client) -> anyhow::Result<BTreeMap<Bytes, Bytes>> {
    let zero = Bytes::from_static(b"\0");
    let request = RangeRequest { key: zero.clone(), range_end: zero, ..Default::default() };
    let kvs = client.kv.clone().range(request).await?.into_inner().kvs;
    Ok(kvs.into_iter().map(|kv| (kv.key, kv.value)).collect())
}

async fn delete(client: &Client, from: &str, to: &str) -> anyhow::Result<i64> {
    let (key, range_end) = (Bytes::from(from.to_owned()), Bytes::from(to.to_owned()));
    let request = DeleteRangeRequest { key, range_end, ..Default::default() };
    Ok(client.kv.clone().delete_range(request).await?.into_inner().deleted)
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).map(Iterator::count).unwrap_or(0)
}

#[test]
fn f01_a_backup_under_deletes_and_compactions_is_the_state_at_its_cut() {
    scenario::run("backup-deletes", LIMIT, |dir| async move {
        let config = dir.join("config.yaml");
        std::fs::write(&config, CONFIG)?;
        let up = Up::start(&dir, "up", &[format!("--config={}", config.display())]).await?;
        let (cli, client) = (Cli::new(&up)?, up.client().await?);
        fill(&client, (0..FILL).map(|at| format!("/registry/aaa/x/{at:03}")), FILL_BYTES).await?;
        fill(&client, (0..KEYS).map(|at| format!("/registry/minions/n{at:04}")), 50).await?;
        for namespace in ["b", "y"] {
            fill(&client, (0..KEYS).map(|at| format!("/registry/pods/{namespace}/p{at:04}")), 50).await?;
        }
        let before = all(&client).await?;

        let target = dir.join("backup");
        let path = target.to_str().context("path")?.to_owned();
        let data = dir.join("backup.unfinished").join("data");
        let backup = tokio::spawn({
            let (cli, path) = (Cli::new(&up)?, path.clone());
            async move { cli.ok(&["backup", "--to", &path, "--rate", RATE]).await }
        });
        wait_for("the backup to have its snapshot", SOON, async || {
            ensure!(!backup.is_finished(), "the backup is over");
            Ok((files(&data) > 0).then_some(()))
        })
        .await?;
        let gone = [
            delete(&client, "/registry/minions/n0500", "/registry/minions0").await?,
            delete(&client, "/registry/pods/b/p0100", "/registry/pods/b0").await?,
            delete(&client, "/registry/pods/y/p0000", "/registry/pods/y/p1400").await?,
        ];
        ensure!(gone == [1_000, 1_400, 1_400], "{gone:?}");
        // New keys replace the deleted ones, so that the number of keys does not fall.
        fill(&client, (0..2_000).map(|at| format!("/registry/minions/later{at:04}")), 50).await?;
        let put = PutRequest { key: "/registry/zzz/t/1".into(), value: "x".into(), ..Default::default() };
        let revision = client.kv.clone().put(put).await?.into_inner().header.context("header")?.revision;
        client.kv.clone().compact(CompactionRequest { revision, physical: true }).await?;
        ensure!(!backup.is_finished(), "it was to be read while keys were deleted");
        backup.await??;

        cli.ok(&["backup", "verify", &path]).await?;
        cli.ok(&["restore", &path, "--overwrite", "--delete-extra"]).await?;
        let after = all(&client).await?;
        let lacks = before.keys().filter(|key| !after.contains_key(*key)).count();
        ensure!(lacks == 0, "the backup lacks {lacks} of {} keys", before.len());
        ensure!(before == after, "{} keys, then {}", before.len(), after.len());
        report(&format!("backup: {} keys, of which 3800 were deleted meanwhile", before.len()));
        Ok(())
    });
}
