//! Feeds (R6).

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::{Engine, FeedId, FeedOut, WallMicros};

impl Engine {
    /// Opens a feed of the ranges (none of them empty) from revision `start`, or from now on (R8). A start below the
    /// floor ends it at once.
    ///
    /// The caller asks [`Engine::owns`] first and opens no feed that touches a unit not owned here.
    pub fn feed_open(&mut self, ranges: Vec<KeyRange>, start: Option<Revision>) -> FeedId {
        self.feeds.open(&mut self.space, ranges, start)
    }

    /// Raises the feed's ranges to `to`. The only answer is a watermark in the feed at or above `to`, or at the present
    /// when the clock may not follow to `to` (R3).
    pub fn feed_advance(&mut self, now: WallMicros, id: FeedId, to: Revision) {
        let to = match self.clock.raise(now, to, self.config.max_clock_offset_micros) {
            Ok(()) => to,
            Err(_) => self.clock.promise(now),
        };
        self.feeds.raise(&mut self.space, id, to);
    }

    /// The next message of a feed, of about `max_bytes`; `None` when there is nothing to send. A pull scans a bounded
    /// number of events. If the bound was reached before any event of this feed, the feed is woken again at once.
    pub fn feed_pull(&mut self, id: FeedId, max_bytes: usize) -> Option<FeedOut> {
        self.feeds.pull(&mut self.space, id, max_bytes)
    }

    /// Closes a feed.
    pub fn feed_close(&mut self, id: FeedId) {
        self.feeds.close(id);
    }

    /// The feeds that got something to send since the last call.
    pub fn take_feed_wakes(&mut self) -> Vec<FeedId> {
        self.feeds.take_wakes()
    }
}
