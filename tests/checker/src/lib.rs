//! Checks recorded histories of etcd clients against the guarantees that etcd publishes and kindred keeps.
//!
//! Pure: no I/O, no clock, no random. Clients record a [`history::History`] (its module says how) against kindred
//! or a stock etcd, [`check`] reads it and reports every violation with its evidence. A stored history (JSON
//! lines) can be checked again at any time.
//!
//! * `log`: the event log of every key, put together from acknowledged writes, reads and events;
//! * `watch`: etcd's watch guarantees, a file each;
//! * `compacted`: "compacted" is said only where something was compacted or lost;
//! * `lists`: a read at R is the state at R;
//! * `headers`: header revisions in real time;
//! * `linearizability`: per key, one order explains every answer.
//!
//! **Architecture Invariant:** revisions are compared within an order domain only and are never assumed dense.

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

/// Checks everything.
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
