//! Clients of the surviving router: a watch, and writers that put numbered values in optimistic transactions and read
//! after each.
//!
//! Requests may fail only in an outage, while a store or the link to it is away. Then they may fail only as in etcd,
//! with `Unavailable` or without an answer in time. A write of unknown outcome stays in doubt until the next write of
//! its key. That one succeeds only if the write in doubt was not executed and never will be. The watch continues
//! through all faults.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    Compare, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
    watch_request::RequestUnion,
};
use kindred_proto::mvccpb::KeyValue;
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use tokio::{sync::RwLock, task::JoinSet};
use tonic::{Code, Status};

pub const PODS: &str = "/registry/pods/";
/// The first key after all pods.
pub const PODS_END: &str = "/registry/pods0";
const WRITERS: usize = 2;
const KEYS_OF_EACH: usize = 6;
/// The pause between two writes of a writer.
const BREATH: Duration = Duration::from_millis(10);
/// The pause of a writer whose store is away, before it tries again.
const AWAY: Duration = Duration::from_millis(25);
/// An outage ends when each writer has made this many turns without a failure. They cover all its keys and a list.
const FLAWLESS: u64 = 8;
/// A writer lists all keys once in this many turns.
const LIST_EVERY: u64 = 8;
/// Longer than all cases take, as no client keeps the lease alive.
const LEASE_TTL_S: i64 = 7200;
const SEEN_LIMIT: Duration = Duration::from_secs(20);

/// An acknowledged write, or an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    revision: i64,
    key: Bytes,
    value: Bytes,
}

#[derive(Debug, Default)]
struct Shared {
    acknowledged: Mutex<Vec<Written>>,
    seen: Mutex<Vec<Written>>,
    /// Answers that no client should have received.
    complaints: Mutex<Vec<Complaint>>,
    longest: Mutex<Duration>,
    /// Each write holds it, so that a check can wait until none is under way.
    writing: RwLock<()>,
    /// Grows when an outage begins and when it ends, so it is odd during one.
    outages: AtomicU64,
    /// The number of requests that failed in outages.
    failed: AtomicUsize,
    /// The number of writes that were executed although their requests failed.
    made_in_doubt: AtomicUsize,
    /// For each writer, the number of turns since its last failure.
    flawless: [AtomicU64; WRITERS],
}

/// An answer that no client should have received.
#[derive(Debug)]
struct Complaint {
    /// The store was unavailable, although there was no outage.
    is_away: bool,
    what: String,
}

/// Marks an error that nothing excuses, such as a lost write, an event that came twice, or two owners.
#[derive(Debug)]
pub struct Violation;

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a promise is broken")
    }
}

/// Why a turn ended early.
enum Trouble {
    /// A failure that is allowed in an outage.
    Away(&'static str, Status),
    /// A failure that is never allowed.
    Wrong(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Wrong(error)
    }
}

/// Turns a failed answer into the kind of trouble that it means.
fn answered<T>(what: &'static str, answer: Result<tonic::Response<T>, Status>) -> Result<T, Trouble> {
    match answer {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) => {
            Err(Trouble::Away(what, status))
        }
        Err(status) => Err(Trouble::Wrong(anyhow::anyhow!("{what}: {status:?}"))),
    }
}

/// The outcomes of requests.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Writes that were acknowledged, or that failed and were executed nevertheless.
    pub acknowledged: usize,
    pub failed: usize,
    /// Writes that failed and were executed nevertheless.
    pub made_in_doubt: usize,
}

/// The running clients. They stop when this is dropped.
pub struct Writers {
    shared: Arc<Shared>,
    client: Client,
    lease: i64,
    /// How many of the acknowledged writes were checked.
    checked: usize,
    _tasks: JoinSet<()>,
}

