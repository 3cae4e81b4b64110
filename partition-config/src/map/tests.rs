use proptest::prelude::*;

use super::*;
use crate::kind::KindScheme;

fn kind(name: &str) -> KindPrefix {
    KindScheme::default().resolve(name).unwrap()
}

fn span(start: &str, end: &str) -> KeyRange {
    KeyRange::Span { start: Key::from(start), end: Some(Key::from(end)) }
}

fn whole(name: &str, store: u16) -> [Partition; 2] {
    let kind = kind(name);
    let stem = Key::copy_from(kind.stem());
    let pseudo = KeyRange::Span { start: stem.clone(), end: Some(stem.successor()) };
    [pseudo, kind.range()].map(|range| Partition {
        range,
        kind: Some(kind.clone()),
        placement: Placement::Single(StoreIdx(store)),
        epoch: Epoch(1),
    })
}

fn single(partition: &Partition) -> u16 {
    partition.placement.single().unwrap().0
}

fn map() -> PartitionMap {
    let partitions = [whole("pods", 1), whole("nodes", 2)].concat();
    PartitionMap::filled(partitions, StoreIdx(0), Epoch(1)).unwrap()
}

#[test]
fn keys_find_their_store() {
    let map = map();
    for (key, store, of) in [
        ("", 0, None),
        ("compact_rev_key", 0, None),
        ("/registry/pods", 1, Some("pods")),
        ("/registry/pods\0", 0, None),
        ("/registry/pods.example.com/foos/a", 0, None),
        ("/registry/pods/", 1, Some("pods")),
        ("/registry/pods/ns/a", 1, Some("pods")),
        ("/registry/pods0", 0, None),
        ("/registry/podtemplates/ns/a", 0, None),
        ("/registry/minions", 2, Some("nodes")),
        ("/registry/minions/a", 2, Some("nodes")),
        ("\u{7fff}", 0, None),
    ] {
        let found = map.lookup(key.as_bytes());
        assert_eq!(
            (found.store_of(key.as_bytes()), found.kind.clone()),
            (StoreIdx(store), of.map(kind)),
            "{key}"
        );
    }
    assert!(map.lookup(b"/registry/pods").is_pseudo());
    assert!(!map.lookup(b"/registry/pods/").is_pseudo());
}

#[test]
fn ranges_find_their_stores() {
    let map = map();
    let stores = |range: &KeyRange| map.overlapping(range).map(single).collect::<Vec<_>>();
    assert_eq!(stores(&kind("pods").range()), [1]);
    // `--prefix /registry/pods` covers the pseudo-key, other Kinds with the same beginning, and the pods.
    let prefix = KeyRange::prefix(Key::from("/registry/pods"));
    assert_eq!(prefix, span("/registry/pods", "/registry/podt"));
    assert_eq!(stores(&prefix), [1, 0, 1, 0]);
    assert_eq!(map.stores_of(&prefix), [StoreIdx(0), StoreIdx(1)]);
    assert_eq!(map.stores_of(&span("/registry/pods/a", "/registry/pods/b")), [StoreIdx(1)]);
    assert_eq!(stores(&KeyRange::everything()), [0, 2, 0, 2, 0, 1, 0, 1, 0]);
    assert_eq!(stores(&span("b", "a")), [0; 0]);
    assert_eq!(stores(&KeyRange::Single(Key::from("/registry/minions/a"))), [2]);
    assert_eq!(map.of_kind(&kind("secrets")).map(single).collect::<Vec<_>>(), [0]);
}

#[test]
fn broken_lists_are_refused() {
    let good = map().partitions;
    let change = |edit: &dyn Fn(&mut Vec<Partition>)| {
        let mut list = good.clone();
        edit(&mut list);
        PartitionMap::new(list)
    };
    assert_eq!(change(&|_| {}), Ok(map()));
    assert_eq!(change(&Vec::clear), Err(MapError::Empty));
    assert_eq!(change(&|list| drop(list.remove(0))), Err(MapError::Unbounded));
    assert_eq!(change(&|list| drop(list.pop())), Err(MapError::Unbounded));
    assert!(matches!(change(&|list| drop(list.remove(3))), Err(MapError::NotAdjacent { at: 3, .. })));
    assert!(matches!(change(&|list| list.swap(3, 4)), Err(MapError::NotAdjacent { .. })));
    let double = |list: &mut Vec<Partition>| list.insert(3, list[3].clone());
    assert!(matches!(change(&double), Err(MapError::NotAdjacent { at: 4, .. })));
    let wrong_kind = |list: &mut Vec<Partition>| list[2].kind = Some(kind("pods"));
    assert_eq!(change(&wrong_kind), Err(MapError::OutsideKind { at: 2, kind: kind("pods") }));
    let empty = |list: &mut Vec<Partition>| list[1].range = span("/registry/minions", "/registry/minions");
    assert_eq!(change(&empty), Err(MapError::EmptyRange { at: 1 }));
}

