//! Writers that record which of their writes were acknowledged. A writer writes numbered values, one at a time. A write
//! that fails may have been executed or not, and the writer continues with the next number.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kindred_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op::Request};
use kindred_tests::client::Client;
use parking_lot::Mutex;
use tokio::{sync::RwLock, task::JoinSet};

use crate::crash::cluster::{Cluster, Kind};

const KEYS_OF_EACH: u64 = 5;
/// The pause between two writes of a writer.
const BREATH: Duration = Duration::from_millis(4);
/// The pause of a writer whose shard is away, before it tries again.
const AWAY: Duration = Duration::from_millis(25);
const VALUE_BYTES: usize = 200;
/// A shard either answers, or its death breaks the connection. So a write without an outcome for this long is a bug.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// One write of one key.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The index of its Kind.
    pub kind: usize,
    pub store: usize,
    pub key: String,
    pub number: u64,
    /// The revision and the time of the acknowledgement.
    pub acknowledged: Option<(i64, Instant)>,
    /// A crash lost the write, as its mode allows.
    pub lost: bool,
}

#[derive(Debug, Default)]
pub struct Shared {
    pub attempts: Mutex<Vec<Attempt>>,
    /// Violations of what holds in every mode and after every crash.
    pub complaints: Mutex<Vec<String>>,
    /// Each write holds it, so that a check can wait until none is under way.
    pub writing: RwLock<()>,
}

impl Shared {
    pub fn complain(&self, what: String) {
        self.complaints.lock().push(what);
    }
}

/// The value that encodes a number, padded to `VALUE_BYTES`.
pub fn value(number: u64) -> String {
    format!("{number:0>VALUE_BYTES$}")
}

/// The number that a value encodes; none if no writer wrote it.
pub fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Starts writers of every Kind through every router. They run until the tasks are dropped.
pub fn start(
    cluster: &Cluster,
    kinds: &[Kind],
    shared: &Arc<Shared>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    for (at, kind) in kinds.iter().enumerate() {
        for router in 0..cluster.addresses.len() {
            let writer =
                Writer::new(at, kind, router, cluster.client(router)?, shared, |key| cluster.store_of(key));
            tasks.spawn(writer.run());
        }
    }
    Ok(())
}

pub struct Writer {
    kind: usize,
    /// Each entry has a shard, the keys on it that one txn writes together, and their last revision.
    keys: Vec<(usize, Vec<String>, i64)>,
    client: Client,
    shared: Arc<Shared>,
}

impl Writer {
    /// `at` is the index of the Kind. Writers of one Kind have different `number`s.
    pub fn new(
        at: usize,
        kind: &Kind,
        number: usize,
        client: Client,
        shared: &Arc<Shared>,
        store_of: impl Fn(&str) -> usize,
    ) -> Self {
        let keys = (0..KEYS_OF_EACH).map(|of| {
            let key = |part: &str| format!("{}ns/w{number}-{of}{part}", kind.prefix);
            // A txn over several shards is refused, so keys of a spread Kind are written alone.
            if kind.spread { vec![key("")] } else { vec![key("-left"), key("-right")] }
        });
        let keys = keys.map(|keys| (store_of(&keys[0]), keys, 0)).collect();
        Self { kind: at, keys, client, shared: shared.clone() }
    }

    /// Writes until dropped.
    pub async fn run(mut self) {
        let shared = self.shared.clone();
        for number in 1_u64.. {
            let wrote = {
                let _writing = shared.writing.read().await;
                self.turn(number).await
            };
            tokio::time::sleep(if wrote { BREATH } else { AWAY }).await;
        }
    }

    /// Makes one write. Returns whether it was acknowledged.
    async fn turn(&mut self, number: u64) -> bool {
        let at = usize::try_from(number % KEYS_OF_EACH).unwrap_or_default();
        let (store, keys, last) = &mut self.keys[at];
        let puts = keys.iter().map(|key| {
            let (key, value) = (key.clone().into(), value(number).into());
            RequestOp { request: Some(Request::RequestPut(PutRequest { key, value, ..Default::default() })) }
        });
        let txn = TxnRequest { success: puts.collect(), ..Default::default() };
        let answer = tokio::time::timeout(ANSWER_MAX, self.client.kv.txn(txn)).await;
        if answer.is_err() {
            self.shared.complain(format!("a write of {keys:?} had no outcome for {ANSWER_MAX:?}"));
        }
        let header = answer.ok().and_then(Result::ok).and_then(|answer| answer.into_inner().header);
        let revision = header.map(|header| header.revision);
        if let Some(revision) = revision {
            if revision <= *last {
                self.shared.complain(format!("{keys:?} was written at {last}, and then at {revision}"));
            }
            *last = revision;
        }
        let acknowledged = revision.map(|revision| (revision, Instant::now()));
        let (kind, store) = (self.kind, *store);
        let attempt =
            |key: &String| Attempt { kind, store, key: key.clone(), number, acknowledged, lost: false };
        self.shared.attempts.lock().extend(keys.iter().map(attempt));
        revision.is_some()
    }
}
