//! Retained snapshots (R5): the versions that were current at them stay readable after any compaction, and no others.

use std::collections::BTreeMap;

use crate::common::*;
use kindred_engine::{
    durability::{Durability, KindModes},
    engine::*,
    error::EngineError,
    ops::*,
    recover::Recovered,
    units::*,
};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Slot, Term},
    key::{Key, KeyRange},
    kind::KindScheme,
    unit::Unit,
};
use proptest::prelude::*;

const NAME: PinId = PinId(7);

fn at(revision: Revision, limit: usize, from: &str) -> RangeQuery {
    let range = KeyRange::Span { start: Key::from(from), end: None };
    RangeQuery { revision: Some(revision), limit, ..query(range) }
}

/// All keys at a revision, read page by page as by a router, and in one long read.
fn pages(engine: &mut Engine, revision: Revision, limit: usize) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut from) = (Vec::new(), String::new());
    loop {
        let page = engine.range(&at(revision, limit, &from)).unwrap();
        let text = |kv: &kindred_engine::version::Version| String::from_utf8(kv.key().to_vec()).unwrap();
        found.extend(page.kvs.iter().map(|kv| (text(kv), kv.value().to_vec())));
        match page.kvs.last() {
            Some(last) if page.more => from = text(last) + "\0",
            _ => break,
        }
    }
    let mut open = engine.open_range(&KeyRange::everything(), Some(revision)).unwrap();
    let mut long = Vec::new();
    while !open.is_done() {
        long.extend(engine.next_chunk(&mut open, limit, usize::MAX).unwrap());
    }
    engine.close_range(open);
    assert!(long.iter().map(|kv| kv.key()).eq(found.iter().map(|(key, _)| key.as_bytes())));
    found
}

fn compact_all(engine: &mut Engine, now: MonoMillis) {
    let current = engine.current_all();
    match engine.compact(now, current) {
        Ok(None) | Err(EngineError::Compacted { .. }) => {}
        other => panic!("{other:?}"),
    }
    while engine.gc(3) {}
}

#[test]
fn a_retained_revision_ends_when_it_is_released_or_not_renewed() {
    for released in [true, false] {
        let mut engine = hlc();
        for value in ["1", "2"] {
            write(&mut engine, put("/registry/pods/a/a", value));
        }
        let retained = engine.current_all();
        engine.retain(MonoMillis(0), retained, NAME, 1_000).unwrap();
        write(&mut engine, put("/registry/pods/a/a", "3"));
        write(&mut engine, put("/registry/pods/a/b", "4"));
        compact_all(&mut engine, MonoMillis(1));
        // The renewed snapshot stays longer. A renewal for another name comes too late.
        engine.retain(MonoMillis(900), retained, NAME, 1_000).unwrap();
        let other = engine.retain(MonoMillis(900), retained, PinId(8), 1_000);
        assert!(matches!(other, Err(EngineError::Compacted { .. })));
        engine.release_due(MonoMillis(1_500));
        let page = engine.range(&at(retained, 10, "")).unwrap();
        assert_eq!(keys(&page), ["/registry/pods/a/a"]);
        assert_eq!(page.kvs[0].value()[..], *b"2");
        let beside = engine.range(&at(retained.prev(), 10, ""));
        assert!(matches!(beside, Err(EngineError::Compacted { .. })));
        if released {
            engine.release_retained(NAME);
        } else {
            engine.release_due(MonoMillis(1_900));
        }
        assert!(matches!(engine.range(&at(retained, 10, "")), Err(EngineError::Compacted { .. })));
        assert!(engine.wants_gc());
        while engine.gc(10) {}
        let stats = engine.stats();
        assert_eq!(stats.total_bytes, stats.live_bytes, "nothing is left of what was retained");
        engine.validate();
    }
}

#[test]
fn what_cannot_be_retained() {
    let mut engine = hlc();
    write(&mut engine, put("/registry/pods/a/a", "1"));
    let current = engine.current_all();
    let future = engine.retain(MonoMillis(0), current.next(), NAME, 1_000);
    assert_eq!(future, Err(EngineError::Future { current }));
    let before = engine.retain(MonoMillis(0), engine.floor().prev(), NAME, 1_000);
    assert!(matches!(before, Err(EngineError::Compacted { .. })));
    for name in 0..64 {
        engine.retain(MonoMillis(0), current, PinId(100 + name), 1_000).unwrap();
    }
    assert_eq!(engine.retain(MonoMillis(0), current, NAME, 1_000), Err(EngineError::TooManyRetained));
    // The other snapshots have expired.
    engine.retain(MonoMillis(1_000), current, NAME, 1_000).unwrap();
}

#[test]
fn a_kind_that_was_not_raised_is_not_read_at_a_retained_revision() {
    let mut engine = hlc();
    write(&mut engine, put("/registry/minions/n", "1"));
    write(&mut engine, put("/registry/pods/a/a", "1"));
    let pods = engine.current(&[KeyRange::prefix(Key::from("/registry/pods/"))]);
    engine.retain(MonoMillis(0), pods, NAME, 1_000).unwrap();
    let nodes = query(KeyRange::prefix(Key::from("/registry/minions/")));
    let refused = engine.range(&RangeQuery { revision: Some(pods), ..nodes });
    assert!(matches!(refused, Err(EngineError::Future { .. })), "events at or below it may still come");
}

