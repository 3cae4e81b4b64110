//! The run of one seed: fresh servers, concurrent clients for a while, perhaps a fault, and the check of the history.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{bail, ensure};
use kindred_checker::{
    Counts, check,
    history::{DefiniteError, History, Outcome, Request},
};
use kindred_tests::workload::{
    crowd::Crowd,
    keys::KINDS,
    recorder::{Recorder, kind_of_request},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::guarantees::{
    stored,
    system::{Assumptions, Order, System, Target},
};

/// How long clients work before a fault and after it. Without a fault it is the whole time.
pub const WORK: Duration = Duration::from_millis(2500);

/// The fault in the middle of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// `kill -9` of a shard, which loses the keys of its Kind.
    Shard,
    /// `kill -9` of a shard that loses nothing. With a spread map it may have keys of any Kind.
    DurableShard,
    /// `kill -9` of a router.
    Router,
}

/// The system that a suite runs, and its fault.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    pub name: &'static str,
    pub target: Target,
    pub fault: Fault,
}

/// The result of one seed.
#[derive(Debug)]
pub struct Seed {
    pub counts: Counts,
    pub failed: usize,
}

impl Suite {
    /// Runs a seed.
    ///
    /// # Errors
    /// If a guarantee is broken. The error has the violations, the file of the history, and the command that checks it
    /// again.
    pub async fn run(self, dir: &Path, seed: u64) -> anyhow::Result<Seed> {
        let place = dir.join(format!("seed{seed}"));
        std::fs::create_dir_all(&place)?;
        let recorder = Arc::new(Recorder::new());
        let mut assumptions = Assumptions::of(self.target);
        let mut system = System::start(&place, self.target).await?;
        let worked = self.work(&mut system, &recorder, &mut assumptions, seed).await;
        // Without servers no task can record anything more.
        drop(system);
        let history = recorder.history();
        let files = |what: String| -> anyhow::Result<Seed> {
            let path = stored::save(&place, &history, &assumptions, &what)?;
            bail!("suite {} seed {seed}\n{what}\n{}", self.name, self.replay(seed, &path))
        };
        if let Err(error) = worked {
            return files(format!("{error:#}"));
        }
        let report = check(&history, &assumptions.config());
        if !report.is_clean() {
            return files(report.to_string());
        }
        let mut complaints = recorder.oddities();
        complaints.extend(self.unexpected_failures(&history, &assumptions));
        complaints.extend(too_little(&report.counts));
        if !complaints.is_empty() {
            complaints.extend(recorder.why_unknown());
            return files(complaints.join("\n"));
        }
        let failed = history.operations.iter().filter(|o| matches!(o.outcome, Outcome::Failed(_))).count();
        std::fs::remove_dir_all(&place)?;
        Ok(Seed { counts: report.counts, failed })
    }

    fn replay(self, seed: u64, path: &Path) -> String {
        format!(
            "the history is {}\ncheck it again: KINDRED_GUARANTEES_HISTORY={} make test ONLY=guarantees::replay\n\
             run it again: KINDRED_GUARANTEES_SEED={seed} make test ONLY=guarantees::{}",
            path.display(),
            path.display(),
            self.name
        )
    }

    /// Lets clients work, then waits until every watch has received all events.
    async fn work(
        self,
        system: &mut System,
        recorder: &Arc<Recorder>,
        assumptions: &mut Assumptions,
        seed: u64,
    ) -> anyhow::Result<()> {
        let mut rng = StdRng::seed_from_u64(seed);
        let careful = self.target == Target::Etcd;
        let crowd = Crowd::gather(recorder, &system.endpoints, rng.random(), careful)?;
        crowd.enough(WORK / 2).await?;
        self.strike(system, assumptions, &mut rng).await?;
        crowd.enough(WORK / 2).await?;
        crowd.finish(assumptions.order != Order::PerKind).await
    }

    async fn strike(
        self,
        system: &mut System,
        assumptions: &mut Assumptions,
        rng: &mut StdRng,
    ) -> anyhow::Result<()> {
        match self.fault {
            Fault::None => {}
            Fault::Router => {
                let index = rng.random_range(0..system.endpoints.addresses.len());
                system.restart_router(index).await?;
            }
            Fault::Shard => {
                let kind = rng.random_range(0..KINDS.len());
                let restart = system.restart_shard(kind).await?;
                assumptions.gaps.push((KINDS[kind].prefix.to_owned(), 0, restart.0));
                assumptions.struck.push(KINDS[kind].prefix.to_owned());
            }
            Fault::DurableShard => {
                let used = system.used()?;
                let index = used[rng.random_range(0..used.len())];
                assumptions.struck = system.restart_durable_shard(index).await?;
            }
        }
        Ok(())
    }

    /// The failures of requests for Kinds that the fault did not affect, counted by their text.
    fn unexpected_failures(self, history: &History, assumptions: &Assumptions) -> Vec<String> {
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for operation in &history.operations {
            let kind = kind_of_request(&operation.request);
            let struck = match self.fault {
                Fault::None => false,
                Fault::Router => true,
                // A compaction has no Kind: it needs all stores.
                Fault::Shard | Fault::DurableShard => kind
                    .is_none_or(|kind| assumptions.struck.iter().any(|prefix| prefix == KINDS[kind].prefix)),
            };
            // The keys of a txn may be on two stores, which is refused.
            let refusable = matches!(operation.request, Request::Txn { .. });
            let text = match &operation.outcome {
                Outcome::Unknown if !struck => "an unknown outcome".to_owned(),
                Outcome::Failed(DefiniteError::Other(text)) if !struck && !refusable => text.clone(),
                Outcome::Failed(DefiniteError::FutureRevision) => "a future revision".to_owned(),
                _ => continue,
            };
            let place = kind.map_or("a compaction", |kind| KINDS[kind].prefix);
            *found.entry(format!("{place}: {text}")).or_default() += 1;
        }
        found.into_iter().map(|(what, times)| format!("{times} times {what}")).collect()
    }
}

/// Says if so little happened in a run that it proves nothing.
fn too_little(counts: &Counts) -> Option<String> {
    let enough =
        counts.watches > 20 && counts.resumes > 2 && counts.progress > 10 && counts.keys_linearizable > 20;
    (!enough).then(|| format!("too little happened: {counts:?}"))
}

/// Checks a stored history again.
///
/// # Errors
/// If the history has violations; the error lists them.
pub fn replay(path: &Path) -> anyhow::Result<String> {
    let (history, assumptions) = stored::load(path)?;
    let report = check(&history, &assumptions.config());
    ensure!(report.is_clean(), "{}\n{report}", path.display());
    Ok(report.to_string())
}

/// The path of the history that `KINDRED_GUARANTEES_HISTORY` names.
pub fn asked_for() -> Option<PathBuf> {
    std::env::var_os("KINDRED_GUARANTEES_HISTORY").map(PathBuf::from)
}
