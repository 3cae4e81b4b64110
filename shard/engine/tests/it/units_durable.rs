//! R15: units across a crash: what was given away does not come back, what was taken over is there, what was half done
//! is not there, and old coordinators stay fenced.

use crate::common::*;
use kindred_engine::{
    durability::{Durability, Gap, KindModes, Logged},
    engine::*,
    error::EngineError,
    ops::{CompareResult, CompareTarget, RangeQuery},
    recover::{Lost, Recovered},
    units::*,
};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Slot, Term},
    key::{Key, KeyRange},
    kind::KindScheme,
    ring::RingHash,
    unit::{Unit, UnitBuckets},
};

const PODS: &str = "/registry/pods/";

/// A shard whose logs are never cut.
struct Kept {
    engine: Engine,
    slot: u16,
    log: Vec<Logged>,
}

fn config(slot: u16) -> EngineConfig {
    let revisions = RevisionMode::Hlc(Slot::new(slot).expect("below 1024"));
    let kinds = KindScheme::default();
    EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 }
}

impl Kept {
    fn new(slot: u16, mode: Durability) -> Self {
        Self::began_at(slot, mode, WallMicros(1_000))
    }

    fn began_at(slot: u16, mode: Durability, at: WallMicros) -> Self {
        let mut engine = Engine::new(config(slot), at);
        engine.log_changes();
        engine.set_modes(KindModes::all(mode)).expect("nothing is written");
        let mut kept = Self { engine, slot, log: Vec::new() };
        kept.log();
        kept
    }

    fn log(&mut self) {
        let applied = self.engine.take_applied();
        self.log.extend(applied.buffered.into_iter().chain(applied.fsync));
        self.engine.publish();
        self.engine.publish_fsync(applied.mark);
    }

    fn write(&mut self, key: &str) -> Revision {
        let answer = self.engine.apply(NOW, put(key, "v")).expect("owned");
        self.log();
        header(&answer)
    }

    /// Restarts from what is logged; of mode buffered everything above `lost` is lost.
    fn crash(&mut self, lost: Option<Revision>) {
        self.log();
        let mut recovered = Recovered::default();
        self.log.iter().for_each(|logged| recovered.push(logged.clone()));
        recovered.lost = Lost { buffered: lost, fsync: None, ..Lost::default() };
        recovered.start = Revision(self.engine.last_revision().get() + 4_096);
        let back = Engine::recover(config(self.slot), WallMicros(1), MonoMillis(0), recovered);
        self.engine = back.expect("no clock is off");
        self.log();
        self.engine.validate();
    }

    /// Replaces the logs by a checkpoint.
    fn checkpoint(&mut self) {
        let (mut walk, mut records) = (self.engine.checkpoint_begin(), Vec::new());
        while self.engine.checkpoint_next(&mut walk, 1, 1 << 20, |logged| records.push(logged)) {}
        self.log = records;
    }

    fn list(&mut self) -> Vec<String> {
        keys(&self.engine.range(&query(prefix(PODS))).expect("the present"))
    }

    fn state(&self) -> Option<UnitState> {
        self.engine.unit_records().last().map(|record| record.state)
    }
}

fn by(id: u64, term: u64) -> UnitMove {
    UnitMove { id: MoveId(id), term: Term(term), unit: Unit::of_range(prefix(PODS)) }
}

/// Copies everything of the source to the target, which is not sealed yet.
fn copy(source: &mut Kept, target: &mut Kept, by: &UnitMove) -> Revision {
    while !source.engine.unit_track(by, 3).expect("tracked").ready {}
    let at = source.engine.unit_copy_begin(by).expect("tracked");
    let chunk = source.engine.unit_copy(by, None, 1_000, 1 << 20).expect("a chunk");
    let CopyChunk { keys, floor, gaps, .. } = chunk;
    let import = Import { keys, floor: Some(floor), gaps, through: Some(at), ..Import::default() };
    while !target.engine.unit_room(by).expect("no key of it is live") {}
    target.engine.unit_import(by, import).expect("imported");
    let last = source.engine.unit_freeze(NOW, by).expect("frozen");
    target.engine.unit_import(by, Import { through: Some(last), ..Import::default() }).expect("whole");
    last
}

