//! Which stores answer for a Kind's pseudo-key, `/registry/<kind>`, while the Kind's keys move from store to store:
//! reads of it mean the Kind and are asked of every store that has a part of it; writes of it go to one store.

use crate::common::*;
use kindred_engine::{engine::*, error::EngineError, ops::*, units::*};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Slot, Term},
    key::{Key, KeyRange},
    unit::Unit,
};

const PSEUDO: &str = "/registry/pods";
const PODS: &str = "/registry/pods/";
const CUT: &str = "/registry/pods/g";
const END: &str = "/registry/pods0";

fn shard(slot: u16) -> Engine {
    engine(RevisionMode::Hlc(Slot::new(slot).expect("below 1024")))
}

fn span(start: &str, end: &str) -> Unit {
    Unit::of_range(KeyRange::Span { start: Key::from(start), end: Some(Key::from(end)) })
}

/// Moves all units of a leg with one decision.
fn leg(source: &mut Engine, target: &mut Engine, id: u64, units: &[Unit], epoch: Epoch) {
    let moves: Vec<UnitMove> =
        units.iter().map(|unit| UnitMove { id: MoveId(id), term: Term(1), unit: unit.clone() }).collect();
    for by in &moves {
        while !source.unit_track(by, 1_000).expect("tracked").ready {}
        source.unit_copy_begin(by).expect("tracked");
        let chunk = source.unit_copy(by, None, 1_000, 1 << 20).expect("a chunk");
        assert_eq!(chunk.after, None, "all at once");
        let import = Import { keys: chunk.keys, floor: Some(chunk.floor), ..Import::default() };
        while let Err(refused) = target.unit_import(by, import.clone()) {
            assert!(matches!(refused, UnitError::NotReady(_)), "{refused}");
        }
    }
    let frozen = |by: &UnitMove| source.unit_freeze(NOW, by).expect("frozen");
    let lasts: Vec<Revision> = moves.iter().map(frozen).collect();
    for (by, last) in moves.iter().zip(&lasts) {
        target.unit_import(by, Import { through: Some(*last), ..Import::default() }).expect("followed");
        target.unit_seal(NOW, by, *last).expect("sealed");
    }
    let waits = NotOwned { key: PSEUDO.into(), epoch: Epoch::NONE };
    for engine in [&mut *source, &mut *target] {
        assert_eq!(engine.owns(&[single(PSEUDO)], Some(epoch)), Err(waits.clone()), "R13: at the switch");
    }
    moves.iter().for_each(|by| source.unit_release(by, epoch).expect("released"));
    moves.iter().for_each(|by| target.unit_open(by, epoch).expect("opened"));
    for by in &moves {
        source.unit_drop(by, epoch).expect("dropped");
        target.unit_forget(by).expect("forgotten");
    }
    while source.gc(100) {}
    source.validate();
    target.validate();
}

/// Asks a store for the Kind's revision in every way in which a router does, by the map of this generation.
fn asks(engine: &mut Engine, generation: Epoch) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let probe = engine.range_by_map(&query(single(PSEUDO)), Some(generation));
    let probe = probe.map_err(|error| failed("get", &error))?;
    let at = RangeQuery { revision: Some(probe.header), ..query(single(PSEUDO)) };
    engine.range_by_map(&at, Some(generation)).map_err(|error| failed("get at a revision", &error))?;
    engine.owns(&[single(PSEUDO)], Some(generation)).map_err(|error| failed("owns", &error))?;
    let to = probe.header.next();
    let raised = engine.raise(NOW, &[single(PSEUDO)], to).map_err(|error| failed("raise", &error))?;
    assert!(raised >= to);
    let feed = engine.feed_open(vec![single(PSEUDO)], Some(raised.next()));
    engine.feed_advance(NOW, feed, raised.next());
    let out = engine.feed_pull(feed, 1_000).ok_or("a feed says nothing")?;
    engine.feed_close(feed);
    if let Some(floor) = out.compacted {
        return Err(format!("a feed from {} is compacted: {floor}", raised.next()));
    }
    let stream = engine.watch_open();
    let spec = watch(single(PSEUDO), Some(raised.next()));
    let created = engine.watch_create(stream, spec).map_err(|error| failed("watch", &error));
    engine.watch_close(stream);
    created.map(drop)
}

