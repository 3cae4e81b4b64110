//! An ordered map from key bytes to `T` with order statistics: a counted B+tree. Every entry is live or dead (a
//! tombstone that still has history); every inner node knows the number of live entries below each child, so the exact
//! count of a range costs O(log n) (A10, A13) and a walk steps over dead stretches whole.
//!
//! Memory: an entry costs its key handle, its value handle and 4 to 19 bytes (measured). Leaves grow in small steps instead of by
//! doubling, and inner nodes hold shortest separators, not keys, so that no handle of a removed key lives on in them.
//!
//! `K` is the key handle: anything that borrows as bytes. It is a parameter so that a thin or prefix-stripped key can
//! take the place of [`Key`] without a change here.

use std::{borrow::Borrow, fmt};

use kindred_partition_config::key::Key;

use self::node::{Inserted, Node};

mod iter;
mod node;
#[cfg(test)]
mod tests;

pub use self::iter::Iter;

/// The ordered index; see the module's text.
pub struct OrderIndex<T, K = Key> {
    root: Node<K, T>,
    len: u64,
    live: u64,
}

impl<T, K> Default for OrderIndex<T, K> {
    fn default() -> Self {
        Self { root: Node::empty(), len: 0, live: 0 }
    }
}

impl<T, K: Borrow<[u8]>> OrderIndex<T, K> {
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

    /// Adds an entry. When the key has one, its value and flag are replaced (its key handle stays) and the old value is
    /// returned.
    pub fn insert(&mut self, key: K, value: T, live: bool) -> Option<T> {
        let Inserted { old, delta, split } = self.root.insert(key, value, live);
        if let Some((separator, right)) = split {
            let left = std::mem::replace(&mut self.root, Node::empty());
            self.root = Node::parent_of(left, separator, right);
        }
        self.len += u64::from(old.is_none());
        self.live = self.live.wrapping_add_signed(delta);
        old
    }

    /// The value at `key`, dead or live.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&T> {
        self.root.get(key).map(|(value, _)| value)
    }

    /// The value at `key`, dead or live, to be changed in place.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut T> {
        self.root.get_mut(key)
    }

    /// The flag of the entry at `key`; `None` when there is no entry.
    #[must_use]
    pub fn is_live(&self, key: &[u8]) -> Option<bool> {
        self.root.get(key).map(|(_, live)| live)
    }

    /// Sets the flag of the entry at `key` and returns the one before; `None` when there is no entry.
    pub fn set_live(&mut self, key: &[u8], live: bool) -> Option<bool> {
        let before = self.root.set_live(key, live)?;
        self.live = self.live.wrapping_add_signed(i64::from(live) - i64::from(before));
        Some(before)
    }

    /// Takes the entry at `key` out.
    pub fn remove(&mut self, key: &[u8]) -> Option<T> {
        let (value, live) = self.root.remove(key)?;
        self.root.collapse();
        self.len -= 1;
        self.live -= u64::from(live);
        Some(value)
    }

    /// Live entries with `start <= key`, and `key < end` unless `end` is `None`; O(log n).
    #[must_use]
    pub fn count_live(&self, start: &[u8], end: Option<&[u8]>) -> u64 {
        let below_end = match end {
            Some(end) if end <= start => return 0,
            Some(end) => self.root.live_below(end),
            None => self.live,
        };
        // A count from the very start, as the first page's of a whole index, needs no second descent.
        if start.is_empty() { below_end } else { below_end - self.root.live_below(start) }
    }

    /// All entries from `start` on, in key order, dead ones included. The caller stops at its end.
    #[must_use]
    pub fn iter_from(&self, start: &[u8]) -> Iter<'_, K, T> {
        Iter::from(&self.root, start, false)
    }

    /// The live entries from `start` on, in key order; subtrees without one are not visited. The caller stops at its
    /// end.
    #[must_use]
    pub fn iter_live_from(&self, start: &[u8]) -> Iter<'_, K, T> {
        Iter::from(&self.root, start, true)
    }

    /// The entry with the lowest key, dead or live.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &T)> {
        self.root.first()
    }

    /// The entry with the highest key, dead or live.
    #[must_use]
    pub fn last(&self) -> Option<(&K, &T)> {
        self.root.last()
    }
}

impl<T, K> fmt::Debug for OrderIndex<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderIndex").field("len", &self.len).field("live", &self.live).finish_non_exhaustive()
    }
}
