//! One feed as its readers see it: a ring to look into, and wishes to its task.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kindred_partition_config::ids::Revision;
use kindred_router_core::cursor::{self, Limit, Look, Taken};
use kindred_router_core::feed_event::Events;
use kindred_router_core::feed_ring::FeedRing;
use kindred_router_core::gaps::{Gaps, Passed};
use kindred_router_core::store::StoreIx;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::bell::Bell;
use kindred_router_core::place::FeedKey;

/// What lies at a reader's position.
#[derive(Debug)]
pub enum Take {
    /// The next revisions, or none yet.
    Taken(Taken<Events>),
    /// It lies before what this feed holds.
    Behind,
    /// Nobody has it any more: the first revision that can be served.
    Compacted(Revision),
    /// The feed is being opened.
    Opening,
    /// The feed ended without saying anything: read another one.
    Ended,
}

/// Where readers stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stand {
    /// They were given all below this.
    pub position: Revision,
    /// How many gaps the feed had heard of, all of which they have passed.
    pub gaps: u64,
}

/// What its task and its readers share.
#[derive(Debug)]
pub(super) struct State {
    /// `None` while it is being opened.
    pub ring: Option<FeedRing<Events>>,
    /// Positions below this are compacted.
    pub compacted: Revision,
    /// What its stores lost in unclean restarts (R10).
    pub gaps: Gaps,
    pub ended: bool,
    /// It ended because its keys are moving.
    pub moved: bool,
    /// The highest revision that somebody waits for.
    pub wanted: Revision,
    /// The highest position of a reader.
    pub read_to: Revision,
    /// Who waits for the current revision. Each session waits for at most its creates and one round.
    pub asking: Vec<oneshot::Sender<Result<Revision, ()>>>,
    /// The stores that hold events back, and since when.
    pub lagging: Vec<(StoreIx, Instant)>,
    readers: HashMap<u64, Arc<Bell>>,
    next_reader: u64,
}

/// One feed.
#[derive(Debug)]
pub struct Feed {
    pub(super) key: FeedKey,
    /// The newest map that places watches here.
    generation: AtomicU64,
    /// Where a catch-up begins.
    pub(super) start: Option<Revision>,
    /// Tells the task that there is something to do.
    pub(super) kick: Notify,
    /// Never locked across an await.
    state: Mutex<State>,
}

impl Feed {
    fn new(
        key: FeedKey,
        generation: u64,
        start: Option<Revision>,
        ring: Option<FeedRing<Events>>,
    ) -> Arc<Self> {
        let state = State {
            ring,
            compacted: Revision::ZERO,
            gaps: Gaps::default(),
            ended: false,
            moved: false,
            wanted: Revision::ZERO,
            read_to: Revision::ZERO,
            asking: Vec::new(),
            lagging: Vec::new(),
            readers: HashMap::new(),
            next_reader: 0,
        };
        let generation = AtomicU64::new(generation);
        Arc::new(Self { key, generation, start, kick: Notify::new(), state: Mutex::new(state) })
    }

    pub(super) fn live(key: FeedKey, generation: u64) -> Arc<Self> {
        Self::new(key, generation, None, None)
    }

    pub(super) fn catch_up(key: FeedKey, generation: u64, start: Revision, ring_bytes: usize) -> Arc<Self> {
        Self::new(key, generation, Some(start), Some(FeedRing::new(start.prev(), ring_bytes)))
    }

    /// The generation by which its stores are asked.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A map of this generation places watches here too.
    pub fn is_placed_by(&self, generation: u64) {
        self.generation.fetch_max(generation, Ordering::Relaxed);
    }

