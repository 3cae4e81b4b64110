//! Seeded crashes of everything that this crate writes. The disk loses, tears and reorders unsynced data, and
//! forgets what it failed to sync. After each crash:
//!
//! 1. the frames read back are a prefix of those appended to the log, whole and byte by byte;
//! 2. they include all frames that were reported durable, and all that a recovery returned before the log was
//!    opened again;
//! 3. a second read gives the same frames;
//! 4. the clock's ceiling is one that was requested, and at least the last one that was acknowledged;
//! 5. none of this is reported as damage.
//!
//! A failure prints its seed, and `KINDRED_WAL_SEED=n cargo test -p kindred-wal crashes` replays it.
//! `KINDRED_WAL_SEEDS` sets the number of seeds.

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
        // Check that the runs covered what this test claims to cover.
        let seen =
            [total.crashes, total.torn, total.failures, total.recovered, total.checkpoints, total.swept];
        assert!(seen.iter().all(|count| *count > 50), "{total:?}");
    }
}
