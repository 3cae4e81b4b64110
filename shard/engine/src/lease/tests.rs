//! Tests against a naive model, and the refusals of etcd's lessor one by one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const MIN: i64 = 2;

fn id(n: i64) -> LeaseId {
    LeaseId(n)
}

fn slot(n: u16) -> Slot {
    Slot::new(n).unwrap()
}

fn at(seconds: u64) -> MonoMillis {
    MonoMillis(seconds * 1000)
}

#[test]
fn grant_as_etcd() {
    let mut table = LeaseTable::new();
    for (n, ttl, granted) in [(1, 10, 10), (2, 1, 2), (3, 0, 2), (-4, -7, 2), (5, MAX_TTL_S, MAX_TTL_S)] {
        assert_eq!(table.grant(at(0), id(n), ttl, MIN), Ok(granted), "ttl {ttl}");
    }
    let too_large = MAX_TTL_S + 1;
    assert_eq!(table.grant(at(0), id(9), too_large, MIN), Err(EngineError::LeaseTtlTooLarge(too_large)));
    // etcd checks the TTL first.
    assert_eq!(table.grant(at(0), id(1), too_large, MIN), Err(EngineError::LeaseTtlTooLarge(too_large)));
    assert_eq!(table.grant(at(0), id(1), 5, MIN), Err(EngineError::LeaseExists(id(1))));
    assert_eq!(table.home_ids(), [-4, 1, 2, 3, 5].map(id));
    assert_eq!((table.len(), table.deadline()), (5, Some(at(2))));
}

#[test]
fn seconds_left_are_cut_off_and_an_expired_lease_stays_expired() {
    let mut table = LeaseTable::new();
    table.grant(at(0), id(1), 10, MIN).unwrap();
    for (now, left) in [(0, 10), (1, 9), (9_999, 0), (10_000, 0), (10_999, 0), (11_000, -1), (12_500, -2)] {
        assert_eq!(table.view(MonoMillis(now), id(1)).unwrap().ttl_s, left, "at {now} ms");
    }
    assert_eq!(table.keep_alive(MonoMillis(9_999), id(1)), Ok(10));
    assert_eq!(table.due(MonoMillis(19_998), 9), []);
    assert_eq!(table.due(MonoMillis(19_999), 9), [id(1)]);
    assert_eq!(table.keep_alive(MonoMillis(19_999), id(1)), Err(EngineError::LeaseNotFound(id(1))));
    assert!(table.contains(id(1)), "until it is ended");
    assert_eq!(table.view(at(0), id(2)).unwrap_err(), EngineError::LeaseNotFound(id(2)));
}

#[test]
fn the_end_of_time_does_not_overflow() {
    let mut table = LeaseTable::new();
    table.grant(MonoMillis(u64::MAX - 1), id(1), MAX_TTL_S, MIN).unwrap();
    assert_eq!(table.view(MonoMillis(0), id(1)).unwrap().ttl_s, (u64::MAX / 1000) as i64);
    assert_eq!(table.due(MonoMillis(u64::MAX), 1), [id(1)]);
}

