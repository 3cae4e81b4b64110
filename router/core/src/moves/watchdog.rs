//! What any router does for a move whose coordinator is silent while keys are held. No I/O and no clock: it is polled
//! and answered like the [`super::machine`].
//!
//! A claim lasts for seconds, and clients must not wait so long. Between the first freeze and the end of an attempt
//! only two things can be needed, and both follow from the record:
//!
//! * An attempt that is not decided in time is given up, by the same compare-and-swap that would decide it (R15c): one
//!   of the two happens, never both.
//! * The consequences of a decision, or of an attempt that was given up, may be asked of the stores by any router that
//!   knows the record, any number of times. Stores refuse what an older term asks for.
//!
//! The move itself stays with its coordinator, or with the router that takes it over when the claim has expired.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::ids::{Epoch, Revision, Term};

use super::{
    machine,
    record::{MoveRecord, Phase},
    step::{Answer, Step, StepName, Ticket, UnitAt, UnitCall, What},
};

/// The settings of a watchdog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long after an attempt was seen to begin it is given up; longer than a live coordinator takes.
    pub undecided: Duration,
    /// How long after the end of an attempt was seen its consequences are carried out.
    pub unsettled: Duration,
    /// The pause before a failed step is repeated.
    pub again: Duration,
}

impl Settings {
    /// Settings that suit coordinators with these settings.
    #[must_use]
    pub fn beside(coordinators: &machine::Settings) -> Self {
        Self {
            undecided: coordinators.budget + Duration::from_millis(150),
            unsettled: Duration::from_millis(150),
            again: Duration::from_millis(250),
        }
    }
}

/// What is known of the record.
#[derive(Debug)]
struct Seen {
    term: Term,
    switching: bool,
    /// When something is to be done about it.
    due: Duration,
    /// What is still to be asked of the stores, each with its earliest time.
    to_do: BTreeMap<(StepName, UnitAt), Duration>,
}

#[derive(Debug)]
pub struct Watchdog {
    settings: Settings,
    seen: Option<Seen>,
    tickets: u64,
    /// The steps under way; `None` for a write of the record.
    open: BTreeMap<Ticket, Option<(StepName, UnitAt)>>,
}

impl Watchdog {
    /// A watchdog whose tickets begin after `tickets`.
    #[must_use]
    pub fn new(settings: Settings, tickets: u64) -> Self {
        Self { settings, seen: None, tickets, open: BTreeMap::new() }
    }

