use std::collections::BTreeMap;

use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, StoreName, Term},
    map::StoreIdx,
    model::RingConfig,
    parse::parse_config,
    state::{Change, ClusterState, ConfigChange},
    transfers,
};

use super::{
    Held, HeldState, Report,
    repairs::{Ask, Plan, elsewhere, plan},
};
use crate::moves::record::{Goal, MoveRecord, Phase};

fn name(text: &str) -> StoreName {
    StoreName(text.to_owned())
}

fn state() -> ClusterState {
    let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}, {name: c, slot: 3}]\npartitions:\n\
        - {metadata: {name: pods}, resource: pods, serviceGroupId: b, durability: buffered}\n";
    ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap()
}

/// The reports after move 1 made the change, with these states and generations at the old and the new owners.
fn reports(change: &Change, old: (HeldState, u64), new: (HeldState, u64)) -> Vec<Report> {
    let held = |unit: &kindred_partition_config::unit::Unit, (state, epoch)| Held {
        id: MoveId(1),
        term: Term(4),
        unit: unit.clone(),
        state,
        epoch: Epoch(epoch),
        through: Some(Revision(70)),
    };
    let stores = (0..3).map(StoreIdx);
    stores
        .map(|store| {
            let of = change.transfers.iter().filter_map(|transfer| match store {
                at if at == transfer.from => Some(held(&transfer.unit, old)),
                at if at == transfer.to => Some(held(&transfer.unit, new)),
                _ => None,
            });
            Report { store, records: of.collect() }
        })
        .collect()
}

fn split() -> Change {
    state().split("pods", "m", &name("c")).unwrap()
}

fn ring() -> Change {
    let mut config = state().configs[0].clone();
    (config.ring, config.service_group_id) =
        (Some(RingConfig { stores: vec![name("a"), name("b"), name("c")] }), None);
    state().apply_configs(&[ConfigChange::Update(config)]).unwrap()
}

fn asks(plan: &Plan) -> Vec<(Ask, StoreIdx)> {
    plan.calls.iter().map(|call| (call.ask, call.store)).collect()
}

const fn release(epoch: u64) -> Ask {
    Ask::Release { epoch: Epoch(epoch) }
}

const fn open(epoch: u64) -> Ask {
    Ask::Open { epoch: Epoch(epoch) }
}

const fn drop(epoch: u64) -> Ask {
    Ask::Drop { epoch: Epoch(epoch) }
}

const FOLLOWING: HeldState = HeldState::Following { sealed: false };
const SEALED: HeldState = HeldState::Following { sealed: true };

/// Meta and the routers' files are lost after a change, and `--config` is in force again.
#[test]
fn f49_a_map_that_is_older_than_what_shards_own_is_found_and_replaced() {
    for change in [split(), ring(), state().move_kind("pods", &name("a")).unwrap()] {
        let reports = reports(&change, (FOLLOWING, 5), (HeldState::Owned, 5));
        let told = elsewhere(&state(), &[], &reports);
        assert!(told[0].contains("since map 5") && told[0].contains("store \"b\""), "{told:?}");
        let plan = plan(&state(), &BTreeMap::new(), &reports);
        assert_eq!((plan.problems.clone(), plan.generation), (Vec::new(), Some(Epoch(6))));
        let repaired = state().with_owners(&plan.transfers, plan.generation.unwrap()).unwrap();
        assert_eq!(transfers::transfers(&repaired.map, &change.desired), [], "{:?}", plan.found);
        assert_eq!(elsewhere(&repaired, &[], &reports), Vec::<String>::new());
        assert!(repaired.configs.iter().all(|config| config.durability.as_deref() == Some("buffered")));
        // The old owner's copy is dropped, because the new owner has the keys and serves them.
        assert_eq!(plan.calls.len(), change.transfers.len());
        for call in &plan.calls {
            assert_eq!((call.ask, call.store, call.term), (drop(6), StoreIdx(1), Term(5)));
        }
    }
}

