//! **R9**: what was acknowledged outlives what its Kind's mode promises: `fsync` everything but the loss of the disk,
//! `buffered` the end of the process, `none` a clean end only.

use kindred_partition_config::model::Durability;

use crate::history::{Record, Restart, Write, WriteAnswer};
use crate::shard::files::End;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    let Some(modes) = &record.modes else { return Ok(()) };
    for write in &record.writes {
        let WriteAnswer::Done(at) = write.answer else { continue };
        let Some(restart) = lost_in(record, write, at) else { continue };
        let mode = modes[write.kind];
        if outlives(mode, restart.end) {
            return Err(format!(
                "the write of {:?} at {at} was acknowledged in mode {mode:?} and is lost, though store {} ended by \
                 {:?}",
                write.range, restart.store.0, restart.end
            ));
        }
    }
    Ok(())
}

/// The restart that lost an acknowledged write.
fn lost_in<'r>(
    record: &'r Record,
    write: &Write,
    at: kindred_partition_config::ids::Revision,
) -> Option<&'r Restart> {
    let mut events = record.events.iter().filter(|event| event.event.revision == at);
    let event = events.find(|event| write.range.contains(&event.event.key))?;
    let lost = event.lost.filter(|lost| *lost > write.times.finished)?;
    // The loss is written down while the store starts.
    record.restarts.iter().find(|restart| restart.store == event.store && restart.order > lost)
}

fn outlives(mode: Durability, end: End) -> bool {
    match end {
        End::Clean => true,
        End::Killed => mode != Durability::None,
        End::PowerLoss => mode == Durability::Fsync,
        End::DiskLost => false,
    }
}
