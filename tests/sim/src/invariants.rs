//! What must hold, a file for each invariant. Every one reads a run's record when the run is over and says what is
//! broken; `tests/mutations.rs` proves of every one that it can.

use std::fmt;

use crate::history::Record;

pub mod r1_unique;
pub mod r5_cut;

/// A breach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Of which invariant.
    pub invariant: &'static str,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

type Check = fn(&Record) -> Result<(), String>;

/// All invariants by name.
pub const ALL: &[(&str, Check)] = &[("r1_unique", r1_unique::check), ("r5_cut", r5_cut::check)];

/// Checks all.
#[must_use]
pub fn check(record: &Record) -> Vec<Violation> {
    let broken = ALL.iter().filter_map(|(invariant, check)| {
        let what = check(record).err()?;
        Some(Violation { invariant, what })
    });
    broken.collect()
}
