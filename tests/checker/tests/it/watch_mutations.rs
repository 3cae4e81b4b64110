//! Each watch check fails when it should. Each test breaks a correct history in one place.

use crate::support::{Flavour, NODES, PODS, World, assert_caught, from};
use kindred_checker::history::*;
use kindred_checker::{Check, Config, Domain, Gap, check};

/// One watch over pods from the beginning. It delivers puts of three keys, a delete, and a transaction on two keys.
fn one_watch() -> World {
    let mut world = World::new(Flavour::Kindred);
    let watch = world.watch(1, 1, PODS, from(1));
    let a = world.put(0, "/registry/pods/a", "a1");
    world.put(0, "/registry/pods/b", "b1");
    world.update(0, "/registry/pods/a", a, "a2");
    world.delete(0, "/registry/pods/b");
    let put = |key: &str, value: &str| TxnOp::Put { key: key.into(), value: value.into(), lease: LeaseId(0) };
    let success = vec![put("/registry/pods/a", "a3"), put("/registry/pods/c", "c1")];
    let compares = vec![Compare::Version("/registry/pods/c".into(), 0)];
    world.run(0, Request::Txn { compares, success, failure: Vec::new() });
    world.put(0, "/registry/pods/a", "a4");
    world.progress(watch);
    world.assert_clean();
    assert_eq!(world.with_events(0).len(), 6);
    world
}

#[test]
fn swapped_events_are_not_ordered() {
    let mut world = one_watch();
    world.history.watches[0].responses.swap(2, 3);
    world.renumber(0);
    assert_caught(&world, Check::Ordered, &[]);
}

#[test]
fn the_past_after_a_resume_is_not_ordered() {
    let mut world = one_watch();
    let start = world.store.cursors[0];
    let next = world.resume(0, 2, start);
    let old = world.history.watches[0].responses[2].clone();
    world.respond(next, old.header, old.body);
    assert_caught(&world, Check::Ordered, &[Check::Unique, Check::Resumable]);
}

#[test]
fn a_duplicate_is_not_unique() {
    let mut world = one_watch();
    let copy = world.history.watches[0].responses[2].clone();
    world.history.watches[0].responses.insert(3, copy);
    world.renumber(0);
    assert_caught(&world, Check::Unique, &[Check::Atomic]);
}

#[test]
fn a_duplicate_within_one_response_is_not_unique() {
    let mut world = one_watch();
    let copy = world.events(0, 2)[0].clone();
    world.events(0, 2).push(copy);
    assert_caught(&world, Check::Unique, &[]);
}

#[test]
fn a_split_revision_is_not_atomic() {
    for fragment in [false, true] {
        let mut world = one_watch();
        let split = world.with_events(0).into_iter().find(|index| world.event_count(*index) == 2).unwrap();
        let second = world.events(0, split).pop().unwrap();
        let mut rest = world.history.watches[0].responses[split].clone();
        rest.body = WatchBody::Events { events: vec![second], fragment: false };
        if let WatchBody::Events { fragment: more, .. } = &mut world.history.watches[0].responses[split].body
        {
            *more = fragment;
        }
        world.history.watches[0].responses.insert(split + 1, rest);
        world.renumber(0);
        // Neither two responses nor fragments without the option may split a revision.
        assert_caught(&world, Check::Atomic, &[]);
        world.history.watches[0].options.fragment = true;
        assert_eq!(world.check().is_clean(), fragment);
    }
}

#[test]
fn half_a_transaction_is_not_atomic() {
    let mut world = one_watch();
    let split = world.with_events(0).into_iter().find(|index| world.event_count(*index) == 2).unwrap();
    world.events(0, split).pop();
    assert_caught(&world, Check::Atomic, &[Check::Reliable]);
}

#[test]
fn a_dropped_event_is_not_reliable() {
    for dropped in 1..6 {
        let mut world = one_watch();
        let index = world.with_events(0)[dropped];
        world.history.watches[0].responses.remove(index);
        assert_caught(&world, Check::Reliable, &[]);
    }
}

#[test]
fn the_event_of_an_unknown_write_that_another_watch_saw_is_required() {
    let mut world = World::new(Flavour::Etcd);
    let watches = [world.watch(1, 1, PODS, from(1)), world.watch(2, 2, PODS, from(1))];
    let request = Request::Put { key: "/registry/pods/a".into(), value: "a1".into(), lease: LeaseId(0) };
    world.run_unknown(0, request, true);
    world.put(0, "/registry/pods/b", "b1");
    watches.into_iter().for_each(|watch| world.deliver(watch));
    world.assert_clean();
    assert_eq!(world.check().counts.unknown_visible, 1);
    world.history.watches[1].responses.remove(1);
    assert_caught(&world, Check::Reliable, &[Check::Resumable]);
}

