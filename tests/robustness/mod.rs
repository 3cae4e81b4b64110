//! etcd's own robustness checkers over kindred, with a real etcd as control: the traffic, the model and the validators of
//! etcd's tests, in the program `etcd-robustness` of `tests/peers/robustness`. It records what clients are told and what
//! watches are sent, and has it judged. docs/testing.md says how revisions that are times are judged by a model that counts.
//!
//! `KINDRED_ROBUSTNESS_SECONDS` is how long the clients of each case work, `KINDRED_ROBUSTNESS_SEED` the first seed and
//! `KINDRED_ROBUSTNESS_SEEDS` how many of them the long test takes.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl,
    faults::Fault,
    layouts::{Kind, Layout, Place, Wanted},
    peers,
    scenario::{self, env_number, report},
};

const LIMIT: Duration = Duration::from_secs(1200);
/// How long a quick case lasts.
const SECONDS: u64 = 3;
/// Less than what a case has in three seconds, and enough to prove something. A slow machine gets a minute for it. A transaction
/// writes up to four keys.
const WRITES_MIN: u64 = 150;
const REVISIONS_MIN: u64 = 75;
const EVENTS_MIN: u64 = 300;

/// Pods are cut where etcd's random names are: digits, capitals and small letters.
const PODS: Kind = Kind { resource: "pods", cuts: ["default/J", "default/d"] };
/// From the start of the program until a fault: clients work by then.
const BEFORE: Duration = Duration::from_millis(1500);

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
    place: Place,
    traffic: Traffic,
    fault: Fault,
    /// Whether old revisions are compacted all the time.
    compacts: bool,
    /// Whether each distortion of the recording must be found, too.
    sabotage: bool,
}

impl Case {
    fn calm(place: Place, traffic: Traffic) -> Self {
        Self { place, traffic, fault: Fault::None, compacts: false, sabotage: false }
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
        if self.place.routers > 0 {
            // A lease has a home of its own (R12), whose revisions are not those of the Kind.
            flags.push("-lease-revisions=false".to_owned());
        }
        if self.fault.sets_apart(self.place) {
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
    let name = format!("{} fault={:?}{compacts}", case.place, case.fault);
    let seconds = seconds + case.fault.takes().as_secs();
    let folder = tempfile::Builder::new().prefix("case-").tempdir_in(dir)?.keep();
    let wanted = Wanted { kinds: &[PODS], ..Wanted::default() };
    let servers = case.place.start(&folder, wanted).await.with_context(|| name.clone())?;
    let mut flags = case.flags(seed, seconds, &folder);
    flags.push(format!("-endpoints={}", servers.addresses.join(",")));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = peers::peer("etcd-robustness")?;
    let strike = async {
        tokio::time::sleep(BEFORE).await;
        servers.strike(case.fault, PODS.resource, PODS.cuts[0]).await
    };
    let (said, struck) = tokio::join!(etcdctl::run(&program, &flags, ""), strike);
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
    std::fs::remove_dir_all(&folder)?;
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
    let kubernetes = Case { sabotage: true, ..Case::calm(Place::ETCD, Traffic::Kubernetes) };
    suite("robustness_etcd", vec![kubernetes, Case::calm(Place::ETCD, Traffic::EtcdPutDeleteLease)], 1);
}

#[test]
fn kindred_passes_etcds_checkers() {
    let whole = Case::calm(Layout::Whole.behind(1), Traffic::EtcdPutDeleteLease);
    let spread = Case { sabotage: true, ..Case::calm(Layout::Ranges.behind(1), Traffic::Kubernetes) };
    suite("robustness", vec![whole, spread], 1);
}

/// Each layout, in calm and with each fault that it can have.
#[test]
fn long_kindred_passes_etcds_checkers_in_every_layout() {
    let mut cases = Vec::new();
    for place in [Place::ETCD].into_iter().chain(Place::all()) {
        for traffic in Traffic::ALL {
            if traffic.of_kubernetes() || !place.layout.is_spread() {
                cases.push(Case::calm(place, traffic));
            }
        }
        // A client's compaction is not for an etcd beside the shards (docs/design.md, Stock etcds): what was compacted by the
        // answer can still be read there.
        if place.layout != Layout::Stock {
            cases.push(Case { compacts: true, ..Case::calm(place, Traffic::Kubernetes) });
        }
        // A fault takes as long at one router as at two, and finds less.
        let faults = Fault::ALL.into_iter().filter(|fault| *fault != Fault::None && place.routers == 2);
        cases.extend(
            faults
                .filter(|fault| fault.fits(place.layout))
                .map(|fault| Case { fault, ..Case::calm(place, Traffic::Kubernetes) }),
        );
    }
    let seeds = env_number("KINDRED_ROBUSTNESS_SEEDS", 1).unwrap_or(1);
    suite("robustness_all", cases, seeds);
}
