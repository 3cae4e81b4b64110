//! At every step boundary of a move something goes wrong, while clients write, read and watch through a router that
//! survives: the coordinator is killed, or the source, the target or the meta store is killed and started again, or the
//! network between any two of them is cut for a while. The matrix is generated from the list of steps. Afterwards the
//! move has gone on or was given up, there is one owner, nothing that was acknowledged is lost, and nothing is left of it.
//!
//! Of clients only those of a store that is away may notice, and their watches go on all the same.
//!
//! `KILLS=all` runs the whole matrix, `KILLS=seal.after` or `KILLS=kill-source` the cases with that in their names (such as
//! `seal.after/Moved/cut-survivor-target`); the default is [`Case::some`].

mod case;
mod cluster;
mod run;
mod writers;

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use case::Case;
use cluster::{Cluster, Wiring};
use kindred_tests::{
    process::{has_failpoints, our_binary},
    scenario::{self, report},
    stall::Stalls,
};
use parking_lot::Mutex;
use run::Ended;
use tokio::task::JoinSet;
use writers::{Violation, Writers};

const LIMIT: Duration = Duration::from_secs(900);
/// Of what was asked for by name.
const LIMIT_OF_CHOSEN: Duration = Duration::from_secs(3600);
/// Clusters at a time: most of a case is waiting, for a dead router's claim to end or for a network.
const CLUSTERS: usize = 4;
/// So often a case is run again that met nothing but unavailability while the machine stood still.
const AGAIN_MAX: usize = 8;
/// A kube-apiserver whose watch is this far behind gives up its cache (R17).
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// What came of one kind of fault.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    reached: usize,
    taken_over: usize,
    aborted: usize,
    acknowledged: usize,
    /// Requests that failed while a store was away.
    errors: usize,
    /// Writes among them that were made.
    made_in_doubt: usize,
    longest_write: Duration,
    seconds: f64,
    not_reached: Vec<String>,
}

#[derive(Debug, Default)]
struct Total {
    tallies: BTreeMap<String, Tally>,
    failed: Vec<String>,
    /// Cases that were run again, because the machine stood still.
    again: usize,
}

/// Cases still to be run, by the clusters that they need.
struct Queues {
    direct: Mutex<VecDeque<Case>>,
    linked: Mutex<VecDeque<Case>>,
}

impl Queues {
    fn new(cases: Vec<Case>) -> Self {
        let (direct, linked): (Vec<_>, Vec<_>) =
            cases.into_iter().partition(|case| case.wiring() == Wiring::Direct);
        Self { direct: Mutex::new(direct.into()), linked: Mutex::new(linked.into()) }
    }

    fn of(&self, wiring: Wiring) -> &Mutex<VecDeque<Case>> {
        match wiring {
            Wiring::Direct => &self.direct,
            Wiring::Linked => &self.linked,
        }
    }
}

#[test]
fn faults_at_every_step_of_a_move() {
    let chosen = std::env::var("KILLS").unwrap_or_default();
    let (cases, limit) = match chosen.as_str() {
        "" => (Case::some(), LIMIT),
        "all" => (Case::all(), LIMIT_OF_CHOSEN),
        some => {
            let all = Case::all().into_iter();
            (all.filter(|case| case.to_string().contains(some)).collect(), LIMIT_OF_CHOSEN)
        }
    };
    scenario::run("kills", limit, |dir| async move {
        ensure!(!cases.is_empty(), "KILLS={chosen} names no case");
        has_failpoints(&fs::canonicalize(our_binary("kindred-router")?)?, cluster::FAILPOINTS)?;
        let began = Instant::now();
        let queues = Arc::new(Queues::new(cases));
        let total = Arc::new(Mutex::new(Total::default()));
        let stalls = Arc::new(Stalls::watch(&dir)?);
        let mut runs = JoinSet::new();
        for run in 0..CLUSTERS {
            let (dir, queues, total, stalls) = (dir.clone(), queues.clone(), total.clone(), stalls.clone());
            runs.spawn(async move {
                // Half of them begin with the other half.
                let mut wirings = [Wiring::Direct, Wiring::Linked];
                wirings.rotate_left(run % 2);
                for wiring in wirings {
                    cases_of(dir.clone(), run, wiring, &queues, &total, &stalls).await;
                }
            });
        }
        while let Some(done) = runs.join_next().await {
            done?;
        }
        let total = total.lock();
        for (fault, tally) in &total.tallies {
            report(&format!(
                "kills fault={fault} cases={} reached={} taken_over={} aborted={} acknowledged={} lost=0 errors={} \
                 made_in_doubt={} longest_write_ms={} case_s={:.1} not_reached={:?}",
                tally.cases,
                tally.reached,
                tally.taken_over,
                tally.aborted,
                tally.acknowledged,
                tally.errors,
                tally.made_in_doubt,
                tally.longest_write.as_millis(),
                tally.seconds / tally.cases.max(1) as f64,
                tally.not_reached,
            ));
        }
        let cases: usize = total.tallies.values().map(|tally| tally.cases).sum();
        let (failed, seconds) = (total.failed.len(), began.elapsed().as_secs_f64());
        report(&format!("kills cases={cases} failed={failed} again={} seconds={seconds:.0}", total.again));
        ensure!(total.failed.is_empty(), "{}", total.failed.join("\n"));
        let not_reached: Vec<_> = total.tallies.values().flat_map(|tally| &tally.not_reached).collect();
        ensure!(not_reached.is_empty(), "steps were not reached: {not_reached:?}");
        Ok(())
    });
}

