//! The speed of copies: a budget of bytes per second, shared by all moves of a router, and what they have copied.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kindred_router_core::moves::preview::CopyRate;
use tokio::time::Instant;

/// A smaller copy says nothing about the speed of a large one.
const WORTH_MEASURING: u64 = 1 << 20;

/// The speed to expect of this router's next copy, for plans.
#[derive(Debug, Default)]
pub struct CopySpeed {
    limit: AtomicU64,
    made: AtomicU64,
}

impl CopySpeed {
    /// Sets the limit in bytes per second; 0 for none.
    pub fn limited(&self, bytes_per_second: u64) {
        self.limit.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Notes that a copy of so many bytes took so long.
    pub fn made(&self, bytes: u64, took: Duration) {
        if bytes >= WORTH_MEASURING {
            let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
            self.made.store(u64::try_from(rate).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        }
    }

    #[must_use]
    pub fn expected(&self) -> CopyRate {
        CopyRate::expected(self.limit.load(Ordering::Relaxed), self.made.load(Ordering::Relaxed))
    }
}

/// Counters of what a move's steps have copied.
#[derive(Debug, Default)]
pub struct Copied {
    pub keys: AtomicU64,
    pub bytes: AtomicU64,
}

/// A rate limiter. Each taker pays with time for its bytes, and waits until all earlier ones are paid.
#[derive(Debug)]
pub struct Rate {
    bytes_per_second: u64,
    /// When all bytes taken so far are paid for. Never locked across an await.
    paid: Mutex<Instant>,
}

impl Rate {
    /// A limit in bytes per second; 0 for none.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, paid: Mutex::new(Instant::now()) }
    }

    /// Takes bytes, and waits until the earlier ones are paid for. So a message may exceed the budget of a second.
    pub async fn take(&self, bytes: usize) {
        let Some(cost) = self.cost(bytes) else { return };
        let due = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let due = (*paid).max(Instant::now());
            *paid = due + cost;
            due
        };
        tokio::time::sleep_until(due).await;
    }

    fn cost(&self, bytes: usize) -> Option<Duration> {
        if self.bytes_per_second == 0 || bytes == 0 {
            return None;
        }
        let nanos = u128::try_from(bytes).ok()? * 1_000_000_000 / u128::from(self.bytes_per_second);
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use kindred_router_core::moves::preview::RateFrom;

    use super::*;

    #[test]
    fn the_last_copy_that_was_worth_it_counts() {
        let speed = CopySpeed::default();
        speed.made(1000, Duration::from_secs(1));
        assert_eq!(speed.expected().from, RateFrom::Assumed);
        speed.made(4 << 20, Duration::from_secs(2));
        speed.made(1000, Duration::from_secs(1));
        let measured = CopyRate { bytes_per_second: 2 << 20, from: RateFrom::Measured };
        assert_eq!(speed.expected(), measured);
        speed.limited(7);
        assert_eq!(speed.expected(), CopyRate { bytes_per_second: 7, from: RateFrom::Limit });
    }

    #[tokio::test]
    async fn bytes_are_paid_with_time() {
        let rate = Rate::new(1_000_000);
        assert_eq!(rate.cost(500_000), Some(Duration::from_millis(500)));
        assert_eq!(Rate::new(0).cost(500_000), None);
        let began = Instant::now();
        // The first take is free; the second waits for it.
        rate.take(20_000).await;
        rate.take(1).await;
        assert!(began.elapsed() >= Duration::from_millis(20));
    }
}
