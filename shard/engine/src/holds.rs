//! Revisions that must stay readable for a while (R5): a read over several shards takes a revision that all of them have
//! come to, and reads there a moment later. No floor passes a revision that is held.

use std::collections::VecDeque;

use kindred_partition_config::ids::Revision;

use crate::engine::MonoMillis;

/// How long a revision is held, at least.
const HOLD_MS: u64 = 5_000;
/// Holds end together at multiples of this, so there are never more than about a hundred, however many are asked for.
const GRAIN_MS: u64 = 50;

struct Hold {
    at: Revision,
    until: MonoMillis,
}

/// Held revisions; those that end later are higher: a hold that ends no later than one of a lower revision adds nothing.
#[derive(Default)]
pub(crate) struct Holds(VecDeque<Hold>);

impl Holds {
    pub(crate) fn hold(&mut self, now: MonoMillis, at: Revision) {
        self.expire(now);
        while self.0.back().is_some_and(|last| last.at >= at) {
            self.0.pop_back();
        }
        let until = MonoMillis(now.0.saturating_add(HOLD_MS).div_ceil(GRAIN_MS).saturating_mul(GRAIN_MS));
        if self.0.back().is_none_or(|last| last.until < until) {
            self.0.push_back(Hold { at, until });
        }
    }

    /// When nothing below `floor` will be held any more of what is held now; `None` when nothing is.
    pub(crate) fn below(&mut self, now: MonoMillis, floor: Revision) -> Option<MonoMillis> {
        self.expire(now);
        let below = self.0.partition_point(|hold| hold.at < floor);
        Some(self.0.get(below.checked_sub(1)?)?.until)
    }

    fn expire(&mut self, now: MonoMillis) {
        while self.0.front().is_some_and(|first| first.until <= now) {
            self.0.pop_front();
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
            holds.hold(MonoMillis(i / 10), Revision(i64::try_from(i).unwrap()));
        }
        assert!(holds.0.len() <= (HOLD_MS / GRAIN_MS) as usize + 2, "{}", holds.0.len());
    }

    proptest! {
        #[test]
        fn a_revision_is_held_for_its_time_and_not_much_longer(
            steps in prop::collection::vec((0..3_000_u64, 0..20_i64, 0..25_i64), 1..60),
        ) {
            let mut holds = Holds::default();
            let mut asked: Vec<(i64, u64)> = Vec::new();
            let mut now = 0;
            for (passed, at, floor) in steps {
                now += passed;
                holds.hold(MonoMillis(now), Revision(at));
                asked.push((at, now + HOLD_MS));
                let until = holds.below(MonoMillis(now), Revision(floor)).map_or(0, |until| until.0);
                let below = asked.iter().filter(|(at, until)| *at < floor && *until > now);
                let last = below.map(|(_, until)| *until).max().unwrap_or(0);
                prop_assert!(until >= last, "{until} before {last}");
                let slack = if last == 0 { now } else { last };
                prop_assert!(until <= slack + GRAIN_MS, "{until} long after {last}");
            }
        }
    }
}
