//! Of two coordinators or two records of a move the later one counts, and a record can be read again.

use super::*;

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

/// Meta has lost an attempt, which has frozen the owners. They refuse calls of a unit that is not frozen.
fn with_a_lost_attempt(seen: Term) -> Bench {
    let (mut bench, frozen) = (Bench::new(), std::cell::Cell::new(true));
    bench.seen = seen;
    bench.answers = Box::new(move |name| {
        if name == StepName::Unfreeze {
            frozen.set(false);
        }
        let refused = || Answer::Failed { reason: "the unit is frozen".to_owned() };
        (frozen.get() && name == StepName::Track).then(refused)
    });
    bench
}

/// Seed 5714 of the simulation: the move did not end, and its keys were not served.
#[test]
fn owners_that_a_lost_attempt_has_frozen_serve_again_once_the_follower_cannot_open() {
    for seen in [Term(0), Term(40)] {
        let mut bench = with_a_lost_attempt(seen);
        bench.go(Duration::from_secs(1), |record| record.phase == Phase::CatchingUp);
        assert!((bench.count("unseal"), bench.count("unfreeze")) >= (3, 3), "{:?}", bench.log);
        for unit in ["0.0", "0.1", "1.0"] {
            let first = |step: &str| bench.log.iter().position(|line| *line == format!("{step} {unit}"));
            assert!(first("unseal") < first("unfreeze"), "{:?}", bench.log);
        }
        bench.to(Phase::Switched);
    }
}

/// The lost attempt was decided, and the follower has opened the units. Only reconciling with the stores helps.
#[test]
fn owners_that_a_lost_attempt_has_frozen_do_not_serve_again_after_a_decision() {
    let mut bench = with_a_lost_attempt(Term(40));
    let frozen = bench.answers;
    bench.answers = Box::new(move |name| match name {
        StepName::Unseal => Some(Answer::Failed { reason: "the unit is owned".to_owned() }),
        _ => frozen(name),
    });
    bench.go(Duration::from_secs(10), |_| false);
    assert!(bench.count("unseal") > 3 && bench.count("unfreeze") == 0, "{:?}", bench.log);
    assert_eq!(bench.record.phase, Phase::Copying);
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
