//! The revisions that stores lost in unclean restarts (R10), and which readers of a feed they concern.
//!
//! A store that was killed comes back with everything up to its last durable revision D, and with a first revision s
//! above all that it ever showed. What lay between may have been shown and is gone. A reader is only a position, so the
//! position alone decides:
//!
//! ```text
//!   next <= D + 1        it was given nothing that is gone: it reads on
//!   D + 1 < next < s     it may have been given what is gone: compacted
//!   s <= next            it wants nothing from before
//! ```
//!
//! A reader in the first case later passes through the numbers of the gap, where it reads what other stores assigned.
//! So each gap is checked against a reader once, at its first read after the feed has recorded the gap ([`Passed`]). A
//! new reader has passed none.

use std::collections::VecDeque;

use kindred_partition_config::ids::Revision;

/// The number of gaps that a feed remembers. Of older ones only their highest end is kept, so a reader that has not
/// read since then is cancelled if its position is below that.
const GAPS_MAX: usize = 1024;

/// An unclean restart of a store: the open interval of revisions that it may have shown and lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last durable revision, D.
    pub after: Revision,
    /// The first revision of the store's new incarnation, s.
    pub until: Revision,
}

impl Gap {
    /// Whether a reader whose next revision is `next` may have been given what was lost.
    #[must_use]
    pub fn holds(&self, next: Revision) -> bool {
        self.after.next() < next && next < self.until
    }
}

/// How many gaps of a feed a reader has been checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed(u64);

/// The gaps of one feed, in the order in which they were recorded.
#[derive(Debug)]
pub struct Gaps {
    known: VecDeque<Gap>,
    /// How many older gaps were forgotten.
    forgotten: u64,
    /// The highest end of the forgotten gaps.
    forgotten_until: Revision,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { known: VecDeque::new(), forgotten: 0, forgotten_until: Revision::ZERO }
    }
}

impl Gaps {
    /// Records a gap; returns whether it is new. A store reports its gaps again whenever a stream is opened.
    pub fn note(&mut self, gap: Gap) -> bool {
        if self.known.contains(&gap) || gap.until <= gap.after.next() {
            return false;
        }
        self.known.push_back(gap);
        if self.known.len() > GAPS_MAX
            && let Some(oldest) = self.known.pop_front()
        {
            self.forgotten += 1;
            self.forgotten_until = self.forgotten_until.max(oldest.until);
        }
        true
    }

    /// The number of gaps ever recorded.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.forgotten + self.known.len() as u64
    }

    /// Checks a reader whose next revision is `next` against the gaps that it has not passed; then it has passed all.
    ///
    /// # Errors
    /// The first revision that can be served, if its position lies in a gap.
    pub fn pass(&self, next: Revision, passed: &mut Passed) -> Result<(), Revision> {
        if passed.0 < self.forgotten && next < self.forgotten_until {
            return Err(self.forgotten_until);
        }
        let seen = usize::try_from(passed.0.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        if let Some(gap) = self.known.iter().skip(seen).find(|gap| gap.holds(next)) {
            return Err(gap.until);
        }
        passed.0 = self.heard();
        Ok(())
    }
}

#[cfg(test)]
#[path = "gaps_test.rs"]
mod tests;
