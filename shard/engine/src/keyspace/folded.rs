//! Keeps counts at pins below the floor exact after the flips (creates and deletes) from which they are computed are
//! freed.
//!
//! A freed flip is added to the highest pin before it: per key, how many more of it existed at the pin than after the
//! flip. A key that was created and deleted again adds up to zero and is removed. So this holds no more than the keys
//! in which the pins differ from each other and from the floor. When a pin ends, its sums go to the pin before it.

use std::collections::BTreeMap;

use kindred_partition_config::{ids::Revision, key::Key, unit::Unit};

use super::Span;
use crate::{object::Pins, version::Version};

/// The change of a count when a flip is reversed: 1 for a deletion, -1 for a creation.
fn step(flip: &Version) -> i64 {
    if flip.is_tombstone() { 1 } else { -1 }
}

/// A pin, a key, and how many more of that key existed at the pin than after the added flips.
pub(crate) type Step = (Revision, Key, i64);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Folded {
    by_pin: BTreeMap<Revision, BTreeMap<Key, i64>>,
    /// Whether a pin may have ended since the last settling.
    unpinned: bool,
}

impl Folded {
    /// Adds a freed flip.
    pub(super) fn add(&mut self, flip: &Version, pins: &Pins) {
        if let Some((pin, _)) = pins.range(..flip.mod_revision()).next_back() {
            self.put(*pin, Key::copy_from(flip.key()), step(flip));
        }
    }

    /// Adds to the sum of a key at a pin.
    pub(super) fn put(&mut self, pin: Revision, key: Key, by: i64) {
        let keys = self.by_pin.entry(pin).or_default();
        let sum = keys.entry(key.clone()).or_insert(0);
        *sum += by;
        if *sum == 0 {
            keys.remove(&key);
        }
    }

    /// How many more keys of `span` existed at the pin `at` than after all added flips.
    pub(super) fn count(&self, span: Span<'_>, at: Revision) -> i64 {
        let since = self.by_pin.range(at..).map(|(_, keys)| keys);
        since.map(|keys| within(keys, span).map(|(_, by)| by).sum::<i64>()).sum()
    }

    /// Notes that a pin ended.
    pub(super) fn unpin(&mut self) {
        self.unpinned |= !self.by_pin.is_empty();
    }

    /// Whether [`Folded::settle`] has something to do.
    pub(super) fn wants_settling(&self) -> bool {
        self.unpinned
    }

    /// Moves about `budget` sums of ended pins to the pins before them. Returns the rest of the budget.
    pub(super) fn settle(&mut self, pins: &Pins, mut budget: usize) -> usize {
        while budget > 0 && self.unpinned {
            let Some(ended) = self.by_pin.keys().find(|pin| !pins.contains_key(pin)).copied() else {
                self.unpinned = false;
                break;
            };
            let before = pins.range(..ended).next_back().map(|(pin, _)| *pin);
            let Some(keys) = self.by_pin.get_mut(&ended) else { break };
            let some: Vec<(Key, i64)> = std::iter::from_fn(|| keys.pop_first()).take(budget).collect();
            if keys.is_empty() {
                self.by_pin.remove(&ended);
            }
            budget -= some.len().max(1);
            for (key, by) in some {
                if let Some(before) = before {
                    self.put(before, key, by);
                }
            }
        }
        budget
    }

    /// Takes out the sums of a unit's keys in a span.
    pub(super) fn take(&mut self, unit: &Unit, span: Span<'_>) -> Vec<Step> {
        let mut taken = Vec::new();
        for (pin, keys) in &mut self.by_pin {
            let ours = within(keys, span).filter(|(key, _)| unit.contains(key));
            let ours: Vec<Key> = ours.map(|(key, _)| key.clone()).collect();
            for key in ours {
                let by = keys.remove(&key).unwrap_or_default();
                taken.push((*pin, key, by));
            }
        }
        taken
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn within<'k>(keys: &'k BTreeMap<Key, i64>, span: Span<'_>) -> impl Iterator<Item = (&'k Key, &'k i64)> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let empty = span.end.is_some_and(|end| end <= span.start);
    let range = (Included(span.start), span.end.map_or(Unbounded, Excluded));
    (!empty).then(|| keys.range::<[u8], _>(range)).into_iter().flatten()
}
