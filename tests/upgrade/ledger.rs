//! Writers that own their keys, and watches of all that they write, so that after every step it is known exactly what
//! must be there and what every watch must have shown: each acknowledged write once, in the order of its Kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use kindred_proto::{
    etcdserverpb::{PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion},
    mvccpb::KeyValue,
};
use kindred_tests::{client::Client, scenario::wait_for, workload::recorder::Recorder};
use parking_lot::Mutex;
use tokio::{sync::RwLock, task::JoinSet};

use crate::upgrade::{
    cluster::LIMIT,
    faults::{Fault, Faults},
};

/// A Kind on the pair, on the single store, on the ring of two, and on the default store.
pub const KINDS: [&str; 4] =
    ["/registry/secrets/", "/registry/deployments/", "/registry/jobs/", "/registry/services/"];
const KEYS_OF_EACH: u64 = 6;
const BREATH: Duration = Duration::from_millis(4);
const AWAY: Duration = Duration::from_millis(25);
/// A server either answers, or its end breaks the connection.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// The number that a writer wrote, and the revision.
type At = (u64, i64);

#[derive(Debug, Default)]
struct Known {
    acknowledged: Vec<At>,
    /// The numbers whose writes may have been executed.
    unknown: BTreeSet<u64>,
}

/// What a watch has shown, in its order.
#[derive(Debug, Default)]
struct Shown {
    events: Vec<(String, At)>,
    last: BTreeMap<String, At>,
    complaints: Vec<String>,
}

struct Follower {
    kind: &'static str,
    router: usize,
    shown: Arc<Mutex<Shown>>,
}

/// All writers and watches.
pub struct Ledger {
    shared: Arc<Shared>,
    clients: Vec<Client>,
    followers: Vec<Follower>,
    tasks: JoinSet<()>,
}

struct Shared {
    recorder: Arc<Recorder>,
    faults: Arc<Faults>,
    known: Mutex<BTreeMap<String, Known>>,
    acknowledged: Vec<AtomicU64>,
    /// Each write holds it, so that a check can wait until none is under way.
    writing: RwLock<()>,
    next: AtomicU64,
}

impl Ledger {
    /// Starts a writer and a watch of each Kind at each router.
    pub async fn start(
        clients: &[Client],
        recorder: &Arc<Recorder>,
        faults: &Arc<Faults>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            recorder: recorder.clone(),
            faults: faults.clone(),
            known: Mutex::default(),
            acknowledged: (0..clients.len() * KINDS.len()).map(|_| AtomicU64::new(0)).collect(),
            writing: RwLock::default(),
            next: AtomicU64::new(1),
        });
        let mut all =
            Self { shared, clients: clients.to_vec(), followers: Vec::new(), tasks: JoinSet::new() };
        for (router, client) in clients.iter().enumerate() {
            for kind in KINDS {
                let (_, revision) = contents(client, kind).await?;
                let shown = Arc::<Mutex<Shown>>::default();
                all.tasks.spawn(follow(client.clone(), kind, revision + 1, shown.clone()));
                all.followers.push(Follower { kind, router, shown });
            }
        }
        for (router, client) in clients.iter().enumerate() {
            for (at, kind) in KINDS.into_iter().enumerate() {
                let (shared, client) = (all.shared.clone(), client.clone());
                let writer = router * KINDS.len() + at;
                all.tasks.spawn(async move { shared.write(client, kind, writer).await });
            }
        }
        Ok(all)
    }

    /// Waits until every writer had so many more writes acknowledged.
    pub async fn more(&self, writes: u64) -> anyhow::Result<()> {
        let counts = || -> Vec<u64> {
            self.shared.acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect()
        };
        let before = counts();
        let done = wait_for("more writes by every writer", LIMIT, || async {
            let enough = counts().iter().zip(&before).all(|(now, before)| *now >= before + writes);
            Ok(enough.then_some(()))
        });
        done.await.with_context(|| format!("{before:?}, now {:?}", counts()))
    }

    /// While no write is under way: every acknowledged write is at every router, and every watch has shown it once, in
    /// its place. Returns the number of acknowledged writes, and a revision that every watch has behind it.
    pub async fn check(&mut self) -> anyhow::Result<(usize, i64)> {
        let shared = self.shared.clone();
        let _nobody_writes = shared.writing.write().await;
        if let Some(ended) = self.tasks.try_join_next() {
            ended?;
            bail!("a writer or a watch has ended");
        }
        let (mut behind, mut writes) = (i64::MAX, 0);
        for kind in KINDS {
            let mut there: Option<BTreeMap<String, At>> = None;
            for (router, client) in self.clients.iter().enumerate() {
                let (found, _) =
                    contents(client, kind).await.with_context(|| format!("{kind} at router {router}"))?;
                if let Some(there) = &there {
                    ensure!(*there == found, "{kind} differs between the routers: {there:?}, {found:?}");
                }
                there = Some(found);
            }
            let there = there.context("routers")?;
            writes += shared.stands(kind, &there)?;
            for follower in self.followers.iter().filter(|follower| follower.kind == kind) {
                let last = follower.caught_up(&there).await?;
                follower.complete(&shared)?;
                behind = behind.min(last);
            }
        }
        Ok((writes, behind))
    }
}

