//! The feeds of a router, by what they are of: one live feed for each key, and catch-ups from older revisions.

use std::collections::BTreeMap;
use std::ops::Deref;

use kindred_partition_config::ids::Revision;

use crate::place::FeedKey;

/// A feed that readers may join.
pub trait Joined {
    /// See [`crate::feed_state::FeedState::is_near`].
    fn is_near(&self, position: Revision, near: i64) -> bool;
}

#[derive(Debug)]
struct Group<F> {
    live: Option<F>,
    catch_ups: Vec<F>,
}

/// See the text above. Feeds are known by where they are: `F` is an `Arc` or an `Rc`.
#[derive(Debug)]
pub struct FeedRegistry<F> {
    groups: BTreeMap<FeedKey, Group<F>>,
}

impl<F> Default for FeedRegistry<F> {
    fn default() -> Self {
        Self { groups: BTreeMap::new() }
    }
}

fn are_same<F: Deref>(one: &F, other: &F) -> bool {
    std::ptr::eq(&**one, &**other)
}

impl<F: Clone + Deref<Target: Joined + Sized>> FeedRegistry<F> {
    fn group(&mut self, key: &FeedKey) -> &mut Group<F> {
        self.groups.entry(key.clone()).or_insert_with(|| Group { live: None, catch_ups: Vec::new() })
    }

    /// The live feed of a key; a new one if there is none.
    pub fn live(&mut self, key: &FeedKey, begin: impl FnOnce() -> F) -> F {
        self.group(key).live.get_or_insert_with(begin).clone()
    }

    /// A catch-up that holds the events from `position` on: one that a reader there may join, which is at most `near`
    /// behind it, or a new one.
    pub fn catch_up(&mut self, key: &FeedKey, position: Revision, near: i64, begin: impl FnOnce() -> F) -> F {
        let catch_ups = &mut self.group(key).catch_ups;
        if let Some(joined) = catch_ups.iter().find(|feed| feed.is_near(position, near)) {
            return joined.clone();
        }
        let feed = begin();
        catch_ups.push(feed.clone());
        feed
    }

    /// Takes a feed out.
    pub fn take_out(&mut self, key: &FeedKey, feed: &F) {
        let Some(group) = self.groups.get_mut(key) else { return };
        group.live = group.live.take().filter(|live| !are_same(live, feed));
        group.catch_ups.retain(|other| !are_same(other, feed));
        if group.live.is_none() && group.catch_ups.is_empty() {
            self.groups.remove(key);
        }
    }

    /// All feeds, each with whether it is a live one.
    pub fn iter(&self) -> impl Iterator<Item = (&F, bool)> {
        self.groups.values().flat_map(|group| {
            let live = group.live.iter().map(|feed| (feed, true));
            live.chain(group.catch_ups.iter().map(|feed| (feed, false)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// A feed with the position of the readers that may join it.
    #[derive(Debug, PartialEq, Eq)]
    struct Feed(i64);

    impl Joined for Feed {
        fn is_near(&self, position: Revision, near: i64) -> bool {
            (0..=near).contains(&(position.get() - self.0))
        }
    }

    #[test]
    fn a_key_has_one_live_feed_and_readers_near_each_other_share_a_catch_up() {
        let mut feeds = FeedRegistry::default();
        let key = FeedKey::new(Vec::new());
        let live = feeds.live(&key, || Rc::new(Feed(0)));
        assert!(Rc::ptr_eq(&live, &feeds.live(&key, || unreachable!("there is one"))));
        let [one, joined, later, earlier] = [50, 55, 61, 40]
            .map(|position| feeds.catch_up(&key, Revision(position), 10, || Rc::new(Feed(position))));
        assert!(Rc::ptr_eq(&one, &joined));
        assert_eq!((&*later, &*earlier), (&Feed(61), &Feed(40)));
        assert_eq!(feeds.iter().filter(|(_, live)| *live).count(), 1);
        for gone in [&one, &live, &later] {
            feeds.take_out(&key, gone);
        }
        // Another one of the same kind is not taken out.
        feeds.take_out(&key, &Rc::new(Feed(40)));
        assert_eq!(feeds.iter().collect::<Vec<_>>(), [(&earlier, false)]);
        feeds.take_out(&key, &earlier);
        assert!(feeds.groups.is_empty());
    }
}
