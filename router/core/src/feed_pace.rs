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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs a pace over news that come at these times after each other; returns when readers were woken.
    fn wakes(readers: usize, gaps: &[Duration], bytes: impl Fn(usize) -> usize) -> Vec<Duration> {
        let origin = Instant::now();
        let (mut pace, mut now, mut woken) = (Pace::default(), origin, Vec::new());
        for (at, gap) in gaps.iter().enumerate() {
            let next = now + *gap;
            if let Some(due) = pace.due().filter(|due| *due <= next) {
                assert!(pace.take_due(due) && pace.due().is_none());
                woken.push(due - origin);
            }
            now = next;
            if pace.news(now, readers, bytes(at)) {
                woken.push(now - origin);
            }
        }
        if let Some(due) = pace.due() {
            assert!(!pace.take_due(due.checked_sub(Duration::from_nanos(1)).expect("after the origin")));
            assert!(pace.take_due(due));
            woken.push(due - origin);
        }
        woken
    }

    #[test]
    fn few_readers_and_rare_news_are_never_put_off() {
        let often = vec![MS / 10; 1_000];
        assert_eq!(wakes(3, &often, |_| 100).len(), 1_000);
        let rare = vec![REST_MAX; 100];
        assert_eq!(wakes(1_000, &rare, |_| 100).len(), 100);
        assert_eq!(
            wakes(1_000, &[Duration::ZERO; BURST as usize], |_| 100),
            [Duration::ZERO; BURST as usize]
        );
    }

    #[test]
    fn many_readers_are_woken_at_even_times_when_news_are_frequent() {
        let often = vec![MS / 2; 2_000];
        let woken = wakes(50, &often, |_| 100);
        let expected = 1_000 / REST_MAX.as_millis() as usize + BURST as usize;
        assert!((expected - 2..=expected + 2).contains(&woken.len()), "{}", woken.len());
    }

    #[test]
    fn a_full_message_is_not_put_off() {
        let often = vec![MS / 10; 100];
        assert_eq!(wakes(50, &often, |_| BYTES_MAX).len(), 100);
        assert_eq!(wakes(50, &often, |_| BYTES_MAX / 2).len(), 50 + BURST as usize / 2);
    }

    proptest! {
        /// Whatever comes when, nobody waits longer than the longest rest, and wakes are no more than the schedule has.
        #[test]
        fn no_news_wait_longer_than_a_rest(
            readers in 0..100_usize,
            gaps in proptest::collection::vec((0..20_000_u64, 0..2 * BYTES_MAX), 1..200),
            are_small in any::<bool>(),
        ) {
            let (gaps, bytes): (Vec<_>, Vec<_>) = gaps.into_iter().unzip();
            let gaps: Vec<_> = gaps.into_iter().map(Duration::from_micros).collect();
            let woken = wakes(readers, &gaps, |at| if are_small { 10 } else { bytes[at] });
            let mut at = Duration::ZERO;
            for gap in &gaps {
                at += *gap;
                prop_assert!(woken.iter().any(|woken| *woken >= at && *woken <= at + REST_MAX), "news at {at:?}");
            }
            let rest = rest(readers);
            if !rest.is_zero() && are_small {
                let most = at.as_micros() / rest.as_micros() + 2 + u128::from(BURST);
                prop_assert!(woken.len() as u128 <= most, "{} wakes in {at:?}", woken.len());
            }
        }
    }
}
