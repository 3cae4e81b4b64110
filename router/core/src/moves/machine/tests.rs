use kindred_partition_config::{
    ids::{Epoch, MoveId, StoreName},
    map::StoreIdx,
    parse::parse_config,
    state::ClusterState,
};

use super::*;
use crate::moves::step::together;

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
                let at_follower = matches!(step.name, StepName::Release | StepName::Drop);
                let store = if at_follower { call.follower } else { call.owner };
                let ends = matches!(
                    step.name,
                    StepName::Unfreeze
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

#[test]
fn from_the_first_step_to_the_last() {
    let mut bench = Bench::new();
    bench.to(Phase::Switched);
    assert_eq!(bench.log[..4], ["take-term", "track 0.0", "track 0.1", "track 1.0"].map(str::to_owned));
    let from = bench.log.iter().position(|line| line == "begin-switch").unwrap();
    // The legs switch one after another: the second is not frozen before the first is open.
    assert_eq!(
        bench.log[from..],
        [
            "begin-switch",
            "freeze 0.0",
            "freeze 0.1",
            "import-last 0.0",
            "import-last 0.1",
            "seal 0.0",
            "seal 0.1",
            "confirm 0.0",
            "confirm 0.1",
            "decide",
            "release 0.0",
            "open 0.0",
            "release 0.1",
            "open 0.1",
            "advance",
            "track 0.0",
            "track 0.1",
            "begin-switch",
            "freeze 1.0",
            "import-last 1.0",
            "seal 1.0",
            "confirm 1.0",
            "decide",
        ]
    );
    assert!(bench.record.legs.iter().all(|leg| leg.moved && leg.owner() == StoreIdx(2)));
    bench.machine.request(Request::Complete, 0).unwrap();
    bench.to(Phase::Done);
    assert_eq!((bench.count("open"), bench.count("drop"), bench.count("forget")), (3, 3, 3));
    assert_eq!(
        bench.machine.request(Request::Abort, 0).unwrap_err().to_string(),
        "the move is over: begin another one"
    );
}

#[test]
fn the_way_back_closes_by_itself() {
    let mut bench = Bench::new();
    bench.to(Phase::Switched);
    let window = Settings::default().reverse_window;
    bench.go(window - Duration::from_secs(1), |record| record.phase != Phase::Switched);
    assert_eq!(bench.record.phase, Phase::Switched);
    bench.to(Phase::Done);
}

#[test]
fn back_and_there_again() {
    let mut bench = Bench::new();
    bench.to(Phase::Switched);
    assert!(
        matches!(bench.machine.request(Request::Reverse, 0), Err(Refusal::NoWayBack { .. })),
        "it does not follow yet"
    );
    bench.go(Duration::from_secs(1), |_| false);
    bench.machine.request(Request::Reverse, 0).unwrap();
    assert_eq!(bench.machine.request(Request::Reverse, 0), Err(Refusal::Busy));
    bench.to(Phase::Ready);
    assert_eq!(bench.record.goal, Goal::Back);
    bench.to(Phase::Switched);
    assert!(bench.record.legs.iter().all(|leg| !leg.moved && leg.epoch.is_some()));
    bench.go(Duration::from_secs(1), |_| false);
    bench.machine.request(Request::Reverse, 0).unwrap();
    bench.to(Phase::CatchingUp);
    bench.to(Phase::Switched);
    assert!(bench.record.legs.iter().all(|leg| leg.moved));
    assert_eq!(bench.record.attempts, 6);
}

#[test]
fn a_leg_from_a_stock_etcd_has_no_way_back_and_ends_by_itself() {
    let mut bench = Bench::with(record().one_way_from(|store| store == StoreIdx(0) || store == StoreIdx(1)));
    bench.to(Phase::Switched);
    assert_eq!(bench.machine.request(Request::Reverse, 0), Err(Refusal::OneWay));
    // The old owner is asked only to release.
    let decided = bench.log.iter().rposition(|line| line == "decide").unwrap();
    bench.to(Phase::Done);
    let after: Vec<&str> = bench.log[decided + 1..].iter().map(String::as_str).collect();
    assert_eq!(after[..3], ["release 1.0", "open 1.0", "complete"]);
    assert!(
        after[3..]
            .iter()
            .all(|line| line.starts_with("drop") || line.starts_with("forget") || *line == "finish")
    );
}

#[test]
fn what_has_left_a_stock_etcd_is_not_brought_back_by_an_abort() {
    let mut bench = Bench::with(record().one_way_from(|store| store == StoreIdx(0)));
    bench.go(Duration::from_secs(60), |record| record.legs[0].moved);
    assert_eq!(bench.machine.request(Request::Abort, 0), Err(Refusal::OneWay));
    bench.to(Phase::Done);
    let json = bench.record.to_json();
    assert_eq!(MoveRecord::from_json(&json).unwrap(), bench.record);
}

#[test]
fn a_follower_that_lost_its_copy_is_no_way_back() {
    let mut bench = Bench::new();
    bench.to(Phase::Switched);
    let lost = |name| {
        let lost = Answer::Lost { reason: "restarted".to_owned() };
        matches!(name, StepName::ReverseTail | StepName::Copy).then_some(lost)
    };
    bench.answers = Box::new(lost);
    bench.go(Duration::from_secs(1), |_| false);
    assert!(matches!(bench.machine.request(Request::Reverse, 0), Err(Refusal::NoWayBack { .. })));
    // It is copied again, and then there is a way back.
    bench.answers = Box::new(|_| None);
    bench.go(Duration::from_secs(1), |_| false);
    assert_eq!(bench.machine.request(Request::Reverse, 0), Ok(()));
}

#[test]
fn an_attempt_that_takes_too_long_is_given_up_first_and_unfrozen_then() {
    let mut bench = Bench::new();
    bench.answers = Box::new(|name| {
        (name == StepName::Seal).then(|| Answer::Failed { reason: "unreachable".to_owned() })
    });
    bench.to(Phase::Switching { attempt: 1, leg: 0 });
    let began = bench.now;
    bench.go(Duration::from_secs(60), |record| record.phase == Phase::CatchingUp);
    assert!(bench.now - began <= Duration::from_millis(600), "{:?}", bench.now - began);
    assert_eq!(bench.record.reason.as_deref(), Some("not decided within 500 ms of the first freeze"));
    assert_eq!(bench.count("unfreeze"), 0, "not before the abort is written");
    let term = bench.record.term;
    bench.answers = Box::new(|_| None);
    bench.go(Duration::from_secs(60), |record| matches!(record.phase, Phase::Switching { .. }));
    assert!(bench.now - began >= Settings::default().backoff, "it waits before the next attempt");
    assert_eq!((bench.count("unfreeze 0"), bench.count("unfreeze 1")), (2, 0));
    assert!(bench.record.term > term, "every attempt has a term of its own");
    bench.to(Phase::Switched);
}

/// Meta does not answer the decision and is then asked to give the attempt up; it accepts whichever comes first.
#[test]
fn f30_the_budget_of_an_attempt_goes_on_while_meta_is_asked_to_decide() {
    let mut bench = Bench::new();
    bench.silent = Some(StepName::Decide);
    bench.go(Duration::from_secs(60), |record| record.reason.is_some());
    assert_eq!(bench.record.phase, Phase::CatchingUp);
    assert_eq!(bench.record.reason.as_deref(), Some("not decided within 500 ms of the first freeze"));
    assert_eq!((bench.count("decide"), bench.count("cancel-attempt"), bench.count("read")), (1, 1, 0));
    // It is too late for the decision; the next attempt is another one.
    bench.silent = None;
    bench.to(Phase::Switched);
}

/// A decision under way together with the swap that gives the attempt up; returns both steps.
fn given_up_too_late() -> (Bench, Step, Step) {
    let mut bench = Bench::new();
    bench.to(Phase::Switching { attempt: 1, leg: 0 });
    let mut found = Vec::new();
    while found.len() < 2 {
        bench.now += TICK;
        for step in bench.machine.poll(bench.now) {
            if matches!(step.name, StepName::Decide | StepName::CancelAttempt) {
                found.push(step);
                continue;
            }
            let answer = bench.run(&step);
            bench.machine.answer(step.ticket, answer, bench.now);
        }
    }
    let cancel = found.pop().unwrap();
    let decide = found.pop().unwrap();
    assert_eq!((decide.name, cancel.name), (StepName::Decide, StepName::CancelAttempt));
    (bench, decide, cancel)
}

#[test]
fn f30_a_decision_that_is_answered_late_is_gone_by_at_once() {
    // Meta accepted the decision, so it refuses the other swap.
    let (mut bench, decide, cancel) = given_up_too_late();
    let decided = bench.run(&decide);
    let refused = bench.run(&cancel);
    assert_eq!(refused, Answer::Conflict);
    bench.machine.answer(decide.ticket, decided, bench.now);
    assert!(bench.machine.record().legs[0].moved);
    let next: Vec<_> = bench.machine.poll(bench.now).iter().map(|step| step.name).collect();
    assert!(next.contains(&StepName::Open) && !next.contains(&StepName::Read), "{next:?}");
    bench.machine.answer(cancel.ticket, refused, bench.now);
    assert!(bench.machine.record().legs[0].moved);
    // The same if the answer to the decision is lost, or comes after a read.
    let (mut bench, decide, cancel) = given_up_too_late();
    let decided = bench.run(&decide);
    let refused = bench.run(&cancel);
    bench.machine.answer(cancel.ticket, refused, bench.now);
    bench.to(Phase::Switched);
    let record = bench.machine.record().clone();
    bench.machine.answer(decide.ticket, decided, bench.now);
    assert_eq!(*bench.machine.record(), record);
}

#[test]
fn f30_an_attempt_that_was_given_up_is_not_decided_any_more() {
    let (mut bench, decide, cancel) = given_up_too_late();
    let given_up = bench.run(&cancel);
    let refused = bench.run(&decide);
    assert_eq!(refused, Answer::Conflict);
    bench.machine.answer(cancel.ticket, given_up, bench.now);
    bench.machine.answer(decide.ticket, refused, bench.now);
    assert_eq!((bench.machine.record().phase, bench.record.legs[0].moved), (Phase::CatchingUp, false));
    bench.go(Duration::from_secs(1), |_| false);
    assert_eq!((bench.count("unfreeze 0"), bench.count("read")), (2, 0));
    bench.to(Phase::Switched);
}

/// A target that died before the switch, or a former owner that died before the way back, was up to date a moment ago:
/// nothing may be frozen for it.
#[test]
fn f15_nothing_is_frozen_for_a_store_that_does_not_answer_now() {
    for name in [StepName::Tail, StepName::Track] {
        let mut bench = Bench::new();
        bench.to(Phase::Ready);
        bench.answers = Box::new(move |step| {
            (step == name || step == StepName::Tail)
                .then(|| Answer::Failed { reason: "connection refused".to_owned() })
        });
        bench.log.clear();
        bench.go(Duration::from_secs(120), |_| false);
        let begun = bench.count("begin-switch");
        assert!(begun <= 1 && bench.count("freeze") <= 2, "{begun} {:?}", bench.log);
        bench.answers = Box::new(|_| None);
        bench.to(Phase::Switched);
    }
    // A store that hangs answers nothing at all.
    let mut bench = Bench::new();
    bench.to(Phase::Verifying);
    bench.silent = Some(StepName::Tail);
    let unlike = |name| (name == StepName::Verify).then(|| Answer::Failed { reason: "compacted".to_owned() });
    bench.answers = Box::new(unlike);
    bench.go(2 * Settings::default().fresh, |_| false);
    bench.answers = Box::new(|_| None);
    bench.log.clear();
    bench.go(Duration::from_secs(60), |_| false);
    assert_eq!(bench.count("freeze"), 0, "{:?}", bench.log);
}

#[test]
fn f15_attempts_pause_longer_each_time_and_end_by_themselves() {
    let mut bench = Bench::new();
    let fails = |name| (name == StepName::Seal).then(|| Answer::Failed { reason: "no clock".to_owned() });
    bench.answers = Box::new(fails);
    let mut begun = Vec::new();
    for attempt in 1..=Settings::default().attempts_max {
        bench.reach_within(Duration::from_secs(300), Phase::Switching { attempt, leg: 0 });
        begun.push(bench.now);
    }
    let pauses: Vec<u64> = begun.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60, 60]);
    bench.to(Phase::Aborted);
    let why = bench.record.reason.clone().unwrap();
    assert!(why.contains("10 attempts to switch were given up") && why.contains("500 ms"), "{why}");

    // A new coordinator continues the growing pauses.
    let mut first = Bench::new();
    first.answers = Box::new(fails);
    first.to(Phase::Switching { attempt: 4, leg: 0 });
    let mut second = Bench::with(first.record.clone());
    second.machine = Machine::new("r2.1".to_owned(), Settings::default(), first.record.clone(), 1);
    second.go(Duration::from_secs(120), |record| record.attempts > 4);
    assert!(second.now >= Duration::from_secs(16), "{:?}", second.now);

    // A way back that fails as often is given up too, and everything stays where it is served.
    let mut back = Bench::new();
    back.to(Phase::Switched);
    back.go(Duration::from_secs(1), |_| false);
    back.machine.request(Request::Reverse, 0).unwrap();
    back.answers = Box::new(fails);
    back.go(Duration::from_secs(600), |record| record.goal == Goal::There);
    back.answers = Box::new(|_| None);
    back.to(Phase::Switched);
    assert!(back.record.legs.iter().all(|leg| leg.moved && leg.owner() == StoreIdx(2)));
    assert_eq!(back.record.failed, 0);
}

