//! Recent times that a log took to write and sync a batch.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Times that are kept.
const TIMES: usize = 512;

/// The last times. The log's thread adds them, and any thread may read; the lock is held briefly.
#[derive(Debug, Default)]
pub struct SyncTimes(Mutex<VecDeque<u32>>);

impl SyncTimes {
    pub fn note(&self, took: Duration) {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() == TIMES {
            times.pop_front();
        }
        times.push_back(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    /// The 99th percentile in microseconds; `None` without any times.
    #[must_use]
    pub fn p99_micros(&self) -> Option<u64> {
        let mut times: Vec<u32> = {
            let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            times.iter().copied().collect()
        };
        let at = (times.len() * 99).div_ceil(100).checked_sub(1)?;
        let (_, p99, _) = times.select_nth_unstable(at);
        Some(u64::from(*p99))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_a_hundred_is_left_out_and_old_ones_are_forgotten() {
        let times = SyncTimes::default();
        assert_eq!(times.p99_micros(), None);
        times.note(Duration::from_micros(7));
        assert_eq!(times.p99_micros(), Some(7));
        (1..100).for_each(|micros| times.note(Duration::from_micros(micros)));
        assert_eq!(times.p99_micros(), Some(98), "of 7 and 1 to 99");
        (0..TIMES).for_each(|_| times.note(Duration::from_micros(3)));
        assert_eq!(times.p99_micros(), Some(3));
    }
}
