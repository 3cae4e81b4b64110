//! Units: what stores own, transfer, feed and export. A unit is a key interval or, in a ring, some hash buckets of
//! one.

use std::{fmt, str::FromStr};

use bytes::Bytes;

use crate::{
    key::KeyRange,
    ring::{BucketSet, RingHash},
};

/// A set of buckets, and the part of a key that is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnitBuckets {
    /// The length of the Kind prefix, which is not hashed.
    pub prefix_len: usize,
    pub set: BucketSet,
}

impl UnitBuckets {
    /// Whether the key hashes to one of the buckets.
    #[must_use]
    pub fn contain(&self, key: &[u8]) -> bool {
        self.set.contains(RingHash::V1.bucket(key.get(self.prefix_len..).unwrap_or_default()))
    }
}

/// The form in request metadata: `prefix_len`, a blank and the set.
impl fmt::Display for UnitBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.prefix_len, self.set)
    }
}

impl FromStr for UnitBuckets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no number of bytes, a blank and 64 hexadecimal digits");
        let (prefix_len, set) = text.split_once(' ').ok_or_else(bad)?;
        let set = BucketSet::try_from(set.to_owned()).map_err(|_| bad())?;
        Ok(Self { prefix_len: prefix_len.parse().map_err(|_| bad())?, set })
    }
}

/// A set of keys that is owned and moved as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Always a `Span`.
    pub range: KeyRange,
    /// The buckets of a ring; `None` for all keys of the range.
    pub buckets: Option<UnitBuckets>,
}

