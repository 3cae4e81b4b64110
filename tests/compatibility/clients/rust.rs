//! The tests of the etcd-client crate, as `tests/peers/install etcd-client` builds them.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::ensure;
use kindred_tests::peers::{PeerSet, listed};

use super::run::{Event, Outcome, Suite, parts};

/// How many cases a process runs.
const CASES: usize = 6;

/// Cases that are not run, with the reason.
const NOT_RUN: &[(&str, &[&str])] = &[
    ("wants several members", &["test_cluster", "test_move_leader"]),
    (
        "wants a user root that somebody has made before",
        &["test_auth", "test_auth_refresh_token", "test_auth_refresh_token_once_for_concurrent_calls"],
    ),
];

/// The suites: the cases of each of its programs in small parts.
pub fn suites() -> anyhow::Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for peer in listed(PeerSet::EtcdClient)? {
        let mut cases = list(&peer.path)?;
        cases.retain(|case| !NOT_RUN.iter().any(|(_, cases)| cases.contains(&case.as_str())));
        for (part, cases) in parts(&cases, CASES).into_iter().enumerate() {
            let program = peer.path.clone();
            suites.push(Suite {
                client: format!("etcd-client crate, {}", peer.name),
                version: peer.version.clone(),
                part,
                cases,
                command: Arc::new(move |cases, address| command(&program, cases, address)),
                starts_servers: false,
                parse,
            });
        }
    }
    Ok(suites)
}

fn list(program: &PathBuf) -> anyhow::Result<Vec<String>> {
    let output = Command::new(program).args(["--list", "--format=terse"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let cases: Vec<String> =
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    ensure!(!cases.is_empty(), "{} has no cases: {text}", program.display());
    Ok(cases)
}

fn command(program: &PathBuf, cases: &[String], address: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(cases)
        .args(["--exact", "--include-ignored", "--test-threads=1"])
        .env("KINDRED_ADDRESS", address);
    command
}

/// A case ends with `test NAME ... ok`. Nothing is said when it begins.
fn parse(line: &str) -> Option<Event> {
    let (case, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let outcome = match result {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed("it failed".to_owned()),
        result if result.starts_with("ignored") => Outcome::Skipped(result.to_owned()),
        _ => return None,
    };
    Some(Event::Ends(case.to_owned(), outcome))
}
