//! **R5**: a read over several shards is one snapshot. Its data are exactly what is true at its revision, `count` and
//! `more` included, whatever was published later at or below it; and its header covers every write that was
//! acknowledged before it began, through whichever router.

use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;

use crate::history::{Item, Order, Read, ReadAnswer, Record, WriteAnswer};
use crate::truth;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    record.reads.iter().try_for_each(|read| {
        let ReadAnswer::Data { header, items, count, more } = &read.answer else { return Ok(()) };
        let at = read.asked.unwrap_or(*header);
        // A store that restarts meanwhile may be read before or after.
        let during = |order: &Order| (read.times.started..read.times.finished).contains(order);
        let restarts = record.restarts.iter().map(|restart| restart.order).filter(during);
        let moments = std::iter::once(read.times.started).chain(restarts);
        let mut checks = moments.map(|order| is_true(record, read, (at, order), items, *count, *more));
        let first = checks.next().unwrap_or(Ok(()));
        if first.is_err() && !checks.any(|check| check.is_ok()) {
            return first;
        }
        let late = acknowledged(record, read).filter(|write| write > header);
        if let Some(late) = late.filter(|_| !record.is_of_former_owner(read, *header)) {
            return Err(format!(
                "a read of {:?} shows {header}, though {late} was acknowledged before it began",
                read.range
            ));
        }
        Ok(())
    })
}

fn is_true(
    record: &Record,
    read: &Read,
    (at, order): (Revision, Order),
    items: &[Item],
    count: u64,
    more: bool,
) -> Result<(), String> {
    let all = truth::state(record, read.kind, &read.range, at, order);
    let mut expected: Vec<&Item> = all.values().collect();
    if read.descending {
        expected.reverse();
    }
    if read.limit > 0 {
        expected.truncate(read.limit);
    }
    let wrong = |what: String| Err(format!("a read of {:?} at {at}: {what}", read.range));
    if !items.iter().eq(expected.iter().copied()) {
        return wrong(format!("shows {items:?}, but true is {expected:?}"));
    }
    if count != all.len() as u64 {
        return wrong(format!("counts {count} of {}", all.len()));
    }
    if more != (all.len() > items.len()) {
        return wrong(format!("says more {more} with {} of {}", items.len(), all.len()));
    }
    Ok(())
}

/// The highest revision of the read's keys that a client had seen before the read began.
fn acknowledged(record: &Record, read: &Read) -> Option<Revision> {
    let before = record.writes.iter().filter(|write| {
        write.kind == read.kind
            && write.times.finished < read.times.started
            && concerns(&write.range, &read.range)
    });
    before
        .filter_map(|write| match write.answer {
            WriteAnswer::Done(at) => Some(at),
            _ => None,
        })
        .max()
}

/// A delete over several stores has the highest revision of its parts, which says nothing about a single store. A read
/// must cover it only if it reads all of these stores.
fn concerns(write: &KeyRange, read: &KeyRange) -> bool {
    read.intersection(write) == *write
}