#[test]
fn a_gap_between_a_watch_and_its_resume_is_not_reliable() {
    let mut world = World::new(Flavour::Kindred);
    let watch = world.watch(1, 1, PODS, from(1));
    world.put(0, "/registry/pods/a", "a1");
    world.deliver(watch);
    world.put(0, "/registry/pods/a", "a2");
    let start = world.store.current(&PODS.into()).next();
    let next = world.resume(watch, 2, start);
    world.put(0, "/registry/pods/a", "a3");
    world.deliver(next);
    assert_caught(&world, Check::Reliable, &[]);
}

#[test]
fn a_watch_that_does_not_begin_at_its_start_is_not_resumable() {
    let mut world = one_watch();
    world.history.watches[0].responses.remove(1);
    assert_caught(&world, Check::Resumable, &[Check::Reliable]);
}

#[test]
fn events_below_the_start_are_not_resumable() {
    let mut world = one_watch();
    let late = world.events(0, 2)[0].kv.modified;
    world.history.watches[0].options.start = Some(late);
    assert_caught(&world, Check::Resumable, &[]);
}

#[test]
fn a_start_that_was_not_compacted_is_not_refused() {
    let mut world = one_watch();
    world.run(0, Request::Compact { revision: Revision(21) });
    let watch = world.watch(1, 2, PODS, from(20));
    let canceled = |at| WatchBody::Canceled { compact_revision: Revision(at), reason: "compacted".into() };
    world.respond(watch, Revision(30), canceled(21));
    world.assert_clean();
    world.history.watches[watch].responses[1].body = canceled(20);
    assert_caught(&world, Check::Resumable, &[]);
}

#[test]
fn a_watch_is_canceled_as_compacted_only_below_a_compaction() {
    let canceled = WatchBody::Canceled { compact_revision: Revision(1_000_000), reason: "compacted".into() };
    for (compacted, is_true) in [(None, false), (Some(0), false), (Some(1), false), (Some(2), true)] {
        let mut world = one_watch();
        let last = world.history.watches[0].responses.last().unwrap().header;
        if let Some(above) = compacted {
            // The watch needs the revision after its last progress. A compaction there removes nothing that it needs.
            world.run(0, Request::Compact { revision: Revision(last.0 + above) });
        }
        world.respond(0, last, canceled.clone());
        if is_true {
            world.assert_clean();
        } else {
            assert_caught(&world, Check::Compacted, &[]);
        }
    }
    // A compaction that is requested after the cancel does not explain it.
    let mut world = one_watch();
    let last = world.history.watches[0].responses.last().unwrap().header;
    world.respond(0, last, canceled);
    world.run(0, Request::Compact { revision: Revision(last.0 + 2) });
    assert_caught(&world, Check::Compacted, &[]);
}

#[test]
fn a_watch_is_canceled_in_a_gap_that_lost_something() {
    let mut world = one_watch();
    let last = world.history.watches[0].responses.last().unwrap().header;
    let compact_revision = Revision(last.0 + 50);
    world.respond(0, last, WatchBody::Canceled { compact_revision, reason: "compacted".into() });
    let gap = |domain: &str, durable: i64, restart: i64| {
        let domain = Domain(domain.into());
        let gap = Gap { domain, durable: Revision(durable), restart: Revision(restart) };
        check(&world.history, &Config { gaps: vec![gap], ..world.flavour.config() }).is_clean()
    };
    let domain = PODS;
    assert!(gap(domain, last.0, last.0 + 50));
    assert!(!gap(NODES, last.0, last.0 + 50), "another Kind's");
    assert!(!gap(domain, last.0 - 2, last.0 + 1), "it stands behind the gap");
    assert!(!gap(domain, last.0 + 48, last.0 + 50), "nothing lies in the gap");
}

#[test]
fn a_progress_above_what_was_delivered_is_caught_by_what_is_missing() {
    let mut world = one_watch();
    world.put(0, "/registry/pods/z", "z1");
    let current = world.store.current(&PODS.into());
    world.respond(0, current, WatchBody::Progress { manual: false, requested: None });
    assert_caught(&world, Check::Reliable, &[]);
}

