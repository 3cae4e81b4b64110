//! What a write costs with standbys: CPU of all processes, latency, and bytes that go to other members. Beside a shard
//! alone and an etcd of three members, in turn, with and without waiting for a disk.

use std::{path::Path, time::Duration};

use anyhow::Context;

use super::{
    members::{Etcd, Mode, Store},
    report::{self, Part, Round, Row},
};
use crate::{
    load::{Kind, Shape, Target},
    measure, metrics, pinned_etcd,
    table::turns,
};

#[derive(clap::Args, Debug, Clone)]
pub struct CostOptions {
    /// Writes in flight, for the cost under load.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    in_flight: u64,
    /// Connections that they share.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Writes per round and row, with that many in flight.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Writes per round and row one at a time, for the latency.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    single_ops: u64,
    /// Interleaved rounds, of which medians are printed; 0 leaves the cost out.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Number of keys.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
    /// The rows to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Subject::ALL)]
    rows: Vec<Subject>,
    /// The durabilities to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Mode::ALL)]
    modes: Vec<Mode>,
}

/// How long one measurement may take.
const SAMPLE_MAX: Duration = Duration::from_secs(60);
const ETCD_MEMBERS: usize = 3;
const SHIPPED_BY_SHARD: &str = "kindred_shard_standby_shipped_bytes_total";
const SHIPPED_BY_ETCD: &str = "etcd_network_peer_sent_bytes_total";

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// A shard without standbys.
    Alone,
    /// With a standby that is not waited for.
    Async,
    /// With a standby that is waited for.
    Sync,
    /// With two standbys that are waited for.
    TwoSync,
    /// An etcd of three members.
    Etcd,
}

impl Subject {
    pub const ALL: [Self; 5] = [Self::Alone, Self::Async, Self::Sync, Self::TwoSync, Self::Etcd];

    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "one shard alone",
            Self::Async => "primary + standby that does not count",
            Self::Sync => "primary + standby that counts",
            Self::TwoSync => "primary + two standbys that count",
            Self::Etcd => "etcd, three members",
        }
    }

    async fn start(self, mode: Mode, disk: &Path) -> anyhow::Result<Running> {
        let (standbys, counts) = match self {
            Self::Alone => (0, false),
            Self::Async => (1, false),
            Self::Sync => (1, true),
            Self::TwoSync => (2, true),
            Self::Etcd => {
                let etcd = Etcd::start(mode, disk, &pinned_etcd()?, ETCD_MEMBERS).await?;
                return Ok(Running::Etcd(etcd));
            }
        };
        Ok(Running::Store(Box::new(Store::start(mode, disk, standbys, counts).await?)))
    }
}

enum Running {
    Store(Box<Store>),
    Etcd(Etcd),
}

impl Running {
    async fn connect(&self, shape: Shape) -> anyhow::Result<Target> {
        match self {
            Self::Store(store) => Target::connect(&store.primary.server, shape).await,
            Self::Etcd(etcd) => Target::connect(etcd.leader(), shape).await,
        }
    }

    fn pids(&self) -> Vec<(String, u32)> {
        match self {
            Self::Store(store) => store.pids(),
            Self::Etcd(etcd) => etcd.pids(),
        }
    }

    async fn check(&self) -> anyhow::Result<()> {
        match self {
            Self::Store(store) => store.check().await,
            Self::Etcd(etcd) => etcd.check().await,
        }
    }

    /// The bytes that members have sent each other: of a shard's the records alone, of etcd's all.
    fn shipped(&self) -> anyhow::Result<f64> {
        match self {
            Self::Store(store) => {
                let admin =
                    store.primary.server.admin.as_deref().context("the shard has no admin address")?;
                // There is no such metric before something is shipped.
                Ok(metrics::sum(&metrics::fetch(admin)?, SHIPPED_BY_SHARD).unwrap_or(0.0))
            }
            Self::Etcd(etcd) => {
                let sent = |member: &crate::servers::Server| {
                    metrics::sum(&metrics::fetch(&member.endpoint)?, SHIPPED_BY_ETCD)
                        .with_context(|| format!("no {SHIPPED_BY_ETCD} among the metrics"))
                };
                etcd.members().iter().map(sent).sum()
            }
        }
    }
}

