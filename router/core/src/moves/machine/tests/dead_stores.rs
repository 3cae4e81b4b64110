//! Nothing is frozen for a store that does not answer, and a move can end without a store that is lost.

use super::*;

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