    /// Whether it has ended: then it is to be looked for anew.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended because its keys are moving: where they go is not known yet, or by a newer map.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.lock().moved
    }

    /// What lies at `position`, for a reader that has passed these gaps of the feed.
    #[must_use]
    pub fn take(&self, position: Revision, passed: &mut Passed, limit: Limit) -> Take {
        let mut state = self.lock();
        if position < state.compacted {
            return Take::Compacted(state.compacted);
        }
        if let Err(floor) = state.gaps.pass(position, passed) {
            return Take::Compacted(floor);
        }
        if state.ended {
            return Take::Ended;
        }
        let Some(ring) = &state.ring else { return Take::Opening };
        let Look::Taken(taken) = cursor::look(ring, position, limit) else { return Take::Behind };
        if self.start.is_some() && taken.next > state.read_to {
            state.read_to = taken.next;
            self.kick.notify_one();
        }
        Take::Taken(taken)
    }

    /// What lies at the position of readers that stand there together, and where they stood when the feed had heard of this
    /// many gaps; `None` when each of them is to look for itself with [`Feed::take`].
    #[must_use]
    pub fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        let state = self.lock();
        if state.ended || stand.position < state.compacted || state.gaps.heard() != stand.gaps {
            return None;
        }
        match cursor::look(state.ring.as_ref()?, stand.position, limit) {
            Look::Taken(taken) => Some(taken),
            Look::Behind => None,
        }
    }

    /// Where readers stand that were given all that there is; `None` while there is nothing to stand in.
    #[must_use]
    pub fn present(&self) -> Option<Stand> {
        let state = self.lock();
        let ring = state.ring.as_ref().filter(|_| !state.ended)?;
        Some(Stand { position: ring.covered().next(), gaps: state.gaps.heard() })
    }

    /// No event at or below this is still to come; `None` while it is being opened.
    #[must_use]
    pub fn covered(&self) -> Option<Revision> {
        self.lock().ring.as_ref().map(FeedRing::covered)
    }

    /// Asks for the feed to come to this revision, which all its stores must be able to promise.
    pub fn want(&self, to: Revision) {
        let mut state = self.lock();
        if to > state.wanted {
            state.wanted = to;
            self.kick.notify_one();
        }
    }

    /// The highest current revision of its stores, asked after this call, promised by all of them. Calls at the same
    /// time share one question, but never one that was under way.
    ///
    /// # Errors
    /// When a store cannot be asked, or cannot follow.
    pub async fn current(&self) -> Result<Revision, ()> {
        let (answer, current) = oneshot::channel();
        {
            let mut state = self.lock();
            // Nobody answers any more.
            if state.ended {
                return Err(());
            }
            state.asking.push(answer);
        }
        self.kick.notify_one();
        current.await.unwrap_or(Err(()))
    }

    /// Whether a reader at `position` does well to read this catch-up.
    pub(super) fn is_near(&self, position: Revision, near: i64) -> bool {
        let state = self.lock();
        let Some(ring) = state.ring.as_ref().filter(|_| !state.ended) else { return false };
        position >= state.compacted
            && position > ring.floor()
            && position.get().saturating_sub(ring.covered().get()) <= near
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.lock().readers.is_empty()
    }

    /// Nothing more comes: readers look elsewhere.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.asking.clear();
        state.lagging.clear();
        drop(state);
        self.wake_readers();
    }

    pub(super) fn wake_readers(&self) {
        self.lock().readers.values().for_each(Bell::ring);
    }

    pub(super) fn bytes(&self) -> usize {
        self.lock().ring.as_ref().map_or(0, FeedRing::bytes)
    }

    pub(super) fn lagging(&self) -> Vec<(StoreIx, Instant)> {
        self.lock().lagging.clone()
    }
}

/// A reader's hold on a feed: it is woken when there is more, and keeps the feed alive.
#[derive(Debug)]
pub struct Reader {
    feed: Arc<Feed>,
    id: u64,
}

impl Reader {
    pub(super) fn new(feed: Arc<Feed>, bell: Arc<Bell>) -> Self {
        let mut state = feed.lock();
        let id = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(id, bell.clone());
        drop(state);
        // There may be something already.
        bell.ring();
        Self { feed, id }
    }

    /// The feed.
    #[must_use]
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.lock().readers.remove(&self.id);
        self.feed.kick.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f29_who_asks_a_feed_that_has_ended_is_told() {
        let feed = Feed::live(FeedKey::new(Vec::new()), 0);
        let asked = tokio::spawn({
            let feed = feed.clone();
            async move { feed.current().await }
        });
        tokio::task::yield_now().await;
        feed.end();
        assert_eq!(asked.await.unwrap(), Err(()));
        let late = tokio::time::timeout(Duration::from_secs(60), feed.current()).await;
        assert_eq!(late.expect("an answer"), Err(()));
    }
}
