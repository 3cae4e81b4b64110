//! **R9**: an acknowledged write outlives what the mode of its Kind promises: `fsync` everything but the loss of the
//! disk, `buffered` the end of the process, `none` a clean end only. Imported data is on the disk (R15b), and outlives
//! the same as `fsync` unless the mode is `none`.

use kindred_partition_config::model::Durability;
use kindred_router_core::store::StoreIx;

use crate::history::{Published, Record, Write, WriteAnswer};
use crate::shard::files::End;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    let Some(modes) = &record.modes else { return Ok(()) };
    for write in &record.writes {
        let WriteAnswer::Done(at) = write.answer else { continue };
        let Some((published, (store, end))) = lost_in(record, write, at) else { continue };
        let mode = modes[write.kind];
        // Events of another store were imported, and all of them were on the disk before the unit was opened.
        let imported = published.store != store && mode != Durability::None;
        if outlives(mode, end) || (imported && end != End::DiskLost) {
            return Err(format!(
                "the write of {:?} at {at} was acknowledged in mode {mode:?} and is lost, though store {} ended by \
                 {end:?}; imported there: {imported}",
                write.range, store.0
            ));
        }
    }
    Ok(())
}

/// The event of an acknowledged write that is lost, by which store, and how that had ended.
fn lost_in<'r>(
    record: &'r Record,
    write: &Write,
    at: kindred_partition_config::ids::Revision,
) -> Option<(&'r Published, (StoreIx, End))> {
    let mut events = record.events.iter().filter(|event| event.event.revision == at);
    let event = events.find(|event| write.range.contains(&event.event.key))?;
    event.lost.filter(|lost| *lost > write.times.finished)?;
    Some((event, event.lost_in?))
}

fn outlives(mode: Durability, end: End) -> bool {
    match end {
        End::Clean => true,
        End::Killed => mode != Durability::None,
        End::PowerLoss => mode == Durability::Fsync,
        End::DiskLost => false,
    }
}
