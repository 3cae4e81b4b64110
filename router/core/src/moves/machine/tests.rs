//! Runs the machine in a world of its own. Each file of `tests/` has the tests of one promise.

use kindred_partition_config::{
    ids::{Epoch, MoveId, StoreName},
    map::StoreIdx,
    parse::parse_config,
    state::ClusterState,
};

use super::*;

mod attempts;
mod coordinators;
mod course;
mod dead_stores;
mod requests;
mod units;

/// A move of pods to c, from a and, from "m" on, from b: two legs, the first with two units.
fn record() -> MoveRecord {
    let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}, {name: c, slot: 3}]\npartitions:\n\
        - {metadata: {name: p}, resource: pods, serviceGroupId: a, rangeEnd: m, isRangeEndValid: true}\n\
        - {metadata: {name: q}, resource: pods, serviceGroupId: b, rangeStart: m, isRangeStartValid: true}\n";
    let state = ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap();
    let change = state.move_kind("pods", &StoreName("c".to_owned())).unwrap();
    MoveRecord::new(MoveId(7), &change.transfers).unwrap()
}

/// A machine, in a world where every step is done at once unless a test says otherwise.
struct Bench {
    machine: Machine,
    record: MoveRecord,
    version: i64,
    now: Duration,
    /// The steps that were begun, except tails; calls with their leg and transfer.
    log: Vec<String>,
    answers: Box<dyn Fn(StepName) -> Option<Answer>>,
    /// Steps of this kind are never answered.
    silent: Option<StepName>,
    /// This store fails all calls; after its removal, calls that end the move count as done.
    dead: Option<StoreIdx>,
    /// The highest term that stores have seen.
    seen: Term,
}

impl Bench {
    fn new() -> Self {
        Self::with(record())
    }

    fn with(record: MoveRecord) -> Self {
        let machine = Machine::new("r1.1".to_owned(), Settings::default(), record.clone(), 1);
        Self {
            machine,
            record,
            version: 1,
            now: Duration::ZERO,
            log: Vec::new(),
            answers: Box::new(|_| None),
            silent: None,
            dead: None,
            seen: Term(0),
        }
    }

    fn run(&mut self, step: &Step) -> Answer {
        let swapped =
            |bench: &Self| Answer::Swapped { record: Box::new(bench.record.clone()), version: bench.version };
        match &step.what {
            What::Read => Answer::Record { record: Box::new(self.record.clone()), version: self.version },
            What::Swap { version, .. } | What::Decide { version, .. } if *version != self.version => {
                Answer::Conflict
            }
            What::Swap { record, .. } => {
                self.record = (**record).clone();
                self.version += 1;
                swapped(self)
            }
            What::Decide { record, leg, .. } => {
                self.record = record.decided(*leg, Epoch(10 + self.version as u64));
                self.version += 1;
                swapped(self)
            }
            What::Unit(call) if call.term < self.seen => Answer::Stale { seen: self.seen },
            What::Unit(call) if self.dead.is_some_and(|dead| call.owner == dead || call.follower == dead) => {
                let at_follower = matches!(step.name, StepName::Release | StepName::Drop | StepName::Unseal);
                let store = if at_follower { call.follower } else { call.owner };
                let ends = matches!(
                    step.name,
                    StepName::Unfreeze
                        | StepName::Unseal
                        | StepName::Open
                        | StepName::Forget
                        | StepName::Release
                        | StepName::Drop
                );
                match ends && (Some(store) != self.dead || self.machine.gone.contains(&store)) {
                    true => Answer::Done,
                    false => Answer::Failed { reason: "dead".to_owned() },
                }
            }
            What::Unit(_) => match step.name {
                StepName::Freeze => Answer::Frozen { final_revision: Revision(100), incarnation: 7 },
                StepName::Seal => Answer::Sealed { incarnation: 8 },
                StepName::Tail | StepName::ReverseTail => Answer::Followed { lag: Duration::ZERO },
                _ => Answer::Done,
            },
        }
    }

    /// Polls and answers until `until` holds, at most for `time`.
    fn go(&mut self, time: Duration, until: impl Fn(&MoveRecord) -> bool) {
        let end = self.now + time;
        while self.now < end && !until(&self.record) && self.machine.status() == Status::Running {
            let steps = self.machine.poll(self.now);
            for step in steps {
                let text = match &step.what {
                    What::Unit(call) => {
                        format!("{} {}.{}", step.name.as_str(), call.at.leg, call.at.transfer)
                    }
                    _ => step.name.as_str().to_owned(),
                };
                if !matches!(step.name, StepName::Tail | StepName::ReverseTail) {
                    self.log.push(text);
                }
                if self.silent == Some(step.name) {
                    continue;
                }
                let answer = match (self.answers)(step.name) {
                    Some(answer) => answer,
                    None => self.run(&step),
                };
                self.machine.answer(step.ticket, answer, self.now);
            }
            self.now += TICK;
        }
    }

    fn to(&mut self, phase: Phase) {
        self.reach_within(Duration::from_secs(60), phase);
    }

    fn reach_within(&mut self, time: Duration, phase: Phase) {
        self.go(time, |record| record.phase == phase);
        assert_eq!(self.record.phase, phase, "{:?}", self.log);
    }

    fn count(&self, text: &str) -> usize {
        self.log.iter().filter(|line| line.starts_with(text)).count()
    }
}
