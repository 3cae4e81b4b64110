//! Chooses the next steps of a coordinator.

use std::time::Duration;

use kindred_partition_config::ids::Term;

use super::{
    Machine, Status,
    unit::{Stage, UnitState},
};
use crate::moves::{
    record::{Goal, MoveRecord, Phase},
    step::{Step, StepName, UnitAt, What},
};

impl Machine {
    /// The steps to begin at this time.
    pub fn poll(&mut self, now: Duration) -> Vec<Step> {
        self.clock = self.clock.max(now);
        if let Some((ticket, StepName::Decide)) = self.meta
            && self.is_late(now)
        {
            // Its answer is not waited for any longer: meta accepts either the decision or the swap that gives the
            // attempt up.
            self.late = Some(ticket);
            self.meta = None;
        }
        if self.status != Status::Running || self.meta.is_some() || now < self.meta_retry_at {
            return Vec::new();
        }
        if self.read {
            return self.meta_step(StepName::Read, What::Read);
        }
        if !self.holds || self.seen > self.record.term {
            return self.take_term();
        }
        if let Some(steps) = self.change_of_course(now) {
            return steps;
        }
        let mut steps = Vec::new();
        self.finish_decisions(now, &mut steps);
        match self.record.phase {
            Phase::Copying | Phase::CatchingUp | Phase::Verifying | Phase::Ready => {
                self.prepare(now, &mut steps)
            }
            Phase::Switching { leg, .. } => self.switch(leg, now, &mut steps),
            Phase::Switched => self.hold_open(now, &mut steps),
            Phase::Completing => self.clear(Phase::Done, now, &mut steps),
            Phase::Aborting => self.clear(Phase::Aborted, now, &mut steps),
            Phase::Done | Phase::Aborted => {}
        }
        steps
    }

    /// Takes the move over with a term above all that meta and the stores have seen; meta may have lost the latest.
    fn take_term(&mut self) -> Vec<Step> {
        let mut next = match self.record.phase {
            Phase::Switching { .. } if self.holds => {
                self.record.given_up("a store has seen a term that the meta store has lost".to_owned())
            }
            Phase::Switching { .. } => self.record.given_up("its coordinator was taken over".to_owned()),
            _ => self.next_record(),
        };
        next.term = next.term.max(Term(self.seen.0.saturating_add(1)));
        next.coordinator.clone_from(&self.me);
        self.swap(StepName::TakeTerm, next)
    }

    /// What comes before the next step on the way: a lost store, another goal, or giving an attempt up.
    fn change_of_course(&mut self, now: Duration) -> Option<Vec<Step>> {
        if let Some(next) = self.record.without(&self.gone) {
            return Some(self.swap(StepName::Redirect, next));
        }
        if let Some((goal, reason)) = self.redirect.clone().or_else(|| self.enough()) {
            let heard = self.hears();
            let mut next = MoveRecord { goal, reason, heard, failed: 0, hold: false, ..self.next_record() };
            next.phase = next.phase_by_goal();
            return Some(self.swap(StepName::Redirect, next));
        }
        if !matches!(self.record.phase, Phase::Switching { .. }) {
            return None;
        }
        let reason = match (self.give_up.clone(), self.is_late(now)) {
            (Some(reason), _) => reason,
            (None, true) => {
                format!("not decided within {} ms of the first freeze", self.settings.budget.as_millis())
            }
            (None, false) => return None,
        };
        let next = self.record.given_up(reason);
        Some(self.swap(StepName::CancelAttempt, next))
    }

    /// Whether the budget of the attempt is used up.
    fn is_late(&self, now: Duration) -> bool {
        self.frozen_at.is_some_and(|since| now >= since + self.settings.budget)
    }

    /// The new goal of a move whose attempts failed too often: one that needs no switch, if there is such a goal.
    fn enough(&self) -> Option<(Goal, Option<String>)> {
        let tried = self.record.failed >= self.settings.attempts_max;
        let undecided = !matches!(
            self.record.phase,
            Phase::Switching { .. } | Phase::Switched | Phase::Completing | Phase::Aborting
        );
        let goal = match self.record.goal {
            Goal::There if self.record.has_no_way_back() => return None,
            Goal::There => Goal::Abort,
            Goal::Back => Goal::There,
            Goal::Abort => return None,
        };
        let last = self.record.reason.as_deref().unwrap_or("not known");
        let reason =
            || format!("{} attempts to switch were given up; the last one: {last}", self.record.failed);
        (tried && undecided).then(|| (goal, Some(reason())))
    }

    fn all_units(&self) -> Vec<UnitAt> {
        self.units.keys().copied().collect()
    }

    /// Adds the calls that follow from decisions, whatever the phase: one side serves again, the other does not.
    fn finish_decisions(&mut self, now: Duration, steps: &mut Vec<Step>) {
        for at in self.all_units() {
            let unit = &self.units[&at];
            let in_doubt = unit.owes(StepName::Unseal);
            let due = [
                (in_doubt, StepName::Unseal),
                (unit.owes(StepName::Unfreeze) && !in_doubt, StepName::Unfreeze),
                (unit.owes(StepName::Release), StepName::Release),
                (unit.owes(StepName::Open), StepName::Open),
            ];
            for (_, name) in due.into_iter().filter(|(due, _)| *due) {
                self.call(name, at, now, steps);
            }
        }
    }

    fn all_finished(&self) -> bool {
        self.units.values().all(UnitState::is_settled)
    }