#[test]
fn r12_an_ended_lease_is_remembered_while_stores_wait() {
    let mut table = LeaseTable::new();
    table.grant(at(0), id(1), 10, MIN).unwrap();
    assert_eq!(table.attach_store(id(1), slot(9)), Ok(10));
    assert_eq!(table.attach_store(id(1), slot(4)), Ok(10));
    assert_eq!(table.attach_store(id(1), slot(9)), Ok(10));
    table.attach_key(id(1), &Key::from("b")).unwrap();
    table.attach_key(id(1), &Key::from("a")).unwrap();

    let (keys, stores) = table.begin_end(id(1)).unwrap();
    assert_eq!((keys, stores), (vec![Key::from("a"), Key::from("b")], vec![slot(4), slot(9)]));
    assert_eq!(table.ended(), [EndedLease { id: id(1), attached: vec![slot(4), slot(9)] }]);
    let gone = EngineError::LeaseNotFound(id(1));
    assert_eq!(table.attach_store(id(1), slot(5)), Err(gone.clone()));
    assert_eq!(table.attach_key(id(1), &Key::from("c")), Err(gone.clone()));
    assert_eq!(table.keep_alive(at(1), id(1)), Err(gone.clone()));
    assert_eq!(table.view(at(1), id(1)).unwrap_err(), gone);
    assert!(!table.detach_key(id(1), &Key::from("a")));
    assert!(table.begin_end(id(1)).is_none() && table.keys(id(1)).is_none() && !table.contains(id(1)));
    assert_eq!((table.deadline(), table.home_ids(), table.len()), (None, vec![], 0));
    // The id is free only when the new lease cannot be mistaken for the old one.
    assert_eq!(table.grant(at(1), id(1), 5, MIN), Err(EngineError::LeaseExists(id(1))));
    assert_eq!(table.adopt(id(1), 5, slot(3)), Err(EngineError::LeaseExists(id(1))));
    assert!(table.forget(id(1)) && !table.forget(id(1)));
    assert_eq!(table.grant(at(1), id(1), 5, MIN), Ok(5));
    assert!(!table.forget(id(1)) && table.contains(id(1)), "a live lease is not forgotten");
}

#[test]
fn r12_a_lease_whose_end_is_put_off_is_over_all_the_same() {
    let mut table = LeaseTable::new();
    table.grant(at(0), id(1), 10, MIN).unwrap();
    assert_eq!(table.due(at(10), 9), [id(1)]);
    table.put_off(at(13), id(1), 4_000);
    assert_eq!((table.deadline(), table.due(at(14), 9)), (Some(at(17)), vec![]), "it is looked at later");
    assert_eq!(table.view(at(14), id(1)).unwrap().ttl_s, -4);
    assert_eq!(table.keep_alive(at(14), id(1)), Err(EngineError::LeaseNotFound(id(1))));
    assert_eq!(table.due(at(17), 9), [id(1)]);
    assert!(table.begin_end(id(1)).is_some());
    assert_eq!((table.deadline(), table.len()), (None, 0));
}

#[test]
fn r12_an_adopted_lease_never_expires_and_has_one_home() {
    let mut table = LeaseTable::new();
    table.adopt(id(1), 10, slot(3)).unwrap();
    table.attach_key(id(1), &Key::from("k")).unwrap();
    table.adopt(id(1), 10, slot(3)).unwrap();
    assert_eq!(table.keys(id(1)), Some(vec![Key::from("k")]), "adopting again keeps the keys");
    assert_eq!(table.adopt(id(1), 10, slot(4)), Err(EngineError::LeaseExists(id(1))));
    assert_eq!(table.grant(at(0), id(1), 10, MIN), Err(EngineError::LeaseExists(id(1))));
    assert_eq!((table.due(at(1_000_000), 9), table.deadline(), table.home_ids()), (vec![], None, vec![]));
    // Only the home may do these.
    assert!(table.keep_alive(at(0), id(1)).is_err() && table.view(at(0), id(1)).is_err());
    assert!(table.attach_store(id(1), slot(5)).is_err() && table.begin_end(id(1)).is_none());

    assert_eq!(table.end_adopted(id(1)), [Key::from("k")]);
    assert_eq!(table.end_adopted(id(1)), [], "again");
    assert_eq!(table.attach_key(id(1), &Key::from("k")), Err(EngineError::LeaseNotFound(id(1))));
    table.grant(at(0), id(2), 10, MIN).unwrap();
    assert_eq!(table.adopt(id(2), 10, slot(3)), Err(EngineError::LeaseExists(id(2))));
    assert!(table.end_adopted(id(2)).is_empty() && table.contains(id(2)), "a home lease is not ended so");
}

