//! Feeds: one merged, ordered stream of events for each watched range, shared by all clients of this router.
//!
//! ```text
//!  store A --Feed--+                           +-- position of a watch
//!  store B --Feed--+-> WatchMerge -> FeedRing -+-- position of a watch      the live feed of a key
//!  store C --Feed--+                           +-- …
//!  the same from an older revision -> its ring ---- positions further back  a catch-up
//! ```
//!
//! * A [`Feed`] has one task, which owns its merge, its upstream streams and what is written to its ring. Readers look at
//!   the ring at positions of their own and are woken when there is more; nothing is queued for any of them, so a slow
//!   client costs its position and nobody notices it.
//! * The **live** feed of a key begins at a revision T that all its stores have promised (R8) and lives as long as it is
//!   watched. A store whose stream breaks is opened again at its own position; the others go on, and what may not be
//!   shown before it waits in the merge.
//! * A **catch-up** is a feed that begins further back, for readers whose position the live ring has dropped. It is read
//!   no faster than its fastest reader, shared where starts are near, and ends with its last reader.
//! * History that a store has lost ends the feed's past: readers below the floor are told that it is compacted, and the
//!   feed begins anew (R10).

pub mod bell;
pub mod feed;
pub mod place;
mod raise;
mod source;
mod task;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_router_core::store::StoreIx;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stores::Stores;
use bell::Bell;
use feed::{Feed, Reader};
use kindred_router_core::place::FeedKey;

/// Bytes of recent events that a feed keeps.
pub const RING_BYTES: usize = 16 << 20;
/// How long a feed without readers is kept: clients that reconnect find it.
pub const IDLE: Duration = Duration::from_secs(30);
/// A reader this far ahead of a catch-up joins it rather than open its own: revisions of about ten seconds.
const NEAR: i64 = 10_000_000 << 10;

/// What the operator may choose.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of recent events that a feed keeps.
    pub ring_bytes: usize,
    /// How long a feed without readers is kept.
    pub idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_bytes: RING_BYTES, idle: IDLE }
    }
}

/// What feeds have done since the router started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Upstream streams opened, the ones opened again included.
    pub opened: AtomicU64,
    /// Upstream streams that broke.
    pub broken: AtomicU64,
    /// Watermarks asked of stores.
    pub advances: AtomicU64,
    /// Catch-ups begun.
    pub catch_ups: AtomicU64,
    /// Looks of single watches: of those that were concerned by something, if all is well.
    pub turns: AtomicU64,
}

impl Counts {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The feeds that exist now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Live feeds.
    pub live: usize,
    /// Catch-ups.
    pub catch_ups: usize,
    /// Bytes in their rings.
    pub bytes: usize,
}

/// The feeds of one key.
#[derive(Debug, Default)]
struct Group {
    live: Option<Arc<Feed>>,
    catch_ups: Vec<Arc<Feed>>,
}

/// All feeds of a router. A feed's task ends it; this only finds them.
#[derive(Debug)]
pub struct Feeds {
    stores: Stores,
    options: Options,
    counts: Counts,
    /// Never locked across an await, and before a feed's own lock.
    groups: Mutex<HashMap<FeedKey, Group>>,
    killed: CancellationToken,
}

impl Feeds {
    /// No feeds yet.
    #[must_use]
    pub fn new(stores: Stores, options: Options, killed: CancellationToken) -> Arc<Self> {
        Arc::new(Self { stores, options, counts: Counts::default(), groups: Mutex::default(), killed })
    }

    /// What they have done.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<FeedKey, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The live feed of a key, by the map of this generation; opened if it is not.
    #[must_use]
    pub fn live(self: &Arc<Self>, key: &FeedKey, generation: u64, bell: Arc<Bell>) -> Reader {
        let mut groups = self.groups();
        let live = &mut groups.entry(key.clone()).or_default().live;
        let feed = live.get_or_insert_with(|| {
            let feed = Feed::live(key.clone(), generation);
            self.spawn(feed.clone());
            feed
        });
        feed.is_placed_by(generation);
        Reader::new(feed.clone(), bell)
    }

    /// A feed that holds what comes at `position`.
    #[must_use]
    pub fn catch_up(
        self: &Arc<Self>,
        key: &FeedKey,
        generation: u64,
        position: Revision,
        bell: Arc<Bell>,
    ) -> Reader {
        let mut groups = self.groups();
        let catch_ups = &mut groups.entry(key.clone()).or_default().catch_ups;
        let near = catch_ups.iter().find(|feed| feed.is_near(position, NEAR));
        let feed = near.cloned().unwrap_or_else(|| {
            let feed = Feed::catch_up(key.clone(), generation, position, self.options.ring_bytes);
            Counts::one(&self.counts.catch_ups);
            catch_ups.push(feed.clone());
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

    /// Takes a feed out that nobody reads; false when somebody does after all.
    fn retire(&self, feed: &Arc<Feed>) -> bool {
        let mut groups = self.groups();
        if feed.has_readers() {
            return false;
        }
        Self::take_out(&mut groups, feed);
        true
    }

    /// Takes a feed out that its readers must leave.
    fn retire_ended(&self, feed: &Arc<Feed>) {
        Self::take_out(&mut self.groups(), feed);
    }

    fn take_out(groups: &mut HashMap<FeedKey, Group>, feed: &Arc<Feed>) {
        if let Some(group) = groups.get_mut(&feed.key) {
            group.live = group.live.take().filter(|live| !Arc::ptr_eq(live, feed));
            group.catch_ups.retain(|other| !Arc::ptr_eq(other, feed));
            if group.live.is_none() && group.catch_ups.is_empty() {
                groups.remove(&feed.key);
            }
        }
        feed.end();
    }

    fn each(&self, mut visit: impl FnMut(&Feed, bool)) {
        for group in self.groups().values() {
            group.live.iter().for_each(|feed| visit(feed, true));
            group.catch_ups.iter().for_each(|feed| visit(feed, false));
        }
    }

    /// What exists now.
    #[must_use]
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        self.each(|feed, live| {
            *(if live { &mut held.live } else { &mut held.catch_ups }) += 1;
            held.bytes += feed.bytes();
        });
        held
    }

    /// The stores that hold watches back, with how many feeds, and for how long.
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
