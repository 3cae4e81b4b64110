//! The whole of a shard but its network, over a disk that loses, tears and reorders what was not synced and forgets what it
//! could not sync: loop, engine, logs, checkpoints, ceiling and recovery, from seeds, under wall clocks that step.
//!
//! What must hold after each crash, whatever became of what was not synced:
//!
//! 1. of mode fsync everything that was acknowledged is there; of mode buffered a beginning of it, and everything where only the
//!    process died; of mode none nothing, unless the stop was in good order;
//! 2. what is lost is told: its revision reads as compacted;
//! 3. no half transaction is there;
//! 4. no revision is given twice or is lower than one that was given or shown before (R2), whatever the wall clock says;
//! 5. nothing of this is called damage.
//!
//! A failure names its seed: `KINDRED_SHARD_SEED=n cargo test -p kindred-shard crashes` begins there. `KINDRED_SHARD_SEEDS`
//! sets how many are run. Threads write, so a seed gives the same plan, not the same moments.

mod damage;
mod disk;
mod driven;
mod ends;
mod full;
mod life;

use self::life::{Counts, Shard};

const SEEDS: u64 = 25;
const LIVES: usize = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn r2_r9_r10_hold_over_a_disk_that_loses_tears_and_reorders() {
    let first = number("KINDRED_SHARD_SEED").or(number("KINDRED_SOAK_SEED")).unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut total = Counts::default();
    for seed in first..first + number("KINDRED_SHARD_SEEDS").unwrap_or(SEEDS) {
        let mut shard = Shard::new(seed);
        for life in 0..LIVES {
            runtime.block_on(shard.live(&format!("seed {seed}, life {life}")));
        }
        total.add(&shard.counts);
    }
    #[allow(clippy::print_stdout, reason = "whoever runs the tests is to see it")]
    let () = println!("{total:?}");
    assert!(total.crashes > 0 && total.acknowledged > 0 && total.checked > 0, "{total:?}");
}
