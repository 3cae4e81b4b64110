//! **R5**: no floor passes a pin younger than five seconds: the pages of a list over several stores can be read for that
//! long at the first one's revision; a read without a revision never answers compacted; and what is answered compacted
//! was compacted by somebody, or is older than its store.

use crate::history::{ReadAnswer, Record};
use crate::world::{Micros, SECOND};

const PIN_MIN: Micros = 5 * SECOND;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for read in record.reads.iter().filter(|read| read.answer == ReadAnswer::Compacted) {
        let Some(asked) = read.asked else {
            return Err(format!("a read of {:?} without a revision was answered compacted", read.range));
        };
        let took = read.times.finished_at - read.times.started_at;
        if let Some(after) = read.page_after.filter(|after| after + took < PIN_MIN) {
            return Err(format!(
                "a page of {:?} at {asked}, {after} microseconds after its list began, was answered compacted",
                read.range
            ));
        }
        let by_client = record
            .compactions
            .iter()
            .any(|compaction| compaction.at > asked && compaction.times.started < read.times.finished);
        let unknown = record.starts.iter().any(|(_, start)| asked < *start);
        if !by_client && !unknown {
            return Err(format!(
                "a read of {:?} at {asked} was answered compacted, though nobody compacted it",
                read.range
            ));
        }
    }
    Ok(())
}
