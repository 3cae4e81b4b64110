//! The moments at which this router does what it does every few seconds: all at the same one of each second, so that an idle
//! router wakes once for all of it, and its stores hear of it at once.

use std::time::Duration;

use tokio::time::Instant;

/// The time between two ticks.
const PERIOD: Duration = Duration::from_secs(1);

/// Ticks a second apart. Copies have the same.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    began: Instant,
}

impl Ticks {
    /// The first tick is now.
    #[must_use]
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// The first tick after now.
    #[must_use]
    pub fn next(self) -> Instant {
        self.after(Instant::now())
    }

    /// Sleeps about so long, at least a second: until a tick, less than a second early.
    pub async fn sleep(self, about: Duration) {
        let least = about.saturating_sub(PERIOD);
        tokio::time::sleep_until(self.after(Instant::now() + least)).await;
    }

    /// The first tick after a moment.
    fn after(self, moment: Instant) -> Instant {
        let since = moment.saturating_duration_since(self.began);
        // The remainder of a second is less than a second.
        let into = Duration::from_nanos(u64::from(since.subsec_nanos()));
        self.began.max(moment) + (PERIOD - into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_sleeps_wakes_with_the_others() {
        let ticks = Ticks::start();
        let began = Instant::now();
        for (millis, about, woken_at) in
            [(0, 1, 1), (300, 1, 2), (999, 1, 3), (10, 5, 8), (0, 5, 13), (1, 0, 14)]
        {
            tokio::time::advance(Duration::from_millis(millis)).await;
            ticks.sleep(Duration::from_secs(about)).await;
            assert_eq!(began.elapsed().as_millis(), woken_at * 1_000, "after {millis} ms, about {about} s");
        }
        assert_eq!(ticks.next() - Instant::now(), PERIOD);
    }
}
