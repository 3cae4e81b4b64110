//! The primary is killed, and its standby goes on.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::ensure;
use kindred_proto::etcdserverpb::{LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest};
use kindred_tests::{admin::Admin, scenario};
use tokio::task::JoinSet;

use crate::failover::{
    load::{Written, watch},
    members::{LIMIT, Member},
};

#[test]
fn r18_what_was_acknowledged_is_at_the_promoted_standby_whatever_the_mode() {
    scenario::run("failover_promoted", 3 * LIMIT, |dir| async move { promoted(&dir).await });
}

/// Whether a member says that it is ready, and what it says.
async fn readyz(member: &Member, query: &str) -> anyhow::Result<(bool, String)> {
    let path = format!("/readyz{query}");
    let (status, said) = Admin::at(&member.shard.admin).ask("GET", &path, "").await?;
    Ok((status == 200, said))
}

async fn promoted(dir: &Path) -> anyhow::Result<()> {
    let mut first = Member::primary(dir).await?;
    let (written, mut tasks) = (Arc::<Written>::default(), JoinSet::new());
    written.start(&first.client, &mut tasks);
    let lease = LeaseGrantRequest { id: 77, ttl: 30 };
    first.client.lease.clone().lease_grant(lease).await?;
    let leased =
        PutRequest { key: b"/registry/masterleases/1".to_vec().into(), lease: 77, ..PutRequest::default() };
    first.client.kv.clone().put(leased).await?;
    // The copy is made while clients write.
    let standby = Member::standby(dir, "second", &first).await?;
    first.add(1, &standby).await?;
    ensure!(standby.client.kv.clone().put(PutRequest::default()).await.is_err(), "a standby serves nothing");
    // An orchestrator asks whether either member could go on without the other one.
    ensure!(readyz(&first, "?exclude=clock").await?.0 && readyz(&standby, "?exclude=clock").await?.0);
    let (ready, said) = readyz(&standby, "").await?;
    ensure!(!ready && said.contains("not the primary"), "{said}");
    let from = written.highest();
    let client = first.client.clone();
    let watching = tokio::spawn(async move {
        let mut events = Vec::new();
        watch(&client, from, &mut events, None).await.map(|()| events)
    });
    written.more(2_000).await?;
    let incarnation = first.shown().await?.incarnation;
    let term = standby.shown().await?.term;
    first.shard.process.kill()?;
    while tasks.join_next().await.is_some() {}
    scenario::wait_for("the standby to miss its primary", LIMIT, || async {
        let (ready, said) = readyz(&standby, "?exclude=clock").await?;
        Ok((!ready && said.contains("not connected to the primary")).then_some(()))
    })
    .await?;

    ensure!(standby.promote(term + 1, incarnation).await? > incarnation);
    let checked = written.check(&standby.client).await?;
    let highest = written.highest();
    let mut kv = standby.client.kv.clone();
    let answer = kv.put(PutRequest { key: b"/registry/pods/after".to_vec().into(), ..PutRequest::default() });
    let after = answer.await?.into_inner().header.map_or(0, |header| header.revision);
    ensure!(after > highest, "{after} is not above {highest}");
    // The watch goes on where it was, and nothing is missing or twice.
    let mut events = watching.await??;
    let seen = events.last().and_then(|event| event.kv.as_ref()).map_or(from, |kv| kv.mod_revision + 1);
    let before = events.len();
    watch(&standby.client, seen, &mut events, Some(after)).await?;
    let mut all = Vec::new();
    watch(&standby.client, from, &mut all, Some(after)).await?;
    ensure!(
        events == all,
        "{} events were seen, {before} of them before; there are {}",
        events.len(),
        all.len()
    );
    let ttl = LeaseTimeToLiveRequest { id: 77, keys: true };
    let lease = standby.client.lease.clone().lease_time_to_live(ttl).await?.into_inner();
    ensure!(lease.ttl > 20 && lease.keys.len() == 1, "{lease:?}");

    // What it says was its promise: it is there after a restart, but for what its Kind does not keep.
    let mut standby = standby;
    standby.shard.process.kill()?;
    standby.shard.process.restart().await?;
    let kept = Written::default();
    *kept.acknowledged.lock() = written.acknowledged.lock().clone();
    kept.acknowledged.lock().retain(|key, _| !key.starts_with("/registry/events/"));
    *kept.maybe.lock() = written.maybe.lock().clone();
    kept.check(&standby.client).await?;
    scenario::report(&format!("{checked} keys, {} events", all.len()));
    Ok(())
}

#[test]
fn r19_a_standby_begins_anew_and_a_primary_goes_on_without_it_only_when_it_is_told() {
    scenario::run("failover_standby", 3 * LIMIT, |dir| async move { standby(&dir).await });
}

async fn standby(dir: &Path) -> anyhow::Result<()> {
    let first = Member::primary(dir).await?;
    let mut standby = Member::standby(dir, "second", &first).await?;
    let id = first.add(1, &standby).await?;
    let put = |key: &str| PutRequest { key: key.as_bytes().to_vec().into(), ..PutRequest::default() };
    first.client.kv.clone().put(put("/registry/events/a/1")).await?;
    standby.shard.process.kill()?;
    let mut kv = first.client.kv.clone();
    let waits = tokio::time::timeout(Duration::from_secs(3), kv.put(put("/registry/events/a/2"))).await;
    ensure!(waits.is_err(), "nobody has said that it may go on alone: {waits:?}");
    ensure!(first.count(1, &["none".to_owned()]).await.is_err(), "there is no such standby");
    first.count(2, &[]).await?;
    first.client.kv.clone().put(put("/registry/events/a/3")).await?;
    ensure!(first.count(1, &[]).await.is_err(), "the term is over");

    standby.shard.process.restart().await?;
    let anew = first.add(3, &standby).await?;
    ensure!(anew != id, "what begins anew is another member");
    first.client.kv.clone().put(put("/registry/events/a/4")).await?;
    let shown = first.shown().await?;
    ensure!(shown.counted == [anew.clone()], "{shown:?}");
    ensure!(
        shown.standbys.iter().any(|standby| standby.member == anew && standby.counts && standby.whole),
        "{shown:?}"
    );
    Ok(())
}

#[test]
fn r19_a_standby_that_is_told_whom_it_follows_already_goes_on() {
    scenario::run("failover_told_again", 3 * LIMIT, |dir| async move { told_again(&dir).await });
}

/// What was meant for a former primary may come late, when a standby runs at its address.
async fn told_again(dir: &Path) -> anyhow::Result<()> {
    let first = Member::primary(dir).await?;
    let standby = Member::standby(dir, "second", &first).await?;
    let before = standby.shown().await?;
    standby.supersede(before.term, &first).await?;
    first.add(1, &standby).await?;
    let (term, incarnation) = (standby.shown().await?.term, first.shown().await?.incarnation);
    ensure!(standby.shown().await?.member == before.member, "it has begun anew");
    standby.promote(term + 1, incarnation).await?;
    Ok(())
}
