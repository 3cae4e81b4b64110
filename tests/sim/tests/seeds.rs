//! Ten thousand seeds, none of which may break an invariant.

use std::io::Write;

use kindred_sim::many::many;

#[test]
fn no_seed_breaks_anything() {
    let (counts, broken) = many(0..10_000, 2);
    // Past the harness, which keeps to itself what a passing test prints.
    let _ = writeln!(std::io::stderr(), "{counts}");
    let reports: Vec<String> = broken.iter().take(3).map(|outcome| outcome.report()).collect();
    assert!(broken.is_empty(), "{}", reports.join("\n"));
}
