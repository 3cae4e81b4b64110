//! Locks and elections as services: those who wait get them in turn, and those who give up leave nothing behind.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::{
    etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, RangeRequest},
    v3electionpb::{
        CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
        election_client::ElectionClient,
    },
    v3lockpb::{LockRequest, UnlockRequest, lock_client::LockClient},
};
use kindred_tests::{
    client::Client,
    scenario::{self, wait_for},
    servers::{Etcd, Shard, Up},
};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn locks_and_elections_pass_from_one_to_the_next() {
    scenario::run("recipes", Duration::from_secs(90), |dir| async move { all(&dir).await });
}

async fn all(dir: &Path) -> anyhow::Result<()> {
    let etcd = Etcd::start(dir, "etcd").await?;
    let shard = Shard::start(dir, "shard", &[]).await?;
    let up = Up::start(dir, "up", &[]).await?;
    for (name, address) in [("etcd", &etcd.address), ("shard", &shard.address), ("router", &up.address)] {
        let client = Client::connect(address).await?;
        locks(&client).await.with_context(|| format!("locks of the {name}"))?;
        elections(&client).await.with_context(|| format!("elections of the {name}"))?;
    }
    Ok(())
}

async fn lease(client: &Client) -> anyhow::Result<i64> {
    let grant = LeaseGrantRequest { id: 0, ttl: 600 };
    Ok(client.lease.clone().lease_grant(grant).await?.into_inner().id)
}

/// The keys under a name.
async fn keys(client: &Client, name: &str) -> anyhow::Result<i64> {
    let (key, range_end) = (format!("{name}/").into_bytes().into(), format!("{name}0").into_bytes().into());
    let range = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
    Ok(client.kv.clone().range(range).await?.into_inner().count)
}

/// Waits until so many are under a name.
async fn until(client: &Client, name: &str, count: i64) -> anyhow::Result<()> {
    let what = format!("{count} keys under {name}");
    wait_for(&what, LIMIT, || async { Ok((keys(client, name).await? == count).then_some(())) }).await
}

async fn locks(client: &Client) -> anyhow::Result<()> {
    let lock = |lease| {
        let mut locks = LockClient::new(client.channel.clone());
        async move { locks.lock(LockRequest { name: "lock".into(), lease }).await }
    };
    let unlock = |key| {
        let mut locks = LockClient::new(client.channel.clone());
        async move { locks.unlock(UnlockRequest { key }).await }
    };
    let (first, second, third) = (lease(client).await?, lease(client).await?, lease(client).await?);
    let held = lock(first).await?.into_inner();
    ensure!(held.key == format!("lock/{first:x}").into_bytes(), "{held:?}");
    let waits = tokio::spawn(lock(second));
    until(client, "lock", 2).await?;
    let gives_up = tokio::spawn(lock(third));
    until(client, "lock", 3).await?;
    gives_up.abort();
    until(client, "lock", 2).await?;
    ensure!(!waits.is_finished(), "the first one has it");
    unlock(held.key).await?;
    let held = tokio::time::timeout(LIMIT, waits).await???.into_inner();
    ensure!(held.key == format!("lock/{second:x}").into_bytes(), "{held:?}");
    // Whoever has no lease gets one.
    let waits = tokio::spawn(lock(0));
    until(client, "lock", 2).await?;
    client.lease.clone().lease_revoke(LeaseRevokeRequest { id: second }).await?;
    let last = tokio::time::timeout(LIMIT, waits).await???.into_inner();
    ensure!(keys(client, "lock").await? == 1);
    unlock(last.key).await?;
    until(client, "lock", 0).await
}

async fn elections(client: &Client) -> anyhow::Result<()> {
    let campaign = |lease, value: &'static str| {
        let mut elections = ElectionClient::new(client.channel.clone());
        let request = CampaignRequest { name: "elect".into(), lease, value: value.into() };
        async move { elections.campaign(request).await }
    };
    let mut elections = ElectionClient::new(client.channel.clone());
    let name = || LeaderRequest { name: "elect".into() };
    let none = elections.leader(name()).await.err().context("nobody leads")?;
    ensure!(none.message() == "election: no leader", "{none}");
    // etcd answers only when somebody leads.
    let (mut observing, observed_name) = (elections.clone(), name());
    let observed = tokio::spawn(async move {
        let (mut seen, mut stream) = (Vec::new(), observing.observe(observed_name).await?.into_inner());
        while seen.last().is_none_or(|value| value != "two") {
            let kv = stream.message().await?.and_then(|answer| answer.kv).context("it goes on")?;
            seen.push(String::from_utf8(kv.value.to_vec())?);
        }
        anyhow::Ok(seen)
    });
    let (first, second) = (lease(client).await?, lease(client).await?);
    let leader = campaign(first, "one").await?.into_inner().leader.context("a leader")?;
    let waits = tokio::spawn(campaign(second, "two"));
    until(client, "elect", 2).await?;
    let proclaim = ProclaimRequest { leader: Some(leader.clone()), value: "uno".into() };
    elections.proclaim(proclaim).await?;
    let now = elections.leader(name()).await?.into_inner().kv.context("a value")?;
    ensure!((now.value, now.create_revision) == ("uno".into(), leader.rev));
    // One that does not lead announces nothing.
    let other = LeaderKey { rev: leader.rev - 1, ..leader.clone() };
    let refused = elections.proclaim(ProclaimRequest { leader: Some(other), value: "x".into() }).await;
    ensure!(refused.err().is_some_and(|refused| refused.message() == "election: not leader"));
    elections.resign(ResignRequest { leader: Some(leader) }).await?;
    let next = tokio::time::timeout(LIMIT, waits).await???.into_inner().leader.context("a leader")?;
    ensure!(next.lease == second, "{next:?}");
    let seen = tokio::time::timeout(LIMIT, observed).await???;
    // Not all that was announced need be seen.
    let order = ["one", "uno", "two"];
    let at = |value: &String| order.iter().position(|of| of == value);
    ensure!(seen.is_sorted_by_key(at) && seen.iter().all(|value| at(value).is_some()), "{seen:?}");
    elections.resign(ResignRequest { leader: Some(next) }).await?;
    until(client, "elect", 0).await
}
