//! A feed as its readers see it: a ring to read from, and requests to its task.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::cursor::{Limit, Taken};
use kindred_router_core::feed_event::{Encoded, Events, Filter};
use kindred_router_core::feed_registry::Joined;
use kindred_router_core::feed_state::FeedState;
pub use kindred_router_core::feed_state::{Stand, Take};
use kindred_router_core::gaps::Passed;
use kindred_router_core::store::StoreIx;
use kindred_router_core::watch_merge::Entry;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::bell::Bell;
use kindred_router_core::place::FeedKey;

/// The state that a feed's task and its readers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub state: FeedState,
    /// Callers that wait for the current revision. Bounded: a session waits for at most its creates and one round.
    pub asking: Vec<oneshot::Sender<Result<Revision, ()>>>,
    readers: HashMap<u64, Arc<Bell>>,
    next_reader: u64,
}

/// A merged stream of events of one key, live or a catch-up.
#[derive(Debug)]
pub struct Feed {
    pub(super) key: FeedKey,
    /// The generation of the newest map that places watches here.
    generation: AtomicU64,
    /// Tells the task that there is something to do.
    pub(super) kick: Notify,
    /// Never locked across an await.
    shared: Mutex<Shared>,
}

impl Feed {
    pub(super) fn new(key: FeedKey, generation: Epoch, state: FeedState) -> Arc<Self> {
        let shared = Shared { state, asking: Vec::new(), readers: HashMap::new(), next_reader: 0 };
        let generation = AtomicU64::new(generation.0);
        Arc::new(Self { key, generation, kick: Notify::new(), shared: Mutex::new(shared) })
    }

    /// The map generation that goes with requests to its stores.
    #[must_use]
    pub fn generation(&self) -> Epoch {
        Epoch(self.generation.load(Ordering::Relaxed))
    }

    /// Notes that a map of this generation places watches here.
    pub fn is_placed_by(&self, generation: Epoch) {
        self.generation.fetch_max(generation.0, Ordering::Relaxed);
    }

    /// Whether the feed has ended, so that readers must look for another one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().state.ended
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the feed ended because its keys are moving; a newer map says where they go, perhaps only later.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.lock().state.moved
    }

    /// See [`FeedState::take`].
    #[must_use]
    pub fn take(&self, position: Revision, passed: &mut Passed, limit: Limit) -> Take {
        let (take, kick) = self.lock().state.take(position, passed, limit);
        if kick {
            self.kick.notify_one();
        }
        take
    }

    /// See [`FeedState::look`].
    #[must_use]
    pub fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        self.lock().state.look(stand, limit)
    }

    /// See [`FeedState::encoded`].
    #[must_use]
    pub fn encoded(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded> {
        self.lock().state.encoded(entries, filter)
    }

    /// See [`FeedState::present`].
    #[must_use]
    pub fn present(&self) -> Option<Stand> {
        self.lock().state.present()
    }

    /// See [`FeedState::covered`].
    #[must_use]
    pub fn covered(&self) -> Option<Revision> {
        self.lock().state.covered()
    }

    /// Asks the feed to reach this revision. All its stores must be able to promise it.
    pub fn want(&self, to: Revision) {
        if self.lock().state.want(to) {
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
            let mut shared = self.lock();
            // The task is gone, so nobody would answer.
            if shared.state.ended {
                return Err(());
            }
            shared.asking.push(answer);
        }
        self.kick.notify_one();
        current.await.unwrap_or(Err(()))
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.lock().readers.is_empty()
    }

    /// Ends the feed; its readers are woken to look elsewhere.
    pub(super) fn end(&self) {
        let mut shared = self.lock();
        shared.state.end();
        shared.asking.clear();
        drop(shared);
        self.wake_readers();
    }

    pub(super) fn wake_readers(&self) {
        self.lock().readers.values().for_each(Bell::ring);
    }

    pub(super) fn bytes(&self) -> usize {
        self.lock().state.bytes()
    }

    /// The stores that hold events back, and since when.
    pub(super) fn lagging(&self) -> Vec<(StoreIx, Instant)> {
        let stores: Vec<_> = self.key.stores().collect();
        self.lock().state.lagging.iter().map(|(at, since)| (stores[*at], (*since).into())).collect()
    }
}

impl Joined for Feed {
    fn is_near(&self, position: Revision, near: i64) -> bool {
        self.lock().state.is_near(position, near)
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
        let mut shared = feed.lock();
        let id = shared.next_reader;
        shared.next_reader += 1;
        shared.readers.insert(id, bell.clone());
        shared.state.readers = shared.readers.len();
        drop(shared);
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
        let mut shared = self.feed.lock();
        shared.readers.remove(&self.id);
        shared.state.readers = shared.readers.len();
        drop(shared);
        self.feed.kick.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f29_who_asks_a_feed_that_has_ended_is_told() {
        let feed = Feed::new(FeedKey::new(Vec::new()), Epoch::NONE, FeedState::live());
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