fn shards(mode: Durability) -> (Kept, Kept) {
    (Kept::new(1, mode), Kept::new(2, mode))
}

const A: &str = "/registry/pods/a";
const B: &str = "/registry/pods/b";
const C: &str = "/registry/pods/c";

#[test]
fn r15_a_frozen_unit_stays_frozen_and_a_stale_coordinator_fenced() {
    let (mut source, mut target) = shards(Durability::Buffered);
    source.write(A);
    let last = copy(&mut source, &mut target, &by(1, 3));
    source.crash(None);
    assert_eq!(source.state(), Some(UnitState::Frozen { last }));
    // R13: only revisions up to the final revision can be read, and nothing else can be done.
    assert!(source.engine.apply(NOW, put(B, "")).is_err());
    assert!(source.engine.range(&query(prefix(PODS))).is_err());
    let at = kindred_engine::ops::RangeQuery { revision: Some(last), ..query(prefix(PODS)) };
    assert_eq!(source.engine.range(&at).map(|answer| keys(&answer)), Ok(vec![A.to_owned()]));
    let refused = source.engine.unit_unfreeze(&by(1, 2));
    assert!(matches!(refused, Err(UnitError::StaleTerm { .. })), "{refused:?}");
    source.engine.unit_unfreeze(&by(1, 3)).expect("the term that froze it");
    source.write(B);
    source.crash(None);
    assert_eq!(
        (source.state(), source.list()),
        (Some(UnitState::Tracked { ready: true }), vec![A.into(), B.into()])
    );
}

#[test]
fn r15_an_import_that_was_not_sealed_is_gone_and_its_number_is_not_used_again() {
    for checkpoint in [false, true] {
        let (mut source, mut target) = shards(Durability::Fsync);
        source.write(A);
        copy(&mut source, &mut target, &by(1, 1));
        target.log();
        if checkpoint {
            target.checkpoint();
        }
        target.crash(None);
        assert_eq!((target.state(), target.list()), (None, vec![]));
        // The next attempt brings less; what the first one brought must not be among it.
        source.engine.unit_unfreeze(&by(1, 1)).expect("frozen");
        source.engine.apply(NOW, delete(A)).expect("owned");
        source.write(B);
        let last = copy(&mut source, &mut target, &by(1, 2));
        target.engine.unit_seal(NOW, &by(1, 2), last).expect("all is there");
        target.crash(None);
        assert_eq!(target.state(), Some(UnitState::Following { through: last, sealed: Some(last) }));
        target.engine.unit_open(&by(1, 2), Epoch(7)).expect("sealed");
        assert_eq!(target.list(), [B]);
        target.crash(None);
        assert_eq!((target.state(), target.list()), (Some(UnitState::Owned), vec![B.into()]));
        assert_eq!(target.engine.unit_records().last().map(|record| record.epoch), Some(Epoch(7)));
    }
}