/// The former owner has died since the switch: the reverse is refused if that is known, else it can be taken back.
#[test]
fn f15_a_reverse_can_be_taken_back() {
    let dead = |name| {
        matches!(name, StepName::Tail | StepName::ReverseTail)
            .then(|| Answer::Failed { reason: "connection refused".to_owned() })
    };
    let mut bench = Bench::new();
    bench.to(Phase::Switched);
    bench.go(Duration::from_secs(1), |_| false);
    bench.answers = Box::new(dead);
    bench.go(Duration::from_secs(1), |_| false);
    assert!(matches!(bench.machine.request(Request::Reverse, 0), Err(Refusal::NoWayBack { .. })));
    bench.answers = Box::new(|_| None);
    bench.go(Duration::from_secs(1), |_| false);
    bench.machine.request(Request::Reverse, 0).unwrap();
    bench.answers = Box::new(dead);
    bench.log.clear();
    bench.go(Duration::from_secs(60), |_| false);
    assert_eq!((bench.record.goal, bench.count("freeze")), (Goal::Back, 0), "{:?}", bench.log);
    let refused = bench.machine.request(Request::Complete, 0).unwrap_err().to_string();
    assert!(refused.contains("not switched yet"), "{refused}");
    bench.machine.request(Request::Abort, 9).unwrap();
    bench.to(Phase::Switched);
    assert_eq!((bench.record.goal, bench.record.heard, bench.count("freeze")), (Goal::There, 9, 0));
    assert!(bench.record.legs.iter().all(|leg| leg.moved));
    bench.machine.request(Request::Complete, 0).unwrap();
    bench.to(Phase::Done);
}