/// No calls are made if all agree, whether or not the stores have heard of the last decision.
#[test]
fn f16_what_agrees_is_left_alone() {
    let change = split();
    let decided = change.state.with_transfers(&change.transfers).unwrap();
    let open = MoveRecord::new(MoveId(1), &change.transfers).unwrap();
    let over = MoveRecord { phase: Phase::Done, ..open.clone() };
    let records = |record: &MoveRecord| BTreeMap::from([(MoveId(1), record.clone())]);
    let gone = reports(&change, (HeldState::Gone, 2), (HeldState::Owned, 2));
    assert_eq!(plan(&decided, &records(&over), &gone), Plan::default());
    assert_eq!(plan(&decided, &BTreeMap::new(), &gone), Plan::default());
    // In the middle of the move, before and after its decision.
    let before = reports(&change, (HeldState::Tracked, 0), (FOLLOWING, 0));
    assert_eq!(plan(&change.state, &records(&open), &before), Plan::default());
    let switched = open.decided(0, decided.generation);
    let behind = reports(&change, (HeldState::Frozen, 0), (SEALED, 0));
    assert_eq!(plan(&decided, &records(&switched), &behind), Plan::default());
    assert_eq!(elsewhere(&decided, &[&switched], &behind), Vec::<String>::new());
}

/// Meta forgot a decision, somebody unfroze the old owner, and the move was decided again: both stores own the keys,
/// each by the map that it knows. The move is ended, and the store with the older map gives the keys away.
#[test]
fn f16_a_store_that_was_unfrozen_behind_a_decision_is_found_in_the_middle_of_the_move() {
    let change = split();
    let decided = change.state.with_transfers(&change.transfers).unwrap();
    let open = MoveRecord::new(MoveId(1), &change.transfers).unwrap().decided(0, decided.generation);
    let epoch = decided.generation.0;
    let both = reports(&change, (HeldState::Owned, epoch - 1), (HeldState::Tracked, epoch));
    for phase in [Phase::Switched, Phase::Copying] {
        let records = BTreeMap::from([(MoveId(1), MoveRecord { phase, ..open.clone() })]);
        let plan = plan(&decided, &records, &both);
        assert_eq!((plan.ends.clone(), plan.transfers.len()), (vec![MoveId(1)], 0), "{plan:?}");
        let old = [Ask::Freeze, release(epoch), drop(epoch)].map(|ask| (ask, StoreIdx(1)));
        let of_old = asks(&plan);
        assert!(old.iter().all(|ask| of_old.contains(ask)), "{of_old:?}");
    }
    // It is being decided, or one store has merely not heard of the decision yet.
    let switching = MoveRecord { phase: Phase::Switching { attempt: 1, leg: 0 }, ..open.clone() };
    assert_eq!(plan(&decided, &BTreeMap::from([(MoveId(1), switching)]), &both), Plan::default());
    let late = reports(&change, (HeldState::Tracked, epoch - 1), (SEALED, 0));
    assert_eq!(plan(&decided, &BTreeMap::from([(MoveId(1), open)]), &late), Plan::default());
}

/// Meta was lost in the middle of a move, so no record of it is left.
#[test]
fn f16_what_a_move_left_behind_that_nobody_knows_is_cleared() {
    let change = split();
    let (b, c) = (StoreIdx(1), StoreIdx(2));
    let none = BTreeMap::new();
    let left = |state: &ClusterState, old, new| plan(state, &none, &reports(&change, old, new));
    // Undecided: the old owner serves again, and the copy is dropped.
    let undecided = left(&state(), (HeldState::Frozen, 0), (SEALED, 0));
    assert_eq!(asks(&undecided), [(Ask::Unfreeze, b), (drop(0), c), (Ask::Forget, b)]);
    assert_eq!((undecided.generation, undecided.problems.len()), (None, 0));
    let copying = left(&state(), (HeldState::Tracked, 0), (FOLLOWING, 0));
    assert_eq!(asks(&copying), [(drop(0), c), (Ask::Forget, b)]);
    // Decided, as the map says, and neither store has heard. The old owner's copy stays until the new owner serves.
    let decided = change.state.with_transfers(&change.transfers).unwrap();
    let unheard = left(&decided, (HeldState::Frozen, 0), (SEALED, 0));
    assert_eq!(asks(&unheard), [(release(2), b), (open(2), c)]);
    // Decided, and only the old owner has heard: the new one has everything, whatever the map says.
    let half = left(&state(), (FOLLOWING, 2), (SEALED, 0));
    assert_eq!(asks(&half), [(open(3), c)]);
    assert_eq!(
        (half.transfers.len(), half.generation, half.problems.len()),
        (1, Some(Epoch(3)), 1),
        "{half:?}"
    );
    // Decided, and only the new owner has heard.
    let other = left(&state(), (HeldState::Frozen, 0), (HeldState::Owned, 2));
    assert_eq!(asks(&other), [(release(3), b), (drop(3), b)]);
    // The freeze was lost in a restart.
    let other = left(&state(), (HeldState::Tracked, 0), (HeldState::Owned, 2));
    assert_eq!(asks(&other), [(Ask::Freeze, b), (release(3), b), (drop(3), b)]);
}

