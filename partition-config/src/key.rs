//! Keys and key ranges. Keys are opaque bytes in bytewise order; ranges are half-open and follow etcd's `range_end`
//! conventions.

use std::{borrow::Borrow, fmt, ops::Deref};

use bytes::Bytes;

/// A key: any bytes, ordered bytewise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub Bytes);

impl Key {
    #[must_use]
    pub fn copy_from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }

    /// The smallest key above this one: this key followed by a zero byte.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut next = Vec::with_capacity(self.0.len() + 1);
        next.extend_from_slice(&self.0);
        next.push(0);
        Self(next.into())
    }

    /// The smallest key above every key with this prefix. `None` if there is none: the key is empty or all bytes
    /// are 0xff.
    #[must_use]
    pub fn prefix_end(&self) -> Option<Self> {
        let last = self.0.iter().rposition(|b| *b != 0xff)?;
        let mut end = self.0[..=last].to_vec();
        end[last] += 1;
        Some(Self(end.into()))
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::copy_from(text.as_bytes())
    }
}

impl From<Bytes> for Key {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRange {
    Single(Key),
    /// `start <= key`, and `key < end` unless `end` is `None` (to the end of the key space). May be empty.
    Span {
        start: Key,
        /// The exclusive upper bound; `None` for no upper bound.
        end: Option<Key>,
    },
}

impl KeyRange {
    /// Applies etcd's convention: an empty `range_end` means the single key, `"\0"` means no upper bound.
    #[must_use]
    pub fn from_wire(key: Bytes, range_end: Bytes) -> Self {
        match range_end.as_ref() {
            [] => Self::Single(Key(key)),
            [0] => Self::Span { start: Key(key), end: None },
            _ => Self::Span { start: Key(key), end: Some(Key(range_end)) },
        }
    }

    /// The key and `range_end` of the range in etcd's convention. An empty start means all keys, which etcd writes as
    /// one zero byte.
    #[must_use]
    pub fn to_wire(&self) -> (Bytes, Bytes) {
        let zero = || Bytes::from_static(&[0]);
        let some = |key: &Key| if key.0.is_empty() { zero() } else { key.0.clone() };
        match self {
            Self::Single(key) => (some(key), Bytes::new()),
            Self::Span { start, end } => (some(start), end.as_ref().map_or_else(zero, |end| end.0.clone())),
        }
    }

    #[must_use]
    pub fn everything() -> Self {
        Self::Span { start: Key(Bytes::new()), end: None }
    }

    #[must_use]
    pub fn prefix(prefix: Key) -> Self {
        let end = prefix.prefix_end();
        Self::Span { start: prefix, end }
    }

    /// The lower bound of the range.
    #[must_use]
    pub fn start(&self) -> &Key {
        match self {
            Self::Single(start) | Self::Span { start, .. } => start,
        }
    }

    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Single(only) => only.0.as_ref() == key,
            Self::Span { start, end } => {
                key >= start.0.as_ref() && end.as_ref().is_none_or(|end| key < end.0.as_ref())
            }
        }
    }

    /// Whether no key can lie in the range (`end <= start`).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Span { start, end } => end.as_ref().is_some_and(|end| end <= start),
        }
    }

    /// Whether some key can lie in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Single(key), range) | (range, Self::Single(key)) => range.contains(key),
            (Self::Span { start: a, end: a_end }, Self::Span { start: b, end: b_end }) => {
                !self.is_empty()
                    && !other.is_empty()
                    && b_end.as_ref().is_none_or(|end| a < end)
                    && a_end.as_ref().is_none_or(|end| b < end)
            }
        }
    }
    /// The keys in both ranges; an empty span if there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Single(key), range) | (range, Self::Single(key)) => {
                if range.contains(key) {
                    return Self::Single(key.clone());
                }
                Self::Span { start: key.clone(), end: Some(key.clone()) }
            }
            (Self::Span { start: a, end: a_end }, Self::Span { start: b, end: b_end }) => {
                // `None` means no upper bound, so the other bound is the smaller one.
                let end = match (a_end, b_end) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (end, None) | (None, end) => end.as_ref(),
                };
                Self::Span { start: a.max(b).clone(), end: end.cloned() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: &str, end: &str) -> KeyRange {
        KeyRange::Span { start: Key::from(start), end: Some(Key::from(end)) }
    }

    #[test]
    fn ends_of_prefixes() {
        let end = |prefix: &[u8]| Key::copy_from(prefix).prefix_end().map(|end| end.to_vec());
        assert_eq!(end(b"/registry/pods/"), Some(b"/registry/pods0".to_vec()));
        assert_eq!(end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!((end(b"\xff"), end(b"")), (None, None));
    }

    #[test]
    fn etcds_conventions() {
        let range = |key: &'static str, end: &'static str| KeyRange::from_wire(key.into(), end.into());
        assert_eq!(range("a", ""), KeyRange::Single(Key::from("a")));
        assert_eq!(range("a", "\0"), KeyRange::Span { start: Key::from("a"), end: None });
        assert_eq!(range("a", "b"), span("a", "b"));
        assert_eq!(range("", "\0"), KeyRange::everything());
        assert!(range("b", "a").is_empty() && range("a", "a").is_empty() && !range("a", "").is_empty());
    }

    fn key() -> impl Strategy<Value = Key> {
        prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', 0xff]), 0..3)
            .prop_map(|key| Key(key.into()))
    }

    fn range() -> impl Strategy<Value = KeyRange> {
        prop_oneof![
            key().prop_map(KeyRange::Single),
            (key(), prop::option::of(key())).prop_map(|(start, end)| KeyRange::Span { start, end }),
        ]
    }

    proptest! {
        #[test]
        fn an_intersection_holds_what_both_hold(a in range(), b in range(), key in key()) {
            let both = a.intersection(&b);
            prop_assert_eq!(both.contains(&key), a.contains(&key) && b.contains(&key));
            prop_assert_eq!(both.is_empty(), !a.overlaps(&b));
        }

        #[test]
        fn nothing_lies_between_a_key_and_its_successor(a in key(), b in key()) {
            prop_assert!(a < a.successor());
            prop_assert_eq!(a < b, a.successor() <= b);
        }

        #[test]
        fn a_prefix_range_holds_what_begins_with_it(prefix in key(), key in key()) {
            prop_assert_eq!(KeyRange::prefix(prefix.clone()).contains(&key), key.starts_with(&prefix));
        }

        #[test]
        fn overlap_is_a_key_in_both(a in range(), b in range()) {
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            // If two ranges intersect, the larger start is in both.
            let start = a.start().max(b.start());
            prop_assert_eq!(a.overlaps(&b), a.contains(start) && b.contains(start));
        }
    }
}
