//! Shards are killed and restarted while clients write and watch through two routers. Then the promises of each mode
//! are checked:
//!
//! * `fsync`: no acknowledged write is lost, and no client relists.
//! * `buffered`: no acknowledged write is lost, because only processes die. A watch that saw a later write is canceled.
//! * `none`: the Kind is empty after the restart, and every watch is canceled.
//! * In every mode no txn is half executed, no revision goes back, and every delivered event is in the history.
//!
//! `CRASH_SECONDS` is how long the suite runs, 40 by default. `CRASH_SEED` repeats a choice of kills, but not their
//! moments.

mod alone;
mod cases;
mod check;
mod cluster;
mod modes;
mod points;
mod watchers;
mod writers;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use check::{End, Tally};
use cluster::{Cluster, KINDS, Kind, Mode, STORES};
use kindred_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op::Request};
use kindred_tests::scenario::{self, env_number, report, wait_for};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;
use watchers::Watcher;
use writers::Shared;

const BACK_LIMIT: Duration = Duration::from_secs(60);
/// Additional time for the start, and for the checks of the last round.
const EXTRA: Duration = Duration::from_secs(300);

#[test]
fn each_mode_keeps_its_promise() {
    run("crash_modes", KINDS, 40);
}

#[test]
fn long_each_mode_keeps_its_promise() {
    run("crash_modes", KINDS, 300);
}

#[test]
fn what_keeps_nothing_says_so() {
    run("crash_none", KINDS.map(|kind| Kind { mode: Mode::None, ..kind }), 10);
}

/// The Kinds of a run.
type Kinds = [Kind; KINDS.len()];

fn run(name: &'static str, kinds: Kinds, seconds: u64) {
    let seconds = env_number("CRASH_SECONDS", seconds).unwrap_or(seconds);
    let seed = env_number("CRASH_SEED", 1).unwrap_or_default();
    let lasts = Duration::from_secs(seconds);
    scenario::run(name, lasts + EXTRA, move |dir| async move {
        rounds(name, &dir, kinds, seed, lasts).await.with_context(|| format!("CRASH_SEED={seed}"))
    });
}

/// A loop of kills and checks, with its results.
struct Loop {
    cluster: Cluster,
    kinds: Kinds,
    shared: Arc<Shared>,
    watchers: Vec<Watcher>,
    random: StdRng,
    tallies: BTreeMap<&'static str, Tally>,
    kills: usize,
    stops: usize,
    events: usize,
}

async fn rounds(name: &str, dir: &Path, kinds: Kinds, seed: u64, lasts: Duration) -> anyhow::Result<()> {
    let cluster = Cluster::start(dir, &kinds).await?;
    let (shared, mut tasks) = (Arc::<Shared>::default(), JoinSet::new());
    let watchers = watchers::start(&cluster, &kinds, &shared, &mut tasks)?;
    writers::start(&cluster, &kinds, &shared, &mut tasks)?;
    let random = StdRng::seed_from_u64(seed);
    let mut all = Loop {
        cluster,
        kinds,
        shared,
        watchers,
        random,
        tallies: BTreeMap::new(),
        kills: 0,
        stops: 0,
        events: 0,
    };
    let began = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || began.elapsed() < lasts {
        all.round().await.with_context(|| format!("round {rounds}"))?;
        rounds += 1;
    }
    let attempts = all.shared.attempts.lock();
    let acknowledged = attempts.iter().filter(|attempt| attempt.acknowledged.is_some()).count();
    ensure!(acknowledged > 0, "nothing was written");
    let mut line = format!(
        "crash {name} seed={seed} rounds={rounds} kills={} clean_stops={} acknowledged={acknowledged} events_checked={}",
        all.kills, all.stops, all.events
    );
    for (mode, Tally { checked, lost, oldest_ms }) in &all.tallies {
        let of_mode = all.watchers.iter().filter(|watcher| watcher.kind.mode.word() == *mode);
        let relists: usize = of_mode.map(Watcher::relists).sum();
        line +=
            &format!(" {mode}[checked={checked} lost={lost} oldest_lost_ms={oldest_ms} relists={relists}]");
    }
    report(&line);
    Ok(())
}

