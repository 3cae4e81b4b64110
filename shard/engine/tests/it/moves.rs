//! Moves units between two engines (R13-R16).

use crate::common::*;
use kindred_engine::{engine::*, error::EngineError, ops::*, units::*, version::Version};
use kindred_partition_config::{
    ids::{Epoch, LeaseId, MoveId, Revision, Slot, Term},
    key::{Key, KeyRange},
    ring::{Bucket, BucketSet},
    unit::{Unit, UnitBuckets},
};

const PODS: &str = "/registry/pods/";

fn shard(slot: u16) -> Engine {
    engine(RevisionMode::Hlc(Slot::new(slot).expect("below 1024")))
}

fn by(id: u64, unit: &Unit) -> UnitMove {
    UnitMove { id: MoveId(id), term: Term(1), unit: unit.clone() }
}

fn all_pods() -> Unit {
    Unit::of_range(prefix(PODS))
}

/// Every second bucket of the pods.
fn half_the_ring() -> Unit {
    let set: BucketSet = (0..=255).filter(|bucket| bucket % 2 == 0).map(Bucket).collect();
    Unit { range: prefix(PODS), buckets: Some(UnitBuckets { prefix_len: PODS.len(), set }) }
}

fn track(source: &mut Engine, by: &UnitMove) {
    while !source.unit_track(by, 3).expect("tracked").ready {
        source.validate();
    }
    source.validate();
}

/// The version as it arrives over the network.
fn encoded(version: &Version, sub: u32) -> Version {
    Version::from_wire(&version.encoded().to_vec(), version.is_tombstone(), sub).expect("an encoded version")
}

fn copy(source: &Engine, target: &mut Engine, by: &UnitMove) {
    let mut after = None;
    loop {
        let chunk = source.unit_copy(by, after.as_ref(), 2, 1 << 20).expect("a chunk");
        let carry = |key: &CopiedKey| CopiedKey {
            versions: key.versions.iter().map(|version| encoded(version, version.sub())).collect(),
        };
        let keys = chunk.keys.iter().map(carry).collect();
        let import = Import { keys, floor: Some(chunk.floor), ..Import::default() };
        target.unit_import(by, import).expect("imported");
        target.validate();
        let Some(next) = chunk.after else { return };
        after = Some(next);
    }
}

/// Imports the messages of the tail at the target.
fn follow(source: &mut Engine, target: &mut Engine, by: &UnitMove, tail: FeedId) {
    while let Some(out) = source.feed_pull(tail, 64) {
        let (mut sub, mut last) = (0, Revision::ZERO);
        let carry = |event: &Event| {
            sub = if event.kv.mod_revision() == last { sub + 1 } else { 0 };
            last = event.kv.mod_revision();
            let prev = event.prev.as_ref().map(|prev| encoded(prev, 0));
            FollowedEvent { version: encoded(&event.kv, sub), prev }
        };
        let events = out.events.iter().map(carry).collect();
        let import = Import { events, through: out.watermark, ..Import::default() };
        target.unit_import(by, import).expect("followed");
        target.validate();
    }
}

/// Tracks, copies and follows, until the target has caught up.
fn prepare(source: &mut Engine, target: &mut Engine, by: &UnitMove) -> FeedId {
    track(source, by);
    let at = source.unit_copy_begin(by).expect("tracked");
    let tail = source.unit_feed_open(&by.unit, Some(at.next())).expect("tracked");
    copy(source, target, by);
    follow(source, target, by, tail);
    tail
}

/// Freezes, imports the last events, seals, releases and opens.
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

fn count(engine: &mut Engine, range: KeyRange, at: Option<Revision>) -> u64 {
    let answer = engine.range(&RangeQuery { count_only: true, revision: at, ..query(range) });
    answer.expect("readable").count
}

fn digests(engine: &Engine, unit: &Unit, floor: Revision, at: Revision) -> Vec<UnitDigest> {
    let (mut after, mut all) = (None, Vec::new());
    while let Some(digest) = engine.unit_verify(unit, floor, at, after.as_ref()).expect("a record") {
        after = Some(digest.last_key.clone());
        all.push(digest);
    }
    all
}

