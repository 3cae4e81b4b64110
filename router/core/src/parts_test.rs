use kindred_partition_config::ids::Epoch;
use kindred_partition_config::key::Key;
use kindred_partition_config::kind::KindScheme;
use kindred_partition_config::ring::{Bucket, BucketTable};
use proptest::prelude::*;

use super::*;

const PODS: &str = "/registry/pods/";

/// Pods below `m` in a ring of stores 1 and 2, with these buckets on store 2; from `m` on, on the store `high`.
fn map(on_2: impl Fn(u8) -> bool, high: u16) -> PartitionMap {
    let scheme = KindScheme::new("/registry");
    let kind = scheme.resolve("pods").unwrap();
    let owner = |bucket: usize| StoreIdx(if on_2(u8::try_from(bucket).unwrap()) { 2 } else { 1 });
    let ring = Placement::Ring(Box::new(BucketTable::new(std::array::from_fn(owner))));
    let m = Key::from("/registry/pods/m");
    let part = |start, end, placement| Partition {
        range: KeyRange::Span { start, end: Some(end) },
        kind: Some(kind.clone()),
        placement,
        epoch: Epoch(1),
    };
    let low = part(kind.as_key().clone(), m.clone(), ring);
    let high = part(m, kind.end(), Placement::Single(StoreIdx(high)));
    PartitionMap::filled(vec![low, high], StoreIdx(0), Epoch(1)).unwrap()
}

fn all() -> KeyRange {
    KeyRange::from_wire(PODS.into(), "/registry/pods0".into())
}

/// Whether the store of the piece deletes this key if it serves what the map says.
fn deletes(map: &PartitionMap, piece: &Piece, key: &[u8]) -> bool {
    store_ix(map.store_of(key)) == piece.store
        && piece.range.contains(key)
        && piece.buckets.is_none_or(|buckets| buckets.contain(key))
}

#[test]
fn nothing_is_done_of_a_whole_range() {
    let pieces = pieces_left(&map(|bucket| bucket < 100, 1), &all(), &[]);
    let stores: Vec<_> = pieces.iter().map(|piece| (piece.store, piece.units.len())).collect();
    assert_eq!(stores, [(StoreIx(1), 2), (StoreIx(2), 1)], "neighbours on a store are one piece");
    assert_eq!((&pieces[0].range, pieces[0].buckets), (&all(), None));
    assert!(pieces_left(&map(|_| true, 1), &KeyRange::from_wire("b".into(), "a".into()), &[]).is_empty());
}

#[test]
fn what_was_done_is_left_out_where_it_has_moved_to() {
    let before = map(|bucket| bucket < 100, 1);
    let first = pieces_left(&before, &all(), &[]).remove(0);
    // Buckets 100 to 119 have moved from store 1 to store 2.
    let after = map(|bucket| bucket < 120, 3);
    let left = pieces_left(&after, &all(), &first.units);
    let [only] = left.as_slice() else { panic!("{left:?}") };
    assert_eq!(only.store, StoreIx(2));
    let expected: Vec<_> = (0..100).map(Bucket).collect();
    assert_eq!(only.buckets.unwrap().set.iter().collect::<Vec<_>>(), expected);
    // If nothing has moved, the second store's piece is whole.
    assert_eq!(pieces_left(&before, &all(), &first.units)[0].buckets, None);
}

proptest! {
    /// However often the map changes between two pieces, every key is deleted exactly once.
    #[test]
    fn each_key_once(
        maps in prop::collection::vec((any::<u8>(), 1u16..4), 1..8),
        names in prop::collection::vec("[a-z]{1,3}", 1..40),
        start in prop::option::of("[a-z]"),
    ) {
        let start = start.map_or_else(|| PODS.to_owned(), |start| format!("{PODS}{start}"));
        let range = KeyRange::from_wire(start.into(), "/registry/pods0".into());
        let mut done: Vec<Unit> = Vec::new();
        let mut times = vec![0; names.len()];
        let mut maps = maps.into_iter();
        let mut now = map(|_| true, 1);
        loop {
            if let Some((limit, high)) = maps.next() {
                now = map(|bucket| bucket < limit, high);
            }
            let Some(piece) = pieces_left(&now, &range, &done).into_iter().next() else { break };
            for (name, times) in names.iter().zip(&mut times) {
                *times += u32::from(deletes(&now, &piece, format!("{PODS}{name}").as_bytes()));
            }
            done.extend(piece.units);
        }
        for (name, times) in names.iter().zip(times) {
            let expected = u32::from(range.contains(format!("{PODS}{name}").as_bytes()));
            prop_assert_eq!(times, expected, "{}", name);
        }
    }
}
