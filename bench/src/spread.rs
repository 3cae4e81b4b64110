//! `spread`: the cost of spreading a Kind over several stores. One router serves three Kinds: on a single store, in
//! three name ranges, and on a ring of four. Everything is measured on all three in interleaved rounds.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest, kv_client::KvClient};
use tokio::sync::oneshot;
use tonic::transport::Channel;

use crate::{
    cpu,
    load::{self, Shape},
    pace::{self, Pace},
    servers::{self, Server},
    stats::median,
    watcher,
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Interleaved rounds; the tables show medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Writes per second of the steady load.
    #[arg(long, default_value_t = 2000)]
    rate: u64,
    /// Writes per second of the light load, all to one key, so that the other stores of the Kind are idle.
    #[arg(long, default_value_t = 100)]
    light_rate: u64,
    /// Seconds of each load with watchers.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Objects of the small list, and keys written in watched loads.
    #[arg(long, default_value_t = 500)]
    small: usize,
    /// Objects of the large list.
    #[arg(long, default_value_t = 10_000)]
    large: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
    /// Leave out the lists and probes.
    #[arg(long)]
    watches_only: bool,
}

const SHARDS: [&str; 9] =
    ["default", "one", "range-a", "range-b", "range-c", "ring-a", "ring-b", "ring-c", "ring-d"];
const PARTITIONS: &str = "\
- {metadata: {name: one}, resource: configmaps, serviceGroupId: one}
- {metadata: {name: range-a}, resource: pods, rangeEnd: bench/5555, isRangeEndValid: true, serviceGroupId: range-a}
- {metadata: {name: range-b}, resource: pods, rangeStart: bench/5555, isRangeStartValid: true, rangeEnd: bench/aaaa, isRangeEndValid: true, serviceGroupId: range-b}
- {metadata: {name: range-c}, resource: pods, rangeStart: bench/aaaa, isRangeStartValid: true, serviceGroupId: range-c}
- {metadata: {name: ring}, resource: leases, ring: {stores: [ring-a, ring-b, ring-c, ring-d]}}
";

/// A Kind under test: its name in tables, its resource, and the prefix of its shards' names.
struct Kind {
    name: &'static str,
    resource: &'static str,
    shards: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind { name: "one store", resource: "configmaps", shards: "one" },
    Kind { name: "3 name ranges", resource: "pods", shards: "range-" },
    Kind { name: "4-ring", resource: "leases", shards: "ring-" },
];

impl Kind {
    fn prefix(&self) -> String {
        format!("/registry/{}/", self.resource)
    }

    /// Keys spread evenly over the name ranges, with neighbours in different ranges.
    fn keys(&self, count: usize) -> Vec<Bytes> {
        let name = |i: usize| format!("{}bench/{:04x}-{i:05}", self.prefix(), (i * 40_503) & 0xffff);
        (0..count).map(|i| name(i).into()).collect()
    }
}

/// The CPU nanoseconds of the router and of a Kind's shards.
#[derive(Clone, Copy)]
struct Cpu {
    router: f64,
    shards: f64,
}

impl Cpu {
    fn now(server: &Server, kind: &Kind) -> anyhow::Result<Self> {
        let of = |wanted: &dyn Fn(&str) -> bool| {
            let pids = server.pids.iter().filter(|(role, _)| wanted(role));
            pids.map(|(_, pid)| cpu::process_nanos(*pid)).sum::<anyhow::Result<u64>>()
        };
        let router = of(&|role| role == "router")? as f64;
        Ok(Self { router, shards: of(&|role| role.starts_with(kind.shards))? as f64 })
    }

    /// The microseconds per operation since `before`.
    fn since(self, before: Self, ops: f64) -> Self {
        let each = |now: f64, before: f64| (now - before) / 1e3 / ops;
        Self { router: each(self.router, before.router), shards: each(self.shards, before.shards) }
    }

    fn total(self) -> f64 {
        self.router + self.shards
    }
}

