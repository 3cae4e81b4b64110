//! Renders the measurements as Markdown and plots. The same numbers produce the same text.

use crate::{
    measure::Sample,
    plot::{Bar, Bars, Line, Lines, Panel, digits},
    stats::{Latency, Spread, median},
};

use super::{machine::Machine, subject::Subject, workload::Workload};

/// A subject with its program's version.
#[derive(Debug, Clone)]
pub struct Column {
    pub subject: Subject,
    /// The version that the program reports; for kindred, the commit.
    pub version: String,
}

/// The result of a workload on one subject.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// The samples of the rounds.
    pub samples: Vec<Sample>,
    /// Why there are no further samples.
    pub failed: Option<String>,
}

impl Cell {
    fn cpu(&self) -> Spread {
        Spread::of(&self.samples.iter().map(Sample::cpu).collect::<Vec<_>>())
    }

    /// The median CPU of each role.
    fn roles(&self) -> Vec<(String, f64)> {
        let Some(first) = self.samples.first() else { return Vec::new() };
        let of = |at: usize| median(self.samples.iter().map(|sample| sample.cpu_us[at].1).collect());
        first.cpu_us.iter().enumerate().map(|(at, (role, _))| (role.clone(), of(at))).collect()
    }

    /// The medians over the rounds, but the maximum of the longest times.
    fn latency(&self) -> Latency {
        let of =
            |of: fn(&Latency) -> f64| median(self.samples.iter().map(|sample| of(&sample.latency)).collect());
        Latency {
            p50: of(|latency| latency.p50),
            p99: of(|latency| latency.p99),
            p999: of(|latency| latency.p999),
            max: self.samples.iter().map(|sample| sample.latency.max).fold(0.0, f64::max),
        }
    }
}

/// The results of a workload on all subjects.
#[derive(Debug, Clone)]
pub struct Row {
    pub workload: Workload,
    pub cells: Vec<Cell>,
}

/// Latencies of optimistic updates at increasing numbers of concurrent calls.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    /// The numbers of concurrent calls.
    pub in_flight: Vec<usize>,
    /// The results for each subject and number.
    pub cells: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone)]
pub struct Report {
    /// The common prefix of the files' names.
    pub name: String,
    /// A description of the load.
    pub load: String,
    /// The operations per second in an open loop.
    pub rate: Option<u64>,
    /// The number of watchers of watched writes.
    pub watchers: usize,
    pub machine: Machine,
    /// The command that repeats the run.
    pub command: String,
    /// Whether the programs were built without optimisation.
    pub debug: bool,
    pub columns: Vec<Column>,
    /// The results of the workloads.
    pub rows: Vec<Row>,
    /// The latency curve of a closed loop.
    pub curve: Option<Curve>,
}

/// A table head with a column for each subject.
pub fn head(first: &str, columns: &[Column]) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.subject.name()).collect();
    format!("| {first} | {} |\n|{}", names.join(" | "), " --- |".repeat(names.len() + 1))
}

/// A row of the CPU table.
pub fn cpu_row(row: &Row, columns: &[Column], watchers: usize) -> String {
    let peers: Vec<(&str, f64)> = peers(row, columns);
    let cell = |(column, cell): (&Column, &Cell)| {
        if let Some(failed) = &cell.failed {
            return format!("failed: {}", failed.replace('|', "/").replace('\n', " "));
        }
        let Spread { median, low, high } = cell.cpu();
        let mut text = format!("{} ({}-{})", digits(median), digits(low), digits(high));
        for (name, peer) in peers.iter().filter(|(name, _)| *name != column.subject.name()) {
            text += &format!(", {:.2} of {name}", median / peer);
        }
        let roles = cell.roles();
        if roles.len() > 1 {
            let roles: Vec<String> =
                roles.iter().map(|(role, us)| format!("{role} {}", digits(*us))).collect();
            text += &format!(": {}", roles.join(", "));
        }
        text
    };
    let cells: Vec<String> = columns.iter().zip(&row.cells).map(cell).collect();
    format!("| {} | {} |", row.workload.name(watchers), cells.join(" | "))
}

