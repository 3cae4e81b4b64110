//! Feeds (R6).

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::{Engine, FeedId, FeedOut, WallMicros};

impl Engine {
    /// Opens a feed of the ranges, which are not empty, from `start` on or from now on (R8). A start below the floor ends
    /// it at once.
    ///
    /// The caller asks [`Engine::owns`] first: a feed that touches a unit that is not owned here is not to be opened.
    pub fn feed_open(&mut self, ranges: Vec<KeyRange>, start: Option<Revision>) -> FeedId {
        self.feeds.open(&mut self.space, ranges, start)
    }

    /// Raises the feed's ranges to `to`; answered only in the feed, by a watermark not below it. When the clock may not
    /// follow (R3), by one at the present instead.
    pub fn feed_advance(&mut self, now: WallMicros, id: FeedId, to: Revision) {
        let to = match self.clock.raise(now, to, self.config.max_clock_offset_micros) {
            Ok(()) => to,
            Err(_) => self.clock.promise(now),
        };
        self.feeds.raise(&mut self.space, id, to);
    }

    /// What the feed has to say next, about `max_bytes` of it; `None` when there is nothing now. One pull looks at a
    /// bounded number of events: when it had to stop among events of others, the feed is woken again at once.
    pub fn feed_pull(&mut self, id: FeedId, max_bytes: usize) -> Option<FeedOut> {
        self.feeds.pull(&mut self.space, id, max_bytes)
    }

    /// The router is gone.
    pub fn feed_close(&mut self, id: FeedId) {
        self.feeds.close(id);
    }

    /// Feeds that came to have something to say since the last call.
    pub fn take_feed_wakes(&mut self) -> Vec<FeedId> {
        self.feeds.take_wakes()
    }
}
