//! Checks recorded histories of etcd clients against the guarantees that etcd publishes and kindred gives.
//!
//! Pure: no I/O, no clock, no random number. Clients record a [`history::History`] against kindred or a stock etcd;
//! the module `history` says how. [`check`] reads the history and reports every violation with its evidence. A
//! history that was stored as JSON lines can be checked again at any time.
//!
//! * `log` reconstructs the event log of every key from acknowledged writes, reads and events.
//! * `watch` checks etcd's watch guarantees, one file each.
//! * `compacted` checks that "compacted" is answered only where something was compacted or lost.
//! * `lists` checks that a read at R is the state at R.
//! * `headers` checks that header revisions respect real time.
//! * `linearizability` checks that, for each key, one order of the operations explains every answer.
//!
//! **Architecture Invariant:** revisions are compared only within an order domain and are never assumed to be dense.

mod bytes;
mod compacted;
mod config;
mod effects;
mod headers;
pub mod history;
mod json;
mod latency;
mod linearizability;
mod lists;
mod log;
mod report;
mod watch;

pub use bytes::{Blob, Key, Value};
pub use config::{Config, Domain, DomainOf, Gap, HeaderScope};
pub use json::{Line, LineError};
pub use report::{Check, Counts, Report, Violation};

use history::{History, Outcome};
use watch::Context;

/// Runs every check on the history.
pub fn check(history: &History, config: &Config) -> Report {
    let mut report = Report::new(config.violations_per_check_max);
    let watches = watch::views(history);
    let log = log::Log::build(history, &watches, config, &mut report);
    report.counts.operations = history.operations.len();
    report.counts.unknown = history.operations.iter().filter(|o| o.outcome == Outcome::Unknown).count();
    report.counts.unknown_visible = log.visible.len();
    report.counts.keys = log.chains.len();
    report.counts.log_events = log.chains.values().map(|chain| chain.entries.len()).sum();
    report.counts.watches = watches.len();
    report.counts.events = watches.iter().map(|view| view.events.len()).sum();
    report.counts.progress = watches.iter().map(|view| view.progress.len()).sum();
    report.counts.resumes = watches.iter().filter(|view| view.resumes.is_some()).count();
    let context = Context { history, watches: &watches, log: &log, config };
    watch::check(&context, &mut report);
    compacted::check(&context, &mut report);
    lists::check(&context, &mut report);
    headers::check(&context, &mut report);
    linearizability::check(&context, &mut report);
    latency::check(&context, &mut report);
    report
}