    /// Brings the followers of unsettled legs up to their owners, and begins an attempt when they are. Settled legs are
    /// followed too, for the way back.
    fn prepare(&mut self, now: Duration, steps: &mut Vec<Step>) {
        let unsettled = self.record.unsettled();
        for at in self.all_units() {
            match unsettled.contains(&at.leg) {
                true => self.follow(at, StepName::Tail, now, steps),
                false => self.reverse_tail(at, now, steps),
            }
        }
        let units: Vec<_> =
            self.units.iter().filter(|(at, _)| unsettled.contains(&at.leg)).map(|(_, unit)| unit).collect();
        let phase = if units.iter().any(|unit| !unit.has(StepName::Copy)) {
            Phase::Copying
        } else if units.iter().any(|unit| !self.is_near(unit) || !unit.has(StepName::AttachLeases)) {
            Phase::CatchingUp
        } else if units.iter().any(|unit| !unit.has(StepName::Verify)) {
            Phase::Verifying
        } else {
            Phase::Ready
        };
        if phase != self.record.phase {
            // The term does not change, so that steps under way stay valid.
            let next = MoveRecord { phase, ..self.record.clone() };
            steps.extend(self.swap(StepName::Advance, next));
        } else if let (Phase::Ready, true, Some(leg)) = (phase, self.all_finished(), unsettled.first())
            && now >= self.attempt_not_before
            && !self.record.hold
        {
            let mut next = self.next_record();
            next.attempts += 1;
            next.phase = Phase::Switching { attempt: next.attempts, leg: *leg };
            steps.extend(self.swap(StepName::BeginSwitch, next));
        }
    }

    /// The number of units for which a step is under way.
    fn count(&self, name: StepName) -> usize {
        let from = |leg| (name, UnitAt { leg, transfer: 0 });
        self.under_way.range(from(0)..from(usize::MAX)).count()
    }

    /// Adds the next step towards a follower that has all that its owner has.
    fn follow(&mut self, at: UnitAt, tail: StepName, now: Duration, steps: &mut Vec<Step>) {
        let unit = &self.units[&at];
        if !unit.is_settled() {
            return;
        }
        let room = self.count(StepName::Copy) + self.count(StepName::Verify) < self.settings.concurrent;
        let due = now >= unit.follow_at;
        let [tracked, copied, leased, verified] =
            [StepName::Track, StepName::Copy, StepName::AttachLeases, StepName::Verify]
                .map(|name| unit.has(name));
        let lag = unit.lag;
        if !tracked {
            self.call(StepName::Track, at, now, steps);
        } else if !copied {
            if room {
                self.call(StepName::Copy, at, now, steps);
            }
        } else {
            if !leased {
                self.call(StepName::AttachLeases, at, now, steps);
            }
            if due {
                self.call(tail, at, now, steps);
            }
            if !verified && lag.is_some() && room {
                self.call(StepName::Verify, at, now, steps);
            }
        }
    }

    /// Keeps the way back of a settled leg open, if there is one.
    fn reverse_tail(&mut self, at: UnitAt, now: Duration, steps: &mut Vec<Step>) {
        let leg = &self.record.legs[at.leg];
        if !leg.one_way && !leg.lost {
            self.follow(at, StepName::ReverseTail, now, steps);
        }
    }

    /// The steps of an attempt: freeze, import the rest, seal, confirm, decide.
    fn switch(&mut self, leg: usize, now: Duration, steps: &mut Vec<Step>) {
        let units: Vec<_> = self.all_units().into_iter().filter(|at| at.leg == leg).collect();
        for at in &units {
            match self.units[at].stage() {
                Stage::Following => {
                    self.frozen_at.get_or_insert(now);
                    self.call(StepName::Freeze, *at, now, steps);
                }
                Stage::Frozen => self.call(StepName::ImportLast, *at, now, steps),
                Stage::Imported => self.call(StepName::Seal, *at, now, steps),
                Stage::Sealed | Stage::Confirmed => {}
            }
        }
        if units.iter().any(|at| self.units[at].stage() < Stage::Sealed) {
            return;
        }
        for at in
            units.iter().filter(|at| self.units[at].stage() == Stage::Sealed).copied().collect::<Vec<_>>()
        {
            self.call(StepName::Confirm, at, now, steps);
        }
        if units.iter().all(|at| self.units[at].stage() == Stage::Confirmed) {
            let (record, version) = (Box::new(self.record.clone()), self.version);
            steps.extend(self.meta_step(StepName::Decide, What::Decide { record, version, leg }));
        }
    }

    /// Keeps the way back open for its time, then completes the move.
    fn hold_open(&mut self, now: Duration, steps: &mut Vec<Step>) {
        let since = *self.switched_at.get_or_insert(now);
        let window = match self.record.has_no_way_back() {
            // Just long enough for an operator who waits for the switch to see its cost.
            true => self.settings.backoff,
            false => self.settings.reverse_window,
        };
        let is_over = now >= since + window;
        if self.all_finished() && (self.complete || is_over) {
            let next = MoveRecord { phase: Phase::Completing, heard: self.hears(), ..self.next_record() };
            steps.extend(self.swap(StepName::Complete, next));
            return;
        }
        for at in self.all_units() {
            self.reverse_tail(at, now, steps);
        }
    }

    /// Has the followers drop their data; then the move is over.
    fn clear(&mut self, over: Phase, now: Duration, steps: &mut Vec<Step>) {
        if !self.all_finished() {
            return;
        }
        for at in self.all_units() {
            let unit = &self.units[&at];
            let due = [StepName::Drop, StepName::Forget].map(|name| (!unit.has(name), name));
            for (_, name) in due.into_iter().filter(|(due, _)| *due) {
                self.call(name, at, now, steps);
            }
        }
        if self.units.values().all(|unit| unit.has(StepName::Drop) && unit.has(StepName::Forget)) {
            let next = MoveRecord { phase: over, ..self.record.clone() };
            steps.extend(self.swap(StepName::Finish, next));
        }
    }
}