#[test]
fn as_text() {
    let text = serde_json::to_string(&map()).unwrap();
    assert!(text.contains(r#"{"start":"/registry/minions/","end":"/registry/minions0","#), "{text}");
    assert_eq!(serde_json::from_str::<PartitionMap>(&text).unwrap(), map());
    let gap = r#"[{"start":"","end":"a","store":0,"epoch":1},{"start":"b","store":0,"epoch":1}]"#;
    let error = serde_json::from_str::<PartitionMap>(gap).unwrap_err().to_string();
    assert!(error.contains("begins at \"b\""), "{error}");
}

fn ring(first: u16, second: u16) -> Placement {
    let owner = |bucket| StoreIdx(if bucket % 2 == 0 { first } else { second });
    Placement::Ring(Box::new(BucketTable::new(std::array::from_fn(owner))))
}

#[test]
fn a_ring_as_text_and_only_of_a_kind() {
    let [pseudo, mut pods] = whole("pods", 1);
    pods.placement = ring(1, 2);
    let map = PartitionMap::filled(vec![pseudo, pods.clone()], StoreIdx(0), Epoch(1)).unwrap();
    let text = serde_json::to_string(&map).unwrap();
    assert_eq!(serde_json::from_str::<PartitionMap>(&text).unwrap(), map);
    pods.kind = None;
    assert_eq!(
        PartitionMap::filled(vec![pods], StoreIdx(0), Epoch(1)),
        Err(MapError::RingOfNoKind { at: 1 })
    );
}

#[test]
fn what_a_read_of_a_spread_kind_asks() {
    let [pseudo, mut pods] = whole("pods", 1);
    pods.placement = ring(1, 2);
    let map = PartitionMap::filled(vec![pseudo, pods], StoreIdx(0), Epoch(1)).unwrap();
    let units = |range: &KeyRange| {
        let units = map.units_of(range).into_iter();
        units.map(|unit| unit.stores.iter().map(|store| store.0).collect()).collect::<Vec<Vec<u16>>>()
    };
    let one = |key: &str| KeyRange::Single(Key::from(key));
    assert_eq!(units(&kind("pods").range()), [[1, 2]]);
    assert_eq!(units(&one("/registry/pods")), [[1, 2]], "of the whole Kind");
    assert_eq!(units(&one("/registry/pods/ns/a")).concat().len(), 1);
    // The pseudo-key, the gap and the Kind are touched; the Kind's stores are asked once.
    let prefix = KeyRange::prefix(Key::from("/registry/pods"));
    assert_eq!(units(&prefix), [vec![1], vec![0], vec![1, 2], vec![0]]);
    assert_eq!(map.spread_in(&KeyRange::everything()), [kind("pods")]);
    assert_eq!(map.spread_in(&kind("nodes").range()), []);
}

fn key() -> impl Strategy<Value = Key> {
    prop::collection::vec(prop::sample::select(vec![0u8, b'/', b'a', b'b', 0xff]), 0..4)
        .prop_map(|k| Key(k.into()))
}

fn any_map() -> impl Strategy<Value = PartitionMap> {
    prop::collection::btree_map(key(), 0..3u16, 0..8).prop_map(|mut starts| {
        starts.insert(Key::from(""), 0);
        let list: Vec<_> = starts.into_iter().collect();
        let partition = |(i, (start, store)): (usize, &(Key, u16))| Partition {
            range: KeyRange::Span {
                start: start.clone(),
                end: list.get(i + 1).map(|(next, _)| next.clone()),
            },
            kind: None,
            placement: Placement::Single(StoreIdx(*store)),
            epoch: Epoch(i as u64),
        };
        PartitionMap::new(list.iter().enumerate().map(partition).collect()).unwrap()
    })
}

fn range() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        key().prop_map(KeyRange::Single),
        (key(), prop::option::of(key())).prop_map(|(start, end)| KeyRange::Span { start, end }),
    ]
}

proptest! {
    #[test]
    fn lookup_agrees_with_a_scan(map in any_map(), key in key()) {
        let scanned: Vec<_> = map.partitions().iter().filter(|p| p.range.contains(&key)).collect();
        prop_assert_eq!(scanned, [map.lookup(&key)]);
    }

    #[test]
    fn overlapping_is_exactly_what_overlaps(map in any_map(), range in range()) {
        let scanned: Vec<_> = map.partitions().iter().filter(|p| p.range.overlaps(&range)).collect();
        prop_assert_eq!(map.overlapping(&range).collect::<Vec<_>>(), scanned);
    }

    #[test]
    fn units_are_the_range_in_order(map in any_map(), range in range(), key in key()) {
        let units = map.units_of(&range);
        let holding: Vec<_> = units.iter().filter(|unit| unit.range.contains(&key)).collect();
        prop_assert_eq!(holding.len(), usize::from(range.contains(&key)));
        prop_assert!(units.is_sorted_by(|a, b| a.range.start() < b.range.start()));
        for unit in holding {
            prop_assert!(unit.stores.contains(&map.store_of(&key)));
            prop_assert!(map.stores_of(&range).contains(&map.store_of(&key)));
        }
    }

    #[test]
    fn text_leads_back(map in any_map()) {
        let text = serde_json::to_string(&map).unwrap();
        prop_assert_eq!(serde_json::from_str::<PartitionMap>(&text).unwrap(), map);
    }
}

/// The pseudo-key alone means the whole Kind; a range that contains it asks only the store that holds it.
#[test]
fn f44_a_range_with_a_pseudo_key_asks_its_keeper_for_it() {
    let [pseudo, mut low] = whole("pods", 1);
    let mut high = Partition { placement: Placement::Single(StoreIdx(2)), ..low.clone() };
    low.range = span("/registry/pods/", "/registry/pods/g");
    high.range = span("/registry/pods/g", "/registry/pods0");
    let map = PartitionMap::filled(vec![pseudo, low, high], StoreIdx(0), Epoch(1)).unwrap();
    let stores = |range: KeyRange| map.stores_of(&range).into_iter().map(|store| store.0).collect::<Vec<_>>();
    assert_eq!(stores(KeyRange::Single(Key::from("/registry/pods"))), [1, 2]);
    assert_eq!(stores(span("/registry/pods", "/registry/pods\0")), [1]);
    assert_eq!(stores(span("/registry/pod", "/registry/pods/")), [0, 1]);
    assert_eq!(stores(span("/registry/pods", "/registry/pods/a")), [0, 1]);
}
