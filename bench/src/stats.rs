//! Statistics: medians with their spread, and percentiles.

/// The median and the range of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// NaN if there are no values.
    pub fn of(values: &[f64]) -> Self {
        let over = |than: fn(f64, f64) -> f64| values.iter().copied().fold(f64::NAN, than);
        // f64's min and max ignore NaN.
        Self { median: median(values.to_vec()), low: over(f64::min), high: over(f64::max) }
    }
}

/// The median; for an even number of values the mean of the middle two, NaN for none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    match (values.get(upper.wrapping_sub(1)), values.get(upper)) {
        (Some(below), Some(above)) if values.len().is_multiple_of(2) => f64::midpoint(*below, *above),
        (_, Some(middle)) => *middle,
        (_, None) => f64::NAN,
    }
}

/// Percentiles of operation times, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    /// Computed from times in nanoseconds.
    pub fn of(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        let at = |share| percentile(&nanos, share).unwrap_or_default() as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// The smallest of the sorted values that at least this share of them does not exceed (nearest rank).
pub fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn the_spread_is_from_the_lowest_to_the_highest() {
        assert_eq!(Spread::of(&[3.0, 1.0, 8.0]), Spread { median: 3.0, low: 1.0, high: 8.0 });
        assert_eq!(Spread::of(&[5.0]), Spread { median: 5.0, low: 5.0, high: 5.0 });
        assert!(Spread::of(&[]).low.is_nan());
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 0.5), Some(50));
        assert_eq!(percentile(&hundred, 0.99), Some(99));
        assert_eq!(percentile(&hundred, 0.999), Some(100));
        assert_eq!(percentile(&hundred, 1.0), Some(100));
        assert_eq!(percentile(&[4], 0.0), Some(4));
        assert_eq!(percentile(&[4, 9], 0.5), Some(4));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn latencies_come_in_any_order_and_are_told_in_microseconds() {
        let mut nanos: Vec<u64> = (1..=1_000).map(|at| at * 1_000).collect();
        nanos.reverse();
        let latency = Latency::of(nanos);
        assert_eq!(latency, Latency { p50: 500.0, p99: 990.0, p999: 999.0, max: 1_000.0 });
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }
}
