//! The clocks of a shard, which are read only here and passed to the engine.

use std::{fmt, sync::Arc, time::Duration};

use kindred_engine::{
    engine::{MonoMillis, WallMicros},
    trust::ClockTrust,
};
use tokio::time::Instant;

pub use kindred_transport::clock::WallClock;

/// The source of the monotonic time.
#[derive(Clone)]
enum Monotonic {
    /// The runtime's clock.
    Runtime,
    /// A simulated clock, which tells the time since the start.
    Other(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl fmt::Debug for Monotonic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runtime => "Runtime",
            Self::Other(_) => "Other",
        })
    }
}

/// The wall clock and the monotonic clock.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Instant,
    monotonic: Monotonic,
    wall: WallClock,
    trust: ClockTrust,
    /// How far the wall clock is set wrong, for tests.
    wall_offset_micros: i64,
}

impl Clock {
    /// Starts the monotonic clock, which is the runtime's, at zero.
    #[must_use]
    pub fn start(wall: WallClock, trust: ClockTrust) -> Self {
        Self { start: Instant::now(), monotonic: Monotonic::Runtime, wall, trust, wall_offset_micros: 0 }
    }

    /// Takes the time since the start from a simulation.
    #[must_use]
    pub fn simulated(
        wall: WallClock,
        elapsed: Arc<dyn Fn() -> Duration + Send + Sync>,
        trust: ClockTrust,
    ) -> Self {
        Self { monotonic: Monotonic::Other(elapsed), ..Self::start(wall, trust) }
    }

    /// The present of the monotonic clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.monotonic {
            Monotonic::Runtime => Instant::now(),
            Monotonic::Other(elapsed) => self.start + elapsed(),
        }
    }

    /// Sets the wall clock wrong by this much, for tests.
    pub fn set_wall_offset(&mut self, micros: i64) {
        self.wall_offset_micros = micros;
    }

    /// The present from which revisions are made: the wall clock as far as it is trusted (R3). Before the first
    /// confirmation it is zero, which moves no clock: an unconfirmed reading leaves no trace in what is assigned,
    /// promised or stored as a ceiling.
    #[must_use]
    pub fn wall(&self) -> WallMicros {
        self.trust.now(self.mono(), self.reading()).unwrap_or(WallMicros(0))
    }

    /// The wall clock's reading, trusted or not, in microseconds since the Unix epoch; zero if it is before that.
    #[must_use]
    pub fn reading(&self) -> WallMicros {
        WallMicros(self.wall.micros().saturating_add_signed(self.wall_offset_micros))
    }

    /// Takes a handshake's reference time (R3). Returns whether it confirmed a clock that was not trusted before.
    pub fn confirm(&mut self, reference: WallMicros) -> bool {
        let before = self.trust.is_confirmed();
        let agrees = self.trust.confirm(self.mono(), self.reading(), reference);
        agrees && !before
    }

    /// Whether revisions may be assigned: the clock was confirmed, or needs no confirmation.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.trust.is_confirmed()
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn mono(&self) -> MonoMillis {
        MonoMillis(u64::try_from(self.now().duration_since(self.start).as_millis()).unwrap_or(u64::MAX))
    }

    /// When the monotonic clock will show `at`, rounded up.
    #[must_use]
    pub fn instant(&self, at: MonoMillis) -> Instant {
        self.start + Duration::from_millis(at.0.saturating_add(1))
    }
}
