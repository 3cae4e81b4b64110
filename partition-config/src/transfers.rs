//! Computes the transfers that turn one map into another, and the map after some of them.
//!
//! [`transfers`] compares two maps by key range and by bucket. [`with_transfers`] applies transfers to the map in
//! use, which may have changed elsewhere since they were planned. Both maps must use the same key scheme, so that a
//! Kind has the same prefix in both.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    ids::Epoch,
    key::{Key, KeyRange},
    kind::KindPrefix,
    map::{MapError, Partition, PartitionMap, Placement, StoreIdx},
    ring::{BUCKETS, Bucket, BucketSet, BucketTable},
    unit::{Unit, UnitBuckets},
};

mod repr;

/// A unit that moves from one store to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "repr::TransferRepr", into = "repr::TransferRepr")]
pub struct Transfer {
    pub unit: Unit,
    /// The owner before.
    pub from: StoreIdx,
    /// The owner after.
    pub to: StoreIdx,
    /// The Kind of the unit's keys; `None` for keys of no configured Kind.
    pub kind: Option<KindPrefix>,
}

impl Transfer {
    /// The transfer in the opposite direction.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { from: self.to, to: self.from, ..self.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// `from` does not own all of the unit in the map.
    #[error("store {from} does not own all of {unit:?}: plan again")]
    NotTheOwners {
        unit: Box<Unit>,
        /// The expected owner.
        from: StoreIdx,
    },
    /// The unit's buckets hash something other than the names of its Kind.
    #[error("{unit:?} has buckets, but not of its Kind's names")]
    Buckets {
        /// The unit that a transfer names.
        unit: Box<Unit>,
    },
    /// The result is not a valid map.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The transfers that turn the map `old` into `new`, in the order of key ranges. They are as few as possible, and
/// every key is in at most one.
#[must_use]
pub fn transfers(old: &PartitionMap, new: &PartitionMap) -> Vec<Transfer> {
    let mut found: Vec<Transfer> = Vec::new();
    for (before, after) in refined(old, new) {
        let kind = after.kind.as_ref().or(before.kind.as_ref());
        for (from, to, set) in moved(&before.placement, &after.placement) {
            // Only rings move single buckets, and a ring always has a Kind.
            let buckets = (set != BucketSet::ALL)
                .then(|| UnitBuckets { prefix_len: kind.map_or(0, |kind| kind.as_key().len()), set });
            let unit = Unit { range: after.range.clone(), buckets };
            let next = Transfer { unit, from, to, kind: kind.cloned() };
            match found.iter_mut().find(|last| continues(last, &next)) {
                Some(last) => last.unit.range = joined(&last.unit.range, &next.unit.range),
                None => found.push(next),
            }
        }
    }
    found
}

/// The difference of two placements as (from, to, buckets).
fn moved(before: &Placement, after: &Placement) -> Vec<(StoreIdx, StoreIdx, BucketSet)> {
    match (before, after) {
        (Placement::Single(a), Placement::Single(b)) if a == b => Vec::new(),
        (Placement::Single(a), Placement::Single(b)) => vec![(*a, *b, BucketSet::ALL)],
        _ => table(before).transfers(&table(after)),
    }
}

/// The bucket table that is equivalent to a placement.
fn table(placement: &Placement) -> BucketTable {
    match placement {
        Placement::Single(store) => BucketTable::new([*store; BUCKETS]),
        Placement::Ring(table) => (**table).clone(),
    }
}

fn continues(last: &Transfer, next: &Transfer) -> bool {
    let ends =
        matches!(&last.unit.range, KeyRange::Span { end: Some(end), .. } if end == next.unit.range.start());
    ends && (last.from, last.to) == (next.from, next.to)
        && last.unit.buckets == next.unit.buckets
        && last.kind == next.kind
}

fn joined(a: &KeyRange, b: &KeyRange) -> KeyRange {
    match b {
        KeyRange::Span { end, .. } => KeyRange::Span { start: a.start().clone(), end: end.clone() },
        KeyRange::Single(_) => a.clone(),
    }
}

/// The map after these transfers, with other changes since they were planned kept. Partitions that change, and
/// those they are merged with, get the epoch `generation`. A Kind that had no partitions of its own gets them,
/// including one for its pseudo-key, so that reads of it then ask all stores of the Kind.
///
/// # Errors
/// When `from` does not own the whole unit in `map`. Nothing is applied then.
pub fn with_transfers(
    map: &PartitionMap,
    transfers: &[Transfer],
    generation: Epoch,
) -> Result<PartitionMap, TransferError> {
    let mut points = BTreeSet::new();
    for transfer in transfers {
        points.extend(bounds(&transfer.unit.range));
        if let Some(kind) = &transfer.kind {
            points.extend(areas(kind).iter().flat_map(bounds));
        }
    }
    let mut pieces = cut(map.partitions(), &points);
    for transfer in transfers {
        let areas = transfer.kind.as_ref().map(areas);
        for piece in &mut pieces {
            if areas.as_ref().is_some_and(|areas| areas.iter().any(|area| area.overlaps(&piece.range))) {
                piece.kind.clone_from(&transfer.kind);
            }
            if piece.range.overlaps(&transfer.unit.range) {
                piece.placement = handed_over(piece, transfer)?;
                piece.epoch = generation;
            }
        }
    }
    Ok(PartitionMap::new(coalesced(pieces))?)
}

/// The map with `new` in every place of `lost`. Partitions that change get the epoch `generation`.
pub(crate) fn in_place_of(
    map: &PartitionMap,
    lost: StoreIdx,
    new: StoreIdx,
    generation: Epoch,
) -> Result<PartitionMap, MapError> {
    let owner = |store| if store == lost { new } else { store };
    let partitions = map.partitions().iter().map(|partition| {
        if !partition.placement.stores().contains(&lost) {
            return partition.clone();
        }
        let placement = match &partition.placement {
            Placement::Single(store) => Placement::Single(owner(*store)),
            Placement::Ring(table) => {
                let owners = std::array::from_fn(|at| owner(table.owner(Bucket(at as u8))));
                Placement::Ring(Box::new(BucketTable::new(owners)))
            }
        };
        Partition { placement, epoch: generation, ..partition.clone() }
    });
    PartitionMap::new(partitions.collect())
}

/// The placement after a transfer of a piece that lies within the transfer's range.
fn handed_over(piece: &Partition, transfer: &Transfer) -> Result<Placement, TransferError> {
    let unit = || Box::new(transfer.unit.clone());
    let not_the_owners = || TransferError::NotTheOwners { unit: unit(), from: transfer.from };
    let Some(buckets) = &transfer.unit.buckets else {
        if piece.placement.stores() != [transfer.from] {
            return Err(not_the_owners());
        }
        return Ok(Placement::Single(transfer.to));
    };
    if transfer.kind.as_ref().map(|kind| kind.as_key().len()) != Some(buckets.prefix_len) {
        return Err(TransferError::Buckets { unit: unit() });
    }
    let table = table(&piece.placement);
    if buckets.set.iter().any(|bucket| table.owner(bucket) != transfer.from) {
        return Err(not_the_owners());
    }
    let owners = std::array::from_fn(|at| match Bucket(at as u8) {
        bucket if buckets.set.contains(bucket) => transfer.to,
        bucket => table.owner(bucket),
    });
    if owners.iter().all(|owner| *owner == owners[0]) {
        return Ok(Placement::Single(owners[0]));
    }
    Ok(Placement::Ring(Box::new(BucketTable::new(owners))))
}

/// The two intervals of a Kind: its pseudo-key and its objects.
fn areas(kind: &KindPrefix) -> [KeyRange; 2] {
    let stem = Key::copy_from(kind.stem());
    let end = Some(stem.successor());
    [KeyRange::Span { start: stem, end }, kind.range()]
}

fn bounds(range: &KeyRange) -> Vec<Key> {
    match range {
        KeyRange::Single(key) => vec![key.clone(), key.successor()],
        KeyRange::Span { start, end } => std::iter::once(start.clone()).chain(end.clone()).collect(),
    }
}

/// The same partitions, cut at every point that lies within one.
fn cut(partitions: &[Partition], points: &BTreeSet<Key>) -> Vec<Partition> {
    let mut pieces = Vec::with_capacity(partitions.len() + points.len());
    for partition in partitions {
        let mut start = partition.start().clone();
        let beyond = |point: &&Key| partition.end().is_none_or(|end| *point < end);
        for point in points.range(start.successor()..).take_while(beyond) {
            let range = KeyRange::Span { start, end: Some(point.clone()) };
            pieces.push(Partition { range, ..partition.clone() });
            start = point.clone();
        }
        let range = KeyRange::Span { start, end: partition.end().cloned() };
        pieces.push(Partition { range, ..partition.clone() });
    }
    pieces
}

/// Merges neighbours of the same Kind and placement. The result has the newer epoch.
fn coalesced(pieces: Vec<Partition>) -> Vec<Partition> {
    let mut joint: Vec<Partition> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joint.last_mut() {
            Some(last)
                if last.kind == piece.kind && last.placement == piece.placement && !last.is_pseudo() =>
            {
                last.range = joined(&last.range, &piece.range);
                last.epoch = last.epoch.max(piece.epoch);
            }
            _ => joint.push(piece),
        }
    }
    joint
}

/// Both maps cut at each other's bounds, in pairs of equal ranges, in key order.
fn refined(old: &PartitionMap, new: &PartitionMap) -> impl Iterator<Item = (Partition, Partition)> {
    let points: BTreeSet<Key> =
        old.partitions().iter().chain(new.partitions()).map(|partition| partition.start().clone()).collect();
    cut(old.partitions(), &points).into_iter().zip(cut(new.partitions(), &points))
}

/// The map with the partitions of `kinds` from `new`, also those of no Kind in either map if `rest` is set, and all
/// others from `old`. Partitions that do not change hands keep their epochs.
pub(crate) fn grafted(
    old: &PartitionMap,
    new: &PartitionMap,
    kinds: &BTreeSet<KindPrefix>,
    rest: bool,
) -> Result<PartitionMap, MapError> {
    let choose = |(before, after): (Partition, Partition)| {
        let of_new = match after.kind.as_ref().or(before.kind.as_ref()) {
            Some(kind) => kinds.contains(kind),
            None => rest,
        };
        if of_new { Partition { epoch: before.epoch, ..after } } else { before }
    };
    PartitionMap::new(coalesced(refined(old, new).map(choose).collect()))
}

#[cfg(test)]
mod tests;
