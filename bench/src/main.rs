//! `kindred-bench` measures the CPU per operation of a shard alone, a router with a shard (plain, and with mTLS), a
//! real etcd, and a mem_etcd if the user has one, side by side. Rounds are interleaved over the servers, so that a
//! noisy machine disturbs all alike; compare ratios, not single numbers.
//!
//! Its subcommands measure other things; see [`Mode`].

mod bare;
mod capacity;
mod cluster;
mod cpu;
mod creates;
mod during;
mod echo;
mod fsync;
mod grpc_go;
mod headline;
mod instructions;
mod lists;
mod load;
mod measure;
mod memory;
mod metrics;
mod pace;
mod plot;
mod profile;
mod replay;
mod restart;
mod scale;
mod servers;
mod spread;
mod stalls;
mod standby;
mod stats;
mod table;
mod watcher;
mod watchers;
mod watching;

use std::{path::PathBuf, process::Command};

use anyhow::Context;
use clap::Parser;

// The servers' allocator, so that `memory` measures the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures CPU microseconds per operation beside the peers, and prints a Markdown table.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    #[command(flatten)]
    table: table::Options,
}

/// What to measure instead.
#[derive(clap::Subcommand)]
enum Mode {
    /// The cost of spreading a Kind over several stores: watch latency, CPU per event, lists and probes.
    Spread(spread::Options),
    /// What clients see while a command, such as a move, changes the cluster.
    During(during::Options),
    /// How long a shard takes to restart with all its objects, and how much memory it needs for them.
    Restart(restart::Options),
    /// The cost of a cluster with this many nodes: a mixed load of simulated nodes and apiservers, and a model of
    /// larger clusters.
    Cluster(cluster::Options),
    /// The rate of writes that are durable when acknowledged, compared with an etcd on the same disk.
    Fsync(fsync::Options),
    /// The bytes that an engine needs for an object and for an event beyond their keys and values.
    Memory(memory::Options),
    /// Whether the cost of an operation is independent of the number of keys, watches, clients and shards.
    Scale(scale::Options),
    /// The cost of an event at N watchers, the event rate that one core can deliver, and the latency of events.
    Watchers(watchers::Options),
    /// The time and CPU that a server takes to create many watches on one stream, and many streams, beside etcd.
    Creates(creates::Options),
    /// The CPU, latency and shipped bytes of a write with standbys, beside a shard alone and an etcd of three members; and
    /// how long no write is acknowledged when a member fails.
    Standby(standby::Options),
    /// How long writes wait while a shard frees compacted versions, writes checkpoints and answers long lists.
    Stalls(stalls::Options),
    /// Measure how long small writes wait while many clients list a large Kind, with the router's admission and without.
    Lists(lists::Options),
    /// Measure the loads of real clusters beside etcd: CPU in user and system mode, sleeps and system calls of an operation.
    Headline(headline::Options),
    /// Send the requests that `kindred trace` recorded to a server again, and compare their times.
    Replay(replay::Options),
    /// A server that answers with fixed bytes, to which the table compares pages.
    #[command(hide = true)]
    Echo(echo::Options),
    /// A server's instructions per operation, which do not depend on the load of the machine.
    Instructions(instructions::Options),
}

fn pinned_etcd() -> anyhow::Result<PathBuf> {
    pinned("etcd").context("pass --etcd")
}

/// A peer of the set that etcd is of.
fn pinned(name: &str) -> anyhow::Result<PathBuf> {
    let output =
        Command::new("tests/peers/install").arg("etcd").output().context("tests/peers/install etcd")?;
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .find_map(|rest| rest.split_whitespace().next().map(PathBuf::from))
        .with_context(|| format!("tests/peers/install named no {name}; run from the root of the repository"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.mode {
        Some(Mode::Spread(options)) => spread::run(options).await,
        Some(Mode::During(options)) => during::run(options).await,
        Some(Mode::Cluster(options)) => cluster::run(options).await,
        Some(Mode::Restart(options)) => restart::run(options).await,
        Some(Mode::Fsync(options)) => fsync::run(options, &pinned_etcd()?).await,
        Some(Mode::Memory(options)) => memory::run(&options).await,
        Some(Mode::Scale(options)) => scale::run(options).await,
        Some(Mode::Watchers(options)) => watchers::run(options).await,
        Some(Mode::Creates(options)) => creates::run(options, &pinned_etcd()?).await,
        Some(Mode::Stalls(options)) => stalls::run(options).await,
        Some(Mode::Headline(options)) => headline::run(options).await,
        Some(Mode::Lists(options)) => lists::run(options).await,
        Some(Mode::Standby(options)) => standby::run(options).await,
        Some(Mode::Replay(options)) => replay::run(options).await,
        Some(Mode::Echo(options)) => echo::run(options).await,
        Some(Mode::Instructions(options)) => instructions::run(options).await,
        None => table::run(args.table).await,
    }
}