/// The CPU of each peer.
fn peers<'a>(row: &Row, columns: &'a [Column]) -> Vec<(&'a str, f64)> {
    let is_peer =
        |column: &Column| matches!(column.subject, Subject::Etcd | Subject::MemEtcd | Subject::Echo);
    let peers =
        columns.iter().zip(&row.cells).filter(|(column, cell)| is_peer(column) && cell.failed.is_none());
    peers.map(|(column, cell)| (column.subject.name(), cell.cpu().median)).collect()
}

/// A row of the latency table. A router's cell shows what it adds to a shard alone.
fn latency_row(row: &Row, columns: &[Column], watchers: usize, open: bool) -> String {
    let alone = columns.iter().zip(&row.cells).find(|(column, _)| column.subject == Subject::Shard);
    let alone = alone.map(|(_, cell)| cell.latency());
    let cell = |(column, cell): (&Column, &Cell)| {
        if cell.failed.is_some() {
            return "failed".to_owned();
        }
        let Latency { p50, p99, p999, max } = cell.latency();
        let values = [p50, p99, p999, max];
        let shown = if open { &values[..] } else { &values[..2] };
        let text = shown.iter().map(|us| digits(*us)).collect::<Vec<_>>().join(", ");
        match alone.filter(|_| {
            matches!(
                column.subject,
                Subject::Router | Subject::RouterMtls | Subject::RouterUnix | Subject::Together
            )
        }) {
            Some(alone) => format!("{text} ({:.2}, {:.2} of alone)", p50 / alone.p50, p99 / alone.p99),
            None => text,
        }
    };
    let cells: Vec<String> = columns.iter().zip(&row.cells).map(cell).collect();
    format!("| {} | {} |", row.workload.name(watchers), cells.join(" | "))
}

impl Report {
    /// The plots with their file names.
    pub fn plots(&self) -> Vec<(String, String)> {
        let mut plots = vec![(format!("{}-cpu.svg", self.name), self.bars().svg())];
        let latency = match (&self.curve, self.rate) {
            (Some(curve), _) => Some(self.curve_lines(curve)),
            (None, Some(rate)) => self.tail_lines(rate),
            (None, None) => None,
        };
        plots.extend(latency.map(|lines| (format!("{}-latency.svg", self.name), lines.svg())));
        plots
    }

    pub fn latencies(&self) -> String {
        let first = if self.rate.is_some() { "p50, p99, p99.9, longest" } else { "p50, p99" };
        let rows =
            self.rows.iter().map(|row| latency_row(row, &self.columns, self.watchers, self.rate.is_some()));
        let lines: Vec<String> = std::iter::once(head(first, &self.columns)).chain(rows).collect();
        lines.join("\n")
    }

    pub fn markdown(&self) -> String {
        let loop_name = match self.rate {
            None => "closed loop".to_owned(),
            Some(rate) => format!("open loop, {rate} operations a second"),
        };
        let mut text = format!("# kindred beside its peers: {loop_name}\n\n");
        if self.debug {
            text +=
                "**Not optimised (a debug build): these numbers say nothing but that the program runs.**\n\n";
        }
        text += &format!(
            "Repeat with `make bench`, with the flags below as `ARGS`; it builds all of it and runs\n\n```\n{}\n```\n\n",
            self.command
        );
        let Machine { cpu, cores, memory_mib, kernel } = &self.machine;
        text += &format!(
            "| | |\n| --- | --- |\n| machine | {cpu}, {cores} cores, {memory_mib} MiB of memory, Linux {kernel} |\n"
        );
        for Column { subject, version } in &self.columns {
            text += &format!("| {} | {version}; {} |\n", subject.name(), subject.how());
        }
        text += &format!("| load | {} |\n\n", self.load);
        let plots = self.plots();
        let picture = |of: usize, what: &str| {
            plots.get(of).map(|(file, _)| format!("\n![{what}]({file})\n")).unwrap_or_default()
        };
        text += "## CPU microseconds of one operation\n\n\
                 All processes of the server together, medians of the rounds (lowest-highest), ratios of medians; then each process alone.\n\n";
        text += &format!("{}\n", head("", &self.columns));
        for row in &self.rows {
            text += &format!("{}\n", cpu_row(row, &self.columns, self.watchers));
        }
        text += &picture(0, "CPU of one operation");
        text += match self.rate {
            None => {
                "\n## Latency in microseconds\n\n\
                 Medians of the rounds; behind a router also 50th and 99th percentile against those of the shard alone.\n\n"
            }
            Some(_) => {
                "\n## Latency in microseconds\n\n\
                 From when an operation was due, whenever it was sent. Medians of the rounds, and the longest of all; \
                 behind a router also 50th and 99th percentile against those of the shard alone.\n\n"
            }
        };
        text += &format!("{}\n", self.latencies());
        text += &picture(1, "Latency");
        text += "\n## What one operation is\n\n";
        for row in &self.rows {
            text += &format!("- {}: {}.\n", row.workload.name(self.watchers), row.workload.what());
        }
        text
    }

