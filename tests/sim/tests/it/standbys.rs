//! The simulation of standbys: seeds none of which may break an invariant, and for each invariant something that is broken
//! on purpose and noticed. `KINDRED_SOAK_SEED` and `KINDRED_SOAK_CASES` choose other seeds.

use std::io::Write;

use kindred_sim::standbys::{Sabotage, many, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_anything() {
    check(100);
}

#[test]
fn long_no_seed_breaks_anything() {
    check(2_000);
}

fn check(seeds: u64) {
    let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
    let (counts, broken) = many(first..first + number("KINDRED_SOAK_CASES").unwrap_or(seeds), 2);
    // Past the harness, which keeps to itself what a passing test prints.
    let _ = writeln!(std::io::stderr(), "{counts}");
    let reports = broken.iter().take(3).map(|outcome| {
        let again = format!("again: SIM=standbys SEED={} cargo run -p kindred-sim", outcome.seed);
        format!("seed {}: {:?}\n{again}", outcome.seed, outcome.violation)
    });
    let reports: Vec<String> = reports.collect();
    assert!(broken.is_empty(), "{}", reports.join("\n"));
}

#[test]
fn one_seed_run_twice_gives_equal_logs() {
    for seed in [3, 42] {
        let (first, second) = (run(seed, None, true), run(seed, None, true));
        assert!(first.log.len() > 20, "seed {seed} did nothing");
        assert_eq!((first.log, first.counts), (second.log, second.counts), "seed {seed}");
    }
}

/// Seeds that notice the rarer mistakes, as of this writing. They are tried first.
const NOTICE: [u64; 4] = [774, 221, 73, 25];
/// Seeds tried until one notices.
const SEEDS: u64 = 400;

fn is_noticed(sabotage: Sabotage, invariants: &[&str]) {
    let noticed = NOTICE.into_iter().chain(0..SEEDS).find(|seed| {
        let broken = run(*seed, Some(sabotage), false).violation;
        broken.is_some_and(|broken| invariants.contains(&broken.invariant))
    });
    assert!(noticed.is_some(), "{SEEDS} seeds with {sabotage:?}, and {invariants:?} notice nothing");
}

#[test]
fn r18_a_write_that_is_answered_early_is_missed() {
    is_noticed(Sabotage::AnswersEarly, &["r18_kept"]);
}

#[test]
fn r18_a_revision_below_the_ceiling_is_given_twice() {
    is_noticed(Sabotage::NoCeiling, &["r18_given_once"]);
}

#[test]
fn r19_a_standby_that_does_not_wait_answers_beside_its_primary() {
    is_noticed(Sabotage::NoWait, &["r19_one_answers"]);
}

#[test]
fn r19_a_router_that_promotes_without_the_record() {
    is_noticed(Sabotage::NoRecord, &["r19_named"]);
}

#[test]
fn r19_a_primary_that_goes_on_alone() {
    is_noticed(Sabotage::GoesOnAlone, &["r19_not_alone"]);
}

#[test]
fn r19_a_read_of_a_former_primary_is_stale() {
    is_noticed(Sabotage::Stale, &["r19_linear"]);
}

#[test]
fn r20_a_primary_that_was_paused_and_uses_its_old_clock() {
    is_noticed(Sabotage::OldClock, &["r20_paused"]);
}

#[test]
fn liveness_of_a_standby_that_does_not_begin_anew() {
    is_noticed(Sabotage::NoRebuild, &["liveness"]);
}
