//! Clients that do not read their watches, and very many watches.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    PutRequest, WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
};
use kindred_tests::{
    client::Client,
    scenario::{self, env_number, report},
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::e2e::Server;

const LIMIT: Duration = Duration::from_secs(300);
const EVENT_LIMIT: Duration = Duration::from_secs(300);
const WRITERS: usize = 16;
const VALUE_BYTES: usize = 512;

/// Opens a stream with `count` watches of everything below `prefix`, and waits until all are created.
pub async fn watch(
    client: &Client,
    prefix: &'static str,
    count: usize,
) -> anyhow::Result<(mpsc::Sender<WatchRequest>, Streaming<WatchResponse>)> {
    let (sender, receiver) = mpsc::channel(count + 8);
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().context("an empty prefix")? += 1;
    for _ in 0..count {
        let create = WatchCreateRequest {
            key: Bytes::from_static(prefix.as_bytes()),
            range_end: Bytes::from(end.clone()),
            ..Default::default()
        };
        sender.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    }
    let mut service = client.watch.clone();
    let mut answers = service.watch(ReceiverStream::new(receiver)).await?.into_inner();
    for _ in 0..count {
        let created = next(&mut answers).await?;
        ensure!(created.created && !created.canceled, "{created:?}");
    }
    Ok((sender, answers))
}

pub async fn next(answers: &mut Streaming<WatchResponse>) -> anyhow::Result<WatchResponse> {
    let answer = tokio::time::timeout(EVENT_LIMIT, answers.message()).await.context("no watch answer")??;
    answer.context("the watch stream ended")
}

/// Reads until `wanted` events have come, and returns how long it took. Fails unless their revisions rise.
pub async fn read_events(answers: &mut Streaming<WatchResponse>, wanted: usize) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let (mut seen, mut last) = (0, 0);
    while seen < wanted {
        for event in next(answers).await?.events {
            let revision = event.kv.context("an event without kv")?.mod_revision;
            ensure!(revision > last, "event {revision} after {last}");
            last = revision;
            seen += 1;
        }
    }
    if seen == wanted { Ok(start.elapsed()) } else { bail!("{seen} events, {wanted} were written") }
}

/// Writes `count` values to pods, by `WRITERS` concurrent tasks.
async fn write(client: &Client, count: usize) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut kv = client.kv.clone();
        writers.spawn(async move {
            for index in (writer..count).step_by(WRITERS) {
                let key = Bytes::from(format!("/registry/pods/ns/{}", index % 1000));
                let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
                kv.put(PutRequest { key, value, ..Default::default() }).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    Ok(start.elapsed())
}

#[test]
fn pitfall_a9_slow_watcher_delays_nobody_and_loses_nothing() {
    scenario::run("slow_watcher", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let count = usize::try_from(env_number("KINDRED_SLOW_EVENTS", 50_000)?)?;
        let writer = server.client().await?;
        // Each watch has a connection of its own, because the window that a slow client fills is the connection's.
        let slow_client = server.client().await?;
        let (_slow_requests, mut slow) = watch(&slow_client, "/registry/pods/", 1).await?;
        let reader_client = server.client().await?;
        let (_requests, mut reader) = watch(&reader_client, "/registry/pods/", 1).await?;
        let reading = tokio::spawn(async move { read_events(&mut reader, count).await });
        let writing = write(&writer, count).await?;
        // The slow client has read nothing so far, and the other one receives all events nevertheless.
        let read = tokio::time::timeout(EVENT_LIMIT, reading)
            .await
            .context("the other watcher was held up")???;
        let caught_up = read_events(&mut slow, count).await.context("the slow watcher")?;
        report(&format!(
            "e2e slow_watcher events={count} written_in={writing:.1?} fast_watcher={read:.1?} slow_caught_up={caught_up:.1?}"
        ));
        Ok(())
    });
}

#[test]
fn thousand_watches() {
    const STREAMS: usize = 20;
    const WATCHES: usize = 50;
    const WRITES: usize = 20;
    scenario::run("thousand_watches", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let client = server.client().await?;
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            streams.push(watch(&client, "/registry/pods/", WATCHES).await?);
        }
        write(&client, WRITES).await?;
        let mut events = 0;
        for (_, answers) in &mut streams {
            let mut last = vec![0; WATCHES];
            let mut seen = 0;
            while seen < WATCHES * WRITES {
                let answer = next(answers).await?;
                let watch = usize::try_from(answer.watch_id)?;
                for event in answer.events {
                    let revision = event.kv.context("an event without kv")?.mod_revision;
                    ensure!(revision > last[watch], "event {revision} after {}", last[watch]);
                    last[watch] = revision;
                    seen += 1;
                }
            }
            events += seen;
        }
        report(&format!("e2e thousand_watches watches={} events={events}", STREAMS * WATCHES));
        Ok(())
    });
}
