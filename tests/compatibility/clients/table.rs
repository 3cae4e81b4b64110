//! The tables of `docs/compatibility.md`: what passes where, and what differs for which reason.

use std::{collections::BTreeMap, fmt};

use crate::compatibility::documented;

use super::{
    Results,
    differences::DIFFERENCES,
    run::{Outcome, Suite},
    side::Side,
};

/// The row of a client.
#[derive(Debug)]
pub struct Row {
    client: String,
    version: String,
    cases: usize,
    passed: [usize; 3],
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [etcd, shard, router] = self.passed;
        write!(f, "| {} | {} | {} | {etcd} | {shard} | {router} |", self.client, self.version, self.cases)
    }
}

/// The rows of the clients that were run. A case that skips itself at etcd is none.
pub fn rows(suites: &[Suite], results: &BTreeMap<String, Results>) -> Vec<Row> {
    let row = |(client, cases): (&String, &Results)| {
        let version = suites.iter().find(|suite| suite.client == *client);
        let cases: Vec<_> =
            cases.values().filter(|at| !matches!(at.get(&Side::Etcd), Some(Outcome::Skipped(_)))).collect();
        let passed = |side| cases.iter().filter(|at| at.get(&side) == Some(&Outcome::Passed)).count();
        Row {
            client: client.clone(),
            version: version.map(|suite| suite.version.clone()).unwrap_or_default(),
            cases: cases.len(),
            passed: Side::ALL.map(passed),
        }
    };
    results.iter().map(row).collect()
}

/// Compares the tables with the documentation, or with `KINDRED_DOCS=write` writes them there.
pub fn documented(rows: &[Row]) -> anyhow::Result<()> {
    let mut clients =
        "| client | version | cases | etcd | shard alone | router |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for row in rows {
        clients += &format!("{row}\n");
    }
    let mut reasons = "| reason | where | cases |\n| --- | --- | --- |\n".to_owned();
    let shown = |client: &str| rows.iter().any(|row| row.client == client);
    for difference in DIFFERENCES {
        let at: Vec<&str> = difference.at.iter().map(|side| side.name()).collect();
        let cases: Vec<String> = difference
            .cases
            .iter()
            .filter(|(client, _)| shown(client))
            .map(|(client, cases)| format!("{client}: {}", code(cases)))
            .collect();
        if cases.is_empty() {
            continue;
        }
        reasons += &format!("| {} | {} | {} |\n", difference.reason, at.join(", "), cases.join("; "));
    }
    documented::documented("docs/compatibility.md", "clients", &clients)?;
    documented::documented("docs/compatibility.md", "differences", &reasons)
}

fn code(cases: &[&str]) -> String {
    let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
    cases.join(", ")
}
