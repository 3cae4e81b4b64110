//! Feeds on the loop: what a feed has to say is given to its stream behind the publish that made it so, without being
//! asked for. A stream that is behind has a few messages; its feed says nothing more before it has asked to be resumed,
//! and costs a position in the history and nothing else.

use kindred_engine::engine::{FeedId, FeedOut};
use kindred_partition_config::ids::Revision;
use tokio::sync::mpsc;

use super::{Core, FeedOf, FeedWanted};
use crate::etcd_status::KvError;

/// Messages of one feed that wait for its stream.
pub(crate) const WAITING_MAX: usize = 4;
/// Bytes of one message, about.
const MESSAGE_BYTES: usize = 256 << 10;

/// A message of a feed.
#[derive(Debug)]
pub(crate) struct Pushed {
    pub out: FeedOut,
    /// It took the last room: nothing more comes before [`Core::feed_resume`].
    pub is_last: bool,
}

/// Where the messages of a feed go.
#[derive(Debug)]
pub(super) struct Outlet {
    to: mpsc::Sender<Pushed>,
    paused: bool,
}

impl Outlet {
    /// Whether nobody reads it.
    pub(super) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }
}

/// All feeds of the shard.
pub(super) type Outlets = std::collections::HashMap<FeedId, Outlet>;

impl Core {
    /// A new feed, whose messages go to `to`.
    pub(crate) fn feed_open(
        &mut self,
        wanted: FeedWanted,
        to: mpsc::Sender<Pushed>,
    ) -> Result<FeedId, KvError> {
        let FeedWanted { of, start } = wanted;
        let id = match of {
            FeedOf::Unit(unit) => self.engine.unit_feed_open(&unit, start)?,
            FeedOf::Ranges { ranges, generation } => {
                self.engine.owns(&ranges, generation)?;
                self.engine.feed_open(ranges, start)
            }
        };
        self.feeds.insert(id, Outlet { to, paused: false });
        Ok(id)
    }

    /// Raises a feed's ranges; answered in the feed.
    pub fn feed_advance(&mut self, id: FeedId, to: Revision) {
        self.engine.feed_advance(self.clock.wall(), id, to);
    }

    /// The stream has taken the message that said that it was the last.
    pub(crate) fn feed_resume(&mut self, id: FeedId) {
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.paused = false;
            self.feeds_behind.push(id);
        }
    }

    /// The router is gone.
    pub fn feed_close(&mut self, id: FeedId) {
        if self.feeds.remove(&id).is_some() {
            self.engine.feed_close(id);
        }
    }

    /// Gives every feed that has something to say one message of it. Nothing is to be applied and not yet handed to the
    /// logs.
    pub(crate) fn push_feeds(&mut self) {
        let mut ids = std::mem::take(&mut self.feeds_behind);
        ids.append(&mut self.engine.take_feed_wakes());
        for id in ids {
            self.push_feed(id);
        }
        // Those that had to stop among events of others.
        self.feeds_behind.append(&mut self.engine.take_feed_wakes());
    }

    /// Whether some feed has more to say at once.
    #[must_use]
    pub fn has_feeds_behind(&self) -> bool {
        !self.feeds_behind.is_empty()
    }

    fn push_feed(&mut self, id: FeedId) {
        let Some(feed) = self.feeds.get_mut(&id).filter(|feed| !feed.paused) else { return };
        // It is paused with its last room, so there is none only when nobody reads it any more.
        let Ok(room) = feed.to.try_reserve() else { return };
        let Some(out) = self.engine.feed_pull(id, MESSAGE_BYTES) else { return };
        // Free beside the one that is reserved.
        feed.paused = feed.to.capacity() == 0;
        // What ends with a watermark is all: whatever comes after it wakes the feed.
        let is_all = out.watermark.is_some() || out.compacted.is_some() || out.moved.is_some();
        if !is_all && !feed.paused {
            self.feeds_behind.push(id);
        }
        room.send(Pushed { out, is_last: feed.paused });
    }
}
