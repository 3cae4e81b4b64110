//! `kindred-bench`: CPU per operation of a shard alone, a router with a shard (plain, and with mTLS), a real etcd, and a
//! mem_etcd where the user has one, side by side in one run. Rounds are interleaved over the servers, so that a noisy machine
//! disturbs all alike; ratios count, not single numbers.
//! `kindred-bench during` runs a command under load, `kindred-bench spread` measures what it costs that a Kind is on several stores,
//! `kindred-bench restart` how long a shard takes to come back, `kindred-bench fsync` what it writes when each write is synced,
//! `kindred-bench scale` whether an operation costs the same however many keys, watches, clients and shards there are,
//! `kindred-bench watchers` what an event costs at many watchers, `kindred-bench stalls` for how long a shard's own work holds writes up,
//! `kindred-bench memory` what an engine takes for an object, and `kindred-bench cluster` what a cluster of N nodes costs.

mod bare;
mod capacity;
mod cluster;
mod cpu;
mod during;
mod echo;
mod fsync;
mod instructions;
mod load;
mod measure;
mod memory;
mod pace;
mod plot;
mod profile;
mod restart;
mod scale;
mod servers;
mod spread;
mod stalls;
mod stats;
mod table;
mod watcher;
mod watchers;
mod watching;

use std::{path::PathBuf, process::Command};

use anyhow::Context;
use clap::Parser;

// What servers have, so that `memory` measures the same.
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
    /// Bytes that the engine takes for an object, and for an event, beyond their keys and values.
    Memory(memory::Options),
    /// Whether an operation costs the same however many keys, watches, clients and shards there are.
    Scale(scale::Options),
    /// What an event costs at N watchers, how many events a core can give out, and how late they are.
    Watchers(watchers::Options),
    /// For how long writes wait while a shard frees what was compacted, writes checkpoints and answers long lists.
    Stalls(stalls::Options),
    /// A server that answers with bytes that it holds; what the table compares pages with.
    #[command(hide = true)]
    Echo(echo::Options),
    /// Instructions of a server for one operation, which a busy machine does not change.
    Instructions(instructions::Options),
}

fn pinned_etcd() -> anyhow::Result<PathBuf> {
    let output =
        Command::new("tests/peers/install").arg("etcd").output().context("tests/peers/install etcd")?;
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .find_map(|line| line.strip_prefix("etcd ")?.split_whitespace().next().map(PathBuf::from))
        .context("tests/peers/install named no etcd; run from the root of the repository or pass --etcd")
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
        Some(Mode::Stalls(options)) => stalls::run(options).await,
        Some(Mode::Echo(options)) => echo::run(options).await,
        Some(Mode::Instructions(options)) => instructions::run(options).await,
        None => table::run(args.table).await,
    }
}