#[test]
fn r15_what_was_given_away_does_not_come_back_with_the_unit() {
    for checkpoint in [false, true] {
        let (mut one, mut two) = shards(Durability::Buffered);
        one.write(A);
        one.write(B);
        let last = copy(&mut one, &mut two, &by(1, 1));
        two.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
        one.engine.unit_release(&by(1, 1), Epoch(5)).expect("frozen");
        two.engine.unit_open(&by(1, 1), Epoch(5)).expect("sealed");
        one.crash(None);
        assert_eq!(one.state(), Some(UnitState::Gone), "what was released has no way back after a crash");
        assert_eq!(one.engine.owns(&[single(A)], None).map_err(|refused| refused.epoch), Err(Epoch(5)));
        // R13 ends there: what was settled can only be read at the new owner.
        for by_map in [None, Some(Epoch(4))] {
            let at = RangeQuery { revision: Some(last), ..query(single(A)) };
            let refused = one.engine.range_by_map(&at, by_map).err();
            assert!(
                matches!(refused, Some(EngineError::NotOwned(NotOwned { epoch: Epoch(5), .. }))),
                "{refused:?}"
            );
        }
        // At the new owner a key is deleted and another is written; then the unit comes back.
        two.engine.apply(NOW, delete(A)).expect("owned");
        two.write(C);
        let last = copy(&mut two, &mut one, &by(2, 1));
        one.engine.unit_seal(NOW, &by(2, 1), last).expect("all is there");
        two.engine.unit_release(&by(2, 1), Epoch(6)).expect("frozen");
        one.engine.unit_open(&by(2, 1), Epoch(6)).expect("sealed");
        let written = one.write("/registry/pods/d");
        assert_eq!(one.list(), [B, C, "/registry/pods/d"]);
        if checkpoint {
            one.checkpoint();
        }
        one.crash(None);
        assert_eq!(one.list(), [B, C, "/registry/pods/d"]);
        let found = one.engine.range(&query(single("/registry/pods/d"))).expect("the present");
        assert_eq!(found.kvs.first().map(|kv| kv.mod_revision()), Some(written));
    }
}

#[test]
fn r15_what_a_source_followed_counts_when_it_takes_the_unit_back() {
    let (mut one, mut two) = shards(Durability::Fsync);
    one.write(A);
    let last = copy(&mut one, &mut two, &by(1, 1));
    two.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
    one.engine.unit_release(&by(1, 1), Epoch(5)).expect("frozen");
    two.engine.unit_open(&by(1, 1), Epoch(5)).expect("sealed");
    two.write(B);
    // The way back: the source has everything but what was written since.
    let last = copy(&mut two, &mut one, &by(1, 2));
    one.engine.unit_seal(NOW, &by(1, 2), last).expect("all is there");
    one.crash(None);
    one.engine.unit_open(&by(1, 2), Epoch(6)).expect("sealed");
    assert_eq!(one.list(), [A, B]);
    one.crash(None);
    assert_eq!(one.list(), [A, B]);
}

/// Lets a store follow the whole unit, which stays owned by the store that it is copied from.
fn follow(owner: &mut Kept, follower: &mut Kept, by: &UnitMove) {
    while !owner.engine.unit_track(by, 3).expect("tracked").ready {}
    let at = owner.engine.unit_copy_begin(by).expect("tracked");
    let CopyChunk { keys, floor, gaps, .. } =
        owner.engine.unit_copy(by, None, 1_000, 1 << 20).expect("a chunk");
    let import = Import { keys, floor: Some(floor), gaps, through: Some(at), ..Import::default() };
    while !follower.engine.unit_room(by).expect("no key of it is live") {}
    follower.engine.unit_import(by, import).expect("imported");
}

#[test]
fn r15_a_source_that_crashed_after_its_release_may_be_asked_for_it_again() {
    let (mut one, mut two) = shards(Durability::Fsync);
    one.write(A);
    let last = copy(&mut one, &mut two, &by(1, 1));
    two.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
    one.engine.unit_release(&by(1, 1), Epoch(5)).expect("frozen");
    two.engine.unit_open(&by(1, 1), Epoch(5)).expect("sealed");
    one.crash(None);
    assert_eq!(one.state(), Some(UnitState::Gone));
    one.engine.unit_release(&by(1, 1), Epoch(5)).expect("gone");
    // The unit is copied again for the way back. A coordinator that takes over then does not know of that.
    two.engine.apply(NOW, delete(A)).expect("owned");
    two.write(B);
    follow(&mut two, &mut one, &by(1, 1));
    one.engine.unit_release(&by(1, 2), Epoch(5)).expect("it follows");
    assert!(matches!(one.state(), Some(UnitState::Following { sealed: None, .. })));
    // What the store had before the crash does not come back with the new copy.
    let last = copy(&mut two, &mut one, &by(1, 3));
    one.engine.unit_seal(NOW, &by(1, 3), last).expect("all is there");
    one.crash(None);
    one.engine.unit_open(&by(1, 3), Epoch(6)).expect("sealed");
    assert_eq!(one.list(), [B]);
    one.crash(None);
    assert_eq!(one.list(), [B]);
}

