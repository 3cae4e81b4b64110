//! The tests of clients in Go: those of CoreDNS, and etcd's own integration tests of its client and of its API, as
//! `tests/peers/install` builds them. Each case of etcd's has a server of its own, which `tests/peers/etcd-tests/external.go` starts.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::Context;
use kindred_tests::peers::{Peer, PeerSet, listed};

use super::{
    differences::{API, COMMON},
    run::{Event, Outcome, Suite, parts},
};

/// How many cases a process runs.
const CASES: usize = 10;

/// Cases that are not run, with the reason. They fail, or say nothing, with any server outside of their process.
const NOT_RUN: &[(&str, &[&str])] = &[
    (
        "looks into the server, or sets variables of it",
        &[
            "TestAuthority",
            "TestCompactHashCheck",
            "TestCompactHashCheckDetectCorruption",
            "TestCompactHashCheckDetectMultipleCorruption",
            "TestFirstCommitNotification",
            "TestMaintenanceSnapshotErrorInflight",
            "TestMaintenanceSnapshotWithVersionErrorInflight",
            "TestPeriodicCheck",
            "TestPeriodicCheckDetectsCorruption",
            "TestTLSClientCipherSuitesMismatch",
            "TestTracing",
            "TestV3AdditionalGRPCOptions",
            "TestWatchWithProgressNotify",
            "TestWatchWithProgressNotify2",
            "TestWatchWithProgressNotifyNoEvent",
        ],
    ),
    (
        "wants several members",
        &[
            "ExampleCluster_memberAdd",
            "ExampleCluster_memberAddAsLearner",
            "ExampleCluster_memberList",
            "ExampleCluster_memberUpdate",
            "TestAddMemberAfterClusterFullRotation",
            "TestAuthMemberAdd",
            "TestAuthMemberRemove",
            "TestDecreaseClusterSizeOf3",
            "TestDecreaseClusterSizeOf5",
            "TestIssue2681",
            "TestIssue2746",
            "TestIssue2746WithThree",
            "TestLaunchDuplicateMemberShouldFail",
            "TestLeasingGetSerializable",
            "TestMaintenanceMoveLeader",
            "TestMaintenanceStatus",
            "TestMemberAdd",
            "TestMemberAddForLearner",
            "TestMemberAddWithExistingURLs",
            "TestMemberList",
            "TestMemberPromoteMemberNotExist",
            "TestMemberRemove",
            "TestMemberUpdate",
            "TestMemberUpdateLearner",
            "TestMoveLeader",
            "TestMoveLeaderError",
            "TestMoveLeaderService",
            "TestRemoveMemberAndWALReplay",
            "TestRevisionMonotonicWithLeaderPartitions",
            "TestRevisionMonotonicWithLeaderRestarts",
            "TestRevisionMonotonicWithPartitions",
            "TestRevisionMonotonicWithRestarts",
            "TestStatus",
            "TestV3LeaseCheckpoint",
            "TestV3LeaseFailureOverlap",
            "TestV3StorageQuotaAPI",
        ],
    ),
    (
        "skips itself, or fails, if the server is faster or slower than it hopes",
        &[
            "TestMaintenanceSnapshotWithVersionTimeout",
            "TestMaintenanceSnapshotTimeout",
            "TestWatchResumeAfterDisconnect",
        ],
    ),
    (
        "asks at each revision between two, and those of a router are times",
        &["TestVerifyHashKVAfterCompact", "TestVerifyHashKVAfterTwoCompactsOnTombstone"],
    ),
    ("makes members of its own", &["TestSnapshotAndRestartMember", "TestSpeedyTerminate"]),
    (
        "changes certificates where the server of another process does not look",
        &["TestTLSReloadAtomicReplace", "TestTLSReloadCopy", "TestTLSReloadCopyIPOnly"],
    ),
];

/// Cases of CoreDNS that ask no server.
const OF_COREDNS_ALONE: [&str; 3] = ["TestSetupEtcd", "TestSetupNoApexFallback", "TestParseTTL"];

/// The tests of CoreDNS' etcd plugin, which writes names and looks them up.
pub fn coredns() -> anyhow::Result<Vec<Suite>> {
    let suite = |peer: Peer| {
        let mut cases = list(&peer.path)?;
        cases.retain(|case| !OF_COREDNS_ALONE.contains(&case.as_str()));
        let program = peer.path.clone();
        Ok(Suite {
            client: "CoreDNS' etcd plugin".to_owned(),
            version: peer.version,
            part: 0,
            cases,
            command: Arc::new(move |cases, address| {
                let mut command = command(&program, cases);
                command.env("KINDRED_URL", format!("http://{address}"));
                command
            }),
            starts_servers: false,
            parse,
        })
    };
    listed(PeerSet::Coredns)?.into_iter().map(suite).collect()
}

/// The suites: the cases of each package in small parts.
pub fn suites() -> anyhow::Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for peer in listed(PeerSet::EtcdTests)? {
        let mut cases = list(&peer.path)?;
        cases.retain(|case| !NOT_RUN.iter().any(|(_, cases)| cases.contains(&case.as_str())));
        for (part, cases) in parts(&cases, CASES).into_iter().enumerate() {
            let program = peer.path.clone();
            suites.push(Suite {
                client: match peer.name.as_str() {
                    "api" => API.to_owned(),
                    "common" => COMMON.to_owned(),
                    package => format!("etcd's tests of {package}"),
                },
                version: peer.version.clone(),
                part,
                cases,
                command: Arc::new(move |cases, _| command(&program, cases)),
                starts_servers: true,
                parse,
            });
        }
    }
    Ok(suites)
}

/// The names of all cases of a program.
pub fn list(program: &PathBuf) -> anyhow::Result<Vec<String>> {
    let folder = program.parent().context("a folder")?;
    let output = Command::new(program).args(["-test.list", "."]).current_dir(folder).output()?;
    let text = String::from_utf8(output.stdout)?;
    let cases = text.lines().filter(|line| line.starts_with("Test") || line.starts_with("Example"));
    Ok(cases.map(str::to_owned).collect())
}

fn command(program: &PathBuf, cases: &[String]) -> Command {
    let mut command = Command::new(program);
    let only = format!("^({})$", cases.join("|"));
    command.args(["-test.v", "-test.timeout=0", "-test.run", &only]);
    // The certificates of the tests are beside the folder of the programs.
    command.current_dir(program.parent().unwrap_or(program));
    command
}

/// A case begins with `=== RUN   TestName` and ends with `--- PASS: TestName (0.00s)`.
pub fn parse(line: &str) -> Option<Event> {
    if let Some(case) = line.strip_prefix("=== RUN   ") {
        return (!case.contains('/')).then(|| Event::Begins(case.to_owned()));
    }
    let (before, result) = line.split_once("--- ")?;
    let (result, case) = result.split_once(": ")?;
    let case = case.split_once(" (")?.0.to_owned();
    if before.ends_with(' ') {
        return None;
    }
    let outcome = match result {
        "PASS" => Outcome::Passed,
        "SKIP" => Outcome::Skipped(String::new()),
        "FAIL" => Outcome::Failed(String::new()),
        _ => return None,
    };
    Some(Event::Ends(case, outcome))
}