/// A measurement, with latencies in microseconds.
#[derive(Clone, Copy)]
struct Sample {
    cpu: Cpu,
    acknowledged: f64,
    p50: f64,
    p99: f64,
}

/// The value at a quantile, in microseconds.
fn rank(latencies: &mut [Duration], share: f64) -> f64 {
    latencies.sort_unstable();
    let at = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
    latencies.get(at).map_or(0.0, |latency| latency.as_nanos() as f64 / 1e3)
}

fn mid(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(of).collect())
}

#[derive(Clone, Copy)]
struct Watched {
    name: &'static str,
    rate: u64,
    keys: usize,
    watchers: usize,
}

struct Bench {
    server: Server,
    channels: Vec<Channel>,
    options: Options,
}

impl Bench {
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let server = servers::behind_router("router + 9 shards", &SHARDS, PARTITIONS)?;
        let shape = Shape { connections: 4, in_flight: 1, keys: 0, value_bytes: 0 };
        let channels = load::connect(&server.endpoint, shape).await?;
        let bench = Self { server, channels, options: options.clone() };
        bench.fill(options.small).await.context("writing the objects")?;
        Ok(bench)
    }
}

impl Bench {
    async fn fill(&self, count: usize) -> anyhow::Result<()> {
        let value = pace::value(0, self.options.value_bytes);
        for kind in &KINDS {
            let mut kv = KvClient::new(self.channels[0].clone());
            for key in kind.keys(count) {
                kv.put(PutRequest { key, value: value.clone(), ..Default::default() }).await?;
            }
        }
        Ok(())
    }

    async fn watched(&self, kind: &Kind, load: Watched) -> anyhow::Result<Sample> {
        let count = load.rate * self.options.seconds;
        let keys = Arc::new(kind.keys(load.keys));
        let pace = Pace { keys, rate: load.rate, count, value_bytes: self.options.value_bytes };
        let mut watchers = Vec::new();
        for at in 0..load.watchers {
            let channel = &self.channels[at % self.channels.len()];
            watchers.push(watcher::start(channel, &kind.prefix(), count).await?);
        }
        let before = Cpu::now(&self.server, kind)?;
        let (_go_on, stop) = oneshot::channel();
        let sent = pace::write(&self.channels, &pace, stop).await?;
        let mut seen = Vec::new();
        for watcher in watchers {
            seen.push(watcher.await??);
        }
        let cpu = Cpu::now(&self.server, kind)?.since(before, count as f64);
        // Leave out the first tenth as warm-up.
        let measured = sent.len() / 10..sent.len();
        let mut acknowledged: Vec<_> =
            sent[measured.clone()].iter().map(|sent| sent.acknowledged - sent.due).collect();
        let events = seen.first().map_or(&[][..], |seen| &seen[measured.clone()]);
        let mut events: Vec<_> =
            events.iter().zip(&sent[measured]).map(|(at, sent)| *at - sent.due).collect();
        Ok(Sample {
            cpu,
            acknowledged: rank(&mut acknowledged, 0.5),
            p50: rank(&mut events, 0.5),
            p99: rank(&mut events, 0.99),
        })
    }

    /// Makes `ops` reads, `in_flight` at a time; each must return `count` keys.
    async fn reads(
        &self,
        kind: &Kind,
        read: &RangeRequest,
        ops: usize,
        in_flight: usize,
        count: usize,
    ) -> anyhow::Result<Sample> {
        let one = |channel: Channel, ops: usize| {
            let read = read.clone();
            tokio::spawn(async move {
                let mut kv = KvClient::new(channel).max_decoding_message_size(usize::MAX);
                let mut latencies = Vec::with_capacity(ops);
                for _ in 0..ops {
                    let began = std::time::Instant::now();
                    let answer = kv.range(read.clone()).await?.into_inner();
                    latencies.push(began.elapsed());
                    anyhow::ensure!(answer.count == count as i64, "{} objects, not {count}", answer.count);
                }
                anyhow::Ok(latencies)
            })
        };
        one(self.channels[0].clone(), (ops / 10).max(2)).await??;
        let before = Cpu::now(&self.server, kind)?;
        let workers: Vec<_> = (0..in_flight)
            .map(|at| one(self.channels[at % self.channels.len()].clone(), (ops / in_flight).max(1)))
            .collect();
        let mut latencies = Vec::new();
        for worker in workers {
            latencies.extend(worker.await??);
        }
        let cpu = Cpu::now(&self.server, kind)?.since(before, latencies.len() as f64);
        let p50 = rank(&mut latencies, 0.5);
        Ok(Sample { cpu, acknowledged: 0.0, p50, p99: rank(&mut latencies, 0.99) })
    }

