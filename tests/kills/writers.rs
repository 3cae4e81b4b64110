//! Clients of the surviving router: writers with optimistic puts of numbered values who read after each, and a watch.
//! Nothing that they do may fail, whoever else is killed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    Compare, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    watch_request::RequestUnion,
};
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use tokio::{sync::RwLock, task::JoinSet};

/// All pods.
pub const PODS: &str = "/registry/pods/";
/// Behind them.
pub const PODS_END: &str = "/registry/pods0";
const WRITERS: usize = 2;
const KEYS_OF_EACH: usize = 6;
/// Between the writes of a writer.
const BREATH: Duration = Duration::from_millis(10);
/// How often a writer also lists everything.
const LIST_EVERY: u64 = 8;
const LEASE_TTL_S: i64 = 600;
const SEEN_LIMIT: Duration = Duration::from_secs(20);

/// A write that was acknowledged, or an event.
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
    /// What no client should have been told.
    complaints: Mutex<Vec<String>>,
    longest: Mutex<Duration>,
    /// Held by each write, so that a check can wait until none is under way.
    writing: RwLock<()>,
}

/// Clients at work; stopped when dropped.
pub struct Writers {
    shared: Arc<Shared>,
    client: Client,
    lease: i64,
    /// How many of the writes were checked.
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
        // The stream of requests stays open: its end would end the watch.
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
            // The keys of one of them are attached to the lease.
            let lease = if number == 0 { lease } else { 0 };
            let writer = Writer {
                shared: shared.clone(),
                client: client.clone(),
                number,
                lease,
                last: vec![0; KEYS_OF_EACH],
            };
            tasks.spawn(writer.run());
        }
        Ok(Self { shared, client, lease, checked: 0, _tasks: tasks })
    }

    /// How many keys they write.
    pub fn keys(&self) -> usize {
        WRITERS * KEYS_OF_EACH
    }

    /// How many writes were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().len()
    }

    /// The longest write so far.
    pub fn longest(&self) -> Duration {
        *self.shared.longest.lock()
    }

    /// Until so many more writes than now were acknowledged.
    pub async fn some(&self, more: usize) -> anyhow::Result<()> {
        let enough = self.acknowledged() + more;
        wait_for("writes", SEEN_LIMIT, || async {
            self.healthy()?;
            Ok((self.acknowledged() >= enough).then_some(()))
        })
        .await
    }

    /// Nobody has complained.
    pub fn healthy(&self) -> anyhow::Result<()> {
        let complaints = self.shared.complaints.lock();
        ensure!(complaints.is_empty(), "clients complain: {}", complaints.join("; "));
        Ok(())
    }

    /// Every write since the last check is there at its revision, the last of each key is there now, the lease has its
    /// keys, and the watch has seen every write once, in order.
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
        self.complaints.lock().push(what);
    }
}

struct Writer {
    shared: Arc<Shared>,
    client: Client,
    number: usize,
    lease: i64,
    /// The revisions of its keys.
    last: Vec<i64>,
}

impl Writer {
    async fn run(mut self) {
        for turn in 0.. {
            let shared = self.shared.clone();
            let turned = {
                let _writing = shared.writing.read().await;
                self.turn(turn).await
            };
            if let Err(error) = turned {
                // It no longer knows what is there.
                return self.shared.complain(format!("writer {}: {error:#}", self.number));
            }
            tokio::time::sleep(BREATH).await;
        }
    }

    fn key(&self, of: usize) -> Bytes {
        Bytes::from(format!("{PODS}ns{of}/writer{}", self.number))
    }

    async fn turn(&mut self, turn: u64) -> anyhow::Result<()> {
        let of = usize::try_from(turn)? % KEYS_OF_EACH;
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
        let answer = self.client.kv.txn(txn).await.context("a write")?.into_inner();
        // Nobody else writes its keys.
        ensure!(answer.succeeded, "its key was at {}, but: {answer:?}", self.last[of]);
        let revision = answer.header.context("a header")?.revision;
        self.last[of] = revision;
        self.shared.acknowledged.lock().push(Written { revision, key: key.clone(), value: value.clone() });
        {
            let mut longest = self.shared.longest.lock();
            *longest = longest.max(began.elapsed());
        }
        let found = get(&mut self.client, &key, 0).await.context("a read after a write")?;
        let found = found.context("what was just written is not there")?;
        ensure!(
            found.mod_revision == revision && found.value == value,
            "wrote {value:?} at {revision}, read {found:?}"
        );
        if turn.is_multiple_of(LIST_EVERY) {
            self.list().await?;
        }
        Ok(())
    }

    /// A list shows its keys as it wrote them.
    async fn list(&mut self) -> anyhow::Result<()> {
        let all = RangeRequest { key: PODS.into(), range_end: PODS_END.into(), ..Default::default() };
        let kvs = self.client.kv.range(all).await.context("a list")?.into_inner().kvs;
        for (of, last) in self.last.iter().enumerate() {
            let key = self.key(of);
            let found = kvs.iter().filter(|kv| kv.key == key).map(|kv| kv.mod_revision);
            let expected: Vec<i64> = Some(*last).filter(|last| *last > 0).into_iter().collect();
            let found: Vec<i64> = found.collect();
            ensure!(found == expected, "a list shows {key:?} at {found:?} instead of {expected:?}");
        }
        Ok(())
    }
}

async fn get(
    client: &mut Client,
    key: &Bytes,
    revision: i64,
) -> anyhow::Result<Option<kindred_proto::mvccpb::KeyValue>> {
    let get = RangeRequest { key: key.clone(), revision, ..Default::default() };
    Ok(client.kv.range(get).await?.into_inner().kvs.into_iter().next())
}
