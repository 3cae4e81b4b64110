//! Which request has waited longest, at present and a while ago, for those who look at the router.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A kube-apiserver gives up its watch cache when a write takes as long (R17).
pub const TOO_LONG: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
struct Inner {
    /// When each began; the numbers tell those apart that began together.
    waiting: BTreeSet<(Instant, u64)>,
    next: u64,
    /// The last one that waited too long: when it ended, and how long it had waited.
    last_long: Option<(Instant, Duration)>,
}

/// The requests that wait. The room of the move buffer bounds them.
#[derive(Debug, Default)]
pub struct Longest(Mutex<Inner>);

/// What is known of waiting requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    pub requests: usize,
    /// How long the oldest has waited.
    pub longest: Duration,
    /// How long ago a request had waited too long, and how long it had waited.
    pub last_long: Option<(Duration, Duration)>,
}

impl Longest {
    /// A request begins to wait; [`Longest::end`] takes what is returned.
    pub fn begin(&self, now: Instant) -> (Instant, u64) {
        let mut inner = self.0.lock();
        inner.next += 1;
        let entry = (now, inner.next);
        inner.waiting.insert(entry);
        entry
    }

    pub fn end(&self, entry: (Instant, u64), now: Instant) {
        let mut inner = self.0.lock();
        inner.waiting.remove(&entry);
        let waited = now.saturating_duration_since(entry.0);
        if waited >= TOO_LONG {
            inner.last_long = Some((now, waited));
        }
    }

    #[must_use]
    pub fn shown(&self, now: Instant) -> Waits {
        let inner = self.0.lock();
        Waits {
            requests: inner.waiting.len(),
            longest: inner
                .waiting
                .first()
                .map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(*since)),
            last_long: inner.last_long.map(|(at, waited)| (now.saturating_duration_since(at), waited)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_known_and_a_long_wait_is_remembered() {
        let (longest, began) = (Longest::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(longest.shown(began), Waits::default());
        let (first, second) = (longest.begin(began), longest.begin(began));
        assert_eq!(
            longest.shown(at(2)),
            Waits { requests: 2, longest: Duration::from_secs(2), last_long: None }
        );
        longest.end(first, at(2));
        assert_eq!(longest.shown(at(2)).last_long, None);
        longest.end(second, at(4));
        let shown = longest.shown(at(10));
        assert_eq!((shown.requests, shown.longest), (0, Duration::ZERO));
        assert_eq!(shown.last_long, Some((Duration::from_secs(6), Duration::from_secs(4))));
    }
}
