//! Who asks the same at the same time shares the answer.
//!
//! A question may be asked anew as long as few rounds of it are under way: nothing waits for company. Beyond that, those
//! who come wait for one round to end and then share the next one. A round never answers who came after it began: what
//! it says would not cover what that one knows to be done (R4, R5).

use std::collections::HashMap;
use std::hash::Hash;

/// Rounds of one question under way at most. With one alone, who comes in the middle of it would wait nearly twice as long
/// as without company.
pub const UNDER_WAY_MAX: usize = 2;

/// Questions `K` under way, and who waits `W` for a round that has not begun.
#[derive(Debug)]
pub struct Rounds<K, W>(HashMap<K, Asked<W>>);

#[derive(Debug)]
struct Asked<W> {
    under_way: usize,
    next: Vec<W>,
}

impl<K, W> Default for Rounds<K, W> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, W> Rounds<K, W> {
    /// Somebody asks. The one for whom a round is to begin now; `None` when a later round answers.
    pub fn ask(&mut self, question: K, waiter: W) -> Option<W> {
        let asked = self.0.entry(question).or_insert_with(|| Asked { under_way: 0, next: Vec::new() });
        if asked.under_way < UNDER_WAY_MAX {
            asked.under_way += 1;
            return Some(waiter);
        }
        asked.next.push(waiter);
        None
    }

    /// A round has ended. Those for whom the next one is to begin now, in its place; `None` when nobody waits.
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

    /// Whether nothing is under way.
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
        let mut rounds = Rounds::default();
        assert_eq!([1, 2, 3, 4].map(|who| rounds.ask("a", who)), [Some(1), Some(2), None, None]);
        assert_eq!(rounds.ask("b", 5), Some(5), "another question waits for nobody");
        assert_eq!(rounds.next(&"a"), Some(vec![3, 4]));
        assert_eq!((rounds.next(&"a"), rounds.ask("a", 6)), (None, Some(6)));
        assert_eq!([rounds.next(&"a"), rounds.next(&"a"), rounds.next(&"b")], [None, None, None]);
        assert!(rounds.is_empty());
        assert_eq!(rounds.next(&"a"), None);
    }

    #[test]
    fn f52_random_tests_draw_the_same_numbers_every_time() {
        let seed = ProptestConfig::default().rng_seed;
        let fixed = matches!(seed, prop::test_runner::RngSeed::Fixed(_));
        assert!(fixed, "set PROPTEST_RNG_SEED, as .cargo/config.toml does");
    }

    proptest! {
        /// Everybody is answered once, by a round that began when or after they asked.
        #[test]
        fn nobody_is_forgotten_or_answered_by_what_began_before(
            steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut rounds = Rounds::default();
            // Under way: the question, when it began, and when those who wait for it asked.
            let mut under_way: Vec<(u8, usize, Vec<usize>)> = Vec::new();
            let (mut asked, mut answered) = (0, 0);
            let end = |rounds: &mut Rounds<u8, usize>, under_way: &mut Vec<(u8, usize, Vec<usize>)>, which, now| {
                let (question, began, waiters) = under_way.swap_remove(which);
                assert!(waiters.iter().all(|asked| *asked <= began));
                if let Some(next) = rounds.next(&question) {
                    under_way.push((question, now, next));
                }
                waiters.len()
            };
            for (now, (question, which)) in steps.into_iter().enumerate() {
                if question == 2 && !under_way.is_empty() {
                    let which = which.index(under_way.len());
                    answered += end(&mut rounds, &mut under_way, which, now);
                } else {
                    asked += 1;
                    if let Some(waiter) = rounds.ask(question, now) {
                        under_way.push((question, now, vec![waiter]));
                    }
                }
                let of = |question| under_way.iter().filter(|round| round.0 == question).count();
                prop_assert!((0..3).all(|question| of(question) <= UNDER_WAY_MAX));
            }
            while !under_way.is_empty() {
                answered += end(&mut rounds, &mut under_way, 0, usize::MAX);
            }
            prop_assert_eq!(answered, asked);
            prop_assert!(rounds.is_empty());
        }
    }
}
