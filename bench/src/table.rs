//! The table: the cost of an operation on each server, measured in interleaved rounds.

pub mod machine;
mod report;
pub mod subject;
mod workload;

use std::path::PathBuf;

use anyhow::Context;

use crate::{
    load::{Kind, Shape, Target},
    measure::{self, Sample},
    pinned_etcd,
    servers::Server,
};

use self::{
    machine::Machine,
    report::{Cell, Column, Curve, Report, Row},
    subject::{Peers, Subject},
    workload::Workload,
};

/// The options of the table.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Operations per round and server. Probes, the mixed load and watched writes are a quarter of that, and lists
    /// a fiftieth.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Interleaved rounds; the table shows the median, the lowest and the highest.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,
    /// Number of connections.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    connections: usize,
    /// Number of concurrent calls over all connections.
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    in_flight: usize,
    /// Number of keys.
    #[arg(long, default_value_t = 10_000, value_parser = at_least_one)]
    keys: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
    /// Watchers of the watched load.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    watchers: usize,
    /// Open loop with this many operations per second, each timed from when it is due. Workloads with fewer
    /// operations have a lower rate in proportion.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// The workloads to run.
    #[arg(long, alias = "loads", value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// The servers to measure [default: all that are available].
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// Numbers of concurrent calls for the latency curve of optimistic updates, which needs a closed loop; empty
    /// for no curve.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_values_t = [1, 4, 16, 64, 256], value_parser = at_least_one)]
    curve: Vec<usize>,
    /// The etcd to compare with [default: the pinned one, which `tests/peers/install etcd` builds].
    #[arg(long, value_name = "FILE")]
    pub etcd: Option<PathBuf>,
    /// The mem_etcd to compare with.
    #[arg(long, value_name = "FILE", env = "MEM_ETCD")]
    mem_etcd: Option<PathBuf>,
    /// Write the table as Markdown, and plots, into this folder.
    #[arg(long, value_name = "FOLDER", overrides_with = "out")]
    out: Option<PathBuf>,
    /// The prefix of the files' names [default: `closed`, or `open-` with the rate].
    #[arg(long)]
    name: Option<String>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// A running server with connections to it.
struct Running {
    subject: Subject,
    server: Server,
    target: Target,
}

impl Options {
    fn shape(&self) -> Shape {
        Shape {
            connections: self.connections,
            in_flight: self.in_flight,
            keys: self.keys,
            value_bytes: self.value_bytes,
        }
    }

    /// The chosen workloads without duplicates, in the order of the table.
    fn workloads(&self) -> Vec<Workload> {
        let mut workloads = self.workloads.clone();
        workloads.sort_unstable();
        workloads.dedup();
        workloads
    }

    fn name(&self) -> String {
        let plain = || self.rate.map_or_else(|| "closed".to_owned(), |rate| format!("open-{rate}"));
        self.name.clone().unwrap_or_else(plain)
    }

    fn load(&self) -> String {
        let pace = match self.rate {
            None => format!("{} calls in flight on {} connections", self.in_flight, self.connections),
            Some(rate) => format!("{rate} operations a second on {} connections", self.connections),
        };
        format!(
            "values of {} B, {} keys, {pace}, {} interleaved rounds of {} operations (a quarter of probes, of the mixed load and of watched writes, a fiftieth of pages)",
            self.value_bytes, self.keys, self.rounds, self.ops
        )
    }

    /// The share of a workload in the operations or the rate; at least one.
    fn part(whole: u64, workload: Workload) -> u64 {
        (whole / workload.part()).max(1)
    }

    async fn sample(&self, running: &Running, workload: Workload) -> anyhow::Result<Sample> {
        let ops = Self::part(self.ops, workload);
        let rate = self.rate.map(|rate| Self::part(rate, workload));
        let Running { server, target, .. } = running;
        match workload.kind() {
            Some(kind) => measure::ops(server, target, kind, ops, rate).await,
            None => measure::events(server, target, self.watchers, ops, rate).await,
        }
    }
}

/// Records a round's result of one server. A failure of mem_etcd is part of the table, any other ends the run.
fn note(cell: &mut Cell, subject: Subject, sample: anyhow::Result<Sample>) -> anyhow::Result<()> {
    match sample {
        Ok(sample) => cell.samples.push(sample),
        Err(error) if subject == Subject::MemEtcd => cell.failed = Some(format!("{error:#}")),
        Err(error) => return Err(error.context(subject.name())),
    }
    Ok(())
}

/// The order of the servers in a round. It rotates, so that none is always the first.
pub fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
}

async fn start(options: &Options, peers: &Peers) -> anyhow::Result<Vec<Running>> {
    let mut all = Vec::new();
    for subject in Subject::chosen(&options.subjects, peers.mem_etcd.is_some())? {
        let server = subject.start(peers, options.value_bytes)?;
        let target = Target::connect(&server, options.shape()).await?;
        target.fill().await.with_context(|| format!("writing the keys to {}", subject.name()))?;
        if options.workloads().iter().any(|one| matches!(one, Workload::LeaseFlood | Workload::Mixed)) {
            target.fill_leases().await.with_context(|| format!("writing leases to {}", subject.name()))?;
        }
        all.push(Running { subject, server, target });
    }
    Ok(all)
}

async fn row(options: &Options, all: &[Running], workload: Workload) -> anyhow::Result<Row> {
    let mut cells = vec![Cell::default(); all.len()];
    for round in 0..options.rounds {
        for at in turns(all.len(), round).filter(|at| cells[*at].failed.is_none()).collect::<Vec<_>>() {
            let sample = options.sample(&all[at], workload).await;
            note(&mut cells[at], all[at].subject, sample).with_context(|| workload.name(options.watchers))?;
        }
    }
    Ok(Row { workload, cells })
}

