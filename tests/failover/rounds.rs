//! Two members change roles again and again: the primary is killed or paused under load, the other one is promoted, and the
//! former primary follows. `FAILOVER_ROUNDS` is how often, 4 by default; `FAILOVER_SEED` repeats a choice.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::{etcdserverpb::RangeRequest, mvccpb::Event};
use kindred_tests::scenario::{self, env_number, report, wait_for};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;

use crate::failover::{
    load::{Written, watch},
    members::{LIMIT, Member},
};

#[test]
fn members_change_roles_again_and_again() {
    let rounds = env_number("FAILOVER_ROUNDS", 4).expect("a number");
    let limit = LIMIT + Duration::from_secs(30) * u32::try_from(rounds).expect("a few");
    scenario::run("failover_rounds", limit, move |dir| async move {
        let seed = env_number("FAILOVER_SEED", 1)?;
        run(&dir, rounds, seed).await.with_context(|| format!("FAILOVER_SEED={seed}"))
    });
}

async fn run(dir: &Path, rounds: u64, seed: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let first = Member::primary(dir).await?;
    let second = Member::standby(dir, "second", &first).await?;
    let written = Arc::<Written>::default();
    let (mut primary, mut other) = (first, second);
    let began = first_revision(&primary).await?;
    let (mut term, mut from, mut seen) = (1, began, Vec::new());
    for round in 0..rounds {
        let mut tasks = JoinSet::new();
        written.start(&primary.client, &mut tasks);
        primary.add(term, &other).await.context("the copy")?;
        let client = primary.client.clone();
        let watching = tokio::spawn(async move {
            let mut events = Vec::new();
            watch(&client, from, &mut events, None).await.map(|()| events)
        });
        written.more(random.random_range(50..1_500)).await?;
        let incarnation = primary.shown().await?.incarnation;
        let pauses = random.random_bool(0.4);
        if pauses {
            primary.signal("-STOP")?
        } else {
            primary.shard.process.kill()?
        }
        term += 1;
        let promoted = other.promote(term, incarnation).await?;
        ensure!(promoted > incarnation, "incarnation {promoted} after {incarnation}");
        if pauses {
            primary.signal("-CONT")?;
        } else {
            primary.shard.process.restart().await.context("the former primary")?;
        }
        primary.supersede(term, &other).await?;
        wait_for("the end of the former primary", LIMIT, || {
            let running = primary.shard.process.is_running();
            async move { Ok((!running?).then_some(())) }
        })
        .await?;
        while tasks.join_next().await.is_some() {}
        let keys = written.check(&other.client).await.with_context(|| format!("round {round}"))?;
        written.settle(&other.client).await?;
        // What was seen goes on without a gap.
        seen.extend(watching.await??);
        let next = |seen: &[Event]| {
            let last = seen.last().and_then(|event| event.kv.as_ref());
            last.map_or(began, |kv| kv.mod_revision + 1)
        };
        from = next(&seen);
        if from <= written.highest() {
            watch(&other.client, from, &mut seen, Some(written.highest())).await?;
            from = next(&seen);
        }
        report(&format!(
            "round {round}: {keys} keys, {} events, {}",
            seen.len(),
            if pauses { "paused" } else { "killed" }
        ));
        primary.shard.process.restart().await.context("the former primary follows")?;
        std::mem::swap(&mut primary, &mut other);
        term += 1;
    }
    let mut all = Vec::new();
    watch(&primary.client, began, &mut all, Some(written.highest())).await?;
    ensure!(seen == all, "{} events were seen, there are {}", seen.len(), all.len());
    Ok(())
}

/// The first revision that a member can assign now.
async fn first_revision(member: &Member) -> anyhow::Result<i64> {
    let range = RangeRequest { key: b"x".to_vec().into(), ..RangeRequest::default() };
    let header = member.client.kv.clone().range(range).await?.into_inner().header;
    Ok(header.context("a header")?.revision + 1)
}
