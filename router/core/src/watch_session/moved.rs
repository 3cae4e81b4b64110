//! Watches survive a move of their keys (R16). When a newer map comes, or a store says that keys are moving, every
//! watch is placed again and continues at its own position; the client does not notice.
//!
//! A position is a revision, and the new owner has the whole history of what it took over. So a watch that is behind
//! reads the rest there, and whatever its old place still sends is ignored.

use std::collections::BTreeSet;
use std::time::Duration;

use kindred_partition_config::ids::Epoch;
use kindred_partition_config::kind::KindPrefix;
use kindred_wire::kv::WatchHead;

use super::message;
use super::outside::{Count, FeedReader as _, Outside};
use super::state::{Due, FeedWatch, Fragments, Session, Watch};
use super::types::Origin;
use crate::place::{Placed, place};
use crate::plan::Refusal;
use crate::store::StoreIx;

/// How long after a store displaced a watch all watches are placed again, if no newer map comes first.
const AGAIN: Duration = Duration::from_millis(20);

/// Where a watch goes, or why the map has no place for it.
type Moved = Result<(Placed, Vec<KindPrefix>), Refusal>;

impl<O: Outside> Session<O> {
    /// Schedules another placement, because some watch lost its place.
    pub(super) fn place_soon(&mut self) {
        self.place_at.get_or_insert(self.now + AGAIN);
    }

    /// Notes that the store refused or ended a watch because its keys are moving.
    pub(super) fn displaced(&mut self, uid: i64) {
        if let Some(watch) = self.watches.get_mut(&uid) {
            watch.live = false;
            watch.displaced = true;
        }
        self.send_again_behind(uid);
        self.place_soon();
        self.watches_changed();
    }

    /// Places every watch by the newest map.
    pub(super) fn place_again(&mut self) {
        self.place_at = None;
        let routes = self.outside.routes();
        let generation = routes.generation();
        self.placed_by = generation;
        let (mut moved, mut stayed) = (Vec::new(), Vec::new());
        for (uid, watch) in &self.watches {
            match place(&watch.create.key, &watch.create.range_end, &routes) {
                Ok((placed, spread)) if !self.is_at(watch, &placed, generation) => {
                    moved.push((*uid, Ok((placed, spread))));
                }
                Ok((_, spread)) if spread != watch.spread => stayed.push((*uid, spread)),
                Ok(_) => {}
                Err(refusal) => moved.push((*uid, Err(refusal))),
            }
        }
        for (uid, spread) in stayed {
            // The watch stays, but other parts of its Kind have moved.
            if let Some(watch) = self.watches.get_mut(&uid) {
                watch.spread = spread;
            }
        }
        if !moved.is_empty() {
            self.move_all(moved, generation);
        }
        self.follow_again(generation);
        self.advance_creates();
    }

    /// Moves these watches to where the map of this generation places them.
    fn move_all(&mut self, moved: Vec<(i64, Moved)>, generation: Epoch) {
        // Releases held messages first: they must precede what the new places send.
        self.abort_round();
        let mut creating: Vec<(StoreIx, i64)> = Vec::new();
        for (uid, placed) in moved {
            self.move_watch(uid, placed, generation, &mut creating);
        }
        let mut opened = BTreeSet::new();
        for (store, uid) in creating {
            // A stream that was just opened began with this watch.
            if !opened.contains(&store) && !self.send_create(uid, store) {
                opened.insert(store);
            }
        }
        self.leave_empty();
        self.dirty = true;
        self.watches_changed();
    }

    /// Finds new feeds for those that have ended but are still placed under the same key (the move may have been
    /// aborted). Only feeds where the map of this generation still places watches are renewed: a store trusts that
    /// generation and would assume that it owns all of the range.
    fn follow_again(&mut self, generation: Epoch) {
        let ended: Vec<_> =
            self.feeds.iter().filter(|(_, f)| f.live.has_ended()).map(|(no, _)| *no).collect();
        for no in ended {
            self.renew_feed(no, generation);
            let asking = |due: &Due| matches!(due, Due::Feed { current: None, .. });
            let uids: Vec<i64> = self
                .creates
                .iter()
                .filter(|due| asking(due))
                .filter_map(|due| if let Due::Feed { uid, .. } = due { Some(*uid) } else { None })
                .filter(|uid| self.watches.get(uid).is_some_and(|watch| watch.origin == Origin::Feed(no)))
                .collect();
            for uid in uids {
                let current = self.ask_present(uid, no);
                self.due_again(uid, Due::Feed { uid, current });
            }
        }
    }

