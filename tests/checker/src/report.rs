//! What was checked, and every violation with its evidence.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The guarantee that a violation breaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Check {
    /// The evidence contradicts itself: two contents for one revision of a key, versions that do not follow.
    Log,
    /// Events in revision order.
    Ordered,
    /// No event twice.
    Unique,
    /// A revision is not split over responses.
    Atomic,
    /// No event is dropped.
    Reliable,
    /// A watch from N delivers what happened at or after N, and only that.
    Resumable,
    /// What is refused or canceled as compacted was compacted, or lost in a restart.
    Compacted,
    /// Nothing at or below a progress revision comes later.
    Bookmarkable,
    /// The version before, and its revisions.
    PrevKv,
    /// Only what was asked for.
    Filter,
    /// `create_revision == mod_revision` means created.
    IsCreate,
    /// A read at R is the state at R.
    List,
    /// Header revisions: never back, never below an acknowledged write.
    Header,
    /// Per key, one order explains every answer.
    Linearizable,
    /// Slower than the configured bound.
    Latency,
}

/// One broken guarantee.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    /// Which guarantee.
    pub check: Check,
    /// What is wrong, in one line.
    pub message: String,
    /// What shows it, in reading order.
    pub evidence: Vec<String>,
}

/// How much was checked: a report without violations means little if these are small.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Operations in the history.
    pub operations: usize,
    /// Of these, with an unknown outcome.
    pub unknown: usize,
    /// Of the unknown, seen to have run by what they wrote.
    pub unknown_visible: usize,
    /// Keys with at least one operation or event.
    pub keys: usize,
    /// Events in the reconstructed log.
    pub log_events: usize,
    /// Watches.
    pub watches: usize,
    /// Events that watches received.
    pub events: usize,
    /// Progress notifications received.
    pub progress: usize,
    /// Watches that continue another.
    pub resumes: usize,
    /// Reads compared with the log.
    pub reads: usize,
    /// Keys of such reads left out because an unseen write may have changed them.
    pub reads_uncertain: usize,
    /// Keys whose operations were found linearizable.
    pub keys_linearizable: usize,
    /// Keys left undecided because the search hit its bound, or because of a gap.
    pub keys_undecided: usize,
}

/// The result of `check`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// How much was checked.
    pub counts: Counts,
    /// Everything that is wrong, up to the configured number per check.
    pub violations: Vec<Violation>,
    /// Violations found beyond that number.
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

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether this check found something.
    pub fn has(&self, check: Check) -> bool {
        self.per_check.contains_key(&check)
    }

    /// The checks that found something.
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