fn events(engine: &mut Engine, range: KeyRange, start: Revision) -> Vec<String> {
    let feed = engine.feed_open(vec![range], Some(start));
    let mut said = Vec::new();
    while let Some(out) = engine.feed_pull(feed, 1 << 20) {
        said.extend(out.events.iter().map(|event| {
            let prev = event.prev.as_ref().map(Version::mod_revision);
            format!("{:?} {} {prev:?}", event.kv, event.is_delete())
        }));
        if out.watermark.is_some() || out.compacted.is_some() || out.moved.is_some() {
            break;
        }
    }
    engine.feed_close(feed);
    said
}

fn fill(engine: &mut Engine, keys: usize) -> Vec<Revision> {
    let mut at = vec![engine.current_all()];
    for i in 0..keys {
        at.push(write(engine, put(&format!("{PODS}a/{i:03}"), "1")));
    }
    for i in (0..keys).step_by(3) {
        at.push(write(engine, put(&format!("{PODS}a/{i:03}"), "2")));
        at.push(write(engine, delete(&format!("{PODS}a/{:03}", i + 1))));
    }
    at
}

#[test]
fn a_move_keeps_every_revision_and_every_event() {
    for unit in [all_pods(), half_the_ring()] {
        let (mut a, mut b, mut still) = (shard(3), shard(4), shard(3));
        let at = fill(&mut a, 30);
        assert_eq!(at, fill(&mut still, 30));
        let by = by(1, &unit);
        let tail = prepare(&mut a, &mut b, &by);
        // Writes continue while the unit is copied.
        let during = vec![
            write(&mut a, put(&format!("{PODS}a/000"), "3")),
            write(&mut a, delete(&format!("{PODS}a/002"))),
            write(&mut a, put(&format!("{PODS}b/new"), "1")),
        ];
        write(&mut still, put(&format!("{PODS}a/000"), "3"));
        write(&mut still, delete(&format!("{PODS}a/002")));
        write(&mut still, put(&format!("{PODS}b/new"), "1"));
        follow(&mut a, &mut b, &by, tail);
        let last = switch(&mut a, &mut b, &by, tail, Epoch(2));
        for revision in at.iter().chain(&during) {
            let ours = |engine: &mut Engine| {
                let answer = engine.range(&RangeQuery { revision: Some(*revision), ..query(prefix(PODS)) });
                let mut kvs = answer.map(|answer| answer.kvs).unwrap_or_default();
                kvs.retain(|kv| unit.contains(kv.key()));
                kvs.iter().map(|kv| format!("{kv:?}")).collect::<Vec<_>>()
            };
            if *revision > b.floor() {
                assert_eq!(ours(&mut b), ours(&mut still), "at {revision}");
            }
            // The younger target store does not know what it owned of the other buckets before its floor.
            if unit.buckets.is_some() && *revision < b.floor() {
                continue;
            }
            let only: Vec<String> = events(&mut b, prefix(PODS), *revision);
            let mut want = events(&mut still, prefix(PODS), *revision);
            let named = |said: &String| {
                let key = said.split('@').next().unwrap_or_default();
                unit.contains(key.as_bytes())
            };
            want.retain(named);
            assert_eq!(only, want, "watched from {revision}");
        }
        let total = count(&mut still, prefix(PODS), None);
        let there = count(&mut b, prefix(PODS), None);
        let here = if unit.buckets.is_some() { count(&mut a, prefix(PODS), None) } else { 0 };
        assert_eq!(there + here, total);
        assert!(b.current(&[prefix(PODS)]) >= last, "R15b");
        let floor = a.floor();
        assert_eq!(digests(&a, &unit, floor, last), digests(&b, &unit, floor, last));
        assert!(!digests(&a, &unit, floor, last).is_empty());
    }
}