/// The same for an abort that cannot bring back what has moved.
#[test]
fn f15_an_abort_can_be_taken_back() {
    let mut bench = Bench::new();
    bench.go(Duration::from_secs(60), |record| record.legs[0].moved);
    bench.machine.request(Request::Abort, 0).unwrap();
    bench.answers =
        Box::new(|name| (name == StepName::Tail).then(|| Answer::Failed { reason: "dead".to_owned() }));
    bench.go(Duration::from_secs(10), |_| false);
    assert_eq!((bench.record.goal, bench.record.phase.is_over()), (Goal::Abort, false));
    assert!(bench.machine.request(Request::Abort, 0).unwrap_err().to_string().contains("reverse it"));
    bench.answers = Box::new(|_| None);
    bench.machine.request(Request::Reverse, 0).unwrap();
    bench.to(Phase::Switched);
    assert!(bench.record.legs.iter().all(|leg| leg.moved));
}

/// `store replace`: in any phase and with any goal, the move ends without the lost store.
#[test]
fn f15_a_replaced_store_ends_what_could_not_end_with_it() {
    for lost in [StoreIdx(0), StoreIdx(1), StoreIdx(2)] {
        for phase in 0..7 {
            let mut bench = Bench::new();
            let deep = Duration::from_secs(60);
            match phase {
                0 => bench.to(Phase::Copying),
                1 => bench.to(Phase::Ready),
                2 => bench.to(Phase::Switching { attempt: 1, leg: 0 }),
                3 => bench.go(deep, |record| record.legs[0].moved),
                4 => bench.to(Phase::Switched),
                5 => {
                    bench.to(Phase::Switched);
                    bench.go(Duration::from_secs(1), |_| false);
                    bench.machine.request(Request::Reverse, 0).unwrap();
                    bench.go(deep, |record| !record.legs[1].moved);
                }
                _ => {
                    bench.go(deep, |record| record.legs[0].moved);
                    bench.machine.request(Request::Abort, 0).unwrap();
                    bench.go(Duration::from_millis(100), |_| false);
                }
            }
            // Calls to a removed store count as done; no other call can succeed.
            bench.dead = Some(lost);
            bench.go(Duration::from_secs(1), |_| false);
            bench.machine.stores_gone(BTreeSet::from([lost]));
            bench.go(deep, |record| matches!(record.phase, Phase::Switched) || record.phase.is_over());
            if bench.record.phase == Phase::Switched {
                bench.machine.request(Request::Complete, 0).unwrap();
            }
            bench.go(deep, |record| record.phase.is_over());
            let over = bench.record.phase.is_over();
            assert!(over, "{lost} in phase {phase}: {:?} {:?}", bench.record.phase, bench.log);
            let legs = bench.record.legs.iter();
            assert!(legs.clone().all(|leg| leg.lost == (leg.from == lost || leg.to == lost)));
            assert_eq!(MoveRecord::from_json(&bench.record.to_json()), Ok(bench.record.clone()));
        }
    }
}

