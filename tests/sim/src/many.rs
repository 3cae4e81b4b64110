//! Many seeds, on several threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::invariants::Violation;
use crate::run::{Counts, Outcome, run};

/// A run that panics counts as one that broke something.
fn run_caught(seed: u64) -> Outcome {
    std::panic::catch_unwind(|| run(seed, None)).unwrap_or_else(|_| {
        let what = "see above".to_owned();
        let violations = vec![Violation { invariant: "panic", what }];
        let counts = Counts { seeds: 1, violations: 1, ..Counts::default() };
        Outcome { seed, counts, log: Vec::new(), violations }
    })
}

/// Runs seeds on so many threads. Returns the sum of their counts, and the first runs that broke something, by seed.
#[must_use]
pub fn many(seeds: Range<u64>, threads: usize) -> (Counts, Vec<Outcome>) {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::new((Counts::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run_caught(seed);
                    let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.0.add(&outcome.counts);
                    if !outcome.violations.is_empty() && all.1.len() < 20 {
                        all.1.push(outcome);
                    }
                }
            });
        }
    });
    let (counts, mut broken) = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    broken.sort_by_key(|outcome| outcome.seed);
    (counts, broken)
}
