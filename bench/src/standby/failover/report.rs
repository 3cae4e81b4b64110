//! Renders failover times as Markdown and as a plot. The same numbers produce the same text.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    plot::{Line, Lines, digits},
    stats::{median, percentile},
};

/// What happens to the members of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    KillPrimary,
    PausePrimary,
    HandOver,
    KillStandby,
}

/// What is aimed at: the pauses are shorter than this many milliseconds.
#[derive(Debug, Clone, Copy)]
struct Aims {
    name: &'static str,
    median: Option<f64>,
    p99: f64,
}

const PRIMARY_LOST: Aims = Aims { name: "primary lost", median: Some(1_500.0), p99: 3_000.0 };
const HANDOVER: Aims = Aims { name: "handover", median: None, p99: 300.0 };

impl Fault {
    pub const ALL: [Self; 4] = [Self::KillPrimary, Self::PausePrimary, Self::HandOver, Self::KillStandby];

    pub fn name(self) -> &'static str {
        match self {
            Self::KillPrimary => "primary killed",
            Self::PausePrimary => "primary paused",
            Self::HandOver => "handover",
            Self::KillStandby => "standby killed",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::KillPrimary => "#d55e00",
            Self::PausePrimary => "#cc79a7",
            Self::HandOver => "#0072b2",
            Self::KillStandby => "#009e73",
        }
    }

    fn aims(self) -> Option<Aims> {
        match self {
            Self::KillPrimary | Self::PausePrimary => Some(PRIMARY_LOST),
            Self::HandOver => Some(HANDOVER),
            Self::KillStandby => None,
        }
    }
}

/// The shares of the faults in the plot, in percent.
const SHARES: [u8; 11] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 99, 100];
const MEDIAN: u8 = 50;
const P99: u8 = 99;

#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The microseconds for which no write was acknowledged, at each fault.
    pauses: BTreeMap<Fault, Vec<u64>>,
    /// The longest time without an acknowledged write while there was no fault.
    pub calm: Duration,
    /// Acknowledged writes.
    pub writes: u64,
    /// The errors that clients saw, by text.
    pub errors: BTreeMap<String, u64>,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The pauses at one kind of fault in milliseconds.
struct Row {
    sorted: Vec<u64>,
}

impl Row {
    /// What this share of the pauses does not exceed; NaN if there were none.
    fn at(&self, share: f64) -> f64 {
        percentile(&self.sorted, share).map_or(f64::NAN, |micros| micros as f64 / 1e3)
    }

    fn median(&self) -> f64 {
        median(self.sorted.iter().map(|micros| *micros as f64 / 1e3).collect())
    }

    /// Each aim, and whether it is missed.
    fn beside(&self, aims: Aims) -> String {
        let aim = |name: &str, is: f64, limit: f64| {
            format!("{name} < {limit:.0}{}", if is < limit { "" } else { ", missed" })
        };
        let median = aims.median.map(|limit| aim("median", self.median(), limit));
        let all: Vec<String> = median.into_iter().chain([aim("p99", self.at(0.99), aims.p99)]).collect();
        all.join("; ")
    }
}

impl Report {
    /// Adds the time for which no write was acknowledged at a fault.
    pub fn add(&mut self, fault: Fault, pause: Duration) {
        self.pauses.entry(fault).or_default().push(micros(pause));
    }

    fn row(&self, fault: Fault) -> Row {
        let mut sorted = self.pauses.get(&fault).cloned().unwrap_or_default();
        sorted.sort_unstable();
        Row { sorted }
    }

    pub fn markdown(&self) -> String {
        let mut text = format!(
            "| fault | times | no write for, median ms | p99 ms | at most ms | aims |\n|{}",
            " --- |".repeat(6)
        );
        for fault in Fault::ALL {
            let row = self.row(fault);
            text += &format!(
                "\n| {} | {} | {} | {} | {} | {} |",
                fault.name(),
                row.sorted.len(),
                digits(row.median()),
                digits(row.at(0.99)),
                digits(row.at(1.0)),
                fault.aims().map_or_else(|| "-".to_owned(), |aims| row.beside(aims)),
            );
        }
        let errors: u64 = self.errors.values().sum();
        text += &format!(
            "\n\n{} writes were acknowledged, and none of them is lost. Clients saw {errors} errors. Without a fault, no write\n\
             was acknowledged for {} ms at most.",
            self.writes,
            digits(micros(self.calm) as f64 / 1e3),
        );
        for (error, times) in &self.errors {
            text += &format!("\n- {times} times: {error}");
        }
        text
    }