/// Writes one after another, or many at a time.
#[derive(Clone, Copy)]
struct Load {
    in_flight: usize,
    ops: u64,
}

impl CostOptions {
    fn shape(&self) -> anyhow::Result<Shape> {
        Ok(Shape {
            connections: usize::try_from(self.connections)?,
            in_flight: usize::try_from(self.in_flight)?,
            keys: usize::try_from(self.keys)?,
            value_bytes: self.value_bytes,
        })
    }

    fn loads(&self) -> anyhow::Result<[Load; 2]> {
        Ok([
            Load { in_flight: usize::try_from(self.in_flight)?, ops: self.ops },
            Load { in_flight: 1, ops: self.single_ops },
        ])
    }
}

async fn sample(running: &Running, target: &Target, load: Load) -> anyhow::Result<Round> {
    let (pids, target) = (running.pids(), target.with_in_flight(load.in_flight));
    let before = running.shipped()?;
    let sample = measure::ops_of(&pids, &target, Kind::Put, load.ops, None);
    let sample = tokio::time::timeout(SAMPLE_MAX, sample).await.context("it took too long")??;
    let writes = load.ops + measure::warm_up(load.ops);
    let shipped = (running.shipped()? - before) / writes as f64;
    running.check().await?;
    Ok(Round { sample, shipped })
}

/// Measures all rows with one mode; returns a table for each load.
async fn mode(mode: Mode, options: &CostOptions, disk: &Path) -> anyhow::Result<Vec<Part>> {
    let mut all = Vec::new();
    for subject in options.rows.iter().copied() {
        let running = subject.start(mode, disk).await.with_context(|| subject.name())?;
        let target = running.connect(options.shape()?).await?;
        tokio::time::timeout(SAMPLE_MAX, target.fill()).await.context("writing the keys")??;
        all.push((subject, running, target));
    }
    let mut parts = Vec::new();
    for load in options.loads()? {
        let row = |(subject, _, _): &(Subject, _, _)| Row { subject: *subject, rounds: Vec::new() };
        let mut rows: Vec<Row> = all.iter().map(row).collect();
        for round in 0..usize::try_from(options.rounds)? {
            for at in turns(all.len(), round) {
                let (subject, running, target) = &all[at];
                let sample = sample(running, target, load).await.with_context(|| subject.name())?;
                rows[at].rounds.push(sample);
            }
        }
        parts.push(Part { mode, in_flight: load.in_flight, rows });
    }
    Ok(parts)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: &CostOptions, disk: &Path) -> anyhow::Result<()> {
    if options.rounds == 0 {
        return Ok(());
    }
    println!(
        "Puts of {} B, {} keys, {} rounds of {} writes with {} in flight on {} connections and of {} one at a time, in turn.\n\
         CPU is that of all processes of a row. Medians of the rounds; ratios are medians of the ratios in each round.\n\
         Sent bytes are those of records (shards) and of everything between members (etcd). Mode fsync: all data on one disk.\n\
         Mode none: data in memory, etcd with --unsafe-no-fsync. Clients are connected to etcd's leader.",
        options.value_bytes,
        options.keys,
        options.rounds,
        options.ops,
        options.in_flight,
        options.connections,
        options.single_ops,
    );
    let mut parts = Vec::new();
    for each in options.modes.iter().copied() {
        for part in mode(each, options, disk).await.with_context(|| format!("mode {}", each.name()))? {
            println!("\n{}", report::table(&part));
            parts.push(part);
        }
    }
    println!("\n{}", report::aims(&parts));
    Ok(())
}
