//! **R5**: no floor passes a pin younger than five seconds: the pages of a list over several stores can be read for
//! that long at the first one's revision; a read without a revision never answers compacted; and what is answered
//! compacted was compacted by somebody, is older than its store, or lies where a store that restarted may have lost
//! something.

use std::collections::BTreeSet;

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
        // Pins do not outlive a process.
        let restarted = record.restarts.iter().any(|restart| {
            let began = read.times.started_at - read.page_after.unwrap_or(0).min(read.times.started_at);
            restart.order < read.times.finished
                && restart.at >= began
                && record.stores_of(read.kind).contains(&restart.store)
        });
        if let Some(after) = read.page_after.filter(|after| after + took < PIN_MIN && !restarted) {
            return Err(format!(
                "a page of {:?} at {asked}, {after} microseconds after its list began, was answered compacted",
                read.range
            ));
        }
        let by_client = record
            .compactions
            .iter()
            .any(|compaction| compaction.at > asked && compaction.times.started < read.times.finished);
        let mut begun = BTreeSet::new();
        let unknown = record.starts.iter().any(|(store, start)| begun.insert(*store) && asked < *start);
        let lost = record.restarts.iter().any(|restart| {
            restart.order < read.times.finished && restart.kept[read.kind] < asked && asked < restart.start
        });
        if !by_client && !unknown && !lost {
            return Err(format!(
                "a read of {:?} at {asked} was answered compacted, though nobody compacted it",
                read.range
            ));
        }
    }
    Ok(())
}
