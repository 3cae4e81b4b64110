//! **R6**, **R8**: etcd's guarantees of a watch, through any mix of routers: ordered, unique, atomic, reliable and
//! resumable. A client gets on each connection exactly the events of its range from its first revision on, except those
//! that the store has lost, with the previous version where it asked for that. Headers are not below their events.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use crate::history::{Create, Got, Heard, Record, StreamRecord};
use crate::truth;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    record
        .streams
        .iter()
        .try_for_each(|stream| stream.creates.iter().try_for_each(|create| of_create(record, stream, create)))
}

/// The events of a watch on a connection, and its first revision; none if it was never created there.
#[must_use]
pub fn got<'r>(stream: &'r StreamRecord, create: &Create) -> Option<(Revision, Vec<&'r Got>)> {
    let mut start = None;
    let mut events = Vec::new();
    for (_, _, heard) in &stream.heard {
        match heard {
            Heard::Created { watch, header } if *watch == create.watch => {
                start = Some(create.start.unwrap_or(header.next()));
            }
            Heard::Events { watch, events: more, .. } if *watch == create.watch => events.extend(more),
            _ => {}
        }
    }
    Some((start?, events))
}

fn of_create(record: &Record, stream: &StreamRecord, create: &Create) -> Result<(), String> {
    let logical = &record.logicals[create.logical];
    let name = || format!("watch {} of {:?}", create.watch, logical.range);
    for (_, _, heard) in &stream.heard {
        if let Heard::Events { watch, header, events } = heard
            && *watch == create.watch
            && events.last().is_some_and(|last| last.revision > *header)
        {
            return Err(format!("{}: a header of {header} below its events", name()));
        }
    }
    let Some((start, got)) = got(stream, create) else { return Ok(()) };
    let Some(last) = got.last().map(|last| last.revision) else { return Ok(()) };
    let mut due: BTreeMap<Revision, Vec<(Got, bool)>> = BTreeMap::new();
    for published in truth::events(record, logical.kind, &logical.range) {
        let event = &published.event;
        if (start..=last).contains(&event.revision) && !(logical.no_delete && event.is_delete) {
            let of = Got {
                revision: event.revision,
                key: event.key.clone(),
                is_delete: event.is_delete,
                prev: event.prev.filter(|_| logical.prev_kv),
            };
            due.entry(event.revision).or_default().push((of, published.lost.is_some()));
        }
    }
    let due: Vec<(Got, bool)> = due.into_values().flatten().collect();
    let mut got: Vec<&Got> = got;
    in_due_order(record, &due, &mut got);
    // An event that its store has lost may have come or not.
    let mut got = got.into_iter().peekable();
    for (due, lost) in &due {
        if got.next_if(|got| *got == due).is_none() && !lost {
            return Err(format!("{} from {start}: got {:?} where {due:?} is true", name(), got.peek()));
        }
    }
    match got.next() {
        Some(more) => Err(format!("{} from {start}: got {more:?}, which is not true", name())),
        None => Ok(()),
    }
}

/// Keys that were written together may be on several stores now, none of which knows their order among each other: as
/// far as they were apart, they are put into the order in which they are due.
fn in_due_order(record: &Record, due: &[(Got, bool)], got: &mut [&Got]) {
    if record.maps.len() < 2 {
        return;
    }
    let place =
        |got: &Got| due.iter().position(|(due, _)| due.revision == got.revision && due.key == got.key);
    for of_revision in got.chunk_by_mut(|a, b| a.revision == b.revision) {
        let swapped = |at: usize, of: &[&Got]| {
            place(of[at]) > place(of[at + 1]) && record.were_apart(&of[at].key, &of[at + 1].key)
        };
        while let Some(at) = (0..of_revision.len() - 1).find(|at| swapped(*at, of_revision)) {
            of_revision.swap(at, at + 1);
        }
    }
}
