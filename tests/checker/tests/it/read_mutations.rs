//! The checks of lists, headers and linearizability fail when they should.

use crate::support::{Flavour, NODES, PODS, World, assert_caught, from};
use kindred_checker::history::*;
use kindred_checker::{Check, Config, Gap, HeaderScope, check};

const A: &str = "/registry/pods/a";

fn result(world: &mut World, index: usize) -> &mut ReadResult {
    match &mut world.history.operations[index].outcome {
        Outcome::Read { result, .. } => result,
        other => panic!("no read: {other:?}"),
    }
}

fn set_header(world: &mut World, index: usize, to: Revision) {
    match &mut world.history.operations[index].outcome {
        Outcome::Read { header, .. } | Outcome::Written { header } => *header = to,
        other => panic!("no header to change: {other:?}"),
    }
}

/// A world with three pods and a list of all, and the index of the list.
fn listed() -> (World, usize) {
    let mut world = World::new(Flavour::Kindred);
    let a = world.put(0, A, "a1");
    world.put(0, "/registry/pods/b", "b1");
    world.put(0, "/registry/pods/c", "c1");
    world.update(0, A, a, "a2");
    let list = world.list(1, PODS);
    world.assert_clean();
    (world, list)
}

#[test]
fn a_list_is_the_state_at_its_header() {
    let breaks: [fn(&mut ReadResult); 7] = [
        |r| r.count += 1,
        |r| r.more = true,
        |r| r.kvs[1].value = "a1".into(),
        |r| r.kvs[0].modified = r.kvs[0].create,
        |r| r.kvs.swap(0, 1),
        |r| drop(r.kvs.pop()),
        |r| r.kvs[2].key = "/registry/zzz".into(),
    ];
    for change in breaks {
        let (mut world, list) = listed();
        change(result(&mut world, list));
        assert_caught(&world, Check::List, &[Check::Log]);
    }
}

#[test]
fn a_deleted_key_is_not_listed() {
    let (mut world, list) = listed();
    let kvs = result(&mut world, list).kvs.clone();
    world.delete(0, A);
    let again = world.list(1, PODS);
    world.assert_clean();
    *result(&mut world, again) = ReadResult { kvs, more: false, count: 3 };
    assert_caught(&world, Check::List, &[]);
}

#[test]
fn pages_of_one_revision_are_one_state() {
    let (mut world, list) = listed();
    let revision = Some(world.header(list));
    world.put(0, "/registry/pods/b", "b2");
    let range = KeyRange { key: "/registry/pods/a\0".into(), ..KeyRange::prefix(PODS.into()) };
    let page = world.run(1, Request::List(List { revision, limit: 1, ..List::current(range) }));
    world.assert_clean();
    assert!(result(&mut world, page).more && result(&mut world, page).count == 2);
    let newer = world.store.get(&"/registry/pods/b".into()).unwrap().clone();
    result(&mut world, page).kvs[0] = newer;
    assert_caught(&world, Check::List, &[]);
}

#[test]
fn a_read_above_its_header() {
    let (mut world, _) = listed();
    let revision = Some(Revision(world.store.current(&PODS.into()).0 + 5));
    world.run(1, Request::List(List { revision, ..List::current(KeyRange::prefix(PODS.into())) }));
    assert_caught(&world, Check::List, &[]);
}

#[test]
fn a_wrong_count_of_a_deleted_range() {
    let (mut world, _) = listed();
    let range = KeyRange::prefix("/registry/pods/".into());
    let index = world.run(0, Request::DeleteRange { range });
    let watch = world.watch(3, 9, PODS, from(1));
    world.deliver(watch);
    world.assert_clean();
    if let Outcome::Deleted { deleted, .. } = &mut world.history.operations[index].outcome {
        *deleted = 1;
    }
    assert_caught(&world, Check::Log, &[]);
}

#[test]
fn a_list_below_an_acknowledged_write_is_stale() {
    let (mut world, list) = listed();
    let before = world.history.operations[list].clone();
    world.put(0, "/registry/pods/b", "b2");
    let again = world.list(2, PODS);
    world.history.operations[again].outcome = before.outcome;
    assert_caught(&world, Check::Header, &[]);
}

#[test]
fn a_write_at_or_below_a_list_before_it() {
    // A write after a list at R gets a revision at or below R, so a watch from R+1 never delivers it.
    let (mut world, list) = listed();
    let last = world.put(0, "/registry/pods/z", "z1");
    set_header(&mut world, list, last);
    assert_caught(&world, Check::Header, &[Check::List]);
}

