//! Controllers that change objects all the time, each by reading, changing and replacing with its resourceVersion. Every
//! acknowledged change must be there at the next read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use kindred_tests::kube_client::{KubeClient, revision};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The pause between two changes of an object.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause after a failed request.
const AFTER_A_FAILURE: Duration = Duration::from_millis(100);

/// An object that is changed.
#[derive(Debug, Clone)]
pub struct Object {
    /// The path of its collection.
    pub collection: String,
    pub object: Value,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Whether something is being killed, so that requests may fail.
    hurt: AtomicBool,
    changes: AtomicU64,
    failed: AtomicU64,
    /// The conflicts of each object.
    conflicts: Mutex<BTreeMap<String, u64>>,
}

/// What they did.
#[derive(Debug)]
pub struct Outcome {
    pub changes: u64,
    /// The failed requests while something was killed; there were no others.
    pub failed: u64,
    /// The highest number of conflicts of an object.
    pub conflicts: u64,
}

pub struct Busy {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Busy {
    /// Creates the objects and changes them from now on.
    pub async fn start(client: &KubeClient, objects: Vec<Object>) -> anyhow::Result<Self> {
        let (shared, mut tasks) = (Arc::new(Shared::default()), JoinSet::new());
        for Object { collection, object } in objects {
            let made = client.create(&collection, &object).await?.ok()?;
            let name = made["metadata"]["name"].as_str().context("a name")?;
            let path = format!("{collection}/{name}");
            tasks.spawn(change(client.clone(), path, made, shared.clone()));
        }
        Ok(Self { shared, tasks })
    }

    /// Whether requests may fail.
    pub fn hurt(&self, hurt: bool) {
        self.shared.hurt.store(hurt, Ordering::SeqCst);
    }

    /// Waits until there are some more changes.
    pub async fn some(&mut self, changes: u64) -> anyhow::Result<()> {
        let until = self.shared.changes.load(Ordering::SeqCst) + changes;
        while self.shared.changes.load(Ordering::SeqCst) < until {
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
                bail!("one of them ended early");
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    pub async fn finish(mut self) -> anyhow::Result<Outcome> {
        self.shared.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let shared = self.shared;
        Ok(Outcome {
            changes: shared.changes.load(Ordering::SeqCst),
            failed: shared.failed.load(Ordering::SeqCst),
            conflicts: shared.conflicts.lock().values().copied().max().unwrap_or(0),
        })
    }
}

async fn change(
    client: KubeClient,
    path: String,
    mut object: Value,
    shared: Arc<Shared>,
) -> anyhow::Result<()> {
    let label = |object: &Value| object["metadata"]["labels"]["change"].as_str().map(str::to_owned);
    let (mut number, mut last) = (0_u64, None);
    while !shared.stop.load(Ordering::SeqCst) {
        number += 1;
        object["metadata"]["labels"]["change"] = json!(number.to_string());
        let may_fail = shared.hurt.load(Ordering::SeqCst);
        let answer = client.replace(&path, &object).await;
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        match (status, answer) {
            (200, Ok(answer)) => {
                let after = answer.ok()?;
                ensure!(revision(&after)? > revision(&object)?, "{after} after {object}");
                (last, object) = (label(&after), after);
                shared.changes.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            (409, _) => *shared.conflicts.lock().entry(path.clone()).or_default() += 1,
            (_, answer) => {
                // A kill that began meanwhile counts as well.
                let may_fail = may_fail || shared.hurt.load(Ordering::SeqCst);
                ensure!(may_fail, "change {number} of {path} failed: {answer:?}");
                shared.failed.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(AFTER_A_FAILURE).await;
            }
        }
        // A failed change may have been made.
        let now = loop {
            match client.read(&path).await {
                Ok(now) => break now,
                Err(error) => {
                    ensure!(shared.hurt.load(Ordering::SeqCst), "{path}: {error:#}");
                    shared.failed.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(AFTER_A_FAILURE).await;
                }
            }
        };
        let found = label(&now);
        let tried = Some(number.to_string());
        ensure!(
            found == last || found == tried,
            "{path}: {found:?}, where {last:?} was acknowledged: a write is lost"
        );
        (last, object) = (found, now);
    }
    Ok(())
}
