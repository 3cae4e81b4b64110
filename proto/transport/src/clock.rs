//! The wall clock of a process, which a simulation can replace, and its processor time.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

/// A source of wall-clock time.
#[derive(Clone, Default)]
pub enum WallClock {
    /// The machine's clock.
    #[default]
    System,
    /// A clock of the embedding program, such as a simulated one.
    Other(Arc<dyn Fn() -> SystemTime + Send + Sync>),
}

impl WallClock {
    /// Microseconds since the Unix epoch; zero for times before it.
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

/// The time that this process has used of all cores since its start.
#[must_use]
pub fn process_cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(used.tv_sec), u32::try_from(used.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}
