//! **R3**: a shard raises its clock to another's revision by no more than ten seconds above its own wall clock, so one
//! bad clock does not spread. No revision of a shard is further ahead of the highest reading of its wall clock.

use kindred_partition_config::ids::SLOT_BITS;

use crate::history::Record;
use crate::shard::OFFSET_MAX;
use crate::world::MS;

/// A burst runs ahead of the wall by a microsecond for each write.
const BURST: u64 = 10 * MS;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for current in &record.currents {
        let micros = u64::try_from(current.current.get() >> SLOT_BITS).unwrap_or(0);
        if micros > current.held_micros + OFFSET_MAX + BURST {
            return Err(format!(
                "store {} shows {}, {} microseconds ahead of its own clock",
                current.store.0,
                current.current,
                micros - current.held_micros
            ));
        }
    }
    Ok(())
}
