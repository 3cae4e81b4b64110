//! `headline`: the loads of real clusters, where most clients have one call under way each, and what an operation costs there:
//! user and system time, how often threads sleep and are woken, how often they lose their processor, and system calls.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context;

use crate::{
    grpc_go,
    load::{Kind, Shape, Target},
    measure::{self, Sample, Split},
    pinned_etcd,
    plot::digits,
    servers::Server,
    stats::{Spread, median},
    table::{
        machine::{self, Machine},
        subject::{Peers, Subject},
        turns,
    },
};

/// A kube-apiserver has a connection for each of its resources.
const CONNECTIONS: usize = 66;
/// Operations a second of a small cluster.
const RATE: u64 = 500;
/// 5,000 nodes make so many writes a second. Nine tenths of those renew leases, each every 10 s, and the others change nodes
/// and pods. Here all of them renew leases.
const NODES_RATE: u64 = 559;

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Operations per round and server; pages are a fiftieth, and those with a rate an eighth.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(400..))]
    ops: u64,
    /// Interleaved rounds; figures are medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of keys.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
    /// The loads with this in their names; all if it is empty.
    #[arg(long, default_value = "")]
    only: String,
    /// The servers to measure [default: etcd, a mem_etcd if there is one, a shard, a router with a shard, both in one process].
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// Writes what is printed into headline.md in this folder too.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The etcd to compare with [default: the pinned one, which `tests/peers/install etcd` builds].
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,
    /// The load by etcd's own client [default: that of `tests/peers`].
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// The mem_etcd to compare with.
    #[arg(long, value_name = "FILE", env = "MEM_ETCD")]
    mem_etcd: Option<PathBuf>,
}

/// A row.
struct Load {
    name: &'static str,
    kind: Kind,
    connections: usize,
    in_flight: usize,
    rate: Option<u64>,
    /// The divisor for the number of operations.
    part: u64,
    /// If set, etcd's own client makes the calls, as in a kube-apiserver.
    by_grpc_go: bool,
}

const LOADS: [Load; 10] = [
    closed("optimistic update, 66 x 1", Kind::TxnPut, CONNECTIONS, CONNECTIONS, 1),
    closed("get, 66 x 1", Kind::Get, CONNECTIONS, CONNECTIONS, 1),
    Load {
        name: "put, 500/s on 66 connections",
        kind: Kind::Put,
        connections: CONNECTIONS,
        in_flight: CONNECTIONS,
        rate: Some(RATE),
        part: 8,
        by_grpc_go: false,
    },
    Load {
        name: "lease updates of 5,000 nodes, 559/s on 66 connections",
        kind: Kind::TxnPut,
        connections: CONNECTIONS,
        in_flight: CONNECTIONS,
        rate: Some(NODES_RATE),
        part: 8,
        by_grpc_go: false,
    },
    Load {
        by_grpc_go: true,
        ..closed("optimistic update, 66 x 1, by etcd's client", Kind::TxnPut, CONNECTIONS, CONNECTIONS, 1)
    },
    Load {
        by_grpc_go: true,
        ..closed("get, 66 x 1, by etcd's client", Kind::Get, CONNECTIONS, CONNECTIONS, 1)
    },
    Load {
        name: "lease updates of 5,000 nodes, 559/s on 66 connections, by etcd's client",
        kind: Kind::TxnPut,
        connections: CONNECTIONS,
        in_flight: CONNECTIONS,
        rate: Some(NODES_RATE),
        part: 8,
        by_grpc_go: true,
    },
    closed("optimistic update, 64 on 4", Kind::TxnPut, 4, 64, 1),
    closed("get, 64 on 4", Kind::Get, 4, 64, 1),
    closed("page of 500, 64 on 4", Kind::List, 4, 64, 50),
];

const fn closed(name: &'static str, kind: Kind, connections: usize, in_flight: usize, part: u64) -> Load {
    Load { name, kind, connections, in_flight, rate: None, part, by_grpc_go: false }
}

/// A server, with the targets of each shape, which know the same revisions.
struct Running {
    subject: Subject,
    server: Server,
    few: Target,
    many: Target,
}

impl Running {
    fn target(&self, load: &Load) -> Target {
        let on = if load.connections == CONNECTIONS { &self.many } else { &self.few };
        on.with_in_flight(load.in_flight)
    }
}

/// Counts the system calls of processes with `perf`, where that is installed and allowed.
struct Syscalls(Vec<(Child, tempfile::NamedTempFile)>);