#[test]
fn r10_a_gap_goes_with_the_unit() {
    let (mut source, mut target) = shards(Durability::Buffered);
    let kept = source.write(A);
    source.crash(Some(kept));
    let start = source.engine.current_all();
    let gap = Gap { after: kept, until: start };
    let last = copy(&mut source, &mut target, &by(1, 1));
    target.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
    target.engine.unit_open(&by(1, 1), Epoch(5)).expect("sealed");
    target.log();
    // R13: the old owner answers too, by the map before, whether frozen or released.
    for released in [false, true] {
        if released {
            source.engine.unit_release(&by(1, 1), Epoch(5)).expect("frozen");
        }
        for (engine, map) in [(&mut source.engine, Some(Epoch(4))), (&mut target.engine, None)] {
            for range in [single(A), prefix(PODS)] {
                let mut read = |at: Revision| {
                    let query = RangeQuery { revision: Some(at), ..query(range.clone()) };
                    match engine.range_by_map(&query, map) {
                        Ok(answer) => assert_eq!(keys(&answer), [A], "at {at}"),
                        Err(error) => return Some(error),
                    }
                    None
                };
                let compacted =
                    |error| matches!(error, Some(EngineError::Compacted { floor }) if floor == start);
                assert_eq!((read(kept), read(start)), (None, None));
                assert!(compacted(read(kept.next())) && compacted(read(start.prev())));
            }
        }
    }
    let feed = target.engine.feed_open(vec![prefix(PODS)], Some(kept.next()));
    let out = target.engine.feed_pull(feed, 1 << 20).expect("its first message");
    assert_eq!((out.gaps, out.compacted), (vec![gap], None), "who has seen all that was kept goes on");
    let feed = target.engine.feed_open(vec![prefix(PODS)], Some(kept.next().next()));
    let out = target.engine.feed_pull(feed, 1 << 20).expect("its first message");
    assert_eq!(out.compacted, Some(start));
    // The same holds after a crash of the new owner, which loses nothing.
    target.crash(None);
    assert!(target.engine.unit_records().last().is_some_and(|record| record.state == UnitState::Owned));
    assert!(target.engine.changed(&[prefix(PODS)], kept.next()));
    target.engine.compact(MonoMillis(0), start).expect("current");
    let feed = target.engine.feed_open(vec![prefix(PODS)], Some(start));
    assert_eq!(target.engine.feed_pull(feed, 1 << 20).map(|out| out.gaps), Some(vec![]));
}

/// What a stock etcd returns of its pods: what is current, with revisions of its own.
fn told(source: &mut Engine) -> Vec<CopiedKey> {
    let found = source.range(&query(prefix(PODS))).expect("the present").kvs;
    found.into_iter().map(|kv| CopiedKey { versions: vec![kv] }).collect()
}