#[test]
fn counts_are_exact_while_an_import_is_under_way() {
    for unit in [all_pods(), half_the_ring()] {
        let (mut a, mut b) = (shard(3), shard(4));
        fill(&mut a, 30);
        // The target's own keys: other buckets of the ring between the imported ones, and other Kinds.
        let mut own = vec!["/registry/minions/n1".to_owned(), "/registry/zzz/a".to_owned()];
        own.extend((100..140).map(|i| format!("{PODS}a/{i}")).filter(|key| !unit.contains(key.as_bytes())));
        for key in &own {
            write(&mut b, put(key, "mine"));
        }
        let mine = own.len() as u64;
        let by = by(1, &unit);
        track(&mut a, &by);
        let total = count(&mut a, KeyRange::everything(), None);
        let moving = a.unit_records()[0].keys;
        let mut after = None;
        let early = b.current_all();
        loop {
            let chunk = a.unit_copy(&by, after.as_ref(), 3, 1 << 20).unwrap();
            while !b.unit_room(&by).unwrap() {}
            b.unit_import(&by, Import { keys: chunk.keys, ..Import::default() }).unwrap();
            assert_eq!(count(&mut b, KeyRange::everything(), None), mine, "hidden keys do not count");
            assert_eq!(count(&mut b, KeyRange::everything(), Some(early)), mine);
            assert_eq!(b.range(&all()).unwrap().kvs.len() as u64, mine);
            assert_eq!(b.range(&RangeQuery { limit: 1, ..all() }).unwrap().count, mine);
            let Some(next) = chunk.after else { break };
            after = Some(next);
        }
        assert_eq!(b.unit_records()[0].keys, moving);
        let then = a.range(&RangeQuery { revision: Some(early), ..query(prefix(PODS)) }).unwrap().kvs;
        let older = then.iter().filter(|kv| unit.contains(kv.key())).count() as u64;
        let tail = a.unit_feed_open(&unit, None).unwrap();
        switch(&mut a, &mut b, &by, tail, Epoch(2));
        assert_eq!(count(&mut b, KeyRange::everything(), None), mine + moving);
        assert_eq!(count(&mut b, KeyRange::everything(), Some(early)), mine + older);
        assert_eq!(count(&mut a, KeyRange::everything(), None), total - moving);
    }
}

#[test]
fn a_feed_ends_with_the_final_watermark_and_nothing_above() {
    let (mut a, mut b) = (shard(3), shard(4));
    fill(&mut a, 6);
    let unit = half_the_ring();
    let by = by(1, &unit);
    let tail = prepare(&mut a, &mut b, &by);
    let begin = a.current_all();
    let slow = a.feed_open(vec![prefix(PODS)], Some(begin.next()));
    let stream = a.watch_open();
    a.watch_create(stream, watch(prefix(PODS), Some(begin.next()))).unwrap();
    let said: Vec<Revision> = (0..4).map(|i| write(&mut a, put(&format!("{PODS}c/{i}"), "1"))).collect();
    let last = switch(&mut a, &mut b, &by, tail, Epoch(2));
    // The Kind's other buckets continue above the revisions that the moved ones may have.
    let others: Vec<String> = (0..20).map(|i| format!("{PODS}d/{i}")).collect();
    for key in others.iter().filter(|key| !unit.contains(key.as_bytes())) {
        assert!(write(&mut a, put(key, "1")) > last);
    }
    a.progress_tick(WallMicros(9_000_000));
    a.feed_advance(WallMicros(9_000_000), slow, a_later(last));
    let (mut got, mut end) = (Vec::new(), None);
    while let Some(out) = a.feed_pull(slow, 64) {
        assert_eq!(end, None, "nothing after the end");
        assert!(out.watermark.is_none_or(|watermark| watermark <= last), "R15a");
        got.extend(out.events.iter().map(|event| event.kv.mod_revision()));
        end = out.moved;
    }
    assert_eq!((got, end), (said.clone(), Some(last)), "everything up to the end, hidden by now or not");
    a.validate();
    let lines = pull(&mut a, stream, 1 << 20);
    let last_line = format!("moved 0 at {last}");
    assert_eq!(lines.last(), Some(&last_line), "{lines:?}");
    assert_eq!(lines.iter().flat_map(|line| line.matches("+")).count(), said.len());
    a.validate();
}

/// A watch that has had no events since before a compaction is behind nothing, and continues at the new owner.
#[test]
fn a_quiet_watch_is_not_compacted_by_a_move() {
    let mut a = shard(1);
    let first = fill(&mut a, 3)[0];
    let stream = a.watch_open();
    let quiet = KeyRange::Single(Key::from("/registry/pods/quiet"));
    a.watch_create(stream, watch(quiet, Some(first))).unwrap();
    assert!(pull(&mut a, stream, 1 << 20)[0].starts_with("created"));
    let later = *fill(&mut a, 3).last().unwrap();
    a.publish();
    a.compact(MonoMillis(1), later).unwrap();
    while a.gc(100) {}
    let by = by(1, &all_pods());
    track(&mut a, &by);
    let last = a.unit_freeze(NOW, &by).unwrap();
    assert_eq!(pull(&mut a, stream, 1 << 20), [format!("moved 0 at {last}")]);
}