impl Writers {
    /// Starts the watch, then the writers.
    pub async fn start(mut client: Client) -> anyhow::Result<Self> {
        let granted = client.lease.lease_grant(LeaseGrantRequest { ttl: LEASE_TTL_S, id: 0 }).await?;
        let lease = granted.into_inner().id;
        let shared = Arc::<Shared>::default();
        let create =
            WatchCreateRequest { key: PODS.into(), range_end: PODS_END.into(), ..Default::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests stays open, as its end would end the watch.
        let requests = futures_util::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
        let mut answers = client.watch.watch(requests).await?.into_inner();
        let created = answers.message().await?.context("an answer to the watch")?;
        ensure!(created.created, "{created:?}");
        let mut tasks = JoinSet::new();
        let watching = shared.clone();
        tasks.spawn(async move {
            loop {
                match answers.message().await {
                    Ok(Some(answer)) if answer.canceled || answer.compact_revision != 0 => {
                        watching.complain(format!("the watch was cancelled: {answer:?}"));
                    }
                    Ok(Some(answer)) => {
                        let events = answer.events.into_iter().filter_map(|event| event.kv);
                        let events = events.map(|kv| Written {
                            revision: kv.mod_revision,
                            key: kv.key,
                            value: kv.value,
                        });
                        watching.seen.lock().extend(events);
                    }
                    ended => return watching.complain(format!("the watch ended: {ended:?}")),
                }
            }
        });
        for number in 0..WRITERS {
            // The keys of one writer are attached to the lease.
            let lease = if number == 0 { lease } else { 0 };
            let writer = Writer {
                shared: shared.clone(),
                client: client.clone(),
                number,
                lease,
                last: vec![0; KEYS_OF_EACH],
                doubts: vec![Vec::new(); KEYS_OF_EACH],
            };
            tasks.spawn(writer.run());
        }
        Ok(Self { shared, client, lease, checked: 0, _tasks: tasks })
    }

    /// The number of keys that the writers write.
    pub fn keys(&self) -> usize {
        WRITERS * KEYS_OF_EACH
    }

    fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().len()
    }

    /// The duration of the longest write since the last call of this function.
    pub fn longest(&self) -> Duration {
        std::mem::take(&mut *self.shared.longest.lock())
    }

    pub fn counts(&self) -> Counts {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (failed, made_in_doubt) = (count(&self.shared.failed), count(&self.shared.made_in_doubt));
        Counts { acknowledged: self.acknowledged(), failed, made_in_doubt }
    }

