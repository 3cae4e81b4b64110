//! Renders what writes cost as Markdown. The same numbers produce the same text.

use super::{cost::Subject, members::Mode};
use crate::{measure::Sample, plot::digits, stats::median};

/// A row's measurement in one round.
#[derive(Debug, Clone)]
pub struct Round {
    pub sample: Sample,
    /// Bytes that went to other members for each write.
    pub shipped: f64,
}

#[derive(Debug, Clone)]
pub struct Row {
    pub subject: Subject,
    pub rounds: Vec<Round>,
}

/// All rows under one load.
#[derive(Debug, Clone)]
pub struct Part {
    pub mode: Mode,
    pub in_flight: usize,
    pub rows: Vec<Row>,
}

/// A number of a round.
type Of = fn(&Round) -> f64;

const CPU: Of = |round| round.sample.cpu();
const P50: Of = |round| round.sample.latency.p50;
const P99: Of = |round| round.sample.latency.p99;

impl Row {
    fn median(&self, of: Of) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    /// The median CPU of each role; processes of one role are summed.
    fn roles(&self) -> Vec<(String, f64)> {
        let mut roles: Vec<String> = Vec::new();
        for (role, _) in self.rounds.iter().flat_map(|round| &round.sample.cpu_us) {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
        let used = |round: &Round, role: &str| {
            round.sample.cpu_us.iter().filter(|(of, _)| of == role).map(|(_, us)| us).sum()
        };
        let of = |role: &String| median(self.rounds.iter().map(|round| used(round, role)).collect());
        roles.iter().map(|role| (role.clone(), of(role))).collect()
    }
}

impl Part {
    fn row(&self, subject: Subject) -> Option<&Row> {
        self.rows.iter().find(|row| row.subject == subject)
    }

    /// The median of the ratios in each round, as rounds differ more than rows of one round.
    fn ratio(&self, of: Of, subject: Subject, to: Subject) -> f64 {
        let (Some(row), Some(base)) = (self.row(subject), self.row(to)) else { return f64::NAN };
        median(row.rounds.iter().zip(&base.rounds).map(|(round, base)| of(round) / of(base)).collect())
    }

    fn title(&self) -> String {
        format!("{}, {} in flight", self.mode.name(), self.in_flight)
    }
}

/// A ratio, if both rows were measured.
fn shown(ratio: f64) -> String {
    if ratio.is_nan() { "-".to_owned() } else { digits(ratio) }
}

pub fn table(part: &Part) -> String {
    let mut text = format!(
        "| mode {} | CPU us a write | of one shard | of etcd | p50, p99 us | p50, p99 of one shard | p50 of etcd | sent bytes a write | writes/s |\n|{}",
        part.title(),
        " --- |".repeat(9)
    );
    for row in &part.rows {
        let mut cpu = digits(row.median(CPU));
        let roles = row.roles();
        if roles.len() > 1 {
            let roles = roles.iter().map(|(role, us)| format!("{role} {}", digits(*us)));
            cpu += &format!(": {}", roles.collect::<Vec<_>>().join(", "));
        }
        let ratio = |of, to| shown(part.ratio(of, row.subject, to));
        text += &format!(
            "\n| {} | {cpu} | {} | {} | {}, {} | {}, {} | {} | {:.0} | {:.0} |",
            row.subject.name(),
            ratio(CPU, Subject::Alone),
            ratio(CPU, Subject::Etcd),
            digits(row.median(P50)),
            digits(row.median(P99)),
            ratio(P50, Subject::Alone),
            ratio(P99, Subject::Alone),
            ratio(P50, Subject::Etcd),
            row.median(|round| round.shipped),
            row.median(|round| round.sample.ops_per_second),
        );
    }
    text
}

/// What is aimed at for a primary with a standby that counts: the ratio of a number to another row, and its limit.
const AIMS: [(&str, Of, Subject, f64); 3] = [
    ("CPU of one shard", CPU, Subject::Alone, 1.5),
    ("p50 of one shard", P50, Subject::Alone, 1.3),
    ("CPU of etcd", CPU, Subject::Etcd, 0.25),
];

/// The aims beside what was measured.
pub fn aims(parts: &[Part]) -> String {
    let titles = parts.iter().map(Part::title).collect::<Vec<_>>().join(" | ");
    let mut text = format!("| {} | at most | {titles} |", Subject::Sync.name());
    text += &format!("\n|{}", " --- |".repeat(parts.len() + 2));
    for (name, of, to, limit) in AIMS {
        text += &format!("\n| {name} | {limit:.2} |");
        for part in parts {
            let ratio = part.ratio(of, Subject::Sync, to);
            text += &format!(" {}{} |", shown(ratio), if ratio > limit { ", missed" } else { "" });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Latency;

    fn row(subject: Subject, cpus: &[f64], p50: f64, roles: &[&str]) -> Row {
        let round = |cpu: &f64| {
            let share = cpu / roles.len() as f64;
            let cpu_us = roles.iter().map(|role| ((*role).to_owned(), share)).collect();
            let latency = Latency { p50, p99: 2.0 * p50, ..Latency::default() };
            Round {
                sample: Sample { cpu_us, split: Vec::new(), latency, ops_per_second: 1e3 },
                shipped: 600.0,
            }
        };
        Row { subject, rounds: cpus.iter().map(round).collect() }
    }

    fn part() -> Part {
        Part {
            mode: Mode::Fsync,
            in_flight: 64,
            rows: vec![
                row(Subject::Alone, &[10.0, 20.0, 40.0], 100.0, &["primary"]),
                row(Subject::Sync, &[16.0, 28.0, 60.0], 120.0, &["primary", "standby"]),
                row(Subject::Etcd, &[80.0, 100.0, 400.0], 400.0, &["etcd", "etcd", "etcd"]),
            ],
        }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        assert_eq!(part().ratio(CPU, Subject::Sync, Subject::Alone), 1.5);
        assert!(part().ratio(CPU, Subject::TwoSync, Subject::Alone).is_nan());
    }

    #[test]
    fn a_row_has_its_processes_and_ratios() {
        let text = table(&part());
        let sync = "| primary + standby that counts | 28.0: primary 14.0, standby 14.0 | 1.50 | 0.20 | 120, 240 | 1.20, 1.20 | 0.30 | 600 | 1000 |";
        assert!(text.contains(sync), "{text}");
        assert!(text.contains("| etcd, three members | 100 | "), "{text}");
    }

    #[test]
    fn a_missed_aim_says_so() {
        let mut missed = part();
        missed.rows[1] = row(Subject::Sync, &[16.0, 28.0, 60.0], 140.0, &["primary", "standby"]);
        let text = aims(&[part(), missed]);
        assert!(text.contains("| CPU of one shard | 1.50 | 1.50 | 1.50 |"), "{text}");
        assert!(text.contains("| p50 of one shard | 1.30 | 1.20 | 1.40, missed |"), "{text}");
    }
}
