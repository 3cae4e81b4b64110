//! What stores lost in unclean restarts (R10), as the readers of a feed are told of it.
//!
//! A store that was killed comes back with all up to its last durable revision D, and its first revision s is above all
//! that it ever showed. What lay between may have been shown and is gone. A reader is nothing but a position, so the
//! position alone decides what it is told:
//!
//! ```text
//!   next <= D + 1        it was given nothing that is gone: it reads on
//!   D + 1 < next < s     it may have been given what is gone: compacted
//!   s <= next            it wants nothing from before
//! ```
//!
//! A reader that was spared comes through the numbers of the gap later, reading what other stores assigned there. So each
//! gap is put to a reader once, at the first look after the feed knows of it ([`Passed`]); a reader that joins later has
//! passed none.

use std::collections::VecDeque;

use kindred_partition_config::ids::Revision;

/// Gaps of a feed that are remembered, some bytes each; of older ones only where they ended. So a reader that did not look
/// while its stores were killed more often than that is cancelled, whatever it was given.
const GAPS_MAX: usize = 1024;

/// One unclean restart of one store: the open interval of revisions that may have been shown and lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last durable revision, D.
    pub after: Revision,
    /// The first revision of the store's new life, s.
    pub until: Revision,
}

impl Gap {
    /// Whether a reader that wants `next` first may have been given what was lost.
    #[must_use]
    pub fn holds(&self, next: Revision) -> bool {
        self.after.next() < next && next < self.until
    }
}

/// How many of a feed's gaps a reader has been held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed(u64);

/// The gaps of one feed, in the order in which it heard of them.
#[derive(Debug)]
pub struct Gaps {
    known: VecDeque<Gap>,
    /// How many were forgotten.
    forgotten: u64,
    /// Where the last of those ended.
    forgotten_until: Revision,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { known: VecDeque::new(), forgotten: 0, forgotten_until: Revision::ZERO }
    }
}

impl Gaps {
    /// Takes note of a gap; whether it is a new one. A store tells its gaps again whenever a stream is opened.
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

    /// How many it has ever taken note of.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.forgotten + self.known.len() as u64
    }

    /// Holds a reader that wants `next` first against the gaps that it has not passed. Then it has passed all.
    ///
    /// # Errors
    /// The first revision that can be served: the reader's next one lies in a gap.
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
