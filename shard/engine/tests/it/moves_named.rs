//! Moves that went wrong in other systems, or that once went wrong here in the model of moves.

use crate::common::*;
use kindred_engine::{engine::*, error::EngineError, ops::*, units::*, version::Version};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Slot, Term},
    key::{Key, KeyRange},
    kind::KindScheme,
    ring::{Bucket, BucketSet},
    unit::{Unit, UnitBuckets},
};

const PODS: &str = "/registry/pods/";

/// A shard that began at `now`.
fn shard(slot: u16, now: u64) -> Engine {
    let revisions = RevisionMode::Hlc(Slot::new(slot).expect("below 1024"));
    let kinds = KindScheme::default();
    let config = EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
    Engine::new(config, WallMicros(now))
}

fn by(id: u64, term: u64, unit: &Unit) -> UnitMove {
    UnitMove { id: MoveId(id), term: Term(term), unit: unit.clone() }
}

fn all_pods() -> Unit {
    Unit::of_range(prefix(PODS))
}

/// The unit of some quarters of the pods' buckets, which are numbered from 0 to 3.
fn quarters(which: &[u8]) -> Unit {
    let set: BucketSet = (0..=255).filter(|bucket| which.contains(&(bucket % 4))).map(Bucket).collect();
    Unit { range: prefix(PODS), buckets: Some(UnitBuckets { prefix_len: PODS.len(), set }) }
}

fn key(i: u32) -> String {
    format!("{PODS}a/{i:03}")
}

fn follow(source: &mut Engine, target: &mut Engine, by: &UnitMove, tail: FeedId) {
    while let Some(out) = source.feed_pull(tail, 64) {
        let carry = |event: &Event| FollowedEvent { version: event.kv.clone(), prev: event.prev.clone() };
        let events = out.events.iter().map(carry).collect();
        let import = Import { events, through: out.watermark, ..Import::default() };
        target.unit_import(by, import).expect("followed");
    }
}

/// Tracks, copies and follows, until the target has caught up.
fn prepare(source: &mut Engine, target: &mut Engine, by: &UnitMove) -> FeedId {
    while !source.unit_track(by, 3).expect("tracked").ready {}
    let at = source.unit_copy_begin(by).expect("tracked");
    let tail = source.unit_feed_open(&by.unit, Some(at.next())).expect("tracked");
    let mut after = None;
    while !target.unit_room(by).expect("no key of it is live") {}
    loop {
        let chunk = source.unit_copy(by, after.as_ref(), 2, 1 << 20).expect("a chunk");
        let import = Import { keys: chunk.keys, floor: Some(chunk.floor), ..Import::default() };
        target.unit_import(by, import).expect("imported");
        after = chunk.after;
        if after.is_none() {
            break;
        }
    }
    target.unit_import(by, Import { through: Some(at), ..Import::default() }).expect("whole");
    follow(source, target, by, tail);
    tail
}

fn switch(source: &mut Engine, target: &mut Engine, by: &UnitMove, tail: FeedId, epoch: Epoch) -> Revision {
    let last = source.unit_freeze(NOW, by).expect("frozen");
    source.feed_advance(NOW, tail, last);
    follow(source, target, by, tail);
    target.unit_seal(NOW, by, last).expect("all is there");
    source.unit_release(by, epoch).expect("released");
    target.unit_open(by, epoch).expect("opened");
    source.validate();
    target.validate();
    last
}

/// Makes a whole move, and drops the unit at the source.
fn go(source: &mut Engine, target: &mut Engine, by: &UnitMove, epoch: Epoch) -> Revision {
    let tail = prepare(source, target, by);
    let last = switch(source, target, by, tail, epoch);
    source.feed_close(tail);
    source.unit_drop(by, epoch).expect("dropped");
    while source.gc(100) {}
    last
}

fn list(engine: &mut Engine, at: Option<Revision>) -> Vec<String> {
    let answer = engine.range(&RangeQuery { revision: at, ..query(prefix(PODS)) }).expect("readable");
    assert_eq!(answer.count, answer.kvs.len() as u64);
    keys(&answer)
}

/// Everything that a feed sends until it has nothing more now, and its end.
fn hear(engine: &mut Engine, feed: FeedId) -> (Vec<Revision>, Option<FeedOut>) {
    let mut said = Vec::new();
    while let Some(out) = engine.feed_pull(feed, 64) {
        said.extend(out.events.iter().map(|event| event.kv.mod_revision()));
        if out.moved.is_some() || out.compacted.is_some() {
            return (said, Some(out));
        }
    }
    (said, None)
}

