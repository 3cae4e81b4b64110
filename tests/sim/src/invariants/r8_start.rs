//! **R8**: a watch without a start begins at T + 1, where `created` shows T, to which all its stores were raised: T
//! covers every write that was acknowledged before the watch was asked for.

use crate::history::{Heard, Record, WriteAnswer};

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for stream in &record.streams {
        for (_, _, heard) in &stream.heard {
            let Heard::Created { watch, header } = heard else { continue };
            let create = stream.creates.iter().find(|create| create.watch == *watch);
            let Some(create) = create.filter(|create| create.start.is_none()) else { continue };
            let logical = &record.logicals[create.logical];
            let before = record.writes.iter().filter(|write| {
                write.times.finished < create.order && logical.range.intersection(&write.range) == write.range
            });
            let highest = before.filter_map(|write| match write.answer {
                WriteAnswer::Done(at) => Some(at),
                _ => None,
            });
            if let Some(write) = highest.max().filter(|write| write > header) {
                return Err(format!(
                    "a watch of {:?} begins behind {header}, though {write} was acknowledged before",
                    logical.range
                ));
            }
        }
    }
    Ok(())
}
