//! The recent events of one feed in a ring bounded in bytes, read by cursors.
//!
//! Every client watch of a range is a cursor on the feed's ring. Two numbers describe the ring:
//!
//! ```text
//!   …dropped…  floor | held, whole revisions … | covered   not known yet …
//! ```
//!
//! The ring holds every event above `floor` and at or below `covered`, so a cursor in between misses nothing. A cursor
//! at or below the floor is [`Start::Behind`] and must read history from the shards until it is above. A cursor above
//! `covered` waits. A cursor that has read everything advances with the watermark, so that a watch of an idle range
//! does not fall off the ring. A cursor never gets less than all without notice: falling off is an answer of its own.
//! What stores have lost is not the ring's concern; see [`crate::gaps`].

use std::collections::VecDeque;

use kindred_partition_config::ids::Revision;

use crate::watch_merge::Entry;

/// A position in the feed: the first revision that is not delivered yet. Made by [`FeedRing::start`], advanced by
/// [`FeedRing::read_from`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    next: Revision,
}

impl Cursor {
    /// The first revision that is not delivered; from here history must be read when the cursor is behind.
    #[must_use]
    pub fn next(&self) -> Revision {
        self.next
    }
}

/// Whether the ring can serve a watch from a revision on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Yes; also if the revision is in the future.
    Here(Cursor),
    /// No: events at or above the revision were dropped, so history must be read from the shards first.
    Behind {
        /// The lowest revision that the ring can serve.
        from: Revision,
    },
}

/// What a cursor reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read<'a, T> {
    /// The next revisions, whole and in order; possibly none.
    Entries {
        /// Two slices, because the ring wraps around.
        entries: [&'a [Entry<T>]; 2],
        /// Set if the entries are all that there is: no event at or below it is still to come. May lie below the
        /// cursor.
        watermark: Option<Revision>,
    },
    /// The cursor has fallen off the ring and did not move: its history begins at [`Cursor::next`].
    Behind {
        /// The lowest revision that the ring can serve.
        from: Revision,
    },
}

/// An input that breaks the order of the feed; it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// An event at or below what is covered.
    #[error("event at {revision}, though covered up to {covered}")]
    LateEvent {
        revision: Revision,
        /// The last watermark or event.
        covered: Revision,
    },
    /// A watermark below what is covered.
    #[error("watermark goes back to {revision} from {covered}")]
    WatermarkBack {
        revision: Revision,
        /// The last watermark or event.
        covered: Revision,
    },
}

#[derive(Debug)]
pub struct FeedRing<T> {
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    budget_bytes: usize,
    floor: Revision,
    covered: Revision,
}

impl<T> FeedRing<T> {
    /// An empty ring for a feed that begins after `after`. Keeps the newest revision, and more only within
    /// `budget_bytes`.
    #[must_use]
    pub fn new(after: Revision, budget_bytes: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, budget_bytes, floor: after, covered: after }
    }

    /// Events at or below this may have been dropped.
    #[must_use]
    pub fn floor(&self) -> Revision {
        self.floor
    }

    /// No event at or below this is still to come.
    #[must_use]
    pub fn covered(&self) -> Revision {
        self.covered
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the next revision of the feed, and drops the oldest ones beyond the budget.
    ///
    /// # Errors
    /// When the revision is not above everything covered.
    pub fn push(&mut self, entry: Entry<T>) -> Result<(), RingError> {
        let Entry { revision, bytes, .. } = entry;
        if revision <= self.covered {
            return Err(RingError::LateEvent { revision, covered: self.covered });
        }
        self.covered = revision;
        self.bytes += bytes;
        self.entries.push_back(entry);
        // The newest revision stays even if it alone exceeds the budget; else every live watch would fall behind at
        // each event.
        while self.bytes > self.budget_bytes && self.entries.len() > 1 {
            self.drop_oldest();
        }
        Ok(())
    }

    /// Notes the merged watermark of the feed.
    ///
    /// # Errors
    /// When it is below what is covered.
    pub fn watermark(&mut self, revision: Revision) -> Result<(), RingError> {
        if revision < self.covered {
            return Err(RingError::WatermarkBack { revision, covered: self.covered });
        }
        self.covered = revision;
        Ok(())
    }

    /// Sets a new budget, and drops the oldest revisions beyond it.
    pub fn shrink(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
        while self.bytes > budget_bytes && !self.entries.is_empty() {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.entries.pop_front() else { return };
        self.bytes -= oldest.bytes;
        self.floor = self.floor.max(oldest.revision);
    }

    /// Whether a watch can start here with `revision` as the first one that it wants.
    #[must_use]
    pub fn start(&self, revision: Revision) -> Start {
        if revision <= self.floor {
            return Start::Behind { from: self.floor.next() };
        }
        Start::Here(Cursor { next: revision })
    }

    #[must_use]
    pub fn can_start(&self, revision: Revision) -> bool {
        matches!(self.start(revision), Start::Here(_))
    }

    /// Reads the next revisions and moves the cursor behind them: at most `max_bytes`, but at least one revision if
    /// there is one. Revisions are never split.
    pub fn read_from(&self, cursor: &mut Cursor, max_bytes: usize) -> Read<'_, T> {
        if cursor.next <= self.floor {
            return Read::Behind { from: self.floor.next() };
        }
        let begin = self.entries.partition_point(|entry| entry.revision < cursor.next);
        let mut bytes = 0usize;
        let fits = |entry: &&Entry<T>| {
            let first = bytes == 0;
            bytes = bytes.saturating_add(entry.bytes.max(1));
            first || bytes <= max_bytes
        };
        let end = begin + self.entries.range(begin..).take_while(fits).count();
        let all = end == self.entries.len();
        let last = self.entries.range(begin..end).next_back().map(|entry| entry.revision);
        let read_to = if all { Some(self.covered) } else { last };
        if let Some(read_to) = read_to {
            cursor.next = cursor.next.max(read_to.next());
        }
        let watermark = all.then_some(self.covered);
        Read::Entries { entries: self.pieces(begin, end), watermark }
    }

    fn pieces(&self, begin: usize, end: usize) -> [&[Entry<T>]; 2] {
        let (front, back) = self.entries.as_slices();
        let cut = front.len();
        [&front[begin.min(cut)..end.min(cut)], &back[begin.max(cut) - cut..end.max(cut) - cut]]
    }
}

#[cfg(test)]
#[path = "feed_ring_test.rs"]
mod tests;
