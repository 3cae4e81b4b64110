//! Libraries of Python with the tests of their authors, and Patroni, npm's etcd3 and Java's jetcd with cases of ours, as
//! `tests/peers/install` installs them.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, ensure};
use kindred_tests::peers::{Peer, PeerSet, listed, peer};

use super::run::{Event, Outcome, Suite, parts};

/// Cases that are not run, with the reason.
const NOT_RUN: &[(&str, &[&str])] = &[
    (
        "connects to port 2379, whatever it is told",
        &[
            "test_auth",
            "test_compact",
            "test_create_alarm_all_members",
            "test_create_alarm_specific_member",
            "test_disarm_alarm",
            "test_list_alarms",
        ],
    ),
    ("wants three members", &["test_member_list"]),
    ("stops members", &["test_get_key_serializable", "test_get_prefix_serializable"]),
    ("calls `etcdctl snapshot status`, which etcdctl 3.7 does not have", &["test_snapshot"]),
    ("cannot import what it wants", &["test_user_pwd_auth"]),
];

/// The sets of libraries, how their clients are called here, and how many cases a process runs. One of Java takes long to
/// start.
const SETS: [(PeerSet, &str, usize); 3] =
    [(PeerSet::Python, "Python", 16), (PeerSet::Node, "npm", 16), (PeerSet::Java, "Java", 30)];

/// The suites, and the languages that this machine lacks.
pub fn suites() -> anyhow::Result<(Vec<Suite>, Vec<&'static str>)> {
    let (mut suites, mut lacking) = (Vec::new(), Vec::new());
    let etcdctl = peer("etcdctl")?;
    let path = path_with(etcdctl.parent().context("a folder")?)?;
    for (set, language, cases_max) in SETS {
        let libraries = listed(set)?;
        if libraries.is_empty() {
            lacking.push(language);
        }
        for library in libraries {
            let mut cases = list(&library)?;
            cases.retain(|case| !NOT_RUN.iter().any(|(_, cases)| cases.contains(&case.as_str())));
            for (part, cases) in parts(&cases, cases_max).into_iter().enumerate() {
                let (program, path) = (library.path.clone(), path.clone());
                suites.push(Suite {
                    client: format!("{language} {}", library.name),
                    version: library.version.clone(),
                    part,
                    cases,
                    command: Arc::new(move |cases, address| command(&program, &path, cases, address)),
                    starts_servers: false,
                    parse,
                });
            }
        }
    }
    Ok((suites, lacking))
}

/// The search path of programs with a folder before it: some tests call etcdctl.
fn path_with(folder: &Path) -> anyhow::Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", folder.to_str().context("a path")?))
}

fn list(peer: &Peer) -> anyhow::Result<Vec<String>> {
    let output = Command::new(&peer.path).env("KINDRED_LIST", "1").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let cases: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix("case ")).map(str::to_owned).collect();
    ensure!(!cases.is_empty(), "{} has no cases: {text}", peer.name);
    Ok(cases)
}

fn command(program: &PathBuf, path: &str, cases: &[String], address: &str) -> Command {
    let mut command = Command::new(program);
    let url = format!("http://{address}");
    let port = address.rsplit(':').next().unwrap_or_default();
    command.env("PATH", path).env("KINDRED_CASES", cases.join(",")).env("TEST_ETCD_VERSION", "v3.7.3");
    for variable in ["PYTHON_ETCD_HTTP_URL", "TEST_ETCD_HTTP_URL", "TOOZ_TEST_HTTP_URL"] {
        command.env(variable, &url);
    }
    command.env("TOOZ_TEST_ETCD_PORT", port).env("KINDRED_ADDRESS", address);
    command
}

/// The lines of `tests/peers/python/report.py`, `tests/peers/node/main.js` and `tests/peers/java/Cases.java`.
fn parse(line: &str) -> Option<Event> {
    let (what, case) = line.split_once(' ')?;
    let (case, why) = case.split_once(' ').unwrap_or((case, ""));
    let case = case.to_owned();
    match what {
        "begins" => Some(Event::Begins(case)),
        "passed" => Some(Event::Ends(case, Outcome::Passed)),
        "skipped" => Some(Event::Ends(case, Outcome::Skipped(why.to_owned()))),
        "failed" => Some(Event::Ends(case, Outcome::Failed(why.to_owned()))),
        _ => None,
    }
}