/// Meta was rolled back: stores have seen a higher term than the record's.
#[test]
fn f16_a_term_that_a_store_has_seen_is_taken_up() {
    let mut bench = Bench::new();
    bench.seen = Term(40);
    bench.to(Phase::Switched);
    assert_eq!(bench.machine.status(), Status::Running);
    assert!(bench.record.term > Term(40), "{:?}", bench.record.term);
    // The same in the middle of an attempt, which is given up first.
    let mut bench = Bench::new();
    bench.to(Phase::Switching { attempt: 1, leg: 0 });
    bench.seen = Term(40);
    bench.go(Duration::from_secs(1), |record| record.term > Term(40));
    assert!(!matches!(bench.record.phase, Phase::Switching { .. }), "{:?}", bench.record);
    bench.to(Phase::Switched);
}

#[test]
fn f16_of_two_records_of_a_move_the_later_one_is_known() {
    let mut bench = Bench::new();
    let mut seen: Vec<MoveRecord> = Vec::new();
    for _ in 0..2_000 {
        bench.go(TICK, |_| false);
        if seen.last() != Some(&bench.record) {
            seen.push(bench.record.clone());
        }
    }
    for (at, record) in seen.iter().enumerate() {
        for before in &seen[..at] {
            assert!(!before.is_newer_than(record), "{before:?} {record:?}");
            let same = (before.term, &before.legs) == (record.term, &record.legs);
            assert!(same || record.is_newer_than(before), "{before:?} {record:?}");
        }
    }
}

