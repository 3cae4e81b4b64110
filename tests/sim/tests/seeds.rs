//! Ten thousand seeds, none of which may break an invariant.

use kindred_sim::many::many;

#[test]
fn no_seed_breaks_anything() {
    let (counts, broken) = many(0..10_000, 2);
    eprintln!("{counts}");
    let reports: Vec<String> = broken.iter().take(3).map(|outcome| outcome.report()).collect();
    assert!(broken.is_empty(), "{}", reports.join("\n"));
}
