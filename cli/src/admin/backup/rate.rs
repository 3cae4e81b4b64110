//! Limits bytes per second.

use std::time::Duration;

use tokio::time::Instant;

/// How far a burst may exceed the rate, as time.
const BURST: Duration = Duration::from_millis(100);

/// A limiter of bytes per second.
#[derive(Debug)]
pub struct Rate {
    bytes_per_second: Option<u64>,
    /// The time at which everything spent so far is allowed.
    paid: Instant,
}

impl Rate {
    /// `None` for no limit.
    #[must_use]
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, paid: Instant::now() }
    }

    /// Spends bytes, and waits until the rate allows them.
    pub async fn spend(&mut self, bytes: u64) {
        let Some(rate) = self.bytes_per_second else { return };
        let now = Instant::now();
        let cost = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        self.paid = self.paid.max(now.checked_sub(BURST).unwrap_or(now)) + cost;
        if self.paid > now {
            tokio::time::sleep_until(self.paid).await;
        }
    }
}

/// Parses a rate in bytes per second: `50MiB`, `10MB`, `800k`, or a plain number.
///
/// # Errors
/// When it is not a positive rate.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no rate; write bytes a second such as 50MiB");
    let trimmed = text.trim().trim_end_matches("/s");
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match trimmed[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|rate| *rate > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_people_write_them() {
        for (text, rate) in
            [("5", Some(5)), ("50MiB", Some(50 << 20)), ("10MB", Some(10_000_000)), ("8k/s", Some(8 << 10))]
        {
            assert_eq!(parse(text).ok(), rate, "{text}");
        }
        for bad in ["", "0", "x", "-5", "5 apples", "99999999999999999999G"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_take_their_time() {
        let (mut rate, began) = (Rate::new(Some(1_000)), Instant::now());
        for _ in 0..10 {
            rate.spend(500).await;
        }
        // Five seconds, less the burst.
        let took = began.elapsed();
        assert!((Duration::from_millis(4_890)..=Duration::from_secs(5)).contains(&took), "{took:?}");
        Rate::new(None).spend(u64::MAX).await;
        assert_eq!(began.elapsed(), took);
    }
}