impl Shared {
    async fn write(&self, client: Client, kind: &'static str, writer: usize) {
        for round in 0_u64.. {
            let failed = {
                let _writing = self.writing.read().await;
                let key = format!("{kind}ledger/{writer}-{}", round % KEYS_OF_EACH);
                let number = self.next.fetch_add(1, Ordering::SeqCst);
                let put = PutRequest {
                    key: key.clone().into(),
                    value: number.to_string().into(),
                    ..Default::default()
                };
                let call = self.recorder.now();
                let mut kv = client.kv.clone();
                let answer = tokio::time::timeout(ANSWER_MAX, kv.put(put)).await;
                let mut known = self.known.lock();
                let known = known.entry(key.clone()).or_default();
                let what = match answer {
                    Ok(Ok(answer)) => {
                        let revision = answer.into_inner().header.map_or(0, |header| header.revision);
                        known.acknowledged.push((number, revision));
                        self.acknowledged[writer].fetch_add(1, Ordering::SeqCst);
                        None
                    }
                    Ok(Err(status)) => Some(format!("{:?}: {}", status.code(), status.message())),
                    Err(_) => Some(format!("no answer for {ANSWER_MAX:?}")),
                };
                if let Some(what) = &what {
                    known.unknown.insert(number);
                    let (returned, what) = (self.recorder.now(), format!("a write: {what}"));
                    self.faults.note(Fault { prefix: Some(kind), call, returned, what });
                }
                what.is_some()
            };
            tokio::time::sleep(if failed { AWAY } else { BREATH }).await;
        }
    }

    /// The keys of a Kind are as their writers know them.
    fn stands(&self, kind: &str, there: &BTreeMap<String, At>) -> anyhow::Result<usize> {
        let known = self.known.lock();
        let mut writes = 0;
        for (key, known) in known.iter().filter(|(key, _)| key.starts_with(kind)) {
            let last = known.acknowledged.last();
            let found = there.get(key);
            let same = found == last;
            let later = found.is_some_and(|(number, revision)| {
                known.unknown.contains(number) && last.is_none_or(|(_, last)| revision > last)
            });
            ensure!(same || later, "{key}: {last:?} was acknowledged, there is {found:?}");
            writes += known.acknowledged.len();
        }
        let strange: Vec<_> = there.keys().filter(|key| !known.contains_key(*key)).collect();
        ensure!(strange.is_empty(), "nobody wrote {strange:?}");
        Ok(writes)
    }
}

impl Follower {
    fn who(&self) -> String {
        format!("the watch of {} at router {}", self.kind, self.router)
    }

