//! Translates revisions of a stock etcd into revisions of the shards beside it.
//!
//! A client compacts at a revision of the default store. If that is a stock etcd, its revisions count writes, while
//! those of shards are times. So both are observed from time to time, first the shards and then the etcd. Whatever the
//! etcd executes after that has a revision above the one observed, and is newer than the shards' revision. A compaction
//! of the etcd at R then compacts the shards at the revision of the last observation with the etcd *below* R: never at
//! anything newer than the client asked for, and older by at most one observation.

use kindred_partition_config::ids::Revision;
use serde::{Deserialize, Serialize};

/// The most pairs that are kept; beyond it the older half is thinned out, so that the pairs reach far back.
const PAIRS_MAX: usize = 256;

/// One observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The time of the observation in microseconds since the Unix epoch; for people.
    pub time: u64,
    /// The etcd's revision.
    pub etcd: i64,
    /// The lowest of the shards' revisions, read right before.
    pub clock: Revision,
}

/// The observations of one etcd, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevisionPairs {
    /// The etcd's name as a store; another etcd has other revisions.
    pub store: String,
    pairs: Vec<Pair>,
}

impl RevisionPairs {
    /// No observations yet.
    #[must_use]
    pub fn of(store: &str) -> Self {
        Self { store: store.to_owned(), pairs: Vec::new() }
    }

    /// The latest observation.
    #[must_use]
    pub fn last(&self) -> Option<Pair> {
        self.pairs.last().copied()
    }

    /// Adds an observation.
    pub fn note(&mut self, pair: Pair) {
        // A restored etcd may continue from a lower revision than it had.
        self.pairs.retain(|known| known.etcd <= pair.etcd);
        match self.pairs.last_mut() {
            Some(last) if last.clock >= pair.clock => return,
            Some(last) if last.etcd == pair.etcd => *last = pair,
            _ => self.pairs.push(pair),
        }
        if self.pairs.len() > PAIRS_MAX {
            let (mut at, old) = (0, PAIRS_MAX / 2);
            self.pairs.retain(|_| {
                at += 1;
                at > old || at % 2 == 0
            });
        }
    }

    /// Adds the observations of others, if they are of the same etcd.
    pub fn merge(&mut self, other: &Self) {
        if other.store != self.store {
            return;
        }
        let mut all: Vec<Pair> = self.pairs.drain(..).chain(other.pairs.iter().copied()).collect();
        all.sort_unstable_by_key(|pair| (pair.clock, pair.etcd));
        all.into_iter().for_each(|pair| self.note(pair));
    }

    /// The revision at which to compact the shards when the etcd is compacted at `etcd`; `None` if the etcd was never
    /// observed below that.
    #[must_use]
    pub fn clock_of(&self, etcd: i64) -> Option<Revision> {
        let below = self.pairs.partition_point(|pair| pair.etcd < etcd);
        Some(self.pairs.get(below.checked_sub(1)?)?.clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(etcd: i64, clock: i64) -> Pair {
        Pair { time: 0, etcd, clock: Revision(clock) }
    }

    fn pairs(all: &[(i64, i64)]) -> RevisionPairs {
        let mut pairs = RevisionPairs::of("old");
        all.iter().for_each(|(etcd, clock)| pairs.note(pair(*etcd, *clock)));
        pairs
    }

    #[test]
    fn f17_shards_are_compacted_at_what_they_were_before_the_etcd_was_there() {
        let pairs = pairs(&[(10, 1_000), (10, 2_000), (12, 3_000), (40, 4_000)]);
        let clocks = [9, 10, 11, 12, 13, 40, 41, 1_000].map(|etcd| pairs.clock_of(etcd).map(Revision::get));
        let expected =
            [None, None, Some(2_000), Some(2_000), Some(3_000), Some(3_000), Some(4_000), Some(4_000)];
        assert_eq!(clocks, expected);
    }

    #[test]
    fn f17_an_etcd_that_begins_anew_and_another_one() {
        let mut known = pairs(&[(10, 1_000), (20, 2_000)]);
        known.note(pair(15, 3_000));
        assert_eq!((known.clock_of(16), known.clock_of(12)), (Some(Revision(3_000)), Some(Revision(1_000))));
        let mut other = RevisionPairs::of("other");
        other.note(pair(1, 9_000));
        known.merge(&other);
        assert_eq!(known.last(), Some(pair(15, 3_000)));
        let mut one = pairs(&[(10, 1_000), (30, 3_000)]);
        one.merge(&pairs(&[(20, 2_000), (30, 2_900)]));
        assert_eq!(one, pairs(&[(10, 1_000), (20, 2_000), (30, 3_000)]));
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<RevisionPairs>(&text).unwrap(), one);
    }

    /// However often observations are made, no answer is newer than the first one in which the etcd had reached the
    /// revision, and few pairs are kept.
    #[test]
    fn f17_many_looks_stay_conservative() {
        let mut numbers = 7_u64;
        let (mut known, mut looks, mut etcd) = (RevisionPairs::of("old"), Vec::new(), 1);
        for clock in 1..5_000 {
            numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            etcd += i64::try_from((numbers >> 40) % 4).unwrap();
            known.note(pair(etcd, clock));
            looks.push((etcd, clock));
            assert!(known.pairs.len() <= PAIRS_MAX);
        }
        for asked in 1..=etcd + 1 {
            let first = looks.iter().find(|(etcd, _)| *etcd >= asked).map_or(i64::MAX, |(_, clock)| *clock);
            assert!(known.clock_of(asked).is_none_or(|clock| clock.get() < first), "{asked}");
        }
        let recent = known.clock_of(etcd - 20).unwrap();
        assert!(recent.get() > 4_900, "{recent}");
    }
}
