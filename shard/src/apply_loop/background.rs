//! When the loop works at what no client waits for: freeing compacted memory, and checkpoints.
//!
//! On a machine whose processors are all busy, other threads wait for one of them (see [`kindred_transport::give_way`]).
//! Clients wait for other slices of long work, but not for these, so the loop rests between them.

use std::time::Duration;

use tokio::time::Instant;

/// Work after which the loop rests. With half of it a checkpoint takes twice as long, and with twice as much more writes
/// wait.
const WORK: Duration = Duration::from_micros(300);
/// The time of a rest. The runtime's timers come at whole milliseconds, so a rest is up to twice as long.
const REST: Duration = Duration::from_millis(1);

/// Tells when there is work to be done, and when rest.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// Work since the last rest.
    worked: Duration,
    rests_until: Option<Instant>,
}

impl Background {
    /// Returns the end of the rest under way.
    pub(super) fn rests(&self, now: Instant) -> Option<Instant> {
        self.rests_until.filter(|until| now < *until)
    }

    /// Notes a slice of work.
    pub(super) fn worked(&mut self, from: Instant, to: Instant) {
        self.worked += to.saturating_duration_since(from);
        if self.worked >= WORK {
            (self.worked, self.rests_until) = (Duration::ZERO, Some(to + REST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_after_a_third_of_a_millisecond_of_work() {
        let (begin, mut background) = (Instant::now(), Background::default());
        let at = |micros| begin + Duration::from_micros(micros);
        background.worked(at(0), at(200));
        assert_eq!(background.rests(at(200)), None);
        // The time between slices is not work.
        background.worked(at(10_000), at(10_099));
        assert_eq!(background.rests(at(10_099)), None);
        background.worked(at(20_000), at(20_001));
        assert_eq!(background.rests(at(20_001)), Some(at(21_001)));
        assert_eq!(background.rests(at(21_000)), Some(at(21_001)));
        assert_eq!(background.rests(at(21_001)), None);
        // Then it works as long again.
        background.worked(at(21_001), at(21_300));
        assert_eq!(background.rests(at(21_300)), None);
    }

    #[test]
    fn work_that_takes_no_time_as_in_a_simulation_needs_no_rest() {
        let (now, mut background) = (Instant::now(), Background::default());
        (0..1_000).for_each(|_| background.worked(now, now));
        assert_eq!(background.rests(now), None);
    }
}
