//! **R6**: a merged feed is in the order of revisions over all its stores. No event comes at or below what it has
//! delivered or promised. Up to a promise it has delivered every event of its ranges, whenever the store published it.

use std::collections::BTreeSet;

use kindred_partition_config::ids::Revision;
use kindred_router_core::plan::Placement as _;

use crate::history::{FeedRecord, Record, Told};

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    record.feeds.iter().try_for_each(|feed| {
        let covered = in_order(feed)?;
        is_whole(record, feed, covered)
    })
}

fn in_order(feed: &FeedRecord) -> Result<Revision, String> {
    let mut covered = feed.after;
    for (_, told) in &feed.told {
        let (revision, ok) = match told {
            Told::Emit(revision, _) => (*revision, *revision > covered),
            Told::Watermark(revision) | Told::Dropped(_, revision) => (*revision, *revision >= covered),
        };
        if !ok {
            return Err(format!("a feed was told {told:?} behind {covered}"));
        }
        covered = revision;
    }
    Ok(covered)
}

fn is_whole(record: &Record, feed: &FeedRecord, covered: Revision) -> Result<(), String> {
    let told = feed.told.iter().filter_map(|(_, told)| match told {
        Told::Emit(revision, keys) => Some((*revision, keys)),
        Told::Watermark(_) | Told::Dropped(..) => None,
    });
    let dropped = |revision: Revision| {
        let mut told = feed.told.iter().map(|(_, told)| told);
        told.any(|told| matches!(told, Told::Dropped(from, to) if revision > *from && revision <= *to))
    };
    let given: BTreeSet<(Revision, &Vec<u8>)> =
        told.flat_map(|(revision, keys)| keys.iter().map(move |key| (revision, key))).collect();
    let map = record.maps.iter().find(|(_, map)| map.generation() == feed.generation).map(|(_, map)| map);
    let of_feed = record.events.iter().filter(|published| {
        // The owner by the feed's map has it, whichever store published it.
        let owner = map.map_or(published.store, |map| map.store_of(&published.event.key));
        let part = feed.parts.iter().find(|(store, _)| *store == owner);
        part.is_some_and(|(_, ranges)| ranges.iter().any(|range| range.contains(&published.event.key)))
            && published.event.revision > feed.after
            && published.event.revision <= covered
            && !dropped(published.event.revision)
    });
    let due: BTreeSet<(Revision, &Vec<u8>)> =
        of_feed.map(|published| (published.event.revision, &published.event.key)).collect();
    let name = |(revision, key): &(Revision, &Vec<u8>)| format!("{} at {revision}", key.escape_ascii());
    let lost: BTreeSet<Revision> =
        record.events.iter().filter(|event| event.lost.is_some()).map(|event| event.event.revision).collect();
    if let Some(missing) = due.difference(&given).find(|(revision, _)| !lost.contains(revision)) {
        return Err(format!("a feed that covers {covered} never gave {}", name(missing)));
    }
    if let Some(extra) = given.difference(&due).next() {
        return Err(format!("a feed gave {}, which is not its", name(extra)));
    }
    Ok(())
}
