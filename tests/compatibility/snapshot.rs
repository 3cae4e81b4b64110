//! Snapshots of etcd's clients: the file of a router and of a shard is one that bbolt and etcdutl accept, and the etcd that
//! begins with it has every key with its revisions, and every lease.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, request_op::Request,
};
use kindred_tests::{
    client::Client,
    etcdctl::{self, Etcdctl, etcdutl},
    peers::peer,
    scenario,
    servers::{Etcd, Shard, Up},
};

#[test]
fn a_snapshot_becomes_an_etcd() {
    scenario::run("snapshot", Duration::from_secs(120), |dir| async move { all(&dir).await });
}

async fn all(dir: &Path) -> anyhow::Result<()> {
    let etcd = Etcd::start(dir, "etcd").await?;
    let shard = Shard::start(dir, "shard", &[]).await?;
    let dense = Shard::start(dir, "dense", &["--revisions=dense".to_owned()]).await?;
    let up = Up::start(dir, "up", &[]).await?;
    for (name, address) in [
        ("etcd", &etcd.address),
        ("shard", &shard.address),
        ("dense", &dense.address),
        ("router", &up.address),
    ] {
        becomes_an_etcd(dir, name, address).await.with_context(|| format!("a snapshot of the {name}"))?;
    }
    Ok(())
}

async fn becomes_an_etcd(dir: &Path, name: &str, address: &str) -> anyhow::Result<()> {
    let client = Client::connect(address).await?;
    let lease = fill(&client).await?;
    let before = everything(&client, 0).await?;
    let file = saved(dir, name, address).await?;
    // What comes later is not in it.
    client
        .kv
        .clone()
        .put(PutRequest { key: "/registry/pods/z/late".into(), ..PutRequest::default() })
        .await?;

    let checked = etcdctl::run(&peer("bbolt-check")?, &[file.to_str().context("a path")?], "").await?;
    ensure!(checked.stdout == "OK\n", "{checked:?}");
    let restored = Etcd::restored(dir, &format!("{name}-restored"), &file).await?;
    let new = restored.client().await?;
    let after = everything(&new, 0).await?;
    ensure!(after.kvs.len() == before.kvs.len(), "{} of {} keys", after.kvs.len(), before.kvs.len());
    for (before, after) in before.kvs.iter().zip(&after.kvs) {
        ensure!(before == after, "{before:?}\n{after:?}");
    }
    let revision = |answer: &RangeResponse| answer.header.as_ref().map_or(0, |header| header.revision);
    ensure!(revision(&after) >= revision(&before), "{} after {}", revision(&after), revision(&before));

    let asked = LeaseTimeToLiveRequest { id: lease, keys: true };
    let kept = new.lease.clone().lease_time_to_live(asked).await?.into_inner();
    ensure!((kept.granted_ttl, kept.keys.len()) == (600, 2), "{kept:?}");
    // It goes on: revisions are above, and history is compacted where the snapshot's was.
    let put = PutRequest { key: "/registry/pods/a/0".into(), ..PutRequest::default() };
    let put = new.kv.clone().put(put).await?.into_inner().header.context("a header")?;
    ensure!(put.revision == revision(&after) + 1, "{put:?}");
    if name != "etcd" {
        let old = everything(&new, after.kvs[0].mod_revision - 1).await;
        ensure!(old.is_err_and(|error| format!("{error:#}").contains("compacted")), "history is not there");
    }
    Ok(())
}

/// Writes keys of several Kinds: versions, transactions, deletions, a large value, and two keys of a lease, which is
/// returned.
pub async fn fill(client: &Client) -> anyhow::Result<i64> {
    let mut kv = client.kv.clone();
    let put = |key: String, bytes: usize, lease: i64| PutRequest {
        key: key.into(),
        value: vec![b'v'; bytes].into(),
        lease,
        ..PutRequest::default()
    };
    for number in 0..300 {
        let kind = ["pods/a", "minions", "leases/kube-node-lease", "configmaps/b"][number % 4];
        kv.put(put(format!("/registry/{kind}/{}", number / 2), number * 7 % 3000, 0)).await?;
    }
    kv.put(put("/registry/secrets/a/large".to_owned(), 300_000, 0)).await?;
    let together = (0..20).map(|number| RequestOp {
        request: Some(Request::RequestPut(put(format!("/registry/configmaps/t/{number}"), 10, 0))),
    });
    kv.txn(TxnRequest { success: together.collect(), ..TxnRequest::default() }).await?;
    let gone = DeleteRangeRequest {
        key: "/registry/pods/a/1".into(),
        range_end: "/registry/pods/a/2".into(),
        ..DeleteRangeRequest::default()
    };
    kv.delete_range(gone).await?;
    let lease =
        client.lease.clone().lease_grant(LeaseGrantRequest { id: 77, ttl: 600 }).await?.into_inner().id;
    kv.put(put("/registry/events/a/1".to_owned(), 10, lease)).await?;
    let last = kv.put(put("/registry/masterleases/1".to_owned(), 10, lease)).await?.into_inner();
    let revision = last.header.map_or(0, |header| header.revision);
    kv.compact(CompactionRequest { revision, physical: true }).await?;
    Ok(lease)
}

pub async fn everything(client: &Client, revision: i64) -> anyhow::Result<RangeResponse> {
    let (key, range_end) = (vec![0].into(), vec![0].into());
    let range = RangeRequest { key, range_end, revision, ..RangeRequest::default() };
    Ok(client.kv.clone().range(range).await?.into_inner())
}

/// `etcdctl snapshot save`, and what `etcdutl snapshot status` says of it.
pub async fn saved(dir: &Path, name: &str, address: &str) -> anyhow::Result<PathBuf> {
    let file = dir.join(format!("{name}.db"));
    Etcdctl::new(address).ok(&["snapshot", "save", file.to_str().context("a path")?]).await?;
    let status = etcdutl(&["snapshot", "status", file.to_str().context("a path")?, "-w", "json"]).await?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    ensure!(status["totalKey"].as_u64().is_some_and(|keys| keys > 150), "{status}");
    Ok(file)
}
