//! Thousands of seeds, none of which may break an invariant: always the same, or those from `KINDRED_SOAK_SEED` on.

use std::io::Write;

use kindred_sim::many::many;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_anything() {
    check(1_000);
}

#[test]
fn long_no_seed_breaks_anything() {
    check(10_000);
}

fn check(seeds: u64) {
    let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
    let (counts, broken) = many(first..first + number("KINDRED_SOAK_CASES").unwrap_or(seeds), 2);
    // Past the harness, which keeps to itself what a passing test prints.
    let _ = writeln!(std::io::stderr(), "{counts}");
    let reports: Vec<String> = broken.iter().take(3).map(|outcome| outcome.report()).collect();
    assert!(broken.is_empty(), "{}", reports.join("\n"));
}
