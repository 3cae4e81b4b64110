//! The partition map says which store serves which keys.
//!
//! It is an ordered list of half-open intervals over *every* possible key, without gap or overlap, so every key has
//! an owner and a lookup cannot fail. The constructor checks this, and deserialising goes through the constructor.
//!
//! A Kind that has partitions of its own also owns its pseudo-key (`/registry/pods`, which kube-apiserver reads to
//! learn the Kind's current revision). The pseudo-key sorts before the Kind's interval, and other keys may lie
//! between the two (`/registry/pods.example.com/…`). So it is a partition of one key, on one store of the Kind, and
//! lookups and writes need no special case. A read or watch of that one key concerns all stores of the Kind, and
//! [`PartitionMap::stores_of`] and [`PartitionMap::units_of`] return all of them. A range that contains it treats
//! it like any other key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use serde::{Deserialize, Serialize};

use crate::{
    ids::Epoch,
    key::{Key, KeyRange},
    kind::KindPrefix,
    ring::BucketTable,
};

mod repr;

pub(crate) use repr::unescape;

/// A store's index in the configuration's list of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreIdx(pub u16);

impl fmt::Display for StoreIdx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// One store serves all keys.
    Single(StoreIdx),
    /// Several stores; each serves the keys whose names hash to its buckets.
    Ring(Box<BucketTable>),
}

impl Placement {
    /// The stores that serve any of the keys, in order and without duplicates.
    #[must_use]
    pub fn stores(&self) -> Vec<StoreIdx> {
        match self {
            Self::Single(store) => vec![*store],
            Self::Ring(table) => table.stores(),
        }
    }

    /// The store if a single one serves all keys; `None` for a ring, even one whose buckets all have one owner.
    #[must_use]
    pub fn single(&self) -> Option<StoreIdx> {
        match self {
            Self::Single(store) => Some(*store),
            Self::Ring(_) => None,
        }
    }
}

/// One interval of the key space and its placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The keys; never empty, and always a `Span`, even for a single key.
    pub range: KeyRange,
    /// The Kind that all keys belong to; `None` for keys of no configured Kind, which the default store serves.
    pub kind: Option<KindPrefix>,
    pub placement: Placement,
    pub epoch: Epoch,
}

impl Partition {
    #[must_use]
    pub fn start(&self) -> &Key {
        self.range.start()
    }

    /// The exclusive upper bound; `None` for no upper bound.
    #[must_use]
    pub fn end(&self) -> Option<&Key> {
        match &self.range {
            KeyRange::Single(_) => None,
            KeyRange::Span { end, .. } => end.as_ref(),
        }
    }

    /// The store that serves one key of this partition. A ring hashes the part of the key after the Kind prefix.
    #[must_use]
    pub fn store_of(&self, key: &[u8]) -> StoreIdx {
        match &self.placement {
            Placement::Single(store) => *store,
            Placement::Ring(table) => {
                let prefix = self.kind.as_ref().map_or(0, |kind| kind.as_key().len());
                table.store_of(key.get(prefix..).unwrap_or_default())
            }
        }
    }

    /// Whether this partition consists of just its Kind's pseudo-key.
    #[must_use]
    pub fn is_pseudo(&self) -> bool {
        self.kind.as_ref().is_some_and(|kind| kind.stem() == &**self.start())
    }
}

/// Why a list of partitions is not a valid map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("no partition")]
    Empty,
    /// The first partition does not begin at the empty key, or the last one has an upper bound.
    #[error("the key space has keys below the first or above the last partition")]
    Unbounded,
    /// A partition does not begin where the previous one ends.
    #[error("partition {at} begins at \"{start}\", not where the one before it ends")]
    NotAdjacent {
        /// The partition's index in the list.
        at: usize,
        /// The partition's first key.
        start: Key,
    },
    /// A partition's range is empty or is not a `Span`.
    #[error("partition {at} is empty")]
    EmptyRange {
        /// The partition's index in the list.
        at: usize,
    },
    /// A partition reaches beyond its Kind.
    #[error("partition {at} reaches beyond {kind}")]
    OutsideKind {
        /// The partition's index in the list.
        at: usize,
        /// The partition's Kind.
        kind: KindPrefix,
    },
    /// A ring holds keys of no Kind, so there is no name to hash.
    #[error("partition {at} is a ring of no Kind")]
    RingOfNoKind {
        /// The partition's index in the list.
        at: usize,
    },
}

