//! `kindred-bench`: CPU per operation of a shard alone, a router with a shard, and a real etcd, side by side in one run.
//! Rounds are interleaved over the servers, so that a noisy machine disturbs all alike; ratios count, not single numbers.
//! `kindred-bench during` runs a command under load, `kindred-bench spread` measures what it costs that a Kind is on several stores,
//! `kindred-bench restart` how long a shard takes to come back, `kindred-bench fsync` what it writes when each write is synced, and
//! `kindred-bench cluster` what a cluster of N nodes costs.

mod capacity;
mod cluster;
mod cpu;
mod during;
mod fsync;
mod instructions;
mod load;
mod pace;
mod restart;
mod servers;
mod spread;
mod watcher;

use std::{path::PathBuf, process::Command};

use anyhow::Context;
use clap::Parser;

use load::{Kind, Shape};
use servers::Server;

/// Measures CPU microseconds per operation and prints a Markdown table.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Operations a round and server; lists are a fiftieth of it.
    #[arg(long, default_value_t = 40_000)]
    ops: u64,
    /// Interleaved rounds; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Calls in flight over all connections.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Keys.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
    /// The loads to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Put, Kind::TxnPut, Kind::Get, Kind::Probe, Kind::List])]
    loads: Vec<Kind>,
    /// The etcd to compare with; by default the pinned one, which `tests/peers/install etcd` builds.
    #[arg(long)]
    etcd: Option<PathBuf>,
}

/// What to measure instead.
#[derive(clap::Subcommand)]
enum Mode {
    /// What it costs that a Kind is on several stores: watch latency, CPU per event, lists and probes.
    Spread(spread::Options),
    /// What clients see while a command changes the cluster, such as a move.
    During(during::Options),
    /// How long a shard takes to come back with all its objects, and the memory that it holds them in.
    Restart(restart::Options),
    /// What a cluster of so many nodes costs: a mixed load of simulated nodes and apiservers, and what a model says of larger ones.
    Cluster(cluster::Options),
    /// Writes a second that are on disk when they are acknowledged, beside an etcd on the same disk.
    Fsync(fsync::Options),
    /// Instructions of a server for one operation, which a busy machine does not change.
    Instructions(instructions::Options),
}

/// One measured round: CPU microseconds per operation by role, and latencies.
#[derive(Clone)]
struct Sample {
    cpu_us: Vec<(String, f64)>,
    p50_us: f64,
    p99_us: f64,
    ops_per_second: f64,
}

fn pinned_etcd() -> anyhow::Result<PathBuf> {
    let output =
        Command::new("tests/peers/install").arg("etcd").output().context("tests/peers/install etcd")?;
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .find_map(|line| line.strip_prefix("etcd ")?.split_whitespace().next().map(PathBuf::from))
        .context("tests/peers/install named no etcd; run from the root of the repository or pass --etcd")
}

async fn measure(server: &Server, kind: Kind, shape: Shape, ops: u64) -> anyhow::Result<Sample> {
    let channels = load::connect(&server.endpoint, shape).await?;
    let pids: Vec<u32> = server.pids.iter().map(|(_, pid)| *pid).collect();
    load::run(&channels, kind, shape, ops / 10).await?;
    let before: Vec<u64> = pids.iter().map(|pid| cpu::process_nanos(*pid)).collect::<Result<_, _>>()?;
    let began = std::time::Instant::now();
    let outcome = load::run(&channels, kind, shape, ops).await?;
    let took = began.elapsed();
    let cpu_us = server
        .pids
        .iter()
        .zip(before)
        .map(|((role, pid), before)| {
            let used = cpu::process_nanos(*pid)? - before;
            anyhow::Ok((role.clone(), used as f64 / 1e3 / outcome.ops as f64))
        })
        .collect::<Result<_, _>>()?;
    Ok(Sample {
        cpu_us,
        p50_us: outcome.p50.as_nanos() as f64 / 1e3,
        p99_us: outcome.p99.as_nanos() as f64 / 1e3,
        ops_per_second: outcome.ops as f64 / took.as_secs_f64(),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn total(sample: &Sample) -> f64 {
    sample.cpu_us.iter().map(|(_, us)| us).sum()
}

#[allow(clippy::print_stdout)]
fn row(kind: Kind, name: &str, samples: &[Sample], etcd: f64) {
    let roles: Vec<String> = (0..samples[0].cpu_us.len())
        .map(|i| {
            format!(
                "{} {:.1}",
                samples[0].cpu_us[i].0,
                median(samples.iter().map(|s| s.cpu_us[i].1).collect())
            )
        })
        .collect();
    let all: Vec<f64> = samples.iter().map(total).collect();
    let (low, high) = (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
    let us = median(all);
    println!(
        "| {} | {name} | {us:.1} ({low:.1}-{high:.1}) | {} | {:.2} | {:.0} | {:.0} |",
        kind.name(),
        roles.join(", "),
        us / etcd,
        median(samples.iter().map(|s| s.p50_us).collect()),
        median(samples.iter().map(|s| s.p99_us).collect()),
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.mode {
        Some(Mode::Spread(options)) => return spread::run(options).await,
        Some(Mode::During(options)) => return during::run(options).await,
        Some(Mode::Cluster(options)) => return cluster::run(options).await,
        Some(Mode::Restart(options)) => return restart::run(options).await,
        Some(Mode::Fsync(options)) => {
            let etcd = args.etcd.clone().map_or_else(pinned_etcd, Ok)?;
            return fsync::run(options, &etcd).await;
        }
        Some(Mode::Instructions(options)) => return instructions::run(options).await,
        None => {}
    }
    let shape = Shape {
        connections: args.connections,
        in_flight: args.in_flight,
        keys: args.keys,
        value_bytes: args.value_bytes,
    };
    let etcd = args.etcd.clone().map_or_else(pinned_etcd, Ok)?;
    let servers = [servers::etcd(&etcd)?, servers::shard()?, servers::routed()?];
    for server in &servers {
        let channels = load::connect(&server.endpoint, shape).await?;
        load::fill(&channels, shape).await?;
    }
    #[allow(clippy::print_stdout)]
    {
        println!(
            "{} B values, {} keys, {} in flight on {} connections, {} rounds of {} operations, medians\n",
            args.value_bytes, args.keys, args.in_flight, args.connections, args.rounds, args.ops
        );
        println!("| load | server | CPU us/op (min-max) | of which | vs etcd | p50 us | p99 us |");
        println!("| --- | --- | --- | --- | --- | --- | --- |");
    }
    for kind in &args.loads {
        let ops = if *kind == Kind::List { (args.ops / 50).max(100) } else { args.ops };
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); servers.len()];
        for _ in 0..args.rounds {
            for (i, server) in servers.iter().enumerate() {
                samples[i].push(measure(server, *kind, shape, ops).await?);
            }
        }
        let reference = median(samples[0].iter().map(total).collect());
        for (server, samples) in servers.iter().zip(&samples) {
            row(*kind, server.name, samples, reference);
        }
    }
    Ok(())
}
