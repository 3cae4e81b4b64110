//! An attempt to switch is decided once and in time, on what stores have confirmed, or it is given up.

use super::*;

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
