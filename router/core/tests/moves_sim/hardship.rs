//! Moves under every kind of trouble: stores that never come back or come back empty, routers that forget, a meta store
//! that is rolled back or loses the record, and operators who abort, reverse, complete, drain and edit in any phase.
//! Then an operator ends the move with the documented commands.
//!
//! What must hold: every state that is written is valid; some command always ends the move; and afterwards every key
//! has one owner, which serves it.
//!
//! `KINDRED_SOAK_SEED` is the first seed (fixed unless set), `KINDRED_SOAK_CASES` the number of seeds.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, StoreName},
    map::StoreIdx,
    state::{Change, ClusterState, ConfigChange, StoreState},
};
use kindred_router_core::moves::{
    conflict::{self, Begins},
    machine::{Machine, Request, Settings, Status, TICK},
    reconcile::{
        Held, HeldState, Report,
        repairs::{Ask, Call, plan},
    },
    record::{MoveRecord, Phase},
    step::{Answer, Step, StepName, UnitAt, UnitCall, What},
};

use crate::{
    number,
    shard::{Shard, State},
    world::{KEYS, Random, scenario},
};

/// The id of the only move.
const ID: MoveId = MoveId(1);
/// Trouble happens until this time.
const TROUBLE: Duration = Duration::from_secs(20);
/// How long an operator waits for a command to take effect.
const PATIENCE: Duration = Duration::from_secs(150);

/// Counters of what happened in the runs, to detect a simulation that does nothing.
#[derive(Debug, Default)]
struct Did {
    lost: u32,
    replaced: u32,
    rolled_back: u32,
    records_lost: u32,
    edits: u32,
    refused: u32,
    drains: u32,
    reversed: u32,
    reconciled: u32,
    done: u32,
    aborted: u32,
    switches: u32,
}

struct Hardship {
    random: Random,
    now: Duration,
    state: ClusterState,
    record: Option<MoveRecord>,
    version: i64,
    /// Everything written to meta so far: states and records.
    history: Vec<(ClusterState, Option<MoveRecord>)>,
    shards: Vec<Shard>,
    /// For each store, the time until which it is away.
    away: Vec<Duration>,
    machine: Option<Machine>,
    /// Whether meta has forgotten a decision.
    forgot: bool,
    routers: u64,
    log: Vec<String>,
}

const FOR_EVER: Duration = Duration::from_secs(1 << 40);