#[test]
fn r13_keys_of_an_etcd_keep_their_revisions_and_begin_a_history_of_their_own() {
    for checkpoint in [false, true] {
        // The etcd counts 2, 3, 4 …
        let mut etcd = crate::common::dense();
        for key in [A, B, C] {
            write(&mut etcd, put(key, "1"));
        }
        let mut shard = Kept::new(1, Durability::Buffered);
        // Both are far above all of the etcd's revisions, and near this shard's clock.
        let (begin, last) = (Revision(1_000 << 10), Revision(2_000 << 10));
        let at = etcd.current_all();
        let import =
            Import { keys: told(&mut etcd), floor: Some(begin), through: Some(at), ..Import::default() };
        shard.engine.unit_import(&by(1, 1), import).expect("imported");
        // Writes that happen at the etcd meanwhile.
        let kept = write(&mut etcd, put(B, "2"));
        write(&mut etcd, delete(C));
        let imported = etcd.current_all();
        let behind = shard.engine.unit_seal_renumbered(NOW, &by(1, 1), last, imported);
        assert!(matches!(behind, Err(UnitError::Behind { .. })), "{behind:?}");
        let feed = etcd.feed_open(vec![prefix(PODS)], Some(at.next()));
        let events = etcd.feed_pull(feed, 1 << 20).expect("two of them").events;
        let followed = |event: &Event| FollowedEvent { version: event.kv.clone(), prev: event.prev.clone() };
        let events: Vec<_> = events.iter().map(followed).collect();
        assert_eq!(events.len(), 2);
        // The events are imported twice, as by two coordinators.
        for _ in 0..2 {
            let import = Import { events: events.clone(), through: Some(imported), ..Import::default() };
            assert_eq!(shard.engine.unit_import(&by(1, 1), import), Ok(imported));
        }
        let above = shard.engine.unit_seal_renumbered(NOW, &by(1, 1), imported, imported);
        assert!(above.is_err(), "its history begins above all that the etcd ever showed");
        shard.engine.unit_seal_renumbered(NOW, &by(1, 1), last, imported).expect("all is there");
        shard.crash(None);
        assert_eq!(shard.state(), Some(UnitState::Following { through: last, sealed: Some(last) }));
        shard.engine.unit_open(&by(1, 1), Epoch(5)).expect("sealed");
        shard.engine.validate();
        shard.log();
        for again in [false, true] {
            if again {
                if checkpoint {
                    shard.checkpoint();
                }
                shard.crash(None);
            }
            let found = shard.engine.range(&query(prefix(PODS))).expect("the present");
            assert_eq!(keys(&found), [A, B]);
            assert!(found.header >= last, "{} is below {last}", found.header);
            assert_eq!(found.kvs[1].mod_revision(), kept, "compares go on to hold");
            let at = |revision| RangeQuery { revision: Some(revision), ..query(prefix(PODS)) };
            assert_eq!(shard.engine.range(&at(last)).map(|answer| answer.count), Ok(2));
            for revision in [Revision(1), kept, imported, begin, last.prev()] {
                let compacted = shard.engine.range(&at(revision)).err();
                assert!(matches!(compacted, Some(EngineError::Compacted { floor }) if floor == last));
                // A watcher of the etcd is told once where to continue, and misses nothing.
                let feed = shard.engine.feed_open(vec![prefix(PODS)], Some(revision));
                let said = shard.engine.feed_pull(feed, 1 << 20).expect("its first message");
                assert_eq!((said.compacted, said.events.len()), (Some(last), 0));
            }
        }
        // A client that read the key at the etcd changes it here.
        let unchanged = compare(B, CompareTarget::Mod(kept.get()), CompareResult::Equal);
        let answer = shard.engine.apply(NOW, txn(vec![unchanged.clone()], vec![put(B, "3")], vec![]));
        assert!(succeeded(&answer.expect("owned")));
        shard.log();
        let answer = shard.engine.apply(NOW, txn(vec![unchanged], vec![put(B, "4")], vec![]));
        assert!(!succeeded(&answer.expect("owned")));
        shard.log();
        let feed = shard.engine.feed_open(vec![prefix(PODS)], Some(last.next()));
        assert_eq!(shard.engine.feed_pull(feed, 1 << 20).expect("its first message").events.len(), 1);
        let at_last = RangeQuery { revision: Some(last), ..query(prefix(PODS)) };
        assert_eq!(shard.engine.range(&at_last).map(|answer| answer.kvs[1].mod_revision()), Ok(kept));
    }
}