/// A fixed sequence of pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn name(key: u64) -> String {
    format!("/registry/{}/a/{key:02}", if key.is_multiple_of(2) { "pods" } else { "minions" })
}

/// Compares a read and a count of a span at a retained revision with the model.
fn counts_agree(engine: &mut Engine, revision: Revision, model: &BTreeMap<String, u64>, span: [String; 2]) {
    let [start, end] = span;
    let expected: Vec<String> = model.keys().filter(|key| **key >= start && **key < end).cloned().collect();
    let range = KeyRange::Span { start: Key::from(start.as_str()), end: Some(Key::from(end.as_str())) };
    let ask = RangeQuery { revision: Some(revision), ..query(range.clone()) };
    let counted = engine.range(&RangeQuery { count_only: true, ..ask.clone() }).unwrap();
    assert_eq!(counted.count, expected.len() as u64, "{start} to {end} at {revision}");
    let page = engine.range(&RangeQuery { limit: 1, ..ask }).unwrap();
    assert_eq!((page.count, page.more), (expected.len() as u64, expected.len() > 1));
    let open = engine.open_range(&range, Some(revision)).unwrap();
    assert_eq!(open.count, expected.len() as u64);
    engine.close_range(open);
}

/// Revisions are retained and released in any order, while keys are created and deleted, everything is compacted, gc
/// runs in slices, and units are split off. Counts at retained revisions must match reads.
#[test]
fn f01_counts_below_the_floor_are_exact() {
    for seed in 0..300 {
        let mut numbers = Numbers(seed);
        let mut engine = hlc();
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        let mut retained: BTreeMap<PinId, (Revision, BTreeMap<String, u64>)> = BTreeMap::new();
        let mut unit = None;
        for turn in 0..120 {
            let key = name(numbers.below(30));
            if numbers.below(2) == 0 {
                write(&mut engine, delete(&key));
                model.remove(&key);
            } else {
                write(&mut engine, put(&key, "v"));
                model.insert(key, turn);
            }
            match numbers.below(12) {
                0 | 1 if retained.len() < 4 => {
                    let current = engine.current(&[KeyRange::everything()]);
                    engine.retain(MonoMillis(0), current, PinId(turn), 1_000).unwrap();
                    retained.insert(PinId(turn), (current, model.clone()));
                }
                2 | 3 => {
                    let current = engine.current_all();
                    let _ = engine.compact(MonoMillis(turn), current);
                }
                4 if !retained.is_empty() => {
                    let nth = numbers.below(retained.len() as u64);
                    let ended = *retained.keys().nth(usize::try_from(nth).unwrap()).unwrap();
                    retained.remove(&ended);
                    engine.release_retained(ended);
                }
                5 if unit.is_none() => {
                    let unit_move = UnitMove {
                        id: MoveId(1),
                        term: Term(1),
                        unit: Unit::of_range(prefix("/registry/pods/a/1")),
                    };
                    unit = Some(unit_move);
                }
                6 | 7 => {
                    engine.gc(usize::try_from(numbers.below(5)).unwrap() + 1);
                }
                8 => while engine.gc(7) {},
                _ => {}
            }
            if let Some(unit) = &unit {
                engine.unit_track(unit, 2).unwrap();
            }
            for (revision, model) in retained.values() {
                let (one, other) = (name(numbers.below(30)), name(numbers.below(30)));
                counts_agree(&mut engine, *revision, model, ["/".into(), "0".into()]);
                counts_agree(&mut engine, *revision, model, [one, other]);
            }
        }
        for name in retained.keys() {
            engine.release_retained(*name);
        }
        write(&mut engine, put("/registry/pods/a/last", ""));
        compact_all(&mut engine, MonoMillis(1_000));
        let stats = engine.stats();
        assert_eq!(stats.total_bytes, stats.live_bytes);
        engine.validate();
    }
}

proptest! {
    #[test]
    fn what_was_current_stays_readable(
        writes in prop::collection::vec((0..12_u8, prop::bool::ANY, prop::bool::ANY), 1..80),
        retain_at in 0..80_usize,
        limit in 1..6_usize,
    ) {
        let mut engine = hlc();
        let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut retained = None;
        for (turn, (key, deletes, compacts)) in writes.into_iter().enumerate() {
            let key = format!("/registry/{}/a/{key}", if key % 2 == 0 { "pods" } else { "minions" });
            if deletes {
                write(&mut engine, delete(&key));
                model.remove(&key);
            } else {
                write(&mut engine, put(&key, &turn.to_string()));
                model.insert(key, turn.to_string().into_bytes());
            }
            if turn == retain_at {
                let current = engine.current(&[KeyRange::everything()]);
                engine.retain(MonoMillis(0), current, NAME, 1_000).unwrap();
                retained = Some((current, model.clone()));
            }
            if compacts {
                compact_all(&mut engine, MonoMillis(turn as u64));
            }
            if let Some((revision, model)) = &retained {
                let expected: Vec<_> = model.clone().into_iter().collect();
                prop_assert_eq!(pages(&mut engine, *revision, limit), expected);
            }
        }
        engine.release_retained(NAME);
        // A version at the floor itself stays, even a tombstone.
        write(&mut engine, put("/registry/pods/a/last", ""));
        compact_all(&mut engine, MonoMillis(1_000));
        let stats = engine.stats();
        prop_assert_eq!(stats.total_bytes, stats.live_bytes);
        engine.validate();
    }
}