/// A watch over a moved unit and its neighbours may end before a write to them that is not published. Only that watch
/// ends.
#[test]
fn a_watch_that_ends_before_what_is_not_published_takes_no_turn_of_another() {
    let mut a = shard(1);
    fill(&mut a, 6);
    let unit = half_the_ring();
    let by = by(1, &unit);
    track(&mut a, &by);
    let stream = a.watch_open();
    let nodes = "/registry/minions/";
    a.watch_create(stream, watch(prefix(PODS), None)).unwrap();
    a.watch_create(stream, watch(prefix(nodes), None)).unwrap();
    assert_eq!(pull(&mut a, stream, 1 << 20), ["created 0", "created 1"]);
    let last = a.unit_freeze(NOW, &by).unwrap();
    write(&mut a, put(&format!("{nodes}n"), "1"));
    let other = (0..20).map(|i| format!("{PODS}d/{i}")).find(|key| !unit.contains(key.as_bytes())).unwrap();
    a.apply(NOW, put(&other, "1")).unwrap();
    let mut lines = pull(&mut a, stream, 1 << 20);
    a.publish();
    lines.extend(pull(&mut a, stream, 1 << 20));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.contains(&format!("moved 0 at {last}")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with(&format!("1: +{nodes}n"))), "{lines:?}");
    write(&mut a, delete(&format!("{nodes}n")));
    assert!(pull(&mut a, stream, 1 << 20)[0].starts_with(&format!("1: -{nodes}n")));
}

fn a_later(revision: Revision) -> Revision {
    Revision(revision.get() + 4096)
}

#[test]
fn a_frozen_unit_answers_only_what_is_settled() {
    let (mut a, unit) = (shard(3), all_pods());
    let at = fill(&mut a, 6);
    let by = by(1, &unit);
    track(&mut a, &by);
    let last = a.unit_freeze(NOW, &by).unwrap();
    assert_eq!(a.unit_freeze(WallMicros(5_000_000), &by), Ok(last), "again is the same");
    let refused = |error: Option<EngineError>| {
        matches!(error, Some(EngineError::NotOwned(NotOwned { epoch: Epoch::NONE, .. })))
    };
    assert!(refused(a.apply(NOW, put(&format!("{PODS}a/000"), "9")).err()));
    assert!(refused(
        a.apply(
            NOW,
            txn(vec![], vec![put("/registry/minions/x", "1"), delete(&format!("{PODS}a/000"))], vec![])
        )
        .err()
    ));
    assert!(refused(a.range(&query(prefix(PODS))).err()), "R13: reads too");
    assert!(refused(a.range(&query(single(&format!("{PODS}a/000")))).err()));
    assert!(refused(a.range(&all()).err()));
    assert!(refused(a.range(&query(single("/registry/pods"))).err()), "the probe of the Kind");
    assert!(refused(a.raise(NOW, &[prefix(PODS)], last).err()));
    let stream = a.watch_open();
    assert!(refused(a.watch_create(stream, watch(prefix(PODS), None)).err()));
    let floor = a.floor();
    for revision in at.iter().filter(|at| **at > floor) {
        let answer = a.range(&RangeQuery { revision: Some(*revision), ..query(prefix(PODS)) }).unwrap();
        assert!(answer.header <= last);
    }
    assert!(write(&mut a, put("/registry/minions/x", "1")) > last, "others go on");
    a.unit_unfreeze(&by).unwrap();
    assert!(write(&mut a, put(&format!("{PODS}a/000"), "9")) > last);
    assert_eq!(
        a.unit_freeze(NOW, &UnitMove { term: Term(0), ..by.clone() }).unwrap_err(),
        UnitError::StaleTerm { id: by.id, term: Term(0), seen: Term(1) }
    );
    a.validate();
}

