//! Pinned revisions (R5). A read over several shards chooses a revision that all of them have reached and reads there a
//! moment later; meanwhile no compaction passes it.
//!
//! A pin ends when its read releases it, or after five seconds.

use std::collections::{HashSet, VecDeque};

use kindred_partition_config::ids::Revision;

use crate::types::{MonoMillis, PinId};

/// The least time in milliseconds for which a revision is pinned, unless it is released.
const HOLD_MS: u64 = 5_000;
/// Pins end at multiples of this many milliseconds, so at most about a hundred nameless ones exist.
const GRAIN_MS: u64 = 50;
/// Pins that can be released. Any more are nameless and last for their whole time.
const NAMED_MAX: usize = 4_096;

#[derive(Clone, Copy)]
struct Hold {
    at: Revision,
    until: MonoMillis,
}

#[derive(Default)]
pub(crate) struct Holds {
    /// Sorted by end.
    named: VecDeque<(PinId, Hold)>,
    /// Sorted by end, and strictly by revision: a pin that ends no later than one of a lower revision adds nothing.
    nameless: VecDeque<Hold>,
}

impl Holds {
    pub(crate) fn hold(&mut self, now: MonoMillis, at: Revision, pin: PinId) {
        self.expire(now);
        let until = MonoMillis(now.0.saturating_add(HOLD_MS).div_ceil(GRAIN_MS).saturating_mul(GRAIN_MS));
        if self.named.len() < NAMED_MAX {
            self.named.push_back((pin, Hold { at, until }));
            return;
        }
        while self.nameless.back().is_some_and(|last| last.at >= at) {
            self.nameless.pop_back();
        }
        if self.nameless.back().is_none_or(|last| last.until < until) {
            self.nameless.push_back(Hold { at, until });
        }
    }

    /// Releases these pins. Returns whether any was held.
    pub(crate) fn release(&mut self, pins: &[PinId]) -> bool {
        let (before, pins) = (self.named.len(), pins.iter().collect::<HashSet<_>>());
        self.named.retain(|(pin, _)| !pins.contains(pin));
        self.named.len() < before
    }

    /// When the last of the present pins below `floor` will have ended; `None` if there is none.
    pub(crate) fn below(&mut self, now: MonoMillis, floor: Revision) -> Option<MonoMillis> {
        self.expire(now);
        let holds = self.named.iter().map(|(_, hold)| hold).chain(&self.nameless);
        holds.filter(|hold| hold.at < floor).map(|hold| hold.until).max()
    }

    /// Whether a revision up to `at` is pinned, as of the last `expire`.
    pub(crate) fn any_upto(&self, at: Revision) -> bool {
        let holds = self.named.iter().map(|(_, hold)| hold).chain(&self.nameless);
        holds.into_iter().any(|hold| hold.at <= at)
    }

    pub(crate) fn expire(&mut self, now: MonoMillis) {
        while self.named.front().is_some_and(|(_, first)| first.until <= now) {
            self.named.pop_front();
        }
        while self.nameless.front().is_some_and(|first| first.until <= now) {
            self.nameless.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn there_are_few_however_many_are_asked_for() {
        let mut holds = Holds::default();
        for i in 0..100_000 {
            holds.hold(MonoMillis(i / 100), Revision(i64::try_from(i).unwrap()), PinId(i));
        }
        assert_eq!(holds.named.len(), NAMED_MAX);
        assert!(holds.nameless.len() <= (HOLD_MS / GRAIN_MS) as usize + 2, "{}", holds.nameless.len());
    }

    #[test]
    fn what_was_asked_for_beyond_the_names_is_held_for_its_time() {
        let mut holds = Holds::default();
        for i in 0..NAMED_MAX as u64 + 1 {
            holds.hold(MonoMillis(0), Revision(1), PinId(i));
        }
        let all: Vec<_> = (0..NAMED_MAX as u64 + 1).map(PinId).collect();
        assert!(holds.release(&all));
        assert_eq!(holds.below(MonoMillis(1), Revision(2)), Some(MonoMillis(HOLD_MS)));
        assert_eq!(holds.below(MonoMillis(HOLD_MS), Revision(2)), None);
    }

    proptest! {
        #[test]
        fn a_revision_is_held_until_its_release_or_for_its_time_and_not_much_longer(
            steps in prop::collection::vec((0..3_000_u64, 0..20_i64, 0..25_i64, 0..6_u64, 0..9_u64), 1..60),
        ) {
            let mut holds = Holds::default();
            let mut asked: Vec<(i64, u64, u64)> = Vec::new();
            let mut now = 0;
            for (passed, at, floor, pin, released) in steps {
                now += passed;
                holds.hold(MonoMillis(now), Revision(at), PinId(pin));
                asked.push((at, now + HOLD_MS, pin));
                let known = asked.iter().any(|(_, until, pin)| *pin == released && *until + GRAIN_MS > now);
                prop_assert!(known || !holds.release(&[PinId(released)]));
                holds.release(&[PinId(released)]);
                asked.retain(|(_, _, pin)| *pin != released);
                let until = holds.below(MonoMillis(now), Revision(floor)).map_or(0, |until| until.0);
                let below = asked.iter().filter(|(at, until, _)| *at < floor && *until > now);
                let last = below.map(|(_, until, _)| *until).max().unwrap_or(0);
                prop_assert!(until >= last, "{until} before {last}");
                let slack = if last == 0 { now } else { last };
                prop_assert!(until <= slack + GRAIN_MS, "{until} long after {last}");
            }
        }
    }
}