    /// The same during writes to the Kind, whose CPU is included.
    async fn reads_beside_writes(
        &self,
        kind: &Kind,
        read: &RangeRequest,
        ops: usize,
        count: usize,
    ) -> anyhow::Result<Sample> {
        let keys = Arc::new(kind.keys(count));
        let pace = Pace { keys, rate: 200, count: 200 * 600, value_bytes: self.options.value_bytes };
        let (stop, stopped) = oneshot::channel();
        let channels = self.channels.clone();
        let writing = tokio::spawn(async move { pace::write(&channels, &pace, stopped).await });
        let sample = self.reads(kind, read, ops, 1, count).await;
        drop(stop);
        writing.await??;
        sample
    }
}

pub async fn run(options: Options) -> anyhow::Result<()> {
    let bench = Bench::start(&options).await?;
    {
        // A router keeps a feed for some time after its last watch, so unwatched loads use another router.
        let unwatched = Bench::start(&options).await?;
        watches(&bench, &unwatched).await?;
    }
    if !bench.options.watches_only {
        lists(&bench).await?;
    }
    Ok(())
}

#[allow(clippy::print_stdout)]
async fn watches(bench: &Bench, unwatched: &Bench) -> anyhow::Result<()> {
    let options = &bench.options;
    let light = Watched { name: "light", rate: options.light_rate, keys: 1, watchers: 0 };
    let steady = Watched { name: "steady", rate: options.rate, keys: options.small, watchers: 0 };
    let loads = [
        light,
        Watched { watchers: 1, ..light },
        steady,
        Watched { watchers: 1, ..steady },
        Watched { watchers: 20, ..steady },
    ];
    // The samples by load, then by Kind.
    let mut samples = vec![vec![Vec::new(); KINDS.len()]; loads.len()];
    for _ in 0..options.rounds {
        for (load, samples) in loads.iter().zip(&mut samples) {
            let bench = if load.watchers == 0 { unwatched } else { bench };
            for (kind, samples) in KINDS.iter().zip(samples) {
                samples.push(bench.watched(kind, *load).await.context(kind.name)?);
            }
        }
    }
    println!(
        "Watch: {} B values, light = {} writes/s to one key (its sibling stores idle), steady = {} writes/s over {} keys,\n\
         {} s each, open loop, times from when a write was due; medians of {} interleaved rounds.\n",
        options.value_bytes, options.light_rate, options.rate, options.small, options.seconds, options.rounds
    );
    println!("| load | Kind on | acknowledged p50 us | event p50 us | vs one | event p99 us | vs one |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (load, samples) in loads.iter().zip(&samples).filter(|(load, _)| load.watchers == 1) {
        let first = (mid(&samples[0], |s| s.p50), mid(&samples[0], |s| s.p99));
        for (kind, samples) in KINDS.iter().zip(samples) {
            let (p50, p99) = (mid(samples, |s| s.p50), mid(samples, |s| s.p99));
            println!(
                "| {} | {} | {:.0} | {p50:.0} | {:.2} | {p99:.0} | {:.2} |",
                load.name,
                kind.name,
                mid(samples, |s| s.acknowledged),
                p50 / first.0,
                p99 / first.1,
            );
        }
    }
    println!(
        "\n| load | watchers | Kind on | CPU us/event, the write included | of which router | shards | vs one | added by the watchers | vs one |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (at, load) in loads.iter().enumerate() {
        let unwatched = loads.iter().position(|other| other.rate == load.rate && other.watchers == 0);
        let unwatched = &samples[unwatched.unwrap_or(at)];
        let total = |samples: &[Sample]| mid(samples, |s| s.cpu.total());
        let added = |kind: usize| total(&samples[at][kind]) - total(&unwatched[kind]);
        for (index, kind) in KINDS.iter().enumerate() {
            let here = &samples[at][index];
            let watching = match load.watchers {
                0 => "| ".to_owned(),
                _ => format!("{:.1} | {:.2}", added(index), added(index) / added(0)),
            };
            println!(
                "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.2} | {watching} |",
                load.name,
                load.watchers,
                kind.name,
                total(here),
                mid(here, |s| s.cpu.router),
                mid(here, |s| s.cpu.shards),
                total(here) / total(&samples[at][0]),
            );
        }
    }
    println!("\n| one more watcher, of 20 | router CPU us/event |\n| --- | --- |");
    for (index, kind) in KINDS.iter().enumerate() {
        let router = |at: usize| mid(&samples[at][index], |s| s.cpu.router);
        println!("| {} | {:.2} |", kind.name, (router(4) - router(3)) / 19.0);
    }
    Ok(())
}

