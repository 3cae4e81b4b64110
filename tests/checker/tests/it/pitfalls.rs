//! Published failures of etcd and similar systems, as mutations of correct histories. Each test names the check that
//! catches the failure.

use crate::support::{Flavour, PODS, World, assert_caught, from};
use kindred_checker::history::*;
use kindred_checker::{Check, Config, Key, check};

const A: &str = "/registry/pods/a";
const B: &str = "/registry/pods/b";

fn both(test: impl Fn(World)) {
    [Flavour::Etcd, Flavour::Kindred].into_iter().for_each(|flavour| test(World::new(flavour)));
}

#[test]
fn pitfall_a2_two_creates_win() {
    both(|mut world| {
        world.create(0, A, "a1");
        let second = world.create(1, A, "a2");
        // The two creates overlap in time.
        world.history.operations[second].call = world.history.operations[0].call;
        world.history.operations[second].outcome =
            Outcome::Written { header: Revision(world.header(0).0 + 1) };
        assert_caught(&world, Check::Linearizable, &[]);
    });
}

#[test]
fn pitfall_a2_reads_return_the_value_before_an_acknowledged_update_for_ever() {
    both(|mut world| {
        let first = world.put(0, A, "a1");
        let old = world.get(1, A);
        world.update(0, A, first, "a2");
        let Outcome::Read { result, .. } = world.history.operations[old].outcome.clone() else {
            panic!("a read")
        };
        for _ in 0..3 {
            let read = world.get(1, A);
            let header = world.header(read);
            world.history.operations[read].outcome = Outcome::Read { header, result: result.clone() };
        }
        assert_caught(&world, Check::Linearizable, &[Check::List]);
    });
}

#[test]
fn pitfall_a3_list_misses_a_key_created_at_or_below_its_header() {
    both(|mut world| {
        world.put(0, A, "a1");
        world.put(0, B, "b1");
        let list = world.list(1, PODS);
        if let Outcome::Read { result, .. } = &mut world.history.operations[list].outcome {
            result.kvs.pop();
            result.count = 1;
        }
        assert_caught(&world, Check::List, &[]);
    });
}

#[test]
fn pitfall_a4_compaction_drops_what_is_current_at_a_readable_revision() {
    both(|mut world| {
        world.put(0, A, "a1");
        let revision = world.put(0, B, "b1");
        world.put(0, A, "a2");
        world.run(0, Request::Compact { revision });
        let list = List { revision: Some(revision), ..List::current(KeyRange::prefix(PODS.into())) };
        let page = world.run(1, Request::List(list));
        world.assert_clean();
        if let Outcome::Read { result, .. } = &mut world.history.operations[page].outcome {
            result.kvs.remove(0);
            result.count = 1;
        }
        assert_caught(&world, Check::List, &[]);
    });
}

#[test]
fn pitfall_a5_history_in_key_order_overlapping_live_events() {
    both(|mut world| {
        world.put(0, B, "b1");
        world.put(0, A, "a1");
        let watch = world.watch(1, 1, PODS, from(1));
        world.deliver(watch);
        world.assert_clean();
        let (b, a) = (world.events(watch, 1)[0].clone(), world.events(watch, 2)[0].clone());
        world.history.watches[watch].responses.pop();
        *world.events(watch, 1) = vec![a.clone(), b];
        assert_caught(&world, Check::Ordered, &[Check::Resumable]);
        world.events(watch, 1).swap(0, 1);
        world.respond(watch, a.kv.modified, WatchBody::Events { events: vec![a], fragment: false });
        assert_caught(&world, Check::Unique, &[Check::Atomic]);
    });
}

/// A progress response overtakes an event that it covers.
fn progress_overtakes(mut world: World, manual: bool) {
    let watch = world.watch(1, 1, PODS, from(1));
    world.put(0, A, "a1");
    world.put(0, A, "a2");
    if manual {
        world.manual_progress(watch)
    } else {
        world.progress(watch)
    };
    world.assert_clean();
    world.history.watches[watch].responses.swap(2, 3);
    world.renumber(watch);
    assert_caught(&world, Check::Bookmarkable, &[]);
}

#[test]
fn pitfall_a7_periodic_progress_overtakes_events() {
    both(|world| progress_overtakes(world, false));
}

#[test]
fn pitfall_b1_15220_progress_is_not_synchronised_with_the_stream() {
    both(|world| progress_overtakes(world, true));
    // The event that the progress covers never comes, and the client resumes after the progress.
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, A, "a1");
        let promised = world.manual_progress(watch);
        let next = world.resume(watch, 2, promised.next());
        world.put(0, A, "a2");
        world.deliver(next);
        world.assert_clean();
        world.history.watches[watch].responses.remove(1);
        assert_caught(&world, Check::Reliable, &[]);
    });
}