impl Loop {
    async fn some_time(&mut self, max_ms: u64) {
        let ms = self.random.random_range(0..max_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Ends one shard or two during writes, restarts them, and checks what is promised.
    async fn round(&mut self) -> anyhow::Result<()> {
        self.some_time(1500).await;
        let first = self.random.random_range(0..STORES.len());
        let second = self.random.random_range(0..STORES.len());
        let mut ending = vec![first];
        if self.random.random_ratio(1, 3) && second != first {
            ending.push(second);
        }
        let mut ends = Vec::new();
        for store in ending {
            let clean = self.random.random_ratio(1, 6);
            let process = &mut self.cluster.stores[store].process;
            match clean {
                true => drop(process.stop().await.context("a clean stop")?),
                false => process.kill()?,
            }
            let at = Instant::now();
            *(if clean { &mut self.stops } else { &mut self.kills }) += 1;
            // Writes that are acknowledged from here on do not belong to the ended incarnation.
            let life = {
                let _nobody_writes = self.shared.writing.write().await;
                self.shared.attempts.lock().len()
            };
            ends.push((End { store, at, clean }, life));
        }
        self.some_time(400).await;
        for (End { store, .. }, _) in &ends {
            self.cluster.stores[*store].process.restart().await.with_context(|| STORES[*store])?;
        }
        self.back().await?;
        self.some_time(1000).await;
        self.check(&ends).await
    }

    /// Waits until every shard takes writes through every router.
    async fn back(&mut self) -> anyhow::Result<()> {
        for router in 0..self.cluster.addresses.len() {
            let client = self.cluster.client(router)?;
            for kind in self.kinds {
                // These names are on both shards of a ring.
                for name in ["a", "b", "c", "d"] {
                    let key = format!("{}back/{name}-left", kind.prefix);
                    let put =
                        |key: String| PutRequest { key: key.into(), value: "0".into(), ..Default::default() };
                    wait_for(&format!("a write of {key}"), BACK_LIMIT, || {
                        let mut kv = client.kv.clone();
                        let (left, right) = (put(key.clone()), put(key.replace("-left", "-right")));
                        let spread = kind.spread;
                        async move {
                            if spread {
                                return Ok(kv.put(left).await.is_ok().then_some(()));
                            }
                            let puts = [left, right]
                                .map(|put| RequestOp { request: Some(Request::RequestPut(put)) });
                            let txn = TxnRequest { success: puts.into(), ..Default::default() };
                            Ok(kv.txn(txn).await.is_ok().then_some(()))
                        }
                    })
                    .await?;
                }
            }
        }
        Ok(())
    }

    async fn check(&mut self, ends: &[(End, usize)]) -> anyhow::Result<()> {
        self.cluster.routers_run()?;
        let shared = self.shared.clone();
        let _nobody_writes = shared.writing.write().await;
        let router = self.random.random_range(0..self.cluster.addresses.len());
        let mut client = self.cluster.client(router)?;
        let mut attempts = self.shared.attempts.lock().clone();
        for (end, life) in ends {
            let life = &mut attempts[..*life];
            let kinds = self.kinds;
            let promised = |kind: usize, _| kinds[kind].mode;
            let checked =
                check::after_end(&mut client, &self.kinds, promised, life, *end, &mut self.tallies).await;
            checked.with_context(|| {
                let how = if end.clean { "stopped" } else { "killed" };
                format!("store {} was {how}", STORES[end.store])
            })?;
        }
        check::contents(&mut client, &self.kinds, &attempts).await?;
        *self.shared.attempts.lock() = attempts;
        for watcher in &mut self.watchers {
            self.events += watcher.check().await?;
            let relists = watcher.relists();
            ensure!(
                watcher.kind.mode != Mode::Fsync || relists == 0,
                "the watch of {} by router {} was cancelled as compacted, though nothing of it is lost",
                watcher.kind.resource,
                watcher.router
            );
        }
        let complaints = self.shared.complaints.lock();
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }
}