#[test]
fn no_event_comes_twice_after_going_there_and_back() {
    for unit in [all_pods(), half_the_ring()] {
        let (mut a, mut b, mut still) = (shard(3), shard(4), shard(3));
        let begin = fill(&mut a, 12)[0];
        fill(&mut still, 12);
        let (there, back) = (by(1, &unit), UnitMove { term: Term(2), ..by(1, &unit) });
        let tail = prepare(&mut a, &mut b, &there);
        let last = switch(&mut a, &mut b, &there, tail, Epoch(2));
        let key = (0..).map(|i| format!("{PODS}e/{i}")).find(|key| unit.contains(key.as_bytes())).unwrap();
        // The unit was written to at `a` and is followed at `b`.
        let tail = {
            while !b.unit_track(&back, 100).unwrap().ready {}
            b.unit_feed_open(&unit, Some(last.next()))
        };
        let tail = tail.unwrap();
        let moved = write(&mut b, put(&key, "there"));
        follow(&mut b, &mut a, &back, tail);
        let last = switch(&mut b, &mut a, &back, tail, Epoch(3));
        assert!(last >= moved);
        let got = events(&mut a, prefix(PODS), begin);
        let mut want = events(&mut still, prefix(PODS), begin);
        want.push(format!("{key}@{moved}.0 v1 (created {moved}) false None"));
        assert_eq!(got, want);
        assert!(write(&mut a, put(&key, "back")) > last);
        // The other side drops the unit, and only the refusal remains of it.
        b.unit_drop(&back, Epoch(3)).unwrap();
        while b.gc(2) {
            b.validate();
        }
        assert_eq!(b.unit_records()[0].state, UnitState::Gone);
        assert_eq!((b.stats().keys, b.stats().events), (0, 0));
        let refused = b.range(&query(single(&key))).unwrap_err();
        assert!(matches!(refused, EngineError::NotOwned(NotOwned { epoch: Epoch(3), .. })));
        // It takes the unit again.
        let again = by(2, &unit);
        let tail = prepare(&mut a, &mut b, &again);
        switch(&mut a, &mut b, &again, tail, Epoch(4));
        let floor = b.floor();
        let moved_again = events(&mut b, prefix(PODS), floor);
        let mut here = events(&mut a, prefix(PODS), floor);
        here.retain(|said| unit.contains(said.split('@').next().unwrap().as_bytes()));
        assert!(here.is_empty(), "hidden");
        assert_eq!(moved_again.len(), moved_again.iter().collect::<std::collections::BTreeSet<_>>().len());
    }
}

#[test]
fn a_lease_ends_where_its_keys_are_owned() {
    let (mut a, mut b, unit) = (shard(3), shard(4), all_pods());
    let (lease, key) = (LeaseId(7), format!("{PODS}leased"));
    a.lease_grant(MonoMillis(0), lease, 5).unwrap();
    write(&mut a, leased(&key, Some(lease)));
    let by = by(1, &unit);
    let tail = prepare(&mut a, &mut b, &by);
    assert_eq!(a.unit_leases(&unit, None, 10).unwrap(), (vec![lease], None));
    let last = a.unit_freeze(NOW, &by).unwrap();
    let waits =
        |refused: EngineError| matches!(refused, EngineError::NotOwned(NotOwned { epoch: Epoch::NONE, .. }));
    assert!(waits(a.lease_revoke(NOW, lease).unwrap_err()), "R12: `wait`, never `done`");
    let wait =
        |keys: Result<Option<Vec<Key>>, NotOwned>| assert_eq!(keys.map_err(|e| e.epoch), Err(Epoch::NONE));
    wait(a.lease_keys(lease, Some(Epoch(1))));
    assert!(a.lease_view(MonoMillis(0), lease, true).is_err_and(waits));
    assert!(a.lease_view(MonoMillis(0), lease, false).is_ok());
    assert!(!a.lease_expire(NOW, MonoMillis(60_000), 10), "looked at again later");
    assert_eq!(a.lease_deadline(), Some(MonoMillis(60_100)));
    follow(&mut a, &mut b, &by, tail);
    let missing = UnitError::Leases { id: by.id, leases: vec![lease] };
    assert_eq!(b.unit_seal(NOW, &by, last), Err(missing), "attached before the switch");
    assert_eq!((a.unit_leases_missing(&unit), b.unit_leases_missing(&unit)), (vec![], vec![lease]));
    b.lease_adopt(lease, 5, Slot::new(3).unwrap()).unwrap();
    assert_eq!(b.unit_leases_missing(&unit), []);
    assert_eq!(b.lease_keys(lease, Some(Epoch(1))), Ok(Some(vec![])), "hidden");
    b.unit_seal(NOW, &by, last).unwrap();
    wait(b.lease_keys(lease, Some(Epoch(1))));
    assert!(waits(b.lease_end(NOW, lease).unwrap_err()));
    a.unit_release(&by, Epoch(2)).unwrap();
    // The old owner no longer has the key, and the new one does not have it yet. A caller that does not know that has
    // to ask both again.
    assert_eq!(a.lease_keys(lease, Some(Epoch(2))), Ok(Some(vec![])));
    assert_eq!(a.lease_keys(lease, Some(Epoch(1))).map_err(|e| e.epoch), Err(Epoch(2)));
    wait(b.lease_keys(lease, Some(Epoch(2))));
    b.unit_open(&by, Epoch(2)).unwrap();
    assert_eq!(b.lease_keys(lease, Some(Epoch(2))), Ok(Some(vec![Key::from(&*key)])));
    b.lease_end(NOW, lease).unwrap();
    b.publish();
    assert_eq!(count(&mut b, prefix(PODS), None), 0);
    // The delete reaches the old owner, and the home has ended the lease.
    let back = UnitMove { term: Term(2), ..by };
    while !b.unit_track(&back, 10).unwrap().ready {}
    let tail = b.unit_feed_open(&unit, Some(last.next())).unwrap();
    follow(&mut b, &mut a, &back, tail);
    a.lease_revoke(NOW, lease).unwrap();
    a.validate();
    b.validate();
}

