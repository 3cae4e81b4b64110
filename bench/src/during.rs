//! Measures what clients see while a command changes the cluster: `kindred-bench during -- kindred move pods --to
//! pods2`.
//!
//! It fills a Kind, writes to it by optimistic transactions, watches all of it, and runs the command. It reports
//! how long the command took, the latencies of writes before and during it, and the longest of them (the write
//! pause). It also reports failed writes, cancelled watches, and missing or duplicate events.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    kv_client::KvClient,
    request_op,
    watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// The time in which watchers must catch up after the last write.
const CATCH_UP: Duration = Duration::from_secs(30);
/// The number of concurrent writes that fill the Kind.
const FILLERS: usize = 64;

#[derive(clap::Args)]
pub struct Options {
    /// Client addresses of the routers, comma-separated; writers and watchers are spread over them.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:2379")]
    endpoints: Vec<String>,
    /// The prefix of the keys.
    #[arg(long, default_value = "/registry/pods/bench/")]
    prefix: String,
    /// Keys to write before the command; 0 uses the keys of an earlier run.
    #[arg(long, default_value_t = 200_000)]
    keys: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
    /// Writers, each with one write in flight.
    #[arg(long, default_value_t = 16)]
    writers: u64,
    /// Keys that the writers write to.
    #[arg(long, default_value_t = 1_000)]
    hot_keys: u64,
    /// Watches, each of all keys.
    #[arg(long, default_value_t = 4)]
    watches: usize,
    /// Seconds of load before the command, for comparison, and after it.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// The command. It must end when the change is complete.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// An acknowledged write: when it began, how long it took, and its revision.
struct Write {
    began: Instant,
    took: Duration,
    revision: i64,
}

fn key(prefix: &str, number: u64) -> Bytes {
    format!("{prefix}pod-{number:07}").into()
}

async fn connect(endpoints: &[String]) -> anyhow::Result<Vec<Channel>> {
    let mut channels = Vec::new();
    for endpoint in endpoints {
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?
            .initial_connection_window_size(16 << 20)
            .initial_stream_window_size(4 << 20)
            .tcp_nodelay(true);
        channels.push(endpoint.connect().await.context("connecting to a router")?);
    }
    Ok(channels)
}

async fn fill(channels: &[Channel], options: &Options) -> anyhow::Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for worker in 0..FILLERS {
        let mut kv = KvClient::new(channels[worker % channels.len()].clone());
        let (next, prefix, count) = (next.clone(), options.prefix.clone(), options.keys);
        let value = Bytes::from(vec![b'v'; options.value_bytes]);
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                let put =
                    PutRequest { key: key(&prefix, number), value: value.clone(), ..Default::default() };
                kv.put(put).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Writes to this writer's keys in turn, each only if it is as the writer left it.
async fn write(
    channel: Channel,
    keys: Vec<Bytes>,
    value: Bytes,
    stop: Arc<AtomicBool>,
) -> (Vec<Write>, Vec<String>) {
    let mut kv = KvClient::new(channel);
    let (mut writes, mut failures) = (Vec::new(), Vec::new());
    let mut revisions = vec![None; keys.len()];
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = turn % keys.len();
        turn += 1;
        let began = Instant::now();
        match one(&mut kv, &keys[at], &value, revisions[at]).await {
            Ok(revision) => {
                revisions[at] = Some(revision);
                writes.push(Write { began, took: began.elapsed(), revision });
            }
            Err(error) => {
                revisions[at] = None;
                failures.push(error.to_string());
            }
        }
    }
    (writes, failures)
}

async fn one(
    kv: &mut KvClient<Channel>,
    key: &Bytes,
    value: &Bytes,
    known: Option<i64>,
) -> anyhow::Result<i64> {
    let known = match known {
        Some(known) => known,
        None => {
            let range = kv.range(RangeRequest { key: key.clone(), ..Default::default() }).await?.into_inner();
            range.kvs.first().map_or(0, |kv| kv.mod_revision)
        }
    };
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(known)),
        ..Default::default()
    };
    let put = PutRequest { key: key.clone(), value: value.clone(), ..Default::default() };
    let success = vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }];
    let txn = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
    let answer = kv.txn(txn).await?.into_inner();
    anyhow::ensure!(answer.succeeded, "a key was not as its only writer left it at {known}");
    Ok(answer.header.map_or(0, |header| header.revision))
}