impl Syscalls {
    async fn begin(pids: &[(String, u32)]) -> Option<Self> {
        let mut all = Vec::new();
        for (_, pid) in pids {
            let file = tempfile::NamedTempFile::new().ok()?;
            let child = Command::new("perf")
                .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &pid.to_string(), "-o"])
                .arg(file.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()?;
            all.push((child, file));
        }
        // It says nothing when it has begun.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Some(Self(all))
    }

    fn end(self) -> Option<Vec<f64>> {
        let mut counts = Vec::new();
        for (mut child, file) in self.0 {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).ok()?;
            child.wait().ok()?;
            let text = std::fs::read_to_string(file.path()).ok()?;
            let line = text.lines().find(|line| line.contains("sys_enter"))?;
            counts.push(line.split(',').next()?.trim().parse().ok()?);
        }
        Some(counts)
    }
}

/// The results of a load on a server.
#[derive(Default)]
struct Cell {
    samples: Vec<Sample>,
    /// System calls an operation of each process.
    syscalls: Option<Vec<f64>>,
    failed: Option<String>,
}

impl Cell {
    fn cpu(&self) -> Spread {
        Spread::of(&self.samples.iter().map(Sample::cpu).collect::<Vec<_>>())
    }

    fn of(&self, role: usize, of: fn(&Split) -> f64) -> f64 {
        median(self.samples.iter().map(|sample| of(&sample.split[role].1)).collect())
    }

    /// A line for each process, with the sums in that of the server.
    fn lines(&self, load: &str, subject: Subject, etcd: Option<f64>) -> Vec<String> {
        let name = subject.name();
        let Some(first) = self.samples.first() else {
            let failed = self.failed.as_deref().unwrap_or("not measured").replace(['|', '\n'], " ");
            return vec![format!("| {load} | {name} | {failed} |{}", " |".repeat(8))];
        };
        let latency = |of: fn(&Sample) -> f64| digits(median(self.samples.iter().map(of).collect()));
        let Spread { median: cpu, low, high } = self.cpu();
        let ratio = etcd.map_or_else(String::new, |etcd| format!("{:.2}", cpu / etcd));
        let roles = first.split.len();
        let columns = |roles: std::ops::Range<usize>| {
            let sum = |of: fn(&Split) -> f64| roles.clone().map(|role| self.of(role, of)).sum::<f64>();
            let syscalls = self.syscalls.as_ref().map(|each| each[roles.clone()].iter().sum::<f64>());
            format!(
                "{} | {} | {:.2} | {:.2} | {}",
                digits(sum(|split| split.user_us)),
                digits(sum(|split| split.system_us)),
                sum(|split| split.sleeps),
                sum(|split| split.preempted),
                syscalls.map_or_else(|| "?".to_owned(), |count| format!("{count:.2}"))
            )
        };
        let mut lines = vec![format!(
            "| {load} | {name} | {} ({}-{}) | {ratio} | {} | {} | {} |",
            digits(cpu),
            digits(low),
            digits(high),
            columns(0..roles),
            latency(|sample| sample.latency.p50),
            latency(|sample| sample.latency.p99),
        )];
        if roles > 1 {
            for (at, (role, _)) in first.split.iter().enumerate() {
                let cpu = digits(self.of(at, |split| split.user_us + split.system_us));
                lines.push(format!("| | its {role} | {cpu} | | {} | | |", columns(at..at + 1)));
            }
        }
        lines
    }
}

async fn start(options: &Options, peers: &Peers, chosen: &[Subject]) -> anyhow::Result<Vec<Running>> {
    let mut all = Vec::new();
    for subject in chosen {
        let server = subject.start(peers, options.value_bytes)?;
        let shape =
            Shape { connections: 4, in_flight: 64, keys: options.keys, value_bytes: options.value_bytes };
        let few = Target::connect(&server, shape).await?;
        few.fill().await.with_context(|| format!("writing the keys to {}", subject.name()))?;
        let many = few.on_connections(&server, CONNECTIONS).await?;
        all.push(Running { subject: *subject, server, few, many });
    }
    Ok(all)
}

/// Measures one round of a load, and returns how many operations came before those that count.
async fn round(options: &Options, running: &Running, load: &Load) -> anyhow::Result<(Sample, u64)> {
    let ops = (options.ops / load.part).max(1);
    let sample = match (load.by_grpc_go, &options.load) {
        (true, Some(program)) => {
            let size = (load.connections, options.value_bytes);
            return Ok((
                grpc_go::ops(program, &running.server, load.kind, size, ops, load.rate).await?,
                grpc_go::warm_up(load.connections),
            ));
        }
        _ => measure::ops(&running.server, &running.target(load), load.kind, ops, load.rate).await?,
    };
    Ok((sample, measure::warm_up(ops)))
}

