//! `kindred import`: a snapshot of an etcd becomes a cluster that has every key with its revisions, and every lease.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeResponse, WatchCreateRequest, WatchRequest,
    watch_request::RequestUnion,
};
use kindred_tests::{
    client::Client,
    etcdctl,
    process::our_binary,
    scenario,
    servers::{Etcd, Up},
};
use tokio_stream::StreamExt as _;

use crate::compatibility::snapshot::{everything, fill, saved};

#[test]
fn a_snapshot_of_an_etcd_becomes_a_cluster() {
    scenario::run("import", Duration::from_secs(120), |dir| async move { all(&dir).await });
}

async fn import(file: &Path, to: &Path) -> anyhow::Result<etcdctl::Output> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path");
    let (file, to) = (text(file)?, text(to)?);
    etcdctl::run(&our_binary("kindred")?, &["import", &file, "--data-dir", &to], "").await
}

fn revision(answer: &RangeResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

async fn all(dir: &Path) -> anyhow::Result<()> {
    let etcd = Etcd::start(dir, "etcd").await?;
    let old = Client::connect(&etcd.address).await?;
    let lease = fill(&old).await?;
    let before = everything(&old, 0).await?;
    let file = saved(dir, "etcd", &etcd.address).await?;

    // What `Up::start` uses as its data folder.
    let folder = dir.join("up");
    let made = import(&file, &folder).await?;
    ensure!(made.success && made.stdout.contains("start `kindred up --data-dir"), "{made:?}");
    let again = import(&file, &folder).await?;
    ensure!(!again.success && again.stderr.contains("it is there already"), "{again:?}");
    let mut damaged = std::fs::read(&file)?;
    damaged[5000] ^= 1;
    std::fs::write(dir.join("damaged.db"), damaged)?;
    let refused = import(&dir.join("damaged.db"), &dir.join("none")).await?;
    ensure!(!refused.success && refused.stderr.contains("its checksum"), "{refused:?}");
    ensure!(!dir.join("none").exists() && !dir.join("none.unfinished").exists());

    let mut up = Up::start(dir, "up", &[]).await?;
    for start in 0..2 {
        let new = Client::connect(&up.address).await?;
        let after = everything(&new, 0).await?;
        ensure!(after.kvs.len() == before.kvs.len(), "{} of {} keys", after.kvs.len(), before.kvs.len());
        for (before, after) in before.kvs.iter().zip(&after.kvs) {
            ensure!(before == after, "start {start}: {before:?}\n{after:?}");
        }
        ensure!(revision(&after) > revision(&before), "{} after {}", revision(&after), revision(&before));
        let asked = LeaseTimeToLiveRequest { id: lease, keys: true };
        let kept = new.lease.clone().lease_time_to_live(asked).await?.into_inner();
        ensure!((kept.granted_ttl, kept.keys.len()) == (600, 2), "{kept:?}");
        let compacted = everything(&new, revision(&before) - 1).await;
        ensure!(compacted.is_err_and(|error| format!("{error:#}").contains("compacted")));
        up.process.stop().await?;
        up.process.restart().await?;
    }

    // A client's watch goes on from what it knew of the etcd.
    let new = Client::connect(&up.address).await?;
    let create = WatchCreateRequest {
        key: "/registry/pods/".into(),
        range_end: "/registry/pods0".into(),
        start_revision: revision(&before) + 1,
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut watch = new.watch.clone().watch(requests).await?.into_inner();
    let put = PutRequest { key: "/registry/pods/a/0".into(), value: "new".into(), ..PutRequest::default() };
    new.kv.clone().put(put).await?;
    let event = loop {
        let said = watch.message().await?.context("a message")?;
        ensure!(!said.canceled, "{said:?}");
        if let Some(event) = said.events.into_iter().next() {
            break event;
        }
    };
    let of = event.kv.context("a key")?;
    let was = before.kvs.iter().find(|kv| kv.key == of.key).context("it was there")?;
    ensure!((of.create_revision, of.version) == (was.create_revision, was.version + 1), "{of:?} {was:?}");

    // The end of a lease reaches its keys at every store.
    new.lease.clone().lease_revoke(LeaseRevokeRequest { id: lease }).await?;
    ensure!(everything(&new, 0).await?.kvs.len() == before.kvs.len() - 2);
    Ok(())
}