    /// Whether to poll on while the record does not change.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.switching || !seen.to_do.is_empty())
    }

    /// The steps to begin, by the record as last seen and its mod revision. Moves of coordinator `me` are not watched.
    pub fn poll(&mut self, now: Duration, me: &str, record: &MoveRecord, version: i64) -> Vec<Step> {
        if record.phase.is_over() || record.coordinator == me || record.coordinator.is_empty() {
            self.seen = None;
            self.open.clear();
            return Vec::new();
        }
        let switching = matches!(record.phase, Phase::Switching { .. });
        match &self.seen {
            // An older record arrives late, after this watchdog has written a newer one.
            Some(seen) if record.term < seen.term => return Vec::new(),
            Some(seen) if record.term == seen.term && switching == seen.switching => {}
            _ => self.see(record, now + self.settings.unsettled, now),
        }
        let Some(seen) = self.seen.as_mut().filter(|seen| now >= seen.due) else { return Vec::new() };
        let mut steps = Vec::new();
        if switching {
            if self.open.is_empty() {
                // Asked again if there is no result.
                seen.due = now + self.settings.again;
                let reason = format!(
                    "not decided within {} ms, and nothing is heard of its coordinator {}",
                    self.settings.undecided.as_millis(),
                    record.coordinator
                );
                let record = Box::new(record.given_up(reason));
                steps.push(self.step(StepName::CancelAttempt, None, What::Swap { record, version }));
            }
            return steps;
        }
        let due: Vec<_> = seen.to_do.iter().filter(|(_, at)| now >= **at).map(|(what, _)| *what).collect();
        for (name, at) in due {
            if !self.open.values().any(|open| *open == Some((name, at))) {
                steps.push(self.step(name, Some((name, at)), What::Unit(call(record, at))));
            }
        }
        steps
    }

    pub fn answer(&mut self, ticket: Ticket, answer: &Answer, now: Duration) {
        let Some(of) = self.open.remove(&ticket) else { return };
        let again = now + self.settings.again;
        match (of, answer) {
            (None, Answer::Swapped { record, .. }) => self.see(record, now, now),
            (None, _) => {}
            (Some(what), answer) => {
                let Some(seen) = &mut self.seen else { return };
                if *answer == Answer::Done {
                    seen.to_do.remove(&what);
                } else if let Some(at) = seen.to_do.get_mut(&what) {
                    *at = again;
                }
            }
        }
    }

    /// Takes over a new record; steps under way were for the one before.
    fn see(&mut self, record: &MoveRecord, settle_at: Duration, now: Duration) {
        self.open.clear();
        let switching = matches!(record.phase, Phase::Switching { .. });
        let due = if switching { now + self.settings.undecided } else { settle_at };
        let to_do = if switching { BTreeMap::new() } else { consequences(record) };
        self.seen = Some(Seen { term: record.term, switching, due, to_do });
    }

    fn step(&mut self, name: StepName, of: Option<(StepName, UnitAt)>, what: What) -> Step {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.open.insert(ticket, of);
        Step { ticket, name, what }
    }
}

/// What may have to be done after the attempts so far.
fn consequences(record: &MoveRecord) -> BTreeMap<(StepName, UnitAt), Duration> {
    let mut found = BTreeMap::new();
    for (leg, of_leg) in record.legs.iter().enumerate() {
        for transfer in 0..of_leg.transfers.len() {
            let at = UnitAt { leg, transfer };
            let steps = [
                (record.attempts > 0, StepName::Unfreeze),
                (of_leg.epoch.is_some(), StepName::Release),
                (of_leg.epoch.is_some(), StepName::Open),
            ];
            let due = steps.into_iter().filter(|(due, _)| *due);
            found.extend(due.map(|(_, name)| ((name, at), Duration::ZERO)));
        }
    }
    found
}