#[test]
fn one_client_is_never_shown_less() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    world.put(0, "/registry/pods/b", "b1");
    let first = world.get(1, A);
    let second = world.get(1, A);
    let old = world.header(second).previous();
    set_header(&mut world, second, old);
    assert!(old < world.header(first));
    assert_caught(&world, Check::Header, &[Check::Linearizable]);
    // Another client, at another router, may get a lower header for a key that did not change.
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    world.put(0, "/registry/pods/b", "b1");
    let index = world.get(2, A);
    set_header(&mut world, index, world_header(A, &mut World::new(Flavour::Kindred)));
    world.assert_clean();
}

fn world_header(key: &str, world: &mut World) -> Revision {
    world.put(0, key, "a1")
}

#[test]
fn header_scope_global_compares_kinds() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    world.put(0, A, "a2");
    world.put(1, "/registry/minions/n", "n1");
    world.list(0, NODES);
    world.assert_clean();
    let global = Config { header_scope: HeaderScope::Global, ..world.flavour.config() };
    assert!(check(&world.history, &global).has(Check::Header));
}

#[test]
fn a_probe_speaks_for_its_kind() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    let last = world.put(0, "/registry/pods/b", "b1");
    let probe = world.get(1, "/registry/pods");
    world.assert_clean();
    set_header(&mut world, probe, last.previous());
    assert_caught(&world, Check::Header, &[]);
}

#[test]
fn writes_of_a_key_increase() {
    let mut world = World::new(Flavour::Kindred);
    let first = world.put(0, A, "a1");
    world.put(0, A, "a2");
    set_header(&mut world, 1, first.previous());
    assert_caught(&world, Check::Header, &[Check::Linearizable]);
}

#[test]
fn a_header_that_is_not_the_stored_revision() {
    // "A successful Txn answers with the revision that it assigned, however far the clock has moved since."
    let mut world = World::new(Flavour::Kindred);
    let revision = world.put(0, A, "a1");
    world.get(0, A);
    set_header(&mut world, 0, Revision(revision.0 - 1));
    assert_caught(&world, Check::Log, &[Check::List, Check::Linearizable]);
}

#[test]
fn a_stale_read_is_not_linearizable() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    let old = world.get(1, A);
    world.put(0, A, "a2");
    let read = world.get(2, A);
    world.assert_clean();
    world.history.operations[read].outcome = world.history.operations[old].outcome.clone();
    assert_caught(&world, Check::Linearizable, &[Check::Header]);
    // The old content under a fresh header.
    let header = world.store.current(&PODS.into());
    set_header(&mut world, read, header);
    assert_caught(&world, Check::Linearizable, &[Check::List]);
}

#[test]
fn the_failing_part_is_short() {
    let mut world = World::new(Flavour::Kindred);
    for round in 0..200 {
        world.put(0, A, &format!("a{round}"));
        world.get(1, A);
    }
    let last = world.history.operations.len() - 1;
    let stale = world.history.operations[last - 4].outcome.clone();
    world.history.operations[last].outcome = stale;
    let report = world.check();
    let violation = report.violations.iter().find(|v| v.check == Check::Linearizable).unwrap();
    assert!(violation.evidence.len() <= 4, "{report}");
}

#[test]
fn a_lost_update_is_not_linearizable() {
    let mut world = World::new(Flavour::Kindred);
    let first = world.put(0, A, "a1");
    let update = world.update(1, A, first, "a2");
    let lost = world.update(2, A, first, "a3");
    world.assert_clean();
    assert!(matches!(world.history.operations[lost].outcome, Outcome::CompareFailed { .. }));
    let header = world.header(update);
    world.history.operations[lost].outcome = Outcome::Written { header: Revision(header.0 + 1) };
    assert_caught(&world, Check::Linearizable, &[]);
}

#[test]
fn a_compare_that_failed_though_it_held() {
    let mut world = World::new(Flavour::Kindred);
    let first = world.put(0, A, "a1");
    let update = world.update(1, A, first, "a2");
    world.history.operations[update].outcome =
        Outcome::CompareFailed { header: first, current: Current::NotRead };
    assert_caught(&world, Check::Linearizable, &[]);
}

#[test]
fn a_delete_of_nothing_that_deletes() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    world.delete(0, A);
    let again = world.delete(0, A);
    world.assert_clean();
    let header = Revision(again.0 + 1);
    world.history.operations[2].outcome = Outcome::Deleted { header, deleted: 1, previous: Vec::new() };
    assert_caught(&world, Check::Linearizable, &[Check::Log]);
}