/// R15(c): a freeze or seal of an earlier incarnation of a store must not be decided on.
#[test]
fn a_store_that_restarts_between_the_freeze_and_the_decision_ends_the_attempt() {
    let mut bench = Bench::new();
    bench.to(Phase::Switching { attempt: 1, leg: 0 });
    let incarnations = |bench: &Bench| {
        let units = bench.machine.units.iter().filter(|(at, _)| at.leg == 0);
        units.map(|(_, unit)| (unit.frozen, unit.sealed)).collect::<Vec<_>>()
    };
    bench.answers = Box::new(|name| {
        (name == StepName::Confirm).then(|| Answer::Restarted { reason: "store b has restarted".to_owned() })
    });
    while bench.count("confirm") == 0 {
        bench.go(TICK, |_| false);
    }
    assert_eq!(incarnations(&bench), [(Some((Revision(100), 7)), Some(8)); 2], "what is to be confirmed");
    bench.go(Duration::from_secs(1), |record| record.phase == Phase::CatchingUp);
    assert_eq!((bench.count("decide"), bench.count("cancel-attempt")), (0, 1), "{:?}", bench.log);
    assert_eq!(bench.record.reason.as_deref(), Some("store b has restarted"));
    // The next attempt repeats all calls to the stores, including the owner's track.
    bench.answers = Box::new(|_| None);
    bench.log.clear();
    bench.go(Duration::from_secs(60), |record| record.legs[0].moved);
    for step in ["unfreeze", "track", "freeze", "import-last", "seal", "confirm"] {
        assert_eq!(bench.count(&format!("{step} 0")), 2, "{step}: {:?}", bench.log);
    }
    assert_eq!(bench.count("decide"), 1);
}

