//! `fsync`: the rate of writes that are durable when acknowledged, of etcd and of a shard on the same disk, in
//! turn.

use std::path::{Path, PathBuf};

use crate::{
    load::{Kind, Shape, Target},
    measure, servers,
    stats::median,
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// A folder on the disk to measure.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Clients, each with one write in flight.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Connections that they share.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Writes per round and server.
    #[arg(long, default_value_t = 20_000)]
    ops: u64,
    /// Interleaved rounds; medians are printed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options, etcd: &Path) -> anyhow::Result<()> {
    let shape = Shape {
        connections: options.connections,
        in_flight: options.clients,
        keys: 10_000,
        value_bytes: options.value_bytes,
    };
    let fsync = ["--durability", "fsync", "--durability-of", "leases=fsync"];
    let servers = [
        servers::etcd_in(etcd, tempfile::tempdir_in(&options.dir)?, &[])?,
        servers::shard_in(tempfile::tempdir_in(&options.dir)?, &fsync)?,
    ];
    println!(
        "{} clients on {} connections, values of {} bytes, {} rounds of {} writes, medians\n",
        options.clients, options.connections, options.value_bytes, options.rounds, options.ops
    );
    let mut targets = Vec::new();
    for server in &servers {
        let target = Target::connect(server, shape).await?;
        target.fill().await?;
        targets.push(target);
    }
    let mut samples = vec![Vec::new(); servers.len()];
    for _ in 0..options.rounds {
        for ((server, target), samples) in servers.iter().zip(&targets).zip(&mut samples) {
            let sample = measure::ops(server, target, Kind::TxnPut, options.ops, None).await?;
            samples.push((sample.ops_per_second, sample.latency.p50, sample.latency.p99, sample.cpu()));
        }
    }
    let rate = |of: &[(f64, f64, f64, f64)]| median(of.iter().map(|sample| sample.0).collect());
    let etcd = rate(&samples[0]);
    println!("| server, each write on disk | writes/s | vs etcd | p50 ms | p99 ms | CPU us/op |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (server, samples) in servers.iter().zip(&samples) {
        println!(
            "| {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.1} |",
            server.name,
            rate(samples),
            rate(samples) / etcd,
            median(samples.iter().map(|sample| sample.1 / 1e3).collect()),
            median(samples.iter().map(|sample| sample.2 / 1e3).collect()),
            median(samples.iter().map(|sample| sample.3).collect()),
        );
    }
    Ok(())
}