impl Unit {
    #[must_use]
    pub fn of_range(range: KeyRange) -> Self {
        Self { range, buckets: None }
    }

    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.range.contains(key) && self.buckets.as_ref().is_none_or(|buckets| buckets.contain(key))
    }

    /// Whether the unit may contain a key of `range`. Buckets are checked for a single key only, so a true result
    /// may be wrong for a span.
    #[must_use]
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        match range {
            KeyRange::Single(key) => self.contains(key),
            KeyRange::Span { .. } => self.range.overlaps(range),
        }
    }

    /// Whether a key can be in both units. Buckets count only if both units hash the same part of a key.
    #[must_use]
    pub fn overlaps_unit(&self, other: &Self) -> bool {
        let apart = match (&self.buckets, &other.buckets) {
            (Some(a), Some(b)) => a.prefix_len == b.prefix_len && a.set.is_disjoint(&b.set),
            _ => false,
        };
        !apart && self.range.overlaps(&other.range)
    }

    /// Whether the unit certainly contains every key of `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let buckets = match (&self.buckets, &other.buckets) {
            (None, _) => true,
            (Some(a), Some(b)) => a.prefix_len == b.prefix_len && (b.set - a.set).is_empty(),
            (Some(_), None) => false,
        };
        buckets && self.range.intersection(&other.range) == other.range
    }

    /// The keys of this unit that are not in `other`, as disjoint units. `None` if the two hash different parts of
    /// a key or a range is not a `Span`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Option<Vec<Self>> {
        let both = self.range.intersection(&other.range);
        if both.is_empty() {
            return Some(vec![self.clone()]);
        }
        let KeyRange::Span { start, end } = &both else { return None };
        let before = KeyRange::Span { start: self.range.start().clone(), end: Some(start.clone()) };
        let last = match &self.range {
            KeyRange::Span { end, .. } => end.clone(),
            KeyRange::Single(_) => return None,
        };
        let after = end.as_ref().map(|end| KeyRange::Span { start: end.clone(), end: last });
        let outside = [Some(before), after].into_iter().flatten().filter(|range| !range.is_empty());
        let mut rest: Vec<Self> = outside.map(|range| Self { range, buckets: self.buckets }).collect();
        let inside = match (&self.buckets, &other.buckets) {
            (_, None) => return Some(rest),
            (None, Some(theirs)) => UnitBuckets { set: BucketSet::ALL - theirs.set, ..*theirs },
            (Some(ours), Some(theirs)) if ours.prefix_len == theirs.prefix_len => {
                UnitBuckets { set: ours.set - theirs.set, ..*ours }
            }
            _ => return None,
        };
        if !inside.set.is_empty() {
            rest.push(Self { range: both, buckets: Some(inside) });
        }
        Some(rest)
    }

    /// The wire form: 32 bytes with bit n % 8 of byte n / 8 for bucket n, and the length of the unhashed prefix.
    /// Empty for all keys of the range.
    #[must_use]
    pub fn buckets_to_wire(&self) -> (Bytes, u32) {
        match &self.buckets {
            None => (Bytes::new(), 0),
            Some(buckets) => {
                let prefix_len = u32::try_from(buckets.prefix_len).unwrap_or(u32::MAX);
                (Bytes::copy_from_slice(&buckets.set.to_bytes()), prefix_len)
            }
        }
    }

    /// The inverse of [`Unit::buckets_to_wire`]; `None` unless `buckets` has 0 or 32 bytes.
    #[must_use]
    pub fn buckets_from_wire(buckets: &[u8], prefix_len: u32) -> Option<Option<UnitBuckets>> {
        if buckets.is_empty() {
            return Some(None);
        }
        let set = BucketSet::from_bytes(buckets.try_into().ok()?);
        Some(Some(UnitBuckets { prefix_len: usize::try_from(prefix_len).ok()?, set }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{key::Key, ring::Bucket};

    fn key() -> impl Strategy<Value = Key> {
        "[ab]{1,3}".prop_map(|key| Key::from(key.as_str()))
    }

    fn unit() -> impl Strategy<Value = Unit> {
        let buckets = (1usize..3, prop::collection::vec(any::<u8>(), 0..300));
        let buckets = buckets.prop_map(|(prefix_len, set)| UnitBuckets {
            prefix_len,
            set: set.into_iter().map(Bucket).collect(),
        });
        (key(), prop::option::of(key()), prop::option::of(buckets))
            .prop_map(|(start, end, buckets)| Unit { range: KeyRange::Span { start, end }, buckets })
    }

    #[test]
    fn bytes_of_buckets() {
        let set: BucketSet = [Bucket(0), Bucket(9), Bucket(255)].into_iter().collect();
        let unit = Unit { range: KeyRange::everything(), buckets: Some(UnitBuckets { prefix_len: 15, set }) };
        let (bytes, prefix_len) = unit.buckets_to_wire();
        assert_eq!((bytes[0], bytes[1], bytes[31], bytes.len(), prefix_len), (1, 2, 128, 32, 15));
        assert_eq!(Unit::buckets_from_wire(&bytes, prefix_len), Some(unit.buckets));
        assert_eq!(Unit::buckets_from_wire(&[], 0), Some(None));
        assert_eq!(Unit::buckets_from_wire(&bytes[1..], 15), None);
        let text = unit.buckets.unwrap().to_string();
        assert_eq!(text.parse(), Ok(unit.buckets.unwrap()));
        for bad in ["", "15", &text[3..], &text[..60], &format!("{text} "), &format!("-{text}")] {
            assert!(bad.parse::<UnitBuckets>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn the_words_mean_what_keys_say(a in unit(), b in unit(), key in key(), all: bool) {
            let b = if all { Unit { buckets: None, ..b } } else { b };
            if a.contains(&key) && b.contains(&key) {
                prop_assert!(a.overlaps_unit(&b) && b.overlaps_unit(&a));
                prop_assert!(a.overlaps(&b.range) && a.overlaps(&KeyRange::Single(key.clone())));
            }
            if a.covers(&b) && b.contains(&key) {
                prop_assert!(a.contains(&key));
            }
            if let Some(rest) = a.minus(&b) {
                let held = rest.iter().filter(|unit| unit.contains(&key)).count();
                prop_assert_eq!(held, usize::from(a.contains(&key) && !b.contains(&key)));
            }
            prop_assert!(a.covers(&a));
            prop_assert_eq!(a.overlaps(&KeyRange::Single(key.clone())), a.contains(&key));
        }
    }
}
