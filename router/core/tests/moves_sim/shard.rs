//! A store as a move sees it: keys with their history, a clock, and the records of the move's units.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{
    ids::{Epoch, Revision, Term},
    unit::Unit,
};
use kindred_router_core::moves::step::{Answer, StepName, UnitCall};

use crate::Mutation;

/// The state of a unit at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Tracked,
    Frozen { last: i64, since: u64 },
    Following { through: i64 },
    Owned,
    Gone,
}

#[derive(Debug, Clone)]
pub struct Record {
    pub unit: Unit,
    pub state: State,
    pub epoch: Epoch,
    /// For a follower: it has everything for a decision.
    pub sealed: bool,
}

/// The versions of each key, as revision and value, oldest first.
pub type Versions = BTreeMap<String, Vec<(i64, u64)>>;

/// The data that one side sends to the other.
#[derive(Debug, Clone)]
pub struct Export {
    pub versions: Versions,
    /// It has all versions of the unit above `after` (all of history for `None`) up to `through`.
    pub after: Option<i64>,
    pub through: i64,
}

#[derive(Debug, Clone)]
pub struct Shard {
    slot: i64,
    /// The offset of its wall clock in ms.
    skew: i64,
    clock: i64,
    pub data: Versions,
    pub records: Vec<Record>,
    term: Term,
    /// Its incarnation.
    incarnation: u64,
    /// The last term in which it confirmed an attempt.
    confirmed: Option<Term>,
    mutation: Option<Mutation>,
}

fn of_unit(data: &Versions, unit: &Unit, above: i64, through: i64) -> Versions {
    let keys = data.iter().filter(|(key, _)| unit.contains(key.as_bytes()));
    let cut = |versions: &[(i64, u64)]| {
        versions.iter().copied().filter(|(at, _)| *at > above && *at <= through).collect::<Vec<_>>()
    };
    keys.map(|(key, versions)| (key.clone(), cut(versions)))
        .filter(|(_, versions)| !versions.is_empty())
        .collect()
}

impl Shard {
    pub fn new(slot: i64, skew: i64, mutation: Option<Mutation>) -> Self {
        Self {
            slot,
            skew,
            clock: slot,
            data: Versions::new(),
            records: Vec::new(),
            term: Term(0),
            incarnation: 1,
            confirmed: None,
            mutation,
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Whether it serves an operation on the key.
    pub fn serves(&self, key: &str, is_write: bool) -> bool {
        let Some(record) = self.records.iter().find(|record| record.unit.contains(key.as_bytes())) else {
            return true;
        };
        match record.state {
            State::Tracked | State::Owned => true,
            State::Frozen { .. } => self.is(Mutation::FrozenServes),
            State::Following { .. } | State::Gone => !is_write && self.is(Mutation::ReleasedReads),
        }
    }

    pub fn current(&self, key: &str) -> Option<(i64, u64)> {
        self.data.get(key)?.last().copied()
    }

    /// Assigns a revision and writes the key.
    pub fn write(&mut self, key: &str, value: u64, now: u64) -> i64 {
        let wall = (i64::try_from(now).unwrap() + self.skew).max(0) + 10_000;
        self.clock = (self.clock >> 4).max(wall).wrapping_add(1) << 4 | self.slot;
        self.data.entry(key.to_owned()).or_default().push((self.clock, value));
        self.clock
    }

    fn at(&mut self, unit: &Unit) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.unit == *unit)
    }

    fn state(&self, unit: &Unit) -> Option<State> {
        self.records.iter().find(|record| record.unit == *unit).map(|record| record.state)
    }

    fn set(&mut self, unit: &Unit, state: State, epoch: Option<Epoch>) {
        match self.at(unit) {
            Some(record) => {
                record.sealed = false;
                record.state = state;
                record.epoch = epoch.unwrap_or(record.epoch);
            }
            None => {
                let epoch = epoch.unwrap_or(Epoch(0));
                self.records.push(Record { unit: unit.clone(), state, epoch, sealed: false });
            }
        }
    }

    /// Refuses terms below the highest one seen.
    pub fn admits(&mut self, term: Term) -> bool {
        if term < self.term && !self.is(Mutation::OldTermsAdmitted) {
            return false;
        }
        self.term = self.term.max(term);
        true
    }

