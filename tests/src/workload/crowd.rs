//! All clients of a run. They work until they are stopped. Then every watch must receive everything.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use kindred_checker::history::{KeyRange, List, Request, Revision};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet};

use super::{
    caller::{Caller, Endpoints, NO_LEASE},
    keys::{self, KINDS},
    leased,
    recorder::Recorder,
    watchers::{Targets, Watcher},
    workers::{self, Worker},
};
use crate::scenario::wait_for;

const WRITERS: usize = 6;
const READERS: usize = 3;
const WATCHERS: usize = 5;
const WORK_LIMIT: Duration = Duration::from_secs(300);
const OPERATIONS_MIN: usize = 500;
const EVENTS_MIN: usize = 1000;
const TICK: Duration = Duration::from_millis(50);

/// The running clients.
#[derive(Debug)]
pub struct Crowd {
    recorder: Arc<Recorder>,
    endpoints: Arc<Endpoints>,
    rng: StdRng,
    stop_workers: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    set_targets: watch::Sender<Option<Targets>>,
    workers: JoinSet<anyhow::Result<()>>,
    watchers: JoinSet<anyhow::Result<()>>,
}

impl Crowd {
    /// Starts writers, readers, a compactor and watchers. `careful` is for a real etcd, see `Watcher::careful`.
    ///
    /// # Errors
    /// If an endpoint is no valid address.
    pub fn gather(
        recorder: &Arc<Recorder>,
        endpoints: &Arc<Endpoints>,
        seed: u64,
        careful: bool,
    ) -> anyhow::Result<Self> {
        Self::begin(recorder, endpoints, seed, careful, true)
    }

    /// The same without the compactor, for runs in which others watch and need history.
    ///
    /// # Errors
    /// If an endpoint is no valid address.
    pub fn without_compactor(
        recorder: &Arc<Recorder>,
        endpoints: &Arc<Endpoints>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        Self::begin(recorder, endpoints, seed, false, false)
    }

    fn begin(
        recorder: &Arc<Recorder>,
        endpoints: &Arc<Endpoints>,
        seed: u64,
        careful: bool,
        compacts: bool,
    ) -> anyhow::Result<Self> {
        let (stop_workers, stopped) = watch::channel(false);
        let (set_targets, targets) = watch::channel(None);
        let mut crowd = Self {
            recorder: recorder.clone(),
            endpoints: endpoints.clone(),
            rng: StdRng::seed_from_u64(seed),
            stop_workers,
            stopped,
            set_targets,
            workers: JoinSet::new(),
            watchers: JoinSet::new(),
        };
        for _ in 0..WRITERS {
            let worker = crowd.worker()?;
            crowd.workers.spawn(workers::write(worker));
        }
        for _ in 0..READERS {
            let worker = crowd.worker()?;
            crowd.workers.spawn(workers::read(worker));
        }
        if compacts {
            let worker = crowd.worker()?;
            crowd.workers.spawn(workers::compact(worker));
        }
        for _ in 0..WATCHERS {
            let watcher = Watcher::new(crowd.worker()?, targets.clone(), careful);
            crowd.watchers.spawn(watcher.run());
        }
        Ok(crowd)
    }

    /// Starts additional clients with leases of their own. No store may lose its data while they run.
    ///
    /// # Errors
    /// If an endpoint is no valid address.
    pub fn add_leased(&mut self, clients: usize) -> anyhow::Result<()> {
        for number in 0..clients {
            let worker = self.worker()?;
            self.workers.spawn(leased::work(worker, number));
        }
        Ok(())
    }

    fn worker(&mut self) -> anyhow::Result<Worker> {
        let caller = Caller::new(self.recorder.clone(), self.endpoints.clone(), &mut self.rng)?;
        Ok(Worker::new(caller, self.rng.random(), self.stopped.clone()))
    }

    /// Waits for `time`, and on a busy machine longer, until clients have done enough.
    ///
    /// # Errors
    /// If clients make no progress.
    pub async fn enough(&self, time: Duration) -> anyhow::Result<()> {
        let before = self.recorder.amounts();
        tokio::time::sleep(time).await;
        wait_for("clients to make progress", WORK_LIMIT, || async {
            let (operations, events) = self.recorder.amounts();
            Ok((operations - before.0 >= OPERATIONS_MIN && events - before.1 >= EVENTS_MIN).then_some(()))
        })
        .await
    }

    /// Stops the writers and waits until every watch has received everything. etcd answers no progress request while a
    /// watch of the stream waits for a later revision, so with `ticking` writes continue.
    ///
    /// # Errors
    /// If a client fails, or a watch does not receive everything.
    pub async fn finish(mut self, ticking: bool) -> anyhow::Result<()> {
        self.stop_workers.send_replace(true);
        all_done(std::mem::take(&mut self.workers)).await?;
        let targets = self.last_revisions().await?;
        self.set_targets.send_replace(Some(targets));
        if !ticking {
            return all_done(self.watchers).await;
        }
        let mut caller = Caller::new(self.recorder.clone(), self.endpoints.clone(), &mut self.rng)?;
        let (recorder, mut rng) = (self.recorder, self.rng);
        let (end, ended) = watch::channel(false);
        // A watch may receive the event of a write that has not returned yet, so no write is given up.
        let ticking = async {
            while !*ended.borrow() {
                let (key, value) = (keys::key(&mut rng, 0), recorder.value().into());
                caller.call(&mut rng, Request::Put { key, value, lease: NO_LEASE }).await?;
                tokio::time::sleep(TICK).await;
            }
            anyhow::Ok(())
        };
        let watching = async {
            all_done(self.watchers).await?;
            end.send_replace(true);
            Ok(())
        };
        tokio::try_join!(watching, ticking).map(drop)
    }

    /// The current revision of each Kind, after the last write.
    async fn last_revisions(&mut self) -> anyhow::Result<Targets> {
        let mut caller = Caller::new(self.recorder.clone(), self.endpoints.clone(), &mut self.rng)?;
        let mut targets = [Revision(0); KINDS.len()];
        for (kind, target) in targets.iter_mut().enumerate() {
            for request in [Request::get(keys::probe(kind)), list_of(keys::whole(kind))] {
                let outcome = caller.call(&mut self.rng, request).await?;
                let header =
                    outcome.header().with_context(|| format!("a read of {kind} at the end: {outcome:?}"))?;
                *target = header.max(*target);
            }
        }
        Ok(targets)
    }
}

fn list_of(range: KeyRange) -> Request {
    Request::List(List::current(range))
}

async fn all_done(mut tasks: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
