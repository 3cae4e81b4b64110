//! Writers, readers and the compactor. Each draws its next request from a seeded generator until the run ends.

use std::{collections::BTreeMap, time::Duration};

use kindred_checker::{
    Key, Value,
    history::{
        Compare, Current, KeyRange, List, Nanos, Outcome, ReadResult, Request, Revision, TxnOp, TxnResult,
    },
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::sync::watch;

use super::{
    caller::{Caller, NO_LEASE},
    keys,
};

/// Compactions leave the history of this time.
const HISTORY: Duration = Duration::from_millis(900);
const COMPACT_EVERY: Duration = Duration::from_millis(600);
const PAUSE_MILLIS: u64 = 6;

/// A client with its random generator.
#[derive(Debug)]
pub struct Worker {
    pub caller: Caller,
    pub rng: StdRng,
    /// Becomes true when the run ends.
    pub done: watch::Receiver<bool>,
}

impl Worker {
    pub fn new(caller: Caller, seed: u64, done: watch::Receiver<bool>) -> Self {
        Self { caller, rng: StdRng::seed_from_u64(seed), done }
    }

    fn is_done(&self) -> bool {
        *self.done.borrow()
    }

    async fn call(&mut self, request: Request) -> anyhow::Result<Outcome> {
        self.caller.call(&mut self.rng, request).await
    }

    /// Sleeps for a moment, and sometimes connects again.
    async fn pause(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..PAUSE_MILLIS))).await;
        if self.rng.random_bool(0.004) {
            self.caller.reconnect(&mut self.rng)?;
        }
        Ok(())
    }

    fn value(&self) -> Value {
        self.caller.recorder.value().into()
    }
}

/// Writes until the run ends.
///
/// # Errors
/// If an answer does not fit its request.
pub async fn write(mut worker: Worker) -> anyhow::Result<()> {
    // The revisions of keys as this client knows them; 0 means absent. Like an apiserver's cache they may be old.
    let mut known: BTreeMap<Key, Revision> = BTreeMap::new();
    while !worker.is_done() {
        let kind = keys::kind(&mut worker.rng);
        let key = keys::key(&mut worker.rng, kind);
        let request = next_write(&mut worker, &known, kind, &key);
        let outcome = worker.call(request.clone()).await?;
        learn(&mut known, &key, &outcome);
        if let (Outcome::CompareFailed { current: Current::Found(kv), .. }, Request::Update { .. }) =
            (&outcome, &request)
        {
            // Like Kubernetes' GuaranteedUpdate, try again with the revision that the else branch read.
            let again = Request::Update {
                key: key.clone(),
                expected: kv.modified,
                value: worker.value(),
                lease: NO_LEASE,
            };
            let outcome = worker.call(again).await?;
            learn(&mut known, &key, &outcome);
        }
        worker.pause().await?;
    }
    Ok(())
}

fn next_write(worker: &mut Worker, known: &BTreeMap<Key, Revision>, kind: usize, key: &Key) -> Request {
    let expected = known.get(key).copied().unwrap_or_default();
    let value = worker.value();
    let (key, lease) = (key.clone(), NO_LEASE);
    match worker.rng.random_range(0..100) {
        0..15 => Request::Create { key, value, lease },
        15..60 if expected.0 == 0 => Request::Create { key, value, lease },
        15..60 => Request::Update { key, expected, value, lease },
        60..72 => Request::Put { key, value, lease },
        72..80 => Request::Delete { key },
        80..90 if expected.0 > 0 => Request::DeleteIf { key, expected },
        80..90 => Request::get(key),
        90..98 => two_keys(worker, key, expected, value),
        98 => Request::DeleteRange { range: keys::namespace(&mut worker.rng, kind) },
        _ => Request::Put { key, value, lease },
    }
}

/// A txn with a read and two writes, which get one revision.
fn two_keys(worker: &mut Worker, key: Key, expected: Revision, value: Value) -> Request {
    let other = keys::neighbour(&mut worker.rng, &key);
    let get = TxnOp::Range(List::current(KeyRange::one(key.clone())));
    let mut success = vec![get.clone(), TxnOp::Put { key: key.clone(), value, lease: NO_LEASE }];
    if other != key {
        let value = worker.value();
        success.push(TxnOp::Put { key: other, value, lease: NO_LEASE });
    }
    Request::Txn { compares: vec![Compare::Modified(key, expected)], success, failure: vec![get] }
}

