//! Rings: the names of a Kind spread over several stores by hash.
//!
//! A name falls into one of 256 fixed **buckets** for ever: buckets are what is owned and moved, so the hash is frozen
//! and has a version ([`RingHash`]). Which store serves a bucket is a [`BucketTable`], which is data: it is part of the
//! map, and a change of it is a set of transfers ([`BucketTable::transfers`]).
//!
//! Tables come from [`fill`]: by a consistent-hash ring from the stores' names alone, and from a table in use with as few
//! moves as an even spread allows.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::map::StoreIdx;

mod bucket_set;
pub mod fill;

pub use bucket_set::BucketSet;

/// How many buckets a ring has.
pub const BUCKETS: usize = 256;

/// One of the [`BUCKETS`] parts of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bucket(pub u8);

impl Bucket {
    /// Every bucket, in order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

/// Which bucket a name is in. Frozen: another function is another version, and a change of version moves keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingHash {
    /// The highest 8 bits of XXH3-64, without seed or secret, of the bytes that follow the Kind prefix
    /// (`namespace/name`, or `name`); the Kind is not hashed, so objects of one name meet in one bucket.
    #[default]
    V1,
}

impl RingHash {
    /// The bucket of a name: of the bytes that follow the Kind prefix.
    #[must_use]
    pub fn bucket(self, name: &[u8]) -> Bucket {
        match self {
            Self::V1 => Bucket((xxh3_64(name) >> 56) as u8),
        }
    }
}

/// The store of each bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<StoreIdx>", into = "Vec<StoreIdx>")]
pub struct BucketTable([StoreIdx; BUCKETS]);

impl BucketTable {
    /// A table with these owners, in the order of buckets.
    #[must_use]
    pub fn new(owners: [StoreIdx; BUCKETS]) -> Self {
        Self(owners)
    }

    /// The store of a bucket.
    #[must_use]
    pub fn owner(&self, bucket: Bucket) -> StoreIdx {
        self.0[usize::from(bucket.0)]
    }

    /// The store of a name: of the bytes that follow the Kind prefix. Tables are over the buckets of [`RingHash::V1`]; a
    /// second version would have to be told apart here.
    #[must_use]
    pub fn store_of(&self, name: &[u8]) -> StoreIdx {
        self.owner(RingHash::V1.bucket(name))
    }

    /// The buckets of a store.
    #[must_use]
    pub fn of(&self, store: StoreIdx) -> BucketSet {
        Bucket::all().filter(|bucket| self.owner(*bucket) == store).collect()
    }

    /// Every store that has a bucket, each once, in order.
    #[must_use]
    pub fn stores(&self) -> Vec<StoreIdx> {
        let mut stores = self.0.to_vec();
        stores.sort_unstable();
        stores.dedup();
        stores
    }

    /// What has to move to make this table `to`: from, to, buckets; each pair of stores once, in order.
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