/// The part of a partition that a request touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched<'m> {
    pub partition: &'m Partition,
    /// The keys that are in both the partition and the request.
    pub range: KeyRange,
    /// The stores that a read of these keys asks, in order and without duplicates: one store for one key, but all
    /// stores of the Kind for its pseudo-key.
    pub stores: Vec<StoreIdx>,
}

/// The ordered, gap-free list of partitions over every possible key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<repr::PartitionRepr>", into = "Vec<repr::PartitionRepr>")]
pub struct PartitionMap {
    partitions: Vec<Partition>,
    /// The stores of each partition, cached so that no request has to scan a bucket table.
    stores: Vec<Vec<StoreIdx>>,
    /// The Kinds that are on several stores, with those stores.
    spread: BTreeMap<KindPrefix, Vec<StoreIdx>>,
}

impl PartitionMap {
    /// Builds a map of exactly these partitions.
    ///
    /// # Errors
    /// When the partitions are not in order, leave a gap, overlap, are empty or reach beyond their Kind.
    pub fn new(partitions: Vec<Partition>) -> Result<Self, MapError> {
        let (Some(first), Some(last)) = (partitions.first(), partitions.last()) else {
            return Err(MapError::Empty);
        };
        if !first.start().is_empty() || last.end().is_some() {
            return Err(MapError::Unbounded);
        }
        let mut before: Option<&Partition> = None;
        for (at, partition) in partitions.iter().enumerate() {
            if partition.range.is_empty() || matches!(partition.range, KeyRange::Single(_)) {
                return Err(MapError::EmptyRange { at });
            }
            if before.is_some_and(|before| before.end() != Some(partition.start())) {
                return Err(MapError::NotAdjacent { at, start: partition.start().clone() });
            }
            if let Some(kind) = &partition.kind
                && !within(partition, kind)
            {
                return Err(MapError::OutsideKind { at, kind: kind.clone() });
            }
            if partition.kind.is_none() && partition.placement.single().is_none() {
                return Err(MapError::RingOfNoKind { at });
            }
            before = Some(partition);
        }
        let stores = partitions.iter().map(|partition| partition.placement.stores()).collect();
        Ok(Self { spread: spread(&partitions), stores, partitions })
    }

    /// A map in which one store serves all keys.
    #[must_use]
    pub fn single(store: StoreIdx, epoch: Epoch) -> Self {
        let placement = Placement::Single(store);
        let partition = Partition { range: KeyRange::everything(), kind: None, placement, epoch };
        Self { partitions: vec![partition], stores: vec![vec![store]], spread: BTreeMap::new() }
    }

    /// Builds a map from these partitions, in any order, and assigns every key that none of them holds to
    /// `default`.
    ///
    /// # Errors
    /// As [`PartitionMap::new`].
    pub fn filled(mut partitions: Vec<Partition>, default: StoreIdx, epoch: Epoch) -> Result<Self, MapError> {
        partitions.sort_by(|a, b| a.start().cmp(b.start()));
        let mut filled = Vec::with_capacity(2 * partitions.len() + 1);
        let mut next = Some(Key::from(""));
        let gap = |start, end| Partition {
            range: KeyRange::Span { start, end },
            kind: None,
            placement: Placement::Single(default),
            epoch,
        };
        for partition in partitions {
            if let Some(start) = next
                && start < *partition.start()
            {
                filled.push(gap(start, Some(partition.start().clone())));
            }
            next = partition.end().cloned();
            filled.push(partition);
        }
        if let Some(start) = next {
            filled.push(gap(start, None));
        }
        Self::new(filled)
    }

    #[must_use]
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> &Partition {
        &self.partitions[self.index_of(key)]
    }

