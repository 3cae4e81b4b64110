use proptest::prelude::*;

use super::*;
use crate::kind::KindScheme;

fn kind(name: &str) -> KindPrefix {
    KindScheme::default().resolve(name).unwrap()
}

fn single(store: u16) -> Placement {
    Placement::Single(StoreIdx(store))
}

fn ring(stores: &[u16]) -> Placement {
    let owner = |at| StoreIdx(stores[at % stores.len()]);
    Placement::Ring(Box::new(BucketTable::new(std::array::from_fn(owner))))
}

/// A Kind with ranges that begin at these names.
fn ranges(name: &str, ranges: &[(&str, Placement)]) -> Vec<Partition> {
    let kind = kind(name);
    let [pseudo, objects] = areas(&kind);
    let at = |name: &str| {
        let mut key = kind.as_key().to_vec();
        key.extend_from_slice(name.as_bytes());
        Key(key.into())
    };
    let partition =
        |range, placement| Partition { range, kind: Some(kind.clone()), placement, epoch: Epoch(1) };
    let keeper = ranges[0].1.stores()[0];
    let mut list = vec![partition(pseudo, Placement::Single(keeper))];
    for (i, (start, placement)) in ranges.iter().enumerate() {
        let end = ranges.get(i + 1).map(|next| at(next.0)).or_else(|| objects_end(&objects));
        list.push(partition(KeyRange::Span { start: at(start), end }, placement.clone()));
    }
    list
}

fn objects_end(objects: &KeyRange) -> Option<Key> {
    match objects {
        KeyRange::Span { end, .. } => end.clone(),
        KeyRange::Single(_) => None,
    }
}

fn map(kinds: &[Vec<Partition>], default: u16) -> PartitionMap {
    PartitionMap::filled(kinds.concat(), StoreIdx(default), Epoch(1)).unwrap()
}

fn brief(transfers: &[Transfer]) -> Vec<String> {
    let one = |t: &Transfer| {
        let KeyRange::Span { start, end } = &t.unit.range else { panic!("{t:?}") };
        let end = end.as_ref().map_or_else(String::new, ToString::to_string);
        let buckets = t.unit.buckets.as_ref().map_or_else(String::new, |b| format!(" {}", b.set.len()));
        format!("{start}..{end}{buckets} {}>{}", t.from, t.to)
    };
    transfers.iter().map(one).collect()
}

#[test]
fn a_kind_moves_with_its_pseudo_key() {
    let old = map(&[ranges("pods", &[("", single(1))])], 0);
    let new = map(&[ranges("pods", &[("", single(2))])], 0);
    let moves = transfers(&old, &new);
    assert_eq!(
        brief(&moves),
        ["/registry/pods../registry/pods\\x00 1>2", "/registry/pods/../registry/pods0 1>2"]
    );
    assert!(moves.iter().all(|t| t.kind == Some(kind("pods"))));
    let after = with_transfers(&old, &moves, Epoch(9)).unwrap();
    let epoch = |key: &str| after.lookup(key.as_bytes()).epoch;
    assert_eq!(
        (epoch("/registry/pods/a"), epoch("/registry/pods"), epoch("a")),
        (Epoch(9), Epoch(9), Epoch(1))
    );
    assert_eq!(transfers(&after, &new), []);
}

#[test]
fn what_keeps_its_store_does_not_move() {
    let whole = map(&[ranges("pods", &[("", single(1))])], 0);
    let two = map(&[ranges("pods", &[("", single(1)), ("m", single(1))])], 0);
    assert_eq!((transfers(&whole, &two), transfers(&two, &whole)), (vec![], vec![]));
    let split = map(&[ranges("pods", &[("", single(1)), ("m", single(2)), ("t", single(2))])], 0);
    assert_eq!(brief(&transfers(&whole, &split)), ["/registry/pods/m../registry/pods0 1>2"]);
    // One store owns every bucket of the ring.
    assert_eq!(transfers(&whole, &map(&[ranges("pods", &[("", ring(&[1]))])], 0)), []);
}

#[test]
fn a_kind_that_was_of_the_default_is_of_its_own_after() {
    let old = map(&[], 0);
    let new = map(&[ranges("pods", &[("", ring(&[0, 1]))])], 0);
    let moves = transfers(&old, &new);
    assert_eq!(brief(&moves), ["/registry/pods/../registry/pods0 128 0>1"]);
    let after = with_transfers(&old, &moves, Epoch(2)).unwrap();
    assert!(after.is_spread(&kind("pods")) && after.lookup(b"/registry/pods").is_pseudo());
    assert_eq!(after.stores_of(&KeyRange::Single(Key::from("/registry/pods"))), [StoreIdx(0), StoreIdx(1)]);
}

