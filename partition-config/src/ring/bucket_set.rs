//! Sets of buckets. A unit is a key range and a bucket set.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use serde::{Deserialize, Serialize};

use super::Bucket;

/// A set of buckets. Its text form is 64 hexadecimal digits, the highest bucket first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BucketSet([u64; 4]);

impl BucketSet {
    pub const EMPTY: Self = Self([0; 4]);
    /// Every bucket, which is what a partition without a ring has.
    pub const ALL: Self = Self([u64::MAX; 4]);

    fn place(bucket: Bucket) -> (usize, u64) {
        (usize::from(bucket.0 / 64), 1 << (bucket.0 % 64))
    }

    fn zip(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|word| join(self.0[word], other.0[word])))
    }

    pub fn insert(&mut self, bucket: Bucket) {
        let (word, bit) = Self::place(bucket);
        self.0[word] |= bit;
    }

    pub fn remove(&mut self, bucket: Bucket) {
        let (word, bit) = Self::place(bucket);
        self.0[word] &= !bit;
    }

    #[must_use]
    pub fn contains(&self, bucket: Bucket) -> bool {
        let (word, bit) = Self::place(bucket);
        self.0[word] & bit != 0
    }

    /// The number of buckets in the set, 0 to 256.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        (*self & *other).is_empty()
    }

    /// The wire form: bucket n is bit n % 8 of byte n / 8.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (part, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`BucketSet::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut set = Self::EMPTY;
        for bucket in Bucket::all() {
            if bytes[usize::from(bucket.0 / 8)] >> (bucket.0 % 8) & 1 == 1 {
                set.insert(bucket);
            }
        }
        set
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Bucket> {
        let set = *self;
        Bucket::all().filter(move |bucket| set.contains(*bucket))
    }
}

impl BitOr for BucketSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
}

impl BitAnd for BucketSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
}

impl Sub for BucketSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }
}

impl FromIterator<Bucket> for BucketSet {
    fn from_iter<I: IntoIterator<Item = Bucket>>(buckets: I) -> Self {
        let mut set = Self::EMPTY;
        buckets.into_iter().for_each(|bucket| set.insert(bucket));
        set
    }
}

impl fmt::Display for BucketSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().rev().try_for_each(|word| write!(f, "{word:016x}"))
    }
}

impl fmt::Debug for BucketSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketSet({self})")
    }
}

impl From<BucketSet> for String {
    fn from(set: BucketSet) -> Self {
        set.to_string()
    }
}

impl TryFrom<String> for BucketSet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is no set of buckets: 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut words = [0; 4];
        for (word, digits) in words.iter_mut().rev().zip(text.as_bytes().chunks(16)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *word = u64::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self(words))
    }
}