    fn subjects(&self) -> impl Iterator<Item = (String, String)> {
        let both = |column: &Column| (column.subject.name().to_owned(), column.subject.colour().to_owned());
        self.columns.iter().map(both)
    }

    fn bars(&self) -> Bars {
        let panel = |row: &Row| {
            let etcd = peers(row, &self.columns).into_iter().find(|(name, _)| *name == Subject::Etcd.name());
            let bar = |(column, cell): (&Column, &Cell)| {
                let spread = cell.failed.is_none().then(|| cell.cpu())?;
                let ratio = etcd.filter(|_| column.subject != Subject::Etcd);
                let ratio = ratio.map(|(name, us)| format!(" ({:.2} of {name})", spread.median / us));
                // The medians of the parts may not add up to the median of the sums.
                let parts: Vec<f64> = cell.roles().into_iter().map(|(_, us)| us).collect();
                let sum: f64 = parts.iter().sum();
                let fit = if sum > 0.0 { spread.median / sum } else { 1.0 };
                Some(Bar {
                    parts: parts.into_iter().map(|part| part * fit).collect(),
                    spread: (spread.low, spread.high),
                    label: format!("{}{}", digits(spread.median), ratio.unwrap_or_default()),
                })
            };
            Panel {
                title: row.workload.name(self.watchers),
                bars: self.columns.iter().zip(&row.cells).map(bar).collect(),
            }
        };
        Bars {
            title: "CPU microseconds of one operation".to_owned(),
            note: "Medians of the rounds, the mark from the lowest to the highest. Dark: etcd, shard or router; pale: the shard behind the router."
                .to_owned(),
            subjects: self.subjects().collect(),
            panels: self.rows.iter().map(panel).collect(),
        }
    }

    fn curve_lines(&self, curve: &Curve) -> Lines {
        let line = |at: usize, (name, colour): &(String, String), p99: bool| {
            let value = |cell: &Cell| {
                let latency = cell.failed.is_none().then(|| cell.latency())?;
                Some(if p99 { latency.p99 } else { latency.p50 })
            };
            Line {
                name: format!("{name}, {}", if p99 { "p99" } else { "p50" }),
                colour: colour.clone(),
                dashed: p99,
                values: curve.cells[at].iter().map(value).collect(),
            }
        };
        let subjects: Vec<_> = self.subjects().collect();
        let both = subjects
            .iter()
            .enumerate()
            .flat_map(|(at, subject)| [line(at, subject, false), line(at, subject, true)]);
        Lines {
            title: "Latency of optimistic updates, closed loop".to_owned(),
            below: "calls in flight".to_owned(),
            beside: "microseconds".to_owned(),
            steps: curve.in_flight.iter().map(usize::to_string).collect(),
            lines: both.collect(),
        }
    }

    /// The tail latencies of the first workload.
    fn tail_lines(&self, rate: u64) -> Option<Lines> {
        let row = self.rows.iter().find(|row| row.workload == Workload::TxnPut).or(self.rows.first())?;
        let line = |((name, colour), cell): ((String, String), &Cell)| {
            let Latency { p50, p99, p999, max } = cell.latency();
            let shown = |us: f64| cell.failed.is_none().then_some(us);
            Line { name, colour, dashed: false, values: [p50, p99, p999, max].map(shown).to_vec() }
        };
        Some(Lines {
            title: format!("Latency of {}, {rate} operations a second", row.workload.name(self.watchers)),
            below: "share of the operations".to_owned(),
            beside: "microseconds from when it was due".to_owned(),
            steps: ["50 %", "99 %", "99.9 %", "all"].map(str::to_owned).to_vec(),
            lines: self.subjects().zip(&row.cells).map(line).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
