//! etcd's own robustness checkers over kindred, with a real etcd as control: the traffic, the model and the validators of
//! etcd's tests, in the program `etcd-robustness` of `tests/peers/robustness`. It records what clients are told and what
//! watches are sent, and has it judged. docs/testing.md says how revisions that are times are judged by a model that counts.
//!
//! `KINDRED_ROBUSTNESS_SECONDS` is how long the clients of each case work, `KINDRED_ROBUSTNESS_SEED` the first seed and
//! `KINDRED_ROBUSTNESS_SEEDS` how many of them the long test takes.

mod cluster;

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl, peers,
    scenario::{self, env_number, report},
};

use cluster::{Cluster, Fault, System};

const LIMIT: Duration = Duration::from_secs(1200);
/// How long a quick case lasts.
const SECONDS: u64 = 3;
/// Less than what a case has in three seconds, and enough to prove something. A slow machine gets a minute for it. A transaction
/// writes up to four keys.
const WRITES_MIN: u64 = 150;
const REVISIONS_MIN: u64 = 75;
const EVENTS_MIN: u64 = 300;

/// etcd's traffics. Each has transactions, stale reads and watches from former and future revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Kubernetes,
    /// The same with more creations and deletions.
    KubernetesCreateDelete,
    /// Transactions over several keys, which a Kind on several stores refuses.
    EtcdPut,
    EtcdPutDeleteLease,
}

impl Traffic {
    const ALL: [Self; 4] =
        [Self::Kubernetes, Self::KubernetesCreateDelete, Self::EtcdPut, Self::EtcdPutDeleteLease];

    const fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::KubernetesCreateDelete => "kubernetes-create-delete",
            Self::EtcdPut => "etcd-put",
            Self::EtcdPutDeleteLease => "etcd-put-delete-lease",
        }
    }

    const fn of_kubernetes(self) -> bool {
        matches!(self, Self::Kubernetes | Self::KubernetesCreateDelete)
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    system: System,
    traffic: Traffic,
    fault: Fault,
    /// Whether old revisions are compacted all the time.
    compacts: bool,
    /// Whether each distortion of the recording must be found, too.
    sabotage: bool,
}

impl Case {
    fn calm(system: System, traffic: Traffic) -> Self {
        Self { system, traffic, fault: Fault::None, compacts: false, sabotage: false }
    }

    /// The flags of the program.
    fn flags(self, seed: u64, seconds: u64, dir: &Path) -> Vec<String> {
        let mut flags = vec![
            format!("-traffic={}", self.traffic.name()),
            format!("-seed={seed}"),
            format!("-duration={seconds}s"),
            format!("-report={}", dir.display()),
            format!("-writes={WRITES_MIN}"),
            "-limit=3m".to_owned(),
        ];
        let one_store_for_all = matches!(self.system, System::Etcd | System::Shard { .. });
        if !one_store_for_all {
            // A lease has a home of its own (R12), whose revisions are not those of the Kind.
            flags.push("-lease-revisions=false".to_owned());
        }
        if self.system.apart() {
            flags.push("-apart".to_owned());
        }
        if self.compacts {
            flags.push("-compact=300ms".to_owned());
        }
        if self.sabotage {
            flags.push("-sabotage=all".to_owned());
        }
        if self.fault != Fault::None {
            // What may have been done is what makes judging slow.
            flags.extend(["-rate=100", "-clients=4", "-request-timeout=500ms"].map(str::to_owned));
        } else {
            // A busy machine may be slow.
            flags.push("-request-timeout=30s".to_owned());
        }
        flags
    }
}