/// A leg of a move with many units: a call about all of them is one record in the log, and none when it is repeated. A
/// crash leaves all of it or, before it is logged, nothing.
#[test]
fn f18_many_units_frozen_as_one_are_one_record_in_the_log() {
    const UNITS: usize = 250;
    let mut source = Kept::new(1, Durability::Fsync);
    let units: Vec<UnitMove> = (0..UNITS)
        .map(|at| UnitMove {
            id: MoveId(1),
            term: Term(1),
            unit: Unit::of_range(prefix(&format!("{PODS}{at:03}/"))),
        })
        .collect();
    source.write(&format!("{PODS}007/a"));
    let tables = |kept: &mut Kept| {
        let before = kept.log.len();
        kept.log();
        kept.log[before..].iter().filter(|logged| matches!(logged, Logged::Units(_))).count()
    };
    let together = |kept: &mut Kept, call: &dyn Fn(&mut Engine, &UnitMove)| {
        kept.engine.hold_units();
        units.iter().for_each(|by| call(&mut kept.engine, by));
        kept.engine.log_units_held();
        kept.engine.validate();
    };
    together(&mut source, &|engine, by| while !engine.unit_track(by, 8).expect("tracked").ready {});
    assert_eq!(tables(&mut source), 1);
    let freeze = |engine: &mut Engine, by: &UnitMove| _ = engine.unit_freeze(NOW, by).expect("frozen");
    together(&mut source, &freeze);
    let frozen: Vec<UnitState> = source.engine.unit_records().iter().map(|record| record.state).collect();
    assert!(frozen.iter().all(|state| matches!(state, UnitState::Frozen { .. })), "{frozen:?}");
    assert_eq!((tables(&mut source), frozen.len()), (1, UNITS));
    // The repeated call answers the same, and logs nothing.
    together(&mut source, &freeze);
    assert_eq!(tables(&mut source), 0);
    source.crash(None);
    together(&mut source, &freeze);
    assert_eq!(tables(&mut source), 0);
    let again: Vec<UnitState> = source.engine.unit_records().iter().map(|record| record.state).collect();
    assert_eq!(again, frozen);
    // Each unit is fenced for itself.
    let stale = UnitMove { term: Term(0), ..units[3].clone() };
    source.engine.hold_units();
    let refused = source.engine.unit_release(&stale, Epoch(5));
    assert!(matches!(refused, Err(UnitError::StaleTerm { .. })), "{refused:?}");
    source.engine.unit_release(&units[4], Epoch(5)).expect("frozen");
    source.engine.log_units_held();
    assert_eq!(tables(&mut source), 1);
    source.crash(None);
    let states: Vec<UnitState> = source.engine.unit_records().iter().map(|record| record.state).collect();
    assert_eq!((states[3], states[4]), (frozen[3], UnitState::Gone));
}

/// The coordinator repeats its last import, and the first one arrives after the decision: the unit can be opened.
#[test]
fn r15_a_late_import_of_an_attempt_does_not_undo_its_seal() {
    let (mut source, mut target) = shards(Durability::Fsync);
    source.write(A);
    let last = copy(&mut source, &mut target, &by(1, 1));
    target.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
    for restarts in [false, true] {
        if restarts {
            target.log();
            target.crash(None);
        }
        let late = target.engine.unit_import(&by(1, 1), Import { through: Some(last), ..Import::default() });
        assert_eq!(late, Ok(last));
        assert_eq!(target.state(), Some(UnitState::Following { through: last, sealed: Some(last) }));
    }
    target.engine.unit_open(&by(1, 1), Epoch(7)).expect("sealed");
    assert_eq!(target.list(), [A]);
}

/// Seed 5095 of the simulation: the target is younger than the unit's history, which is whole after a restart too.
#[test]
fn r10_a_unit_keeps_its_history_from_before_its_store_began() {
    let mut source = Kept::new(1, Durability::Fsync);
    let first = source.write(A);
    source.write(A);
    let mut target = Kept::began_at(2, Durability::Fsync, WallMicros(NOW.0 + 1_000));
    let last = copy(&mut source, &mut target, &by(1, 1));
    target.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
    source.engine.unit_release(&by(1, 1), Epoch(7)).expect("frozen");
    target.engine.unit_open(&by(1, 1), Epoch(7)).expect("sealed");
    for _ in 0..2 {
        let at = RangeQuery { revision: Some(first), ..query(prefix(PODS)) };
        assert_eq!(keys(&target.engine.range(&at).expect("the unit's floor is lower")), [A]);
        target.crash(None);
    }
}

