//! The primary is paused, and its standby promoted meanwhile.

use std::{path::Path, time::Duration};

use anyhow::ensure;
use kindred_proto::{
    etcdserverpb::{PutRequest, RangeRequest},
    shard_v1::PrepareRequest,
};
use kindred_tests::scenario::{self, wait_for};

use crate::failover::members::{LIMIT, Member};

fn put(value: &str) -> PutRequest {
    PutRequest {
        key: b"/registry/pods/a/1".to_vec().into(),
        value: value.as_bytes().to_vec().into(),
        ..PutRequest::default()
    }
}

fn get() -> RangeRequest {
    RangeRequest { key: b"/registry/pods/a/1".to_vec().into(), ..RangeRequest::default() }
}

#[test]
fn r20_a_primary_that_was_paused_answers_nothing_and_follows() {
    scenario::run("failover_paused", 3 * LIMIT, |dir| async move { paused(&dir).await });
}

async fn paused(dir: &Path) -> anyhow::Result<()> {
    let mut first = Member::primary(dir).await?;
    let standby = Member::standby(dir, "second", &first).await?;
    first.add(1, &standby).await?;
    first.client.kv.clone().put(put("before")).await?;
    ensure!(first.client.kv.clone().range(get()).await?.into_inner().count == 1);
    first.signal("-STOP")?;
    // These are in its sockets when it goes on.
    let (mut kv, mut other) = (first.client.kv.clone(), first.client.kv.clone());
    let read =
        tokio::spawn(async move { tokio::time::timeout(Duration::from_secs(8), kv.range(get())).await });
    let write =
        tokio::spawn(
            async move { tokio::time::timeout(Duration::from_secs(8), other.put(put("late"))).await },
        );
    standby.promote(2, 5).await?;
    standby.client.kv.clone().put(put("after")).await?;
    first.signal("-CONT")?;
    ensure!(!matches!(read.await?, Ok(Ok(_))), "it answered a read");
    ensure!(!matches!(write.await?, Ok(Ok(_))), "it acknowledged a write");
    ensure!(first.shown().await?.term == 1);
    first.supersede(2, &standby).await?;
    wait_for("the end of the former primary", LIMIT, || {
        let ended = first.shard.process.is_running();
        async move { Ok((!ended?).then_some(())) }
    })
    .await?;
    // Started as before, it follows.
    first.shard.process.restart().await?;
    standby.add(3, &first).await?;
    standby.client.kv.clone().put(put("at last")).await?;
    let incarnation = standby.shown().await?.incarnation;
    let mut standby = standby;
    standby.shard.process.kill()?;
    first.promote(4, incarnation).await?;
    let found = first.client.kv.clone().range(get()).await?.into_inner();
    ensure!(found.kvs.first().is_some_and(|kv| &kv.value[..] == b"at last"), "{found:?}");
    Ok(())
}

#[test]
fn r20_a_primary_that_restarts_answers_nothing_before_it_is_told_that_it_still_is() {
    scenario::run("failover_restarted", 3 * LIMIT, |dir| async move { restarted(&dir).await });
}

async fn restarted(dir: &Path) -> anyhow::Result<()> {
    let mut first = Member::primary(dir).await?;
    let standby = Member::standby(dir, "second", &first).await?;
    first.add(1, &standby).await?;
    first.client.kv.clone().put(put("before")).await?;
    first.shard.process.kill()?;
    first.shard.process.restart().await?;
    ensure!(first.shown().await?.in_doubt);
    let mut kv = first.client.kv.clone();
    let read = tokio::time::timeout(Duration::from_secs(2), kv.range(get())).await;
    ensure!(!matches!(read, Ok(Ok(_))), "the standby may have been promoted: {read:?}");
    first.count(2, &[]).await?;
    let found = first.client.kv.clone().range(get()).await?.into_inner();
    ensure!(found.count == 1, "{found:?}");
    Ok(())
}

#[test]
fn r20_a_promotion_that_is_given_up_changes_nothing() {
    scenario::run("failover_given_up", 3 * LIMIT, |dir| async move { given_up(&dir).await });
}

async fn given_up(dir: &Path) -> anyhow::Result<()> {
    let mut first = Member::primary(dir).await?;
    let standby = Member::standby(dir, "second", &first).await?;
    let id = first.add(1, &standby).await?;
    standby.client.standbys.clone().prepare(PrepareRequest { term: 2, ..PrepareRequest::default() }).await?;
    // The primary sends on, and hears nothing.
    let mut kv = first.client.kv.clone();
    let waits = tokio::time::timeout(Duration::from_secs(2), kv.put(put("unheard"))).await;
    ensure!(waits.is_err(), "{waits:?}");
    first.count(3, &[]).await?;
    first.client.kv.clone().put(put("alone")).await?;
    // It goes on where it was.
    ensure!(first.add(3, &standby).await? == id);
    first.client.kv.clone().put(put("together")).await?;
    let incarnation = first.shown().await?.incarnation;
    first.shard.process.kill()?;
    standby.promote(4, incarnation).await?;
    let found = standby.client.kv.clone().range(get()).await?.into_inner();
    let last = found.kvs.first().map(|kv| (kv.value.clone(), kv.version));
    ensure!(last == Some((b"together".to_vec().into(), 3)), "{last:?}");
    Ok(())
}
