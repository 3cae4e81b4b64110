//! The run of one seed: servers and clients on simulated hosts, the faults of its plan, and the check of the history.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kindred_checker::{
    Config, Counts, Key, check,
    history::{List, Outcome, Request, Revision},
};
use kindred_netsim::Plan;
use kindred_tests::workload::{
    caller::{Caller, Endpoints},
    keys::{self, KINDS},
    recorder::Recorder,
    watchers::{Targets, Watcher},
    workers::{self, Worker},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet};

use crate::cluster::{self, SimClock};
use crate::log::Log;
use crate::network::{self, Paths};
use crate::seconds;

const WRITERS: usize = 3;
const READERS: usize = 2;
const WATCHERS: usize = 4;
/// Simulated time. No plan needs nearly as much.
const LIMIT: Duration = seconds(180);
/// The time for the servers to start, and for the last revisions to be read.
const SERVE_LIMIT: Duration = seconds(30);
/// The workload's note of a watch that was refused because its store was away begins so.
const STORE_AWAY: &str = "a watch is refused: kindred: store ";
const AGAIN: Duration = Duration::from_millis(50);

/// The result of one seed.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Done {
    pub counts: Counts,
    pub faults: usize,
    pub violations: usize,
    /// What went wrong, if anything did.
    pub complaint: Option<String>,
}

/// Runs a seed and logs everything that happens.
///
/// # Errors
/// If the simulation cannot be set up. Faults of the servers are in the result.
pub fn run(seed: u64, log: &Log) -> anyhow::Result<Done> {
    let plan = Plan::of(seed);
    let dir = tempfile::tempdir()?;
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(LIMIT)
        .min_message_latency(Duration::ZERO)
        .max_message_latency(plan.latency_max)
        .enable_random_order()
        .build();
    cluster::build(&mut sim, &plan, dir.path())?;
    let recorder: Arc<std::sync::OnceLock<Arc<Recorder>>> = Arc::default();
    let (work, shared) = (plan.work, recorder.clone());
    sim.client(cluster::CLIENTS, async move {
        let recorder = shared.get_or_init(|| Arc::new(Recorder::new())).clone();
        Ok(clients(recorder, seed, work).await?)
    });
    let worked = drive(&mut sim, &plan, log);
    drop(sim);
    let mut done = Done {
        faults: plan.steps.iter().filter(|(_, step)| step.is_fault()).count(),
        complaint: worked.err().map(|error| format!("{error:#}")),
        ..Done::default()
    };
    let Some(recorder) = recorder.get() else { return Ok(done) };
    let history = recorder.history();
    log.history(&history)?;
    let config = Config {
        split_delete_ranges: true,
        ..Config::kindred(KINDS.iter().map(|kind| Key::from(kind.prefix)))
    };
    let report = check(&history, &config);
    done.violations = report.violations.len();
    let mut complaints: Vec<String> = done.complaint.take().into_iter().collect();
    if !report.is_clean() {
        complaints.push(report.to_string());
    }
    // A router may refuse a watch while it cannot reach the store, and the client tries again.
    complaints.extend(recorder.oddities().into_iter().filter(|oddity| !oddity.starts_with(STORE_AWAY)));
    done.complaint = (!complaints.is_empty()).then(|| complaints.join("\n"));
    done.counts = report.counts;
    Ok(done)
}

/// Steps the simulation until the clients are done, and executes the plan.
pub fn drive(sim: &mut turmoil::Sim<'_>, plan: &Plan, log: &Log) -> anyhow::Result<()> {
    let mut steps = plan.steps.iter().peekable();
    loop {
        let elapsed = sim.elapsed();
        SimClock::get().set(elapsed);
        Paths::get().pass(elapsed);
        while let Some((_, step)) = steps.next_if(|(at, _)| *at <= elapsed) {
            log.line(&format!("{step:?}"));
            cluster::carry_out(sim, *step)?;
        }
        match sim.step() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => bail!("{error}"),
        }
    }
}

/// Runs all clients. When they have worked, each watch waits until it has received everything.
async fn clients(recorder: Arc<Recorder>, seed: u64, work: Duration) -> anyhow::Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let endpoints = Arc::new(Endpoints { addresses: cluster::endpoints(), connect: network::connect });
    tokio::time::timeout(SERVE_LIMIT, all_met(&endpoints, &mut rng))
        .await
        .context("the stores are not met")??;
    let (stop, stopped) = watch::channel(false);
    let (set_targets, targets) = watch::channel(None);
    let (mut working, mut watching) = (JoinSet::new(), JoinSet::new());
    let worker = |rng: &mut StdRng| -> anyhow::Result<Worker> {
        let caller = Caller::new(recorder.clone(), endpoints.clone(), rng)?;
        Ok(Worker::new(caller, rng.random(), stopped.clone()))
    };
    for _ in 0..WRITERS {
        working.spawn(workers::write(worker(&mut rng)?));
    }
    for _ in 0..READERS {
        working.spawn(workers::read(worker(&mut rng)?));
    }
    working.spawn(workers::compact(worker(&mut rng)?));
    for _ in 0..WATCHERS {
        watching.spawn(Watcher::new(worker(&mut rng)?, targets.clone(), false).run());
    }
    tokio::time::sleep(work).await;
    stop.send_replace(true);
    all_done(working).await.context("a writer or reader")?;
    let mut caller = Caller::new(recorder.clone(), endpoints, &mut rng)?;
    let last = tokio::time::timeout(SERVE_LIMIT, last_revisions(&mut caller, &mut rng)).await;
    set_targets.send_replace(Some(last.context("the last revisions cannot be read")??));
    all_done(watching).await.context("a watcher")
}

async fn all_done(mut tasks: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Waits until each router has read each Kind from all of its stores. Before that a router does not know the first
/// revision of each store, and a header could be below the first revision of another store, where nothing can be read.
async fn all_met(endpoints: &Endpoints, rng: &mut StdRng) -> anyhow::Result<()> {
    for address in &endpoints.addresses {
        let alone = Endpoints { addresses: vec![address.clone()], connect: endpoints.connect };
        let mut caller = Caller::new(Arc::new(Recorder::new()), Arc::new(alone), rng)?;
        last_revisions(&mut caller, rng).await?;
    }
    Ok(())
}

/// The current revision of each Kind, after the last write.
async fn last_revisions(caller: &mut Caller, rng: &mut StdRng) -> anyhow::Result<Targets> {
    let mut targets = [Revision(0); KINDS.len()];
    for (kind, target) in targets.iter_mut().enumerate() {
        let list = Request::List(List::current(keys::whole(kind)));
        for request in [Request::get(keys::probe(kind)), list] {
            let header = loop {
                let outcome = caller.call(rng, request.clone()).await?;
                match outcome.header() {
                    Some(header) => break header,
                    None => tokio::time::sleep(AGAIN).await,
                }
                if !matches!(outcome, Outcome::Unknown) {
                    caller.reconnect(rng)?;
                }
            };
            *target = header.max(*target);
        }
    }
    Ok(targets)
}