/// Seed 458 of the simulation: a store that only follows takes nothing over from another store's clock (R3).
#[test]
fn r3_the_floor_of_a_unit_that_was_given_away_does_not_raise_the_clock() {
    let (mut source, mut target) = shards(Durability::Fsync);
    source.write(A);
    let last = copy(&mut source, &mut target, &by(1, 1));
    target.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
    source.engine.unit_release(&by(1, 1), Epoch(7)).expect("frozen");
    // The new owner has restarted with a clock that is far ahead. The former one follows it, and drops its copy.
    let ahead = Revision(last.get() + (3_600_000_000 << 10));
    source
        .engine
        .unit_import(&by(1, 2), Import { floor: Some(ahead), ..Import::default() })
        .expect("it follows");
    source.engine.unit_drop(&by(1, 2), Epoch(7)).expect("not owned");
    source.crash(None);
    assert!(source.engine.last_revision() < ahead, "{:?}", source.engine.last_revision());
}

/// A coordinator dies between seal and decision: when the attempt is given up, the target answers for its own part
/// again and does not wait for the next coordinator's import.
#[test]
fn f22_a_target_whose_attempt_was_given_up_serves_its_own_part() {
    let (mut source, mut target) = shards(Durability::Fsync);
    source.write(A);
    // The target owns a part of the Kind already.
    let [given, own] = [prefix("/registry/pods/a"), prefix("/registry/pods/b")];
    target.write(B);
    let by = |term| UnitMove { id: MoveId(1), term: Term(term), unit: Unit::of_range(given.clone()) };
    let last = copy(&mut source, &mut target, &by(1));
    target.engine.unit_seal(NOW, &by(1), last).expect("all is there");
    target.log();
    let all = prefix(PODS);
    assert!(target.engine.owns(std::slice::from_ref(&all), Some(Epoch(1))).is_err(), "it is being decided");
    // The attempt is given up with a new term.
    target.engine.unit_unseal(&by(2)).expect("sealed");
    target.log();
    target.engine.owns(&[all, own], Some(Epoch(1))).expect("its own part");
    assert_eq!(target.list(), [B]);
    let again = UnitState::Following { through: last, sealed: None };
    assert_eq!(target.state(), Some(again));
    // The dead coordinator's seal comes too late, and a repeated unseal changes nothing.
    let late = target.engine.unit_seal(NOW, &by(1), last);
    assert!(matches!(late, Err(UnitError::StaleTerm { .. })), "{late:?}");
    target.engine.unit_unseal(&by(2)).expect("nothing to do");
    // The next attempt is decided; then there is no seal to take back, at either store.
    target.engine.unit_seal(NOW, &by(3), last).expect("all is there");
    source.engine.unit_release(&by(3), Epoch(7)).expect("frozen");
    target.engine.unit_open(&by(3), Epoch(7)).expect("sealed");
    let before = (source.state(), target.state());
    source.engine.unit_unseal(&by(3)).expect("nothing to do");
    // A coordinator that does not know of the decision must not let the former owner serve.
    let opened = target.engine.unit_unseal(&by(3));
    assert!(matches!(opened, Err(UnitError::State { call: "Unseal", .. })), "{opened:?}");
    assert_eq!((source.state(), target.state()), before);
    target.log();
    assert_eq!(target.list(), [A, B]);
}

/// R15b: what was imported up to the switch is on the disk, whatever the log promised before; R10: nobody who has seen
/// it is told that it may be gone.
#[test]
fn r10_a_unit_that_was_taken_over_has_everything_up_to_the_switch() {
    for checkpoint in [false, true] {
        let (mut source, mut target) = shards(Durability::Buffered);
        source.write(A);
        let last = copy(&mut source, &mut target, &by(1, 1));
        target.engine.unit_seal(NOW, &by(1, 1), last).expect("all is there");
        target.engine.unit_open(&by(1, 1), Epoch(5)).expect("sealed");
        let gaps = |target: &mut Kept, start: Revision| {
            let feed = target.engine.feed_open(vec![prefix(PODS)], Some(start));
            let out = target.engine.feed_pull(feed, 1 << 20).expect("its first message");
            (out.compacted, out.gaps.last().map(|gap| gap.after))
        };
        // The log has promised nothing yet.
        target.crash(Some(Revision::ZERO));
        assert_eq!(gaps(&mut target, last.next()), (None, Some(last)), "who has seen all of it goes on");
        let written = target.write(B);
        if checkpoint {
            target.checkpoint();
        }
        target.crash(Some(Revision::ZERO));
        assert_eq!(gaps(&mut target, written.next()), (None, Some(written)));
        assert_eq!(target.list(), [A, B]);
    }
}

