//! **R22**: a Kind on several stores has one order through all routers: an answer about it has a header at or above every one
//! that any router gave before the request came in. An answer that did not wait for a store that was away is not counted
//! among those before, as documented. Left out are runs in which a store's clock cannot follow (R3), Kinds of which keys
//! moved, and Kinds that were on one store for a while.

use kindred_partition_config::ids::Revision;
use kindred_router_core::plan::Placement as _;

use crate::history::{Order, ReadAnswer, Record, Times, WriteAnswer};
use crate::topology::{KINDS, NODES};

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    if !record.bad_stores.is_empty() {
        return Ok(());
    }
    let spread = |kind: &usize| {
        let range = &record.kinds[*kind];
        let moved = record.freezes.iter().any(|freeze| freeze.unit.overlaps(range));
        *kind != NODES && !moved && record.maps.iter().all(|(_, map)| !map.spread_in(range).is_empty())
    };
    (0..KINDS).filter(spread).try_for_each(|kind| of_kind(record, kind))
}

fn of_kind(record: &Record, kind: usize) -> Result<(), String> {
    let reads = record.reads.iter().filter(|read| read.kind == kind).filter_map(|read| match &read.answer {
        ReadAnswer::Data { header, .. } if !record.is_of_former_owner(read, *header) => {
            Some((read.times, *header))
        }
        _ => None,
    });
    let writes =
        record.writes.iter().filter(|write| write.kind == kind).filter_map(|write| match write.answer {
            WriteAnswer::Done(header) | WriteAnswer::Nothing(header) => Some((write.times, header)),
            _ => None,
        });
    let shown: Vec<(Times, Revision)> = reads.chain(writes).collect();
    let left = |(times, header): &(Times, Revision)| {
        Some((times.left?, *header)).filter(|_| !record.unordered.contains(&(kind, *header)))
    };
    let mut before: Vec<(Order, Revision)> = shown.iter().filter_map(left).collect();
    before.sort_unstable();
    let mut highest = Revision::ZERO;
    for (_, header) in &mut before {
        highest = highest.max(*header);
        *header = highest;
    }
    for (times, header) in shown {
        let Some((_, arrived)) = times.router else { continue };
        let earlier = before.partition_point(|(left, _)| *left < arrived);
        let higher = before[..earlier].last().map(|(_, header)| *header).filter(|highest| *highest > header);
        if let Some(higher) = higher {
            return Err(format!("{header} of Kind {kind} was shown after {higher}"));
        }
    }
    Ok(())
}
