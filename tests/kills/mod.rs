//! A fault happens at every boundary of every step of a move, while clients write, read and watch through a router that
//! survives. The coordinator is killed; or the source, the target or the meta store is killed and started again; or a
//! link between a router and a server is cut for a while. The matrix is generated from the list of steps. Afterwards
//! the move has continued or was given up, there is one owner, no acknowledged write is lost, and no trace of the move
//! is left.
//!
//! Only requests to a store that is away may fail, and even watches of its keys continue afterwards.
//!
//! The long test runs the whole matrix, the other one [`Case::some`], or with `KILLS=seal.after` or `KILLS=kill-source` the
//! cases with that text in their names, such as `seal.after/Moved/cut-survivor-target`.

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
/// The limit if the environment chooses the cases.
const LIMIT_OF_CHOSEN: Duration = Duration::from_secs(3600);
/// The number of clusters that run concurrently. A case mostly waits: for the claim of a dead router to end, or for a
/// cut link.
const CLUSTERS: usize = 4;
/// How many runs may be repeated because the machine stalled. A run that broke a promise is never repeated.
const AGAIN_MAX: usize = 8;
/// A kube-apiserver whose watch is this far behind stops reading from its cache (R17).
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// The results of one kind of fault.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    reached: usize,
    taken_over: usize,
    aborted: usize,
    acknowledged: usize,
    /// Requests that failed while a store was away.
    errors: usize,
    /// Failed writes that were executed nevertheless.
    made_in_doubt: usize,
    longest_write: Duration,
    seconds: f64,
    not_reached: Vec<String>,
}

#[derive(Debug, Default)]
struct Total {
    tallies: BTreeMap<String, Tally>,
    failed: Vec<String>,
    /// The number of cases that ran again because the machine stalled.
    again: usize,
}

/// The remaining cases, by the kind of cluster that they need.
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
    match std::env::var("KILLS") {
        Ok(chosen) => {
            let all = Case::all().into_iter();
            let cases: Vec<_> = all.filter(|case| case.to_string().contains(&chosen)).collect();
            assert!(!cases.is_empty(), "KILLS={chosen} names no case");
            faults(cases, LIMIT_OF_CHOSEN);
        }
        Err(_) => faults(Case::some(), LIMIT),
    }
}

#[test]
fn long_faults_at_both_sides_of_every_step_of_a_move() {
    faults(Case::all(), LIMIT_OF_CHOSEN);
}

fn faults(cases: Vec<Case>, limit: Duration) {
    scenario::run("kills", limit, |dir| async move {
        has_failpoints(&fs::canonicalize(our_binary("kindred")?)?, cluster::FAILPOINTS)?;
        let began = Instant::now();
        let queues = Arc::new(Queues::new(cases));
        let total = Arc::new(Mutex::new(Total::default()));
        let stalls = Arc::new(Stalls::watch(&dir)?);
        let mut runs = JoinSet::new();
        for run in 0..CLUSTERS {
            let (dir, queues, total, stalls) = (dir.clone(), queues.clone(), total.clone(), stalls.clone());
            runs.spawn(async move {
                // Half of the runs begin with direct clusters, the others with linked ones.
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

/// Runs cases from the queue. A case that fails leaves its cluster unusable, so the next one gets a new cluster.
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
            report(&format!("{name} {case} runs again, because the machine stalled for {stall:?}"));
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
