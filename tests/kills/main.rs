//! The coordinator of a move is killed at every step boundary, while clients write, read and watch through the other
//! router. The matrix is generated from the list of steps; the other router must take over, and nobody may notice.
//!
//! `KILLS=all` runs the whole matrix, `KILLS=seal.after` the cases that begin so; the default is one side of each step.

mod case;
mod cluster;
mod writers;

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use case::{Case, Ended};
use cluster::Cluster;
use kindred_tests::scenario::{self, report};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use writers::Writers;

const LIMIT: Duration = Duration::from_secs(900);
/// Clusters at a time: most of a case is waiting for a dead router's claim to end.
const CLUSTERS: usize = 4;

#[derive(Debug, Default)]
struct Total {
    cases: usize,
    killed: usize,
    taken_over: usize,
    aborted: usize,
    acknowledged: usize,
    longest_write: Duration,
    not_reached: Vec<String>,
    failed: Vec<String>,
}

#[test]
fn coordinators_killed_at_every_step() {
    let chosen = std::env::var("KILLS").unwrap_or_default();
    let cases = match chosen.as_str() {
        "" => Case::some(),
        "all" => Case::all(),
        some => Case::all().into_iter().filter(|case| case.to_string().starts_with(some)).collect(),
    };
    scenario::run("kills", LIMIT, |dir| async move {
        ensure!(!cases.is_empty(), "KILLS={chosen} names no case");
        let began = Instant::now();
        let queue = Arc::new(Mutex::new(cases.into_iter().collect::<VecDeque<_>>()));
        let total = Arc::new(Mutex::new(Total::default()));
        let mut runs = JoinSet::new();
        for run in 0..CLUSTERS {
            runs.spawn(cases_of(dir.clone(), run, queue.clone(), total.clone()));
        }
        while let Some(done) = runs.join_next().await {
            done?;
        }
        let total = total.lock();
        report(&format!(
            "kills cases={} killed={} taken_over={} aborted={} acknowledged={} lost=0 longest_write_ms={} \
             not_reached={:?} failed={} seconds={:.0}",
            total.cases,
            total.killed,
            total.taken_over,
            total.aborted,
            total.acknowledged,
            total.longest_write.as_millis(),
            total.not_reached,
            total.failed.len(),
            began.elapsed().as_secs_f64(),
        ));
        ensure!(total.failed.is_empty(), "{}", total.failed.join("\n"));
        ensure!(total.not_reached.is_empty(), "steps were not reached: {:?}", total.not_reached);
        Ok(())
    });
}

/// Takes cases from the queue, on one cluster after the other: a case that fails leaves its cluster unusable.
async fn cases_of(dir: PathBuf, run: usize, queue: Arc<Mutex<VecDeque<Case>>>, total: Arc<Mutex<Total>>) {
    for cluster in 0.. {
        if queue.lock().is_empty() {
            return;
        }
        let name = format!("run{run}-{cluster}");
        let mut current = None;
        if let Err(error) = on_one_cluster(&dir, &name, &queue, &total, &mut current).await {
            let case = current.map_or_else(|| "the start".to_owned(), |case: Case| case.to_string());
            total.lock().failed.push(format!("{name} {case}: {error:#}"));
            if current.is_none() {
                return;
            }
        }
    }
}

async fn on_one_cluster(
    dir: &Path,
    name: &str,
    queue: &Mutex<VecDeque<Case>>,
    total: &Mutex<Total>,
    current: &mut Option<Case>,
) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(dir, name).await?;
    let mut writers = Writers::start(cluster.client().await?).await?;
    let mut owner = "a";
    loop {
        let Some(case) = queue.lock().pop_front() else { break };
        *current = Some(case);
        total.lock().cases += 1;
        let before = writers.acknowledged();
        let ran = case.run(&mut cluster, &mut writers, owner).await;
        let mut total = total.lock();
        total.acknowledged += writers.acknowledged() - before;
        total.longest_write = total.longest_write.max(writers.longest());
        let (now, Ended { killed, taken_over, aborted }) = ran.with_context(|| format!("from {owner}"))?;
        owner = now;
        total.killed += usize::from(killed);
        total.taken_over += usize::from(taken_over);
        total.aborted += usize::from(aborted);
        if !killed {
            total.not_reached.push(case.to_string());
        }
    }
    Ok(())
}
