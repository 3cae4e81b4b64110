//! The parts of a range over several stores: runs of keys in key order, each with the stores that are asked for it.

use kindred_partition_config::key::KeyRange;
use kindred_partition_config::map::{PartitionMap, StoreIdx};

use crate::store::StoreIx;

/// Keys that the same stores serve. Of several stores, each serves some of the names, so their answers interleave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The keys; never empty.
    pub range: KeyRange,
    /// The stores, each once, at least one.
    pub stores: Vec<StoreIx>,
}

/// The parts of `range`, in key order: its units, neighbours with the same stores as one. None for an empty range.
#[must_use]
pub fn parts_of(map: &PartitionMap, range: &KeyRange) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for unit in map.units_of(range) {
        let stores = unit.stores.into_iter().map(store_ix).collect();
        match parts.last_mut() {
            Some(last) if last.stores == stores => last.range = joined(&last.range, &unit.range),
            _ => parts.push(Part { range: unit.range, stores }),
        }
    }
    parts
}

/// The map and the router count stores alike.
#[must_use]
pub fn store_ix(store: StoreIdx) -> StoreIx {
    StoreIx(usize::from(store.0))
}

/// From the start of the first range to the end of the one right behind it.
fn joined(first: &KeyRange, second: &KeyRange) -> KeyRange {
    let end = match second {
        KeyRange::Single(key) => Some(key.successor()),
        KeyRange::Span { end, .. } => end.clone(),
    };
    KeyRange::Span { start: first.start().clone(), end }
}
