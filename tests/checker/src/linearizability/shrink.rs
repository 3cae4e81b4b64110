//! Finds a short part of a failing history, so that a person can read it.
//!
//! Every reduction only weakens the constraints, so a part without an order proves that the whole has none. Operations
//! that are not finished at the new end become unknown. The state before the first remaining operation becomes `Any`.
//! Reads may be left out, but writes never.

use super::model::{Known, State, Step};
use super::search::{KeyHistory, KeyOp, Verdict, search};
use crate::history::{Nanos, Revision};

const STATES_MAX: usize = 100_000;
const READS_TRIED_MAX: usize = 400;

pub(super) fn shrink(history: &KeyHistory) -> KeyHistory {
    let shorter = cut_start(&cut_end(history));
    drop_reads(&shorter)
}

fn fails(history: &KeyHistory) -> bool {
    matches!(search(history, STATES_MAX), Verdict::Impossible { .. })
}

fn returns(history: &KeyHistory) -> Vec<Nanos> {
    let mut times: Vec<Nanos> = history.ops.iter().filter_map(|op| op.returned).collect();
    times.sort();
    times
}

/// Ends the history at the earliest moment at which it already fails.
fn cut_end(history: &KeyHistory) -> KeyHistory {
    let until = |time: Nanos| {
        let started = history.ops.iter().filter(|op| op.call <= time).cloned();
        let ops = started.map(|op| KeyOp { returned: op.returned.filter(|at| *at <= time), ..op }).collect();
        KeyHistory { initial: history.initial, ops }
    };
    let times = returns(history);
    let first = times.partition_point(|time| !fails(&until(*time)));
    times.get(first).map_or_else(|| history.clone(), |time| until(*time))
}

/// Begins the history at the latest moment from which it still fails, whatever the state was at that moment.
fn cut_start(history: &KeyHistory) -> KeyHistory {
    let from = |time: Nanos| {
        let ops = history.ops.iter().filter(|op| op.returned.is_none_or(|at| at >= time)).cloned().collect();
        KeyHistory { initial: State { known: Known::Any, floor: Revision(0) }, ops }
    };
    let times = returns(history);
    let failing = times.partition_point(|time| fails(&from(*time)));
    match failing.checked_sub(1).map(|last| from(times[last])) {
        Some(shorter) if fails(&shorter) => shorter,
        _ => history.clone(),
    }
}

fn drop_reads(history: &KeyHistory) -> KeyHistory {
    let mut shorter = history.clone();
    let mut index = 0;
    for _ in 0..READS_TRIED_MAX {
        let Some(op) = shorter.ops.get(index) else { break };
        let only_reads = op.action.alternatives.iter().flatten().all(|step| {
            matches!(step, Step::Read(_) | Step::Holds(_) | Step::Fails(_) | Step::Delete(Some(false)))
        });
        if only_reads {
            let removed = shorter.ops.remove(index);
            if fails(&shorter) {
                continue;
            }
            shorter.ops.insert(index, removed);
        }
        index += 1;
    }
    shorter
}
