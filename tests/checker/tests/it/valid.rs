//! Correct histories pass, and the checks really examine them.

use crate::support::{Flavour, Rng, World, busy, from};
use kindred_checker::check;
use kindred_checker::history::{
    Compare, History, KeyRange, LeaseId, Nanos, Operation, Outcome, Request, TxnOp,
};

#[test]
fn correct_histories_pass() {
    for flavour in [Flavour::Etcd, Flavour::Kindred] {
        for seed in 0..40 {
            let world = busy(flavour, seed, 250);
            let report = world.check();
            assert!(report.is_clean(), "seed {seed}\n{report}");
            let counts = &report.counts;
            assert_eq!(counts.keys_undecided, 0, "{report}");
            assert!(counts.events > 50 && counts.progress > 10 && counts.reads > 30, "{report}");
            assert!(
                counts.unknown_visible > 0 && counts.resumes > 0 && counts.keys_linearizable > 5,
                "{report}"
            );
        }
    }
}

#[test]
fn a_stored_history_gives_the_same_report() {
    let world = busy(Flavour::Kindred, 3, 200);
    let text = world.history.to_json_lines().unwrap();
    let read = History::from_json_lines(&text).unwrap();
    assert!(read == world.history);
    assert_eq!(check(&read, &world.flavour.config()), world.check());
    assert!(History::from_json_lines("{}").unwrap_err().to_string().starts_with("line 1"));
}

/// Longer operations allow more orders, so a correct history stays correct when its operations overlap.
#[test]
fn correct_histories_pass_when_operations_overlap() {
    for flavour in [Flavour::Etcd, Flavour::Kindred] {
        for seed in 0..20 {
            let mut world = busy(flavour, seed, 250);
            let mut rng = Rng(seed);
            for operation in &mut world.history.operations {
                operation.call = Nanos(operation.call.0.saturating_sub(rng.below(200)));
                operation.returned = Nanos(operation.returned.0 + rng.below(200));
            }
            let report = world.check();
            assert!(report.is_clean(), "seed {seed}\n{report}");
            assert_eq!(report.counts.keys_undecided, 0, "seed {seed}\n{report}");
        }
    }
}

/// Every watch ends with a promise or is continued, so the loss of any response with events is caught.
#[test]
fn any_lost_response_is_caught() {
    for flavour in [Flavour::Etcd, Flavour::Kindred] {
        for seed in 0..40 {
            let mut world = busy(flavour, seed, 150);
            let mut rng = Rng(seed * 7 + 1);
            let watch = rng.below(world.history.watches.len() as u64) as usize;
            let responses = world.with_events(watch);
            let Some(&lost) = responses.get(rng.below(responses.len().max(1) as u64) as usize) else {
                continue;
            };
            let lost = world.history.watches[watch].responses.remove(lost);
            let report = world.check();
            assert!(report.has(kindred_checker::Check::Reliable), "seed {seed}: {lost:?}\n{report}");
        }
    }
}

#[test]
fn a_long_history_is_checked_in_reasonable_time() {
    let world = busy(Flavour::Kindred, 11, 8_000);
    let report = world.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.keys_undecided, 0, "{report}");
}

/// A Txn whose answer was lost ran on all its keys if a read of one key shows its write. So it also ran on the key that
/// nobody read before the next write.
#[test]
fn a_lost_txn_seen_on_one_key_explains_what_was_not_seen_on_another() {
    let (one, other) = ("/registry/pods/a", "/registry/pods/b");
    let put = |key: &str| TxnOp::Put { key: key.into(), value: "lost".into(), lease: LeaseId(0) };
    for flavour in [Flavour::Etcd, Flavour::Kindred] {
        let mut world = World::new(flavour);
        world.put(0, one, "1");
        world.put(0, other, "2");
        let success = vec![put(one), put(other)];
        let compares = vec![Compare::Version(one.into(), 1)];
        world.run_unknown(1, Request::Txn { compares, success, failure: Vec::new() }, true);
        world.get(0, one);
        // The version of this write is one above that of the lost write.
        world.put(0, other, "3");
        world.get(0, other);
        world.assert_clean();
    }
}

/// The header of a DeleteRange over several stores is the highest revision at which it deleted a key.
#[test]
fn a_delete_range_over_stores_deletes_at_several_revisions() {
    for previous_asked_for in [true, false] {
        let mut world = World::new(Flavour::Kindred);
        let watch = world.watch(0, 0, "/registry/pods/a", from(1));
        world.put(1, "/registry/pods/a", "1");
        world.put(1, "/registry/pods/b", "2");
        let index = world.list(1, "/registry/pods/");
        let Outcome::Read { result, .. } = world.history.operations[index].outcome.clone() else { panic!() };
        let first = world.delete(1, "/registry/pods/a");
        let second = world.delete(1, "/registry/pods/b");
        world.deliver(watch);
        world.create(1, "/registry/pods/b", "3");
        world.list(1, "/registry/pods/");
        // One DeleteRange replaces the two recorded deletes.
        let deletes = |operation: &Operation| matches!(operation.request, Request::Delete { .. });
        let called = world.history.operations.iter().find(|operation| deletes(operation)).unwrap().call;
        world.history.operations.retain(|operation| !deletes(operation));
        assert!(first < second);
        let range = KeyRange::prefix("/registry/pods/".into());
        let previous = if previous_asked_for { result.kvs } else { Vec::new() };
        let outcome = Outcome::Deleted { header: second, deleted: 2, previous };
        world.record(1, called, Request::DeleteRange { range }, outcome);
        world.assert_clean();
    }
}
