//! What readers of a feed find: a position in it, and what lies there. Its machine ([`crate::feed_machine`]) writes it.

use std::time::Instant;

use kindred_partition_config::ids::Revision;

use crate::cursor::{self, Limit, Look, Taken};
use crate::feed_event::{Encoded, Events, Filter, LastEncoded};
use crate::feed_ring::FeedRing;
use crate::gaps::{Gaps, Passed};
use crate::watch_merge::Entry;

/// The result of reading at a position.
#[derive(Debug)]
pub enum Take {
    /// The next revisions; empty if there are none yet.
    Taken(Taken<Events>),
    /// The position lies before the beginning of the ring; a catch-up is needed.
    Behind,
    /// The position is compacted; this is the first revision that can be served.
    Compacted(Revision),
    /// The feed is being opened.
    Opening,
    /// The feed has ended: read another one.
    Ended,
}

/// A position that resting readers of a feed share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stand {
    /// The readers were given everything below this.
    pub position: Revision,
    /// The number of gaps that the feed had recorded; the readers have passed all of them.
    pub gaps: u64,
}

/// The state that a feed's machine and its readers share.
#[derive(Debug)]
pub struct FeedState {
    /// The first revision of a catch-up; `None` for a live feed.
    pub start: Option<Revision>,
    /// `None` while the feed is being opened.
    pub ring: Option<FeedRing<Events>>,
    /// Positions below this are compacted.
    pub compacted: Revision,
    /// What its stores lost in unclean restarts (R10).
    pub gaps: Gaps,
    /// Nothing more comes: readers look for another feed.
    pub ended: bool,
    /// The feed ended because its keys are moving; a newer map says where they go, perhaps only later.
    pub moved: bool,
    /// The highest revision that a reader asked the feed to reach.
    pub wanted: Revision,
    /// The highest position of any reader; kept for catch-ups only.
    pub read_to: Revision,
    /// The number of its readers.
    pub readers: usize,
    /// What readers were given last. Their revisions are those of [`Self::ring`]: it ends with that.
    pub last_encoded: Option<LastEncoded>,
    /// The stores that hold events back, by their places in the feed's key, and since when.
    pub lagging: Vec<(usize, Instant)>,
}

impl FeedState {
    /// A live feed, not open yet.
    #[must_use]
    pub fn live() -> Self {
        Self {
            start: None,
            ring: None,
            compacted: Revision::ZERO,
            gaps: Gaps::default(),
            ended: false,
            moved: false,
            wanted: Revision::ZERO,
            read_to: Revision::ZERO,
            readers: 0,
            last_encoded: None,
            lagging: Vec::new(),
        }
    }

    /// A catch-up that begins at this revision.
    #[must_use]
    pub fn catch_up(start: Revision, ring_bytes: usize) -> Self {
        let ring = Some(FeedRing::new(start.prev(), ring_bytes));
        Self { start: Some(start), ring, ..Self::live() }
    }

    /// Reads at `position`, for a reader that has passed these gaps of the feed. Also returns whether the machine must
    /// hear of it ([`crate::feed_machine::Event::Kick`]).
    #[must_use]
    pub fn take(&mut self, position: Revision, passed: &mut Passed, limit: Limit) -> (Take, bool) {
        if position < self.compacted {
            return (Take::Compacted(self.compacted), false);
        }
        if let Err(floor) = self.gaps.pass(position, passed) {
            return (Take::Compacted(floor), false);
        }
        if self.ended {
            return (Take::Ended, false);
        }
        let Some(ring) = &self.ring else { return (Take::Opening, false) };
        let Look::Taken(taken) = cursor::look(ring, position, limit) else { return (Take::Behind, false) };
        let is_furthest = self.start.is_some() && taken.next > self.read_to;
        if is_furthest {
            self.read_to = taken.next;
        }
        (Take::Taken(taken), is_furthest)
    }

    /// The events of neighbouring entries of the ring that a watch with this filter wants; `None` if there are none.
    /// Readers that are woken together mostly want the same of the same entries, which is encoded once.
    #[must_use]
    pub fn encoded(&mut self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded> {
        if let Some(same) = self.last_encoded.as_ref().and_then(|last| last.get(entries, filter)) {
            return same;
        }
        let encoded = Encoded::of(entries, filter);
        self.last_encoded = match self.readers {
            0 | 1 => None,
            _ => LastEncoded::of(entries, filter, encoded.clone()),
        };
        encoded
    }

    /// Reads for all readers that rest at `stand`. `None` if each of them must look for itself with
    /// [`FeedState::take`]: the feed has ended, has recorded another gap since, or no longer holds the position.
    #[must_use]
    pub fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        if self.ended || stand.position < self.compacted || self.gaps.heard() != stand.gaps {
            return None;
        }
        match cursor::look(self.ring.as_ref()?, stand.position, limit) {
            Look::Taken(taken) => Some(taken),
            Look::Behind => None,
        }
    }

    /// Where readers stand that were given everything; `None` while the feed is being opened, and after its end.
    #[must_use]
    pub fn present(&self) -> Option<Stand> {
        let ring = self.ring.as_ref().filter(|_| !self.ended)?;
        Some(Stand { position: ring.covered().next(), gaps: self.gaps.heard() })
    }

    /// No event at or below this revision is still to come; `None` while the feed is being opened.
    #[must_use]
    pub fn covered(&self) -> Option<Revision> {
        self.ring.as_ref().map(FeedRing::covered)
    }

    /// Notes that a reader asks the feed to reach this revision. Returns whether the machine must hear of it.
    #[must_use]
    pub fn want(&mut self, to: Revision) -> bool {
        let is_higher = to > self.wanted;
        self.wanted = self.wanted.max(to);
        is_higher
    }

    /// Whether a reader at `position` should join this catch-up instead of opening its own: it is at most so far behind
    /// it.
    #[must_use]
    pub fn is_near(&self, position: Revision, near: i64) -> bool {
        let Some(ring) = self.ring.as_ref().filter(|_| !self.ended) else { return false };
        position >= self.compacted
            && position > ring.floor()
            && position.get().saturating_sub(ring.covered().get()) <= near
    }

    /// Ends the feed.
    pub fn end(&mut self) {
        self.ended = true;
        self.lagging.clear();
    }

    /// Bytes of events in the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ring.as_ref().map_or(0, FeedRing::bytes)
    }
}
