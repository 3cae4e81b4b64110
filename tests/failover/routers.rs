//! Routers keep the record of a store's members: they count standbys, promote one when the primary is lost, and take it out
//! when it is lost itself. Clients of two routers lose nothing, their watches go on, and the pauses are short.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::scenario::{self, env_number, report};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::task::JoinSet;

use crate::failover::{
    clients::{Seen, Watching},
    cluster::Cluster,
    load::PREFIXES,
    members::LIMIT,
};

#[test]
fn r19_routers_promote_a_standby_and_clients_lose_nothing() {
    let rounds = env_number("FAILOVER_ROUNDS", 3).expect("a number");
    let limit = 2 * LIMIT + Duration::from_secs(30) * u32::try_from(rounds).expect("a few");
    scenario::run("failover_routers", limit, move |dir| async move {
        let seed = env_number("FAILOVER_SEED", 1)?;
        run(&dir, rounds, seed).await.with_context(|| format!("FAILOVER_SEED={seed}"))
    });
}

/// What happens to the members in a round.
#[derive(Debug, Clone, Copy)]
enum Fault {
    KillPrimary,
    PausePrimary,
    Handover,
    KillStandby,
}

async fn run(dir: &Path, rounds: u64, seed: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::start(dir).await?;
    let clients: Vec<_> = cluster.routers.iter().map(|router| router.client.clone()).collect();
    let (seen, mut tasks) = (Arc::<Seen>::default(), JoinSet::new());
    let mut watches = Vec::new();
    for (at, prefix) in PREFIXES.into_iter().enumerate() {
        let key = format!("{prefix}first");
        let put = PutRequest { key: key.into_bytes().into(), ..PutRequest::default() };
        let answer = clients[0].kv.clone().put(put).await?.into_inner();
        let from = answer.header.map_or(0, |header| header.revision);
        watches.push((prefix, from, Watching::start(&clients[at % clients.len()], prefix, from).await?));
    }
    seen.start(&clients, &mut tasks);
    cluster.add_standbys(dir, &["second"], json!({})).await?;
    cluster.in_sync(1).await?;
    let mut pauses: Vec<(Fault, Duration)> = Vec::new();
    for round in 0..rounds {
        seen.more(20).await?;
        let primary = cluster.in_sync(1).await.with_context(|| format!("before round {round}"))?;
        let (former, standby) = (cluster.member(&primary)?.clone(), cluster.other(&primary)?.clone());
        let fault = match (round, random.random_range(0..10)) {
            (0, _) => Fault::KillPrimary,
            (1, _) => Fault::Handover,
            (2, _) => Fault::KillStandby,
            (_, 0..4) => Fault::KillPrimary,
            (_, 4..6) => Fault::PausePrimary,
            (_, 6..8) => Fault::Handover,
            _ => Fault::KillStandby,
        };
        seen.more(random.random_range(1..30)).await?;
        seen.longest_pause();
        match fault {
            Fault::KillPrimary => former.kill().await?,
            Fault::PausePrimary => former.signal("-STOP").await?,
            Fault::KillStandby => standby.kill().await?,
            Fault::Handover => {
                let began = Instant::now();
                let millis = cluster.failover(&json!({ "store": "pods" })).await?;
                ensure!(began.elapsed() < LIMIT && millis < 20_000);
            }
        }
        seen.more(10).await.with_context(|| format!("round {round}, {fault:?}"))?;
        let pause = seen.longest_pause();
        pauses.push((fault, pause));
        if matches!(fault, Fault::PausePrimary) {
            former.signal("-CONT").await?;
        }
        former.up();
        standby.up();
        report(&format!("round {round}: {fault:?}, no write for {} ms", pause.as_millis()));
        let now = cluster.in_sync(1).await.with_context(|| format!("round {round}, {fault:?}"))?;
        ensure!(matches!(fault, Fault::KillStandby) == (now == primary), "{fault:?}: {now} after {primary}");
    }
    seen.stop();
    while tasks.join_next().await.is_some() {}
    let mut all_events = Vec::new();
    for (prefix, from, watching) in &watches {
        let last = PutRequest { key: format!("{prefix}last").into_bytes().into(), ..PutRequest::default() };
        let answer = clients[0].kv.clone().put(last).await?.into_inner();
        let last = answer.header.map_or(0, |header| header.revision);
        let events = watching.until(last).await.with_context(|| format!("the watch of {prefix}"))?;
        // A watch that begins now sees the same.
        let again = Watching::start(&clients[1], prefix, *from).await?.until(last).await?;
        ensure!(events == again, "{prefix}: {} events were seen, there are {}", events.len(), again.len());
        let range =
            RangeRequest { key: format!("{prefix}last").into_bytes().into(), ..RangeRequest::default() };
        ensure!(clients[1].kv.clone().range(range).await?.into_inner().count == 1);
        all_events.extend(events);
    }
    let checked = seen.check(&all_events)?;
    let errors = seen.errors.lock().clone();
    report(&format!("{checked} writes, {} events, errors that clients saw: {errors:?}", all_events.len()));
    summary(&mut pauses);
    Ok(())
}

fn summary(pauses: &mut [(Fault, Duration)]) {
    for (name, is) in [
        (
            "primary lost",
            (|fault| matches!(fault, Fault::KillPrimary | Fault::PausePrimary)) as fn(Fault) -> bool,
        ),
        ("handover", |fault| matches!(fault, Fault::Handover)),
        ("standby lost", |fault| matches!(fault, Fault::KillStandby)),
    ] {
        let mut times: Vec<_> =
            pauses.iter().filter(|(fault, _)| is(*fault)).map(|(_, pause)| *pause).collect();
        times.sort_unstable();
        if let (Some(longest), Some(median)) = (times.last(), times.get(times.len() / 2)) {
            let p99 = times.get((times.len() * 99).div_ceil(100).saturating_sub(1)).unwrap_or(longest);
            report(&format!(
                "{name}: {} times, no write for {} ms at the median, {} ms p99, {} ms at most",
                times.len(),
                median.as_millis(),
                p99.as_millis(),
                longest.as_millis()
            ));
        }
    }
}