impl Hardship {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (before, change) = scenario(&mut random);
        let record = MoveRecord::new(ID, &change.transfers).unwrap().held(seed % 4 == 3);
        let kind = change.by_kind().into_keys().next().flatten();
        let record = record.after(before.said_of(kind.as_ref()));
        let shards: Vec<_> = (1..=3).map(|slot| Shard::new(slot, 0, None)).collect();
        let mut hard = Self {
            random,
            now: Duration::ZERO,
            state: change.state,
            record: Some(record),
            version: 1,
            history: Vec::new(),
            away: vec![Duration::ZERO; shards.len()],
            shards,
            machine: None,
            forgot: false,
            routers: 0,
            log: Vec::new(),
        };
        for (at, key) in KEYS.iter().enumerate() {
            let key = format!("/registry/pods/{key}");
            let owner = usize::from(hard.state.map.store_of(key.as_bytes()).0);
            hard.shards[owner].write(&key, at as u64, 1);
        }
        hard.wrote();
        hard
    }

    /// Records a write to meta, and checks that the state is valid.
    fn wrote(&mut self) {
        self.version += 1;
        if let Err(errors) = self.state.validated() {
            panic!("a state was written that is not sound: {errors:?}\n{:#?}", self.log);
        }
        self.history.push((self.state.clone(), self.record.clone()));
    }

    fn is_over(&self) -> bool {
        self.record.as_ref().is_none_or(|record| record.phase.is_over())
    }

    fn is_removed(&self, store: StoreIdx) -> bool {
        self.state.stores[usize::from(store.0)].state == StoreState::Removed
    }

    fn is_away(&self, store: StoreIdx) -> bool {
        self.now < self.away[usize::from(store.0)]
    }

    /// Lets the coordinator work for this time, or until the move is over.
    fn go(&mut self, time: Duration, trouble: bool, did: &mut Did) {
        let end = self.now + time;
        while self.now < end && !self.is_over() {
            self.now += TICK;
            if trouble && self.random.one_in(150) {
                self.happens(did);
            }
            self.tick(did);
        }
    }

    fn tick(&mut self, did: &mut Did) {
        let Some(record) = &self.record else { return };
        let machine = self.machine.get_or_insert_with(|| {
            self.routers += 1;
            let me = format!("r{}", self.routers);
            Machine::new(me, Settings::default(), record.clone(), self.version)
        });
        let ends = machine.record().legs.iter().flat_map(|leg| [leg.from, leg.to]);
        let removed = |store: &StoreIdx| self.state.stores[usize::from(store.0)].state == StoreState::Removed;
        let gone: BTreeSet<_> = ends.filter(removed).collect();
        machine.stores_gone(gone);
        let steps = machine.poll(self.now);
        if machine.status() != Status::Running {
            self.machine = None;
            return;
        }
        for step in steps {
            let trouble = self.now < TROUBLE;
            // The call or its answer may be lost on the way.
            let answer = match trouble && self.random.one_in(25) {
                true => Answer::Failed { reason: "lost".to_owned() },
                false => self.run(&step, did),
            };
            let answer = match trouble && self.random.one_in(25) {
                true => Answer::Failed { reason: "the answer was lost".to_owned() },
                false => answer,
            };
            if let Some(machine) = &mut self.machine {
                machine.answer(step.ticket, answer, self.now);
            }
        }
    }

    fn run(&mut self, step: &Step, did: &mut Did) -> Answer {
        match &step.what {
            What::Read => match &self.record {
                Some(record) => Answer::Record { record: Box::new(record.clone()), version: self.version },
                None => Answer::NoRecord,
            },
            What::Swap { version, .. } | What::Decide { version, .. } if *version != self.version => {
                Answer::Conflict
            }
            What::Swap { record, .. } => self.swap((**record).clone()),
            What::Decide { record, leg, .. } => self.decide(record, *leg, did),
            What::Unit(call) => self.unit(step.name, call),
        }
    }

    fn swapped(&mut self) -> Answer {
        self.wrote();
        match &self.record {
            Some(record) => Answer::Swapped { record: Box::new(record.clone()), version: self.version },
            None => Answer::NoRecord,
        }
    }

    /// The last record of a move that was aborted also restores the earlier configuration.
    fn swap(&mut self, record: MoveRecord) -> Answer {
        if let Some(said) = record.to_put_back()
            && let Ok(back) = self.state.with_said_of(conflict::kind_of(&self.state, &record).as_ref(), said)
        {
            self.state = back.state;
        }
        self.record = Some(record);
        self.swapped()
    }

    fn decide(&mut self, record: &MoveRecord, leg: usize, did: &mut Did) -> Answer {
        let refused = |reason: String| Answer::Refused { reason };
        let next = match self.state.with_transfers(&record.legs[leg].next_transfers()) {
            Ok(next) => next,
            Err(error) => return refused(error.to_string()),
        };
        if let Err(errors) = next.validated() {
            return refused(errors[0].to_string());
        }
        did.switches += 1;
        self.record = Some(record.decided(leg, next.generation));
        self.state = next;
        self.swapped()
    }

    fn unit(&mut self, name: StepName, call: &UnitCall) -> Answer {
        let failed = |reason: &str| Answer::Failed { reason: reason.to_owned() };
        let at_follower =
            matches!(name, StepName::Release | StepName::Drop | StepName::Seal | StepName::Unseal);
        let one = if at_follower { call.follower } else { call.owner };
        let ends = matches!(
            name,
            StepName::Unfreeze
                | StepName::Unseal
                | StepName::Open
                | StepName::Forget
                | StepName::Release
                | StepName::Drop
        );
        if ends && self.is_removed(one) {
            return Answer::Done;
        }
        let both = !ends && !matches!(name, StepName::Track | StepName::Freeze | StepName::Seal);
        let stores: Vec<_> = if both { vec![call.owner, call.follower] } else { vec![one] };
        if stores.iter().any(|store| self.is_removed(*store) || self.is_away(*store)) {
            return failed("it does not answer");
        }
        let (owner, follower) = (usize::from(call.owner.0), usize::from(call.follower.0));
        let now = self.millis();
        for store in &stores {
            let shard = &mut self.shards[usize::from(store.0)];
            if !shard.admits(call.term) {
                return Answer::Stale { seen: shard.highest_term() };
            }
        }
        match name {
            StepName::Confirm => {
                let frozen = self.shards[owner].call(name, call, now);
                if frozen != Answer::Done {
                    return frozen;
                }
                self.shards[follower].call(name, call, now)
            }
            StepName::AttachLeases => Answer::Done,
            StepName::Verify => match self.shards[owner].export(&call.unit, None) {
                Some(export) => self.shards[follower].verify(&call.unit, &export),
                None => failed("not the owner"),
            },
            StepName::Copy | StepName::Tail | StepName::ReverseTail | StepName::ImportLast => {
                let after = self.shards[follower].through(&call.unit);
                if (name == StepName::Copy) == after.is_some() {
                    return match name {
                        StepName::Copy => Answer::Done,
                        _ => Answer::Lost { reason: "no copy".to_owned() },
                    };
                }
                let Some(export) = self.shards[owner].export(&call.unit, after) else {
                    return failed("not the owner");
                };
                match self.shards[follower].import(&call.unit, &export) {
                    Answer::Done if matches!(name, StepName::Tail | StepName::ReverseTail) => {
                        Answer::Followed { lag: Duration::from_millis(10) }
                    }
                    answer => answer,
                }
            }
            _ => self.shards[usize::from(one.0)].call(name, call, now),
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.now.as_millis()).unwrap()
    }

    /// A random failure, or a careless command.
    fn happens(&mut self, did: &mut Did) {
        let store = StoreIdx(self.random.below(3) as u16);
        let at = usize::from(store.0);
        let what = self.random.below(13);
        self.log.push(format!(
            "{:?} {what} at {store} {:?}",
            self.now,
            self.record.as_ref().map(|r| r.phase)
        ));
        match what {
            0 => self.machine = None,
            1 => self.away[at] = self.away[at].max(self.now + Duration::from_secs(self.random.below(8))),
            // Lost for ever, but at most one store: with two lost, nobody could say what they had.
            2 if self.away.iter().all(|away| *away < FOR_EVER) && !self.forgot => {
                did.lost += 1;
                self.away[at] = FOR_EVER;
            }
            3 => {
                let owned: Vec<_> = self.record.iter().flat_map(|record| &record.legs).collect();
                let owned = owned.iter().filter(|leg| leg.owner() == store).flat_map(|leg| &leg.transfers);
                let owned: Vec<_> = owned.map(|transfer| transfer.unit.clone()).collect();
                if !matches!(self.record.as_ref().map(|record| record.phase), Some(Phase::Switching { .. })) {
                    self.shards[at].lose_copies(|unit| owned.contains(unit));
                }
            }
            4 => self.roll_back(did),
            5 | 6 => self.edit(did),
            7 => self.drain(store, did),
            8 => {
                // All routers forget, and meta has lost the record.
                if self.random.one_in(3) {
                    did.records_lost += 1;
                    self.record = None;
                    self.machine = None;
                    self.wrote();
                }
            }
            _ => {
                let request = [Request::Abort, Request::Reverse, Request::Complete, Request::Switch]
                    [(what % 4) as usize];
                self.ask(request, did);
            }
        }
    }

    fn ask(&mut self, request: Request, did: &mut Did) {
        if let Some(machine) = &mut self.machine {
            let asked = machine.request(request, self.version);
            did.reversed += u32::from(asked.is_ok() && request == Request::Reverse);
            self.log.push(format!("{:?} {request:?}: {asked:?}", self.now));
        }
    }

    /// Rolls meta back by some writes, and no router knows better.
    fn roll_back(&mut self, did: &mut Did) {
        let back = self.random.below(self.history.len().min(6) as u64) as usize;
        if back == 0 || !self.random.one_in(2) {
            return;
        }
        let at = self.history.len() - 1 - back;
        let forgets = self.history[at].0.generation != self.state.generation;
        if forgets && self.away.contains(&FOR_EVER) {
            // A decision for a lost store was known only to it and to meta.
            return;
        }
        self.forgot |= forgets;
        did.rolled_back += 1;
        (self.state, self.record) = self.history[at].clone();
        self.machine = None;
        self.wrote();
    }

    /// Makes a change of the configuration beside the move, if it does not contradict it.
    fn make(&mut self, change: Change, did: &mut Did) {
        let records: Vec<_> = self.record.iter().collect();
        let change = match conflict::beside(&self.state, change, records, Begins::WhatItChanges) {
            Ok(change) => change,
            Err(conflict) => {
                did.refused += 1;
                self.log.push(format!("{:?} {conflict}", self.now));
                return;
            }
        };
        // Changes that would begin another move are left out.
        if change.transfers.is_empty() {
            did.edits += 1;
            self.state = change.state;
            let record = self.version;
            self.wrote();
            // The record has its own version.
            self.version = record;
        }
    }

    fn edit(&mut self, did: &mut Did) {
        let mut config = self.state.configs[0].clone();
        let store = |at: u64| StoreName(["a", "b", "c"][at as usize].to_owned());
        let change = match self.random.below(3) {
            0 => self.state.move_kind("pods", &store(self.random.below(3))),
            1 => self.state.split("pods", "f", &store(self.random.below(3))),
            _ => {
                let mode = ["none", "buffered", "fsync"][self.random.below(3) as usize];
                let mut changes = Vec::new();
                for of_kind in &self.state.configs {
                    config.clone_from(of_kind);
                    config.durability = Some(mode.to_owned());
                    changes.push(ConfigChange::Update(config.clone()));
                }
                self.state.apply_configs(&changes)
            }
        };
        if let Ok(change) = change {
            self.make(change, did);
        }
    }

    fn drain(&mut self, store: StoreIdx, did: &mut Did) {
        let name = self.state.stores[usize::from(store.0)].name.clone();
        if let Ok(change) = self.state.drain_store(&name, None) {
            let before = did.edits;
            self.make(change, did);
            did.drains += did.edits - before;
        }
    }

    /// The documented commands for a move that does not end.
    fn end(&mut self, did: &mut Did) {
        for round in 0..6 {
            self.replace_what_is_lost(did);
            self.go(PATIENCE, false, did);
            if self.is_over() && self.record.is_some() {
                return;
            }
            match self.record.as_ref().map(|record| record.phase) {
                Some(Phase::Switched) => self.ask(Request::Complete, did),
                _ if self.record.as_ref().is_some_and(|record| record.hold) => self.ask(Request::Switch, did),
                _ if round % 2 == 0 => self.ask(Request::Abort, did),
                _ => self.ask(Request::Reverse, did),
            }
            self.go(PATIENCE, false, did);
            if self.is_over() {
                return;
            }
            self.reconcile(did);
        }
    }

    fn replace_what_is_lost(&mut self, did: &mut Did) {
        for at in 0..self.away.len() {
            let switching = matches!(self.record.as_ref().map(|r| r.phase), Some(Phase::Switching { .. }));
            if self.away[at] < FOR_EVER || self.state.stores[at].state == StoreState::Removed || switching {
                continue;
            }
            let name = self.state.stores[at].name.clone();
            let (next, _) = self.state.replace_store(&name, Vec::new(), 7).unwrap();
            did.replaced += 1;
            self.log.push(format!("{:?} replaced {name}", self.now));
            self.state = next;
            let record = self.version;
            self.wrote();
            self.version = record;
            self.shards.push(Shard::new(self.shards.len() as i64 + 1, 0, None));
            self.away.push(Duration::ZERO);
        }
    }

    fn reports(&self) -> Vec<Report> {
        let there = (0..self.shards.len()).filter(|at| self.state.stores[*at].state != StoreState::Removed);
        there
            .map(|at| {
                let shard = &self.shards[at];
                let held = shard.records.iter().map(|record| {
                    let (state, through) = match record.state {
                        State::Tracked => (HeldState::Tracked, None),
                        State::Frozen { .. } => (HeldState::Frozen, None),
                        State::Following { through } => {
                            (HeldState::Following { sealed: record.sealed }, Revision::from_wire(through))
                        }
                        State::Owned => (HeldState::Owned, None),
                        State::Gone => (HeldState::Gone, None),
                    };
                    let (unit, epoch) = (record.unit.clone(), record.epoch);
                    Held { id: ID, term: shard.highest_term(), unit, state, epoch, through }
                });
                Report { store: StoreIdx(at as u16), records: held.collect() }
            })
            .collect()
    }

    /// `kindred reconcile --apply`, repeated until it finds nothing to do.
    fn reconcile(&mut self, did: &mut Did) {
        for _ in 0..4 {
            let records: BTreeMap<_, _> = self.record.iter().map(|record| (ID, record.clone())).collect();
            let plan = plan(&self.state, &records, &self.reports());
            self.log.push(format!("{:?} {plan:?}", self.now));
            if plan.is_empty() {
                return;
            }
            did.reconciled += 1;
            if let Some(generation) = plan.generation {
                self.state = self.state.with_owners(&plan.transfers, generation).unwrap();
            }
            if !plan.ends.is_empty() {
                self.record = self.record.as_ref().map(|record| record.ended("by reconcile"));
            }
            self.wrote();
            for call in &plan.calls {
                let done = self.asked(call);
                assert_eq!(done, Answer::Done, "{call:?}\n{:#?}", self.log);
            }
        }
    }

    fn asked(&mut self, call: &Call) -> Answer {
        let none = (Revision::ZERO, Epoch::NONE);
        let (name, (final_revision, epoch)) = match call.ask {
            Ask::Freeze => (StepName::Freeze, none),
            Ask::Release { epoch } => (StepName::Release, (Revision::ZERO, epoch)),
            Ask::Seal { last } => (StepName::Seal, (last, Epoch::NONE)),
            Ask::Open { epoch } => (StepName::Open, (Revision::ZERO, epoch)),
            Ask::Unfreeze => (StepName::Unfreeze, none),
            Ask::Drop { epoch } => (StepName::Drop, (Revision::ZERO, epoch)),
            Ask::Forget => (StepName::Forget, none),
        };
        let unit = UnitCall {
            at: UnitAt { leg: 0, transfer: 0 },
            unit: call.unit.clone(),
            term: call.term,
            owner: call.store,
            follower: call.store,
            final_revision,
            incarnations: (0, 0),
            epoch,
        };
        let now = self.millis();
        match self.shards[usize::from(call.store.0)].call(name, &unit, now) {
            Answer::Frozen { .. } | Answer::Sealed { .. } => Answer::Done,
            answer => answer,
        }
    }

    /// Checks that every key has an owner that serves it, and that nothing is frozen.
    fn served(&self, seed: u64) {
        for key in KEYS {
            let key = format!("/registry/pods/{key}");
            let owner = self.state.map.store_of(key.as_bytes());
            let serves = self.shards[usize::from(owner.0)].serves(&key, true);
            let there = !self.is_removed(owner) && !self.is_away(owner);
            assert!(
                serves && there,
                "seed {seed}: {key} is store {owner}'s ({there}), which does not serve it: {:?}\n{:?}\n{:#?}",
                self.reports(),
                self.record.as_ref().map(|record| (record.phase, record.goal, &record.legs)),
                self.log
            );
            let others = self.shards.iter().enumerate().filter(|(at, shard)| {
                *at != usize::from(owner.0)
                    && self.state.stores[*at].state != StoreState::Removed
                    && shard.records.iter().any(|record| {
                        record.unit.contains(key.as_bytes())
                            && matches!(record.state, State::Owned | State::Tracked)
                    })
            });
            assert_eq!(
                others.count(),
                0,
                "seed {seed}: {key} has two owners: {:?}\n{:#?}",
                self.reports(),
                self.log
            );
        }
    }
}