#[test]
fn pitfall_d1_a_watch_that_moves_goes_on_from_its_own_position_on_a_younger_store() {
    let (mut a, mut b, by) = (shard(3, 1_000), shard(4, 900_000), by(1, 1, &quarters(&[0, 1, 2, 3])));
    let begin = a.current_all();
    let mut at: Vec<Revision> = (0..12).map(|i| write(&mut a, put(&key(i), "1"))).collect();
    let feed = a.feed_open(vec![prefix(PODS)], Some(begin.next()));
    assert_eq!(hear(&mut a, feed).0, at);
    let seen = *at.last().unwrap();
    at.push(write(&mut a, put(&key(3), "2")));
    let tail = prepare(&mut a, &mut b, &by);
    let last = switch(&mut a, &mut b, &by, tail, Epoch(2));
    let (rest, end) = hear(&mut a, feed);
    assert_eq!((&rest[..], end.unwrap().moved), (&at[12..], Some(last)));
    // The feed can be opened at any position, and sends each event once.
    for from in [begin, at[4], seen, last] {
        let feed = b.feed_open(vec![prefix(PODS)], Some(from.next()));
        let (said, end) = hear(&mut b, feed);
        let want: Vec<Revision> = at.iter().copied().filter(|at| *at > from).collect();
        assert!(end.is_none(), "the store's own beginning does not compact what came with its history");
        assert_eq!(said, want);
    }
    assert!(b.floor() > last, "the test wants a younger store");
    for (i, at) in at.iter().take(12).enumerate() {
        assert_eq!(list(&mut b, Some(*at)).len(), i + 1);
    }
}

#[test]
fn pitfall_d2_a_deletion_is_seen_wherever_its_key_is_then() {
    let (mut a, mut b, by) = (shard(3, 1_000), shard(4, 1_000), by(1, 1, &quarters(&[0, 1])));
    let begin = a.current_all();
    (0..8).for_each(|i| {
        write(&mut a, put(&key(i), "1"));
    });
    let ours: Vec<String> = (0..8).map(key).filter(|key| by.unit.contains(key.as_bytes())).collect();
    assert!(ours.len() > 3, "{ours:?}");
    let before = write(&mut a, delete(&ours[0]));
    let tail = prepare(&mut a, &mut b, &by);
    let during = write(&mut a, delete(&ours[1]));
    follow(&mut a, &mut b, &by, tail);
    switch(&mut a, &mut b, &by, tail, Epoch(2));
    let after = write(&mut b, delete(&ours[2]));
    let feed = b.feed_open(vec![prefix(PODS)], Some(begin.next()));
    let mut deleted = Vec::new();
    while let Some(out) = b.feed_pull(feed, 1 << 20) {
        for event in out.events.iter().filter(|event| event.is_delete()) {
            let prev = event.prev.as_ref().map(|prev| String::from_utf8_lossy(prev.key()).into_owned());
            deleted.push((event.kv.mod_revision(), prev));
        }
    }
    let want = [before, during, after].into_iter().zip(ours.iter().cloned().map(Some));
    assert_eq!(deleted, want.collect::<Vec<_>>());
}

#[test]
fn pitfall_e3_the_way_back_brings_what_was_done_around_the_switch() {
    let (mut a, mut b, unit) = (shard(3, 1_000), shard(4, 1_000), all_pods());
    write(&mut a, put(&key(0), "1"));
    let there = by(1, 1, &unit);
    let tail = prepare(&mut a, &mut b, &there);
    let both = |value| txn(vec![], vec![put(&key(1), value), put(&key(2), value)], vec![]);
    // The request is not published when the switch begins: the freeze waits for all of it.
    a.apply(NOW, both("across")).unwrap();
    assert_eq!(a.unit_freeze(NOW, &there), Err(UnitError::Unpublished));
    a.publish();
    let last = switch(&mut a, &mut b, &there, tail, Epoch(2));
    assert_eq!(list(&mut b, None), [key(0), key(1), key(2)]);
    assert!(matches!(a.apply(NOW, both("late")), Err(EngineError::NotOwned(_))), "not half of it here");
    write(&mut b, both("there"));
    let back = by(1, 2, &unit);
    assert!(b.unit_track(&back, 1).unwrap().ready);
    let tail = b.unit_feed_open(&unit, Some(last.next())).unwrap();
    follow(&mut b, &mut a, &back, tail);
    switch(&mut b, &mut a, &back, tail, Epoch(3));
    let values = a.range(&query(prefix(PODS))).unwrap().kvs;
    let values: Vec<(Vec<u8>, i64)> = values.iter().map(|kv| (kv.value().to_vec(), kv.version())).collect();
    assert_eq!(values, [(b"1".to_vec(), 1), (b"there".to_vec(), 2), (b"there".to_vec(), 2)]);
}

