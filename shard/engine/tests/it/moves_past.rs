//! R13: what was settled before a unit changed its owner can also be read at its revisions by earlier maps: by lists
//! that began before a switch, and by routers that do not know of the switch.

use std::collections::BTreeMap;

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
const A: usize = 0;
const B: usize = 1;

/// The unit of some quarters of the pods' buckets, which are numbered from 0 to 3.
fn quarters(which: &[usize]) -> Unit {
    let set: BucketSet =
        (0..=255_u8).filter(|bucket| which.contains(&usize::from(bucket % 4))).map(Bucket).collect();
    Unit { range: prefix(PODS), buckets: Some(UnitBuckets { prefix_len: PODS.len(), set }) }
}

fn quarter_of(key: &str) -> usize {
    (0..4).find(|quarter| quarters(&[*quarter]).contains(key.as_bytes())).expect("one of the four")
}

/// Two stores of a ring, and everything that was written.
struct World {
    engines: [Engine; 2],
    log: Vec<(Revision, String, Option<String>)>,
    /// The owner of each quarter by the maps 1, 2, …
    maps: Vec<[usize; 4]>,
    moves: u64,
}

impl World {
    fn new() -> Self {
        let shard = |slot| {
            let revisions = RevisionMode::Hlc(Slot::new(slot).expect("below 1024"));
            let kinds = KindScheme::default();
            let config =
                EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
            Engine::new(config, WallMicros(1_000))
        };
        Self { engines: [shard(3), shard(4)], log: Vec::new(), maps: vec![[A, A, B, B]], moves: 0 }
    }

    fn map(&self) -> Epoch {
        Epoch(self.maps.len() as u64)
    }

    fn owner(&self, key: &str) -> usize {
        self.maps.last().expect("there is one")[quarter_of(key)]
    }

    fn put(&mut self, i: u32, value: &str) -> Revision {
        let key = format!("{PODS}a/{i:03}");
        let owner = self.owner(&key);
        // A router keeps its requests in order in the same way.
        let after = self.log.last().map_or(Revision::ZERO, |last| last.0);
        self.engines[owner].raise_whole(NOW, &[prefix(PODS)], after).expect("near");
        let at = write(&mut self.engines[owner], put(&key, value));
        self.log.push((at, key, Some(value.to_owned())));
        at
    }

    fn delete(&mut self, i: u32) {
        let key = format!("{PODS}a/{i:03}");
        let owner = self.owner(&key);
        let after = self.log.last().map_or(Revision::ZERO, |last| last.0);
        self.engines[owner].raise_whole(NOW, &[prefix(PODS)], after).expect("near");
        let at = write(&mut self.engines[owner], delete(&key));
        self.log.push((at, key, None));
    }

    fn write_some(&mut self, round: u32) {
        (0..24).for_each(|i| _ = self.put(i, &format!("{round}")));
        (0..24).step_by(5).for_each(|i| self.delete(i + round % 5));
    }

    /// The live keys at a revision.
    fn at(&self, at: Revision) -> Vec<(String, String)> {
        let mut live = BTreeMap::new();
        for (_, key, value) in self.log.iter().filter(|(then, ..)| *then <= at) {
            match value {
                Some(value) => _ = live.insert(key.clone(), value.clone()),
                None => _ = live.remove(key),
            }
        }
        live.into_iter().collect()
    }

    fn by(&mut self, unit: &Unit) -> UnitMove {
        self.moves += 1;
        UnitMove { id: MoveId(self.moves), term: Term(1), unit: unit.clone() }
    }

    fn follow(&mut self, from: usize, to: usize, by: &UnitMove, tail: FeedId) {
        while let Some(out) = self.engines[from].feed_pull(tail, 64) {
            let carry = |event: &Event| FollowedEvent { version: event.kv.clone(), prev: event.prev.clone() };
            let events = out.events.iter().map(carry).collect();
            let import = Import { events, through: out.watermark, ..Import::default() };
            self.engines[to].unit_import(by, import).expect("followed");
        }
    }

