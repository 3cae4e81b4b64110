//! The clocks of a shard, read in one place and handed to the engine.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kindred_engine::engine::{MonoMillis, WallMicros};
use tokio::time::Instant;

/// Whose wall clock.
#[derive(Clone, Default)]
pub enum WallClock {
    /// This machine's.
    #[default]
    System,
    /// One that an embedding program keeps, for instance a simulated one.
    Other(Arc<dyn Fn() -> SystemTime + Send + Sync>),
}

impl WallClock {
    fn now(&self) -> SystemTime {
        match self {
            Self::System => SystemTime::now(),
            Self::Other(now) => now(),
        }
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Other(_) => "Other",
        })
    }
}

/// Wall clock and monotonic clock. The latter is the runtime's.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Instant,
    wall: WallClock,
}

impl Clock {
    /// Starts the monotonic clock at zero.
    #[must_use]
    pub fn start(wall: WallClock) -> Self {
        Self { start: Instant::now(), wall }
    }

    /// Microseconds since the Unix epoch; zero when the clock stands before it.
    #[must_use]
    pub fn wall(&self) -> WallMicros {
        let since = self.wall.now().duration_since(UNIX_EPOCH).unwrap_or_default();
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