#[test]
fn a_progress_below_an_event_is_not_bookmarkable() {
    let mut world = one_watch();
    let last = world.history.watches[0].responses.last_mut().unwrap();
    last.header = last.header.previous();
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn a_progress_that_goes_back_is_not_bookmarkable() {
    let mut world = one_watch();
    let last = world.history.watches[0].responses.last().unwrap().clone();
    world.respond(0, Revision(last.header.0 + 5), last.body.clone());
    world.respond(0, Revision(last.header.0 + 2), last.body);
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn a_manual_progress_speaks_for_every_watch_of_the_stream() {
    let mut world = World::new(Flavour::Kindred);
    let watches = [world.watch(1, 1, PODS, from(1)), world.watch(1, 1, PODS, from(1))];
    world.put(0, "/registry/pods/a", "a1");
    world.manual_progress(watches[0]);
    world.assert_clean();
    // The second watch gets its event after the progress, which was recorded with the first watch.
    let sequence = world.history.watches[0].responses[2].sequence;
    world.history.watches[1].responses[1].sequence = sequence + 1;
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn a_manual_progress_below_an_event_of_another_watch_of_the_stream() {
    let mut world = World::new(Flavour::Kindred);
    let watches = [world.watch(1, 1, PODS, from(1)), world.watch(1, 1, PODS, from(1))];
    world.put(0, "/registry/pods/a", "a1");
    world.deliver(watches[1]);
    let below = world.store.current(&PODS.into()).previous();
    world.respond(watches[0], below, WatchBody::Progress { manual: true, requested: None });
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn a_manual_progress_below_what_was_acknowledged_before_the_request() {
    let mut world = one_watch();
    let header = world.store.current(&PODS.into());
    world.put(0, "/registry/pods/z", "z1");
    world.now += 10;
    let requested = Some(Nanos(world.now));
    world.respond(0, header, WatchBody::Progress { manual: true, requested });
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn created_is_a_promise_for_a_watch_without_start() {
    let mut world = World::new(Flavour::Kindred);
    let watch = world.watch(1, 1, PODS, WatchOptions::default());
    world.put(0, "/registry/pods/a", "a1");
    world.deliver(watch);
    world.assert_clean();
    let first = world.events(watch, 1)[0].kv.modified;
    world.history.watches[watch].responses[0].header = first;
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn prev_kv_is_the_version_before() {
    let breaks: [fn(&mut Event); 6] = [
        |event| event.prev_kv = None,
        |event| event.prev_kv.as_mut().unwrap().value = "b1".into(),
        |event| event.prev_kv.as_mut().unwrap().modified = event.kv.modified,
        |event| event.prev_kv.as_mut().unwrap().version += 1,
        |event| event.prev_kv.as_mut().unwrap().create.0 += 1,
        |event| event.prev_kv.as_mut().unwrap().key = "/registry/pods/b".into(),
    ];
    for change in breaks {
        let mut world = one_watch();
        change(&mut world.events(0, 3)[0]);
        assert_caught(&world, Check::PrevKv, &[]);
    }
}

#[test]
fn prev_kv_of_a_delete_and_of_a_create() {
    let mut world = one_watch();
    world.events(0, 4)[0].prev_kv.as_mut().unwrap().value = "a1".into();
    assert_caught(&world, Check::PrevKv, &[]);
    let mut world = one_watch();
    let other = world.events(0, 3)[0].prev_kv.clone();
    world.events(0, 1)[0].prev_kv = other;
    assert_caught(&world, Check::PrevKv, &[]);
}

#[test]
fn prev_kv_that_nobody_asked_for() {
    let mut world = one_watch();
    world.history.watches[0].options.prev_kv = false;
    assert_caught(&world, Check::PrevKv, &[]);
}

#[test]
fn prev_kv_may_be_compacted_in_etcd_only() {
    for flavour in [Flavour::Etcd, Flavour::Kindred] {
        let mut world = World::new(flavour);
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, "/registry/pods/a", "a1");
        let revision = world.put(0, "/registry/pods/a", "a2");
        world.run(0, Request::Compact { revision });
        world.deliver(watch);
        world.events(watch, 2)[0].prev_kv = None;
        assert_eq!(world.check().is_clean(), flavour == Flavour::Etcd);
    }
}

#[test]
fn prev_kv_may_begin_late_in_etcd_only() {
    for (flavour, response, clean) in
        [(Flavour::Etcd, 1, true), (Flavour::Etcd, 2, false), (Flavour::Kindred, 1, false)]
    {
        let mut world = World::new(flavour);
        let created = world.put(0, "/registry/pods/a", "a1");
        let watch = world.watch(1, 1, PODS, from(created.next().0));
        world.put(0, "/registry/pods/a", "a2");
        world.put(0, "/registry/pods/a", "a3");
        world.deliver(watch);
        world.events(watch, response)[0].prev_kv = None;
        assert_eq!(world.check().is_clean(), clean, "response {response}");
    }
}

/// A run against a real etcd: the event that was under way when the client cancelled came without.
#[test]
fn prev_kv_may_end_early_in_etcd_only() {
    for (flavour, lacks, canceled, clean) in [
        (Flavour::Etcd, 3, true, true),
        (Flavour::Etcd, 2, true, false),
        (Flavour::Etcd, 3, false, false),
        (Flavour::Kindred, 3, true, false),
    ] {
        let mut world = World::new(flavour);
        let created = world.put(0, "/registry/pods/a", "a1");
        let watch = world.watch(1, 1, PODS, from(created.next().0));
        let values = ["a2", "a3", "a4"];
        let last = values.map(|value| world.put(0, "/registry/pods/a", value))[2];
        world.deliver(watch);
        world.events(watch, lacks)[0].prev_kv = None;
        if canceled {
            let none = WatchBody::Canceled { compact_revision: Revision(0), reason: String::new() };
            world.respond(watch, last, none);
        }
        assert_eq!(world.check().is_clean(), clean, "{lacks} {canceled}");
    }
}

#[test]
fn filtered_kinds_and_foreign_keys() {
    let mut world = one_watch();
    world.history.watches[0].options.no_delete = true;
    assert_caught(&world, Check::Filter, &[]);
    let mut world = one_watch();
    // B12: a watch on one key delivers events of the keys after it.
    world.history.watches[0].range = KeyRange::one("/registry/pods/a".into());
    assert_caught(&world, Check::Filter, &[]);
}

#[test]
fn is_create_is_create_revision_equal_mod_revision() {
    let mut world = one_watch();
    world.events(0, 1)[0].kv.version = 2;
    assert_caught(&world, Check::IsCreate, &[Check::Log, Check::PrevKv]);
    let mut world = one_watch();
    let modified = world.events(0, 3)[0].kv.modified;
    world.events(0, 3)[0].kv.create = modified;
    assert_caught(&world, Check::IsCreate, &[Check::Log, Check::PrevKv]);
    let mut world = one_watch();
    world.events(0, 4)[0].kv.version = 1;
    assert_caught(&world, Check::IsCreate, &[]);
}

#[test]
fn an_empty_value_is_not_a_delete() {
    // A8
    let mut world = World::new(Flavour::Kindred);
    let watch = world.watch(1, 1, PODS, from(1));
    world.put(0, "/registry/pods/a", "");
    world.deliver(watch);
    world.assert_clean();
    let event = &mut world.events(watch, 1)[0];
    (event.kind, event.kv.create, event.kv.version) = (EventKind::Delete, Revision(0), 0);
    assert_caught(&world, Check::Log, &[Check::PrevKv]);
}

#[test]
fn an_event_of_another_content_contradicts_the_write() {
    let mut world = one_watch();
    world.events(0, 2)[0].kv.value = "other".into();
    assert_caught(&world, Check::Log, &[]);
}

#[test]
fn an_event_that_nobody_wrote() {
    let mut world = one_watch();
    let mut ghost = world.events(0, 6)[0].clone();
    let before = ghost.kv.clone();
    (ghost.kv.modified, ghost.kv.version) = (Revision(before.modified.0 + 50), before.version + 1);
    ghost.prev_kv = Some(before);
    let header = ghost.kv.modified;
    world.respond(0, header, WatchBody::Events { events: vec![ghost], fragment: false });
    assert_caught(&world, Check::Log, &[]);
}

#[test]
fn a_write_that_failed_definitely_and_yet_ran() {
    // R11: an error hides an executed write.
    let mut world = one_watch();
    let index =
        world.history.operations.iter().position(|o| matches!(o.request, Request::Put { .. })).unwrap();
    world.history.operations[index].outcome = Outcome::Failed(DefiniteError::Other("unavailable".into()));
    assert_caught(&world, Check::Log, &[Check::Linearizable]);
}

#[test]
fn an_unknown_write_that_ran_twice() {
    // R11: the write was sent again after its answer was lost.
    let mut world = World::new(Flavour::Etcd);
    let watch = world.watch(1, 1, PODS, from(1));
    let request = Request::Put { key: "/registry/pods/a".into(), value: "a1".into(), lease: LeaseId(0) };
    world.run_unknown(0, request.clone(), true);
    world.store.run(&request);
    world.deliver(watch);
    assert_caught(&world, Check::Log, &[]);
}
