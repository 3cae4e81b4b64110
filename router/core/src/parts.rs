//! Splits a range over several stores into parts: runs of keys in key order, each with its stores.

use kindred_partition_config::key::KeyRange;
use kindred_partition_config::map::{Partition, PartitionMap, Placement, StoreIdx};
use kindred_partition_config::unit::{Unit, UnitBuckets};

use crate::store::StoreIx;

/// A run of keys with the stores that serve it. With several, each serves some of the keys, so answers interleave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Never empty.
    pub range: KeyRange,
    /// At least one store, each once.
    pub stores: Vec<StoreIx>,
}

/// The parts of `range` in key order: its units, with neighbours on the same stores joined. Empty for an empty range.
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

/// The part of a range that one store processes independently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub store: StoreIx,
    /// Never empty.
    pub range: KeyRange,
    /// The hash buckets that are left of the range; `None` for all that the store serves.
    pub buckets: Option<UnitBuckets>,
    /// The units of the piece by this map. When the piece is done they are done, whichever store serves them later.
    pub units: Vec<Unit>,
}

/// The pieces of `range` that are left by this map when the units in `done` are done, perhaps by another map. In key
/// order, with neighbours on the same store joined. Each key is done or in exactly one piece.
#[must_use]
pub fn pieces_left(map: &PartitionMap, range: &KeyRange, done: &[Unit]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let left = map.overlapping(range).flat_map(|partition| left_of(partition, range, done));
    for next in left {
        let continued = pieces.iter_mut().rev().find(|last| last.store == next.store);
        match continued.filter(|last| last.buckets.is_none() && next.buckets.is_none() && meets(last, &next))
        {
            Some(last) => {
                last.range = joined(&last.range, &next.range);
                last.units.extend(next.units);
            }
            None => pieces.push(next),
        }
    }
    pieces
}

/// Like [`pieces_left`], for one partition.
fn left_of(partition: &Partition, range: &KeyRange, done: &[Unit]) -> Vec<Piece> {
    let range = span(range.intersection(&partition.range));
    let whole: Vec<(StoreIdx, Unit)> = match &partition.placement {
        Placement::Single(store) => vec![(*store, Unit::of_range(range))],
        Placement::Ring(table) => {
            let prefix_len = partition.kind.as_ref().map_or(0, |kind| kind.as_key().len());
            let unit = |store| {
                let buckets = Some(UnitBuckets { prefix_len, set: table.of(store) });
                (store, Unit { range: range.clone(), buckets })
            };
            table.stores().into_iter().map(unit).collect()
        }
    };
    let mut pieces = Vec::new();
    for (store, whole) in whole {
        let rest = done.iter().fold(vec![whole.clone()], without);
        pieces.extend(rest.into_iter().map(|unit| Piece {
            store: store_ix(store),
            range: unit.range.clone(),
            buckets: unit.buckets.filter(|_| unit.buckets != whole.buckets),
            units: vec![unit],
        }));
    }
    pieces.sort_by(|a, b| (a.range.start(), a.store).cmp(&(b.range.start(), b.store)));
    pieces
}

/// These units without the keys of `other`. All maps hash the keys of a Kind alike, so buckets can be subtracted.
fn without(units: Vec<Unit>, other: &Unit) -> Vec<Unit> {
    units.into_iter().flat_map(|unit| unit.minus(other).unwrap_or_else(|| vec![unit])).collect()
}

/// Whether the second begins where the first ends.
fn meets(first: &Piece, second: &Piece) -> bool {
    matches!(&first.range, KeyRange::Span { end: Some(end), .. } if end == second.range.start())
}

/// The range as a span.
fn span(range: KeyRange) -> KeyRange {
    match range {
        KeyRange::Single(key) => KeyRange::Span { end: Some(key.successor()), start: key },
        span @ KeyRange::Span { .. } => span,
    }
}

/// The router's index of a store of the map; both count alike.
#[must_use]
pub fn store_ix(store: StoreIdx) -> StoreIx {
    StoreIx(usize::from(store.0))
}

/// The range from the start of the first to the end of the second, which follows it directly.
fn joined(first: &KeyRange, second: &KeyRange) -> KeyRange {
    let end = match second {
        KeyRange::Single(key) => Some(key.successor()),
        KeyRange::Span { end, .. } => end.clone(),
    };
    KeyRange::Span { start: first.start().clone(), end }
}

#[cfg(test)]
#[path = "parts_test.rs"]
mod tests;
