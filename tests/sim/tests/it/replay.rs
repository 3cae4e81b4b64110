//! One seed is one run: twice the same, to the last line.

use kindred_sim::run::run;

#[test]
fn one_seed_run_twice_gives_equal_logs() {
    for seed in [1, 7, 42, 1010, 99_999] {
        let (first, second) = (run(seed, None), run(seed, None));
        assert!(first.log.len() > 20, "seed {seed} did nothing");
        assert_eq!(first.log, second.log, "seed {seed}");
        assert_eq!((first.hash(), first.counts), (second.hash(), second.counts), "seed {seed}");
    }
    assert_ne!(run(1, None).hash(), run(2, None).hash());
}
