//! The state that the published events make.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;

use crate::history::{Item, Order, Published, Record};

/// The events of a range, in the order in which each store published them.
pub fn events<'r>(
    record: &'r Record,
    kind: usize,
    range: &'r KeyRange,
) -> impl Iterator<Item = &'r Published> {
    record
        .events
        .iter()
        .filter(move |published| published.kind == kind && range.contains(&published.event.key))
}

/// The keys of a range at a revision, without the events that were lost before this moment.
#[must_use]
pub fn state(
    record: &Record,
    kind: usize,
    range: &KeyRange,
    at: Revision,
    order: Order,
) -> BTreeMap<Vec<u8>, Item> {
    let mut state = BTreeMap::new();
    // A key is always on one store, so its events stand in order.
    for published in events(record, kind, range) {
        let event = &published.event;
        if event.revision > at || published.is_lost_by(order) {
            continue;
        }
        if event.is_delete {
            state.remove(&event.key);
        } else {
            let item = Item {
                key: event.key.clone(),
                modified: event.revision,
                create: event.create,
                version: event.version,
                value: event.value.clone(),
            };
            state.insert(event.key.clone(), item);
        }
    }
    state
}