    pub fn highest_term(&self) -> Term {
        self.term
    }

    /// The revision up to which it follows the unit; `None` if it does not.
    pub fn through(&self, unit: &Unit) -> Option<i64> {
        match self.state(unit) {
            Some(State::Following { through }) => Some(through),
            _ => None,
        }
    }

    /// The unit's versions above `after` (all of history for `None`); `None` if this store does not own the unit.
    pub fn export(&self, unit: &Unit, after: Option<i64>) -> Option<Export> {
        let through = match self.state(unit) {
            Some(State::Tracked) => self.clock,
            Some(State::Frozen { last, .. }) => last,
            _ => return None,
        };
        let mut versions = of_unit(&self.data, unit, after.unwrap_or(-1), through);
        if self.is(Mutation::LosesAnEvent) && after.is_some() {
            versions.values_mut().next().and_then(Vec::pop);
        }
        Some(Export { versions, after, through })
    }

    pub fn import(&mut self, unit: &Unit, export: &Export) -> Answer {
        let failed = |reason: &str| Answer::Failed { reason: reason.to_owned() };
        let before = match (self.state(unit), export.after) {
            (Some(State::Following { .. }), None) => return Answer::Done,
            // A call of this attempt that arrives late.
            (Some(State::Following { through }), Some(_))
                if export.through <= through && self.at(unit).is_some_and(|unit| unit.sealed) =>
            {
                return Answer::Done;
            }
            (Some(State::Following { through }), Some(after)) if after <= through => through,
            (Some(State::Following { .. }), Some(_)) => return failed("a gap"),
            (None | Some(State::Gone), None) => -1,
            (None | Some(State::Gone), Some(_)) if self.is(Mutation::EventsToNothing) => -1,
            (None | Some(State::Gone), Some(_)) => {
                return Answer::Lost { reason: "nothing to follow".into() };
            }
            (Some(_), _) => return failed("owned here"),
        };
        for (key, versions) in &export.versions {
            let known = self.data.entry(key.clone()).or_default();
            if export.after.is_none() {
                known.clear();
            }
            known.extend(versions.iter().filter(|(at, _)| *at > before));
        }
        self.set(unit, State::Following { through: before.max(export.through) }, None);
        Answer::Done
    }

    /// Compares the versions of both sides, up to where this one follows.
    pub fn verify(&self, unit: &Unit, export: &Export) -> Answer {
        let Some(through) = self.through(unit) else {
            return Answer::Lost { reason: "nothing to compare".into() };
        };
        let at = through.min(export.through);
        if of_unit(&self.data, unit, -1, at) == of_unit(&export.versions, unit, -1, at) {
            Answer::Done
        } else {
            Answer::Different { reason: "versions".into() }
        }
    }

    /// Whether it has confirmed the attempt of this term. What it loses after that counts as lost after the decision.
    pub fn has_confirmed(&self, term: Term) -> bool {
        self.confirmed == Some(term)
    }

    /// Restarts and forgets that units are frozen; returns how many.
    pub fn lose_freezes(&mut self) -> u64 {
        self.incarnation += 1;
        let mut lost = 0;
        self.records.retain_mut(|record| {
            if !matches!(record.state, State::Frozen { .. }) {
                return true;
            }
            lost += 1;
            record.state = State::Owned;
            record.epoch != Epoch(0)
        });
        lost
    }

    /// Restarts and forgets the keys of units that it follows and does not own, but not that it does not own them.
    /// Returns the number of these units.
    pub fn lose_copies(&mut self, owns: impl Fn(&Unit) -> bool) -> u64 {
        self.incarnation += 1;
        let (mut lost, data) = (0, &mut self.data);
        self.records.retain_mut(|record| {
            if !matches!(record.state, State::Following { .. }) || owns(&record.unit) {
                return true;
            }
            data.retain(|key, _| !record.unit.contains(key.as_bytes()));
            lost += 1;
            record.state = State::Gone;
            record.epoch != Epoch(0)
        });
        lost
    }

