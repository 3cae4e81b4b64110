//! The keys that several permissions cover together. Ranges that touch or overlap are one, so that a request over both is
//! permitted, as in etcd (`range_perm_cache.go`).

use super::document::Permission;

/// The end of keys: the first key behind a range, or all keys there are. In this order, no end is the highest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Vec<u8>),
    Never,
}

/// Keys from `start` to `end`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    start: Vec<u8>,
    end: End,
}

impl Span {
    /// Of a key and etcd's `range_end`.
    fn of(key: &[u8], range_end: &[u8]) -> Self {
        let end = match range_end {
            [] => End::Before([key, &[0]].concat()),
            [0] => End::Never,
            end => End::Before(end.to_vec()),
        };
        Self { start: key.to_vec(), end }
    }

    fn is_empty(&self) -> bool {
        matches!(&self.end, End::Before(end) if *end <= self.start)
    }
}

/// Whether a permission may have this range: it has a key, and its end is behind its beginning.
#[must_use]
pub fn is_valid(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && !Span::of(key, range_end).is_empty()
}

/// Keys, as sorted spans with a gap between each two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Span>);

impl Ranges {
    /// The keys of these ranges together.
    #[must_use]
    pub fn of<'a>(permissions: impl Iterator<Item = &'a Permission>) -> Self {
        let spans = permissions.map(|permission| Span::of(&permission.key, &permission.range_end));
        let mut spans: Vec<Span> = spans.filter(|span| !span.start.is_empty() && !span.is_empty()).collect();
        spans.sort_unstable();
        let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if last.end >= End::Before(span.start.clone()) => {
                    last.end = span.end.max(last.end.clone());
                }
                _ => merged.push(span),
            }
        }
        Self(merged)
    }

    /// Whether all keys of a request are among these. No request without a key is: it would mean all keys to some, and
    /// none to others.
    #[must_use]
    pub fn cover(&self, key: &[u8], range_end: &[u8]) -> bool {
        if key.is_empty() {
            return false;
        }
        let asked = Span::of(key, range_end);
        let behind = self.0.partition_point(|span| span.start <= asked.start);
        let Some(span) = behind.checked_sub(1).and_then(|at| self.0.get(at)) else { return false };
        // An empty range must begin inside, too.
        End::Before(asked.start) < span.end && asked.end <= span.end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::document::Access;
    use super::*;

    fn permission(key: &[u8], range_end: &[u8]) -> Permission {
        Permission { access: Access::Read, key: key.to_vec(), range_end: range_end.to_vec() }
    }

    fn of(ranges: &[(&[u8], &[u8])]) -> Ranges {
        let permissions: Vec<_> = ranges.iter().map(|(key, end)| permission(key, end)).collect();
        Ranges::of(permissions.iter())
    }

    #[test]
    fn ranges_that_touch_are_one_and_others_are_not() {
        let ranges = of(&[(b"a", b"c"), (b"c", b"e"), (b"x", b""), (b"x\0", b"z")]);
        for (key, end) in [(&b"a"[..], &b"e"[..]), (b"b", b"d"), (b"d", b""), (b"x", b"z"), (b"x", b"")] {
            assert!(ranges.cover(key, end), "{key:?} {end:?}");
        }
        for (key, end) in [
            (&b"a"[..], &b"f"[..]),
            (b"e", b""),
            (b"d", b"y"),
            (b"a", b"\0"),
            (b"z", b""),
            (b"", b""),
            (b"", b"\0"),
        ] {
            assert!(!ranges.cover(key, end), "{key:?} {end:?}");
        }
    }

    #[test]
    fn all_keys_from_one_on_and_all_there_are() {
        let from_m = of(&[(b"m", b"\0")]);
        assert!(from_m.cover(b"m", b"\0") && from_m.cover(b"\xff\xff", b"\0") && from_m.cover(b"n", b"o"));
        assert!(!from_m.cover(b"l", b"\0") && !from_m.cover(b"l", b"m") && !from_m.cover(b"\0", b"\0"));
        let all = of(&[(b"\0", b"\0")]);
        assert!(all.cover(b"\0", b"\0") && all.cover(b"a", b""));
        assert!(!all.cover(b"", b"\0"), "a request must have a key");
    }

    #[test]
    fn a_permission_has_a_key_and_a_range_that_is_not_empty() {
        for (key, end, valid) in [
            (&b"a"[..], &b""[..], true),
            (b"a", b"b", true),
            (b"a", b"\0", true),
            (b"\0", b"\0", true),
            (b"", b"", false),
            (b"", b"\0", false),
            (b"b", b"a", false),
            (b"a", b"a", false),
        ] {
            assert_eq!(is_valid(key, end), valid, "{key:?} {end:?}");
        }
    }

    /// Short keys of few letters, of which many touch each other. There are all of up to two letters.
    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, 255]), 0..3)
    }

    fn universe() -> Vec<Vec<u8>> {
        let letters = [0_u8, 1, 2, 255];
        let mut all: Vec<Vec<u8>> = letters.iter().map(|a| vec![*a]).collect();
        for a in letters {
            for b in letters {
                all.push(vec![a, b]);
                all.push(vec![a, b, 0]);
            }
        }
        all
    }

    fn holds(key: &[u8], range_end: &[u8], one: &[u8]) -> bool {
        match range_end {
            [] => one == key,
            [0] => one >= key,
            end => key <= one && one < end,
        }
    }

    proptest! {
        /// A request is covered exactly if each key that it asks for is in some permission. With all keys of two letters
        /// and their successors there is one in every gap.
        #[test]
        fn covered_is_what_every_key_of_is_in_some_range(
            permissions in prop::collection::vec((keys(), keys()), 0..6),
            asked in (keys(), keys()),
        ) {
            let permissions: Vec<_> = permissions
                .iter()
                .filter(|(key, end)| is_valid(key, end))
                .map(|(key, end)| permission(key, end))
                .collect();
            let (key, end) = &asked;
            let wanted: Vec<_> = universe().into_iter().filter(|one| holds(key, end, one)).collect();
            let permitted = |one: &Vec<u8>| permissions.iter().any(|has| holds(&has.key, &has.range_end, one));
            let covered = Ranges::of(permissions.iter()).cover(key, end);
            if key.is_empty() {
                prop_assert!(!covered);
            } else if !Span::of(key, end).is_empty() {
                // Only a permission without an end has the keys behind all of these.
                let open = end != &[0] || permissions.iter().any(|has| has.range_end == [0]);
                prop_assert_eq!(covered, open && wanted.iter().all(permitted), "{:?}", wanted);
            }
        }
    }
}