/// Takes cases from the queue, on one cluster after the other: a case that fails leaves its cluster unusable.
async fn cases_of(
    dir: PathBuf,
    run: usize,
    wiring: Wiring,
    queues: &Queues,
    total: &Mutex<Total>,
    stalls: &Stalls,
) {
    let queue = queues.of(wiring);
    for cluster in 0.. {
        if queue.lock().is_empty() {
            return;
        }
        let name = format!("run{run}-{wiring:?}{cluster}").to_lowercase();
        let (mut current, mut began) = (None, Instant::now());
        let ran = on_one_cluster(&dir, &name, wiring, queue, total, &mut current, &mut began).await;
        let Err(error) = ran else { continue };
        let case = current.map_or_else(|| "the start".to_owned(), |case: Case| case.to_string());
        let failed = format!("{name} {case}: {error:#}");
        report(&failed);
        let mut total = total.lock();
        let excusable = !error.is::<Violation>() && total.again < AGAIN_MAX;
        if let Some(stall) = stalls.longest(began).filter(|_| excusable) {
            report(&format!("{name} {case}: again, the machine stood still for {stall:?}"));
            total.again += 1;
            queue.lock().extend(current);
            continue;
        }
        total.failed.push(failed);
        if current.is_none() {
            return;
        }
    }
}

async fn on_one_cluster(
    dir: &Path,
    name: &str,
    wiring: Wiring,
    queue: &Mutex<VecDeque<Case>>,
    total: &Mutex<Total>,
    current: &mut Option<Case>,
    current_began: &mut Instant,
) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(dir, name, wiring).await?;
    let mut writers = Writers::start(cluster.client().await?).await?;
    let mut owner = "a";
    loop {
        let Some(case) = queue.lock().pop_front() else { break };
        let (before, began) = (writers.counts(), Instant::now());
        (*current, *current_began) = (Some(case), began);
        let ran = case.run(&mut cluster, &mut writers, owner).await;
        let after = writers.counts();
        let mut total = total.lock();
        let tally = total.tallies.entry(case.fault.to_string()).or_default();
        tally.cases += 1;
        tally.seconds += began.elapsed().as_secs_f64();
        tally.acknowledged += after.acknowledged - before.acknowledged;
        tally.errors += after.failed - before.failed;
        tally.made_in_doubt += after.made_in_doubt - before.made_in_doubt;
        let longest = writers.longest();
        tally.longest_write = tally.longest_write.max(longest);
        let (now, Ended { reached, taken_over, aborted }) = ran.with_context(|| format!("from {owner}"))?;
        ensure!(
            case.fault.is_felt() || longest <= PAUSE_MAX,
            "a write took {longest:?}, and what serves it was there all the time (R17)"
        );
        owner = now;
        tally.reached += usize::from(reached);
        tally.taken_over += usize::from(taken_over);
        tally.aborted += usize::from(aborted);
        if !reached {
            tally.not_reached.push(case.to_string());
        }
    }
    Ok(())
}