    /// Handles every other call.
    pub fn call(&mut self, name: StepName, call: &UnitCall, now: u64) -> Answer {
        let failed = |reason: &str| Answer::Failed { reason: reason.to_owned() };
        if !self.admits(call.term) {
            return Answer::Stale { seen: self.term };
        }
        let unit = &call.unit;
        let state = self.state(unit);
        match (name, state) {
            (StepName::Track, None | Some(State::Owned)) => self.set(unit, State::Tracked, None),
            (StepName::Track, Some(State::Tracked)) => {}
            (StepName::Freeze, Some(State::Tracked | State::Owned)) => {
                self.set(unit, State::Frozen { last: self.clock, since: now }, None);
                return Answer::Frozen {
                    final_revision: Revision(self.clock),
                    incarnation: self.incarnation,
                };
            }
            (StepName::Freeze, Some(State::Frozen { last, .. })) => {
                return Answer::Frozen { final_revision: Revision(last), incarnation: self.incarnation };
            }
            (StepName::Unfreeze, Some(State::Frozen { .. })) => {
                if !self.is(Mutation::UnfreezeIgnored) {
                    self.set(unit, State::Tracked, None);
                }
            }
            (StepName::Unseal, Some(State::Following { .. })) => {
                if let Some(record) = self.at(unit) {
                    record.sealed = false;
                }
            }
            (StepName::Unseal, Some(State::Owned | State::Tracked)) => return failed("opened here"),
            (StepName::Unfreeze | StepName::Unseal | StepName::AttachLeases, _) => {}
            (StepName::Seal, Some(State::Following { through })) => {
                if through < call.final_revision.get() {
                    return Answer::Lost { reason: format!("only up to {through}") };
                }
                if !self.is(Mutation::SealKeepsClock) {
                    self.clock = self.clock.max(call.final_revision.get());
                }
                if let Some(record) = self.at(unit) {
                    record.sealed = true;
                }
                return Answer::Sealed { incarnation: self.incarnation };
            }
            (StepName::Confirm, state) => {
                let stands = match state {
                    Some(State::Frozen { last, .. }) => {
                        last == call.final_revision.get() && self.incarnation == call.incarnations.0
                    }
                    Some(State::Following { .. }) => self.incarnation == call.incarnations.1,
                    _ => false,
                };
                if !stands && !self.is(Mutation::IncarnationsIgnored) {
                    return Answer::Restarted {
                        reason: format!("{state:?} in incarnation {}", self.incarnation),
                    };
                }
                self.confirmed = Some(call.term);
            }
            (StepName::Release, Some(State::Frozen { last, .. })) => {
                self.set(unit, State::Following { through: last }, Some(call.epoch));
            }
            (StepName::Release, None | Some(State::Following { .. } | State::Gone)) => {}
            (StepName::Open, Some(State::Following { .. }))
                if self.at(unit).is_some_and(|unit| unit.sealed) =>
            {
                self.set(unit, State::Owned, Some(call.epoch));
            }
            (StepName::Open, Some(State::Owned | State::Tracked)) => {}
            (StepName::Drop, Some(State::Following { .. })) if self.is(Mutation::DropIgnored) => {}
            (StepName::Drop, Some(State::Following { .. })) => {
                self.data.retain(|key, _| !unit.contains(key.as_bytes()));
                match call.epoch {
                    Epoch(0) => self.records.retain(|record| record.unit != *unit),
                    epoch => self.set(unit, State::Gone, Some(epoch)),
                }
            }
            (StepName::Drop, None | Some(State::Gone)) => {}
            (StepName::Forget, Some(State::Tracked)) => {
                if self.records.iter().any(|record| record.unit == *unit && record.epoch == Epoch(0)) {
                    self.records.retain(|record| record.unit != *unit);
                } else {
                    self.set(unit, State::Owned, None);
                }
            }
            (StepName::Forget, None | Some(State::Owned)) => {}
            (_, state) => return failed(&format!("{} of a unit that is {state:?}", name.as_str())),
        }
        Answer::Done
    }

    /// How long the unit that was frozen first has been frozen.
    pub fn longest_freeze(&self, now: u64) -> Option<Duration> {
        let since = self.records.iter().filter_map(|record| match record.state {
            State::Frozen { since, .. } => Some(since),
            _ => None,
        });
        since.min().map(|since| Duration::from_millis(now - since))
    }
}