#[test]
fn an_unknown_write_may_land_late_or_never_but_once() {
    let mut world = World::new(Flavour::Kindred);
    let value = |value: &str| Request::Put { key: A.into(), value: value.into(), lease: LeaseId(0) };
    world.put(0, A, "a1");
    world.run_unknown(1, value("late"), false);
    world.run_unknown(1, value("never"), false);
    world.get(2, A);
    world.store.run(&value("late"));
    world.get(2, A);
    world.put(0, A, "a2");
    world.get(2, A);
    world.assert_clean();
    // The value of the unknown write cannot come back after another write replaced it.
    let seen = world.history.operations[4].outcome.clone();
    world.get(2, A);
    let header = world.store.current(&PODS.into());
    let Outcome::Read { result, .. } = seen else { panic!("a read") };
    let last = world.history.operations.len() - 1;
    world.history.operations[last].outcome = Outcome::Read { header, result };
    assert_caught(&world, Check::Linearizable, &[Check::List]);
}

#[test]
fn overlapping_operations_may_take_either_order() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    let old = world.get(1, A);
    world.put(2, A, "a2");
    world.get(1, A);
    // The write overlaps both reads. One shows the old value, the other the new one.
    world.history.operations[2].call = world.history.operations[old].call;
    world.history.operations[2].returned = Nanos(world.now + 10);
    world.assert_clean();
}

#[test]
fn an_expired_lease_deletes() {
    let mut world = World::new(Flavour::Kindred);
    let watch = world.watch(1, 1, PODS, from(1));
    world.run(0, Request::Put { key: A.into(), value: "a1".into(), lease: LeaseId(7) });
    world.store.run(&Request::Delete { key: A.into() });
    world.get(0, A);
    world.deliver(watch);
    world.assert_clean();
    let Request::Put { lease, .. } = &mut world.history.operations[0].request else { panic!("a put") };
    *lease = LeaseId(0);
    world.events(watch, 1)[0].kv.lease = LeaseId(0);
    world.events(watch, 2)[0].prev_kv.as_mut().unwrap().lease = LeaseId(0);
    assert_caught(&world, Check::Log, &[Check::Linearizable]);
}

#[test]
fn what_an_unclean_restart_lost_is_not_required() {
    // R10: clients saw the revisions in the gap before the restart lost them.
    let mut world = World::new(Flavour::Kindred);
    let watch = world.watch(1, 1, PODS, from(1));
    let durable = world.put(0, A, "a1");
    let lost = world.put(0, "/registry/pods/b", "b1");
    world.deliver(watch);
    world.history.watches[watch].responses.pop();
    world.put(0, "/registry/pods/c", "c1");
    let restart = world.list(0, PODS);
    let read = result(&mut world, restart);
    read.kvs.retain(|kv| kv.modified != lost);
    read.count = 2;
    assert!(world.check().has(Check::List));
    let domain = (world.flavour.config().domain)(&PODS.into());
    let gaps = vec![Gap { domain, durable, restart: lost.next() }];
    let report = check(&world.history, &Config { gaps, ..world.flavour.config() });
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.keys_undecided, 1);
}

#[test]
fn a_search_that_hits_its_bound_is_undecided() {
    let mut world = World::new(Flavour::Kindred);
    world.put(0, A, "a1");
    world.put(0, A, "a2");
    let config = Config { search_states_max: 1, ..world.flavour.config() };
    assert_eq!(check(&world.history, &config).counts.keys_undecided, 1);
}

#[test]
fn a_read_is_refused_as_compacted_only_below_a_compaction() {
    let refused = |at: Option<Revision>, compacted: Option<Revision>| {
        let mut world = World::new(Flavour::Kindred);
        world.put(0, "/registry/pods/a", "a1");
        if let Some(revision) = compacted {
            world.run(0, Request::Compact { revision });
        }
        let list = List { revision: at, ..List::current(KeyRange::prefix(PODS.into())) };
        let call = Nanos(world.now + 1);
        world.now += 10;
        world.record(1, call, Request::List(list), Outcome::Failed(DefiniteError::Compacted));
        world
    };
    let at = Revision(20);
    refused(Some(at), Some(at.next())).assert_clean();
    for (at, compacted) in [(Some(at), None), (Some(at), Some(at)), (None, Some(at))] {
        assert_caught(&refused(at, compacted), Check::Compacted, &[]);
    }
}

#[test]
fn a_compaction_is_refused_as_compacted_only_at_or_below_one() {
    for (first, second, is_true) in [(20, 20, true), (20, 19, true), (20, 21, false)] {
        let mut world = World::new(Flavour::Etcd);
        world.run(0, Request::Compact { revision: Revision(first) });
        let call = Nanos(world.now + 1);
        world.now += 10;
        let again = Request::Compact { revision: Revision(second) };
        world.record(1, call, again, Outcome::Failed(DefiniteError::Compacted));
        if is_true { world.assert_clean() } else { assert_caught(&world, Check::Compacted, &[]) }
    }
}