#[test]
fn pitfall_e5_a_feed_of_a_range_that_splits_misses_no_part() {
    let (mut a, mut b, by) = (shard(3, 1_000), shard(4, 1_000), by(1, 1, &quarters(&[1, 3])));
    let begin = a.current_all();
    let mut at: Vec<Revision> = (0..10).map(|i| write(&mut a, put(&key(i), "1"))).collect();
    let feed = a.feed_open(vec![prefix(PODS)], Some(begin.next()));
    let tail = prepare(&mut a, &mut b, &by);
    at.extend((0..10).map(|i| write(&mut a, put(&key(i), "2"))));
    let last = switch(&mut a, &mut b, &by, tail, Epoch(2));
    let (mut said, end) = hear(&mut a, feed);
    assert_eq!(end.and_then(|end| end.moved), Some(last), "it ends as one, and is placed again in two");
    let mut feeds =
        [&mut a, &mut b].map(|engine| (engine.feed_open(vec![prefix(PODS)], Some(last.next())), engine));
    for i in 0..10 {
        let owner = usize::from(by.unit.contains(key(i).as_bytes()));
        at.push(write(feeds[owner].1, put(&key(i), "3")));
    }
    for (feed, engine) in &mut feeds {
        said.extend(hear(engine, *feed).0);
    }
    said.sort_unstable();
    at.sort_unstable();
    assert_eq!(said, at);
}

#[test]
fn pitfall_e6_the_new_owner_writes_nothing_below_a_watermark_of_the_old_one() {
    let (mut a, mut b, by) = (shard(3, 500_000), shard(4, 1_000), by(1, 1, &all_pods()));
    let feed = a.feed_open(vec![prefix(PODS)], None);
    write(&mut a, put(&key(0), "1"));
    a.feed_advance(WallMicros(700_000), feed, Revision(700_000 << 10));
    let (mut promised, tail) = (Revision::ZERO, prepare(&mut a, &mut b, &by));
    let last = switch(&mut a, &mut b, &by, tail, Epoch(2));
    while let Some(out) = a.feed_pull(feed, 1 << 20) {
        promised = promised.max(out.watermark.unwrap_or(promised));
    }
    assert_eq!(promised, last);
    assert!(promised >= Revision(700_000 << 10));
    // The target's own clock is far behind.
    assert!(write(&mut b, put(&key(1), "1")) > promised, "R15b");
}

#[test]
fn a_part_that_was_given_away_comes_back_and_moves_with_the_rest() {
    let (mut a, mut b, mut c) = (shard(3, 1_000), shard(4, 1_000), shard(5, 1_000));
    (0..20).for_each(|i| {
        write(&mut a, put(&key(i), "1"));
    });
    let want: Vec<String> = (0..20).map(key).collect();
    go(&mut a, &mut b, &by(1, 1, &all_pods()), Epoch(2));
    go(&mut b, &mut c, &by(2, 1, &quarters(&[0])), Epoch(3));
    go(&mut b, &mut c, &by(3, 1, &quarters(&[1])), Epoch(4));
    assert_eq!(list(&mut b, None).len() + list(&mut c, None).len(), 20);
    go(&mut c, &mut b, &by(4, 1, &quarters(&[1])), Epoch(5));
    go(&mut c, &mut b, &by(5, 1, &quarters(&[0])), Epoch(6));
    assert_eq!(list(&mut b, None), want);
    // The record of the first move no longer covers all of the unit.
    go(&mut b, &mut a, &by(6, 1, &all_pods()), Epoch(7));
    assert_eq!(list(&mut a, None), want);
    assert_eq!(b.stats().keys, 0);
}

#[test]
fn fifty_moves_there_and_back_leave_few_records() {
    let (mut a, mut b) = (shard(3, 1_000), shard(4, 1_000));
    (0..6).for_each(|i| {
        write(&mut a, put(&key(i), "1"));
    });
    let (half, whole) = (quarters(&[0, 2]), all_pods());
    for i in 0..50 {
        let unit = if i % 2 == 0 { &whole } else { &half };
        go(&mut a, &mut b, &by(2 * i, 1, unit), Epoch(2 * i + 2));
        go(&mut b, &mut a, &by(2 * i + 1, 1, unit), Epoch(2 * i + 3));
        assert!(a.unit_records().len() <= 2 && b.unit_records().len() <= 3, "{:?}", b.unit_records());
    }
    assert_eq!(list(&mut a, None).len(), 6);
}