fn call(record: &MoveRecord, at: UnitAt) -> UnitCall {
    let leg = &record.legs[at.leg];
    UnitCall {
        at,
        unit: leg.transfers[at.transfer].unit.clone(),
        term: record.term,
        owner: leg.owner(),
        follower: leg.follower(),
        final_revision: Revision::ZERO,
        incarnations: (0, 0),
        epoch: leg.epoch.unwrap_or(Epoch::NONE),
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::{
        ids::{MoveId, StoreName},
        parse::parse_config,
        state::ClusterState,
    };

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The record of a move of the pods from a to b, with its first attempt under way.
    fn switching() -> MoveRecord {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\npartitions:\n\
            - {metadata: {name: p}, resource: pods, serviceGroupId: a}\n";
        let state = ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap();
        let change = state.move_kind("pods", &StoreName("b".to_owned())).unwrap();
        // The pseudo-key is a unit of its own.
        let record = MoveRecord::new(MoveId(7), &change.transfers[..1]).unwrap();
        let phase = Phase::Switching { attempt: 1, leg: 0 };
        MoveRecord { coordinator: "dead.1".to_owned(), term: Term(4), attempts: 1, phase, ..record }
    }

    fn watchdog() -> Watchdog {
        Watchdog::new(Settings::beside(&machine::Settings::default()), 0)
    }

    fn names(steps: &[Step]) -> Vec<&'static str> {
        steps.iter().map(|step| step.name.as_str()).collect()
    }

    /// From the coordinator's last sign of life until the unit is served again, 650 ms and two round trips pass.
    #[test]
    fn an_attempt_without_a_decision_is_given_up_and_unfrozen_at_once() {
        let (mut dog, record) = (watchdog(), switching());
        assert_eq!(dog.poll(10 * MS, "r2.1", &record, 31), []);
        assert!(dog.waits());
        assert_eq!(dog.poll(659 * MS, "r2.1", &record, 31), []);
        let steps = dog.poll(660 * MS, "r2.1", &record, 31);
        let [Step { ticket, name: StepName::CancelAttempt, what: What::Swap { record: next, version: 31 } }] =
            steps.as_slice()
        else {
            panic!("{steps:?}")
        };
        assert_eq!((next.term, next.phase, &*next.coordinator), (Term(5), Phase::CatchingUp, "dead.1"));
        assert!(next.reason.as_ref().unwrap().contains("nothing is heard of its coordinator dead.1"));
        assert_eq!(dog.poll(661 * MS, "r2.1", &record, 31), [], "once at a time");
        dog.answer(*ticket, &Answer::Swapped { record: next.clone(), version: 32 }, 662 * MS);
        // The old record may still be seen for a while.
        assert_eq!(dog.poll(662 * MS, "r2.1", &record, 31), []);
        let steps = dog.poll(663 * MS, "r2.1", next, 32);
        assert_eq!(names(&steps), ["unfreeze"]);
        let What::Unit(call) = &steps[0].what else { panic!("{steps:?}") };
        assert_eq!((call.term, call.owner), (Term(5), next.legs[0].from));
        // It is asked until it is done, and not again.
        dog.answer(steps[0].ticket, &Answer::Failed { reason: "away".to_owned() }, 700 * MS);
        assert_eq!(dog.poll(949 * MS, "r2.1", next, 32), []);
        let steps = dog.poll(950 * MS, "r2.1", next, 32);
        dog.answer(steps[0].ticket, &Answer::Done, 951 * MS);
        assert!(!dog.waits() && dog.poll(2_000 * MS, "r2.1", next, 32).is_empty());
    }

    #[test]
    fn what_was_decided_is_carried_out() {
        let (mut dog, record) = (watchdog(), switching());
        let _ = dog.poll(Duration::ZERO, "r2.1", &record, 31);
        let decided = record.decided(0, Epoch(9));
        assert_eq!(dog.poll(20 * MS, "r2.1", &decided, 32), [], "its coordinator is about to");
        let steps = dog.poll(170 * MS, "r2.1", &decided, 32);
        assert_eq!(names(&steps), ["release", "open", "unfreeze"]);
        for step in &steps {
            let What::Unit(call) = &step.what else { panic!("{step:?}") };
            assert_eq!((call.term, call.epoch, call.owner), (Term(4), Epoch(9), decided.legs[0].to));
            dog.answer(step.ticket, &Answer::Done, 180 * MS);
        }
        assert!(!dog.waits());
    }

    #[test]
    fn who_coordinates_or_has_finished_is_left_alone() {
        let (mut dog, record) = (watchdog(), switching());
        let nobody = MoveRecord { coordinator: String::new(), ..record.clone() };
        let copying = MoveRecord { phase: Phase::Copying, attempts: 0, ..record.clone() };
        let over = MoveRecord { phase: Phase::Done, ..record.clone() };
        for at in 0..100 {
            assert_eq!(dog.poll(at * 50 * MS, "dead.1", &record, 31), []);
            for record in [&nobody, &copying, &over] {
                assert_eq!(dog.poll(at * 50 * MS, "r2.1", record, 31), []);
                assert!(!dog.waits());
            }
        }
        // A coordinator that decides in time is never disturbed, however many attempts it makes.
        let mut record = record;
        for at in 0..100_u32 {
            record.term.0 += 1;
            assert_eq!(dog.poll(at * 600 * MS, "r2.1", &record, i64::from(at)), []);
        }
    }
}
