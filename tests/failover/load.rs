//! Clients that write with every mode and watch.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_proto::{
    etcdserverpb::{PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion},
    mvccpb,
};
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::failover::members::LIMIT;

/// A prefix for each mode.
pub const PREFIXES: [&str; 3] = ["/registry/pods/", "/registry/minions/", "/registry/events/"];
const PER_PREFIX: usize = 3;
/// After this time a write is given up: whether it was executed is not known.
const WRITE_MAX: Duration = Duration::from_secs(2);

/// What the writers know.
#[derive(Default)]
pub struct Written {
    /// The last acknowledged value of each key, and its revision.
    pub acknowledged: Mutex<BTreeMap<String, (String, i64)>>,
    /// A value of each key that was sent behind that, and may have been executed.
    pub maybe: Mutex<BTreeMap<String, String>>,
    values: AtomicU64,
}

impl Written {
    /// Starts writers at a member, each with keys of its own. They end at their first failure.
    pub fn start(self: &Arc<Self>, client: &Client, tasks: &mut JoinSet<()>) {
        for (at, prefix) in PREFIXES.into_iter().enumerate() {
            for writer in 0..PER_PREFIX {
                let (written, client) = (self.clone(), client.clone());
                tasks.spawn(async move { written.write(&client, prefix, at * PER_PREFIX + writer).await });
            }
        }
    }

    async fn write(&self, client: &Client, prefix: &str, writer: usize) {
        let mut kv = client.kv.clone();
        for round in 0_u64.. {
            let key = format!("{prefix}a/{writer}-{}", round % 20);
            let value = format!("{writer} {}", self.values.fetch_add(1, Ordering::Relaxed));
            self.maybe.lock().insert(key.clone(), value.clone());
            let put = PutRequest {
                key: key.clone().into_bytes().into(),
                value: value.clone().into_bytes().into(),
                ..PutRequest::default()
            };
            let Ok(Ok(answer)) = tokio::time::timeout(WRITE_MAX, kv.put(put)).await else { return };
            let revision = answer.into_inner().header.map_or(0, |header| header.revision);
            self.acknowledged.lock().insert(key.clone(), (value, revision));
            self.maybe.lock().remove(&key);
        }
    }

    pub fn highest(&self) -> i64 {
        self.acknowledged.lock().values().map(|(_, revision)| *revision).max().unwrap_or(0)
    }

    /// Waits for so many more writes.
    pub async fn more(&self, writes: u64) -> anyhow::Result<()> {
        let upto = self.values.load(Ordering::Relaxed) + writes;
        wait_for("more writes", LIMIT, || async {
            Ok((self.values.load(Ordering::Relaxed) >= upto).then_some(()))
        })
        .await
    }

    /// Takes what is at a member for acknowledged where that was not known.
    pub async fn settle(&self, client: &Client) -> anyhow::Result<()> {
        let mut kv = client.kv.clone();
        let maybe = std::mem::take(&mut *self.maybe.lock());
        for (key, value) in maybe {
            let range = RangeRequest { key: key.clone().into_bytes().into(), ..RangeRequest::default() };
            let found = kv.range(range).await?.into_inner().kvs;
            if let Some(found) = found.first().filter(|found| found.value == value.as_bytes()) {
                self.acknowledged.lock().insert(key, (value, found.mod_revision));
            }
        }
        Ok(())
    }

    /// Everything acknowledged is at a member, at its revision, unless what was sent behind it has replaced it.
    pub async fn check(&self, client: &Client) -> anyhow::Result<usize> {
        let mut kv = client.kv.clone();
        let acknowledged = self.acknowledged.lock().clone();
        for (key, (value, revision)) in &acknowledged {
            let range = RangeRequest { key: key.clone().into_bytes().into(), ..RangeRequest::default() };
            let found = kv.range(range).await.with_context(|| key.clone())?.into_inner();
            let found = found.kvs.first().with_context(|| format!("{key} is lost: {value} at {revision}"))?;
            let maybe = self.maybe.lock().get(key).cloned();
            let same = found.value == value.as_bytes() && found.mod_revision == *revision;
            let later =
                maybe.is_some_and(|maybe| found.value == maybe.as_bytes()) && found.mod_revision > *revision;
            ensure!(same || later, "{key}: {value} at {revision} was acknowledged, there is {found:?}");
        }
        Ok(acknowledged.len())
    }
}

/// The events of a watch over everything, until it ends.
pub async fn watch(
    client: &Client,
    from: i64,
    events: &mut Vec<mvccpb::Event>,
    until: Option<i64>,
) -> anyhow::Result<()> {
    let create = WatchCreateRequest {
        key: b"/registry/".to_vec().into(),
        range_end: b"/registry0".to_vec().into(),
        start_revision: from,
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests =
        futures_util::StreamExt::chain(tokio_stream::once(create), futures_util::stream::pending());
    let mut stream = client.watch.clone().watch(requests).await?.into_inner();
    while let Ok(Some(message)) = stream.message().await {
        ensure!(!message.canceled, "the watch from {from} is canceled: {message:?}");
        events.extend(message.events);
        let last = events.last().and_then(|event| event.kv.as_ref()).map_or(0, |kv| kv.mod_revision);
        if until.is_some_and(|until| last >= until) {
            break;
        }
    }
    Ok(())
}