#[test]
fn a_long_read_sees_what_was_owned_when_it_began() {
    let (mut a, mut b, unit) = (shard(3, 1_000), shard(4, 1_000), quarters(&[0]));
    (0..20).for_each(|i| {
        write(&mut a, put(&key(i), "1"));
    });
    let own: Vec<String> = (20..40).map(key).filter(|key| !unit.contains(key.as_bytes())).collect();
    own.iter().for_each(|key| {
        write(&mut b, put(key, "1"));
    });
    b.raise(NOW, &[prefix(PODS)], a.current_all()).unwrap();
    let mut open = b.open_range(&prefix(PODS), None).unwrap();
    let mut read = b.next_chunk(&mut open, 1, 1 << 20).unwrap();
    go(&mut a, &mut b, &by(1, 1, &unit), Epoch(2));
    // By now the keys that came are stored together with the rest.
    while !b.unit_track(&by(2, 1, &all_pods()), 3).unwrap().ready {}
    loop {
        let chunk = b.next_chunk(&mut open, 3, 1 << 20).unwrap();
        if chunk.is_empty() {
            break;
        }
        read.extend(chunk);
    }
    let read: Vec<&[u8]> = read.iter().map(Version::key).collect();
    assert_eq!(read, own.iter().map(String::as_bytes).collect::<Vec<_>>());
    b.close_range(open);
}

#[test]
fn a_feed_whose_end_is_dropped_is_placed_again_where_it_is() {
    let (mut a, mut b, by) = (shard(3, 1_000), shard(4, 1_000), by(1, 1, &all_pods()));
    let begin = a.current_all();
    let at: Vec<Revision> = (0..6).map(|i| write(&mut a, put(&key(i), "1"))).collect();
    let feed = a.feed_open(vec![prefix(PODS)], Some(begin.next()));
    let first = a.feed_pull(feed, 1).unwrap();
    let seen = first.events.last().map_or(begin, |event| event.kv.mod_revision());
    assert!(seen < at[5], "a slow one");
    go(&mut a, &mut b, &by, Epoch(2));
    let (said, end) = hear(&mut a, feed);
    let end = end.unwrap();
    assert_eq!((said.len(), end.compacted), (0, None), "no client lists again for that (R16)");
    let feed = b.feed_open(vec![prefix(PODS)], end.moved.map(Revision::next));
    let rest: Vec<Revision> = at.iter().copied().filter(|at| *at > seen).collect();
    assert_eq!(hear(&mut b, feed).0, rest);
}

#[test]
fn a_compaction_passes_the_floor_of_a_unit_and_of_its_hash() {
    let (mut a, mut b, by) = (shard(3, 1_000), shard(4, 900_000), by(1, 1, &quarters(&[0, 1, 2, 3])));
    let at: Vec<Revision> = (0..6).map(|i| write(&mut a, put(&key(0), &i.to_string()))).collect();
    go(&mut a, &mut b, &by, Epoch(2));
    assert!(b.range(&RangeQuery { revision: Some(at[1]), ..query(prefix(PODS)) }).is_ok());
    // The store began after that revision, but the unit did not.
    assert_eq!(b.compact(MonoMillis(0), at[3]), Ok(None));
    while b.gc(1) {}
    for (i, at) in at.iter().enumerate() {
        let read = b.range(&RangeQuery { revision: Some(*at), ..query(prefix(PODS)) });
        assert_eq!(read.is_ok(), i >= 3, "{i}");
    }
    let one = b.range(&query(KeyRange::Single(Key::from(key(0).as_str())))).unwrap();
    assert_eq!(one.kvs[0].version(), 6);
    let (hash, _, floor) = b.hash_kv(None).unwrap();
    assert_eq!(floor, b.floor());
    // After a second move, to an older store, the unit's floor differs from the store's.
    let mut c = shard(5, 1_000);
    go(&mut b, &mut c, &UnitMove { id: MoveId(2), ..by }, Epoch(3));
    let (_, _, floor) = c.hash_kv(None).unwrap();
    assert_eq!(floor, at[3], "what it came with");
    assert!(c.floor() < at[3]);
    let current = c.current_all();
    c.compact(MonoMillis(0), current).unwrap();
    assert_eq!(c.hash_kv(None).unwrap().0, hash, "the same versions are left");
}
