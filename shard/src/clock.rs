//! The clocks of a shard, which are read only here and passed to the engine.

use std::time::Duration;

use kindred_engine::{
    engine::{MonoMillis, WallMicros},
    trust::ClockTrust,
};
use tokio::time::Instant;

pub use kindred_transport::clock::WallClock;

/// The wall clock and the monotonic clock, which is the runtime's.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Instant,
    wall: WallClock,
    trust: ClockTrust,
    /// How far the wall clock is set wrong, for tests.
    wall_offset_micros: i64,
}

impl Clock {
    /// Starts the monotonic clock at zero.
    #[must_use]
    pub fn start(wall: WallClock, trust: ClockTrust) -> Self {
        Self { start: Instant::now(), wall, trust, wall_offset_micros: 0 }
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
        MonoMillis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// When the monotonic clock will show `at`, rounded up.
    #[must_use]
    pub fn instant(&self, at: MonoMillis) -> Instant {
        self.start + Duration::from_millis(at.0.saturating_add(1))
    }
}