    /// Waits until the watch has shown the last write of every key. Returns its last revision.
    async fn caught_up(&self, there: &BTreeMap<String, At>) -> anyhow::Result<i64> {
        let what = format!("{} to have everything", self.who());
        let waited = wait_for(&what, LIMIT, || async {
            let shown = self.shown.lock();
            ensure!(shown.complaints.is_empty(), "{}: {}", self.who(), shown.complaints.join("\n"));
            Ok((shown.last == *there).then_some(()))
        });
        waited.await.with_context(|| format!("{there:?}, shown {:?}", self.shown.lock().last))?;
        Ok(self.shown.lock().events.last().map_or(0, |(_, (_, revision))| *revision))
    }

    /// Everything acknowledged was shown once, at its revision, and nothing else but what may have been written.
    fn complete(&self, shared: &Shared) -> anyhow::Result<()> {
        let shown = self.shown.lock();
        let mut once: BTreeMap<(&str, u64), i64> = BTreeMap::new();
        let mut before = 0;
        for (key, (number, revision)) in &shown.events {
            ensure!(*revision >= before, "{} shows {key} at {revision} after {before}", self.who());
            before = *revision;
            let again = once.insert((key, *number), *revision);
            ensure!(
                again.is_none(),
                "{} shows {key} {number} twice: at {again:?} and {revision}",
                self.who()
            );
        }
        let known = shared.known.lock();
        for (key, known) in known.iter().filter(|(key, _)| key.starts_with(self.kind)) {
            for (number, revision) in &known.acknowledged {
                let shown = once.remove(&(key.as_str(), *number));
                ensure!(
                    shown == Some(*revision),
                    "{} shows {key} {number} of {revision} at {shown:?}",
                    self.who()
                );
            }
        }
        for ((key, number), revision) in once {
            let unknown = known.get(key).is_some_and(|known| known.unknown.contains(&number));
            ensure!(unknown, "{} shows {key} {number} at {revision}, which nobody wrote", self.who());
        }
        Ok(())
    }
}

fn end_of(kind: &str) -> String {
    format!("{}0", kind.trim_end_matches('/'))
}

fn parsed(kv: &KeyValue) -> anyhow::Result<(String, At)> {
    let key = String::from_utf8(kv.key.to_vec())?;
    let number = std::str::from_utf8(&kv.value)?.parse().with_context(|| format!("the value of {key}"))?;
    Ok((key, (number, kv.mod_revision)))
}

/// The ledger's keys of a Kind, and the revision of the list.
async fn contents(client: &Client, kind: &str) -> anyhow::Result<(BTreeMap<String, At>, i64)> {
    let key = format!("{kind}ledger/");
    let all = RangeRequest { range_end: end_of(&key).into(), key: key.into(), ..Default::default() };
    let answer = client.kv.clone().range(all).await?.into_inner();
    let contents = answer.kvs.iter().map(parsed).collect::<anyhow::Result<_>>()?;
    Ok((contents, answer.header.context("a header")?.revision))
}

/// Watches the ledger's keys of a Kind from a revision on, over as many streams as necessary.
async fn follow(client: Client, kind: &'static str, mut from: i64, shown: Arc<Mutex<Shown>>) {
    let key = format!("{kind}ledger/");
    loop {
        let create = WatchCreateRequest {
            range_end: end_of(&key).into(),
            key: key.clone().into(),
            start_revision: from,
            ..Default::default()
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = futures_util::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
        if let Ok(answers) = client.watch.clone().watch(requests).await {
            let mut answers = answers.into_inner();
            while let Ok(Some(answer)) = answers.message().await {
                if answer.canceled {
                    if answer.compact_revision > 0 {
                        shown.lock().complaints.push(format!("canceled from {from} on: {answer:?}"));
                    }
                    // Otherwise the store was away for longer than the router lets a create wait.
                    break;
                }
                let mut shown = shown.lock();
                for event in &answer.events {
                    match event.kv.as_ref().map(parsed) {
                        Some(Ok((key, at))) => {
                            shown.events.push((key.clone(), at));
                            shown.last.insert(key, at);
                            from = at.1 + 1;
                        }
                        other => shown.complaints.push(format!("an event with {other:?}")),
                    }
                }
            }
        }
        tokio::time::sleep(AWAY).await;
    }
}
