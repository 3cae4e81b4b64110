//! The feeds of a router, in the product's registry.

use std::cell::RefCell;
use std::rc::Rc;

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::feed_registry::{FeedRegistry, Joined};
use kindred_router_core::place::FeedKey;
use kindred_router_core::watch_session::Rung;

use super::Router;
use super::feed::{Feed, Reader};
use super::session::around::Bells;
use crate::world::World;

/// A reader at most this far ahead of a catch-up feed joins it. The product's limit is ten seconds.
const NEAR: i64 = 5_000 << 10;

impl Joined for Feed {
    fn is_near(&self, position: Revision, near: i64) -> bool {
        Feed::is_near(self, position, near)
    }
}

/// All feeds of a router.
pub struct Feeds {
    registry: RefCell<FeedRegistry<Rc<Feed>>>,
    /// The bytes of recent events in a feed's ring. They are few, so that watches fall behind.
    pub ring_bytes: usize,
}

impl Feeds {
    #[must_use]
    pub fn new(world: &World) -> Self {
        let ring_bytes = *world.pick(&[300, 2_000, 1 << 20]);
        Self { registry: RefCell::default(), ring_bytes }
    }

    pub fn clear(&self) {
        let registry = std::mem::take(&mut *self.registry.borrow_mut());
        registry.iter().for_each(|(feed, _)| feed.close_all());
    }

    /// Removes a feed without readers; `false` if it has one after all.
    pub(super) fn retire(&self, feed: &Rc<Feed>) -> bool {
        if feed.has_readers() {
            return false;
        }
        self.take_out(feed);
        true
    }

    pub(super) fn take_out(&self, feed: &Rc<Feed>) {
        self.registry.borrow_mut().take_out(&feed.key, feed);
        feed.end();
    }
}

impl Router {
    /// The live feed of a key. It is opened if it does not exist.
    pub(super) fn live(
        self: &Rc<Self>,
        key: &FeedKey,
        generation: Epoch,
        bells: &Rc<Bells>,
        who: Rung,
    ) -> Reader {
        let begin = || Feed::begin(self, key.clone(), generation, None);
        let feed = self.feeds.registry.borrow_mut().live(key, begin);
        feed.is_placed_by(generation);
        Reader::new(feed, bells, who)
    }

    /// A feed that has the events at `position`.
    pub(super) fn catch_up(
        self: &Rc<Self>,
        (key, generation): (&FeedKey, Epoch),
        position: Revision,
        bells: &Rc<Bells>,
        who: Rung,
    ) -> Reader {
        let begin = || Feed::begin(self, key.clone(), generation, Some(position));
        let feed = self.feeds.registry.borrow_mut().catch_up(key, position, NEAR, begin);
        feed.is_placed_by(generation);
        Reader::new(feed, bells, who)
    }
}