/// Watches all keys with the prefix. Returns the revisions of the events in order once no more events come after
/// the writers have stopped. Fails if the watch is cancelled or events are out of order.
async fn watch(
    channel: Channel,
    prefix: String,
    ready: mpsc::Sender<()>,
    events: Arc<AtomicU64>,
) -> anyhow::Result<Vec<i64>> {
    let mut end = prefix.clone().into_bytes();
    *end.last_mut().context("an empty prefix")? += 1;
    let create = WatchCreateRequest { key: prefix.into(), range_end: end.into(), ..Default::default() };
    let (requests, receiver) = mpsc::channel(1);
    requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let mut answers = client.watch(ReceiverStream::new(receiver)).await?.into_inner();
    let mut seen: Vec<i64> = Vec::new();
    loop {
        // The writers have stopped and no events come any more; the caller compares the results.
        let answer = match tokio::time::timeout(Duration::from_secs(5), answers.message()).await {
            Ok(answer) => answer?.context("a watch stream ended")?,
            Err(_) if requests.is_closed() || ready.is_closed() => return Ok(seen),
            Err(_) => continue,
        };
        anyhow::ensure!(!answer.canceled, "a watch was cancelled: {}", answer.cancel_reason);
        if answer.created {
            ready.send(()).await?;
            continue;
        }
        for event in answer.events {
            let revision = event.kv.context("an event without kv")?.mod_revision;
            anyhow::ensure!(seen.last().is_none_or(|last| *last < revision), "event {revision} out of order");
            seen.push(revision);
            events.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn row(name: &str, writes: &[&Write]) -> String {
    let mut took: Vec<Duration> = writes.iter().map(|write| write.took).collect();
    took.sort_unstable();
    let at = |share: f64| {
        let rank = (took.len() as f64 * share) as usize;
        took.get(rank.min(took.len().saturating_sub(1))).copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    let max = took.last().copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("| {name} | {} | {:.2} | {:.2} | {:.1} |", took.len(), at(0.5), at(0.99), max)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    let channels = connect(&options.endpoints).await?;
    if options.keys > 0 {
        let began = Instant::now();
        fill(&channels, &options).await?;
        println!(
            "filled: keys={} bytes={} seconds={:.1}",
            options.keys,
            options.value_bytes,
            began.elapsed().as_secs_f64()
        );
    }
    let (ready, mut is_ready) = mpsc::channel(options.watches.max(1));
    let events = Arc::new(AtomicU64::new(0));
    let mut watches = JoinSet::new();
    for number in 0..options.watches {
        let channel = channels[number % channels.len()].clone();
        watches.spawn(watch(channel, options.prefix.clone(), ready.clone(), events.clone()));
    }
    for _ in 0..options.watches {
        tokio::select! {
            _ = is_ready.recv() => {}
            Some(failed) = watches.join_next() => drop(failed??),
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let value = Bytes::from(vec![b'w'; options.value_bytes]);
    let mut writers = JoinSet::new();
    for writer in 0..options.writers {
        let keys = (0..options.hot_keys).filter(|number| number % options.writers == writer);
        let keys: Vec<Bytes> = keys.map(|number| key(&options.prefix, number)).collect();
        let channel = channels[usize::try_from(writer)? % channels.len()].clone();
        writers.spawn(write(channel, keys, value.clone(), stop.clone()));
    }
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let began = Instant::now();
    let program = PathBuf::from(&options.command[0]);
    let status = tokio::process::Command::new(&program).args(&options.command[1..]).status().await;
    let status = status.with_context(|| format!("starting {}", program.display()))?;
    let ended = Instant::now();
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut writes, mut failures) = (Vec::new(), Vec::new());
    while let Some(done) = writers.join_next().await {
        let (some, failed) = done?;
        writes.extend(some);
        failures.extend(failed);
    }
    let expected = writes.len() as u64 * options.watches as u64;
    let waiting = Instant::now();
    while events.load(Ordering::Relaxed) < expected
        && waiting.elapsed() < CATCH_UP
        && watches.len() == options.watches
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(is_ready);
    let mut acknowledged: Vec<i64> = writes.iter().map(|write| write.revision).collect();
    acknowledged.sort_unstable();
    let (mut cancelled, mut wrong) = (0, 0);
    while let Some(done) = watches.join_next().await {
        match done? {
            Ok(seen) if failures.is_empty() && seen == acknowledged => {}
            // After a failed write, its event may or may not exist.
            Ok(seen)
                if !failures.is_empty() && acknowledged.iter().all(|one| seen.binary_search(one).is_ok()) => {
            }
            Ok(seen) => {
                wrong += 1;
                println!("a watch saw {} events of {} writes", seen.len(), acknowledged.len());
            }
            Err(error) => {
                cancelled += 1;
                println!("{error}");
            }
        }
    }
    println!("\n| writes | count | p50 ms | p99 ms | longest ms |\n| --- | --- | --- | --- | --- |");
    let before: Vec<&Write> = writes.iter().filter(|write| write.began + write.took < began).collect();
    let during: Vec<&Write> =
        writes.iter().filter(|write| write.began < ended && write.began + write.took >= began).collect();
    println!("{}", row("before", &before));
    println!("{}", row("during", &during));
    println!(
        "\nduring: seconds={:.2} command={} failed_writes={} events={} watches={} cancelled={cancelled} wrong={wrong}",
        (ended - began).as_secs_f64(),
        if status.success() { "ok" } else { "failed" },
        failures.len(),
        events.load(Ordering::Relaxed),
        options.watches,
    );
    failures.dedup();
    failures.iter().take(5).for_each(|failure| println!("failed write: {failure}"));
    anyhow::ensure!(status.success(), "the command failed: {status}");
    anyhow::ensure!(failures.is_empty() && cancelled == 0 && wrong == 0, "clients noticed the change");
    Ok(())
}
