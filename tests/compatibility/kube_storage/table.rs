//! The tables of `docs/compatibility.md`: what passes where, and what differs for which reason.

use std::collections::{BTreeMap, BTreeSet};

use kindred_tests::layouts::Place;

use super::{Results, differences::DIFFERENCES};
use crate::compatibility::{clients::run::Outcome, documented::documented};

/// The row of each place: the cases of etcd, and those that pass there and here.
pub fn rows(results: &Results) -> Vec<String> {
    let passed = |place: Place| {
        let outcomes = results
            .values()
            .filter_map(|places| places.get(&place))
            .flat_map(|cases| cases.outcomes.values());
        outcomes.filter(|outcome| **outcome == Outcome::Passed).count()
    };
    let at_etcd = results.values().filter_map(|places| places.get(&Place::ETCD));
    let cases: usize = at_etcd.map(|cases| cases.outcomes.len()).sum();
    let places: BTreeSet<Place> = results.values().flat_map(|places| places.keys().copied()).collect();
    let row = |place: Place| {
        let routers = if place.routers == 0 { "none".to_owned() } else { place.routers.to_string() };
        format!("| {} | {routers} | {cases} | {} | {} |", place.layout, passed(Place::ETCD), passed(place))
    };
    places.into_iter().filter(|place| *place != Place::ETCD).map(row).collect()
}

/// Compares the table of places with the documentation, or with `KINDRED_DOCS=write` writes it there.
pub fn places_are_documented(results: &Results) -> anyhow::Result<()> {
    let mut table =
        "| layout | routers | cases | passed at etcd | passed at kindred |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for row in rows(results) {
        table += &format!("{row}\n");
    }
    documented("docs/compatibility.md", "kubernetes storage", &table)
}

/// The same for the table of differences.
pub fn differences_are_documented() -> anyhow::Result<()> {
    let mut table = "| reason | where | cases |\n| --- | --- | --- |\n".to_owned();
    for difference in DIFFERENCES {
        let at: Vec<String> = difference.at.iter().map(ToString::to_string).collect();
        let of_package = |(package, cases): &(&str, &[&str])| format!("{package}: {}", tests(cases));
        let cases: Vec<String> = difference.cases.iter().map(of_package).collect();
        table += &format!("| {} | {} | {} |\n", difference.reason, at.join("; "), cases.join("; "));
    }
    documented("docs/compatibility.md", "differences of kubernetes storage", &table)
}

/// The tests that cases are of, with how many of their parts these are.
fn tests(cases: &[&str]) -> String {
    let mut tests: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        let (test, part) = case.split_once('/').map_or((*case, 0), |(test, _)| (test, 1));
        *tests.entry(test).or_default() += part;
    }
    let named = |(test, parts): (&str, usize)| match parts {
        0 => format!("`{test}`"),
        1 => format!("`{test}` (1 part)"),
        parts => format!("`{test}` ({parts} parts)"),
    };
    tests.into_iter().map(named).collect::<Vec<_>>().join(", ")
}