/// A decision that failed may be tried again much later.
#[test]
fn a_decision_that_is_tried_again_is_confirmed_again() {
    let mut bench = Bench::new();
    let tries = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = tries.clone();
    bench.answers = Box::new(move |name| {
        let fails = name == StepName::Decide && counted.replace(counted.get() + 1) == 0;
        fails.then(|| Answer::Failed { reason: "timeout".to_owned() })
    });
    bench.go(Duration::from_secs(60), |record| record.legs[0].moved);
    let of_attempt: Vec<&str> =
        bench.log.iter().map(String::as_str).skip_while(|line| !line.starts_with("seal")).collect();
    let want = [
        "seal 0.0",
        "seal 0.1",
        "confirm 0.0",
        "confirm 0.1",
        "decide",
        "read",
        "confirm 0.0",
        "confirm 0.1",
        "decide",
    ];
    assert_eq!(of_attempt, want);
    assert_eq!(tries.get(), 2);
}

/// An owner that keeps nothing on disk has forgotten the track after a restart.
#[test]
fn an_owner_that_cannot_be_followed_is_asked_to_track_again() {
    let mut bench = Bench::new();
    bench.to(Phase::Verifying);
    bench.answers = Box::new(|name| {
        (name == StepName::Tail).then(|| Answer::Failed { reason: "it has no record of the unit".to_owned() })
    });
    bench.log.clear();
    bench.go(Duration::from_secs(1), |_| false);
    bench.answers = Box::new(|_| None);
    assert!(bench.count("track 0.0") > 0, "{:?}", bench.log);
    bench.to(Phase::Switched);
}

#[test]
fn aborts() {
    let mut early = Bench::new();
    early.to(Phase::Verifying);
    early.machine.request(Request::Abort, 0).unwrap();
    early.to(Phase::Aborted);
    assert_eq!((early.count("drop"), early.count("unfreeze"), early.count("decide")), (3, 0, 0));
    // What has moved already goes back first.
    let mut late = Bench::new();
    late.to(Phase::Switching { attempt: 2, leg: 1 });
    late.machine.request(Request::Abort, 0).unwrap();
    late.to(Phase::Aborted);
    assert!(late.record.legs.iter().all(|leg| !leg.moved));
    assert_eq!((late.count("decide"), late.count("drop")), (2, 3));
    let mut switched = Bench::new();
    switched.to(Phase::Switched);
    assert!(matches!(
        switched.machine.request(Request::Abort, 0),
        Err(Refusal::Phase { phase: "switched", .. })
    ));
    // If the sides differ, nothing is switched.
    let mut different = Bench::new();
    different.answers =
        Box::new(|name| (name == StepName::Verify).then(|| Answer::Different { reason: "key x".to_owned() }));
    different.to(Phase::Aborted);
    assert_eq!((different.record.reason.as_deref(), different.count("begin-switch")), (Some("key x"), 0));
}

/// An operator's request survives a coordinator only if the record contains it.
#[test]
fn a_request_is_heard_when_the_record_says_so() {
    let mut bench = Bench::new();
    bench.to(Phase::Verifying);
    bench.machine.request(Request::Abort, 17).unwrap();
    assert_eq!((bench.machine.record().heard, bench.record.heard), (0, 0));
    bench.go(Duration::from_secs(1), |record| record.goal == Goal::Abort);
    assert_eq!(bench.record.heard, 17, "with the very write that carries it out");
    let mut bench = Bench::new();
    bench.to(Phase::Switched);
    bench.go(Duration::from_secs(1), |_| false);
    bench.machine.request(Request::Reverse, 18).unwrap();
    bench.to(Phase::Ready);
    assert_eq!(bench.record.heard, 18);
    bench.to(Phase::Switched);
    bench.go(Duration::from_secs(1), |_| false);
    bench.machine.request(Request::Complete, 19).unwrap();
    bench.to(Phase::Completing);
    assert_eq!(bench.record.heard, 19);
    // A change without a request leaves `heard` at 0.
    let mut alone = Bench::new();
    alone.to(Phase::Switched);
    alone.go(Settings::default().reverse_window, |record| record.phase != Phase::Switched);
    alone.to(Phase::Done);
    assert_eq!(alone.record.heard, 0);
    assert!(!String::from_utf8(alone.record.to_json()).unwrap().contains("heard"));
}

