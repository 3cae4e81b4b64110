//! Linearizability of each key: one order of its operations, consistent with real time, explains every answer.
//!
//! The search is Wing and Gong's with Lowe's memoisation. An operation with unknown outcome may take effect at any
//! later time or never. Revisions constrain the order. An acknowledged write takes effect exactly at its header's
//! revision, the revisions of a key increase, and a header at R covers every write of the key at or below R. So most
//! histories are decided without backtracking. `Config::search_states_max` bounds the memory. A key that needs more
//! is undecided.

mod model;
mod project;
mod search;
mod shrink;

use crate::report::{Check, Report};
use crate::watch::Context;
use search::Verdict;

/// Searches for an order for every key.
pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    let states_max = context.config.search_states_max;
    for (key, history) in project::project(context) {
        let lost = context.log.chains.get(&key).is_some_and(|chain| chain.entries.iter().any(|e| e.lost));
        if lost {
            report.counts.keys_undecided += 1;
            continue;
        }
        match search::search(&history, states_max) {
            Verdict::Linearizable => report.counts.keys_linearizable += 1,
            Verdict::Undecided => report.counts.keys_undecided += 1,
            Verdict::Impossible { explained } => {
                let shortest = shrink::shrink(&history);
                let message = format!(
                    "{key}: no order explains its {} operations ({explained} of them at best); the shortest part \
                     that cannot be explained has {}",
                    history.ops.len(),
                    shortest.ops.len()
                );
                let evidence = shortest.ops.iter().map(|op| op.line.clone()).collect();
                report.add(Check::Linearizable, message, evidence);
            }
        }
    }
}
