//! The dynamic table (RFC 7541, section 2.3.2 and 4): the newest entry has the lowest index.

use std::collections::VecDeque;

use super::field::{Field, OVERHEAD};

/// A field and its size.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) field: Field,
    pub(crate) size: u32,
}

/// The number of the first entry that is inserted.
const FIRST: u64 = 62;

/// The table. An insertion moves no entries: an index counts from the newest end.
#[derive(Debug)]
pub(crate) struct Table {
    entries: VecDeque<Entry>,
    size: usize,
    size_max: usize,
    /// The number of the next entry. The first numbers are those of the static table.
    next: u64,
}

impl Table {
    pub(crate) fn new(size_max: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, size_max, next: FIRST }
    }

    /// The number of the entry with an index, of which the newest is 0.
    #[inline]
    pub(crate) fn number(&self, index: usize) -> Option<u64> {
        (index < self.entries.len()).then(|| self.next - 1 - index as u64)
    }

    /// The entry with an index.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Entry> {
        // A wrapped difference is above the length.
        self.entries.get(self.entries.len().wrapping_sub(index).wrapping_sub(1))
    }

    /// Adds an entry, and returns it with its number: the oldest make room. One that is larger than the table leaves it empty.
    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) -> Result<(u64, &Entry), Entry> {
        let size = entry.size as usize;
        debug_assert!(size >= OVERHEAD, "the overhead is a part of the size");
        self.shrink(self.size_max.saturating_sub(size));
        if size > self.size_max {
            return Err(entry);
        }
        self.size += size;
        self.entries.push_back(entry);
        let number = self.next;
        self.next += 1;
        Ok((number, &self.entries[self.entries.len() - 1]))
    }

    pub(crate) fn resize(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.shrink(size_max);
    }

    #[inline]
    fn shrink(&mut self, size_max: usize) {
        while self.size > size_max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size as usize;
        }
    }

    pub(crate) const fn size_max(&self) -> usize {
        self.size_max
    }

    #[cfg(test)]
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