#[allow(clippy::print_stdout)]
async fn lists(bench: &Bench) -> anyhow::Result<()> {
    let options = &bench.options;
    println!("\nReads, closed loop: lists one at a time, probes 16 at a time.\n");
    println!("| read | Kind on | CPU us | of which router | shards | vs one | p50 us | vs one | p99 us |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let all = |kind: &Kind, limit: i64| {
        let end = format!("/registry/{}0", kind.resource);
        RangeRequest { key: kind.prefix().into(), range_end: end.into(), limit, ..Default::default() }
    };
    let key = |kind: &Kind| {
        let key = format!("/registry/{}", kind.resource);
        RangeRequest { key: key.into(), ..Default::default() }
    };
    let (small, large) = (options.small, options.large);
    let rows = [
        (format!("list {small}"), 300),
        (format!("list {small} beside 200 writes/s"), 300),
        ("probe: `limit=1`".to_owned(), 8000),
        ("probe: `/registry/KIND`".to_owned(), 8000),
        (format!("list {large}"), 30),
    ];
    for (row, (name, ops)) in rows.iter().enumerate() {
        if row == 4 {
            bench.fill(large).await.context("writing the objects")?;
        }
        let mut samples = vec![Vec::new(); KINDS.len()];
        for _ in 0..options.rounds {
            for (kind, samples) in KINDS.iter().zip(&mut samples) {
                let sample = match row {
                    0 => bench.reads(kind, &all(kind, 0), *ops, 1, small).await,
                    1 => bench.reads_beside_writes(kind, &all(kind, 0), *ops, small).await,
                    2 => bench.reads(kind, &all(kind, 1), *ops, 16, small).await,
                    3 => bench.reads(kind, &key(kind), *ops, 16, 0).await,
                    _ => bench.reads(kind, &all(kind, 0), *ops, 1, large).await,
                };
                samples.push(sample.with_context(|| format!("{name}, {}", kind.name))?);
            }
        }
        let total = |samples: &[Sample]| mid(samples, |s| s.cpu.total());
        let p50 = |samples: &[Sample]| mid(samples, |s| s.p50);
        for (kind, here) in KINDS.iter().zip(&samples) {
            println!(
                "| {name} | {} | {:.1} | {:.1} | {:.1} | {:.2} | {:.0} | {:.2} | {:.0} |",
                kind.name,
                total(here),
                mid(here, |s| s.cpu.router),
                mid(here, |s| s.cpu.shards),
                total(here) / total(&samples[0]),
                p50(here),
                p50(here) / p50(&samples[0]),
                mid(here, |s| s.p99),
            );
        }
    }
    Ok(())
}