/// B10: until its end, the cost of a lease does not depend on its number of keys.
#[test]
fn pitfall_b10_many_keys_end_in_order() {
    let mut table = LeaseTable::new();
    table.grant(at(0), id(1), 10, MIN).unwrap();
    for n in (0..50_000).rev() {
        table.attach_key(id(1), &Key::from(format!("{n:05}").as_str())).unwrap();
    }
    assert!(table.detach_key(id(1), &Key::from("00007")));
    let (keys, _) = table.begin_end(id(1)).unwrap();
    assert!(keys.len() == 49_999 && keys.is_sorted());
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Grant(LeaseId, i64),
    KeepAlive(LeaseId),
    Attach(LeaseId, u8),
    Detach(LeaseId, u8),
    AttachStore(LeaseId, u16),
    BeginEnd(LeaseId),
    Forget(LeaseId),
    Adopt(LeaseId, u16),
    EndAdopted(LeaseId),
    EndDue(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let lease = || (1i64..8).prop_map(LeaseId);
    prop_oneof![
        4 => prop_oneof![0u64..3, 0u64..4000].prop_map(Step::Pass),
        4 => (lease(), -1i64..6).prop_map(|(id, ttl)| Step::Grant(id, ttl)),
        3 => lease().prop_map(Step::KeepAlive),
        4 => (lease(), 0u8..5).prop_map(|(id, k)| Step::Attach(id, k)),
        2 => (lease(), 0u8..5).prop_map(|(id, k)| Step::Detach(id, k)),
        2 => (lease(), 0u16..3).prop_map(|(id, s)| Step::AttachStore(id, s)),
        1 => lease().prop_map(Step::BeginEnd),
        1 => lease().prop_map(Step::Forget),
        2 => (lease(), 0u16..3).prop_map(|(id, s)| Step::Adopt(id, s)),
        1 => lease().prop_map(Step::EndAdopted),
        2 => (0usize..4).prop_map(Step::EndDue),
    ]
}

/// A lease in the model, which searches all leases linearly.
#[derive(Debug, Clone)]
struct Modelled {
    ttl: i64,
    /// `Some` at the home.
    deadline: Option<u64>,
    home: u16,
    ended: bool,
    keys: BTreeSet<Key>,
    stores: BTreeSet<Slot>,
}

#[derive(Default)]
struct Model(BTreeMap<LeaseId, Modelled>);

impl Model {
    fn home(&mut self, id: LeaseId) -> Option<&mut Modelled> {
        self.0.get_mut(&id).filter(|lease| lease.deadline.is_some() && !lease.ended)
    }

    fn live(&mut self, id: LeaseId) -> Option<&mut Modelled> {
        self.0.get_mut(&id).filter(|lease| !lease.ended)
    }

    fn grant(&mut self, id: LeaseId, ttl: i64, deadline: Option<u64>, home: u16) -> bool {
        let new = Modelled {
            ttl,
            deadline,
            home,
            ended: false,
            keys: BTreeSet::default(),
            stores: BTreeSet::default(),
        };
        let free = !self.0.contains_key(&id);
        if free {
            self.0.insert(id, new);
        }
        free
    }

    fn end(&mut self, id: LeaseId) -> Option<(Vec<Key>, Vec<Slot>)> {
        let lease = self.home(id)?;
        lease.ended = true;
        let answer = (lease.keys.iter().cloned().collect(), lease.stores.iter().copied().collect::<Vec<_>>());
        if answer.1.is_empty() {
            self.0.remove(&id);
        }
        Some(answer)
    }

    fn due(&self, now: u64) -> Vec<LeaseId> {
        let mut due: Vec<_> = self
            .0
            .iter()
            .filter(|(_, l)| !l.ended && l.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(id, l)| (l.deadline, *id))
            .collect();
        due.sort();
        due.into_iter().map(|(_, id)| id).collect()
    }
}

fn run(table: &mut LeaseTable, model: &mut Model, now: &mut u64, step: Step) {
    let mono = MonoMillis(*now);
    let named = |n: u8| Key::copy_from(&[n]);
    match step {
        Step::Pass(ms) => *now += ms,
        Step::Grant(id, ttl) => {
            let granted = ttl.max(MIN);
            let new = model.grant(id, granted, Some(*now + granted as u64 * 1000), u16::MAX);
            assert_eq!(table.grant(mono, id, ttl, MIN).ok(), new.then_some(granted));
        }
        Step::KeepAlive(id) => {
            let kept = model.home(id).filter(|lease| lease.deadline > Some(*now)).map(|lease| {
                lease.deadline = Some(*now + lease.ttl as u64 * 1000);
                lease.ttl
            });
            assert_eq!(table.keep_alive(mono, id).ok(), kept);
        }
        Step::Attach(id, key) => {
            let attached = model.live(id).map(|lease| lease.keys.insert(named(key)));
            assert_eq!(table.attach_key(id, &named(key)).is_ok(), attached.is_some());
        }
        Step::Detach(id, key) => {
            let detached = model.live(id).is_some_and(|lease| lease.keys.remove(&named(key)));
            assert_eq!(table.detach_key(id, &named(key)), detached);
        }
        Step::AttachStore(id, store) => {
            let ttl = model.home(id).map(|lease| (lease.stores.insert(slot(store)), lease.ttl).1);
            assert_eq!(table.attach_store(id, slot(store)).ok(), ttl);
        }
        Step::BeginEnd(id) => assert_eq!(table.begin_end(id), model.end(id)),
        Step::Forget(id) => {
            let ended = model.0.get(&id).is_some_and(|lease| lease.ended);
            assert_eq!(table.forget(id), ended);
            model.0.retain(|other, _| *other != id || !ended);
        }
        Step::Adopt(id, home) => {
            let new = model.grant(id, 7, None, home);
            let same = model.live(id).is_some_and(|lease| lease.deadline.is_none() && lease.home == home);
            assert_eq!(table.adopt(id, 7, slot(home)).is_ok(), new || same);
        }
        Step::EndAdopted(id) => {
            let adopted = model.0.get(&id).is_some_and(|lease| lease.deadline.is_none());
            let lease = if adopted { model.0.remove(&id) } else { None };
            let keys: Vec<_> = lease.into_iter().flat_map(|lease| lease.keys).collect();
            assert_eq!(table.end_adopted(id), keys);
        }
        Step::EndDue(max) => {
            let mut due = model.due(*now);
            due.truncate(max);
            assert_eq!(table.due(mono, max), due);
            for id in due {
                assert_eq!(table.begin_end(id), model.end(id));
            }
        }
    }
}

fn assert_same(table: &LeaseTable, model: &Model, now: u64) {
    let live = || model.0.iter().filter(|(_, lease)| !lease.ended);
    let homes = || live().filter_map(|(id, lease)| Some((*id, lease.deadline?)));
    assert_eq!(table.len(), live().count());
    assert_eq!(table.is_empty(), live().count() == 0);
    assert_eq!(table.home_ids(), homes().map(|(id, _)| id).collect::<Vec<_>>());
    assert_eq!(table.deadline(), homes().map(|(_, deadline)| MonoMillis(deadline)).min());
    assert_eq!(table.due(MonoMillis(now), usize::MAX), model.due(now));
    for (id, lease) in live() {
        assert!(table.contains(*id));
        assert_eq!(table.keys(*id), Some(lease.keys.iter().cloned().collect()));
    }
    for (id, deadline) in homes() {
        let left = (deadline as i64 - now as i64) / 1000;
        assert_eq!(table.view(MonoMillis(now), id).map(|view| view.ttl_s), Ok(left));
    }
    let ended = model.0.iter().filter(|(_, lease)| lease.ended);
    let ended: Vec<_> =
        ended.map(|(id, l)| EndedLease { id: *id, attached: l.stores.iter().copied().collect() }).collect();
    assert_eq!(table.ended(), ended);
}

proptest! {
    #[test]
    fn behaves_as_a_list_of_leases(steps in prop::collection::vec(step(), 1..200)) {
        let mut table = LeaseTable::new();
        let mut model = Model::default();
        let mut now = 0;
        for step in steps {
            run(&mut table, &mut model, &mut now, step);
            assert_same(&table, &model, now);
        }
    }
}