/// `merge pods --to b`, then `split pods --at g --to a`, of pods on a (below g, with the pseudo-key) and b.
#[test]
fn f44_a_store_that_gave_the_pseudo_key_away_still_answers_for_its_part_of_the_kind() {
    let (mut a, mut b) = (shard(1), shard(2));
    write(&mut a, put("/registry/pods/a/x", "1"));
    write(&mut b, put("/registry/pods/h/x", "1"));
    leg(&mut a, &mut b, 1, &[span(PSEUDO, "/registry/pods\0"), span(PODS, CUT)], Epoch(2));
    let moved = NotOwned { key: PSEUDO.into(), epoch: Epoch(2) };
    assert_eq!(a.owns(&[single(PSEUDO)], Some(Epoch(1))), Err(moved), "by the map before");
    leg(&mut b, &mut a, 2, &[span(CUT, END)], Epoch(3));
    assert_eq!((asks(&mut a, Epoch(3)), asks(&mut b, Epoch(3))), (Ok(()), Ok(())));
    let behind =
        a.owns(&[single(PSEUDO)], Some(Epoch(2))).expect_err("a map that does not know of the split");
    assert_eq!(behind.epoch, Epoch(3));
    // In the other direction, the owner of the pseudo-key gives away everything else of the Kind.
    leg(&mut b, &mut a, 3, &[span(PODS, CUT)], Epoch(4));
    assert_eq!((asks(&mut a, Epoch(4)), asks(&mut b, Epoch(4))), (Ok(()), Ok(())));
}

/// As a key the pseudo-key has one owner, whichever stores answer for the Kind.
#[test]
fn f44_only_its_owner_writes_a_pseudo_key() {
    let (mut a, mut b) = (shard(1), shard(2));
    write(&mut a, put("/registry/pods/a/x", "1"));
    leg(&mut a, &mut b, 1, &[span(PSEUDO, "/registry/pods\0")], Epoch(2));
    let compared = txn(
        vec![compare(PSEUDO, CompareTarget::Mod(0), CompareResult::Equal)],
        vec![put(PSEUDO, "mine")],
        vec![],
    );
    let read = txn(vec![], vec![Op::Range(query(single(PSEUDO)))], vec![]);
    for op in [put(PSEUDO, "x"), delete(PSEUDO), compared.clone(), read] {
        assert!(matches!(a.apply(NOW, op), Err(EngineError::NotOwned(_))));
    }
    assert!(
        a.owns_to_write(&single(PSEUDO), Some(Epoch(2))).is_err()
            && a.owns(&[single(PSEUDO)], Some(Epoch(2))).is_ok()
    );
    assert!(succeeded(&b.apply(NOW, compared).expect("its own")));
    b.publish();
    // Both stores can read it; only its owner has the value.
    let kvs =
        |engine: &mut Engine| engine.range_by_map(&query(single(PSEUDO)), Some(Epoch(2))).map(|a| keys(&a));
    assert_eq!((kvs(&mut a), kvs(&mut b)), (Ok(vec![]), Ok(vec![PSEUDO.to_owned()])));
    // The owner of the pseudo-key can still write it when it has none of the Kind's objects left.
    leg(&mut a, &mut b, 2, &[span(PODS, END)], Epoch(3));
    leg(&mut b, &mut a, 3, &[span(PODS, END)], Epoch(4));
    write(&mut b, put(PSEUDO, "again"));
    assert_eq!((asks(&mut a, Epoch(4)), asks(&mut b, Epoch(4))), (Ok(()), Ok(())));
}

/// A store does not answer for a Kind of which it has no part.
#[test]
fn f44_a_store_without_any_part_of_the_kind_refuses() {
    let (mut a, mut b) = (shard(1), shard(2));
    write(&mut a, put("/registry/pods/a/x", "1"));
    leg(&mut a, &mut b, 1, &[span(PSEUDO, "/registry/pods\0"), span(PODS, CUT)], Epoch(2));
    leg(&mut a, &mut b, 2, &[span(CUT, END)], Epoch(3));
    let refused = |generation| a.owns(&[single(PSEUDO)], generation).map_err(|refused| refused.epoch);
    assert_eq!([refused(Some(Epoch(2))), refused(Some(Epoch(3))), refused(None)], [Err(Epoch(3)); 3]);
    assert_eq!(asks(&mut b, Epoch(3)), Ok(()));
}
