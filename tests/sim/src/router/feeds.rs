//! The feeds of a router, found by what they are of, as `router/src/feeds.rs`.

use std::cell::RefCell;
use std::rc::Rc;

use kindred_partition_config::ids::Revision;
use kindred_router_core::place::FeedKey;
use kindred_router_core::watch_session::Rung;

use super::Router;
use super::feed::{Feed, Reader};
use super::session::around::Bells;
use crate::world::World;

/// A reader this far ahead of a catch-up joins it; the product's is ten seconds, here a few milliseconds are far.
const NEAR: i64 = 5_000 << 10;

struct Group {
    key: FeedKey,
    live: Option<Rc<Feed>>,
    catch_ups: Vec<Rc<Feed>>,
}

/// All feeds of a router. A vector: the order of a hash map would not be the seed's.
pub struct Feeds {
    groups: RefCell<Vec<Group>>,
    /// Bytes of recent events that a feed keeps: little, so that watches fall behind.
    pub ring_bytes: usize,
}

impl Feeds {
    /// No feeds yet.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let ring_bytes = *world.pick(&[300, 2_000, 1 << 20]);
        Self { groups: RefCell::default(), ring_bytes }
    }

    /// Ends all.
    pub fn clear(&self) {
        let groups = std::mem::take(&mut *self.groups.borrow_mut());
        for group in groups {
            group.live.iter().chain(&group.catch_ups).for_each(|feed| feed.close_all());
        }
    }

    fn with<T>(&self, key: &FeedKey, change: impl FnOnce(&mut Group) -> T) -> T {
        let mut groups = self.groups.borrow_mut();
        let at = groups.iter().position(|group| group.key == *key).unwrap_or_else(|| {
            groups.push(Group { key: key.clone(), live: None, catch_ups: Vec::new() });
            groups.len() - 1
        });
        change(&mut groups[at])
    }

    /// Takes a feed out that nobody reads; false when somebody does after all.
    pub(super) fn retire(&self, feed: &Rc<Feed>) -> bool {
        if feed.has_readers() {
            return false;
        }
        self.take_out(feed);
        true
    }

    pub(super) fn take_out(&self, feed: &Rc<Feed>) {
        self.with(&feed.key, |group| {
            group.live = group.live.take().filter(|live| !Rc::ptr_eq(live, feed));
            group.catch_ups.retain(|other| !Rc::ptr_eq(other, feed));
        });
        feed.end();
    }
}

impl Router {
    /// The live feed of a key, opened if it is not.
    pub(super) fn live(self: &Rc<Self>, key: &FeedKey, bells: &Rc<Bells>, who: Rung) -> Reader {
        let known = self.feeds.with(key, |group| group.live.clone());
        let feed = known.unwrap_or_else(|| {
            let feed = Feed::begin(self, key.clone(), None);
            self.feeds.with(key, |group| group.live = Some(feed.clone()));
            feed
        });
        Reader::new(feed, bells, who)
    }

    /// A feed that holds what comes at `position`.
    pub(super) fn catch_up(
        self: &Rc<Self>,
        key: &FeedKey,
        position: Revision,
        bells: &Rc<Bells>,
        who: Rung,
    ) -> Reader {
        let near = self
            .feeds
            .with(key, |group| group.catch_ups.iter().find(|feed| feed.is_near(position, NEAR)).cloned());
        let feed = near.unwrap_or_else(|| {
            let feed = Feed::begin(self, key.clone(), Some(position));
            self.feeds.with(key, |group| group.catch_ups.push(feed.clone()));
            feed
        });
        Reader::new(feed, bells, who)
    }
}