/// R10: a restart that finds no key beside a unit does not know whether there were any.
#[test]
fn r10_keys_beside_a_unit_that_are_all_lost_are_told_so() {
    let (mut source, mut target) = shards(Durability::None);
    let seen = target.write(C);
    let span = |start: &str, end: &str| KeyRange::Span { start: Key::from(start), end: Some(Key::from(end)) };
    let by = UnitMove { unit: Unit::of_range(span(A, C)), ..by(1, 1) };
    let last = copy(&mut source, &mut target, &by);
    target.engine.unit_seal(NOW, &by, last).expect("all is there");
    target.engine.unit_open(&by, Epoch(5)).expect("sealed");
    target.log();
    for _ in 0..2 {
        target.crash(None);
        let start = target.engine.current_all();
        for range in [single(C), span(C, "/registry/pods/d"), prefix(PODS)] {
            let feed = target.engine.feed_open(vec![range.clone()], Some(seen.next()));
            let out = target.engine.feed_pull(feed, 1 << 20).expect("its first message");
            assert_eq!(out.compacted, Some(start), "{range:?}");
        }
    }
}

/// R10: a store with a part of a ring has other keys of the same interval. What is lost of the part does not concern
/// them.
#[test]
fn r10_a_key_outside_a_part_of_a_ring_has_no_gap_of_that_part() {
    let (mut source, mut target) = shards(Durability::Buffered);
    let bucket = RingHash::V1.bucket(b"a");
    let part = UnitBuckets { prefix_len: PODS.len(), set: std::iter::once(bucket).collect() };
    assert!(part.contain(A.as_bytes()) && !part.contain(B.as_bytes()), "the keys are in two buckets");
    let by = UnitMove { unit: Unit { range: prefix(PODS), buckets: Some(part) }, ..by(1, 1) };
    let (kept, other) = (source.write(A), target.write(B));
    source.crash(Some(kept));
    let start = source.engine.current_all();
    let last = copy(&mut source, &mut target, &by);
    target.engine.unit_seal(NOW, &by, last).expect("all is there");
    target.engine.unit_open(&by, Epoch(5)).expect("sealed");
    target.log();
    for (key, gaps) in [(A, vec![Gap { after: kept, until: start }]), (B, vec![])] {
        let feed = target.engine.feed_open(vec![single(key)], Some(kept.max(other).next()));
        assert_eq!(target.engine.feed_pull(feed, 1 << 20).expect("its first message").gaps, gaps, "{key}");
    }
}

/// R10: one key is in one unit, and what is lost beside that does not concern it.
#[test]
fn r10_a_key_of_a_unit_has_the_gaps_of_that_unit_alone() {
    let (mut source, mut target) = shards(Durability::Buffered);
    target.write(C);
    let span = KeyRange::Span { start: Key::from(A), end: Some(Key::from(C)) };
    let by = UnitMove { unit: Unit::of_range(span.clone()), ..by(1, 1) };
    for _ in 0..3 {
        source.write(A);
    }
    let last = copy(&mut source, &mut target, &by);
    target.engine.unit_seal(NOW, &by, last).expect("all is there");
    target.engine.unit_open(&by, Epoch(5)).expect("sealed");
    target.crash(Some(Revision::ZERO));
    target.list();
    for (range, is_lost) in [(span, false), (single(A), false), (single(C), true), (prefix(PODS), true)] {
        let feed = target.engine.feed_open(vec![range.clone()], Some(last.next()));
        let out = target.engine.feed_pull(feed, 1 << 20).expect("its first message");
        assert_eq!(out.compacted.is_some(), is_lost, "{range:?}");
    }
}