#[test]
fn f15_some_command_always_ends_a_move() {
    let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
    let mut did = Did::default();
    let cases = number("KINDRED_SOAK_CASES").unwrap_or(1_500);
    for seed in first..first.saturating_add(cases) {
        let mut hard = Hardship::new(seed);
        hard.go(TROUBLE, true, &mut did);
        hard.now = hard.now.max(TROUBLE);
        hard.end(&mut did);
        assert!(
            hard.is_over(),
            "seed {seed}: no command ends the move: {:?}\n{:?}\n{:#?}\n\
             again: KINDRED_SOAK_SEED={seed} KINDRED_SOAK_CASES=1 cargo test -p kindred-router-core --test moves_sim f15_some",
            hard.record.as_ref().map(|record| (record.phase, record.goal, &record.legs)),
            hard.reports(),
            hard.log
        );
        // Repairs what meta has lost, and replaces stores that were lost after the end.
        hard.replace_what_is_lost(&mut did);
        hard.away.iter_mut().filter(|away| **away < FOR_EVER).for_each(|away| *away = Duration::ZERO);
        hard.reconcile(&mut did);
        hard.served(seed);
        let done = hard.record.as_ref().is_some_and(|record| record.phase == Phase::Done);
        did.done += u32::from(done);
        did.aborted += u32::from(!done);
    }
    println!("{cases} cases: {did:?}");
    if cases >= 1_000 {
        let Did { lost, replaced, rolled_back, records_lost, edits, refused, .. } = did;
        let Did { drains, reversed, reconciled, done, aborted, switches, .. } = did;
        let all = [
            lost,
            replaced,
            rolled_back,
            records_lost,
            edits,
            refused,
            reversed,
            reconciled,
            done,
            aborted,
            switches,
        ];
        assert!(
            all.iter().all(|count| *count > 20) && drains > 0,
            "it no longer does all that it is for: {did:?}"
        );
    }
}
