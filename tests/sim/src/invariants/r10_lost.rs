//! **R10**: nobody misses a loss. A watch that delivered an event which its store then lost ends as compacted before it
//! delivers anything that the store published after its restart, and before the end of the run in any case. A store has
//! everything that it says it still has.

use crate::history::{Heard, Order, Published, Record};
use crate::truth;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    if let Some(contradiction) = record.contradictions.first() {
        return Err(contradiction.clone());
    }
    if record.events.iter().all(|event| event.lost.is_none()) {
        return Ok(());
    }
    (0..record.logicals.len()).try_for_each(|logical| of_logical(record, logical))
}

fn of_logical(record: &Record, at: usize) -> Result<(), String> {
    let logical = &record.logicals[at];
    let lost: Vec<&Published> =
        truth::events(record, logical.kind, &logical.range).filter(|event| event.lost.is_some()).collect();
    let mut held: Option<&Published> = None;
    for (_, heard) in in_order(record, at) {
        match heard {
            Heard::Compacted { .. } => held = None,
            Heard::Events { events, .. } => {
                for got in events {
                    let later = held.filter(|held| is_behind(record, held, got.revision));
                    if let Some(held) = later {
                        return Err(format!(
                            "a watch of {:?} was given {got:?} though it keeps {:?}, which its store has lost",
                            logical.range, held.event
                        ));
                    }
                    let found = lost
                        .iter()
                        .find(|lost| lost.event.revision == got.revision && lost.event.key == got.key);
                    held = found.copied().or(held);
                }
            }
            _ => {}
        }
    }
    match held {
        Some(held) => Err(format!(
            "a watch of {:?} was never told that its store has lost {:?}",
            logical.range, held.event
        )),
        None => Ok(()),
    }
}

/// Whether this is a revision that the store assigned after it had lost the event.
fn is_behind(record: &Record, lost: &Published, revision: kindred_partition_config::ids::Revision) -> bool {
    let mut events = record.events.iter().filter(|event| event.store == lost.store);
    events.any(|event| event.event.revision == revision && lost.is_lost_by(event.order))
}

/// The messages of a watch on all of its connections.
fn in_order(record: &Record, logical: usize) -> Vec<(Order, &Heard)> {
    let mut all = Vec::new();
    for stream in &record.streams {
        for create in stream.creates.iter().filter(|create| create.logical == logical) {
            all.extend(stream.heard.iter().filter_map(|(order, _, heard)| match heard {
                Heard::Events { watch, .. } | Heard::Compacted { watch, .. } if *watch == create.watch => {
                    Some((*order, heard))
                }
                _ => None,
            }));
        }
    }
    all.sort_by_key(|(order, _)| *order);
    all
}
