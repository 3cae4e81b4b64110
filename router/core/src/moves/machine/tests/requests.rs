//! What an operator asks for is carried out, stands in the record, and can be taken back.

use std::cell::Cell;
use std::rc::Rc;

use super::*;

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

#[test]
fn a_held_move_switches_when_it_is_asked_to() {
    let mut bench = Bench::with(record().held(true));
    bench.to(Phase::Ready);
    let followed = Rc::new(Cell::new(0));
    let counted = followed.clone();
    bench.answers = Box::new(move |name| {
        counted.set(counted.get() + u32::from(name == StepName::Tail));
        None
    });
    bench.go(Duration::from_secs(600), |record| record.phase != Phase::Ready);
    assert_eq!((bench.record.phase, bench.count("freeze")), (Phase::Ready, 0));
    assert!(followed.get() > 10, "it follows on");
    bench.machine.request(Request::Switch, 7).unwrap();
    bench.to(Phase::Switched);
    assert_eq!((bench.record.heard, bench.record.hold), (7, false));
    assert!(bench.machine.request(Request::Switch, 8).is_err());
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
