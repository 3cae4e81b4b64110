//! `stalls`: how long a shard delays writes while it frees compacted versions, writes a checkpoint, and answers a
//! list of everything. It measures this from outside, by writes at a steady pace timed from when each was due, and
//! from inside, by the longest turn of the shard's loop.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, RangeRequest, kv_client::KvClient,
    maintenance_client::MaintenanceClient,
};
use tokio::sync::oneshot;
use tonic::transport::Channel;

use crate::{
    bare,
    load::{self, Shape, Target},
    metrics,
    pace::{self, Pace, Sent},
    servers::{self, Server},
    stats::{Latency, median},
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// A folder on the disk for the shard.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Number of keys. Each is written twice before every compaction, which frees as many versions.
    #[arg(long, default_value_t = 1_000_000)]
    keys: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Writes per second.
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// Seconds without other work, for comparison.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds; percentiles are medians over them, and the longest time is the maximum.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// The prefix and the number of the keys that are written at a steady pace.
const PACED: &str = "/registry/leases/paced/";
const PACED_KEYS: usize = 1_000;
/// Longer than any run.
const SECONDS_MAX: u64 = 600;
/// The time of writes before and after the measured work.
const AROUND: Duration = Duration::from_millis(300);
/// Prevents checkpoints that the shard would start by itself.
const NO_CHECKPOINT: &str = "1000000000000";
const TURN: &str = "kindred_shard_turn_max_seconds";

/// The work of the shard during the writes.
#[derive(Debug, Clone, Copy)]
enum Work {
    Nothing,
    List,
    Stream,
    Checkpoint,
    Compaction,
}

impl Work {
    const ALL: [Self; 5] = [Self::Nothing, Self::List, Self::Stream, Self::Checkpoint, Self::Compaction];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing else",
            Self::List => "a list of all keys in one answer",
            Self::Stream => "the same by RangeStream",
            Self::Checkpoint => "a checkpoint",
            Self::Compaction => "a compaction of a version of each key",
        }
    }
}

/// A measurement, with times in microseconds.
struct Sample {
    seconds: f64,
    writes: usize,
    latency: Latency,
    turn: f64,
}

struct Bench {
    server: Server,
    channels: Vec<Channel>,
    /// The channel for the shard's other work.
    aside: Channel,
    target: Target,
    options: Options,
}

/// The latencies of the writes that were due in an interval, in nanoseconds.
fn between(sent: &[Sent], from: Instant, until: Instant) -> Vec<u64> {
    let due = sent.iter().filter(|sent| (from..until).contains(&sent.due));
    due.map(|sent| u64::try_from((sent.acknowledged - sent.due).as_nanos()).unwrap_or(u64::MAX)).collect()
}