#[test]
fn who_takes_over_gives_up_what_was_not_decided_and_finishes_what_was() {
    let mut first = Bench::new();
    first.to(Phase::Switching { attempt: 1, leg: 0 });
    let mut undecided = Bench::with(first.record.clone());
    undecided.machine = Machine::new("r2.1".to_owned(), Settings::default(), first.record.clone(), 1);
    undecided.go(Duration::from_millis(30), |_| false);
    assert_eq!(undecided.log[0], "take-term");
    assert!(!matches!(undecided.record.phase, Phase::Switching { .. }));
    assert_eq!(undecided.count("unfreeze"), 3);
    undecided.to(Phase::Switched);

    let mut first = Bench::new();
    first.to(Phase::Switched);
    let mut decided = Bench::with(first.record.clone());
    decided.machine = Machine::new("r2.1".to_owned(), Settings::default(), first.record, 1);
    decided.go(Duration::from_millis(50), |_| false);
    assert_eq!((decided.count("release"), decided.count("open")), (3, 3));
}

#[test]
fn who_was_taken_over_stops() {
    let mut bench = Bench::new();
    bench.to(Phase::Copying);
    bench.go(Duration::from_millis(20), |_| false);
    bench.record.coordinator = "r2.1".to_owned();
    bench.record.term.0 += 1;
    bench.version += 1;
    bench.go(Duration::from_secs(5), |_| false);
    assert_eq!(bench.machine.status(), Status::Fenced);
    assert_eq!(bench.machine.poll(bench.now), []);
}

#[test]
fn an_answer_that_was_lost_is_found_out_by_reading() {
    let mut bench = Bench::new();
    bench.to(Phase::Switching { attempt: 1, leg: 0 });
    bench.go(Duration::from_millis(60), |_| false);
    // The decision is written, but the answer is lost.
    let mut lost = Bench::with(bench.record.clone());
    lost.machine = Machine::new("r2.1".to_owned(), Settings::default(), bench.record.clone(), 1);
    lost.to(Phase::Ready);
    let steps = loop {
        lost.now += TICK;
        let steps = lost.machine.poll(lost.now);
        if steps.iter().any(|step| step.name == StepName::Decide) {
            break steps;
        }
        for step in steps {
            let answer = lost.run(&step);
            lost.machine.answer(step.ticket, answer, lost.now);
        }
    };
    for step in steps {
        let answer = lost.run(&step);
        let unknown = Answer::Failed { reason: "timeout".to_owned() };
        let answer = if step.name == StepName::Decide { unknown } else { answer };
        lost.machine.answer(step.ticket, answer, lost.now);
    }
    lost.log.clear();
    lost.go(Duration::from_millis(300), |_| false);
    assert_eq!((lost.log[0].as_str(), lost.count("cancel-attempt")), ("read", 0));
    assert!(lost.count("open") > 0);
}