/// Runs a case with fresh servers.
async fn check(dir: &Path, case: Case, seed: u64, seconds: u64) -> anyhow::Result<()> {
    let compacts = if case.compacts { " with compactions" } else { "" };
    let name = format!("{:?} fault={:?}{compacts}", case.system, case.fault);
    let seconds = seconds + case.fault.takes();
    let place = tempfile::Builder::new().prefix("case-").tempdir_in(dir)?.keep();
    let cluster = Cluster::start(&place, case.system).await.with_context(|| name.clone())?;
    let mut flags = case.flags(seed, seconds, &place);
    flags.push(format!("-endpoints={}", cluster.endpoints.join(",")));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = peers::peer("etcd-robustness")?;
    let (said, struck) = tokio::join!(etcdctl::run(&program, &flags, ""), cluster.strike(case.fault));
    let said = said?;
    ensure!(said.success, "{name}: {}\n{}", said.stdout, said.stderr);
    struck.with_context(|| name.clone())?;
    let line = said.stdout.lines().last().unwrap_or_default();
    report(&format!("{name}: {line}"));
    let counts: BTreeMap<&str, u64> = line
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .filter_map(|(what, number)| Some((what, number.parse().ok()?)))
        .collect();
    let count = |what: &str| counts.get(what).copied().with_context(|| format!("{what} in {line:?}"));
    ensure!(
        count("revisions")? >= REVISIONS_MIN && count("events")? >= EVENTS_MIN,
        "too little happened: {line}"
    );
    // A read at the revision of a lease's home may be refused, as may one of what is compacted.
    let refusable = case.compacts || case.fault != Fault::None || case.traffic == Traffic::EtcdPutDeleteLease;
    ensure!(refusable || count("failed")? == 0, "{name}: requests failed: {line}\n{}", said.stderr);
    std::fs::remove_dir_all(&place)?;
    Ok(())
}

fn suite(name: &str, cases: Vec<Case>, seeds: u64) {
    scenario::run(name, LIMIT, |dir| async move {
        let seconds = env_number("KINDRED_ROBUSTNESS_SECONDS", SECONDS)?;
        let first = env_number("KINDRED_ROBUSTNESS_SEED", 1)?;
        for seed in first..first + seeds {
            for case in &cases {
                check(&dir, *case, seed, seconds).await?;
            }
        }
        Ok(())
    });
}

/// The control, with distortions that prove that the checkers find something.
#[test]
fn etcd_passes_its_own_checkers() {
    let kubernetes = Case { sabotage: true, ..Case::calm(System::Etcd, Traffic::Kubernetes) };
    suite("robustness_etcd", vec![kubernetes, Case::calm(System::Etcd, Traffic::EtcdPutDeleteLease)], 1);
}

#[test]
fn kindred_passes_etcds_checkers() {
    let whole = System::WHOLE;
    let spread = Case { sabotage: true, ..Case::calm(System::RANGES, Traffic::Kubernetes) };
    suite("robustness", vec![Case::calm(whole, Traffic::EtcdPutDeleteLease), spread], 1);
}

#[test]
fn long_kindred_passes_etcds_checkers_in_every_layout() {
    let (whole, ranges, ring) = (System::WHOLE, System::RANGES, System::RING);
    let alone = [System::Etcd, System::Shard { dense: true }, System::Shard { dense: false }];
    let routed = [whole, ranges, ring].map(|system| [system, system.with_routers(2)]).concat();
    let mut cases = Vec::new();
    for system in alone.into_iter().chain(routed) {
        for traffic in Traffic::ALL {
            if traffic.of_kubernetes() || !system.spread() {
                cases.push(Case::calm(system, traffic));
            }
        }
        cases.push(Case { compacts: true, ..Case::calm(system, Traffic::Kubernetes) });
    }
    for (system, fault) in [
        (whole.with_routers(2), Fault::Moves),
        (whole, Fault::Shard),
        (ranges, Fault::Shard),
        (ring, Fault::Shard),
        (whole.with_routers(2), Fault::Router),
        (ring.with_routers(2), Fault::Router),
    ] {
        cases.push(Case { fault, ..Case::calm(system, Traffic::Kubernetes) });
    }
    let seeds = env_number("KINDRED_ROBUSTNESS_SEEDS", 1).unwrap_or(1);
    suite("robustness_all", cases, seeds);
}
