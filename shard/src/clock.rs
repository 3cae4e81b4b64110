//! The clocks of a shard, read in one place and handed to the engine.

use std::time::Duration;

use kindred_engine::{
    engine::{MonoMillis, WallMicros},
    trust::ClockTrust,
};
use tokio::time::Instant;

pub use kindred_transport::clock::WallClock;

/// Wall clock and monotonic clock. The latter is the runtime's.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Instant,
    wall: WallClock,
    trust: ClockTrust,
    /// For tests: how far the wall clock is set wrong.
    wall_offset_micros: i64,
}

impl Clock {
    /// Starts the monotonic clock at zero.
    #[must_use]
    pub fn start(wall: WallClock, trust: ClockTrust) -> Self {
        Self { start: Instant::now(), wall, trust, wall_offset_micros: 0 }
    }

    /// For tests: sets the wall clock wrong by this much.
    pub fn set_wall_offset(&mut self, micros: i64) {
        self.wall_offset_micros = micros;
    }

    /// The present that revisions come from: the wall clock as far as it is trusted (R3). Before it is, there is none, and
    /// this is the beginning of time, which moves no clock: a reading that may be wrong leaves no trace in what is assigned,
    /// promised or stored as a ceiling.
    #[must_use]
    pub fn wall(&self) -> WallMicros {
        self.trust.now(self.mono(), self.reading()).unwrap_or(WallMicros(0))
    }

    /// What the wall clock shows, trusted or not: microseconds since the Unix epoch; zero when it stands before it.
    #[must_use]
    pub fn reading(&self) -> WallMicros {
        WallMicros(self.wall.micros().saturating_add_signed(self.wall_offset_micros))
    }

    /// A handshake brings what the cluster calls now (R3). Whether that made the clock trusted that was not.
    pub fn confirm(&mut self, reference: WallMicros) -> bool {
        let before = self.trust.is_confirmed();
        let agrees = self.trust.confirm(self.mono(), self.reading(), reference);
        agrees && !before
    }

    /// Whether there is a present to assign from.
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
