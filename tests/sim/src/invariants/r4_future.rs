//! **R4**: a revision above the current one is in the future. A read there is refused (over several stores: above T, the
//! highest of theirs), and no client's number moves a clock; one that is not in the future is not refused so.

use kindred_partition_config::ids::{Revision, SLOT_BITS};

use crate::history::{ReadAnswer, Record};

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for read in &record.reads {
        let Some(asked) = read.asked else { continue };
        match read.answer {
            // Nobody assigned or promised it, by the time of the answer.
            ReadAnswer::Data { .. } => {
                let micros = i64::try_from(read.held_micros).unwrap_or(i64::MAX >> SLOT_BITS);
                let walls = Revision((micros + 1) << SLOT_BITS);
                let published = record.events.iter().filter(|event| event.order < read.times.finished);
                let highest = published.map(|event| event.event.revision).max();
                // A store that restarts begins above its ceiling, which is ahead of its clock (R2).
                let begun = record.restarts.iter().filter(|restart| restart.order < read.times.finished);
                let begun = begun.map(|restart| restart.start).max();
                let known = highest.max(begun).unwrap_or(Revision::ZERO);
                if asked > walls.max(known) {
                    return Err(format!(
                        "a read of {:?} at {asked}, in the future, was answered",
                        read.range
                    ));
                }
            }
            // Some store had shown it when the read began.
            ReadAnswer::Future => {
                let concerned = |current: &&crate::history::Current| {
                    current.kind == read.kind && current.order < read.times.started
                };
                let shown = record.currents.iter().filter(concerned);
                let shown = shown.filter(|current| is_read(record, read.kind, current.store));
                if let Some(current) = shown.map(|current| current.current).max()
                    && asked <= current
                {
                    return Err(format!(
                        "a read of {:?} at {asked} was refused as future, though {current} was shown before",
                        read.range
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the store serves the Kind, and could be read: one whose clock is an hour off cannot be followed.
fn is_read(record: &Record, kind: usize, store: kindred_router_core::store::StoreIx) -> bool {
    record.bad_stores.is_empty() && record.kind_stores[kind].contains(&store)
}
