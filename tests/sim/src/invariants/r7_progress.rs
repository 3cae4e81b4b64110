//! **R7**: a progress answer covers every watch of its stream, so a client may resume all of them behind it. It is at
//! or above every event that was sent before, and never goes back. Every event at or below it was sent before. No watch
//! begins above it.

use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::ids::Revision;

use crate::history::{Heard, Order, Record, StreamRecord, WriteAnswer};
use crate::truth;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    record.streams.iter().try_for_each(|stream| of_stream(record, stream))
}

/// A watch on its way.
struct At {
    start: Revision,
    sent: Revision,
    promised: Revision,
    events: BTreeSet<(Revision, Vec<u8>)>,
}

fn of_stream(record: &Record, stream: &StreamRecord) -> Result<(), String> {
    let mut watches: BTreeMap<i64, At> = BTreeMap::new();
    let mut last = Revision::ZERO;
    for (order, _, heard) in &stream.heard {
        match heard {
            Heard::Created { watch, header } => {
                let create = stream.creates.iter().find(|create| create.watch == *watch);
                let start = create.and_then(|create| create.start).unwrap_or(header.next());
                let at =
                    At { start, sent: Revision::ZERO, promised: Revision::ZERO, events: BTreeSet::new() };
                watches.insert(*watch, at);
            }
            Heard::Events { watch, events, .. } => {
                let Some(at) = watches.get_mut(watch) else { continue };
                for event in events {
                    if event.revision <= at.promised {
                        return Err(format!("watch {watch}: {event:?} behind a promise of {}", at.promised));
                    }
                    at.sent = at.sent.max(event.revision);
                    at.events.insert((event.revision, event.key.clone()));
                }
            }
            Heard::Progress { watch, at: promise } => {
                if watch.is_none() {
                    if *promise < last {
                        return Err(format!("progress went back from {last} to {promise}"));
                    }
                    last = *promise;
                    covers_acknowledged(record, stream, *order, *promise)?;
                }
                let concerned = watches.iter_mut().filter(|(id, _)| watch.is_none_or(|watch| watch == **id));
                for (id, at) in concerned {
                    covers(record, stream, (*id, at), *promise, *order)?;
                    at.promised = at.promised.max(*promise);
                }
            }
            Heard::Compacted { watch, .. } | Heard::Cancelled { watch } => {
                watches.remove(watch);
            }
        }
    }
    Ok(())
}

fn covers(
    record: &Record,
    stream: &StreamRecord,
    (id, at): (i64, &At),
    promise: Revision,
    order: Order,
) -> Result<(), String> {
    if promise < at.sent {
        return Err(format!("progress at {promise}, below an event at {} of watch {id}", at.sent));
    }
    if promise.next() < at.start {
        return Err(format!("progress at {promise}, though watch {id} begins at {}", at.start));
    }
    let Some(create) = stream.creates.iter().find(|create| create.watch == id) else { return Ok(()) };
    let logical = &record.logicals[create.logical];
    let due = truth::events(record, logical.kind, &logical.range)
        .filter(|published| !(logical.no_delete && published.event.is_delete))
        .filter(|published| (at.start..=promise).contains(&published.event.revision))
        .filter(|published| !published.is_lost_by(order));
    let mut missing =
        due.filter(|published| !at.events.contains(&(published.event.revision, published.event.key.clone())));
    match missing.next() {
        Some(missing) => {
            Err(format!("progress at {promise}, where watch {id} had not been given {:?}", missing.event))
        }
        None => Ok(()),
    }
}

/// The answer is at or above what any client had seen of the watched keys before the first request on the stream.
fn covers_acknowledged(
    record: &Record,
    stream: &StreamRecord,
    here: u64,
    promise: Revision,
) -> Result<(), String> {
    let Some(asked) = stream.asked.first().filter(|asked| **asked < here) else { return Ok(()) };
    for create in &stream.creates {
        // The answer covers the watches that its stream had then.
        let had = stream.heard.iter().any(|(order, _, heard)| {
            matches!(heard, Heard::Created { watch, .. } if *watch == create.watch) && order < asked
        });
        let ended = stream.heard.iter().any(|(order, _, heard)| {
            let (Heard::Compacted { watch, .. } | Heard::Cancelled { watch }) = heard else { return false };
            *watch == create.watch && *order < here
        });
        if !had || ended {
            continue;
        }
        let logical = &record.logicals[create.logical];
        let before = record.writes.iter().filter(|write| {
            write.times.finished < *asked && logical.range.intersection(&write.range) == write.range
        });
        let highest = before.filter_map(|write| match write.answer {
            WriteAnswer::Done(at) => Some(at),
            _ => None,
        });
        if let Some(write) = highest.max().filter(|write| *write > promise) {
            return Err(format!(
                "progress at {promise}, though {write} was acknowledged before it was asked for"
            ));
        }
    }
    Ok(())
}
