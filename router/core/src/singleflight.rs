//! Lets concurrent requests with the same question share an answer.
//!
//! A few rounds of one question may be under way at once, so normally nothing waits. Beyond that, requests wait until a
//! round ends and then share the next one. A round never answers a request that came after it began, because its answer
//! might not cover what the client already knows to be done (R4, R5).

use std::collections::HashMap;
use std::hash::Hash;

/// The most rounds of one question under way. With only one, a request in the middle of it would wait almost twice as
/// long as alone.
pub const UNDER_WAY_MAX: usize = 2;

/// The questions `K` under way, each with the waiters `W` for a round that has not begun.
#[derive(Debug)]
pub struct Singleflight<K, W>(HashMap<K, Asked<W>>);

#[derive(Debug)]
struct Asked<W> {
    under_way: usize,
    next: Vec<W>,
}

impl<K, W> Default for Singleflight<K, W> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, W> Singleflight<K, W> {
    /// Adds a request. Returns its waiter if a round is to begin for it at once; `None` if a later round answers it.
    pub fn ask(&mut self, question: K, waiter: W) -> Option<W> {
        let asked = self.0.entry(question).or_insert_with(|| Asked { under_way: 0, next: Vec::new() });
        if asked.under_way < UNDER_WAY_MAX {
            asked.under_way += 1;
            return Some(waiter);
        }
        asked.next.push(waiter);
        None
    }

    /// Ends a round. Returns the waiters for whom the next round is to begin in its place; `None` if there are none.
    pub fn next(&mut self, question: &K) -> Option<Vec<W>> {
        let asked = self.0.get_mut(question)?;
        if !asked.next.is_empty() {
            return Some(std::mem::take(&mut asked.next));
        }
        asked.under_way -= 1;
        if asked.under_way == 0 {
            self.0.remove(question);
        }
        None
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_rounds_begin_at_once_and_the_next_is_shared() {
        let mut calls = Singleflight::default();
        assert_eq!([1, 2, 3, 4].map(|who| calls.ask("a", who)), [Some(1), Some(2), None, None]);
        assert_eq!(calls.ask("b", 5), Some(5), "another question waits for nobody");
        assert_eq!(calls.next(&"a"), Some(vec![3, 4]));
        assert_eq!((calls.next(&"a"), calls.ask("a", 6)), (None, Some(6)));
        assert_eq!([calls.next(&"a"), calls.next(&"a"), calls.next(&"b")], [None, None, None]);
        assert!(calls.is_empty());
        assert_eq!(calls.next(&"a"), None);
    }

    #[test]
    fn f52_random_tests_draw_the_same_numbers_every_time() {
        let seed = ProptestConfig::default().rng_seed;
        let fixed = matches!(seed, prop::test_runner::RngSeed::Fixed(_));
        assert!(fixed, "set PROPTEST_RNG_SEED, as .cargo/config.toml does");
    }

    proptest! {
        /// Every request is answered once, by a round that did not begin before it came.
        #[test]
        fn nobody_is_forgotten_or_answered_by_what_began_before(
            steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut calls = Singleflight::default();
            // The rounds under way: the question, when the round began, and when its requests came.
            let mut under_way: Vec<(u8, usize, Vec<usize>)> = Vec::new();
            let (mut asked, mut answered) = (0, 0);
            let end = |calls: &mut Singleflight<u8, usize>, under_way: &mut Vec<(u8, usize, Vec<usize>)>, which, now| {
                let (question, began, waiters) = under_way.swap_remove(which);
                assert!(waiters.iter().all(|asked| *asked <= began));
                if let Some(next) = calls.next(&question) {
                    under_way.push((question, now, next));
                }
                waiters.len()
            };
            for (now, (question, which)) in steps.into_iter().enumerate() {
                if question == 2 && !under_way.is_empty() {
                    let which = which.index(under_way.len());
                    answered += end(&mut calls, &mut under_way, which, now);
                } else {
                    asked += 1;
                    if let Some(waiter) = calls.ask(question, now) {
                        under_way.push((question, now, vec![waiter]));
                    }
                }
                let of = |question| under_way.iter().filter(|round| round.0 == question).count();
                prop_assert!((0..3).all(|question| of(question) <= UNDER_WAY_MAX));
            }
            while !under_way.is_empty() {
                answered += end(&mut calls, &mut under_way, 0, usize::MAX);
            }
            prop_assert_eq!(answered, asked);
            prop_assert!(calls.is_empty());
        }
    }
}