    /// From now on requests may fail.
    pub fn outage_begins(&self) {
        self.shared.outages.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until every writer succeeds again. From then on no request may fail.
    pub async fn outage_ends(&self) -> anyhow::Result<()> {
        self.shared.flawless.iter().for_each(|turns| turns.store(0, Ordering::SeqCst));
        wait_for("every writer to get along", SEEN_LIMIT, || async {
            self.healthy()?;
            let mut turns = self.shared.flawless.iter().map(|turns| turns.load(Ordering::SeqCst));
            // The first turn may have begun before the outage ended.
            Ok(turns.all(|turns| turns > FLAWLESS).then_some(()))
        })
        .await?;
        self.shared.outages.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Waits until this many more writes are acknowledged.
    pub async fn some(&self, more: usize) -> anyhow::Result<()> {
        let enough = self.acknowledged() + more;
        wait_for("writes", SEEN_LIMIT, || async {
            self.healthy()?;
            Ok((self.acknowledged() >= enough).then_some(()))
        })
        .await
    }

    /// Fails if a client received an answer that it should not have received.
    pub fn healthy(&self) -> anyhow::Result<()> {
        let complaints = self.shared.complaints.lock();
        if complaints.is_empty() {
            return Ok(());
        }
        let told: Vec<_> = complaints.iter().map(|complaint| complaint.what.as_str()).collect();
        let error = anyhow::anyhow!("clients complain: {}", told.join("; "));
        let excusable = complaints.iter().all(|complaint| complaint.is_away);
        Err(if excusable { error } else { error.context(Violation) })
    }

    /// Asserts that every write since the last check can be read at its revision, that the last write of each key is
    /// current, that the lease has its keys, and that the watch has received every write once and in order.
    pub async fn check(&mut self) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        let _nobody_writes = shared.writing.write().await;
        self.healthy()?;
        let mut all = self.shared.acknowledged.lock().clone();
        let fresh = all[self.checked..].to_vec();
        all.sort();
        let seen = wait_for("the watch to see every write", SEEN_LIMIT, || async {
            self.healthy()?;
            let seen = self.shared.seen.lock();
            Ok((seen.len() >= all.len()).then(|| seen.clone()))
        })
        .await
        .with_context(|| format!("it has seen {} of {}", self.shared.seen.lock().len(), all.len()))?;
        if let Some(at) = (0..seen.len().max(all.len())).find(|at| seen.get(*at) != all.get(*at)) {
            let (seen, written) = (seen.get(at), all.get(at));
            anyhow::bail!(
                "event {at} that the watch has seen is {seen:?}, but what was written is {written:?}"
            );
        }
        let mut last = std::collections::BTreeMap::new();
        for written in &fresh {
            let found = get(&mut self.client, &written.key, written.revision).await;
            let found = found.with_context(|| format!("reading {written:?} at its revision"))?;
            let found = found.map(|kv| Written { revision: kv.mod_revision, key: kv.key, value: kv.value });
            ensure!(
                found.as_ref() == Some(written),
                "{written:?} is lost: at its revision there is {found:?}"
            );
            last.insert(written.key.clone(), written.clone());
        }
        for written in last.values() {
            let found = get(&mut self.client, &written.key, 0)
                .await?
                .context("a key that was written is not there")?;
            let same = found.mod_revision == written.revision && found.value == written.value;
            ensure!(same, "{written:?} is lost: there is {found:?}");
        }
        let ask = LeaseTimeToLiveRequest { id: self.lease, keys: true };
        let told = self.client.lease.lease_time_to_live(ask).await?.into_inner();
        ensure!(
            told.ttl > 0 && told.keys.len() == KEYS_OF_EACH,
            "the lease has {} keys: {told:?}",
            told.keys.len()
        );
        self.checked += fresh.len();
        Ok(())
    }
}

impl Shared {
    fn complain(&self, what: String) {
        self.complaints.lock().push(Complaint { is_away: false, what });
    }
}

struct Writer {
    shared: Arc<Shared>,
    client: Client,
    number: usize,
    lease: i64,
    /// The revision of the last known write of each key.
    last: Vec<i64>,
    /// For each key, the values of later writes whose outcome is in doubt. At most one of them was executed.
    doubts: Vec<Vec<Bytes>>,
}

impl Writer {
    async fn run(mut self) {
        for turn in 0.. {
            let shared = self.shared.clone();
            let before = shared.outages.load(Ordering::SeqCst);
            let turned = {
                let _writing = shared.writing.read().await;
                self.turn(turn).await
            };
            let flawless = &shared.flawless[self.number];
            match turned {
                Ok(()) => {
                    flawless.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(BREATH).await;
                }
                Err(Trouble::Away(..))
                    if before % 2 == 1 || shared.outages.load(Ordering::SeqCst) != before =>
                {
                    flawless.store(0, Ordering::SeqCst);
                    shared.failed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(AWAY).await;
                }
                Err(Trouble::Away(what, status)) => {
                    let what = format!("writer {}: {what}: {status:?}", self.number);
                    return shared.complaints.lock().push(Complaint { is_away: true, what });
                }
                Err(Trouble::Wrong(error)) => {
                    return shared.complain(format!("writer {}: {error:#}", self.number));
                }
            }
        }
    }

    fn key(&self, of: usize) -> Bytes {
        Bytes::from(format!("{PODS}ns{of}/writer{}", self.number))
    }