/// Meta was rolled back to a state before the switch.
#[test]
fn f16_a_record_that_was_overtaken_ends() {
    let change = split();
    let record = MoveRecord { phase: Phase::Ready, ..MoveRecord::new(MoveId(1), &change.transfers).unwrap() };
    let records = BTreeMap::from([(MoveId(1), MoveRecord { term: Term(9), ..record })]);
    let plan = plan(&change.state, &records, &reports(&change, (FOLLOWING, 5), (HeldState::Owned, 5)));
    assert_eq!((plan.ends.clone(), plan.generation), (vec![MoveId(1)], Some(Epoch(6))));
    assert_eq!(asks(&plan), [(drop(6), StoreIdx(1))]);
    assert_eq!(plan.calls[0].term, Term(10));
    // A move on its way back whose record is right is left alone.
    let decided = change.state.with_transfers(&change.transfers).unwrap();
    let back = MoveRecord { goal: Goal::Back, ..records[&MoveId(1)].decided(0, decided.generation) };
    let held = reports(&change, (FOLLOWING, 2), (HeldState::Tracked, 2));
    assert_eq!(super::repairs::plan(&decided, &BTreeMap::from([(MoveId(1), back)]), &held), Plan::default());
}

/// An only copy is never dropped, and undecidable cases are reported.
#[test]
fn f16_the_only_copy_stays() {
    let change = split();
    // The map names the new owner, which has a part of a copy.
    let decided = change.state.with_transfers(&change.transfers).unwrap();
    let held = reports(&change, (FOLLOWING, 1), (FOLLOWING, 0));
    let part = plan(&decided, &BTreeMap::new(), &held);
    assert_eq!(part.calls, []);
    assert_eq!(part.problems.len(), 2, "{:?}", part.problems);
    // Released, and no store has the keys.
    let nobody =
        plan(&state(), &BTreeMap::new(), &reports(&change, (HeldState::Gone, 7), (HeldState::Gone, 7)));
    assert_eq!((nobody.calls.clone(), nobody.transfers.clone()), (Vec::new(), Vec::new()));
    assert!(nobody.problems[0].contains("no store says that it owns them"), "{:?}", nobody.problems);
    // Given away, but the target has nothing: the former owner has all of it.
    let mut held = reports(&change, (FOLLOWING, 7), (HeldState::Gone, 0));
    held[2].records.clear();
    let back = plan(&state(), &BTreeMap::new(), &held);
    assert_eq!(
        asks(&back),
        [(Ask::Seal { last: Revision(70) }, StoreIdx(1)), (open(8), StoreIdx(1))],
        "{back:?}"
    );
    assert_eq!((back.generation, back.problems.len()), (Some(Epoch(8)), 0));
    // Not if a store that may have it cannot be asked, nor if another store has a part of it.
    let copy = Held { state: FOLLOWING, epoch: Epoch::NONE, ..held[1].records[0].clone() };
    held[0].records.push(copy);
    assert_eq!(plan(&state(), &BTreeMap::new(), &held).problems.len(), 3);
    // Two stores claim the keys: both the keys and the two records are reported.
    let two =
        plan(&state(), &BTreeMap::new(), &reports(&change, (HeldState::Owned, 7), (HeldState::Owned, 7)));
    assert_eq!((two.transfers.len(), two.calls.len(), two.problems.len()), (0, 0, 3));
}