/// Keys that were moved away are deleted at the new owner, not here. So while the way back is open a lease ends here,
/// by its time or by a revoke, as if it had no key here; and its keys do not come back without a lease.
#[test]
fn f19_a_lease_ends_at_a_home_that_gave_its_keys_away() {
    for expires in [true, false] {
        let (mut a, mut b, unit) = (shard(3), shard(4), all_pods());
        let (lease, key, other) = (LeaseId(7), format!("{PODS}leased"), "/registry/minions/leased");
        let (at_a, at_b) = (Slot::new(3).unwrap(), Slot::new(4).unwrap());
        a.lease_grant(MonoMillis(0), lease, 5).unwrap();
        write(&mut a, leased(&key, Some(lease)));
        write(&mut a, leased(other, Some(lease)));
        let by = by(1, &unit);
        let tail = prepare(&mut a, &mut b, &by);
        a.lease_attach(lease, at_b).unwrap();
        b.lease_adopt(lease, 5, at_a).unwrap();
        let last = switch(&mut a, &mut b, &by, tail, Epoch(2));
        if expires {
            assert!(!a.lease_expire(NOW, MonoMillis(60_000), 10));
            assert_eq!(a.lease_deadline(), None);
        } else {
            assert_eq!(a.lease_revoke(NOW, lease).unwrap().1, [at_b]);
        }
        a.publish();
        assert_eq!(a.leases_ended(), [EndedLease { id: lease, attached: vec![at_b] }]);
        assert_eq!(count(&mut a, prefix("/registry/minions/"), None), 0, "its own it deletes");
        assert_eq!(count(&mut b, prefix(PODS), None), 1);

        // The keys do not come back before the new owner has deleted them.
        let back = UnitMove { term: Term(2), ..by };
        while !b.unit_track(&back, 10).unwrap().ready {}
        let tail = b.unit_feed_open(&unit, Some(last.next())).unwrap();
        let frozen = b.unit_freeze(NOW, &back).unwrap();
        b.feed_advance(NOW, tail, frozen);
        follow(&mut b, &mut a, &back, tail);
        let missing = UnitError::Leases { id: back.id, leases: vec![lease] };
        assert_eq!(a.unit_seal(NOW, &back, frozen), Err(missing));
        b.unit_unfreeze(&back).unwrap();
        b.lease_end(NOW, lease).unwrap();
        b.publish();
        a.lease_forget(lease);
        assert_eq!(count(&mut b, prefix(PODS), None), 0);
        let tail = b.unit_feed_open(&unit, Some(frozen.next())).unwrap();
        let last = switch(&mut b, &mut a, &back, tail, Epoch(3));
        assert!(last > frozen);
        assert_eq!(count(&mut a, prefix(PODS), None), 0);
        assert_eq!(a.lease_deadline(), None, "nothing is left to end");
        a.validate();
        b.validate();
    }
}