    async fn turn(&mut self, turn: u64) -> Result<(), Trouble> {
        let of = usize::try_from(turn).unwrap_or_default() % KEYS_OF_EACH;
        let (key, value) = (self.key(of), Bytes::from(format!("{}-{turn}", self.number)));
        let began = Instant::now();
        let put =
            PutRequest { key: key.clone(), value: value.clone(), lease: self.lease, ..Default::default() };
        let unchanged = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(self.last[of])),
            ..Default::default()
        };
        let read = RangeRequest { key: key.clone(), ..Default::default() };
        let txn = TxnRequest {
            compare: vec![unchanged],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(Request::RequestRange(read)) }],
        };
        let answer = self.client.kv.txn(txn).await;
        if answer.is_err() {
            self.doubts[of].push(value.clone());
        }
        let answer = answered("a write", answer)?;
        if !answer.succeeded {
            // No other writer has these keys, so only a write in doubt can have changed the key.
            let found = answer.responses.iter().find_map(|response| match &response.response {
                Some(Response::ResponseRange(range)) => range.kvs.first(),
                _ => None,
            });
            let made = found.is_some_and(|kv| self.was_in_doubt(of, kv));
            match found {
                Some(kv) if made => self.made(of, kv.mod_revision, &kv.value),
                _ => {
                    let (last, doubts) = (self.last[of], &self.doubts[of]);
                    let what = anyhow::anyhow!("its key was at {last}, in doubt {doubts:?}, but: {answer:?}");
                    return Err(what.into());
                }
            }
            return Ok(());
        }
        let revision = answer.header.context("a header")?.revision;
        self.made(of, revision, &value);
        {
            let mut longest = self.shared.longest.lock();
            *longest = longest.max(began.elapsed());
        }
        let get = RangeRequest { key, ..Default::default() };
        let found = answered("a read after a write", self.client.kv.range(get).await)?;
        let found = found.kvs.first().context("what was just written is not there")?;
        if found.mod_revision != revision || found.value != value {
            let what = anyhow::anyhow!("wrote {value:?} at {revision}, read {found:?}");
            return Err(what.into());
        }
        if turn.is_multiple_of(LIST_EVERY) {
            self.list().await?;
        }
        Ok(())
    }

    /// Whether this version was written by a write that was in doubt.
    fn was_in_doubt(&self, of: usize, kv: &KeyValue) -> bool {
        kv.mod_revision > self.last[of] && self.doubts[of].contains(&kv.value)
    }

    /// Records an executed write of a key. The other writes in doubt were not executed and never will be, because they
    /// compare with an older revision.
    fn made(&mut self, of: usize, revision: i64, value: &Bytes) {
        if self.doubts[of].contains(value) {
            self.shared.made_in_doubt.fetch_add(1, Ordering::Relaxed);
        }
        self.last[of] = revision;
        self.doubts[of].clear();
        self.shared.acknowledged.lock().push(Written { revision, key: self.key(of), value: value.clone() });
    }

    /// Lists all keys, and checks that this writer's keys are as it wrote them.
    async fn list(&mut self) -> Result<(), Trouble> {
        let all = RangeRequest { key: PODS.into(), range_end: PODS_END.into(), ..Default::default() };
        let kvs = answered("a list", self.client.kv.range(all).await)?.kvs;
        for of in 0..KEYS_OF_EACH {
            let key = self.key(of);
            let found: Vec<&KeyValue> = kvs.iter().filter(|kv| kv.key == key).collect();
            match found.as_slice() {
                [] if self.last[of] == 0 => {}
                [kv] if kv.mod_revision == self.last[of] => {}
                // The list proves that the write in doubt was executed.
                [kv] if self.was_in_doubt(of, kv) => self.made(of, kv.mod_revision, &kv.value),
                _ => {
                    let last = self.last[of];
                    let what = anyhow::anyhow!("a list shows {key:?} as {found:?} instead of at {last}");
                    return Err(what.into());
                }
            }
        }
        Ok(())
    }
}

async fn get(client: &mut Client, key: &Bytes, revision: i64) -> anyhow::Result<Option<KeyValue>> {
    let get = RangeRequest { key: key.clone(), revision, ..Default::default() };
    Ok(client.kv.range(get).await?.into_inner().kvs.into_iter().next())
}
