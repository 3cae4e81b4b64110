//! The requests of an apiserver other than writes: one watch of each Kind, repeated probes for a Kind's current
//! revision, and paginated lists.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    RangeRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::writers::micros;
use crate::{
    load::{self, Shape},
    pace,
};

/// The number of keys in a page.
const PAGE: i64 = 500;
/// The silence after which the last events have arrived.
const QUIET: Duration = Duration::from_millis(500);

/// The times of one kind of operation, in microseconds.
pub type Times = (String, Vec<u32>);

pub struct Apiserver {
    watches: JoinSet<anyhow::Result<Times>>,
    stop: watch::Sender<bool>,
}

fn end_of(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

impl Apiserver {
    /// Watches these Kinds, each on its own connection, as kube-apiserver does.
    pub async fn start(endpoint: &str, kinds: &[&'static str], origin: Instant) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let mut watches = JoinSet::new();
        for kind in kinds {
            let shape = Shape { connections: 1, in_flight: 1, keys: 0, value_bytes: 0 };
            let channel = load::connect(endpoint, shape).await?.remove(0);
            let prefix = format!("/registry/{kind}/");
            let create = WatchCreateRequest {
                range_end: end_of(&prefix),
                key: prefix.into(),
                prev_kv: true,
                ..Default::default()
            };
            let (requests, receiver) = mpsc::channel(1);
            requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
            let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
            let mut answers = client.watch(ReceiverStream::new(receiver)).await?.into_inner();
            let created = answers.message().await?.context("the watch stream ended")?;
            anyhow::ensure!(created.created && !created.canceled, "{created:?}");
            let (stopped, name) = (stopped.clone(), format!("event of {kind}"));
            watches.spawn(async move {
                // The stream lives as long as its requests.
                let _requests = requests;
                let (mut seen, mut last) = (Vec::new(), 0);
                loop {
                    let answer = match tokio::time::timeout(QUIET, answers.message()).await {
                        Ok(answer) => answer?.context("the watch stream ended")?,
                        Err(_) if *stopped.borrow() => return Ok((name, seen)),
                        Err(_) => continue,
                    };
                    anyhow::ensure!(!answer.canceled, "a watch was cancelled: {}", answer.cancel_reason);
                    let now = micros(origin.elapsed());
                    for event in answer.events {
                        let kv = event.kv.context("an event without kv")?;
                        anyhow::ensure!(kv.mod_revision > last, "event {} after {last}", kv.mod_revision);
                        last = kv.mod_revision;
                        let due = kv.value.first_chunk().map(|first| u64::from_be_bytes(*first));
                        let due = u32::try_from(due.context("a value that this bench did not write")?)?;
                        seen.push(now.saturating_sub(due));
                    }
                }
            });
        }
        Ok(Self { watches, stop })
    }

    /// Stops the watches when no event has come for a while; returns the times.
    pub async fn stop(mut self) -> anyhow::Result<Vec<Times>> {
        self.stop.send_replace(true);
        let mut all = Vec::new();
        while let Some(done) = self.watches.join_next().await {
            all.push(done??);
        }
        Ok(all)
    }
}

/// Probes these Kinds' current revisions in turn, by reading a key that never exists, as kube-apiserver does.
pub async fn probes(
    channels: Vec<Channel>,
    kinds: &'static [&'static str],
    rate: u64,
    limit: Duration,
) -> anyhow::Result<Times> {
    let (to, mut due) = mpsc::channel(1 << 12);
    let clock = std::thread::spawn(move || pace::tick(rate, rate * limit.as_secs(), &to));
    let (mut asked, mut times) = (JoinSet::new(), Vec::new());
    let mut number = 0;
    while let Some(at) = due.recv().await {
        let mut kv = KvClient::new(channels[number % channels.len()].clone());
        let key = format!("/registry/{}", kinds[number % kinds.len()]);
        number += 1;
        asked.spawn(async move {
            let answer = kv.range(RangeRequest { key: key.into(), limit: 1, ..Default::default() }).await?;
            let revision = answer.into_inner().header.map_or(0, |header| header.revision);
            anyhow::ensure!(revision > 0, "no revision");
            anyhow::Ok(micros(at.elapsed()))
        });
    }
    while let Some(done) = asked.join_next().await {
        times.push(done??);
    }
    clock.join().ok().context("the clock's thread ended badly")?;
    Ok(("probe".to_owned(), times))
}

/// Lists pods repeatedly, ten pages per second; all pages of a list are at the revision of its first.
pub async fn lists(channels: Vec<Channel>, limit: Duration) -> anyhow::Result<Times> {
    let (prefix, began) = ("/registry/pods/", Instant::now());
    let mut kv = KvClient::new(channels[0].clone()).max_decoding_message_size(usize::MAX);
    let mut page = tokio::time::interval(Duration::from_millis(100));
    let (mut times, mut from, mut revision) = (Vec::new(), Bytes::from(prefix), 0);
    while began.elapsed() < limit {
        let due = page.tick().await;
        let request = RangeRequest {
            key: from,
            range_end: end_of(prefix),
            limit: PAGE,
            revision,
            ..Default::default()
        };
        let answer = kv.range(request).await?.into_inner();
        times.push(micros(due.elapsed()));
        let last = answer.kvs.last().context("no pods")?;
        if answer.more {
            (from, revision) =
                ([&last.key[..], b"\0"].concat().into(), answer.header.map_or(0, |h| h.revision));
        } else {
            (from, revision) = (prefix.into(), 0);
        }
    }
    Ok(("page of 500".to_owned(), times))
}