/// The same holds at a store that inherited the lease from another home.
#[test]
fn f19_a_store_that_gave_keys_away_is_done_with_their_lease() {
    let (mut a, mut b, unit) = (shard(3), shard(4), all_pods());
    let (lease, key, home) = (LeaseId(7), format!("{PODS}leased"), Slot::new(9).unwrap());
    a.lease_adopt(lease, 5, home).unwrap();
    write(&mut a, leased(&key, Some(lease)));
    let by = by(1, &unit);
    let tail = prepare(&mut a, &mut b, &by);
    b.lease_adopt(lease, 5, home).unwrap();
    switch(&mut a, &mut b, &by, tail, Epoch(2));
    a.lease_end(NOW, lease).unwrap();
    assert_eq!(a.lease_keys(lease, Some(Epoch(2))), Ok(None));
    b.lease_end(NOW, lease).unwrap();
    b.publish();
    assert_eq!(count(&mut b, prefix(PODS), None), 0);
    a.unit_drop(&by, Epoch(2)).unwrap();
    while a.gc(3) {}
    a.validate();
    b.validate();
}

#[test]
fn maps_that_are_behind_are_refused_and_what_is_dropped_is_not_read_on() {
    let (mut a, mut b, unit) = (shard(3), shard(4), half_the_ring());
    fill(&mut a, 40);
    let by = by(1, &unit);
    let mut open = a.open_range(&prefix(PODS), None).unwrap();
    let (mut got, want) = (a.next_chunk(&mut open, 2, 1 << 20).unwrap().len() as u64, open.count);
    let tail = prepare(&mut a, &mut b, &by);
    assert_eq!(b.owns(&[prefix(PODS)], Some(Epoch(1))), Ok(()), "without it, as by the map");
    switch(&mut a, &mut b, &by, tail, Epoch(2));
    for engine in [&a, &b] {
        let behind = engine.owns(&[prefix(PODS)], Some(Epoch(1))).unwrap_err();
        assert_eq!(behind.epoch, Epoch(2));
        assert_eq!(engine.owns(&[prefix(PODS)], Some(Epoch(2))), Ok(()));
        assert_eq!(engine.owns(&[prefix("/registry/minions/")], Some(Epoch(1))), Ok(()), "no other Kind");
    }
    // A read that began before the move continues here; a read at the other side does not see the unit twice.
    got += a.next_chunk(&mut open, 10, 1 << 20).unwrap().len() as u64;
    a.unit_drop(&by, Epoch(2)).unwrap();
    assert!(got < want, "the test wants a read in progress");
    assert!(matches!(a.next_chunk(&mut open, 10, 1 << 20), Err(EngineError::NotOwned(_))));
    a.close_range(open);
    while a.gc(3) {}
    a.validate();
    let overlapping = UnitMove { id: MoveId(2), term: Term(1), unit: all_pods() };
    assert!(matches!(b.unit_import(&overlapping, Import::default()), Err(UnitError::Overlaps { .. })));
    assert!(matches!(a.unit_track(&overlapping, 10), Err(UnitError::Overlaps { .. })));
}

/// Moves this unit from one engine to the other, and ends the way back.
fn moved(from: &mut Engine, to: &mut Engine, by: &UnitMove, epoch: Epoch) {
    let tail = prepare(from, to, by);
    switch(from, to, by, tail, epoch);
    from.feed_close(tail);
    from.unit_drop(by, epoch).expect("released");
    while from.gc(100) {}
    from.validate();
}

#[test]
fn a_part_of_what_came_as_a_whole_goes_and_comes_back() {
    let (mut a, mut b) = (shard(3), shard(4));
    fill(&mut a, 12);
    let keys = count(&mut a, prefix(PODS), None);
    let (start, end) = (Key::from(&*format!("{PODS}a/006")), Key::from(&*format!("{PODS}z")));
    let upper = Unit::of_range(KeyRange::Span { start, end: Some(end) });
    let (start, end) = (Key::from(&*format!("{PODS}a/003")), Key::from(&*format!("{PODS}z")));
    let more = Unit::of_range(KeyRange::Span { start, end: Some(end) });
    moved(&mut a, &mut b, &by(1, &all_pods()), Epoch(2));
    moved(&mut b, &mut a, &by(2, &all_pods()), Epoch(3));
    // A split, and a merge.
    moved(&mut a, &mut b, &by(3, &upper), Epoch(4));
    let (low, high) = (count(&mut a, prefix(PODS), None), count(&mut b, upper.range.clone(), None));
    assert!(low > 0 && high > 0 && low + high == keys, "{low} + {high} of {keys}");
    // The import is refused together with a part that is owned here.
    let refused = a.unit_import(&by(9, &more), Import::default()).unwrap_err();
    assert!(matches!(refused, UnitError::Overlaps { state: "owned", .. }), "{refused}");
    moved(&mut b, &mut a, &by(4, &upper), Epoch(5));
    assert_eq!(count(&mut a, prefix(PODS), None), keys);
    write(&mut a, put(&format!("{PODS}a/006"), "again"));
    moved(&mut a, &mut b, &by(5, &all_pods()), Epoch(6));
    assert_eq!(count(&mut b, prefix(PODS), None), keys);
    // A part whose move was given up is not left behind when the whole moves.
    track(&mut b, &by(6, &upper));
    b.unit_forget(&by(6, &upper)).expect("tracked");
    moved(&mut b, &mut a, &by(7, &all_pods()), Epoch(7));
    assert_eq!((count(&mut a, prefix(PODS), None), count(&mut a, upper.range.clone(), None)), (keys, high));
    // All of it leaves in parts and comes back at once.
    for (id, part) in all_pods().minus(&upper).expect("ranges").iter().chain([&upper]).enumerate() {
        moved(&mut a, &mut b, &by(10 + id as u64, part), Epoch(10 + id as u64));
    }
    assert_eq!(count(&mut b, prefix(PODS), None), keys);
    moved(&mut b, &mut a, &by(20, &all_pods()), Epoch(20));
    assert_eq!(count(&mut a, prefix(PODS), None), keys);
}