#[test]
fn a_change_elsewhere_does_not_hinder_and_one_here_does() {
    let pods = |store| ranges("pods", &[("", single(store))]);
    let nodes = |store| ranges("nodes", &[("", single(store))]);
    let moves = transfers(&map(&[pods(1), nodes(1)], 0), &map(&[pods(2), nodes(1)], 0));
    let after = with_transfers(&map(&[pods(1), nodes(3)], 0), &moves, Epoch(5)).unwrap();
    assert_eq!(transfers(&after, &map(&[pods(2), nodes(3)], 0)), []);
    for elsewhere in [
        pods(3),
        ranges("pods", &[("", single(1)), ("m", single(3))]),
        ranges("pods", &[("", ring(&[1, 3]))]),
    ] {
        let error = with_transfers(&map(&[elsewhere, nodes(1)], 0), &moves, Epoch(5)).unwrap_err();
        assert!(matches!(error, TransferError::NotTheOwners { from: StoreIdx(1), .. }), "{error}");
    }
    let mut odd = transfers(&map(&[], 0), &map(&[ranges("pods", &[("", ring(&[0, 1]))])], 0));
    odd[0].unit.buckets.as_mut().unwrap().prefix_len = 3;
    assert!(matches!(with_transfers(&map(&[], 0), &odd, Epoch(5)), Err(TransferError::Buckets { .. })));
}

#[test]
fn as_text() {
    let moves = transfers(
        &map(&[ranges("pods", &[("", single(1))])], 0),
        &map(&[ranges("pods", &[("", single(1)), ("m", ring(&[1, 2]))])], 7),
    );
    let json = serde_json::to_string(&moves).unwrap();
    assert!(json.contains(r#"{"start":"/registry/pods/m","end":"/registry/pods0","buckets":""#), "{json}");
    assert_eq!(serde_json::from_str::<Vec<Transfer>>(&json).unwrap(), moves);
    for bad in [
        r#"{"start":"b","end":"a","from":0,"to":1}"#,
        r#"{"start":"\\","from":0,"to":1}"#,
        r#"{"start":"a","from":0,"to":1,"kind":"pods"}"#,
        r#"{"start":"a","from":0,"to":1,"more":1}"#,
    ] {
        assert!(serde_json::from_str::<Transfer>(bad).is_err(), "{bad}");
    }
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![
        2 => (0u16..3).prop_map(single),
        1 => prop::collection::vec(0u16..3, 1..5).prop_map(|stores| ring(&stores)),
    ]
}

fn any_kind(name: &'static str) -> impl Strategy<Value = Vec<Partition>> {
    let bounds = prop::sample::subsequence(vec!["b", "d", "f"], 0..3);
    let placements = prop::collection::vec(placement(), 4);
    (prop::bool::weighted(0.8), bounds, placements).prop_map(move |(named, bounds, placements)| {
        if !named {
            return Vec::new();
        }
        let starts = std::iter::once("").chain(bounds);
        ranges(name, &starts.zip(placements).collect::<Vec<_>>())
    })
}

fn any_map() -> impl Strategy<Value = PartitionMap> {
    (any_kind("pods"), any_kind("nodes"), 0u16..3).prop_map(|(a, b, default)| map(&[a, b], default))
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "/registry/(pods|minions)/[a-g]{0,2}",
        1 => "/registry/(pods|minions|podz)",
        1 => "[/a-z]{0,3}",
    ]
}

proptest! {
    #[test]
    fn transfers_lead_from_one_map_to_the_other(old in any_map(), new in any_map(), keys in prop::collection::vec(key(), 20)) {
        let moves = transfers(&old, &new);
        let after = with_transfers(&old, &moves, Epoch(7)).unwrap();
        prop_assert_eq!(transfers(&after, &new), []);
        for key in keys.iter().map(String::as_bytes) {
            let of_key: Vec<_> = moves.iter().filter(|t| t.unit.contains(key)).collect();
            prop_assert!(of_key.len() < 2, "two transfers of one key");
            let owner = match of_key.first() {
                Some(t) => { prop_assert_eq!(t.from, old.store_of(key)); t.to }
                None => old.store_of(key),
            };
            prop_assert_eq!(owner, new.store_of(key));
            prop_assert_eq!(owner, after.store_of(key));
            if !of_key.is_empty() {
                prop_assert_eq!(after.lookup(key).epoch, Epoch(7));
            }
        }
    }

    #[test]
    fn any_part_of_them_in_any_order(old in any_map(), new in any_map(), order in any::<[prop::sample::Index; 4]>()) {
        let mut left = transfers(&old, &new);
        let mut map = old.clone();
        for (at, pick) in order.iter().enumerate() {
            if left.is_empty() { break }
            let one = left.remove(pick.index(left.len()));
            map = with_transfers(&map, std::slice::from_ref(&one), Epoch(at as u64 + 2)).unwrap();
            // The transfers also apply backwards and then forwards again.
            let back = with_transfers(&map, &[one.reversed()], Epoch(9)).unwrap();
            prop_assert_eq!(transfers(&with_transfers(&back, &[one], Epoch(9)).unwrap(), &map), []);
        }
        let rest = with_transfers(&map, &left, Epoch(20)).unwrap();
        prop_assert_eq!(transfers(&rest, &new), []);
    }

    #[test]
    fn a_graft_is_of_the_kinds_asked_for(old in any_map(), new in any_map(), pods: bool, rest: bool, key in key()) {
        let kinds = pods.then(|| kind("pods")).into_iter().collect();
        let both = grafted(&old, &new, &kinds, rest).unwrap();
        let of = |map: &PartitionMap| map.lookup(key.as_bytes()).kind.clone();
        let from_new = match of(&new).or(of(&old)) { Some(kind) => kinds.contains(&kind), None => rest };
        let want = if from_new { &new } else { &old };
        prop_assert_eq!(both.store_of(key.as_bytes()), want.store_of(key.as_bytes()));
    }
}
