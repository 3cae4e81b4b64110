//! Finds those of many ranges that contain a key.
//!
//! It holds the ranges of a stream's watches, which are looked up by the key of each event: an interval tree in an
//! array. Ranges come and go one by one, and keys are looked up far more often. Ranges that came since the tree was
//! built are searched one by one; when too many have come or gone, the next lookup rebuilds the tree.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kindred_partition_config::key::{Key, KeyRange};

/// The tree is rebuilt when more than `LOOSE_MAX` plus one in [`PART`] of its ranges have come or gone.
const LOOSE_MAX: usize = 64;
const PART: usize = 8;

/// A set of ranges, each with a number.
#[derive(Debug, Default)]
pub struct Stabs {
    /// All ranges.
    ranges: BTreeMap<i64, KeyRange>,
    /// The ranges at the time when the tree was built, ordered by start.
    tree: Vec<Node>,
    /// The ranges that are not in the tree.
    loose: BTreeSet<i64>,
    /// How many ranges in the tree have been removed or replaced.
    gone: usize,
}

#[derive(Debug)]
struct Node {
    start: Bytes,
    end: End,
    number: i64,
    /// The highest end in the subtree of this node.
    highest: End,
}

/// The exclusive end of a range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Bytes),
    Never,
}

impl End {
    fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < &end[..],
            Self::Never => true,
        }
    }
}

impl Stabs {
    /// Adds a range, or replaces the one with this number.
    pub fn insert(&mut self, number: i64, range: KeyRange) {
        self.remove(number);
        self.ranges.insert(number, range);
        self.loose.insert(number);
    }

    pub fn remove(&mut self, number: i64) {
        if self.ranges.remove(&number).is_some() && !self.loose.remove(&number) {
            self.gone += 1;
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The numbers of all ranges, in order.
    pub fn numbers(&self) -> impl Iterator<Item = i64> {
        self.ranges.keys().copied()
    }

    /// Calls `found` once for each range that contains the key, in no particular order. Returns the number of steps
    /// that it took.
    pub fn holding(&mut self, key: &[u8], mut found: impl FnMut(i64)) -> usize {
        if self.loose.len() + self.gone > LOOSE_MAX + self.tree.len() / PART {
            self.grow();
        }
        let mut steps = self.loose.len();
        for number in &self.loose {
            if self.ranges.get(number).is_some_and(|range| range.contains(key)) {
                found(*number);
            }
        }
        let mut open = vec![(0, self.tree.len())];
        while let Some((low, high)) = open.pop() {
            if low == high {
                continue;
            }
            steps += 1;
            let middle = low.midpoint(high);
            let node = &self.tree[middle];
            if !node.highest.is_behind(key) {
                continue;
            }
            open.push((low, middle));
            if node.start[..] <= *key {
                open.push((middle + 1, high));
                let is_here = !self.loose.contains(&node.number) && self.ranges.contains_key(&node.number);
                if node.end.is_behind(key) && is_here {
                    found(node.number);
                }
            }
        }
        steps
    }

    /// Builds the tree anew from all ranges.
    fn grow(&mut self) {
        let node = |(number, range): (&i64, &KeyRange)| {
            let (start, end) = match range {
                KeyRange::Single(Key(key)) => (key.clone(), End::Before([key, &[0][..]].concat().into())),
                KeyRange::Span { start, end } => {
                    (start.0.clone(), end.as_ref().map_or(End::Never, |end| End::Before(end.0.clone())))
                }
            };
            Node { start, highest: end.clone(), end, number: *number }
        };
        self.tree = self.ranges.iter().map(node).collect();
        self.tree.sort_by(|a, b| a.start.cmp(&b.start));
        raise(&mut self.tree);
        self.loose.clear();
        self.gone = 0;
    }
}

/// Sets the highest end of each subtree.
fn raise(tree: &mut [Node]) -> Option<End> {
    let middle = tree.len() / 2;
    let (low, rest) = tree.split_at_mut(middle);
    let (node, high) = rest.split_first_mut()?;
    let below = raise(low).max(raise(high));
    if let Some(below) = below.filter(|below| *below > node.highest) {
        node.highest = below;
    }
    Some(node.highest.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holding(stabs: &mut Stabs, key: &[u8]) -> Vec<i64> {
        let mut found = Vec::new();
        stabs.holding(key, |number| found.push(number));
        found.sort_unstable();
        found
    }

    #[test]
    fn f27_a_key_costs_what_holds_it_and_not_what_there_is() {
        let mut stabs = Stabs::default();
        let prefix = |ns: i64| KeyRange::Span {
            start: format!("/registry/pods/ns{ns:05}/").as_str().into(),
            end: Some(format!("/registry/pods/ns{ns:05}0").as_str().into()),
        };
        (0..10_000).for_each(|ns| stabs.insert(ns, prefix(ns)));
        stabs.insert(-1, KeyRange::everything());
        assert_eq!(holding(&mut stabs, b"/registry/pods/ns00777/x"), [-1, 777]);
        let steps = stabs.holding(b"/registry/pods/ns09999/x", |_| ());
        assert!(steps < 100, "{steps}");
        stabs.remove(777);
        assert_eq!(holding(&mut stabs, b"/registry/pods/ns00777/x"), [-1]);
    }

    fn range() -> impl Strategy<Value = KeyRange> {
        let key = || prop::collection::vec(0..4_u8, 0..4).prop_map(|key| Key(key.into()));
        prop_oneof![
            key().prop_map(KeyRange::Single),
            (key(), prop::option::of(key())).prop_map(|(start, end)| KeyRange::Span { start, end }),
        ]
    }

    proptest! {
        #[test]
        fn it_finds_what_holds_the_key(
            steps in prop::collection::vec((0..300_i64, prop::option::of(range())), 1..900),
            keys in prop::collection::vec(prop::collection::vec(0..4_u8, 0..4), 1..9),
        ) {
            let (mut stabs, mut all) = (Stabs::default(), BTreeMap::new());
            for (at, (number, range)) in steps.iter().enumerate() {
                match range {
                    Some(range) => {
                        stabs.insert(*number, range.clone());
                        all.insert(*number, range.clone());
                    }
                    None => {
                        stabs.remove(*number);
                        all.remove(number);
                    }
                }
                if at % 97 != 0 && at + 1 != steps.len() {
                    continue;
                }
                for key in &keys {
                    let expected: Vec<i64> =
                        all.iter().filter(|(_, range)| range.contains(key)).map(|(number, _)| *number).collect();
                    prop_assert_eq!(holding(&mut stabs, key), expected);
                }
                prop_assert!(stabs.numbers().eq(all.keys().copied()));
            }
            prop_assert_eq!(stabs.is_empty(), all.is_empty());
        }
    }
}
