//! Tests against `BTreeMap`: every invariant is checked after each step, and costs are counted in visited nodes.

use std::{cell::Cell, collections::BTreeMap};

use kindred_partition_config::key::Key;
use proptest::prelude::*;

use super::{
    Keys, OrderIndex,
    node::{FULL, Node, SPARSE},
};

struct Within;

impl<V> Keys<(Key, V)> for Within {
    fn key<'k>(&'k self, entry: &'k (Key, V)) -> &'k [u8] {
        &entry.0
    }
}

type Index<V> = OrderIndex<(Key, V)>;

thread_local!(static VISITS: Cell<u64> = const { Cell::new(0) });

pub(super) fn count_visit() {
    VISITS.set(VISITS.get() + 1);
}

/// The number of nodes that `run` visits, and its result.
fn visits<R>(run: impl FnOnce() -> R) -> (u64, R) {
    VISITS.set(0);
    let result = run();
    (VISITS.get(), result)
}

/// Checks a subtree whose keys must lie in `low..high`. Returns its depth, entries and live entries.
fn validate_node<V>(node: &Node<(Key, V)>, low: &[u8], high: Option<&[u8]>, root: bool) -> (usize, u64, u64) {
    match node {
        Node::Leaf(leaf) => {
            assert!(leaf.entries.len() <= FULL, "overfull leaf");
            assert!(root || leaf.entries.len() >= SPARSE, "sparse leaf");
            assert_eq!(leaf.live & !leaf.all(), 0, "flags of entries that are not there");
            assert!(leaf.entries.is_sorted_by(|a, b| a.0 < b.0), "unordered leaf");
            for (key, _) in &leaf.entries {
                assert!(**key >= *low && high.is_none_or(|high| **key < *high), "key outside");
            }
            (1, leaf.entries.len() as u64, u64::from(leaf.live.count_ones()))
        }
        Node::Inner(inner) => {
            let width = inner.children.len();
            assert!(width <= FULL && width >= if root { 2 } else { SPARSE }, "inner node of {width}");
            assert_eq!(inner.separators.len(), width - 1);
            let mut sum = (0, 0, 0);
            for (i, child) in inner.children.iter().enumerate() {
                let low = if i == 0 { low } else { &inner.separators[i - 1] };
                let high = inner.separators.get(i).map(|s| &**s).or(high);
                assert!(high.is_none_or(|high| low < high), "unordered separators");
                let (depth, len, live) = validate_node(&child.node, low, high, false);
                assert_eq!(child.live, live, "wrong count");
                assert!(i == 0 || sum.0 == depth, "leaves at different depths");
                sum = (depth, sum.1 + len, sum.2 + live);
            }
            (sum.0 + 1, sum.1, sum.2)
        }
    }
}

/// Checks every invariant. Returns the depth.
fn validate<V>(index: &Index<V>) -> usize {
    let (depth, len, live) = validate_node(&index.root, b"", None, true);
    assert_eq!((len, live), (index.len(), index.live_len()));
    depth
}

type Model = BTreeMap<Vec<u8>, (u32, bool)>;

fn count(model: &Model, start: &[u8], end: Option<&[u8]>) -> u64 {
    model
        .iter()
        .filter(|(k, (_, live))| *live && k.as_slice() >= start && end.is_none_or(|end| k.as_slice() < end))
        .count() as u64
}

fn assert_same(index: &Index<u32>, model: &Model, start: &[u8], end: Option<&[u8]>) {
    assert_eq!(index.count_live(start, end, &Within), count(model, start, end));
    let tail = || model.iter().filter(|(k, _)| k.as_slice() >= start);
    assert!(
        index
            .iter_from(start, &Within)
            .map(|(k, v)| (&**k, *v))
            .eq(tail().map(|(k, (v, _))| (k.as_slice(), *v)))
    );
    let live = tail().filter(|(_, (_, live))| *live).map(|(k, (v, _))| (k.as_slice(), *v));
    assert!(index.iter_live_from(start, &Within).map(|(k, v)| (&**k, *v)).eq(live));
    let ends = |entry: Option<&(Key, u32)>| entry.map(|(k, v)| (k.to_vec(), *v));
    assert_eq!(ends(index.first()), model.iter().next().map(|(k, (v, _))| (k.clone(), *v)));
    assert_eq!(ends(index.last()), model.iter().next_back().map(|(k, (v, _))| (k.clone(), *v)));
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u8>, u32, bool),
    Remove(Vec<u8>),
    SetLive(Vec<u8>, bool),
    /// Removes this many entries from the first at or above the key on, to force joins.
    RemoveRun(Vec<u8>, usize),
    /// Inserts this many keys under one prefix, ascending or descending, to force one-sided splits.
    InsertRun(Vec<u8>, u8, bool),
    Count(Vec<u8>, Option<Vec<u8>>),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // A small alphabet with every length gives keys that are prefixes of one another, and hits existing keys.
        4 => prop::collection::vec(prop_oneof![Just(0), Just(b'a'), Just(b'b'), Just(0xff)], 0..7),
        2 => (0u16..2000).prop_map(|n| format!("/registry/pods/ns/pod-{n}").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (key(), any::<u32>(), any::<bool>()).prop_map(|(k, v, l)| Step::Insert(k, v, l)),
        4 => key().prop_map(Step::Remove),
        4 => (key(), any::<bool>()).prop_map(|(k, l)| Step::SetLive(k, l)),
        1 => (key(), 1usize..150).prop_map(|(k, n)| Step::RemoveRun(k, n)),
        2 => (key(), 1u8..200, any::<bool>()).prop_map(|(k, n, up)| Step::InsertRun(k, n, up)),
        2 => (key(), prop::option::of(key())).prop_map(|(s, e)| Step::Count(s, e)),
    ]
}