    /// Does the steps from the track to the seal of the target.
    fn prepare(&mut self, from: usize, to: usize, by: &UnitMove) -> Revision {
        while !self.engines[from].unit_track(by, 3).expect("tracked").ready {}
        let at = self.engines[from].unit_copy_begin(by).expect("tracked");
        let tail = self.engines[from].unit_feed_open(&by.unit, Some(at.next())).expect("tracked");
        let CopyChunk { keys, floor, gaps, .. } =
            self.engines[from].unit_copy(by, None, 1_000, 1 << 20).expect("a chunk");
        let import = Import { keys, floor: Some(floor), gaps, through: Some(at), ..Import::default() };
        while self.engines[to].unit_import(by, import.clone()) == Err(UnitError::NotReady(by.id)) {}
        self.follow(from, to, by, tail);
        let undecided = self.map();
        self.engines[from].unit_undecided(by, undecided).expect("tracked");
        let last = self.engines[from].unit_freeze(NOW, by).expect("frozen");
        self.engines[from].feed_advance(NOW, tail, last);
        self.follow(from, to, by, tail);
        self.engines[from].feed_close(tail);
        self.engines[to].unit_undecided(by, undecided).expect("it follows");
        self.engines[to].unit_seal(NOW, by, last).expect("all is there");
        last
    }

    fn decide(&mut self, to: usize, of: &[usize]) -> Epoch {
        let mut map = *self.maps.last().expect("there is one");
        of.iter().for_each(|quarter| map[*quarter] = to);
        self.maps.push(map);
        self.map()
    }

    /// Makes a whole switch; the source follows from then on. Answers the move and its final revision.
    fn switch(&mut self, from: usize, to: usize, of: &[usize]) -> (UnitMove, Revision) {
        let by = self.by(&quarters(of));
        let last = self.prepare(from, to, &by);
        let epoch = self.decide(to, of);
        self.engines[from].unit_release(&by, epoch).expect("released");
        self.engines[to].unit_open(&by, epoch).expect("opened");
        self.engines.iter().for_each(Engine::validate);
        (by, last)
    }

    fn drop(&mut self, from: usize, by: &UnitMove) {
        let epoch = self.map();
        self.engines[from].unit_drop(by, epoch).expect("released");
        while self.engines[from].gc(100) {}
        self.engines.iter().for_each(Engine::validate);
    }

