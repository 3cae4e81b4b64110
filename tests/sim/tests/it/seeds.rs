//! Ten thousand seeds, none of which may break an invariant: always the same, or those from `KINDRED_SOAK_SEED` on.

use std::io::Write;

use kindred_sim::many::many;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_anything() {
    let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
    let (counts, broken) = many(first..first + number("KINDRED_SOAK_CASES").unwrap_or(10_000), 2);
    // Past the harness, which keeps to itself what a passing test prints.
    let _ = writeln!(std::io::stderr(), "{counts}");
    let reports: Vec<String> = broken.iter().take(3).map(|outcome| outcome.report()).collect();
    assert!(broken.is_empty(), "{}", reports.join("\n"));
}
