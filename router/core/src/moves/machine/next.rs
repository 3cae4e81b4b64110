//! What is next.

use std::time::Duration;

use kindred_partition_config::ids::Term;

use super::{Machine, Status};
use crate::moves::{
    record::{Goal, MoveRecord, Phase},
    step::{Step, StepName, UnitAt, What},
};

impl Machine {
    /// The steps to begin now.
    pub fn poll(&mut self, now: Duration) -> Vec<Step> {
        self.clock = self.clock.max(now);
        if let Some((ticket, StepName::Decide)) = self.meta
            && self.is_late(now)
        {
            // It is not waited for any longer: of the decision and what gives it up, meta takes one.
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

    /// A term above all that meta and the stores have seen: meta may have lost what it was told last.
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

    /// What goes before the next step on the way: giving an attempt up, another goal.
    fn change_of_course(&mut self, now: Duration) -> Option<Vec<Step>> {
        if let Some(next) = self.record.without(&self.gone) {
            return Some(self.swap(StepName::Redirect, next));
        }
        if let Some((goal, reason)) = self.redirect.clone().or_else(|| self.enough()) {
            let heard = self.hears();
            let mut next = MoveRecord { goal, reason, heard, failed: 0, ..self.next_record() };
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

    /// Whether something has been frozen for longer than an attempt may take.
    fn is_late(&self, now: Duration) -> bool {
        self.frozen_at.is_some_and(|since| now >= since + self.settings.budget)
    }

    /// Where the move goes when it was tried often enough: to where it needs no attempt, if there is such a place.
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

    /// What follows from what was decided, in whatever phase: one side serves again, the other does not.
    fn finish_decisions(&mut self, now: Duration, steps: &mut Vec<Step>) {
        for at in self.all_units() {
            let unit = &self.units[&at];
            let due = [
                (unit.unfreeze, StepName::Unfreeze),
                (unit.release, StepName::Release),
                (unit.open, StepName::Open),
            ];
            for (_, name) in due.into_iter().filter(|(due, _)| *due) {
                self.call(name, at, now, steps);
            }
        }
    }

    fn all_finished(&self) -> bool {
        self.units.values().all(|unit| !unit.unfreeze && !unit.release && !unit.open)
    }

    /// Brings the followers of what is not settled up to its owners, and begins an attempt when they are. What is
    /// settled already goes on being followed, for the way back.
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
        let phase = if units.iter().any(|unit| !unit.copied) {
            Phase::Copying
        } else if units.iter().any(|unit| !self.is_near(unit) || !unit.leased) {
            Phase::CatchingUp
        } else if units.iter().any(|unit| !unit.verified) {
            Phase::Verifying
        } else {
            Phase::Ready
        };
        if phase != self.record.phase {
            // No new term: what is under way stays right.
            let next = MoveRecord { phase, ..self.record.clone() };
            steps.extend(self.swap(StepName::Advance, next));
        } else if let (Phase::Ready, true, Some(leg)) = (phase, self.all_finished(), unsettled.first())
            && now >= self.attempt_not_before
        {
            let mut next = self.next_record();
            next.attempts += 1;
            next.phase = Phase::Switching { attempt: next.attempts, leg: *leg };
            steps.extend(self.swap(StepName::BeginSwitch, next));
        }
    }

    /// Of how many units a step is under way.
    fn count(&self, name: StepName) -> usize {
        let from = |leg| (name, UnitAt { leg, transfer: 0 });
        self.under_way.range(from(0)..from(usize::MAX)).count()
    }

    /// The next thing that makes the follower have what the owner has.
    fn follow(&mut self, at: UnitAt, tail: StepName, now: Duration, steps: &mut Vec<Step>) {
        let unit = &self.units[&at];
        if unit.unfreeze || unit.release || unit.open {
            return;
        }
        let room = self.count(StepName::Copy) + self.count(StepName::Verify) < self.settings.concurrent;
        let due = now >= unit.follow_at;
        let (tracked, copied, leased, lag, verified) =
            (unit.tracked, unit.copied, unit.leased, unit.lag, unit.verified);
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

    /// Keeps the way back of what is settled open, where there is one.
    fn reverse_tail(&mut self, at: UnitAt, now: Duration, steps: &mut Vec<Step>) {
        let leg = &self.record.legs[at.leg];
        if !leg.one_way && !leg.lost {
            self.follow(at, StepName::ReverseTail, now, steps);
        }
    }

    /// An attempt: freeze, import the last of it, seal, see whether all of that stands, decide.
    fn switch(&mut self, leg: usize, now: Duration, steps: &mut Vec<Step>) {
        let units: Vec<_> = self.all_units().into_iter().filter(|at| at.leg == leg).collect();
        for at in &units {
            let unit = &self.units[at];
            if unit.frozen.is_none() {
                self.frozen_at.get_or_insert(now);
                self.call(StepName::Freeze, *at, now, steps);
            } else if !unit.imported {
                self.call(StepName::ImportLast, *at, now, steps);
            } else if unit.sealed.is_none() {
                self.call(StepName::Seal, *at, now, steps);
            }
        }
        if units.iter().any(|at| self.units[at].sealed.is_none()) {
            return;
        }
        for at in units.iter().filter(|at| !self.units[at].confirmed).copied().collect::<Vec<_>>() {
            self.call(StepName::Confirm, at, now, steps);
        }
        if units.iter().all(|at| self.units[at].confirmed) {
            let (record, version) = (Box::new(self.record.clone()), self.version);
            steps.extend(self.meta_step(StepName::Decide, What::Decide { record, version, leg }));
        }
    }

    /// Everything is where it goes; the way back stays open for a while.
    fn hold_open(&mut self, now: Duration, steps: &mut Vec<Step>) {
        let since = *self.switched_at.get_or_insert(now);
        let window = match self.record.has_no_way_back() {
            // No longer than whoever waits for the switch takes to see what it cost.
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

    /// The followers' data goes; then the move is over.
    fn clear(&mut self, over: Phase, now: Duration, steps: &mut Vec<Step>) {
        if !self.all_finished() {
            return;
        }
        for at in self.all_units() {
            let unit = &self.units[&at];
            let (dropped, forgotten) = (unit.dropped, unit.forgotten);
            if !dropped {
                self.call(StepName::Drop, at, now, steps);
            }
            if !forgotten {
                self.call(StepName::Forget, at, now, steps);
            }
        }
        if self.units.values().all(|unit| unit.dropped && unit.forgotten) {
            let next = MoveRecord { phase: over, ..self.record.clone() };
            steps.extend(self.swap(StepName::Finish, next));
        }
    }
}
