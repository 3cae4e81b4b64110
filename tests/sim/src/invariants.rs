//! The invariants, a file for each. Each reads the record of a run when the run is over, and says what is broken.
//! `tests/mutations.rs` proves that each can fail.

use std::fmt;

use crate::history::Record;

pub mod liveness;
pub mod moves_end;
pub mod owners_agree;
pub mod r10_lost;
pub mod r12_leases;
pub mod r13_one_owner;
pub mod r1_unique;
pub mod r22_order;
pub mod r3_bounded;
pub mod r4_current;
pub mod r4_future;
pub mod r5_pins;
pub mod r5_snapshot;
pub mod r6_order;
pub mod r7_progress;
pub mod r8_shown;
pub mod r8_start;
pub mod r9_durable;
pub mod watch_events;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

type Check = fn(&Record) -> Result<(), String>;

pub const ALL: &[(&str, Check)] = &[
    ("r1_unique", r1_unique::check),
    ("r3_bounded", r3_bounded::check),
    ("r4_current", r4_current::check),
    ("r4_future", r4_future::check),
    ("r5_snapshot", r5_snapshot::check),
    ("r5_pins", r5_pins::check),
    ("r6_order", r6_order::check),
    ("r7_progress", r7_progress::check),
    ("r8_shown", r8_shown::check),
    ("r8_start", r8_start::check),
    ("r22_order", r22_order::check),
    ("r9_durable", r9_durable::check),
    ("r10_lost", r10_lost::check),
    ("r12_leases", r12_leases::check),
    ("r13_one_owner", r13_one_owner::check),
    ("moves_end", moves_end::check),
    ("owners_agree", owners_agree::check),
    ("watch_events", watch_events::check),
    ("liveness", liveness::check),
];

#[must_use]
pub fn check(record: &Record) -> Vec<Violation> {
    let broken = ALL.iter().filter_map(|(invariant, check)| {
        let what = check(record).err()?;
        Some(Violation { invariant, what })
    });
    broken.collect()
}