#[test]
fn pitfall_b2_15271_watch_travels_back_in_time_after_a_reconnect() {
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, A, "a1");
        let last = world.put(0, A, "a2");
        world.deliver(watch);
        let old = world.events(watch, 1)[0].clone();
        let next = world.resume(watch, 2, last.next());
        world.put(0, A, "a3");
        world.assert_clean();
        world.respond(next, last, WatchBody::Events { events: vec![old], fragment: false });
        world.deliver(next);
        assert_caught(&world, Check::Ordered, &[Check::Unique, Check::Resumable]);
    });
    // A watch without a start continues on a member that is behind, and delivers events older than `created`.
    both(|mut world| {
        world.put(0, A, "a1");
        let watch = world.watch(1, 1, PODS, WatchOptions::default());
        world.store.cursors[watch] = Revision(1);
        world.deliver(watch);
        assert_caught(&world, Check::Bookmarkable, &[]);
    });
}

#[test]
fn pitfall_b3_17529_events_lost_on_a_starved_stream() {
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        for round in 0..30 {
            world.put(0, A, &format!("a{round}"));
        }
        world.deliver(watch);
        world.assert_clean();
        world.history.watches[watch].responses.drain(10..20);
        assert_caught(&world, Check::Reliable, &[]);
    });
}

#[test]
fn pitfall_b4_18089_event_dropped_when_compacting_a_delete() {
    // Also #19179: the watch is opened at the revision of the compaction.
    both(|mut world| {
        world.put(0, A, "a1");
        let deleted = world.delete(0, A);
        world.run(0, Request::Compact { revision: deleted });
        world.put(0, B, "b1");
        let watch = world.watch(1, 1, PODS, WatchOptions { prev_kv: false, ..from(deleted.0) });
        world.deliver(watch);
        world.assert_clean();
        world.history.watches[watch].responses.remove(1);
        assert_caught(&world, Check::Reliable, &[Check::Resumable]);
    });
}

#[test]
fn pitfall_b5_16028_restore_takes_revisions_back() {
    // kubernetes#118501: writes after the restore get revisions below those that clients have already seen.
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, A, "a1");
        world.put(0, A, "a2");
        let last = world.put(0, A, "a3");
        world.deliver(watch);
        let write = world.put(0, A, "restored");
        let next = world.resume(watch, 2, last.next());
        world.deliver(next);
        world.assert_clean();
        let shift = |revision: Revision| if revision == write { last.previous() } else { revision };
        let Outcome::Written { header } = &mut world.history.operations[3].outcome else { panic!("a put") };
        *header = shift(*header);
        world.history.watches[next].responses.truncate(1);
        assert_caught(
            &world,
            Check::Header,
            &[Check::Linearizable, Check::Log, Check::Reliable, Check::PrevKv],
        );
    });
}

#[test]
fn pitfall_b5_17780_revision_decreases_after_a_crash_during_compaction() {
    both(|mut world| {
        world.put(0, A, "a1");
        let before = world.list(0, PODS);
        world.put(0, A, "a2");
        world.delete(0, A);
        let after = world.list(1, PODS);
        world.assert_clean();
        world.history.operations[after].outcome = world.history.operations[before].outcome.clone();
        assert_caught(&world, Check::Header, &[]);
    });
}

#[test]
fn pitfall_b6_slow_watchers_delay_puts() {
    both(|mut world| {
        let second = 1_000_000_000;
        let config = Config { latency_max: Some(Nanos(second)), ..world.flavour.config() };
        world.put(0, A, "a1");
        assert!(check(&world.history, &config).is_clean());
        world.history.operations[0].returned = Nanos(2 * second);
        assert_eq!(check(&world.history, &config).checks(), [Check::Latency]);
    });
}

#[test]
fn r17_an_event_that_comes_late_is_caught_but_of_a_kind_that_was_struck() {
    let second = 1_000_000_000;
    let mut world = World::new(Flavour::Kindred);
    let before = world.watch(1, 1, PODS, from(1));
    world.put(0, A, "a1");
    let after = world.watch(1, 2, PODS, from(1));
    world.now += 2 * second;
    let config = Config { latency_max: Some(Nanos(second)), ..world.flavour.config() };
    // A watch that catches up with history delivers old events, which are not late.
    world.deliver(after);
    assert!(check(&world.history, &config).is_clean());
    world.deliver(before);
    assert_eq!(check(&world.history, &config).checks(), [Check::Latency]);
    let latency_exempt = [config.domain(&PODS.into())].into();
    assert!(check(&world.history, &Config { latency_exempt, ..config }).is_clean());
}

