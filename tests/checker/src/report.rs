//! The result of a check: how much was checked, and every violation with its evidence.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The guarantee that a violation breaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Check {
    /// The evidence does not contradict itself. A revision of a key has one content, and versions follow each other.
    Log,
    /// Events come in revision order.
    Ordered,
    /// No event comes twice.
    Unique,
    /// A revision is not split over responses.
    Atomic,
    /// No event is dropped.
    Reliable,
    /// A watch from N delivers what happened at or after N, and only that.
    Resumable,
    /// What is refused or canceled as compacted was compacted, or was lost in a restart.
    Compacted,
    /// No event at or below a progress revision comes after that progress.
    Bookmarkable,
    /// `prev_kv` is the previous version with its revisions.
    PrevKv,
    /// A watch delivers only events that pass its range and its filters.
    Filter,
    /// `create_revision == mod_revision` means created.
    IsCreate,
    /// A read at R is the state at R.
    List,
    /// A header never goes back and is never below an acknowledged write.
    Header,
    /// For each key, one order explains every answer.
    Linearizable,
    /// Nothing takes longer than the configured bound.
    Latency,
}

/// One broken guarantee.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    pub check: Check,
    /// One line.
    pub message: String,
    /// The operations, entries and responses that prove the violation, in reading order.
    pub evidence: Vec<String>,
}

/// How much was checked. A report without violations means little if these numbers are small.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    pub operations: usize,
    /// Operations with unknown outcome.
    pub unknown: usize,
    /// Operations with unknown outcome that certainly ran, because a client saw what they wrote.
    pub unknown_visible: usize,
    /// Keys with at least one write or event.
    pub keys: usize,
    /// Events in the reconstructed log.
    pub log_events: usize,
    pub watches: usize,
    /// Events that watches received.
    pub events: usize,
    /// Progress notifications that watches received.
    pub progress: usize,
    /// Watches that continue another.
    pub resumes: usize,
    /// Reads compared with the log.
    pub reads: usize,
    /// Keys that were left out of these comparisons because an unseen write may have changed them.
    pub reads_uncertain: usize,
    /// Keys whose operations were found linearizable.
    pub keys_linearizable: usize,
    /// Keys that are undecided because the search hit its bound, or because a gap lost some of their writes.
    pub keys_undecided: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub counts: Counts,
    /// At most the configured number for each check.
    pub violations: Vec<Violation>,
    /// The number of violations beyond that, for each check.
    pub suppressed: BTreeMap<Check, usize>,
    per_check: BTreeMap<Check, usize>,
    limit_per_check: usize,
}

impl Report {
    pub(crate) fn new(limit_per_check: usize) -> Self {
        Self { limit_per_check, ..Self::default() }
    }

    pub(crate) fn add(&mut self, check: Check, message: String, evidence: Vec<String>) {
        let found = self.per_check.entry(check).or_default();
        *found += 1;
        if *found > self.limit_per_check {
            *self.suppressed.entry(check).or_default() += 1;
            return;
        }
        self.violations.push(Violation { check, message, evidence });
    }

    /// Whether there is no violation.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether there is a violation of this check.
    pub fn has(&self, check: Check) -> bool {
        self.per_check.contains_key(&check)
    }

    /// The checks that have a violation.
    pub fn checks(&self) -> Vec<Check> {
        self.per_check.keys().copied().collect()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LINES_MAX: usize = 24;
        write!(f, "{:?}: {}", self.check, self.message)?;
        for line in self.evidence.iter().take(LINES_MAX) {
            write!(f, "\n    {line}")?;
        }
        if self.evidence.len() > LINES_MAX {
            write!(f, "\n    ... {} more lines", self.evidence.len() - LINES_MAX)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        writeln!(
            f,
            "{} operations ({} unknown, {} of them visible), {} keys, {} log events",
            c.operations, c.unknown, c.unknown_visible, c.keys, c.log_events
        )?;
        writeln!(
            f,
            "{} watches ({} resumed), {} events, {} progress; {} reads ({} keys uncertain)",
            c.watches, c.resumes, c.events, c.progress, c.reads, c.reads_uncertain
        )?;
        writeln!(f, "{} keys linearizable, {} undecided", c.keys_linearizable, c.keys_undecided)?;
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        for (check, count) in &self.suppressed {
            writeln!(f, "{check:?}: {count} more")?;
        }
        let total = self.per_check.values().sum::<usize>();
        write!(f, "{}", if total == 0 { "no violation".to_owned() } else { format!("{total} violations") })
    }
}