    /// The partitions that can hold a key of `range`, in key order. The first and the last may reach beyond
    /// `range`. Empty for an empty range.
    pub fn overlapping(&self, range: &KeyRange) -> std::slice::Iter<'_, Partition> {
        self.partitions[self.indices(range)].iter()
    }

    fn indices(&self, range: &KeyRange) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.index_of(range.start());
        let behind = match range {
            KeyRange::Single(_) => first + 1,
            KeyRange::Span { end: None, .. } => self.partitions.len(),
            KeyRange::Span { end: Some(end), .. } => {
                self.partitions.partition_point(|partition| partition.start() < end)
            }
        };
        first..behind
    }

    /// The partitions that hold a Kind's objects, in key order, also when the Kind has none of its own. A query for
    /// the Kind's current revision asks the stores of all of them.
    pub fn of_kind(&self, kind: &KindPrefix) -> std::slice::Iter<'_, Partition> {
        self.overlapping(&kind.range())
    }

    /// The store of one key. For a pseudo-key this is the store that would hold it if it were written.
    #[must_use]
    pub fn store_of(&self, key: &[u8]) -> StoreIdx {
        self.lookup(key).store_of(key)
    }

    /// Every store that a read or watch of `range` asks, in order and without duplicates. Empty for an empty range.
    #[must_use]
    pub fn stores_of(&self, range: &KeyRange) -> Vec<StoreIdx> {
        let mut stores: Vec<_> = self.units_of(range).into_iter().flat_map(|unit| unit.stores).collect();
        stores.sort_unstable();
        stores.dedup();
        stores
    }

    /// The parts of the map that a read or watch of `range` touches, in key order.
    #[must_use]
    pub fn units_of(&self, range: &KeyRange) -> Vec<Touched<'_>> {
        let stores = |index: usize, partition: &Partition| match (range, &partition.kind) {
            (KeyRange::Single(_), Some(kind)) if partition.is_pseudo() => {
                self.spread.get(kind).unwrap_or(&self.stores[index]).clone()
            }
            (KeyRange::Single(key), _) => vec![partition.store_of(key)],
            _ => self.stores[index].clone(),
        };
        let unit = |index: usize| {
            let partition = &self.partitions[index];
            let range = range.intersection(&partition.range);
            Touched { partition, range, stores: stores(index, partition) }
        };
        self.indices(range).map(unit).collect()
    }

    /// The Kinds on several stores that have an object or their pseudo-key in `range`, in key order.
    #[must_use]
    pub fn spread_in(&self, range: &KeyRange) -> Vec<KindPrefix> {
        if self.spread.is_empty() {
            return Vec::new();
        }
        let mut kinds: Vec<KindPrefix> = Vec::new();
        for kind in self.overlapping(range).filter_map(|partition| partition.kind.as_ref()) {
            if !kinds.contains(kind) && self.is_spread(kind) {
                kinds.push(kind.clone());
            }
        }
        kinds
    }

    /// The Kind of the key, if that Kind is on several stores.
    #[must_use]
    pub fn spread_of(&self, key: &[u8]) -> Option<&KindPrefix> {
        if self.spread.is_empty() {
            return None;
        }
        self.lookup(key).kind.as_ref().filter(|kind| self.is_spread(kind))
    }

    #[must_use]
    pub fn is_spread(&self, kind: &KindPrefix) -> bool {
        self.spread.contains_key(kind)
    }

    /// The stores of a Kind that is on several; none for any other Kind.
    #[must_use]
    pub fn stores_of_spread(&self, kind: &KindPrefix) -> &[StoreIdx] {
        self.spread.get(kind).map_or(&[], Vec::as_slice)
    }

    /// Cannot underflow: the first partition begins at the empty key.
    fn index_of(&self, key: &[u8]) -> usize {
        self.partitions.partition_point(|partition| **partition.start() <= *key) - 1
    }
}

fn spread(partitions: &[Partition]) -> BTreeMap<KindPrefix, Vec<StoreIdx>> {
    let mut stores: BTreeMap<KindPrefix, BTreeSet<StoreIdx>> = BTreeMap::new();
    for partition in partitions {
        if let Some(kind) = &partition.kind {
            stores.entry(kind.clone()).or_default().extend(partition.placement.stores());
        }
    }
    let several = stores.into_iter().filter(|(_, stores)| stores.len() > 1);
    several.map(|(kind, stores)| (kind, stores.into_iter().collect())).collect()
}

/// Whether every key of the partition belongs to the Kind.
fn within(partition: &Partition, kind: &KindPrefix) -> bool {
    if partition.is_pseudo() {
        return partition.end() == Some(&partition.start().successor());
    }
    *partition.start() >= *kind.as_key() && partition.end().is_some_and(|end| *end <= kind.end())
}

#[cfg(test)]
mod tests;
