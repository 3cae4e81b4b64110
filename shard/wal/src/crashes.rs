//! Crashes, from seeds, of all that this crate writes, over a disk that loses, tears and reorders what was not synced and forgets what it
//! could not sync. What must hold after each:
//!
//! 1. what a log gives back is a prefix of what was appended to it, byte by byte, in whole frames;
//! 2. it contains everything that was reported durable, and everything that an earlier recovery gave back before the log was opened on it;
//! 3. reading again gives the same;
//! 4. the clock's ceiling is one that was asked for, and at least the last one that was acknowledged;
//! 5. nothing of this is called damage.
//!
//! A failure names its seed: `KINDRED_WAL_SEED=n cargo test -p kindred-wal crashes` replays it. `KINDRED_WAL_SEEDS` sets how many are run.

use std::env;

mod flips;
mod life;

use self::life::Shard;

const SEEDS: u64 = 400;
const LIVES: usize = 8;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_durable_is_lost() {
    let seeds = match number("KINDRED_WAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
            first..first + number("KINDRED_WAL_SEEDS").or(number("KINDRED_SOAK_CASES")).unwrap_or(SEEDS)
        }
    };
    let mut total = life::Counts::default();
    for seed in seeds {
        let mut shard = Shard::new(seed);
        for life in 0..LIVES {
            let at = format!("seed {seed}, life {life}");
            shard.live(&at);
        }
        total.add(&shard.counts);
    }
    println!("{total:?}");
    if number("KINDRED_WAL_SEED").is_none() {
        // What is claimed to be tested has happened.
        let seen =
            [total.crashes, total.torn, total.failures, total.recovered, total.checkpoints, total.swept];
        assert!(seen.iter().all(|count| *count > 50), "{total:?}");
    }
}
