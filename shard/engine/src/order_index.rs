//! An ordered map from key bytes to `T` with order statistics: a counted B+tree. Every entry is live or dead (a
//! tombstone that still has history); every inner node knows the number of live entries below each child, so the exact
//! count of a range costs O(log n) (A10, A13) and a walk steps over dead stretches whole.
//!
//! Memory: an entry costs itself and 3 to 8 bytes. It does not hold its key: [`Keys`] tells it, from where the key is
//! anyway. Leaves grow in small steps instead of by doubling, and inner nodes hold shortest separators, not keys.

use std::fmt;

use self::node::{Inserted, Node};

mod iter;
mod node;
#[cfg(test)]
mod tests;

pub use self::iter::Iter;

/// Tells the keys of entries. What it tells of an entry must not change while the entry is in an index.
pub trait Keys<T> {
    /// The key of an entry.
    fn key<'k>(&'k self, entry: &'k T) -> &'k [u8];
}

/// The ordered index; see the module's text. Every call is to be given the same [`Keys`].
pub struct OrderIndex<T> {
    root: Node<T>,
    len: u64,
    live: u64,
}

impl<T> Default for OrderIndex<T> {
    fn default() -> Self {
        Self { root: Node::empty(), len: 0, live: 0 }
    }
}

impl<T> OrderIndex<T> {
    /// An empty index; allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Entries, dead ones included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no entry, not even a dead one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Live entries.
    #[must_use]
    pub fn live_len(&self) -> u64 {
        self.live
    }

    /// Adds an entry. One with the same key is replaced, with its flag, and returned.
    pub fn insert(&mut self, entry: T, live: bool, keys: &impl Keys<T>) -> Option<T> {
        let Inserted { old, delta, split } = self.root.insert(entry, live, keys);
        if let Some((separator, right)) = split {
            let left = std::mem::replace(&mut self.root, Node::empty());
            self.root = Node::parent_of(left, separator, right);
        }
        self.len += u64::from(old.is_none());
        self.live = self.live.wrapping_add_signed(delta);
        old
    }

    /// The entry of `key`, dead or live.
    #[must_use]
    pub fn get(&self, key: &[u8], keys: &impl Keys<T>) -> Option<&T> {
        self.root.get(key, keys).map(|(entry, _)| entry)
    }

    /// The flag of the entry of `key`; `None` when there is no entry.
    #[must_use]
    pub fn is_live(&self, key: &[u8], keys: &impl Keys<T>) -> Option<bool> {
        self.root.get(key, keys).map(|(_, live)| live)
    }

    /// Sets the flag of the entry of `key` and returns the one before; `None` when there is no entry.
    pub fn set_live(&mut self, key: &[u8], live: bool, keys: &impl Keys<T>) -> Option<bool> {
        let before = self.root.set_live(key, live, keys)?;
        self.live = self.live.wrapping_add_signed(i64::from(live) - i64::from(before));
        Some(before)
    }

    /// Takes the entry of `key` out.
    pub fn remove(&mut self, key: &[u8], keys: &impl Keys<T>) -> Option<T> {
        let (entry, live) = self.root.remove(key, keys)?;
        self.root.collapse();
        self.len -= 1;
        self.live -= u64::from(live);
        Some(entry)
    }

    /// Live entries with `start <= key`, and `key < end` unless `end` is `None`; O(log n).
    #[must_use]
    pub fn count_live(&self, start: &[u8], end: Option<&[u8]>, keys: &impl Keys<T>) -> u64 {
        let below_end = match end {
            Some(end) if end <= start => return 0,
            Some(end) => self.root.live_below(end, keys),
            None => self.live,
        };
        // A count from the very start, as the first page's of a whole index, needs no second descent.
        if start.is_empty() { below_end } else { below_end - self.root.live_below(start, keys) }
    }

    /// All entries from `start` on, in key order, dead ones included. The caller stops at its end.
    #[must_use]
    pub fn iter_from(&self, start: &[u8], keys: &impl Keys<T>) -> Iter<'_, T> {
        Iter::from(&self.root, start, false, keys)
    }

    /// The live entries from `start` on, in key order; subtrees without one are not visited. The caller stops at its
    /// end.
    #[must_use]
    pub fn iter_live_from(&self, start: &[u8], keys: &impl Keys<T>) -> Iter<'_, T> {
        Iter::from(&self.root, start, true, keys)
    }

    /// The entry with the lowest key, dead or live.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.root.first()
    }

    /// The entry with the highest key, dead or live.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.root.last()
    }
}

impl<T> fmt::Debug for OrderIndex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderIndex").field("len", &self.len).field("live", &self.live).finish_non_exhaustive()
    }
}