/// A coordinator that takes over repeats whatever it cannot know to be done, whatever the state of the move.
#[test]
fn what_a_decision_asks_for_may_be_asked_for_again_at_any_time_after_it() {
    let (mut a, mut b, unit) = (shard(3), shard(4), all_pods());
    write(&mut a, put(&format!("{PODS}x"), "1"));
    let by = by(1, &unit);
    let tail = prepare(&mut a, &mut b, &by);
    switch(&mut a, &mut b, &by, tail, Epoch(2));
    let again = |a: &mut Engine, b: &mut Engine, owns: UnitState| {
        a.unit_release(&by, Epoch(2)).expect("released already");
        b.unit_open(&by, Epoch(2)).expect("opened already");
        b.unit_unfreeze(&by).expect("not frozen");
        assert_eq!(b.unit_records().last().map(|record| record.state), Some(owns));
        assert_eq!(count(b, prefix(PODS), None), 1);
    };
    again(&mut a, &mut b, UnitState::Owned);
    // The way back is followed.
    track(&mut b, &by);
    again(&mut a, &mut b, UnitState::Tracked { ready: true });
    // The move is completed.
    a.unit_drop(&by, Epoch(2)).unwrap();
    again(&mut a, &mut b, UnitState::Tracked { ready: true });
    while a.gc(100) {}
    b.unit_forget(&by).unwrap();
    again(&mut a, &mut b, UnitState::Owned);
    // A release or open with another map than the decided one is refused.
    assert!(matches!(a.unit_release(&by, Epoch(3)), Err(UnitError::State { state: "gone", .. })));
    assert!(matches!(b.unit_open(&by, Epoch(3)), Err(UnitError::State { state: "owned", .. })));
    a.validate();
    b.validate();
}

#[test]
fn room_for_a_unit_is_made_a_part_at_a_time() {
    let (mut a, mut b, unit) = (shard(3), shard(4), half_the_ring());
    let names: Vec<String> = (0..3_000).map(|n| format!("{PODS}a/{n:04}")).collect();
    let (own, other): (Vec<_>, Vec<_>) = names.iter().partition(|name| unit.contains(name.as_bytes()));
    for name in other.iter().chain(&own) {
        write(&mut b, put(name, "here"));
    }
    let is_here = b.unit_room(&by(1, &unit));
    assert!(matches!(is_here, Err(UnitError::Key { .. })), "a key of the unit is live: {is_here:?}");
    for name in &own {
        write(&mut b, delete(name));
    }
    let mut parts = 0;
    while !b.unit_room(&by(2, &unit)).expect("no key of it is live") {
        let import = b.unit_import(&by(2, &unit), Import::default());
        assert!(import.is_ok() || import == Err(UnitError::NotReady(MoveId(2))), "{import:?}");
        b.validate();
        parts += 1;
    }
    assert!(parts > 2, "{parts} parts for {} live keys and the history of {}", other.len(), own.len());
    assert_eq!(b.unit_room(&by(2, &unit)), Ok(true), "it is done once");
    fill(&mut a, 12);
    moved(&mut a, &mut b, &by(2, &unit), Epoch(2));
    assert!(count(&mut b, prefix(PODS), None) > other.len() as u64);
}
