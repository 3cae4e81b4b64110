//! How often a feed wakes its readers.
//!
//! A reader that is woken writes one message to its connection. That costs about as much for one event as for fifty.
//! So a feed whose news come faster than [`WAKE_SHARE`] allows gathers them, for at most [`REST_MAX`], and wakes its
//! readers once for all of them. The first [`BURST`] wakes after quieter times come at once, and so does every wake of
//! a feed with few readers. Time is an argument.

use std::time::{Duration, Instant};

/// The time between two wakes of one reader, of all wakes of all readers: 4,000 a second take a twentieth of a core.
pub const WAKE_SHARE: Duration = Duration::from_micros(250);
/// The longest time for which readers are not woken, however many they are.
pub const REST_MAX: Duration = Duration::from_millis(5);
/// A shorter rest is none: timers count in milliseconds.
const REST_MIN: Duration = Duration::from_millis(1);
/// How many wakes may come at once after a quieter time.
pub const BURST: u32 = 8;
/// Readers are woken at once when so many bytes of events wait for them, which is what one message takes.
const BYTES_MAX: usize = 64 << 10;

/// When a feed wakes its readers: a virtual schedule (GCRA) with a wake each rest, which [`BURST`] wakes may run ahead
/// of.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the schedule has room for all of a burst again.
    even: Option<Instant>,
    /// When readers are woken for news that wait, and the rest that this takes from the schedule.
    later: Option<(Instant, Duration)>,
    /// Bytes of the news that wait.
    bytes: usize,
}

impl Pace {
    /// Notes news of so many bytes. Returns whether to wake the readers at once; otherwise it is [`Pace::due`] later.
    #[must_use]
    pub fn news(&mut self, now: Instant, readers: usize, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let rest = rest(readers);
        if rest.is_zero() {
            self.woken();
            return true;
        }
        let even = self.even.map_or(now, |even| even.max(now));
        let room = even.checked_sub(rest * (BURST - 1)).unwrap_or(now);
        if room <= now || self.bytes >= BYTES_MAX {
            // Full messages that are not put off do not count for later.
            self.even = Some((even + rest).min(now + rest * BURST));
            self.woken();
            return true;
        }
        self.later.get_or_insert((room, rest));
        false
    }

    /// Notes that the readers are woken for another reason, which serves the news that wait too.
    pub fn woken(&mut self) {
        self.later = None;
        self.bytes = 0;
    }

    /// When readers are to be woken for news that wait; `None` if none wait.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.later.map(|(at, _)| at)
    }

    /// Whether readers are to be woken by now for news that waited.
    #[must_use]
    pub fn take_due(&mut self, now: Instant) -> bool {
        let Some((_, rest)) = self.later.filter(|(at, _)| *at <= now) else { return false };
        self.even = Some(self.even.map_or(now, |even| even.max(now)) + rest);
        self.woken();
        true
    }
}

/// The time between two wakes of so many readers.
fn rest(readers: usize) -> Duration {
    let rest = WAKE_SHARE.saturating_mul(u32::try_from(readers).unwrap_or(u32::MAX)).min(REST_MAX);
    if rest < REST_MIN { Duration::ZERO } else { rest }
}

#[cfg(test)]
#[path = "feed_pace_test.rs"]
mod tests;
