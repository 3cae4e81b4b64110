//! The recent events of one feed, in a ring bounded in bytes, with cursors by revision.
//!
//! Every client watch of a range is a cursor on the feed's ring. Three numbers describe what the ring can say:
//!
//! ```text
//!   …dropped…  floor | held, whole revisions … | covered   not known yet …
//! ```
//!
//! Every event above `floor` and at or below `covered` is held, so a cursor in between is served from here and misses
//! nothing; one at or below the floor is [`Start::Behind`] and reads history from the shards until it is above; one
//! above `covered` waits. A cursor that has read all moves on with the watermark, so that the watch of an idle range
//! does not fall off the ring. What a cursor gets is never silently less than all: falling off is an answer of its own.
//! What stores have lost is not the ring's to know: see [`crate::gaps`].

use std::collections::VecDeque;

use kindred_partition_config::ids::Revision;

use crate::watch_merge::Entry;

/// A place in the feed: the first revision not delivered yet. Made by [`FeedRing::start`], moved by
/// [`FeedRing::read_from`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    next: Revision,
}

impl Cursor {
    /// The first revision that it has not delivered: where history is to be read from when it is behind.
    #[must_use]
    pub fn next(&self) -> Revision {
        self.next
    }
}

/// Whether a watch can start at a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Here, also when the revision is in the future.
    Here(Cursor),
    /// The ring has dropped events at or above the revision: read history from the shards first.
    Behind {
        /// The lowest revision that can start here.
        from: Revision,
    },
}

/// What a cursor gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read<'a, T> {
    /// The next revisions, whole and in order; maybe none.
    Entries {
        /// In two pieces, because the ring wraps.
        entries: [&'a [Entry<T>]; 2],
        /// Set when these are all: no event at or below this is still to come (it may lie below the cursor).
        watermark: Option<Revision>,
    },
    /// As [`Start::Behind`]. The cursor did not move: its history starts at [`Cursor::next`].
    Behind {
        /// The lowest revision that can be read here.
        from: Revision,
    },
}

/// An input that breaks the order of the feed. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// An event at or below what was covered.
    #[error("event at {revision}, though covered up to {covered}")]
    LateEvent {
        /// The event's.
        revision: Revision,
        /// The watermark, or the last event.
        covered: Revision,
    },
    /// A watermark that goes back.
    #[error("watermark goes back to {revision} from {covered}")]
    WatermarkBack {
        /// The watermark.
        revision: Revision,
        /// The last one.
        covered: Revision,
    },
}

/// The ring of one feed.
#[derive(Debug)]
pub struct FeedRing<T> {
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    budget_bytes: usize,
    floor: Revision,
    covered: Revision,
}

impl<T> FeedRing<T> {
    /// An empty ring of a feed that begins after `after`. It holds the newest revision whatever its size, and more only
    /// within `budget_bytes`.
    #[must_use]
    pub fn new(after: Revision, budget_bytes: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, budget_bytes, floor: after, covered: after }
    }

    /// Events at or below this may have been dropped.
    #[must_use]
    pub fn floor(&self) -> Revision {
        self.floor
    }

    /// No event at or below this is still to come: the merged watermark, or the last event.
    #[must_use]
    pub fn covered(&self) -> Revision {
        self.covered
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the next revision of the feed and drops the oldest ones beyond the budget.
    ///
    /// # Errors
    /// When it is not above all that is covered.
    pub fn push(&mut self, entry: Entry<T>) -> Result<(), RingError> {
        let Entry { revision, bytes, .. } = entry;
        if revision <= self.covered {
            return Err(RingError::LateEvent { revision, covered: self.covered });
        }
        self.covered = revision;
        self.bytes += bytes;
        self.entries.push_back(entry);
        // The newest stays even alone above the budget: without it every live watch would be behind at each event.
        while self.bytes > self.budget_bytes && self.entries.len() > 1 {
            self.drop_oldest();
        }
        Ok(())
    }

    /// Notes the merged watermark of the feed.
    ///
    /// # Errors
    /// When it goes back.
    pub fn watermark(&mut self, revision: Revision) -> Result<(), RingError> {
        if revision < self.covered {
            return Err(RingError::WatermarkBack { revision, covered: self.covered });
        }
        self.covered = revision;
        Ok(())
    }

    /// Drops from the front down to `budget_bytes`, the new budget.
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

    /// Whether a watch can start at `revision`, the first one that it wants.
    #[must_use]
    pub fn start(&self, revision: Revision) -> Start {
        if revision <= self.floor {
            return Start::Behind { from: self.floor.next() };
        }
        Start::Here(Cursor { next: revision })
    }

    /// Whether a watch can start at `revision` from here.
    #[must_use]
    pub fn can_start(&self, revision: Revision) -> bool {
        matches!(self.start(revision), Start::Here(_))
    }

    /// The next revisions behind the cursor, at most `max_bytes` but at least one where there is one; moves the cursor
    /// behind them. Revisions are never split.
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