    fn is_at(&self, watch: &Watch<O::Reader>, placed: &Placed, generation: Epoch) -> bool {
        match (watch.origin, placed) {
            (Origin::Store(store), Placed::Store(placed)) => store == *placed && !watch.displaced,
            (Origin::Feed(no), Placed::Feed(key)) => self.feed_is(no, key, generation),
            _ => false,
        }
    }

    fn move_watch(&mut self, uid: i64, placed: Moved, generation: Epoch, creating: &mut Vec<(StoreIx, i64)>) {
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        if watch.cancel && watch.announced {
            return self.canceled(uid);
        }
        watch.fragments = Fragments::default();
        let (announced, displaced, from) =
            (watch.announced, std::mem::take(&mut watch.displaced), watch.origin);
        watch.live = false;
        let upstream_id = watch.upstream_id(uid);
        watch.places = watch.places.wrapping_add(1);
        if let Origin::Store(store) = from
            && !displaced
        {
            // If there is no room, the stream is about to break, and this watch is not created on the next one.
            self.send(store, message::cancel(upstream_id));
        }
        match placed {
            Err(refusal) => self.refuse(uid, announced, &refusal.to_string()),
            Ok((Placed::Store(store), spread)) => {
                self.outside.count(Count::Moved);
                self.rouse(uid);
                self.leave(uid, from);
                if let Some(watch) = self.watches.get_mut(&uid) {
                    (watch.origin, watch.feed, watch.spread) = (Origin::Store(store), None, spread);
                }
                self.join(uid, Origin::Store(store));
                match announced {
                    true => creating.push((store, uid)),
                    false => self.due_again(uid, Due::Store { uid, sent: false, since: self.now }),
                }
            }
            Ok((Placed::Feed(key), spread)) => {
                self.outside.count(Count::Moved);
                let no = self.follow_feed(key, generation);
                self.rouse(uid);
                self.leave(uid, from);
                if let Some(watch) = self.watches.get_mut(&uid) {
                    let kept = watch.feed.take().map(FeedWatch::at_new_place);
                    watch.feed = Some(kept.unwrap_or_else(|| FeedWatch::new(&watch.create)));
                    (watch.origin, watch.spread, watch.live) = (Origin::Feed(no), spread, announced);
                }
                self.join(uid, Origin::Feed(no));
                if announced {
                    self.give_turn(uid);
                } else {
                    let current = self.ask_present(uid, no);
                    self.due_again(uid, Due::Feed { uid, current });
                }
            }
        }
    }

    /// Ends a watch for which the newest map has no place, because its keys are on a stock etcd and on another store.
    fn refuse(&mut self, uid: i64, announced: bool, reason: &str) {
        let header = self.ids.header(self.seen);
        let Some(watch) = self.watches.get(&uid) else { return };
        if announced {
            let head = WatchHead { canceled: true, cancel_reason: reason, ..WatchHead::default() };
            self.say(message::own(header, watch.client_id, head));
        } else {
            self.due_again(uid, Due::Answer(message::refused(header, reason)));
        }
        self.remove(uid);
    }

    /// Replaces the create of this watch by one at another place; it keeps its turn.
    fn due_again(&mut self, uid: i64, again: Due) {
        let of = |due: &&mut Due| match due {
            Due::Store { uid: due, .. } | Due::Feed { uid: due, .. } => *due == uid,
            Due::Answer(_) => false,
        };
        if let Some(due) = self.creates.iter_mut().find(of) {
            *due = again;
        }
        self.send_again_behind(uid);
    }

    /// Closes the upstream streams, and leaves the feeds, that have no watch.
    fn leave_empty(&mut self) {
        let stores: Vec<_> = self.upstreams.keys().map(|store| Origin::Store(*store)).collect();
        let feeds: Vec<_> = self.feeds.keys().map(|no| Origin::Feed(*no)).collect();
        stores.into_iter().chain(feeds).for_each(|origin| self.leave_if_empty(origin));
    }
}
