//! Whose wall clock a process reads.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

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
    /// Microseconds since the Unix epoch; zero when the clock stands before it.
    #[must_use]
    pub fn micros(&self) -> u64 {
        let now = match self {
            Self::System => SystemTime::now(),
            Self::Other(now) => now(),
        };
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
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
