//! What has to move to make one map another, and a map after some of it has moved.
//!
//! [`transfers`] compares two maps key range by key range and bucket by bucket; [`with_transfers`] applies any of them to
//! the map in use, which may have changed elsewhere since they were planned. Both are over maps of one scheme: a Kind
//! has the same prefix in both.

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

/// A unit that goes from one store to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "repr::TransferRepr", into = "repr::TransferRepr")]
pub struct Transfer {
    /// What moves.
    pub unit: Unit,
    /// Who owns it before.
    pub from: StoreIdx,
    /// Who owns it after.
    pub to: StoreIdx,
    /// The Kind of its keys; `None` for keys of no configured Kind.
    pub kind: Option<KindPrefix>,
}

impl Transfer {
    /// The way back.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { from: self.to, to: self.from, ..self.clone() }
    }
}

/// Why transfers do not apply to a map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The map has changed where the transfer is.
    #[error("store {from} does not own all of {unit:?}: plan again")]
    NotTheOwners {
        /// What was to move.
        unit: Box<Unit>,
        /// Whose it was to be.
        from: StoreIdx,
    },
    /// Buckets of a unit that hashes something else than the Kind's names.
    #[error("{unit:?} has buckets, but not of its Kind's names")]
    Buckets {
        /// What was to move.
        unit: Box<Unit>,
    },
    /// What came out is no map.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// What has to move to make the map `old` the map `new`, in the order of key ranges: as few units as describe it, every
/// key in at most one.
#[must_use]
pub fn transfers(old: &PartitionMap, new: &PartitionMap) -> Vec<Transfer> {
    let mut found: Vec<Transfer> = Vec::new();
    for (before, after) in refined(old, new) {
        let kind = after.kind.as_ref().or(before.kind.as_ref());
        for (from, to, set) in moved(&before.placement, &after.placement) {
            // Only a ring, which is of a Kind, moves a part of the buckets.
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

/// From, to, buckets.
fn moved(before: &Placement, after: &Placement) -> Vec<(StoreIdx, StoreIdx, BucketSet)> {
    match (before, after) {
        (Placement::Single(a), Placement::Single(b)) if a == b => Vec::new(),
        (Placement::Single(a), Placement::Single(b)) => vec![(*a, *b, BucketSet::ALL)],
        _ => table(before).transfers(&table(after)),
    }
}

/// A placement as the table that it amounts to.
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

/// `map` after these transfers, whatever else has changed in it since they were planned. Partitions that change, and
/// those that they are joined with, get the epoch `generation`. A Kind that had no partitions of its own gets them, its
/// pseudo-key's included: what reads that concerns all stores of the Kind from then on.
///
/// # Errors
/// When a unit is not wholly its `from`'s in `map`; nothing is applied then.
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

/// `map` in which one store stands wherever another did. Partitions of its get the epoch `generation`.
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

/// Who serves a piece that lies within a transfer's range, after it.
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

/// The two intervals of a Kind: its pseudo-key, and its objects.
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

/// The same partitions, cut where a point lies within one.
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

/// Neighbours of one Kind and one placement as one partition, which has the newer of their epochs.
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

/// Both maps cut at each other's bounds: the same ranges, in key order.
fn refined(old: &PartitionMap, new: &PartitionMap) -> impl Iterator<Item = (Partition, Partition)> {
    let points: BTreeSet<Key> =
        old.partitions().iter().chain(new.partitions()).map(|partition| partition.start().clone()).collect();
    cut(old.partitions(), &points).into_iter().zip(cut(new.partitions(), &points))
}

/// The map that has from `new` what is of `kinds` (and, if `rest` is set, what is of no Kind in either map), and from
/// `old` everything else. What does not change hands keeps its epoch.
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
