//! What a session uses of its router.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::kind::KindPrefix;
use kindred_wire::peek::WatchCreateRequest;

use super::types::{Ask, FeedNo};
use crate::cursor::{Limit, Taken};
use crate::feed_event::{Encoded, Events, Filter};
use crate::feed_state::{Stand, Take};
use crate::gaps::Passed;
use crate::place::FeedKey;
use crate::routes::Routes;
use crate::store::StoreIx;
use crate::watch_merge::Entry;

/// The feed that has more, by the session's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// A live feed.
    Feed(FeedNo),
    /// The catch-up of the watch with this number.
    Watch(i64),
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// A watch was placed elsewhere.
    Moved,
    /// A stream of a store broke and is opened again.
    Reopened,
    /// A single watch was read.
    Turn,
}

/// A reader's hold on a feed; the feed lives as long as it has readers. See [`crate::feed_state::FeedState`].
pub trait FeedReader {
    /// Reads at `position`, for a reader that has passed these gaps of the feed.
    fn take(&self, position: Revision, passed: &mut Passed, limit: Limit) -> Take;
    /// Reads for all readers that rest at `stand`.
    fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>>;
    /// The events of neighbouring entries, read from this feed, that a watch with this filter wants.
    fn encoded(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded>;
    /// Where readers stand that were given everything.
    fn present(&self) -> Option<Stand>;
    /// No event at or below this revision is still to come.
    fn covered(&self) -> Option<Revision>;
    /// Asks the feed to reach this revision. All its stores must be able to promise it.
    fn want(&self, to: Revision);
    /// The map generation that goes with requests to its stores.
    fn generation(&self) -> Epoch;
    /// Notes that a map of this generation places watches here.
    fn is_placed_by(&self, generation: Epoch);
    /// Whether the feed has ended, so that readers must look for another one.
    fn has_ended(&self) -> bool;
    /// Whether the feed ended because its keys are moving.
    fn has_moved(&self) -> bool;
}

/// What a session uses of its router. All calls take effect at once, and none of them waits or calls the session.
pub trait Outside {
    /// A reader of one of the router's feeds.
    type Reader: FeedReader;

    /// Why the client may not watch these keys, as a `cancel_reason`.
    ///
    /// # Errors
    /// If it may not.
    fn may_watch(&self, key: &[u8], range_end: &[u8]) -> Result<(), String>;
    /// The map that requests see.
    fn routes(&self) -> Arc<Routes>;
    /// Whether the store is a shard, not a stock etcd.
    fn is_shard(&self, store: StoreIx) -> bool;
    /// For clients: why the store cannot be asked; `None` while it can.
    fn away(&self, store: StoreIx) -> Option<String>;
    /// The highest revision that a client has compacted.
    fn compacted(&self) -> Revision;

    /// A reader of the live feed of a key; its bell rings as [`Rung::Feed`]. The caller's map has this generation.
    fn live(&mut self, key: &FeedKey, generation: Epoch, no: FeedNo) -> Self::Reader;
    /// A reader of a catch-up from `position` on; its bell rings as [`Rung::Watch`].
    fn catch_up(&mut self, key: &FeedKey, generation: Epoch, position: Revision, uid: i64) -> Self::Reader;
    /// Takes the bells that have rung, each once.
    fn rung(&mut self) -> Vec<Rung>;

    /// Opens a stream to a store in place of the one that it may have, after this delay. It begins with these requests.
    /// What it says comes back with this number, as [`Event::Upstream`](super::Event::Upstream).
    fn open(&mut self, store: StoreIx, number: u64, delay: Duration, first: Vec<Bytes>);
    /// Queues a request on the store's stream; `false` if there is no room or the stream is over.
    fn send(&mut self, store: StoreIx, request: Bytes) -> bool;
    /// Closes the store's stream.
    fn close(&mut self, store: StoreIx);

    /// Asks a store, for these ranges of keys with their ends. The answer comes as [`super::Event::Asked`].
    fn ask_store(&mut self, ask: Ask, store: StoreIx, ranges: Vec<(Bytes, Bytes)>);
    /// Asks a feed. The answer comes as [`super::Event::Asked`].
    fn ask_feed(&mut self, ask: Ask, feed: &Self::Reader);
    /// The answers to all these questions are not needed any more.
    fn give_up_asking(&mut self);
    /// Asks a feed for its current revision until it answers, for a create that waits; [`super::Event::Present`] comes
    /// after [`super::CREATE_WAIT`] at the latest.
    fn ask_present(&mut self, uid: i64, feed: &Self::Reader);

    /// Notes that the client sees a revision of these Kinds (R8).
    fn show(&mut self, spread: &[KindPrefix], revision: Revision);
    /// The same of a watch on one store, placed by the map of this generation; its keys may have got other Kinds since.
    fn show_of_store(
        &mut self,
        store: StoreIx,
        spread: &[KindPrefix],
        revision: Revision,
        generation: Epoch,
        range: (&[u8], &[u8]),
    );
    /// For metrics and traces: a watch was created, and has this number.
    fn begun(&mut self, uid: i64, create: &WatchCreateRequest<'_>);
    /// For metrics: a watch was removed.
    fn ended(&mut self, uid: i64);
    /// For metrics: a watch is sent events in a message of so many bytes. `first` is the revision of the first of them, if
    /// it came while the watch had everything before it.
    fn delivered(&mut self, uid: i64, bytes: usize, first: Option<Revision>);
    /// For metrics.
    fn count(&mut self, count: Count);
}
