//! Clients that write through every router all the time, and watch. No request may fail, and every watch must tell of
//! every write, once and in order.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use kindred_proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion,
};
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::failover::members::LIMIT;

/// One Kind that moves, and one that stays.
const PREFIXES: [&str; 2] = ["/registry/pods/", "/registry/configmaps/"];
const WRITE_MAX: Duration = Duration::from_secs(30);
/// A client is not faster, so that the servers have time for all else.
const BREATH: Duration = Duration::from_millis(5);

/// The events of a watch, as (revision, key).
type Events = Arc<Mutex<Vec<(i64, String)>>>;

#[derive(Default)]
struct Seen {
    /// The key of each write, by its revision.
    written: Mutex<BTreeMap<i64, String>>,
    writes: AtomicU64,
    slowest: Mutex<Duration>,
    over: AtomicBool,
}

/// The clients, and what they have seen.
pub struct Traffic {
    seen: Arc<Seen>,
    tasks: JoinSet<anyhow::Result<()>>,
    /// Of each router one for each prefix.
    watched: Vec<Events>,
}

impl Traffic {
    /// Starts the clients.
    pub async fn start(routers: &[String]) -> anyhow::Result<Self> {
        let mut traffic = Self { seen: Arc::default(), tasks: JoinSet::new(), watched: Vec::new() };
        for router in routers {
            let client = Client::connect(router).await?;
            for prefix in PREFIXES {
                let events = Events::default();
                traffic.watched.push(events.clone());
                let from = client.kv.clone().range(get(prefix)).await?.into_inner();
                let from = from.header.map_or(0, |header| header.revision) + 1;
                traffic.tasks.spawn(watch(client.clone(), prefix, from, events, traffic.seen.clone()));
            }
        }
        for (at, router) in routers.iter().enumerate() {
            for prefix in PREFIXES {
                let client = Client::connect(router).await?;
                traffic.tasks.spawn(write(client, format!("{prefix}a/{at}"), traffic.seen.clone()));
            }
        }
        Ok(traffic)
    }

    /// Waits for so many more writes, and fails with what has gone wrong so far.
    pub async fn more(&mut self, writes: u64) -> anyhow::Result<()> {
        let upto = self.seen.writes.load(Ordering::Relaxed) + writes;
        let tasks = Mutex::new(&mut self.tasks);
        wait_for("more writes", LIMIT, || async {
            if let Some(ended) = tasks.lock().try_join_next() {
                ended??;
                bail!("a client has ended");
            }
            Ok((self.seen.writes.load(Ordering::Relaxed) >= upto).then_some(()))
        })
        .await
    }

    /// Ends the clients. Returns how many writes there were, and how long the slowest took.
    pub async fn finish(mut self) -> anyhow::Result<(usize, Duration)> {
        self.more(1).await?;
        self.seen.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let written = self.seen.written.lock();
        for (at, events) in self.watched.iter().enumerate() {
            let prefix = PREFIXES[at % PREFIXES.len()];
            let wanted: Vec<_> = written.iter().filter(|(_, key)| key.starts_with(prefix)).collect();
            let events = events.lock();
            ensure!(wanted.len() == events.len(), "watch {at}: {} of {}", events.len(), wanted.len());
            for (want, (revision, key)) in wanted.into_iter().zip(&*events) {
                ensure!(want == (revision, key), "watch {at}: {want:?} and not {revision} {key}");
            }
        }
        Ok((written.len(), *self.seen.slowest.lock()))
    }
}

fn get(prefix: &str) -> RangeRequest {
    RangeRequest { key: prefix.as_bytes().to_vec().into(), range_end: end(prefix), ..Default::default() }
}

fn end(prefix: &str) -> bytes::Bytes {
    format!("{}0", prefix.trim_end_matches('/')).into_bytes().into()
}

async fn write(client: Client, key: String, seen: Arc<Seen>) -> anyhow::Result<()> {
    let mut kv = client.kv;
    for round in 0_u64.. {
        if seen.over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{key}-{}", round % 10);
        let put = PutRequest {
            key: key.clone().into_bytes().into(),
            value: round.to_string().into_bytes().into(),
            ..PutRequest::default()
        };
        let began = Instant::now();
        let answer = match tokio::time::timeout(WRITE_MAX, kv.put(put)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => bail!("a write of {key} failed after {:?}: {status}", began.elapsed()),
            Err(_) => bail!("a write of {key} has no answer"),
        };
        {
            let mut slowest = seen.slowest.lock();
            *slowest = began.elapsed().max(*slowest);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        ensure!(seen.written.lock().insert(revision, key).is_none(), "revision {revision} was given twice");
        seen.writes.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

/// Reads a watch until all writers have ended and it has what they wrote.
async fn watch(
    client: Client,
    prefix: &str,
    from: i64,
    events: Events,
    seen: Arc<Seen>,
) -> anyhow::Result<()> {
    let create = WatchCreateRequest {
        key: prefix.as_bytes().to_vec().into(),
        range_end: end(prefix),
        start_revision: from,
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests =
        futures_util::StreamExt::chain(tokio_stream::once(create), futures_util::stream::pending());
    let mut stream = client.watch.clone().watch(requests).await?.into_inner();
    loop {
        let message = match tokio::time::timeout(Duration::from_millis(200), stream.message()).await {
            Ok(message) => message?,
            Err(_) if seen.over.load(Ordering::Relaxed) && has_all(prefix, &events, &seen) => return Ok(()),
            Err(_) => continue,
        };
        let Some(message) = message else { bail!("the watch of {prefix} has ended") };
        ensure!(!message.canceled, "the watch of {prefix} is cancelled: {message:?}");
        for kv in message.events.into_iter().filter_map(|event| event.kv) {
            events.lock().push((kv.mod_revision, String::from_utf8_lossy(&kv.key).into_owned()));
        }
    }
}

fn has_all(prefix: &str, events: &Events, seen: &Seen) -> bool {
    let last = seen.written.lock().iter().rev().find(|(_, key)| key.starts_with(prefix)).map(|(at, _)| *at);
    events.lock().last().map(|(at, _)| *at) >= last
}
