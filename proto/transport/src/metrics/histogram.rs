//! A histogram of times with fixed buckets: one addition for each time, and nothing to drain.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of times in `N` buckets and above all of them. The bounds are given by those who use it, always the same.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    buckets: [AtomicU64; N],
    above: AtomicU64,
    nanos: AtomicU64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; N], above: AtomicU64::new(0), nanos: AtomicU64::new(0) }
    }
}

/// What a histogram counted until a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown<const N: usize> {
    /// The number of times in each bucket, those of lower buckets not included.
    pub counts: [u64; N],
    /// All times, those above the last bound included.
    pub count: u64,
    nanos: u64,
}

impl<const N: usize> Shown<N> {
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// What came after an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts;
        counts.iter_mut().zip(earlier.counts).for_each(|(now, then)| *now = now.saturating_sub(then));
        Self {
            counts,
            count: self.count.saturating_sub(earlier.count),
            nanos: self.nanos.saturating_sub(earlier.nanos),
        }
    }

    /// The bound below which this part of the times lies, from 0 to 1; infinite above the last bound, and `None`
    /// without any time.
    #[must_use]
    pub fn quantile(&self, part: f64, bounds: &[f64; N]) -> Option<f64> {
        let wanted = (self.count as f64 * part).ceil().max(1.0) as u64;
        let mut below = 0;
        if self.count == 0 {
            return None;
        }
        for (count, bound) in self.counts.iter().zip(bounds) {
            below += count;
            if below >= wanted {
                return Some(*bound);
            }
        }
        Some(f64::INFINITY)
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts a time. `bounds` are in seconds, ascending, and inclusive.
    pub fn record(&self, took: Duration, bounds: &[f64; N]) {
        let seconds = took.as_secs_f64();
        let bucket = bounds.iter().position(|bound| seconds <= *bound);
        bucket.map_or(&self.above, |at| &self.buckets[at]).fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What was counted until now.
    #[must_use]
    pub fn read(&self) -> Shown<N> {
        let counts = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        let count = counts.iter().sum::<u64>() + self.above.load(Ordering::Relaxed);
        Shown { counts, count, nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 3] = [0.001, 0.01, 0.1];

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().quantile(0.5, &BOUNDS), None);
        for millis in [1, 1, 5, 500] {
            histogram.record(Duration::from_millis(millis), &BOUNDS);
        }
        let shown = histogram.read();
        let of = |part| shown.quantile(part, &BOUNDS);
        assert_eq!(
            [of(0.0), of(0.5), of(0.75), of(1.0)].map(Option::unwrap),
            [0.001, 0.001, 0.01, f64::INFINITY]
        );
        histogram.record(Duration::from_millis(50), &BOUNDS);
        let since = histogram.read().since(&shown);
        assert_eq!((since.count, since.quantile(0.5, &BOUNDS)), (1, Some(0.1)));
        assert!((since.sum_seconds() - 0.05).abs() < 1e-9);
    }
}
