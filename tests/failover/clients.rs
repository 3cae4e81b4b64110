//! Clients of routers: writers that go on whatever happens, and note every answer; watches of everything; and what must be
//! true of all of it in the end.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_proto::{
    etcdserverpb::{
        PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
        watch_request::RequestUnion,
    },
    mvccpb::Event,
};
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;

use crate::failover::{load::PREFIXES, members::LIMIT};

const PER_PREFIX: usize = 2;
/// The time that a client gives a request.
const REQUEST_MAX: Duration = Duration::from_secs(8);

/// What writers and readers saw.
#[derive(Default)]
pub struct Seen {
    /// Acknowledged writes: key, value and revision.
    pub acknowledged: Mutex<Vec<(String, String, i64)>>,
    /// When requests of each prefix were answered, since the last call of [`Seen::longest_pause`].
    answered: Mutex<BTreeMap<&'static str, Vec<Instant>>>,
    /// Errors that clients saw, by text.
    pub errors: Mutex<BTreeMap<String, u64>>,
    /// A read that showed less than was acknowledged before it.
    stale: Mutex<Option<String>>,
    values: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    /// Starts writers and readers at these routers in turn.
    pub fn start(self: &Arc<Self>, routers: &[Client], tasks: &mut JoinSet<()>) {
        let mut routers = routers.iter().cycle();
        for prefix in PREFIXES {
            for writer in 0..PER_PREFIX {
                let Some(client) = routers.next().cloned() else { return };
                let seen = self.clone();
                tasks.spawn(async move { seen.write(&client, prefix, writer).await });
            }
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    async fn write(&self, client: &Client, prefix: &'static str, writer: usize) {
        let mut kv = client.kv.clone();
        for round in 0_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("{prefix}a/{writer}-{}", round % 7);
            let value = format!("{writer} {}", self.values.fetch_add(1, Ordering::Relaxed));
            let put = PutRequest {
                key: key.clone().into_bytes().into(),
                value: value.clone().into_bytes().into(),
                ..PutRequest::default()
            };
            let answer = tokio::time::timeout(REQUEST_MAX, kv.put(put)).await;
            let revision = match answer {
                Ok(Ok(answer)) => answer.into_inner().header.map_or(0, |header| header.revision),
                Ok(Err(status)) => {
                    self.failed(status.message());
                    continue;
                }
                Err(_) => {
                    self.failed("no answer in time");
                    continue;
                }
            };
            self.acknowledged.lock().push((key.clone(), value, revision));
            self.answered.lock().entry(prefix).or_default().push(Instant::now());
            // No read that begins now may show less.
            let range = RangeRequest { key: key.clone().into_bytes().into(), ..RangeRequest::default() };
            match tokio::time::timeout(REQUEST_MAX, kv.range(range)).await {
                Ok(Ok(read)) => {
                    let shown = read.into_inner().kvs.first().map_or(0, |kv| kv.mod_revision);
                    if shown < revision {
                        let what =
                            format!("{key} was written at {revision}, a read behind that showed {shown}");
                        self.stale.lock().get_or_insert(what);
                    }
                }
                Ok(Err(status)) => self.failed(status.message()),
                Err(_) => self.failed("no answer to a read in time"),
            }
        }
    }

    fn failed(&self, why: &str) {
        *self.errors.lock().entry(why.to_owned()).or_default() += 1;
    }

    /// The longest time in which no write of one of the prefixes was acknowledged, since the last call and until now.
    pub fn longest_pause(&self) -> Duration {
        let mut answered = self.answered.lock();
        let longest = answered.values_mut().map(|times| {
            let pause = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            let last = times.last().map_or(Duration::ZERO, Instant::elapsed);
            times.drain(..times.len().saturating_sub(1));
            pause.max(last)
        });
        longest.max().unwrap_or_default()
    }

    /// Waits until so many more writes of each prefix are acknowledged.
    pub async fn more(&self, writes: usize) -> anyhow::Result<()> {
        let count = || {
            let acknowledged = self.acknowledged.lock();
            PREFIXES.map(|prefix| acknowledged.iter().filter(|(key, ..)| key.starts_with(prefix)).count())
        };
        let before = count();
        let waited = wait_for("more writes", LIMIT, || async {
            let now = count();
            Ok(now.iter().zip(&before).all(|(now, before)| *now >= before + writes).then_some(()))
        });
        match waited.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(format!("{:?}", self.errors.lock()))),
        }
    }

    /// Everything acknowledged is among the events, at its revision, and no read was stale.
    pub fn check(&self, events: &[Event]) -> anyhow::Result<usize> {
        if let Some(stale) = self.stale.lock().clone() {
            anyhow::bail!(stale);
        }
        let mut there = BTreeMap::new();
        for event in events {
            let kv = event.kv.as_ref().context("an event without a key")?;
            there.insert((String::from_utf8_lossy(&kv.key).into_owned(), kv.mod_revision), kv.value.clone());
        }
        let acknowledged = self.acknowledged.lock();
        for (key, value, revision) in acknowledged.iter() {
            let found = there.get(&(key.clone(), *revision));
            ensure!(
                found.is_some_and(|found| found == value.as_bytes()),
                "{key} = {value:?} was acknowledged at {revision}, and there is {found:?}"
            );
        }
        Ok(acknowledged.len())
    }
}

/// A watch of one prefix, which must live as long as the cluster.
pub struct Watching {
    events: Arc<Mutex<Vec<Event>>>,
    ended: Arc<Mutex<Option<String>>>,
    _requests: mpsc::Sender<WatchRequest>,
}

impl Watching {
    /// Watches a prefix from a revision on.
    pub async fn start(client: &Client, prefix: &str, from: i64) -> anyhow::Result<Self> {
        let mut range_end = prefix.as_bytes().to_vec();
        *range_end.last_mut().context("a prefix")? += 1;
        let create = WatchCreateRequest {
            key: prefix.as_bytes().to_vec().into(),
            range_end: range_end.into(),
            start_revision: from,
            ..WatchCreateRequest::default()
        };
        let (requests, receiver) = mpsc::channel(1);
        requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
        let mut stream = client.watch.clone().watch(ReceiverStream::new(receiver)).await?.into_inner();
        let (events, ended) = (Arc::<Mutex<Vec<Event>>>::default(), Arc::<Mutex<Option<String>>>::default());
        let (to, why) = (events.clone(), ended.clone());
        tokio::spawn(async move {
            let end = loop {
                match stream.message().await {
                    Ok(Some(WatchResponse { canceled: true, compact_revision, cancel_reason, .. })) => {
                        break format!("canceled, compacted at {compact_revision}: {cancel_reason}");
                    }
                    Ok(Some(message)) => to.lock().extend(message.events),
                    Ok(None) => break "the stream ended".to_owned(),
                    Err(status) => break status.to_string(),
                }
            };
            *why.lock() = Some(end);
        });
        Ok(Self { events, ended, _requests: requests })
    }

    /// The events up to a revision, which must come.
    pub async fn until(&self, revision: i64) -> anyhow::Result<Vec<Event>> {
        wait_for("events", LIMIT, || async {
            if let Some(why) = self.ended.lock().clone() {
                anyhow::bail!("the watch ended: {why}");
            }
            let last =
                self.events.lock().last().and_then(|event| event.kv.as_ref()).map_or(0, |kv| kv.mod_revision);
            Ok((last >= revision).then_some(()))
        })
        .await
        .with_context(|| format!("a watch up to {revision}"))?;
        Ok(self.events.lock().clone())
    }
}
