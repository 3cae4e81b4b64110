//! The clocks of a shard, read in one place and handed to the engine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kindred_engine::engine::{MonoMillis, WallMicros};

/// Wall clock and monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the monotonic clock at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Microseconds since the Unix epoch; zero when the clock stands before it.
    #[must_use]
    pub fn wall(&self) -> WallMicros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallMicros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn mono(&self) -> MonoMillis {
        MonoMillis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// When the monotonic clock will show `at`, rounded up.
    #[must_use]
    pub fn instant(&self, at: MonoMillis) -> Instant {
        self.start + Duration::from_millis(at.0.saturating_add(1))
    }
}