fn learn(known: &mut BTreeMap<Key, Revision>, key: &Key, outcome: &Outcome) {
    let modified = match outcome {
        Outcome::Written { header } => *header,
        Outcome::Txn { header, succeeded: true, .. } => *header,
        Outcome::Deleted { .. } | Outcome::CompareFailed { current: Current::Missing, .. } => Revision(0),
        Outcome::CompareFailed { current: Current::Found(kv), .. } => kv.modified,
        Outcome::Read { result, .. } => result.kvs.first().map_or(Revision(0), |kv| kv.modified),
        Outcome::Txn { results, .. } => match results.first() {
            Some(TxnResult::Range(ReadResult { kvs, .. })) => {
                kvs.first().map_or(Revision(0), |kv| kv.modified)
            }
            _ => return,
        },
        Outcome::CompareFailed { current: Current::NotRead, .. }
        | Outcome::Compacted { .. }
        | Outcome::Failed(_)
        | Outcome::Unknown => return,
    };
    known.insert(key.clone(), modified);
}

/// Reads until the run ends.
///
/// # Errors
/// If an answer does not fit its request.
pub async fn read(mut worker: Worker) -> anyhow::Result<()> {
    while !worker.is_done() {
        let kind = keys::kind(&mut worker.rng);
        match worker.rng.random_range(0..100) {
            0..25 => {
                let key = keys::key(&mut worker.rng, kind);
                worker.call(Request::get(key)).await?;
            }
            25..45 => {
                worker.call(Request::get(keys::probe(kind))).await?;
            }
            45..60 => {
                let range = keys::range(&mut worker.rng, kind);
                worker.call(Request::List(List::current(range))).await?;
            }
            60..75 => pages(&mut worker, kind).await?,
            75..92 => at_shown_revision(&mut worker, kind).await?,
            92..96 => {
                let list = List { count_only: true, ..List::current(keys::range(&mut worker.rng, kind)) };
                worker.call(Request::List(list)).await?;
            }
            _ => {
                let list = List { serializable: true, ..List::current(keys::range(&mut worker.rng, kind)) };
                worker.call(Request::List(list)).await?;
            }
        }
        worker.pause().await?;
    }
    Ok(())
}

/// Reads a list in pages as kube-apiserver does: all later pages at the revision of the first.
async fn pages(worker: &mut Worker, kind: usize) -> anyhow::Result<()> {
    let whole = keys::whole(kind);
    let limit = worker.rng.random_range(1..=5);
    let mut list = List { limit, ..List::current(whole) };
    loop {
        let Outcome::Read { header, result } = worker.call(Request::List(list.clone())).await? else {
            return Ok(());
        };
        let Some(last) = result.kvs.last().filter(|_| result.more) else { return Ok(()) };
        list.range.key = last.key.successor();
        list.revision = list.revision.or(Some(header));
        tokio::time::sleep(Duration::from_millis(worker.rng.random_range(0..PAUSE_MILLIS))).await;
    }
}

/// Reads at a revision that a client saw before. The read must work until that revision is compacted.
async fn at_shown_revision(worker: &mut Worker, kind: usize) -> anyhow::Result<()> {
    let shown = worker.caller.recorder.shown(kind);
    if shown.is_empty() {
        return Ok(());
    }
    // The square makes recent revisions likelier, as old ones are mostly compacted.
    let back = worker.rng.random::<f64>().powi(2) * (shown.len() - 1) as f64;
    let (_, revision) = shown[shown.len() - 1 - back as usize];
    let limit = if worker.rng.random_bool(0.3) { worker.rng.random_range(1..8) } else { 0 };
    let range = keys::range(&mut worker.rng, kind);
    let list = List { revision: Some(revision), limit, ..List::current(range) };
    worker.call(Request::List(list)).await?;
    Ok(())
}

/// Compacts every `COMPACT_EVERY`, at a revision that is at least `HISTORY` old.
///
/// # Errors
/// If an answer does not fit its request.
pub async fn compact(mut worker: Worker) -> anyhow::Result<()> {
    while tokio::time::timeout(COMPACT_EVERY, worker.done.changed()).await.is_err() {
        let kind = keys::kind(&mut worker.rng);
        let age = u64::try_from(HISTORY.as_nanos()).unwrap_or(u64::MAX);
        let before = Nanos(worker.caller.recorder.now().0.saturating_sub(age));
        let shown = worker.caller.recorder.shown(kind);
        let old_enough = shown.iter().take_while(|(at, _)| *at < before).last();
        if let Some((_, revision)) = old_enough.copied() {
            worker.call(Request::Compact { revision }).await?;
        }
    }
    Ok(())
}
