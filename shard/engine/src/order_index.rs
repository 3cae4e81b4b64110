//! An ordered map from key bytes to `T` with order statistics: a counted B+tree. Each entry is live or dead (a
//! tombstone that still has history). Every inner node knows the number of live entries below each child, so the exact
//! count of a range costs O(log n) (A10, A13), and a walk skips dead subtrees.
//!
//! An entry costs its own size and 3 to 8 bytes. It does not hold its key: [`Keys`] reads it from where it is stored
//! anyway. Leaves grow in small steps instead of doubling, and inner nodes hold shortest separators instead of keys.

use std::fmt;

use self::node::{Inserted, Node};

mod iter;
mod node;
#[cfg(test)]
mod tests;

pub use self::iter::Iter;

/// Maps entries to their keys. The key of an entry must not change while the entry is in an index.
pub trait Keys<T> {
    fn key<'k>(&'k self, entry: &'k T) -> &'k [u8];
}

/// The ordered index; see the module's documentation. Every call must pass the same [`Keys`].
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

    /// The number of entries, including dead ones.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no entries, not even dead ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[must_use]
    pub fn live_len(&self) -> u64 {
        self.live
    }

    /// Adds an entry. An entry with the same key is replaced, with its flag, and returned.
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

    /// The flag of the entry of `key`; `None` without an entry.
    #[must_use]
    pub fn is_live(&self, key: &[u8], keys: &impl Keys<T>) -> Option<bool> {
        self.root.get(key, keys).map(|(_, live)| live)
    }

    /// Sets the flag of the entry of `key` and returns the previous one; `None` without an entry.
    pub fn set_live(&mut self, key: &[u8], live: bool, keys: &impl Keys<T>) -> Option<bool> {
        let before = self.root.set_live(key, live, keys)?;
        self.live = self.live.wrapping_add_signed(i64::from(live) - i64::from(before));
        Some(before)
    }

    /// Removes and returns the entry of `key`.
    pub fn remove(&mut self, key: &[u8], keys: &impl Keys<T>) -> Option<T> {
        let (entry, live) = self.root.remove(key, keys)?;
        self.root.collapse();
        self.len -= 1;
        self.live -= u64::from(live);
        Some(entry)
    }

    /// The number of live entries with `start <= key`, and `key < end` unless `end` is `None`; O(log n).
    #[must_use]
    pub fn count_live(&self, start: &[u8], end: Option<&[u8]>, keys: &impl Keys<T>) -> u64 {
        let below_end = match end {
            Some(end) if end <= start => return 0,
            Some(end) => self.root.live_below(end, keys),
            None => self.live,
        };
        // A count from the beginning needs no second descent.
        if start.is_empty() { below_end } else { below_end - self.root.live_below(start, keys) }
    }

    /// All entries from `start` on, in key order, including dead ones.
    #[must_use]
    pub fn iter_from(&self, start: &[u8], keys: &impl Keys<T>) -> Iter<'_, T> {
        Iter::from(&self.root, start, false, keys)
    }

    /// The live entries from `start` on, in key order; skips subtrees without any.
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
