//! **R4**: a revision above the current one is in the future. A read there is refused (over several stores: above T,
//! the highest of theirs), and no revision of a client moves a clock. A read at any other revision is not refused for
//! that.

use kindred_partition_config::ids::{Revision, SLOT_BITS};

use crate::history::{Read, ReadAnswer, Record};

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for read in &record.reads {
        let Some(asked) = read.asked else { continue };
        match read.answer {
            // No store had assigned or promised it by the time of the answer.
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
            // A client had seen it when the read began.
            ReadAnswer::Future => {
                let concerned = |current: &&crate::history::Current| {
                    current.kind == read.kind && current.order < read.times.started
                };
                let shown = record.currents.iter().filter(concerned);
                let shown = shown.filter(|current| is_read(record, read.kind, current));
                let shown = shown.map(|current| current.shown).chain(answered(record, read));
                if let Some(current) = shown.max().filter(|current| asked <= *current) {
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

/// The highest revision of the Kind that a client had seen before the read began, if all stores could be followed and
/// lost nothing.
fn answered(record: &Record, read: &Read) -> Option<Revision> {
    if !record.bad_stores.is_empty() || !record.restarts.is_empty() {
        return None;
    }
    let before = |of: &Read| of.kind == read.kind && of.times.finished < read.times.started;
    let headers = record.reads.iter().filter(|of| before(of)).filter_map(|of| match of.answer {
        ReadAnswer::Data { header, .. } => Some(header),
        _ => None,
    });
    headers.max()
}

/// Whether the store served the Kind then, and could be read: one whose clock is an hour off cannot be followed. A
/// freeze promises its final revision, which is shown to no client before the switch (R15a).
fn is_read(record: &Record, kind: usize, current: &crate::history::Current) -> bool {
    let is_final = |freeze: &crate::history::Freeze| {
        freeze.store == current.store
            && freeze.last == current.current
            && freeze.unit.overlaps(&record.kinds[kind])
    };
    record.bad_stores.is_empty()
        && record.stores_at(kind, current.order).contains(&current.store)
        && !record.freezes.iter().any(is_final)
}
