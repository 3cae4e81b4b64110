//! Tests a whole shard without its network (loop, engine, logs, checkpoints, ceiling and recovery) from seeds, under
//! wall clocks that step, on a disk that loses, tears and reorders what was not synced and forgets what it could not
//! sync.
//!
//! What must hold after each crash, whatever became of unsynced data:
//!
//! 1. of mode `fsync` every acknowledged write is there; of mode `buffered` a prefix, and all of it if only the process
//!    died; of mode `none` nothing, unless the stop was clean;
//! 2. losses are announced: their revisions read as compacted;
//! 3. no transaction is there in part;
//! 4. no revision is assigned twice, or below one that was assigned or shown before (R2), whatever the wall clock says;
//! 5. nothing of this is reported as damage.
//!
//! A failure names its seed: `KINDRED_SHARD_SEED=n cargo test -p kindred-shard crashes` begins there.
//! `KINDRED_SHARD_SEEDS` sets the number of seeds. Threads write, so a seed fixes the plan but not the timing.

mod damage;
mod disk;
mod driven;
mod ends;
mod full;
mod leases;
mod life;
mod whole;

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
