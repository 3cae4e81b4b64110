//! `watchers`: the CPU of an event in a router and its shard at N watchers of one Kind, the cost of one more
//! watcher, the number of events per second that one core can deliver to some watchers, and the latency of events
//! at four fifths of that rate.
//!
//! Transactions of several puts produce the events, so that producing them costs little beside delivering them. All
//! loads are open loops, timed from when a transaction was due.

use std::{sync::Arc, time::Instant};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::kv_client::KvClient;
use tokio::{sync::mpsc, task::JoinSet};
use tonic::transport::Channel;

use crate::{
    cpu,
    load::{self, Shape},
    pace,
    servers::{self, Server},
    stats::{Latency, median},
    table::turns,
    watching,
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Numbers of watchers, each on its own connection. The cost of a further watcher is relative to the first
    /// number above zero.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 2, 5, 10, 20, 50])]
    watchers: Vec<usize>,
    /// Events per second while the number of watchers varies.
    #[arg(long, default_value_t = 10_000)]
    rate: u64,
    /// Event rates per second to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 25_000, 50_000])]
    rates: Vec<u64>,
    /// Number of watchers while the rate varies.
    #[arg(long, default_value_t = 20)]
    watched_by: usize,
    /// Events per write.
    #[arg(long, default_value_t = 10)]
    events_per_write: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
    /// Number of keys, written in turn.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Seconds of each load.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Interleaved rounds; the tables show medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

const PREFIX: &str = "/registry/leases/watched/";
/// The number of the writers' connections.
const CONNECTIONS: usize = 4;
/// The capacity of the queue of due writes, which is more than any run has.
const DUE_MAX: usize = 1 << 20;
/// The divisor of a load for its warm-up.
const WARM_UP: u64 = 5;
/// The goal for the cost of one more watcher, in microseconds per event.
const AIM_US: f64 = 0.3;

/// A measurement, with CPU in microseconds per event.
#[derive(Debug, Clone, Copy)]
struct Sample {
    router: f64,
    shard: f64,
    /// The share of its core that each process used, and the cores used by all of them and this program.
    router_busy: f64,
    shard_busy: f64,
    all_busy: f64,
    rate: f64,
    /// The latencies of events at watchers, and of the writes' answers.
    events: Latency,
    writes: Latency,
}

fn mid(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(of).collect())
}

/// The slope of the regression line.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    above / below
}

struct Bench {
    server: Server,
    channels: Vec<Channel>,
    origin: Instant,
    options: Options,
}