async fn curve(options: &Options, all: &[Running]) -> anyhow::Result<Curve> {
    let mut cells = vec![vec![Cell::default(); options.curve.len()]; all.len()];
    for round in 0..options.rounds {
        for (level, in_flight) in options.curve.iter().enumerate() {
            for at in turns(all.len(), round) {
                let Running { subject, server, target } = &all[at];
                let cell = &mut cells[at][level];
                if cell.failed.is_some() {
                    continue;
                }
                let target = target.with_in_flight(*in_flight);
                let ops = (options.ops / 4).max(1);
                let sample = measure::ops(server, &target, Kind::TxnPut, ops, None).await;
                note(cell, *subject, sample).with_context(|| format!("{in_flight} calls in flight"))?;
            }
        }
    }
    Ok(Curve { in_flight: options.curve.clone(), cells })
}

/// Measures, prints, and writes the files.
#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    let chosen = Subject::chosen(&options.subjects, options.mem_etcd.is_some())?;
    let etcd = match &options.etcd {
        None if chosen.contains(&Subject::Etcd) => Some(pinned_etcd()?),
        given => given.clone(),
    };
    let peers = Peers { etcd, mem_etcd: options.mem_etcd.clone() };
    let version = |subject: &Subject| match subject {
        Subject::Etcd => peers.etcd.as_deref().map(machine::version),
        Subject::MemEtcd => peers.mem_etcd.as_deref().map(machine::version),
        Subject::Echo
        | Subject::Shard
        | Subject::Router
        | Subject::RouterMtls
        | Subject::RouterUnix
        | Subject::Together => Some(machine::commit()),
    };
    let column =
        |subject: &Subject| Column { subject: *subject, version: version(subject).unwrap_or_default() };
    let mut report = Report {
        name: options.name(),
        load: options.load(),
        rate: options.rate,
        watchers: options.watchers,
        machine: Machine::here(),
        command: machine::command_line(std::env::args()),
        debug: cfg!(debug_assertions),
        columns: chosen.iter().map(column).collect(),
        rows: Vec::new(),
        curve: None,
    };
    let all = start(&options, &peers).await?;
    println!("{}\n\n{}", report.load, report::head("CPU us/op", &report.columns));
    for workload in options.workloads() {
        let row = row(&options, &all, workload).await?;
        println!("{}", report::cpu_row(&row, &report.columns, options.watchers));
        report.rows.push(row);
    }
    if options.rate.is_none() && !options.curve.is_empty() {
        report.curve = Some(curve(&options, &all).await?);
    }
    println!("\nLatency, microseconds\n\n{}", report.latencies());
    if let Some(folder) = &options.out {
        write(&report, folder).with_context(|| format!("writing into {}", folder.display()))?;
        println!("\nwritten: {}", folder.join(format!("{}.md", report.name)).display());
    }
    Ok(())
}

fn write(report: &Report, folder: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(format!("{}.md", report.name)), report.markdown())?;
    for (file, plot) in report.plots() {
        std::fs::write(folder.join(file), plot)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &str) -> Result<Options, clap::Error> {
        let words = std::iter::once("kindred-bench").chain(words.split_whitespace());
        Ok(Program::try_parse_from(words)?.options)
    }

    #[test]
    fn flags_are_what_they_say() {
        let all = options("").unwrap();
        assert_eq!(all.workloads(), Workload::ALL);
        assert_eq!((all.name(), all.rounds, all.curve.len()), ("closed".to_owned(), 3, 5));
        let some =
            options("--workloads watch,put,put,list500 --subjects router-mtls,etcd --rate 500 --curve")
                .unwrap();
        assert_eq!(some.workloads(), [Workload::Put, Workload::List500, Workload::Watch]);
        assert_eq!(some.subjects, [Subject::RouterMtls, Subject::Etcd]);
        assert_eq!((some.name(), some.curve.len()), ("open-500".to_owned(), 0));
        assert_eq!(options("--out a --name x --out b").unwrap().out, Some("b".into()));
        for wrong in
            ["--rounds 0", "--rate 0", "--ops 0", "--in-flight 0", "--workloads none", "--subjects redis"]
        {
            assert!(options(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mem_etcd_is_where_the_environment_says() {
        use clap::CommandFactory;
        let command = Program::command();
        let flag = command.get_arguments().find(|flag| flag.get_id() == "mem_etcd").unwrap();
        assert_eq!(flag.get_env(), Some(std::ffi::OsStr::new("MEM_ETCD")));
        assert_eq!(options("--mem-etcd bin/mem_etcd").unwrap().mem_etcd, Some("bin/mem_etcd".into()));
    }

    #[test]
    fn every_round_begins_with_another_server() {
        assert_eq!(turns(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(3, 1).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(turns(3, 5).collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn a_failure_of_mem_etcd_is_a_result_and_of_others_an_error() {
        let mut cell = Cell::default();
        note(&mut cell, Subject::MemEtcd, Err(anyhow::anyhow!("no"))).unwrap();
        assert_eq!(cell.failed.as_deref(), Some("no"));
        assert!(note(&mut Cell::default(), Subject::Etcd, Err(anyhow::anyhow!("no"))).is_err());
    }

    #[test]
    fn parts_are_never_none() {
        assert_eq!(Options::part(200, Workload::Put), 200);
        assert_eq!(Options::part(200, Workload::List500), 4);
        assert_eq!(Options::part(10, Workload::List500), 1);
    }
}