    /// The pauses that each share of the faults does not exceed, and the aims.
    pub fn lines(&self, debug: bool) -> Lines {
        let of = |fault: Fault| {
            let row = self.row(fault);
            let at = |share: u8| match share {
                MEDIAN => row.median(),
                share => row.at(f64::from(share) / 100.0),
            };
            Line {
                name: format!("{}, {} times", fault.name(), row.sorted.len()),
                colour: fault.colour().to_owned(),
                dashed: false,
                values: SHARES.map(|share| Some(at(share))).to_vec(),
            }
        };
        let aim = |aims: Aims| Line {
            name: format!("aim, {}", aims.name),
            colour: if aims.median.is_some() { "#222222" } else { "#999999" }.to_owned(),
            dashed: true,
            values: SHARES
                .map(|share| match share {
                    MEDIAN => aims.median,
                    P99 => Some(aims.p99),
                    _ => None,
                })
                .to_vec(),
        };
        let built = if debug { ", not optimised (a debug build)" } else { "" };
        Lines {
            title: format!("How long no write was acknowledged{built}"),
            below: "share of the faults".to_owned(),
            beside: "milliseconds".to_owned(),
            steps: SHARES.map(|share| format!("{share} %")).to_vec(),
            lines: Fault::ALL.map(of).into_iter().chain([PRIMARY_LOST, HANDOVER].map(aim)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report { calm: Duration::from_millis(7), writes: 1_234, ..Report::default() };
        for (fault, millis) in [
            (Fault::KillPrimary, [900, 1_000, 1_200]),
            (Fault::PausePrimary, [3_100, 1_600, 1_400]),
            (Fault::HandOver, [40, 300, 50]),
            (Fault::KillStandby, [800, 700, 900]),
        ] {
            millis.into_iter().for_each(|millis| report.add(fault, Duration::from_millis(millis)));
        }
        report.errors.insert("unavailable".to_owned(), 2);
        report
    }

    #[test]
    fn each_fault_has_its_row_with_what_is_aimed_at() {
        let text = report().markdown();
        for row in [
            "| primary killed | 3 | 1000 | 1200 | 1200 | median < 1500; p99 < 3000 |",
            "| primary paused | 3 | 1600 | 3100 | 3100 | median < 1500, missed; p99 < 3000, missed |",
            "| handover | 3 | 50.0 | 300 | 300 | p99 < 300, missed |",
            "| standby killed | 3 | 800 | 900 | 900 | - |",
        ] {
            assert!(text.contains(row), "{text}");
        }
        assert!(text.contains("1234 writes were acknowledged"), "{text}");
        assert!(text.contains("Clients saw 2 errors."), "{text}");
        assert!(text.contains("for 7.00 ms at most."), "{text}");
        assert!(text.ends_with("\n- 2 times: unavailable"), "{text}");
    }

    #[test]
    fn a_plot_has_all_pauses_and_the_aims_at_their_shares() {
        let lines = report().lines(false);
        let values = |at: usize| -> Vec<f64> { lines.lines[at].values.iter().flatten().copied().collect() };
        let killed =
            [900.0, 900.0, 900.0, 1_000.0, 1_000.0, 1_000.0, 1_200.0, 1_200.0, 1_200.0, 1_200.0, 1_200.0];
        assert_eq!(values(0), killed);
        assert_eq!((values(4), values(5)), (vec![1_500.0, 3_000.0], vec![300.0]));
        assert_eq!((&*lines.steps[4], &*lines.steps[9]), ("50 %", "99 %"));
        assert_eq!(lines.svg(), report().lines(false).svg());
        assert!(report().lines(true).svg().contains("a debug build"));
    }

    #[test]
    fn nothing_measured_is_a_report_too() {
        assert!(!Report::default().lines(false).svg().contains("NaN"));
        assert!(Report::default().markdown().contains("| handover | 0 | "));
    }
}