    /// The list of a revision by a map, merged from all stores of the Kind, and read in every possible way.
    fn list(&mut self, at: Revision, map: Epoch) -> Result<Vec<(String, String)>, EngineError> {
        let mut found = Vec::new();
        for engine in &mut self.engines {
            engine.raise_whole(NOW, &[prefix(PODS)], at).expect("near");
            let query = RangeQuery { revision: Some(at), ..query(prefix(PODS)) };
            let whole = engine.range_by_map(&query, Some(map));
            assert_eq!(engine.owns_at(&query.range, Some(map), Some(at)).is_ok(), whole.is_ok());
            let whole = whole?;
            assert!(whole.header >= at);
            let count = RangeQuery { count_only: true, ..query.clone() };
            assert_eq!(engine.range_by_map(&count, Some(map)).map(|answer| answer.count), Ok(whole.count));
            assert_eq!(whole.count, whole.kvs.len() as u64);
            assert_eq!(pages(engine, at, map), keys(&whole));
            assert_eq!(chunks(engine, at, map), keys(&whole));
            found.extend(whole.kvs.iter().map(said));
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn said(version: &Version) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(version.key()), text(&version.value()))
}

/// Reads page by page, as a router does.
fn pages(engine: &mut Engine, at: Revision, map: Epoch) -> Vec<String> {
    let (mut found, mut start): (Vec<String>, _) = (Vec::new(), prefix(PODS).start().clone());
    loop {
        let range = KeyRange::Span { start, end: Some("/registry/pods0".into()) };
        let query = RangeQuery { revision: Some(at), limit: 2, ..query(range) };
        let page = engine.range_by_map(&query, Some(map)).expect("as the first");
        found.extend(keys(&page));
        let Some(last) = page.kvs.last().filter(|_| page.more) else { return found };
        start = Key::copy_from(last.key()).successor();
    }
}

/// Reads with one long read.
fn chunks(engine: &mut Engine, at: Revision, map: Epoch) -> Vec<String> {
    let mut open = engine.open_range_by_map(&prefix(PODS), Some(at), Some(map)).expect("as the first");
    let mut found = Vec::new();
    loop {
        let chunk = engine.next_chunk(&mut open, 3, 1 << 20).expect("nothing is dropped");
        if chunk.is_empty() {
            assert_eq!(open.count, found.len() as u64);
            engine.close_range(open);
            return found;
        }
        found.extend(chunk.iter().map(|version| said(version).0));
    }
}

fn refused(error: Option<EngineError>) -> Option<Epoch> {
    match error {
        Some(EngineError::NotOwned(refused)) => Some(refused.epoch),
        _ => None,
    }
}

#[test]
fn r13_a_list_at_a_revision_is_whole_by_whatever_map_it_is_answered() {
    let mut world = World::new();
    world.write_some(0);
    let moves: [(usize, usize, &[usize]); 8] = [
        (A, B, &[0]),
        (A, B, &[1]),
        (B, A, &[0]),
        (A, B, &[0]),
        (B, A, &[0, 1]),
        (B, A, &[2, 3]),
        (A, B, &[0, 1, 2, 3]),
        (B, A, &[1, 2]),
    ];
    let (mut answered, mut refusals) = (0, 0);
    for (round, (from, to, of)) in moves.into_iter().enumerate() {
        let (by, last) = world.switch(from, to, of);
        // The old owner learns of writes at the new one above the final revision.
        world.write_some(1 + round as u32);
        while !world.engines[to].unit_track(&by, 100).expect("owned").ready {}
        let tail = world.engines[to].unit_feed_open(&by.unit, Some(last.next())).expect("tracked");
        world.follow(to, from, &by, tail);
        world.engines[to].feed_close(tail);
        let revisions: Vec<Revision> = world.log.iter().map(|(at, ..)| *at).collect();
        let now = world.map();
        for at in revisions.iter().copied().step_by(7).chain([last, last.next(), *revisions.last().unwrap()])
        {
            for map in (1..=now.0).map(Epoch) {
                match world.list(at, map) {
                    Ok(found) => {
                        assert_eq!(
                            found,
                            world.at(at),
                            "round {round}: at {at} by map {map}, settled {last}"
                        );
                        answered += 1;
                    }
                    Err(error) => {
                        let epoch = refused(Some(error.clone())).unwrap_or_else(|| panic!("{error}"));
                        assert!(epoch > map && epoch <= now, "by map {map}: since {epoch}");
                        // All stores know the map in force, and for what was settled under it the map before.
                        assert!(
                            map.next() < now || (map < now && at > last),
                            "round {round}: at {at} by map {map}"
                        );
                        refusals += 1;
                    }
                }
            }
        }
        // Only reads at settled revisions are answered.
        let latest = world.engines[from].range_by_map(&query(prefix(PODS)), Some(Epoch(now.0 - 1)));
        assert_eq!(refused(latest.err()), Some(now));
        world.engines[to].unit_forget(&by).expect("tracked");
        world.drop(from, &by);
        let dropped = RangeQuery { revision: Some(last), ..query(prefix(PODS)) };
        let dropped = world.engines[from].range_by_map(&dropped, Some(Epoch(now.0 - 1)));
        assert_eq!(refused(dropped.err()), Some(now), "when it is dropped");
    }
    assert!(answered > 300 && refusals > 300, "{answered} {refusals}");
}

#[test]
fn r13_single_keys_are_read_up_to_the_final_revision_and_no_further() {
    let mut world = World::new();
    world.write_some(0);
    let (by, last) = world.switch(A, B, &[0, 1]);
    world.write_some(1);
    while !world.engines[B].unit_track(&by, 100).expect("owned").ready {}
    let tail = world.engines[B].unit_feed_open(&by.unit, Some(last.next())).expect("tracked");
    world.follow(B, A, &by, tail);
    let log = world.log.clone();
    for (at, key, _) in log.iter().filter(|(_, key, _)| by.unit.contains(key.as_bytes())) {
        let query = RangeQuery { revision: Some(*at), ..query(single(key)) };
        for map in [None, Some(Epoch(1))] {
            let read = world.engines[A].range_by_map(&query, map);
            if *at > last {
                assert_eq!(refused(read.err()), Some(Epoch(2)), "{key} at {at}");
                continue;
            }
            let read = read.expect("settled");
            let want: Vec<_> = world.at(*at).into_iter().filter(|kv| kv.0 == *key).collect();
            assert_eq!(read.kvs.iter().map(said).collect::<Vec<_>>(), want, "{key} at {at}");
            assert!(read.header <= last, "nothing above is promised");
        }
        assert_eq!(
            refused(world.engines[A].range(&RangeQuery { revision: None, ..query }).err()),
            Some(Epoch(2))
        );
    }
    // Revisions that are compacted stay compacted.
    let floor = log[10].0;
    world.engines[A].compact(MonoMillis(0), floor).expect("current");
    while world.engines[A].gc(100) {}
    for (at, key, _) in log.iter().filter(|(at, key, _)| *at <= last && by.unit.contains(key.as_bytes())) {
        let query = RangeQuery { revision: Some(*at), ..query(single(key)) };
        match world.engines[A].range_by_map(&query, Some(Epoch(1))) {
            Ok(_) => assert!(*at >= floor),
            Err(error) => assert!(matches!(error, EngineError::Compacted { .. }) && *at < floor, "{error}"),
        }
    }
    assert_eq!(world.list(last, Epoch(1)), Ok(world.at(last)));
}

/// The pages of a list are asked for by the map before a switch, and then by the map after it: the unit's keys that the
/// last page left over are no longer counted.
#[test]
fn f29_the_count_of_a_page_is_by_the_map_of_its_asker() {
    let mut world = World::new();
    world.write_some(0);
    let at = world.log.last().expect("written").0;
    world.engines[A].raise_whole(NOW, &[prefix(PODS)], at).expect("near");
    let by = world.by(&quarters(&[0]));
    let last = world.prepare(A, B, &by);
    assert!(at <= last);
    let page = |world: &mut World, start: Key, map: Epoch| {
        let range = KeyRange::Span { start, end: Some("/registry/pods0".into()) };
        let query = RangeQuery { revision: Some(at), limit: 2, ..query(range) };
        world.engines[A].range_by_map(&query, Some(map)).expect("settled")
    };
    let first = page(&mut world, prefix(PODS).start().clone(), Epoch(1));
    let next = Key::copy_from(first.kvs.last().expect("two").key()).successor();
    let epoch = world.decide(B, &[0]);
    world.engines[A].unit_release(&by, epoch).expect("released");
    world.engines[B].unit_open(&by, epoch).expect("opened");
    let left = |world: &World, owned: &dyn Fn(usize) -> bool| {
        let behind = world.at(at).into_iter().filter(|(key, _)| key.as_bytes() >= next.as_ref());
        behind.filter(|(key, _)| owned(quarter_of(key))).count() as u64
    };
    assert_eq!(page(&mut world, next.clone(), Epoch(2)).count, left(&world, &|quarter| quarter == 1));
    assert_eq!(page(&mut world, next.clone(), Epoch(1)).count, left(&world, &|quarter| quarter <= 1));
}

/// Between the freeze and the steps that follow from the decision, no store knows what is decided.
#[test]
fn r13_maps_that_may_be_decided_wait_and_those_before_are_answered() {
    let mut world = World::new();
    world.write_some(0);
    let by = world.by(&quarters(&[0]));
    let last = world.prepare(A, B, &by);
    let want = world.at(last);
    assert_eq!(world.list(last, Epoch(1)), Ok(want.clone()), "undecided");
    let part = RangeQuery { revision: Some(last), ..query(prefix(PODS)) };
    for engine in &mut world.engines {
        assert_eq!(
            refused(engine.range_by_map(&part, Some(Epoch(2))).err()),
            Some(Epoch::NONE),
            "it may be decided"
        );
    }
    let epoch = world.decide(B, &[0]);
    // The new owner learns of the decision first. From then on the old one must not answer for the unit as well.
    world.engines[B].unit_open(&by, epoch).expect("opened");
    assert_eq!(refused(world.engines[A].range_by_map(&part, Some(Epoch(2))).err()), Some(Epoch::NONE));
    assert_eq!(world.list(last, Epoch(1)), Ok(want.clone()));
    world.engines[A].unit_release(&by, epoch).expect("released");
    assert_eq!(world.list(last, Epoch(1)), Ok(want.clone()));
    assert_eq!(world.list(last, Epoch(2)), Ok(want));
}

#[test]
fn r13_a_long_read_by_the_map_before_ends_when_the_unit_is_dropped() {
    let mut world = World::new();
    world.write_some(0);
    let (by, last) = world.switch(A, B, &[0]);
    let mut open =
        world.engines[A].open_range_by_map(&prefix(PODS), Some(last), Some(Epoch(1))).expect("settled");
    let mut found = keys_of(&world.engines[A].next_chunk(&mut open, 2, 1 << 20).expect("there"));
    // The read at the other side leaves out the keys that came.
    let mut other =
        world.engines[B].open_range_by_map(&prefix(PODS), Some(last), Some(Epoch(1))).expect("settled");
    let next = world.by(&quarters(&[0, 2, 3]));
    while !world.engines[B].unit_track(&next, 3).expect("owned").ready {}
    loop {
        let chunk = world.engines[B].next_chunk(&mut other, 2, 1 << 20).expect("nothing is dropped");
        if chunk.is_empty() {
            break;
        }
        found.extend(keys_of(&chunk));
    }
    world.engines[B].close_range(other);
    let epoch = world.map();
    world.engines[A].unit_drop(&by, epoch).expect("released");
    let ended = world.engines[A].next_chunk(&mut open, 2, 1 << 20);
    assert_eq!(refused(ended.err()), Some(epoch));
    world.engines[A].close_range(open);
    found.sort_unstable();
    found.dedup();
    let want: Vec<String> = world.at(last).into_iter().map(|kv| kv.0).collect();
    assert!(found.len() < want.len() && found.iter().all(|key| want.contains(key)), "each key once");
}

/// The end of a move waits for clients that read at the old owner, but not for ever.
#[test]
fn a_unit_that_is_read_is_dropped_when_that_has_ended_or_a_minute_later() {
    let dropped = |world: &mut World, at: u64, by: &UnitMove, open: &OpenRange| {
        let engine = &mut world.engines[A];
        let reads = usize::from(engine.unit_is_read(by, open));
        let refused = engine.unit_drop_when_unread(MonoMillis(at), by, Epoch(2), reads).err();
        refused.map(|refused| match refused {
            UnitError::Read { left_s, .. } => left_s,
            other => panic!("{other}"),
        })
    };
    let begin = || {
        let mut world = World::new();
        world.write_some(0);
        let before = world.engines[A].open_range(&prefix(PODS), None).expect("owned");
        let (by, last) = world.switch(A, B, &[0]);
        (world, before, by, last)
    };
    // Case: a long read that began before the switch.
    let (mut world, mut open, by, last) = begin();
    let at = open.at;
    assert_eq!(dropped(&mut world, 7_000, &by, &open), Some(60));
    assert_eq!(dropped(&mut world, 66_000, &by, &open), Some(1));
    while !world.engines[A].next_chunk(&mut open, 5, 1 << 20).expect("kept").is_empty() {}
    assert_eq!(dropped(&mut world, 66_001, &by, &open), None);
    world.engines[A].close_range(open);
    assert!(at <= last);
    // Case: a long read that does not end.
    let (mut world, mut open, by, _) = begin();
    assert_eq!(dropped(&mut world, 7_000, &by, &open), Some(60));
    assert_eq!(dropped(&mut world, 67_000, &by, &open), None);
    assert_eq!(refused(world.engines[A].next_chunk(&mut open, 5, 1 << 20).err()), Some(Epoch(2)));
    world.engines[A].close_range(open);
    // Case: a list that is read page by page, whose pin shows when it has ended.
    let (mut world, mut open, by, last) = begin();
    while !world.engines[A].next_chunk(&mut open, 5, 1 << 20).expect("kept").is_empty() {}
    let pin = PinId(9);
    world.engines[A].hold(MonoMillis(6_000), last, pin);
    pages(&mut world.engines[A], last, Epoch(1));
    assert_eq!(dropped(&mut world, 7_000, &by, &open), Some(60), "pinned");
    assert!(world.engines[A].release(&[pin]));
    assert_eq!(dropped(&mut world, 7_001, &by, &open), None);
    world.engines[A].close_range(open);
    // Case: a list that takes longer than a pin lasts.
    let (mut world, mut open, by, last) = begin();
    while !world.engines[A].next_chunk(&mut open, 5, 1 << 20).expect("kept").is_empty() {}
    world.engines[A].hold(MonoMillis(0), last, pin);
    world.engines[A].unit_readers_look(MonoMillis(6_000));
    pages(&mut world.engines[A], last, Epoch(1));
    assert_eq!(dropped(&mut world, 7_000, &by, &open), Some(60));
    pages(&mut world.engines[A], last, Epoch(1));
    assert_eq!(dropped(&mut world, 11_900, &by, &open), Some(56), "it goes on");
    pages(&mut world.engines[A], last, Epoch(2));
    let by_the_map_in_force = dropped(&mut world, 16_899, &by, &open);
    assert_eq!(by_the_map_in_force, Some(51), "nothing of it is read by that");
    assert_eq!(dropped(&mut world, 16_900, &by, &open), None);
    world.engines[A].close_range(open);
    // Case: a list that ended long before.
    let (mut world, mut open, by, last) = begin();
    while !world.engines[A].next_chunk(&mut open, 5, 1 << 20).expect("kept").is_empty() {}
    pages(&mut world.engines[A], last, Epoch(1));
    world.engines[A].unit_readers_look(MonoMillis(1_000));
    world.engines[A].unit_readers_look(MonoMillis(2_000));
    assert_eq!(dropped(&mut world, 6_000, &by, &open), None);
    world.engines[A].close_range(open);
    // Case: no client reads the unit, and no client can read a copy that was never owned here.
    let (mut world, mut open, by, last) = begin();
    while !world.engines[A].next_chunk(&mut open, 5, 1 << 20).expect("kept").is_empty() {}
    world.engines[A].hold(MonoMillis(7_000), last.next(), pin);
    assert_eq!(dropped(&mut world, 7_001, &by, &open), None, "what is pinned is later");
    world.engines[A].close_range(open);
    let (mut world, by) = (World::new(), World::new().by(&quarters(&[0])));
    world.prepare(A, B, &by);
    world.engines[B].hold(MonoMillis(7_000), Revision(1), pin);
    assert_eq!(world.engines[B].unit_drop_when_unread(MonoMillis(7_000), &by, Epoch::NONE, 0), Ok(()));
}

fn keys_of(versions: &[Version]) -> Vec<String> {
    versions.iter().map(|version| said(version).0).collect()
}
