//! Wing and Gong's search, depth first, with Lowe's memory of configurations already tried.
//!
//! A configuration is the set of the operations that are already in the order, and the state after them. Operations
//! are sorted by call, so `next` and `holes` describe the set: every operation below `next` is in it, except the holes.
//! This is short, whatever the length of the history.

use std::collections::HashSet;

use super::model::{Action, State};
use crate::history::Nanos;

/// One operation on a key.
#[derive(Clone, Debug)]
pub(super) struct KeyOp {
    pub(super) call: Nanos,
    /// None if the outcome is unknown: the operation may take effect at any later time, or never.
    pub(super) returned: Option<Nanos>,
    pub(super) action: Action,
    pub(super) line: String,
}

/// The operations on a key, sorted by call, and the state before the first.
#[derive(Clone, Debug)]
pub(super) struct KeyHistory {
    pub(super) initial: State,
    pub(super) ops: Vec<KeyOp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Linearizable,
    /// No order explains all operations. The longest one that was found explains this many.
    Impossible {
        explained: usize,
    },
    /// The search hit its bound.
    Undecided,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration {
    next: usize,
    holes: Vec<usize>,
    state: State,
}

struct Frame {
    configuration: Configuration,
    /// The configurations with one operation more. The last is tried first.
    further: Vec<Configuration>,
}

/// Searches for an order and remembers at most `states_max` configurations. One with many holes counts for more.
pub(super) fn search(history: &KeyHistory, states_max: usize) -> Verdict {
    let start = Configuration { next: 0, holes: Vec::new(), state: history.initial };
    let mut tried: HashSet<Configuration> = HashSet::new();
    let mut stack = vec![frame(history, start)];
    let (mut explained, mut spent) = (0, 0);
    while let Some(top) = stack.last_mut() {
        let depth = top.configuration.next - top.configuration.holes.len();
        explained = explained.max(depth);
        if is_complete(history, &top.configuration) {
            return Verdict::Linearizable;
        }
        let Some(configuration) = top.further.pop() else {
            stack.pop();
            continue;
        };
        if spent >= states_max {
            return Verdict::Undecided;
        }
        spent += 1 + configuration.holes.len() / 16;
        if tried.insert(configuration.clone()) {
            stack.push(frame(history, configuration));
        }
    }
    Verdict::Impossible { explained }
}

/// The order is complete when only operations with unknown outcome are left.
fn is_complete(history: &KeyHistory, configuration: &Configuration) -> bool {
    let left = configuration.holes.iter().copied().chain(configuration.next..history.ops.len());
    left.map(|index| &history.ops[index]).all(|op| op.returned.is_none())
}

/// The configurations that can follow. An operation can come next if no other remaining operation had returned before
/// it was called.
fn frame(history: &KeyHistory, configuration: Configuration) -> Frame {
    let mut candidates: Vec<usize> = Vec::new();
    let mut first_return = Nanos(u64::MAX);
    for index in configuration.holes.iter().copied().chain(configuration.next..history.ops.len()) {
        let op = &history.ops[index];
        if op.call > first_return {
            break;
        }
        first_return = first_return.min(op.returned.unwrap_or(Nanos(u64::MAX)));
        candidates.push(index);
    }
    candidates.retain(|index| history.ops[*index].call <= first_return);
    // Operations of unknown outcome that do the same are interchangeable, so only the first of them is tried.
    let mut kept: Vec<usize> = Vec::new();
    for index in candidates {
        let op = &history.ops[index];
        let same = |other: &&usize| {
            let other = &history.ops[**other];
            other.returned.is_none() && other.action == op.action
        };
        if op.returned.is_some() || !kept.iter().any(|other| same(&other)) {
            kept.push(index);
        }
    }
    let mut candidates = kept;
    // The last candidate is tried first: the one with the lowest revision. Those of unknown outcome are tried last.
    candidates.sort_by_key(|index| {
        let op = &history.ops[*index];
        let revision = op.action.revision.or(op.action.header).unwrap_or(crate::history::Revision(i64::MAX));
        std::cmp::Reverse((
            op.returned.is_none() && op.action.revision.is_none(),
            revision,
            op.action.revision.is_none(),
        ))
    });
    let mut further = Vec::new();
    for index in candidates {
        for state in configuration.state.after(&history.ops[index].action) {
            further.push(with(&configuration, index, state));
        }
    }
    Frame { configuration, further }
}

fn with(before: &Configuration, index: usize, state: State) -> Configuration {
    let mut holes = before.holes.clone();
    let mut next = before.next;
    if index < next {
        holes.retain(|hole| *hole != index);
    } else {
        holes.extend(next..index);
        next = index + 1;
    }
    Configuration { next, holes, state }
}
