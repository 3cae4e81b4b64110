//! **Liveness** (docs/design.md): once faults have stopped, every watch exists and has caught up within bounded virtual
//! time ([`crate::run::SETTLE`]). A store whose clock is an hour off holds back the ranges that it shares, never order
//! (R6), and nothing else: watches that do not need it are held to this all the same.

use crate::history::{Logical, Order, Published, Record, TruthEvent};
use crate::invariants::watch_events::got;
use crate::truth;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for (at, logical) in record.logicals.iter().enumerate() {
        let bad =
            record.stores_at(logical.kind, Order::MAX).iter().any(|store| record.bad_stores.contains(store));
        if bad {
            continue;
        }
        caught_up(record, at, logical)?;
    }
    Ok(())
}

fn caught_up(record: &Record, at: usize, logical: &Logical) -> Result<(), String> {
    let last = record.streams.iter().rev().find_map(|stream| {
        let create = stream.creates.iter().rev().find(|create| create.logical == at)?;
        Some((stream, create))
    });
    let Some((stream, create)) = last else {
        return Err(format!("a watch of {:?} was never asked for", logical.range));
    };
    let Some((start, got)) = got(stream, create) else {
        return Err(format!("a watch of {:?} from {:?} was never created", logical.range, create.start));
    };
    let mut due = truth::events(record, logical.kind, &logical.range).filter(|published| {
        let wanted = !(logical.no_delete && published.event.is_delete);
        published.event.revision >= start && wanted && published.lost.is_none()
    });
    let has =
        |event: &TruthEvent| got.iter().any(|got| got.revision == event.revision && got.key == event.key);
    match due.find(|published| !has(&published.event)) {
        Some(missing) => {
            let Published { store, event, .. } = missing;
            Err(format!("a watch of {:?} from {start} never got {event:?} of {store:?}", logical.range))
        }
        None => Ok(()),
    }
}
