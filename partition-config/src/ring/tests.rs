use proptest::prelude::*;

use super::fill::{FillError, Member, TOTAL_WEIGHT_MAX, hashed, levelled};
use super::*;

fn members(names: &[&str]) -> Vec<Member> {
    let member = |(at, name): (usize, &&str)| Member {
        name: (*name).to_owned(),
        store: StoreIdx(at as u16),
        weight: 1,
    };
    names.iter().enumerate().map(member).collect()
}

fn numbered(set: u32, count: usize) -> Vec<Member> {
    let names: Vec<_> = (0..count).map(|at| format!("pods-{set}-{at}")).collect();
    members(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

fn counts(table: &BucketTable, members: &[Member]) -> Vec<usize> {
    members.iter().map(|member| table.of(member.store).len()).collect()
}

/// Frozen: a change here would move keys of every existing ring. The hash of the empty input is in the XXH3
/// specification.
#[test]
fn golden_buckets() {
    assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
    let golden: [(&str, u8); 8] = [
        ("", 0x2d),
        ("default/web-0", 149),
        ("default/web-1", 211),
        ("kube-system/coredns-5d78c9869d-abcde", 185),
        ("node-000001", 39),
        ("node-000002", 130),
        ("kube-node-lease/node-000001", 17),
        ("a", 230),
    ];
    let found = golden.map(|(name, _)| (name, RingHash::V1.bucket(name.as_bytes()).0));
    assert_eq!(found, golden);
}

/// Frozen as well: every router must compute the same table from the stores' names.
#[test]
fn golden_tables() {
    let fingerprint = |table: &BucketTable| {
        let bytes: Vec<u8> = Bucket::all().flat_map(|bucket| table.owner(bucket).0.to_le_bytes()).collect();
        xxh3_64(&bytes)
    };
    let mut three = members(&["pods-a", "pods-b", "pods-c"]);
    let table = hashed(&three).unwrap();
    assert_eq!((counts(&table, &three), fingerprint(&table)), (vec![102, 74, 80], 718_728_727_420_802_226));
    let level = levelled(&table, &three).unwrap();
    assert_eq!((counts(&level, &three), fingerprint(&level)), (vec![86, 85, 85], 12_202_731_667_936_657_876));
    three[1].weight = 3;
    let table = hashed(&three).unwrap();
    assert_eq!((counts(&table, &three), fingerprint(&table)), (vec![57, 150, 49], 8_629_492_595_535_830_690));
}

#[test]
fn names_spread_over_buckets() {
    let mut seen = [0u32; BUCKETS];
    for node in 0..100_000 {
        seen[usize::from(RingHash::V1.bucket(format!("node-{node:06}").as_bytes()).0)] += 1;
    }
    // The mean is 390 with a deviation of 20.
    assert!(seen.iter().all(|count| (280..500).contains(count)), "{seen:?}");
}

/// The measurement behind the choice in [`fill`], on a small scale.
#[test]
fn balance_of_256_buckets() {
    let rendezvous = |members: &[Member]| {
        let owner = |bucket: Bucket| {
            let score = |member: &&Member| {
                xxhash_rust::xxh3::xxh3_64_with_seed(&[bucket.0], xxh3_64(member.name.as_bytes()))
            };
            members.iter().max_by_key(score).unwrap().store
        };
        BucketTable::new(std::array::from_fn(|at| owner(Bucket(at as u8))))
    };
    let (mut ring, mut hrw) = (0.0, 0.0);
    let sets = 20;
    for set in 0..sets {
        let members = numbered(set, 8);
        let busiest = |table: &BucketTable| *counts(table, &members).iter().max().unwrap() as f64 / 32.0;
        let table = hashed(&members).unwrap();
        ring += busiest(&table) / f64::from(sets);
        hrw += busiest(&rendezvous(&members)) / f64::from(sets);
        assert_eq!(busiest(&levelled(&table, &members).unwrap()), 1.0);
    }
    println!("busiest of 8 stores over the mean: ring {ring:.3}, rendezvous {hrw:.3}, levelled 1");
    assert!((1.1..1.4).contains(&ring) && (1.1..1.4).contains(&hrw) && (ring - hrw).abs() < 0.1);
}

#[test]
fn wrong_members_make_no_ring() {
    assert_eq!(hashed(&[]), Err(FillError::NoStore));
    assert_eq!(hashed(&members(&["a", "b", "a"])), Err(FillError::Twice("a".to_owned())));
    let mut two = members(&["a", "b"]);
    two[1].store = StoreIdx(0);
    assert_eq!(hashed(&two), Err(FillError::Twice("b".to_owned())));
    two[1] = Member { weight: 0, store: StoreIdx(1), ..two[1].clone() };
    assert_eq!(hashed(&two), Err(FillError::NoWeight("b".to_owned())));
    two[1].weight = TOTAL_WEIGHT_MAX as u16;
    assert_eq!(hashed(&two), Err(FillError::TooHeavy(TOTAL_WEIGHT_MAX + 1)));
}

#[test]
fn one_store_has_everything() {
    let one = members(&["a"]);
    let table = hashed(&one).unwrap();
    assert_eq!((table.stores(), table.of(StoreIdx(0))), (vec![StoreIdx(0)], BucketSet::ALL));
    assert_eq!(levelled(&table, &one), Ok(table));
}

#[test]
fn tables_and_sets_as_text() {
    let table = hashed(&members(&["a", "b", "c"])).unwrap();
    let text = serde_json::to_string(&table).unwrap();
    assert_eq!(serde_json::from_str::<BucketTable>(&text).unwrap(), table);
    assert!(serde_json::from_str::<BucketTable>("[0,1]").is_err());
    let set: BucketSet = [0, 4, 255].map(Bucket).into_iter().collect();
    assert_eq!(set.to_string(), format!("8{}11", "0".repeat(61)));
    for bad in ["", "8", &"g".repeat(64), &"+".repeat(64), &"é".repeat(32)] {
        assert!(BucketSet::try_from(bad.to_owned()).is_err(), "{bad}");
    }
    assert_eq!(serde_json::to_string(&RingHash::V1).unwrap(), "\"v1\"");
}

proptest! {
    #[test]
    fn sets_behave_as_sets(
        a in prop::collection::btree_set(any::<u8>(), 0..80),
        b in prop::collection::btree_set(any::<u8>(), 0..80),
    ) {
        let set = |of: &std::collections::BTreeSet<u8>| of.iter().copied().map(Bucket).collect::<BucketSet>();
        let list = |of: BucketSet| of.iter().map(|bucket| bucket.0).collect::<Vec<_>>();
        let (x, y) = (set(&a), set(&b));
        prop_assert_eq!(list(x), a.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(list(x | y), a.union(&b).copied().collect::<Vec<_>>());
        prop_assert_eq!(list(x & y), a.intersection(&b).copied().collect::<Vec<_>>());
        prop_assert_eq!(list(x - y), a.difference(&b).copied().collect::<Vec<_>>());
        prop_assert_eq!((x.len(), x.is_empty(), x.is_disjoint(&y)), (a.len(), a.is_empty(), a.is_disjoint(&b)));
        prop_assert_eq!(BucketSet::try_from(x.to_string()), Ok(x));
        let mut without = x;
        b.iter().for_each(|bucket| without.remove(Bucket(*bucket)));
        prop_assert_eq!(without, x - y);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A ring that grows by hash moves buckets only to the new store, about one in n. The order of the list does
    /// not matter.
    #[test]
    fn a_new_store_takes_its_part_and_nothing_else_moves(set in 0..1000u32, count in 1..10usize, weight in 1..4u16) {
        let mut grown = numbered(set, count + 1);
        grown[count].weight = weight;
        let before = hashed(&grown[..count]).unwrap();
        let after = hashed(&grown).unwrap();
        let moves = before.transfers(&after);
        prop_assert!(moves.iter().all(|(_, to, _)| *to == StoreIdx(count as u16)));
        let moved: usize = moves.iter().map(|(_, _, buckets)| buckets.len()).sum();
        let part = 256.0 * f64::from(weight) / (count as f64 + f64::from(weight));
        let deviation = (part * (1.0 - part / 256.0)).sqrt();
        prop_assert!((moved as f64 - part).abs() < 5.0 * deviation + 2.0, "{} moved, {} due", moved, part);
        grown.reverse();
        prop_assert_eq!(hashed(&grown).unwrap(), after);
    }

    /// A levelled table that grows or shrinks has exact shares, and no bucket moves without need.
    #[test]
    fn a_levelled_table_moves_the_minimum(set in 0..1000u32, count in 1..20usize, gone in any::<prop::sample::Index>()) {
        let all = numbered(set, count + 1);
        let before = levelled(&hashed(&all[..count]).unwrap(), &all[..count]).unwrap();
        let after = levelled(&before, &all).unwrap();
        let new = StoreIdx(count as u16);
        let even = |table: &BucketTable, members: &[Member]| {
            let counts = counts(table, members);
            counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1 && counts.iter().sum::<usize>() == 256
        };
        prop_assert!(even(&before, &all[..count]) && even(&after, &all));
        prop_assert!(before.transfers(&after).iter().all(|(_, to, _)| *to == new), "only to the new one");
        prop_assert_eq!(levelled(&after, &all).unwrap(), after.clone(), "nothing moves twice");

        let mut rest = all;
        let gone = rest.remove(gone.index(count + 1)).store;
        let shrunk = levelled(&after, &rest).unwrap();
        prop_assert!(even(&shrunk, &rest));
        prop_assert!(after.transfers(&shrunk).iter().all(|(from, _, _)| *from == gone), "only from the one that leaves");
    }

    /// Each store gets its weight's share, rounded, and the transfers are exactly the difference.
    #[test]
    fn shares_follow_weights(set in 0..1000u32, weights in prop::collection::vec(1..8u16, 1..10)) {
        let mut members = numbered(set, weights.len());
        members.iter_mut().zip(&weights).for_each(|(member, weight)| member.weight = *weight);
        let from = hashed(&members[..1]).unwrap();
        let table = levelled(&from, &members).unwrap();
        let total: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
        for (count, weight) in counts(&table, &members).into_iter().zip(&weights) {
            let low = usize::from(*weight) * 256 / total;
            prop_assert!(count == low || count == low + 1);
        }
        let mut moved = from.clone();
        for (source, to, buckets) in from.transfers(&table) {
            let of = |bucket| if buckets.contains(bucket) { to } else { moved.owner(bucket) };
            prop_assert!(buckets.iter().all(|bucket| moved.owner(bucket) == source));
            moved = BucketTable::new(std::array::from_fn(|at| of(Bucket(at as u8))));
        }
        prop_assert_eq!(moved, table);
    }
}