fn insert(index: &mut Index<u32>, model: &mut Model, key: Vec<u8>, value: u32, live: bool) {
    let old = index.insert((Key::copy_from(&key), value), live, &Within);
    assert_eq!(old.map(|(_, v)| v), model.insert(key, (value, live)).map(|(v, _)| v));
}

fn run(index: &mut Index<u32>, model: &mut Model, step: Step) {
    match step {
        Step::Insert(key, value, live) => insert(index, model, key, value, live),
        Step::Remove(key) => {
            assert_eq!(index.remove(&key, &Within).map(|(_, v)| v), model.remove(&key).map(|(v, _)| v))
        }
        Step::SetLive(key, live) => {
            let before = model.get_mut(&key).map(|(_, flag)| std::mem::replace(flag, live));
            assert_eq!(index.is_live(&key, &Within), before);
            assert_eq!(index.set_live(&key, live, &Within), before);
            let found = index.get(&key, &Within).map(|(_, v)| v);
            assert_eq!(found, model.get(&key).map(|(v, _)| v));
        }
        Step::RemoveRun(from, n) => {
            let keys: Vec<_> = model.range(from..).take(n).map(|(k, _)| k.clone()).collect();
            for key in keys {
                assert_eq!(index.remove(&key, &Within).map(|(_, v)| v), model.remove(&key).map(|(v, _)| v));
            }
        }
        Step::InsertRun(prefix, n, up) => {
            for i in 0..n {
                let tail = if up { i } else { n - i };
                let key = [prefix.as_slice(), &[tail]].concat();
                insert(index, model, key, u32::from(i), i % 3 != 0);
            }
        }
        Step::Count(start, end) => assert_same(index, model, &start, end.as_deref()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_sorted_map(steps in prop::collection::vec(step(), 1..120), drain in any::<bool>()) {
        let mut index = OrderIndex::new();
        let mut model = Model::new();
        for step in steps {
            run(&mut index, &mut model, step);
            validate(&index);
        }
        assert_same(&index, &model, b"", None);
        if drain {
            run(&mut index, &mut model, Step::RemoveRun(Vec::new(), usize::MAX));
            prop_assert!(index.is_empty() && index.first().is_none() && validate(&index) == 1);
        }
    }
}

/// The numbers below `n` in a fixed scattered order: a full-period multiplicative walk.
fn scattered(n: u64) -> impl Iterator<Item = u64> {
    const STRIDE: u64 = 2_654_435_761;
    (0..n).map(move |i| i.wrapping_mul(STRIDE) % n)
}

fn pod(n: u64) -> Key {
    Key::from(format!("/registry/pods/default/pod-{n:07}").as_str())
}

#[test]
fn every_order_of_insertion_and_removal_keeps_the_shape() {
    const N: u64 = 20_000;
    let orders: [Vec<u64>; 3] = [(0..N).collect(), (0..N).rev().collect(), scattered(N).collect()];
    for inserts in &orders {
        for removes in &orders {
            let mut index = OrderIndex::new();
            for n in inserts {
                assert_eq!(index.insert((pod(*n), *n), n % 2 == 0, &Within), None);
            }
            let depth = validate(&index);
            assert!(depth <= 4, "depth {depth}");
            assert_eq!(index.count_live(&pod(100), Some(&pod(1_100)), &Within), 500);
            for (i, n) in removes.iter().enumerate() {
                assert_eq!(index.remove(&pod(*n), &Within).map(|(_, v)| v), Some(*n));
                if i % 1_000 == 0 {
                    validate(&index);
                }
            }
            assert_eq!((index.len(), index.live_len(), validate(&index)), (0, 0, 1));
        }
    }
}

/// A13: in a million keys, counting and paging cost the depth of the tree, not the length of the range, and long runs
/// of tombstones cost nothing.
#[test]
fn pitfall_a13_a_million_keys_are_counted_in_a_few_nodes() {
    const N: u64 = 1_000_000;
    let mut index = OrderIndex::new();
    for n in scattered(N) {
        index.insert((pod(n), ()), true, &Within);
    }
    let depth = validate(&index) as u64;
    assert!(depth <= 5, "depth {depth}");

    let (cost, counted) = visits(|| index.count_live(&pod(7), Some(&pod(999_990)), &Within));
    assert_eq!(counted, 999_983);
    assert!(cost <= 2 * depth, "count visited {cost} nodes");

    for n in 1_000..999_000 {
        index.set_live(&pod(n), false, &Within);
    }
    assert_eq!(index.count_live(b"", None, &Within), 2_000);
    let (cost, next) = visits(|| index.iter_live_from(&pod(1_000), &Within).next().map(|(k, ())| k.clone()));
    assert_eq!(next, Some(pod(999_000)));
    assert!(cost <= 2 * depth, "the first live key took {cost} nodes");
    let (cost, none) = visits(|| index.iter_live_from(b"/registry/pods/e", &Within).next().is_none());
    assert!(none && cost <= depth);
    assert_eq!(index.iter_from(&pod(1_000), &Within).count() as u64, N - 1_000);
}
