//! A feed as its readers see it: a ring to read from, and requests to its task.

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

/// The state that a feed's task and its readers share.
#[derive(Debug)]
pub(super) struct State {
    /// `None` while the feed is being opened.
    pub ring: Option<FeedRing<Events>>,
    /// Positions below this are compacted.
    pub compacted: Revision,
    /// What its stores lost in unclean restarts (R10).
    pub gaps: Gaps,
    pub ended: bool,
    /// The feed ended because its keys are moving.
    pub moved: bool,
    /// The highest revision that a reader asked the feed to reach.
    pub wanted: Revision,
    /// The highest position of any reader; kept for catch-ups only.
    pub read_to: Revision,
    /// Callers that wait for the current revision. Bounded: a session waits for at most its creates and one round.
    pub asking: Vec<oneshot::Sender<Result<Revision, ()>>>,
    /// The stores that hold events back, and since when.
    pub lagging: Vec<(StoreIx, Instant)>,
    readers: HashMap<u64, Arc<Bell>>,
    next_reader: u64,
}

/// A merged stream of events of one key, live or a catch-up.
#[derive(Debug)]
pub struct Feed {
    pub(super) key: FeedKey,
    /// The generation of the newest map that places watches here.
    generation: AtomicU64,
    /// The first revision of a catch-up; `None` for a live feed.
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

    /// The map generation that goes with requests to its stores.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Notes that a map of this generation places watches here.
    pub fn is_placed_by(&self, generation: u64) {
        self.generation.fetch_max(generation, Ordering::Relaxed);
    }

    /// Whether the feed has ended, so that readers must look for another one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the feed ended because its keys are moving; a newer map says where they go, perhaps only later.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.lock().moved
    }

    /// Reads at `position`, for a reader that has passed these gaps of the feed.
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

    /// Reads for all readers that rest at `stand`. `None` if each of them must look for itself with [`Feed::take`]: the
    /// feed has ended, has recorded another gap since, or no longer holds the position.
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

    /// Where readers stand that were given everything; `None` while the feed is being opened, and after its end.
    #[must_use]
    pub fn present(&self) -> Option<Stand> {
        let state = self.lock();
        let ring = state.ring.as_ref().filter(|_| !state.ended)?;
        Some(Stand { position: ring.covered().next(), gaps: state.gaps.heard() })
    }

    /// No event at or below this revision is still to come; `None` while the feed is being opened.
    #[must_use]
    pub fn covered(&self) -> Option<Revision> {
        self.lock().ring.as_ref().map(FeedRing::covered)
    }

    /// Asks the feed to reach this revision. All its stores must be able to promise it.
    pub fn want(&self, to: Revision) {
        let mut state = self.lock();
        if to > state.wanted {
            state.wanted = to;
            self.kick.notify_one();
        }
    }

    /// The highest current revision of its stores, asked after this call and promised by all of them. Concurrent calls
    /// share a question, but never one that was already under way.
    ///
    /// # Errors
    /// When a store cannot be asked or cannot follow, or when the feed has ended.
    pub async fn current(&self) -> Result<Revision, ()> {
        let (answer, current) = oneshot::channel();
        {
            let mut state = self.lock();
            // The task is gone, so nobody would answer.
            if state.ended {
                return Err(());
            }
            state.asking.push(answer);
        }
        self.kick.notify_one();
        current.await.unwrap_or(Err(()))
    }

    /// Whether a reader at `position` should join this catch-up instead of opening its own.
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

    /// Ends the feed; its readers are woken to look elsewhere.
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

/// A reader's registration at a feed: its bell rings when there is more, and the feed stays alive.
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