impl Bench {
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(&options.dir)?;
        let flags = ["--durability-of", "leases=buffered", "--checkpoint-bytes", NO_CHECKPOINT];
        let server = servers::shard_in(dir, &flags)?;
        let shape =
            Shape { connections: 2, in_flight: 8, keys: options.keys, value_bytes: options.value_bytes };
        let target = Target::connect(&server, shape).await?;
        let paced = Shape { connections: 1, ..shape };
        let channels = load::connect(&server.endpoint, paced).await?;
        let aside = load::connect(&server.endpoint, paced).await?.remove(0);
        Ok(Self { server, channels, aside, target, options: options.clone() })
    }

    /// The longest turn of the loop since the last call, in microseconds.
    fn turn(&self) -> anyhow::Result<f64> {
        let admin = self.server.admin.as_deref().context("the ready line names no admin address")?;
        let text = metrics::fetch(admin)?;
        Ok(metrics::sum(&text, TURN).with_context(|| format!("no {TURN} among the metrics"))? * 1e6)
    }

    async fn work(&self, work: Work) -> anyhow::Result<()> {
        match work {
            Work::Nothing => tokio::time::sleep(Duration::from_secs(self.options.seconds)).await,
            Work::List => self.list("Range").await?,
            Work::Stream => self.list("RangeStream").await?,
            Work::Checkpoint => {
                MaintenanceClient::new(self.aside.clone()).defragment(DefragmentRequest {}).await?;
            }
            Work::Compaction => {
                let mut kv = KvClient::new(self.aside.clone());
                let now =
                    kv.range(RangeRequest { key: load::key(0), ..Default::default() }).await?.into_inner();
                let revision = now.header.context("header")?.revision;
                kv.compact(CompactionRequest { revision, physical: true }).await?;
            }
        }
        Ok(())
    }

    /// Reads everything on a thread of its own, which has what the shard leaves of the processors: as if this client
    /// were on another machine, only the shard's work delays the writes.
    async fn list(&self, method: &str) -> anyhow::Result<()> {
        let range = RangeRequest {
            key: load::PREFIX.into(),
            range_end: "/registry/leases/bench0".into(),
            ..Default::default()
        };
        let (path, endpoint) = (format!("/etcdserverpb.KV/{method}"), self.server.endpoint.clone());
        // RangeStreamRequest has the encoding of RangeRequest.
        let request = bare::framed(&range)?;
        let (done, read) = oneshot::channel();
        let reading = std::thread::spawn(move || {
            rustix::process::setpriority_process(None, 19).context("the priority of the reader")?;
            let read = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
                let connection = bare::connect(&endpoint).await?;
                let mut call = bare::begin(&connection, &endpoint, &path).await?;
                call.requests.send_data(request, true)?;
                call.answers().await?.1.drain().await
            });
            // Nobody waits if the bench has ended.
            let _ = done.send(());
            read
        });
        // If the thread ends without a word, its result says why.
        let _ = read.await;
        let read = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        let (bytes, least) = (read?, (self.options.keys * self.options.value_bytes) as u64);
        anyhow::ensure!(bytes > least, "a list of {bytes} bytes, and the values alone are {least}");
        Ok(())
    }

    async fn sample(&self, work: Work) -> anyhow::Result<Sample> {
        let keys: Vec<Bytes> = (0..PACED_KEYS).map(|i| format!("{PACED}node-{i:07}").into()).collect();
        let rate = self.options.rate;
        let pace = Pace {
            keys: Arc::new(keys),
            rate,
            count: rate * SECONDS_MAX,
            value_bytes: self.options.value_bytes,
        };
        let (stop, stopped) = oneshot::channel();
        let channels = self.channels.clone();
        let writing = tokio::spawn(async move { pace::write(&channels, &pace, stopped).await });
        tokio::time::sleep(AROUND).await;
        self.turn()?;
        // Wait until the effect of reading the metrics is over.
        tokio::time::sleep(AROUND).await;
        let from = Instant::now();
        let done = self.work(work).await;
        let until = Instant::now();
        tokio::time::sleep(AROUND).await;
        let turn = self.turn();
        drop(stop);
        let sent = writing.await??;
        done?;
        let nanos = between(&sent, from, until);
        Ok(Sample {
            seconds: (until - from).as_secs_f64(),
            writes: nanos.len(),
            latency: Latency::of(nanos),
            turn: turn?,
        })
    }
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    anyhow::ensure!(options.rounds > 0 && options.rate > 0 && options.keys > 0, "nothing is measured");
    let bench = Bench::start(&options).await?;
    bench.target.fill_fast().await.context("writing the keys")?;
    let mut samples: Vec<Vec<Sample>> = Work::ALL.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        bench.target.fill_fast().await.context("writing the keys again")?;
        for (work, samples) in Work::ALL.iter().zip(&mut samples) {
            samples.push(bench.sample(*work).await.context(work.name())?);
        }
    }
    println!(
        "A shard with logs (buffered) and {} keys, values of {} bytes; {} writes/s, open loop, times from when each was due; {} rounds: percentiles are\n\
         medians of them, the longest is the longest of all.\n",
        options.keys, options.value_bytes, options.rate, options.rounds
    );
    println!(
        "| meanwhile | seconds | writes | p50 us | p99 us | p99.9 us | longest us | longest turn of the loop us |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (work, samples) in Work::ALL.iter().zip(&samples) {
        let mid = |of: fn(&Sample) -> f64| median(samples.iter().map(of).collect());
        let most = |of: fn(&Sample) -> f64| samples.iter().map(of).fold(0.0, f64::max);
        println!(
            "| {} | {:.2} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            work.name(),
            mid(|sample| sample.seconds),
            samples.iter().map(|sample| sample.writes).sum::<usize>(),
            mid(|sample| sample.latency.p50),
            mid(|sample| sample.latency.p99),
            mid(|sample| sample.latency.p999),
            most(|sample| sample.latency.max),
            most(|sample| sample.turn)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_were_due_meanwhile_count() {
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let origin = at(0);
        let sent = |due: u64, took: u64| {
            let due = origin + Duration::from_millis(due);
            Sent { due, acknowledged: due + Duration::from_micros(took) }
        };
        // The first two writes were due before the interval, and the last one after it.
        let all = [sent(1, 5), sent(9, 5_000), sent(10, 7), sent(19, 20_000), sent(20, 9)];
        let seen = between(&all, origin + Duration::from_millis(10), origin + Duration::from_millis(20));
        assert_eq!(seen, [7_000, 20_000_000]);
    }
}