/// Imported keys whose history begins above a retained revision are not part of that revision.
#[test]
fn keys_that_come_later_with_a_younger_history_are_not_read_at_a_retained_revision() {
    let shard = |slot| engine(RevisionMode::Hlc(Slot::new(slot).expect("below 1024")));
    let (mut source, mut target) = (shard(1), shard(2));
    write(&mut source, put("/registry/pods/a/a", "1"));
    write(&mut source, put("/registry/pods/a/b", "1"));
    write(&mut target, put("/registry/minions/n", "1"));
    let everything = [KeyRange::everything()];
    let retained = source.current(&everything).max(target.current(&everything));
    for engine in [&mut source, &mut target] {
        assert_eq!(engine.raise(NOW, &everything, retained).unwrap(), retained);
        engine.retain(MonoMillis(0), retained, NAME, 1_000).unwrap();
    }
    write(&mut source, delete("/registry/pods/a/b"));
    write(&mut target, put("/registry/minions/n", "2"));
    compact_all(&mut source, MonoMillis(1));
    compact_all(&mut target, MonoMillis(1));
    let pods = |engine: &mut Engine| {
        let query = query(prefix("/registry/pods/"));
        engine.range(&RangeQuery { revision: Some(retained), ..query }).map(|answer| keys(&answer))
    };
    let before = ["/registry/pods/a/a".to_owned(), "/registry/pods/a/b".to_owned()];
    assert_eq!(pods(&mut source).unwrap(), before);

    let by = UnitMove { id: MoveId(1), term: Term(1), unit: Unit::of_range(prefix("/registry/pods/")) };
    while !source.unit_track(&by, 3).unwrap().ready {}
    assert_eq!(pods(&mut source).unwrap(), before, "it is retained where it is");
    let at = source.unit_copy_begin(&by).unwrap();
    let chunk = source.unit_copy(&by, None, 10, 1 << 20).unwrap();
    assert!(chunk.floor > retained && chunk.after.is_none());
    let import =
        Import { keys: chunk.keys, floor: Some(chunk.floor), through: Some(at), ..Import::default() };
    target.unit_import(&by, import).unwrap();
    let last = source.unit_freeze(NOW, &by).unwrap();
    target.unit_import(&by, Import { through: Some(last), ..Import::default() }).unwrap();
    target.unit_seal(NOW, &by, last).unwrap();
    source.unit_release(&by, Epoch(2)).unwrap();
    target.unit_open(&by, Epoch(2)).unwrap();
    assert!(matches!(pods(&mut target), Err(EngineError::Compacted { .. })));
    assert_eq!(pods(&mut source).unwrap(), before, "R13: at the old owner until it drops the unit");
    source.unit_drop(&by, Epoch(2)).unwrap();
    assert!(pods(&mut source).is_err());
    source.validate();
    target.validate();
}

/// A shard that lost what it showed does not know what was current at a revision in the gap (R10), neither while it has
/// the gap nor after a compaction has passed it.
#[test]
fn r10_a_revision_in_a_gap_is_never_read_as_a_retained_one() {
    let modes = KindModes::all(Durability::Buffered);
    let mut engine = hlc();
    engine.set_modes(modes.clone()).unwrap();
    engine.log_changes();
    write(&mut engine, put("/registry/pods/a/a", "1"));
    let logged = engine.take_applied();
    write(&mut engine, put("/registry/pods/a/a", "lost"));
    let retained = engine.current(&[KeyRange::everything()]);
    engine.retain(MonoMillis(0), retained, NAME, 1_000).unwrap();

    let mut recovered = Recovered { start: Revision(retained.get() + 10_240), ..Recovered::default() };
    recovered.lost.buffered = Some(logged.promise);
    recovered.modes = Some(modes);
    logged.fsync.into_iter().chain(logged.buffered).for_each(|record| recovered.push(record));
    let kinds = KindScheme::default();
    let revisions = RevisionMode::Hlc(Slot::new(3).unwrap());
    let config = EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
    let mut engine = Engine::recover(config, NOW, MonoMillis(0), recovered).unwrap();
    let _ = engine.retain(MonoMillis(0), retained, NAME, 1_000);
    let read = |engine: &mut Engine| engine.range(&at(retained, 10, "")).map(|page| keys(&page));
    assert!(matches!(read(&mut engine), Err(EngineError::Compacted { .. })), "in the gap");
    write(&mut engine, put("/registry/pods/a/b", "2"));
    compact_all(&mut engine, MonoMillis(1));
    assert!(matches!(read(&mut engine), Err(EngineError::Compacted { .. })), "the gap is passed");
}
