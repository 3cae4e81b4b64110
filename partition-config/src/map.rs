//! The partition map: which store serves which keys.
//!
//! An ordered list of half-open intervals over *every* possible key, without gap or overlap, so that there is no key
//! without an owner and a lookup cannot fail. The constructor checks that, and deserialising goes through it.
//!
//! A Kind that has partitions of its own also owns its pseudo-key (`/registry/pods`, which kube-apiserver reads to learn
//! the Kind's current revision). It sorts before the Kind's interval, with room for other keys in between
//! (`/registry/pods.example.com/…`), so it is a partition of one key, on the store of the Kind's first partition: lookups,
//! ranges and watches over it need no special case. Whoever answers it asks all stores of the Kind
//! ([`PartitionMap::of_kind`]).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    ids::Epoch,
    key::{Key, KeyRange},
    kind::KindPrefix,
};

mod repr;

/// A store by its place in the configuration's list of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreIdx(pub u16);

impl fmt::Display for StoreIdx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One interval of the key space and who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The keys; never empty, and a `Span` also when it is a single key.
    pub range: KeyRange,
    /// The Kind that all keys belong to; `None` for what the default store serves of no Kind in particular.
    pub kind: Option<KindPrefix>,
    /// Who serves them.
    pub store: StoreIdx,
    /// The version of this partition's ownership.
    pub epoch: Epoch,
}

impl Partition {
    /// The first key.
    #[must_use]
    pub fn start(&self) -> &Key {
        self.range.start()
    }

    /// The first key beyond; `None` for no upper bound.
    #[must_use]
    pub fn end(&self) -> Option<&Key> {
        match &self.range {
            KeyRange::Single(_) => None,
            KeyRange::Span { end, .. } => end.as_ref(),
        }
    }

    /// Whether this is nothing but the pseudo-key of its Kind.
    #[must_use]
    pub fn is_pseudo(&self) -> bool {
        self.kind.as_ref().is_some_and(|kind| kind.stem() == &**self.start())
    }
}

/// Why a list of partitions is not a map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// There is no partition at all.
    #[error("no partition")]
    Empty,
    /// The first partition does not begin at the smallest key, or the last one has an upper bound.
    #[error("the key space has keys below the first or above the last partition")]
    Unbounded,
    /// A partition does not begin where the one before it ends.
    #[error("partition {at} begins at \"{start}\", not where the one before it ends")]
    NotAdjacent {
        /// Its place in the list.
        at: usize,
        /// Its first key.
        start: Key,
    },
    /// A partition that can hold no key, or is not a span.
    #[error("partition {at} is empty")]
    EmptyRange {
        /// Its place in the list.
        at: usize,
    },
    /// A partition that reaches beyond its Kind.
    #[error("partition {at} reaches beyond {kind}")]
    OutsideKind {
        /// Its place in the list.
        at: usize,
        /// Its Kind.
        kind: KindPrefix,
    },
}

/// The ordered, gap-free list of partitions over every possible key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<repr::PartitionRepr>", into = "Vec<repr::PartitionRepr>")]
pub struct PartitionMap {
    partitions: Vec<Partition>,
}

impl PartitionMap {
    /// A map of exactly these partitions.
    ///
    /// # Errors
    /// When they are not in order, leave a gap, overlap, are empty or reach beyond their Kind.
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
            before = Some(partition);
        }
        Ok(Self { partitions })
    }

    /// A map in which one store serves everything.
    #[must_use]
    pub fn single(store: StoreIdx, epoch: Epoch) -> Self {
        Self { partitions: vec![Partition { range: KeyRange::everything(), kind: None, store, epoch }] }
    }

    /// A map of these partitions and, between them, `default` for all that no partition holds.
    ///
    /// # Errors
    /// As [`PartitionMap::new`]; the list may be in any order.
    pub fn filled(mut partitions: Vec<Partition>, default: StoreIdx, epoch: Epoch) -> Result<Self, MapError> {
        partitions.sort_by(|a, b| a.start().cmp(b.start()));
        let mut filled = Vec::with_capacity(2 * partitions.len() + 1);
        let mut next = Some(Key::from(""));
        for partition in partitions {
            if let Some(start) = next
                && start < *partition.start()
            {
                let range = KeyRange::Span { start, end: Some(partition.start().clone()) };
                filled.push(Partition { range, kind: None, store: default, epoch });
            }
            next = partition.end().cloned();
            filled.push(partition);
        }
        if let Some(start) = next {
            filled.push(Partition {
                range: KeyRange::Span { start, end: None },
                kind: None,
                store: default,
                epoch,
            });
        }
        Self::new(filled)
    }

    /// All partitions, in key order.
    #[must_use]
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// The partition that holds `key`.
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> &Partition {
        &self.partitions[self.index_of(key)]
    }

    /// The partitions that can hold a key of `range`, in key order. The first and the last may reach beyond it; none for
    /// an empty range.
    pub fn overlapping(&self, range: &KeyRange) -> std::slice::Iter<'_, Partition> {
        if range.is_empty() {
            return [].iter();
        }
        let first = self.index_of(range.start());
        let behind = match range {
            KeyRange::Single(_) => first + 1,
            KeyRange::Span { end: None, .. } => self.partitions.len(),
            KeyRange::Span { end: Some(end), .. } => {
                self.partitions.partition_point(|partition| partition.start() < end)
            }
        };
        self.partitions[first..behind].iter()
    }

    /// The partitions that hold the objects of a Kind, in key order, whether or not it has partitions of its own: those
    /// to ask for the Kind's current revision.
    pub fn of_kind(&self, kind: &KindPrefix) -> std::slice::Iter<'_, Partition> {
        self.overlapping(&kind.range())
    }

    /// The store that alone serves `range`; `None` when several do, or the range is empty.
    #[must_use]
    pub fn single_store(&self, range: &KeyRange) -> Option<StoreIdx> {
        let mut partitions = self.overlapping(range);
        let store = partitions.next()?.store;
        partitions.all(|partition| partition.store == store).then_some(store)
    }

    /// The first partition begins at the smallest key, so there always is one that begins at or before `key`.
    fn index_of(&self, key: &[u8]) -> usize {
        self.partitions.partition_point(|partition| **partition.start() <= *key) - 1
    }
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
