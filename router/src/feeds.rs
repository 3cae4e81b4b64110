//! Feeds: one merged, ordered stream of events for each watched range, shared by all clients of this router.
//!
//! ```text
//!  store A --Feed--+                           +-- position of a watch
//!  store B --Feed--+-> WatchMerge -> FeedRing -+-- position of a watch      the live feed of a key
//!  store C --Feed--+                           +-- …
//!  the same from an older revision -> its ring ---- positions further back  a catch-up
//! ```
//!
//! * A [`Feed`] has one task, which owns its merge and its upstream streams and alone writes to its ring. Readers look
//!   into the ring at positions of their own and are woken when there is more. Nothing is queued for a reader, so a
//!   slow client delays nobody else.
//! * The **live** feed of a key begins at a revision T that all its stores have promised (R8), and lives as long as it
//!   is watched. When a store's stream breaks, it is opened again at its own position. The other streams go on, and the
//!   merge keeps the events that must not be shown before that store's events.
//! * A **catch-up** is a feed that begins further back, for readers whose position the live ring has dropped. It is
//!   shared by readers whose positions are near each other, advances no faster than its fastest reader, and ends with
//!   its last reader.
//! * When a store has lost history, readers whose positions are affected are told that they are compacted, and a feed
//!   that stands in the gap begins anew (R10).

pub mod bell;
pub mod feed;
pub mod place;
pub mod raise;
mod source;
mod task;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::store::StoreIx;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stores::Stores;
use bell::Bell;
use feed::{Feed, Reader};
use kindred_router_core::feed_registry::FeedRegistry;
use kindred_router_core::feed_state::FeedState;
use kindred_router_core::place::FeedKey;

pub const RING_BYTES: usize = 16 << 20;
/// How long a feed without readers is kept, so that clients that reconnect find it.
pub const IDLE: Duration = Duration::from_secs(30);
/// A reader joins an existing catch-up that is at most this far behind it, instead of opening its own: revisions of
/// about ten seconds.
const NEAR: i64 = 10_000_000 << 10;

/// Settings of the operator for feeds.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of recent events that a feed keeps in its ring.
    pub ring_bytes: usize,
    /// How long a feed without readers is kept.
    pub idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_bytes: RING_BYTES, idle: IDLE }
    }
}

/// Counters since the router started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Upstream streams opened, including reopened ones.
    pub opened: AtomicU64,
    /// Upstream streams that broke.
    pub broken: AtomicU64,
    /// Watermarks asked of stores.
    pub advances: AtomicU64,
    pub catch_ups: AtomicU64,
    /// Reads of single watches. While all is well, only watches that an event concerns are read.
    pub turns: AtomicU64,
}

impl Counts {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The feeds that exist at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    pub live: usize,
    pub catch_ups: usize,
    /// Bytes of events in their rings.
    pub bytes: usize,
}

/// The registry of all feeds of a router. Each feed's own task runs it and ends it.
#[derive(Debug)]
pub struct Feeds {
    stores: Stores,
    options: Options,
    counts: Counts,
    /// Locked before a feed's own lock, and never across an await.
    registry: Mutex<FeedRegistry<Arc<Feed>>>,
    killed: CancellationToken,
}

impl Feeds {
    #[must_use]
    pub fn new(stores: Stores, options: Options, killed: CancellationToken) -> Arc<Self> {
        Arc::new(Self { stores, options, counts: Counts::default(), registry: Mutex::default(), killed })
    }

    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn registry(&self) -> MutexGuard<'_, FeedRegistry<Arc<Feed>>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader of the live feed of a key, which is opened if it does not exist; the caller's map has this generation.
    #[must_use]
    pub fn live(self: &Arc<Self>, key: &FeedKey, generation: Epoch, bell: Arc<Bell>) -> Reader {
        let mut registry = self.registry();
        let feed = registry.live(key, || {
            let feed = Feed::new(key.clone(), generation, FeedState::live());
            self.spawn(feed.clone());
            feed
        });
        feed.is_placed_by(generation);
        Reader::new(feed, bell)
    }

    /// A reader of a catch-up that holds the events from `position` on; joins one that is near, else begins one.
    #[must_use]
    pub fn catch_up(
        self: &Arc<Self>,
        key: &FeedKey,
        generation: Epoch,
        position: Revision,
        bell: Arc<Bell>,
    ) -> Reader {
        let mut registry = self.registry();
        let feed = registry.catch_up(key, position, NEAR, || {
            let feed =
                Feed::new(key.clone(), generation, FeedState::catch_up(position, self.options.ring_bytes));
            Counts::one(&self.counts.catch_ups);
            self.spawn(feed.clone());
            feed
        });
        feed.is_placed_by(generation);
        Reader::new(feed, bell)
    }

    fn spawn(self: &Arc<Self>, feed: Arc<Feed>) {
        let (feeds, killed) = (self.clone(), self.killed.clone());
        tokio::spawn(async move { killed.run_until_cancelled(task::run(feeds, feed)).await });
    }

    /// Removes and ends a feed that has no readers; returns false if it has got one meanwhile.
    fn retire(&self, feed: &Arc<Feed>) -> bool {
        let mut registry = self.registry();
        if feed.has_readers() {
            return false;
        }
        registry.take_out(&feed.key, feed);
        feed.end();
        true
    }

    /// Removes and ends a feed; its readers must look for another one.
    fn retire_ended(&self, feed: &Arc<Feed>) {
        let mut registry = self.registry();
        registry.take_out(&feed.key, feed);
        feed.end();
    }

    fn each(&self, mut visit: impl FnMut(&Feed, bool)) {
        self.registry().iter().for_each(|(feed, live)| visit(feed, live));
    }

    #[must_use]
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        self.each(|feed, live| {
            *(if live { &mut held.live } else { &mut held.catch_ups }) += 1;
            held.bytes += feed.bytes();
        });
        held
    }

    /// The stores that hold watches back: for each, the number of feeds concerned and the longest time.
    #[must_use]
    pub fn lags(&self) -> Vec<(StoreIx, usize, Duration)> {
        let mut lags: Vec<(StoreIx, usize, Duration)> = Vec::new();
        let now = Instant::now();
        self.each(|feed, _| {
            for (store, since) in feed.lagging() {
                let lag = now.saturating_duration_since(since);
                match lags.iter_mut().find(|(other, ..)| *other == store) {
                    Some((_, feeds, longest)) => {
                        *feeds += 1;
                        *longest = lag.max(*longest);
                    }
                    None => lags.push((store, 1, lag)),
                }
            }
        });
        lags.sort_unstable_by_key(|(store, ..)| *store);
        lags
    }
}