impl Bench {
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let server = servers::routed()?;
        let shape = Shape { connections: CONNECTIONS, in_flight: 1, keys: 0, value_bytes: 0 };
        let channels = load::connect(&server.endpoint, shape).await?;
        Ok(Self { server, channels, origin: Instant::now(), options: options.clone() })
    }

    fn nanos(&self, role: &str) -> anyhow::Result<f64> {
        let pid = self.server.pids.iter().find(|(name, _)| name == role).context("no such process")?.1;
        Ok(cpu::process_nanos(pid)? as f64)
    }

    /// The CPU nanoseconds of the router, the shard and this program.
    fn used(&self) -> anyhow::Result<[f64; 3]> {
        let own = cpu::process_nanos(std::process::id())? as f64;
        Ok([self.nanos("router")?, self.nanos("shard")?, own])
    }

    /// Makes `writes` writes at `rate` per second; returns their latencies in nanoseconds.
    async fn write(&self, writes: u64, rate: u64) -> anyhow::Result<Vec<u64>> {
        let (to, mut due) = mpsc::channel(DUE_MAX);
        let clock = std::thread::spawn(move || pace::tick(rate, writes, &to));
        let puts = self.options.events_per_write as usize;
        let keys: Vec<Bytes> =
            (0..self.options.keys).map(|i| format!("{PREFIX}node-{i:07}").into()).collect();
        let keys = Arc::new(keys);
        let (mut running, mut late, mut number) = (JoinSet::new(), Vec::new(), 0);
        loop {
            tokio::select! {
                next = due.recv() => {
                    let Some(at) = next else { break };
                    let mut kv = KvClient::new(self.channels[number % self.channels.len()].clone());
                    let since = u64::try_from(at.saturating_duration_since(self.origin).as_micros())?;
                    let value = pace::value(since, self.options.value_bytes);
                    let (first, keys) = (number * puts, keys.clone());
                    number += 1;
                    running.spawn(async move {
                        let puts = (first..first + puts).map(|i| (keys[i % keys.len()].clone(), value.clone()));
                        kv.txn(load::puts_txn(puts)).await?;
                        anyhow::Ok(u64::try_from(at.elapsed().as_nanos())?)
                    });
                }
                Some(done) = running.join_next(), if !running.is_empty() => late.push(done??),
            }
        }
        while let Some(done) = running.join_next().await {
            late.push(done??);
        }
        clock.join().ok().context("the clock's thread ended badly")?;
        Ok(late)
    }

    /// Delivers `rate` events per second to some watchers.
    async fn sample(&self, watchers: usize, rate: u64) -> anyhow::Result<Sample> {
        let options = &self.options;
        let streams = vec![vec![watching::prefix(PREFIX)?]; watchers];
        let watching = watching::start(&self.server.endpoint, streams, Some(self.origin)).await?;
        let rate = (rate / options.events_per_write).max(1);
        let (warm_up, writes) = ((rate * options.seconds / WARM_UP).max(1), rate * options.seconds);
        self.write(warm_up, rate).await?;
        watching.wait(warm_up * options.events_per_write).await?;
        let (before, began) = (self.used()?, Instant::now());
        let late = self.write(writes, rate).await?;
        watching.wait((warm_up + writes) * options.events_per_write).await?;
        let (after, took) = (self.used()?, began.elapsed().as_nanos() as f64);
        let events = (writes * options.events_per_write) as f64;
        let [router, shard, own] = std::array::from_fn(|at| after[at] - before[at]);
        let skipped = usize::try_from(warm_up * options.events_per_write)?;
        let seen = watching.finish().await?;
        let seen = seen.iter().flat_map(|late| &late[skipped.min(late.len())..]);
        let cores = std::thread::available_parallelism()?.get() as f64;
        Ok(Sample {
            router: router / 1e3 / events,
            shard: shard / 1e3 / events,
            router_busy: router / took,
            shard_busy: shard / took,
            all_busy: (router + shard + own) / took / cores,
            rate: events / took * 1e9,
            events: Latency::of(seen.map(|micros| u64::from(*micros) * 1_000).collect()),
            writes: Latency::of(late),
        })
    }
}