async fn row(options: &Options, all: &[Running], load: &Load) -> anyhow::Result<Vec<Cell>> {
    let mut cells: Vec<Cell> = all.iter().map(|_| Cell::default()).collect();
    for number in 0..options.rounds {
        for at in turns(all.len(), number) {
            let (running, cell) = (&all[at], &mut cells[at]);
            if cell.failed.is_some() {
                continue;
            }
            match round(options, running, load).await {
                Ok((sample, _)) => cell.samples.push(sample),
                Err(error) if running.subject == Subject::MemEtcd => cell.failed = Some(format!("{error:#}")),
                Err(error) => return Err(error.context(running.subject.name())),
            }
        }
    }
    // In a round of its own, since counting costs time.
    for (running, cell) in all.iter().zip(&mut cells).filter(|(_, cell)| cell.failed.is_none()) {
        let counting = Syscalls::begin(&running.server.pids).await;
        let (_, warm_up) = round(options, running, load).await?;
        // With those that warmed up, and those of the half second before, in which there is nothing to do.
        let counted = ((options.ops / load.part).max(1) + warm_up) as f64;
        let counts = counting.and_then(Syscalls::end);
        cell.syscalls = counts.map(|counts| counts.into_iter().map(|count: f64| count / counted).collect());
    }
    Ok(cells)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(mut options: Options) -> anyhow::Result<()> {
    let loads: Vec<&Load> = LOADS.iter().filter(|load| load.name.contains(&options.only)).collect();
    if options.load.is_none() && loads.iter().any(|load| load.by_grpc_go) {
        options.load = Some(grpc_go::pinned()?);
    }
    let asked = match options.subjects.as_slice() {
        [] => {
            let mut all = vec![Subject::Etcd, Subject::Shard, Subject::Router, Subject::Together];
            all.extend(options.mem_etcd.as_ref().map(|_| Subject::MemEtcd));
            all
        }
        some => some.to_vec(),
    };
    let chosen = Subject::chosen(&asked, options.mem_etcd.is_some())?;
    let etcd = match &options.etcd {
        None if chosen.contains(&Subject::Etcd) => Some(pinned_etcd()?),
        given => given.clone(),
    };
    let peers = Peers { etcd, mem_etcd: options.mem_etcd.clone() };
    let all = start(&options, &peers, &chosen).await?;
    let machine = Machine::here();
    let mut text = String::new();
    let mut say = |line: String| {
        println!("{line}");
        text.push_str(&line);
        text.push('\n');
    };
    say("# The headline loads\n".to_owned());
    say(format!(
        "{}, {} cores, kernel {}; kindred {}; values of {} B, {} keys, medians (least to most) of {} interleaved rounds of {} operations. \
         Columns from `user` on are of one operation. `make bench ARGS=headline` prints this.\n",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine::commit(),
        options.value_bytes,
        options.keys,
        options.rounds,
        options.ops
    ));
    say("| load | server | CPU us | of etcd | user | system | sleeps | preempted | system calls | p50 us | p99 us |".to_owned());
    say(format!("|{}", " --- |".repeat(11)));
    for load in loads {
        let cells = row(&options, &all, load).await.context(load.name)?;
        let etcd = all.iter().zip(&cells).find(|(running, _)| running.subject == Subject::Etcd);
        let etcd = etcd.map(|(_, cell)| cell.cpu().median);
        for (running, cell) in all.iter().zip(&cells) {
            cell.lines(load.name, running.subject, etcd).into_iter().for_each(&mut say);
        }
    }
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let file = folder.join("headline.md");
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Latency;

    #[test]
    fn a_line_has_what_each_process_needed() {
        let split = |user_us, sleeps| Split { user_us, system_us: 2.0, sleeps, preempted: 0.0 };
        let sample = Sample {
            cpu_us: vec![("router".to_owned(), 12.0), ("shard".to_owned(), 6.0)],
            split: vec![("router".to_owned(), split(10.0, 1.5)), ("shard".to_owned(), split(4.0, 1.0))],
            latency: Latency { p50: 100.0, p99: 200.0, ..Latency::default() },
            ops_per_second: 1e3,
        };
        let cell = Cell { samples: vec![sample], syscalls: Some(vec![3.0, 2.0]), failed: None };
        let lines = cell.lines("get", Subject::Router, Some(36.0));
        assert_eq!(
            lines,
            [
                "| get | kindred router + shard | 18.0 (18.0-18.0) | 0.50 | 14.0 | 4.00 | 2.50 | 0.00 | 5.00 | 100 | 200 |",
                "| | its router | 12.0 | | 10.0 | 2.00 | 1.50 | 0.00 | 3.00 | | |",
                "| | its shard | 6.00 | | 4.00 | 2.00 | 1.00 | 0.00 | 2.00 | | |",
            ]
        );
        let failed = Cell { failed: Some("a|b".to_owned()), ..Cell::default() };
        assert_eq!(failed.lines("get", Subject::MemEtcd, None)[0].matches('|').count(), 12);
    }
}
