//! Feeds on the loop. After each publish, the messages of a feed are pushed to its stream without a request. A stream
//! that is behind holds a few messages. Its feed then produces nothing until the stream asks to resume, and costs no
//! more than its position in the history.

use kindred_engine::engine::{FeedId, FeedOut};
use kindred_partition_config::ids::Revision;
use tokio::sync::mpsc;

use super::{Core, FeedOf, FeedWanted};
use crate::etcd_status::KvError;

/// Messages of one feed that may wait for its stream.
pub(crate) const WAITING_MAX: usize = 4;

#[derive(Debug)]
pub struct Pushed {
    pub out: FeedOut,
    /// It took the last room: no message follows before [`Core::feed_resume`].
    pub is_last: bool,
}

/// The destination of a feed's messages.
#[derive(Debug)]
pub(super) struct Outlet {
    to: mpsc::Sender<Pushed>,
    paused: bool,
}

impl Outlet {
    /// Whether the receiver is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }
}

pub(super) type Outlets = std::collections::HashMap<FeedId, Outlet>;

impl Core {
    /// Opens a feed whose messages go to `to`.
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

    /// Raises a feed's ranges; the answer is a watermark in the feed.
    pub fn feed_advance(&mut self, id: FeedId, to: Revision) {
        self.engine.feed_advance(self.clock.wall(), id, to);
    }

    /// Resumes a feed whose stream has taken the message marked `is_last`.
    pub(crate) fn feed_resume(&mut self, id: FeedId) {
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.paused = false;
            self.feeds_behind.push(id);
        }
    }

    pub fn feed_close(&mut self, id: FeedId) {
        if self.feeds.remove(&id).is_some() {
            self.engine.feed_close(id);
        }
    }

    /// Pushes one message of each feed that has any. Everything applied must have been handed to the logs.
    pub(crate) fn push_feeds(&mut self) {
        let mut ids = std::mem::take(&mut self.feeds_behind);
        ids.append(&mut self.engine.take_feed_wakes());
        for id in ids {
            self.push_feed(id);
        }
        // Feeds whose scan budget ended among other events continue at once.
        self.feeds_behind.append(&mut self.engine.take_feed_wakes());
    }

    /// Whether a feed can push more at once.
    #[must_use]
    pub fn has_feeds_behind(&self) -> bool {
        !self.feeds_behind.is_empty()
    }

    fn push_feed(&mut self, id: FeedId) {
        let Some(feed) = self.feeds.get_mut(&id).filter(|feed| !feed.paused) else { return };
        // A feed that took the last room is paused, so there is no room only if the receiver is gone.
        let Ok(room) = feed.to.try_reserve() else { return };
        let Some(out) = self.engine.feed_pull(id, self.sizes.message_bytes) else { return };
        // The reserved place is not counted.
        feed.paused = feed.to.capacity() == 0;
        // A message with a watermark is complete: a later event wakes the feed.
        let is_all = out.watermark.is_some() || out.compacted.is_some() || out.moved.is_some();
        if !is_all && !feed.paused {
            self.feeds_behind.push(id);
        }
        room.send(Pushed { out, is_last: feed.paused });
    }
}