pub async fn run(options: Options) -> anyhow::Result<()> {
    let fits = options.rounds > 0 && options.seconds > 0 && options.rate > 0 && !options.rates.contains(&0);
    anyhow::ensure!(fits && options.keys > 0 && options.events_per_write > 0, "nothing is measured");
    let bench = Bench::start(&options).await?;
    // A router keeps a feed for some time after its last watch, so unwatched loads use another router.
    let unwatched = Bench::start(&options).await?;
    by_watchers(&bench, &unwatched).await?;
    let capacity = by_rate(&bench, &unwatched).await?;
    late(&bench, capacity).await
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn by_watchers(bench: &Bench, unwatched: &Bench) -> anyhow::Result<()> {
    let options = &bench.options;
    let mut samples = vec![Vec::new(); options.watchers.len()];
    for round in 0..options.rounds {
        for at in turns(options.watchers.len(), round) {
            let watchers = options.watchers[at];
            let bench = if watchers == 0 { unwatched } else { bench };
            let sample = bench.sample(watchers, options.rate).await;
            samples[at].push(sample.with_context(|| format!("{watchers} watchers"))?);
        }
    }
    println!(
        "One router, one shard; values of {} bytes, writes of {} events each, every watch on a connection of its own; open loop, {} s each, times from \
         when a\nwrite was due; medians of {} interleaved rounds. {} events a second:\n",
        options.value_bytes, options.events_per_write, options.seconds, options.rounds, options.rate
    );
    println!(
        "| watchers | router us/event, its share of the write included | shard us/event | one more watcher, us/event | event p50, p99 ms | cores busy |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let points: Vec<(f64, f64)> =
        options.watchers.iter().zip(&samples).map(|(n, s)| (*n as f64, mid(s, |s| s.router))).collect();
    let first = points.iter().find(|point| point.0 > 0.0).copied();
    for ((watchers, samples), point) in options.watchers.iter().zip(&samples).zip(&points) {
        let more = first.filter(|first| point.0 > first.0);
        let more =
            more.map_or(String::new(), |first| format!("{:.2}", (point.1 - first.1) / (point.0 - first.0)));
        println!(
            "| {watchers} | {:.2} | {:.2} | {more} | {} | {:.0} % |",
            point.1,
            mid(samples, |s| s.shard),
            if *watchers == 0 { String::new() } else { times(samples, |s| s.events) },
            100.0 * mid(samples, |s| s.all_busy)
        );
    }
    let watched: Vec<(f64, f64)> = points.into_iter().filter(|point| point.0 > 0.0).collect();
    let shards = options.watchers.iter().zip(&samples).filter(|(n, _)| **n > 0);
    let shards: Vec<f64> = shards.map(|(_, samples)| mid(samples, |s| s.shard)).collect();
    let over = |than: fn(f64, f64) -> f64| shards.iter().copied().fold(f64::NAN, than);
    println!(
        "\nOne more watcher: {:.2} us of the router for an event (aim: at most {AIM_US}). The shard's part is between {:.2} and {:.2} us, whatever their number.\n",
        slope(&watched),
        over(f64::min),
        over(f64::max)
    );
    Ok(())
}

fn times(samples: &[Sample], of: fn(&Sample) -> Latency) -> String {
    let ms = |part: fn(Latency) -> f64| mid(samples, |sample| part(of(sample)) / 1e3);
    format!("{:.2}, {:.2}", ms(|latency| latency.p50), ms(|latency| latency.p99))
}

/// Measures at each rate; returns the rate at which the router's core would be full, by the cost at the highest
/// rate.
#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn by_rate(bench: &Bench, unwatched: &Bench) -> anyhow::Result<f64> {
    let options = &bench.options;
    let (mut watched, mut alone) =
        (vec![Vec::new(); options.rates.len()], vec![Vec::new(); options.rates.len()]);
    for round in 0..options.rounds {
        for at in turns(options.rates.len(), round) {
            let rate = options.rates[at];
            let context = || format!("{rate} events a second");
            alone[at].push(unwatched.sample(0, rate).await.with_context(context)?);
            watched[at].push(bench.sample(options.watched_by, rate).await.with_context(context)?);
        }
    }
    println!("{} watchers, at so many events a second:\n", options.watched_by);
    println!(
        "| events/s | came | router us/event | of which the write | router's core | shard's core | all cores busy | event p50, p99 ms | a router's core \
         has room for, events/s | without the writes |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut capacity = 0.0;
    for ((rate, samples), alone) in options.rates.iter().zip(&watched).zip(&alone) {
        let (with, write) = (mid(samples, |s| s.router), mid(alone, |s| s.router));
        capacity = 1e6 / with;
        println!(
            "| {rate} | {:.0} | {with:.2} | {write:.2} | {:.0} % | {:.0} % | {:.0} % | {} | {capacity:.0} | {:.0} |",
            mid(samples, |s| s.rate),
            100.0 * mid(samples, |s| s.router_busy),
            100.0 * mid(samples, |s| s.shard_busy),
            100.0 * mid(samples, |s| s.all_busy),
            times(samples, |s| s.events),
            1e6 / (with - write)
        );
    }
    println!();
    Ok(capacity)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn late(bench: &Bench, capacity: f64) -> anyhow::Result<()> {
    let options = &bench.options;
    let rate = (capacity * 0.8) as u64;
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        samples.push(bench.sample(options.watched_by, rate).await?);
    }
    println!(
        "{} watchers at four fifths of that, {rate} events a second, the writes included:\n",
        options.watched_by
    );
    println!("| | p50 ms | p99 ms | p99.9 ms | longest ms | router's core | shard's core | all cores busy |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, are_events) in [("events at the watchers", true), ("answers to the writes", false)] {
        let of = |sample: &Sample| if are_events { sample.events } else { sample.writes };
        let ms = |part: fn(Latency) -> f64| mid(&samples, |sample| part(of(sample)) / 1e3);
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {:.1} | {:.0} % | {:.0} % | {:.0} % |",
            ms(|latency| latency.p50),
            ms(|latency| latency.p99),
            ms(|latency| latency.p999),
            ms(|latency| latency.max),
            100.0 * mid(&samples, |s| s.router_busy),
            100.0 * mid(&samples, |s| s.shard_busy),
            100.0 * mid(&samples, |s| s.all_busy)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_that_of_the_nearest_line() {
        let line: Vec<(f64, f64)> = [1.0, 2.0, 5.0, 50.0].map(|x| (x, 3.0 + 0.25 * x)).into();
        assert!((slope(&line) - 0.25).abs() < 1e-12);
        let bent = [(0.0, 0.0), (1.0, 2.0), (2.0, 2.0)];
        assert!((slope(&bent) - 1.0).abs() < 1e-12);
        assert!(slope(&[(1.0, 1.0)]).is_nan());
    }
}
