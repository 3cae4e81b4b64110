//! The units of a leg move together: neighbours are one unit, and a step is one call.

use super::*;
use crate::moves::step::together;

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

/// The answers to the calls of a step come one by one. What is not confirmed may have been lost by a store that has restarted.
#[test]
fn nothing_is_decided_before_all_units_are_confirmed() {
    let mut bench = Bench::with(every_second_of(3));
    let (mut held, mut confirmed) = (Vec::new(), false);
    while held.is_empty() {
        assert!(bench.now < Duration::from_secs(60), "{:?}", bench.record.phase);
        for step in bench.machine.poll(bench.now) {
            if step.name == StepName::Confirm && std::mem::replace(&mut confirmed, true) {
                held.push(step);
                continue;
            }
            let answer = bench.run(&step);
            bench.machine.answer(step.ticket, answer, bench.now);
        }
        bench.now += TICK;
    }
    let decides = |bench: &mut Bench| {
        let steps = bench.machine.poll(bench.now);
        steps.iter().any(|step| step.name == StepName::Decide)
    };
    assert_eq!(held.len(), 2);
    assert!(!decides(&mut bench), "only the first of three is confirmed");
    for step in held {
        let answer = bench.run(&step);
        bench.machine.answer(step.ticket, answer, bench.now);
    }
    assert!(decides(&mut bench));
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
