//! A move makes its steps in their order. It can go back while there is a way back, and closes by itself.

use super::*;

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
