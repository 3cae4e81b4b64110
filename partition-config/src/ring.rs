//! Rings spread the names of a Kind over several stores by hash.
//!
//! Every name belongs to one of 256 fixed **buckets** for ever. Buckets are what stores own and moves transfer, so
//! the hash function is frozen and versioned ([`RingHash`]). A [`BucketTable`] says which store serves each bucket.
//! The table is data in the map, and changing it is a set of transfers ([`BucketTable::transfers`]).
//!
//! [`fill`] computes tables: from the stores' names alone by consistent hashing, or from an existing table with as
//! few moves as an even spread allows.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::map::StoreIdx;

mod bucket_set;
pub mod fill;

pub use bucket_set::BucketSet;

/// The number of buckets of a ring.
pub const BUCKETS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bucket(pub u8);

impl Bucket {
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

/// The function from a name to its bucket. Frozen: any other function needs a new version, and changing the version
/// moves keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingHash {
    /// The highest 8 bits of XXH3-64, without seed or secret, of the bytes after the Kind prefix (`namespace/name`,
    /// or `name`). The Kind is not hashed, so objects of the same name share a bucket across Kinds.
    #[default]
    V1,
}

impl RingHash {
    /// The bucket of a name, the bytes after the Kind prefix.
    #[must_use]
    pub fn bucket(self, name: &[u8]) -> Bucket {
        match self {
            Self::V1 => Bucket((xxh3_64(name) >> 56) as u8),
        }
    }
}

/// The owner of each bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<StoreIdx>", into = "Vec<StoreIdx>")]
pub struct BucketTable([StoreIdx; BUCKETS]);

impl BucketTable {
    /// Builds a table from the owners in bucket order.
    #[must_use]
    pub fn new(owners: [StoreIdx; BUCKETS]) -> Self {
        Self(owners)
    }

    #[must_use]
    pub fn owner(&self, bucket: Bucket) -> StoreIdx {
        self.0[usize::from(bucket.0)]
    }

    /// The store of a name, the bytes after the Kind prefix. Uses [`RingHash::V1`]; a second hash version would
    /// need a case here.
    #[must_use]
    pub fn store_of(&self, name: &[u8]) -> StoreIdx {
        self.owner(RingHash::V1.bucket(name))
    }

    /// The buckets that a store owns.
    #[must_use]
    pub fn of(&self, store: StoreIdx) -> BucketSet {
        Bucket::all().filter(|bucket| self.owner(*bucket) == store).collect()
    }

    /// Every store that owns a bucket, in order and without duplicates.
    #[must_use]
    pub fn stores(&self) -> Vec<StoreIdx> {
        let mut stores = self.0.to_vec();
        stores.sort_unstable();
        stores.dedup();
        stores
    }

    /// The moves that turn this table into `to`, as (from, to, buckets). Sorted, with each pair of stores once.
    #[must_use]
    pub fn transfers(&self, to: &Self) -> Vec<(StoreIdx, StoreIdx, BucketSet)> {
        let mut moves: Vec<_> = Bucket::all()
            .map(|bucket| (self.owner(bucket), to.owner(bucket), bucket))
            .filter(|(from, to, _)| from != to)
            .collect();
        moves.sort_unstable();
        moves
            .chunk_by(|a, b| (a.0, a.1) == (b.0, b.1))
            .map(|group| (group[0].0, group[0].1, group.iter().map(|(_, _, bucket)| *bucket).collect()))
            .collect()
    }
}

impl From<BucketTable> for Vec<StoreIdx> {
    fn from(table: BucketTable) -> Self {
        table.0.to_vec()
    }
}

impl TryFrom<Vec<StoreIdx>> for BucketTable {
    type Error = String;

    fn try_from(owners: Vec<StoreIdx>) -> Result<Self, String> {
        let owners: [StoreIdx; BUCKETS] = owners
            .try_into()
            .map_err(|owners: Vec<_>| format!("a ring has {BUCKETS} buckets, not {}", owners.len()))?;
        Ok(Self(owners))
    }
}

#[cfg(test)]
mod tests;
