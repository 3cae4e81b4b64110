//! Correct histories pass, and are really looked at.

mod support;

use kindred_checker::check;
use kindred_checker::history::History;
use support::{Flavour, busy};

#[test]
fn correct_histories_pass() {
    for flavour in [Flavour::Etcd, Flavour::Kindred] {
        for seed in 0..40 {
            let world = busy(flavour, seed, 250);
            let report = world.check();
            assert!(report.is_clean(), "seed {seed}\n{report}");
            let counts = &report.counts;
            assert_eq!(counts.keys_undecided, 0, "{report}");
            assert!(counts.events > 50 && counts.progress > 10 && counts.reads > 30, "{report}");
            assert!(
                counts.unknown_visible > 0 && counts.resumes > 0 && counts.keys_linearizable > 5,
                "{report}"
            );
        }
    }
}

#[test]
fn a_stored_history_gives_the_same_report() {
    let world = busy(Flavour::Kindred, 3, 200);
    let text = world.history.to_json_lines().unwrap();
    let read = History::from_json_lines(&text).unwrap();
    assert!(read == world.history);
    assert_eq!(check(&read, &world.flavour.config()), world.check());
    assert!(History::from_json_lines("{}").unwrap_err().to_string().starts_with("line 1"));
}
