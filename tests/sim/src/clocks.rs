//! Wall clocks of shards. They differ by milliseconds, seconds or an hour, they drift, and they are set back and forth
//! while they run.

use std::cell::Cell;
use std::time::Instant;

use crate::world::{Micros, SECOND, World};

/// 2026-01-01 in microseconds.
const EPOCH: u64 = 1_767_225_600_000_000;
/// A clock within its bounds is never further from the right time than this. Two such clocks are within R3's ten
/// seconds of each other, including drift, bursts, and the three seconds by which a restarted store is ahead of its
/// clock (R2).
const SKEW_MAX: i64 = 3_300_000;

/// The start of a run for machines that count in [`Instant`]s. Only what lies between two of them matters.
#[must_use]
pub fn epoch() -> Instant {
    Instant::now()
}

/// How the clocks of a run behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// The clocks differ by milliseconds.
    Fair,
    /// The clocks differ by seconds and are set back and forth, within the bound of R3.
    Rough,
    /// As `Rough`, and one clock is an hour ahead or behind.
    Foul,
}

#[derive(Debug)]
pub struct WallClock {
    offset: Cell<i64>,
    /// Parts per million.
    drift: i64,
    /// The highest reading so far.
    highest: Cell<u64>,
    /// Whether it is out of bounds for good.
    pub is_bad: bool,
}

impl WallClock {
    /// A clock of this weather.
    #[must_use]
    pub fn new(world: &World, weather: Weather, is_bad: bool) -> Self {
        let signed = |max: i64| {
            let span = u64::try_from(max * 2).unwrap_or(0);
            i64::try_from(world.between(0, span)).unwrap_or(0) - max
        };
        let hour = 3_600 * i64::try_from(SECOND).unwrap_or(0);
        let (offset, drift) = match weather {
            Weather::Fair => (signed(5_000), signed(20)),
            Weather::Rough | Weather::Foul if !is_bad => (signed(SKEW_MAX), signed(200)),
            _ => (if world.chance(50) { hour } else { -hour }, 0),
        };
        Self { offset: Cell::new(offset), drift, highest: Cell::new(0), is_bad }
    }

    /// Its reading at a moment.
    #[must_use]
    pub fn at(&self, now: Micros) -> u64 {
        let elapsed = i64::try_from(now).unwrap_or(i64::MAX);
        let shown = elapsed + elapsed * self.drift / 1_000_000 + self.offset.get();
        let shown = EPOCH.saturating_add_signed(shown);
        self.highest.set(self.highest.get().max(shown));
        shown
    }

    /// The highest reading so far. A shard holds on to it when its clock steps back.
    #[must_use]
    pub fn highest(&self, now: Micros) -> u64 {
        let _ = self.at(now);
        self.highest.get()
    }

    /// Sets the clock to another time within its bounds.
    pub fn step(&self, world: &World) {
        if self.is_bad {
            return;
        }
        let span = u64::try_from(SKEW_MAX * 2).unwrap_or(0);
        self.offset.set(i64::try_from(world.between(0, span)).unwrap_or(0) - SKEW_MAX);
    }

    /// The most by which it was ever ahead of the right time, microseconds.
    #[must_use]
    pub fn right_time(now: Micros) -> u64 {
        EPOCH + now
    }
}