#[test]
fn pitfall_b11_21432_txn_with_a_range_at_an_old_revision() {
    both(|mut world| {
        let old = world.put(0, A, "a1");
        world.put(0, A, "a2");
        let range = List { revision: Some(old), ..List::current(KeyRange::prefix(PODS.into())) };
        let put = TxnOp::Put { key: B.into(), value: "b1".into(), lease: LeaseId(0) };
        let compares = vec![Compare::Version(B.into(), 0)];
        let success = vec![put, TxnOp::Range(range)];
        let txn = world.run(0, Request::Txn { compares, success, failure: Vec::new() });
        world.assert_clean();
        let now = world.store.get(&Key::from(A)).cloned().unwrap();
        if let Outcome::Txn { results, .. } = &mut world.history.operations[txn].outcome
            && let TxnResult::Range(result) = &mut results[1]
        {
            result.kvs[0] = now;
        }
        assert_caught(&world, Check::List, &[]);
    });
}

#[test]
fn pitfall_b12_a_watch_on_one_key_gets_the_keys_after_it() {
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, A, "a1");
        world.put(0, B, "b1");
        world.deliver(watch);
        world.history.watches[watch].range = KeyRange::one(A.into());
        assert_caught(&world, Check::Filter, &[]);
    });
}

/// A run against etcd 3.7.3 met this: it reads the revision for `created` after it has begun the watch.
#[test]
fn an_event_at_or_below_created_is_only_etcds() {
    both(|mut world| {
        world.put(0, A, "a1");
        let watch = world.watch(1, 1, PODS, WatchOptions::default());
        world.put(0, A, "a2");
        world.deliver(watch);
        world.history.watches[watch].responses[0].header = world.store.current(&PODS.into());
        match world.flavour {
            Flavour::Etcd => world.assert_clean(),
            Flavour::Kindred => assert_caught(&world, Check::Bookmarkable, &[]),
        }
    });
}

#[test]
fn pitfall_20221_a_watch_on_a_future_revision_gets_old_events_or_promises() {
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1_000));
        world.put(0, A, "a1");
        let old = world.store.current(&PODS.into());
        world.respond(watch, old, WatchBody::Progress { manual: true, requested: None });
        match world.flavour {
            Flavour::Etcd => world.assert_clean(),
            Flavour::Kindred => assert_caught(&world, Check::Bookmarkable, &[]),
        }
        world.history.watches[watch].responses.pop();
        world.store.cursors[watch] = Revision(1);
        world.deliver(watch);
        assert_caught(&world, Check::Resumable, &[]);
    });
}

#[test]
fn pitfall_c1_a_list_at_a_revision_answers_with_that_revision_in_the_header() {
    // kine#577: a header below a write that was acknowledged before the read, although the read itself is current.
    both(|mut world| {
        let old = world.put(0, A, "a1");
        world.put(0, A, "a2");
        let read = world.list(0, PODS);
        let Outcome::Read { header, .. } = &mut world.history.operations[read].outcome else {
            panic!("a read")
        };
        *header = old;
        assert_caught(&world, Check::Header, &[Check::List]);
    });
}

#[test]
fn pitfall_c9_e6_an_event_below_a_published_watermark() {
    // Ant Group: a new server for the range assigns revisions below those that clients have cached. Also tiflow#3075.
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, A, "a1");
        let revision = world.put(0, B, "b1");
        world.deliver(watch);
        world.respond(watch, revision.next(), WatchBody::Progress { manual: false, requested: None });
        world.assert_clean();
        let responses = &mut world.history.watches[watch].responses;
        let progress = responses.len() - 1;
        responses.swap(progress - 1, progress);
        world.renumber(watch);
        assert_caught(&world, Check::Bookmarkable, &[]);
    });
}

#[test]
fn pitfall_d1_a_map_change_restarts_a_watch_from_its_first_revision() {
    both(|mut world| {
        let watch = world.watch(1, 1, PODS, from(1));
        world.put(0, A, "a1");
        world.put(0, B, "b1");
        world.deliver(watch);
        world.store.cursors[watch] = Revision(1);
        world.deliver(watch);
        assert_caught(&world, Check::Unique, &[Check::Ordered, Check::Atomic]);
    });
}