#[test]
fn records_as_text() {
    let mut bench = Bench::new();
    bench.to(Phase::Switching { attempt: 2, leg: 1 });
    let text = String::from_utf8(bench.record.to_json()).unwrap();
    assert_eq!(MoveRecord::from_json(text.as_bytes()), Ok(bench.record.clone()));
    assert!(text.contains(r#""phase":{"switching":{"attempt":2,"leg":1}}"#), "{text}");
    for (from, to) in
        [(r#""version":1"#, r#""version":2"#), (r#""term""#, r#""trem""#), (r#""leg":1"#, r#""leg":2"#)]
    {
        assert!(MoveRecord::from_json(text.replace(from, to).as_bytes()).is_err(), "{to}");
    }
    let names: std::collections::BTreeSet<_> = StepName::ALL.iter().map(|name| name.as_str()).collect();
    assert_eq!(names.len(), StepName::ALL.len());
}

/// A move of every second range of the pods from a to b, so that it has this many units.
fn every_second_of(units: usize) -> MoveRecord {
    let ranges = 2 * units;
    let mut config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\npartitions:\n".to_owned();
    for at in 0..ranges {
        let start =
            if at > 0 { format!("rangeStart: n{at:04}, isRangeStartValid: true, ") } else { String::new() };
        let end = match at + 1 {
            next if next < ranges => format!("rangeEnd: n{next:04}, isRangeEndValid: true, "),
            _ => String::new(),
        };
        let line = format!(
            "- {{metadata: {{name: p{at}}}, resource: pods, {start}{end}serviceGroupId: STORE{at}.}}\n"
        );
        config.push_str(&line);
    }
    let on = |store: &dyn Fn(usize) -> &'static str| {
        let config =
            (0..ranges).fold(config.clone(), |config, at| config.replace(&format!("STORE{at}."), store(at)));
        ClusterState::bootstrap(&parse_config(&config).unwrap()).unwrap().map
    };
    let (before, after) = (on(&|_| "a"), on(&|at| if at % 2 == 0 { "a" } else { "b" }));
    let transfers = kindred_partition_config::transfers::transfers(&before, &after);
    MoveRecord::new(MoveId(7), &transfers).unwrap()
}

/// Each step of a switch is one call for all units of a leg, and all units are tailed at the same times.
#[test]
fn f18_the_units_of_a_leg_are_switched_in_one_call_a_step() {
    let record = every_second_of(250);
    let units = record.legs[0].transfers.len();
    assert_eq!((record.legs.len(), units), (1, 250));
    let mut bench = Bench::with(record);
    let mut calls: BTreeMap<StepName, Vec<usize>> = BTreeMap::new();
    // Copies end one after another, so that the units are first tailed at different times.
    while bench.record.phase != Phase::Switched {
        assert!(bench.now < Duration::from_secs(60), "{:?}", bench.record.phase);
        for steps in together(bench.machine.poll(bench.now)) {
            calls.entry(steps[0].name).or_default().push(steps.len());
            for step in steps {
                let answer = bench.run(&step);
                bench.machine.answer(step.ticket, answer, bench.now);
            }
        }
        bench.now += TICK;
    }
    assert_eq!(bench.record.attempts, 1);
    let once = [StepName::Track, StepName::Freeze, StepName::ImportLast, StepName::Seal, StepName::Confirm];
    for name in once {
        assert_eq!(calls[&name], [units], "{}", name.as_str());
    }
    assert!(
        calls[&StepName::Copy].iter().all(|together| *together == 1),
        "what carries data is done one by one"
    );
    bench.go(Duration::from_secs(1), |_| false);
    calls.clear();
    let polls = 50;
    for _ in 0..polls {
        for steps in together(bench.machine.poll(bench.now)) {
            calls.entry(steps[0].name).or_default().push(steps.len());
            for step in steps {
                let answer = bench.run(&step);
                bench.machine.answer(step.ticket, answer, bench.now);
            }
        }
        bench.now += TICK;
    }
    let tails = &calls[&StepName::ReverseTail];
    assert!(tails.len() <= polls && tails.iter().all(|together| *together == units), "{tails:?}");
}

/// Adjacent ranges with the same source and target form one unit.
#[test]
fn f18_neighbours_of_a_leg_are_one_unit() {
    let ranges = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\npartitions:\n\
        - {metadata: {name: p}, resource: pods, serviceGroupId: a, rangeEnd: g, isRangeEndValid: true}\n\
        - {metadata: {name: q}, resource: pods, serviceGroupId: a, rangeStart: g, isRangeStartValid: true, rangeEnd: m, isRangeEndValid: true}\n\
        - {metadata: {name: r}, resource: pods, serviceGroupId: a, rangeStart: m, isRangeStartValid: true, rangeEnd: t, isRangeEndValid: true}\n\
        - {metadata: {name: s}, resource: pods, serviceGroupId: b, rangeStart: t, isRangeStartValid: true}\n";
    let state = ClusterState::bootstrap(&parse_config(ranges).unwrap()).unwrap();
    let change = state.move_kind("pods", &StoreName("b".to_owned())).unwrap();
    let record = MoveRecord::new(MoveId(7), &change.transfers).unwrap();
    let units: Vec<_> = record.legs.iter().flat_map(|leg| &leg.transfers).map(|of| &of.unit.range).collect();
    // The pseudo-key is adjacent to none of them.
    assert_eq!(units.len(), 2, "{units:?}");
    assert!(
        units.iter().any(|range| range.contains(b"/registry/pods/a") && range.contains(b"/registry/pods/s"))
    );
}
