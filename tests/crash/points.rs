//! A shard without routers ends at each side of each step of its logs, its checkpoints, its start and its stop, and at
//! random moments. It has Kinds of every mode, and one whose mode changes repeatedly. Then the promises of each mode
//! are checked.
//!
//! `CRASH_POINTS=all` runs all cases, also with shards of one mode and with dense revisions. Any other value runs the
//! cases with that text in their names, such as `checkpoint.` or `sync.after`.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_tests::scenario::{self, env_number, report};
use rand::{SeedableRng, rngs::StdRng};

use crate::crash::{
    alone::{Alone, Layout},
    cases::Case,
    check::Tally,
};

/// Enough for all cases of a layout.
const LIMIT: Duration = Duration::from_secs(3600);

#[test]
fn each_mode_keeps_its_promise_wherever_a_shard_ends() {
    let chosen = std::env::var("CRASH_POINTS").unwrap_or_default();
    let few = chosen.is_empty();
    ends(&Layout::ALL[..1], few, &chosen);
}

#[test]
fn long_each_mode_keeps_its_promise_wherever_a_shard_ends_in_every_layout() {
    ends(&Layout::ALL, false, "");
}

/// Ends shards at the points with this text in their names.
fn ends(layouts: &[Layout], few: bool, chosen: &str) {
    let seed = env_number("CRASH_SEED", 1).unwrap_or_default();
    for layout in layouts {
        scenario::run("crash_points", LIMIT, |dir| {
            async move {
                let mut random = StdRng::seed_from_u64(seed);
                // In the other layouts one case for each point is enough.
                let few = few || *layout != Layout::Mixed;
                let mut cases = Case::all(few, &mut random);
                cases.retain(|case| case.to_string().contains(chosen));
                ensure!(!cases.is_empty(), "no case has CRASH_POINTS={chosen:?} in its name");
                let shard = ended_at(&dir, *layout, seed, &cases).await;
                shard.with_context(|| format!("CRASH_SEED={seed}, {}", layout.word()))
            }
        });
    }
}

async fn ended_at(dir: &Path, layout: Layout, seed: u64, cases: &[Case]) -> anyhow::Result<()> {
    let mut shard = Alone::start(dir, layout, seed).await?;
    for case in cases.iter().filter(|case| layout.has(case)) {
        let began = Instant::now();
        shard.case(case).await.with_context(|| case.to_string())?;
        if began.elapsed() > Duration::from_secs(5) {
            report(&format!("{case} took {:?}", began.elapsed()));
        }
    }
    tell("crash_points", &shard, layout, seed)
}

#[test]
fn each_mode_keeps_its_promise_while_a_kinds_mode_changes() {
    let seconds = env_number("CRASH_SECONDS", 10).unwrap_or_default();
    let seed = env_number("CRASH_SEED", 1).unwrap_or_default();
    let lasts = Duration::from_secs(seconds);
    scenario::run("crash_changes", lasts + LIMIT, |dir| async move {
        let mut shard = Alone::start(&dir, Layout::Mixed, seed).await?;
        let began = Instant::now();
        while began.elapsed() < lasts {
            shard.any_end().await.with_context(|| format!("CRASH_SEED={seed}, end {}", shard.counts.ends))?;
        }
        ensure!(shard.timeline.changes() > 0, "no mode was changed");
        tell("crash_changes", &shard, Layout::Mixed, seed)
    });
}

fn tell(name: &str, shard: &Alone, layout: Layout, seed: u64) -> anyhow::Result<()> {
    let counts = &shard.counts;
    let acknowledged = shard.acknowledged();
    ensure!(acknowledged > 0, "nothing was written");
    let mut line = format!(
        "crash {name} {} seed={seed} ends={} clean_stops={} at_their_points={} not_come_to={:?} acknowledged={acknowledged} mode_changes={}",
        layout.word(),
        counts.ends,
        counts.stops,
        counts.reached,
        counts.passed,
        shard.timeline.changes(),
    );
    for (mode, Tally { checked, lost, oldest_ms }) in &shard.tallies {
        line += &format!(" {mode}[checked={checked} lost={lost} oldest_lost_ms={oldest_ms}]");
    }
    report(&line);
    Ok(())
}
