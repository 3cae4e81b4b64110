//! Watches on feeds: this client's positions on streams that all clients share.
//!
//! Usually most watches of a stream have no new events, so the session reads only those that do. A watch that has been
//! given everything *rests*. For all watches that rest on a feed, the session looks through the feed once, and finds by
//! the key of each event which watches it concerns. Those, and the watches that do not rest, are read one by one.
//!
//! **Invariants:** a resting watch was given every event of its range below the larger of its own position and the
//! position up to which its feed was looked through ([`Followed::stand`]). A watch that neither rests nor has a turn
//! waits until its feed or its catch-up has more, or until the target of a progress round changes.

use std::collections::BTreeSet;

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_wire::kv::WatchHead;

use super::message;
use super::outside::{Count, FeedReader, Outside, Rung};
use super::state::{Due, FeedWatch, Followed, Session, Turn, Watch};
use super::types::{FeedNo, Origin, Present};
use crate::cursor::{Limit, Taken};
use crate::feed_event::{Encoded, Events};
use crate::feed_state::{Stand, Take};
use crate::gaps::Passed;
use crate::place::FeedKey;
use crate::stabs::Stabs;

/// Messages made ahead for the client; while so many are queued, no watch on a feed is read.
const READY_MAX: usize = 4;

impl<O: Outside> Session<O> {
    /// Follows a feed, if the session does not yet, and returns its number.
    pub(super) fn follow_feed(&mut self, key: FeedKey, generation: Epoch) -> FeedNo {
        if let Some(no) = self.feed_numbers.get(&key)
            && let Some(followed) = self.feeds.get(no)
        {
            followed.live.is_placed_by(generation);
            return *no;
        }
        let no = self.next_feed;
        self.next_feed = FeedNo(no.0 + 1);
        let live = self.outside.live(&key, generation, no);
        self.feed_numbers.insert(key.clone(), no);
        let followed =
            Followed { key, live, ranges: Stabs::default(), stand: None, waiting: BTreeSet::new() };
        self.feeds.insert(no, followed);
        no
    }

    pub(super) fn unfollow_feed(&mut self, no: FeedNo) {
        if let Some(followed) = self.feeds.remove(&no) {
            self.feed_numbers.remove(&followed.key);
        }
    }

    /// Registers a watch at this feed.
    pub(super) fn join_feed(&mut self, no: FeedNo, uid: i64) {
        let range = self.watches.get(&uid).and_then(|watch| Some(watch.feed.as_ref()?.filter.range.clone()));
        if let (Some(followed), Some(range)) = (self.feeds.get_mut(&no), range) {
            followed.ranges.insert(uid, range);
        }
    }

    /// Unregisters a watch from this feed.
    pub(super) fn leave_feed(&mut self, no: FeedNo, uid: i64) {
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.ranges.remove(uid);
            followed.waiting.remove(&uid);
        }
    }

    /// The first revision that a watch was not given. For a resting watch, [`Watch::next`] alone may be too low.
    pub(super) fn next_of(&self, watch: &Watch<O::Reader>) -> i64 {
        let stand = match (watch.origin, &watch.feed) {
            (Origin::Feed(no), Some(FeedWatch { turn: Turn::Rests, .. })) => {
                self.feeds.get(&no).and_then(|followed| followed.stand)
            }
            _ => None,
        };
        stand.map_or(watch.next, |stand| watch.next.max(stand.position.get()))
    }

    /// Ends the rest of a watch and writes its position to [`Watch::next`].
    pub(super) fn rouse(&mut self, uid: i64) {
        let Some(next) = self.watches.get(&uid).map(|watch| self.next_of(watch)) else { return };
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        watch.next = next;
        if let Some(side) = watch.feed.as_mut().filter(|side| side.turn == Turn::Rests) {
            side.turn = Turn::Off;
        }
    }

    /// Queues the watch to be read.
    pub(super) fn give_turn(&mut self, uid: i64) {
        self.rouse(uid);
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        let (Origin::Feed(no), Some(side)) = (watch.origin, &mut watch.feed) else { return };
        let before = std::mem::replace(&mut side.turn, Turn::Ready);
        if before == Turn::Waits
            && let Some(followed) = self.feeds.get_mut(&no)
        {
            followed.waiting.remove(&uid);
        }
        if before != Turn::Ready {
            self.ready.push_back(uid);
        }
        self.dirty = true;
    }

    /// Replaces a feed by the live feed that exists for the same key, and gives its announced watches a turn.
    pub(super) fn renew_feed(&mut self, no: FeedNo, generation: Epoch) {
        let Some(uids) = self.feeds.get(&no).map(|followed| followed.ranges.numbers().collect::<Vec<_>>())
        else {
            return;
        };
        for uid in uids {
            self.rouse(uid);
            let Some(watch) = self.watches.get_mut(&uid) else { continue };
            if let Some(side) = &mut watch.feed {
                side.passed = Passed::default();
            }
            if watch.announced {
                self.give_turn(uid);
            }
        }
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.live = self.outside.live(&followed.key, generation, no);
            followed.stand = None;
        }
    }

    /// Whether this feed has this key; if so, notes that the map of this generation places watches there.
    pub(super) fn feed_is(&self, no: FeedNo, key: &FeedKey, generation: Epoch) -> bool {
        let Some(followed) = self.feeds.get(&no).filter(|followed| followed.key == *key) else {
            return false;
        };
        followed.live.is_placed_by(generation);
        true
    }

    /// The revision for the header of `created`. It is known at once for a watch that names its start on an open feed;
    /// otherwise all stores of the feed are asked for it (R8), and the answer goes to [`Session::on_feed_present`].
    pub(super) fn ask_present(&mut self, uid: i64, no: FeedNo) -> Option<Revision> {
        let live = &self.feeds.get(&no)?.live;
        let starts = self.watches.get(&uid).is_some_and(|watch| watch.next > 0);
        if let Some(covered) = live.covered().filter(|_| starts) {
            return Some(covered);
        }
        self.outside.ask_present(uid, live);
        None
    }

    pub(super) fn on_feed_present(&mut self, uid: i64, present: Present) {
        let Some(due) =
            self.creates.iter_mut().find(|due| matches!(due, Due::Feed { uid: due, .. } if *due == uid))
        else {
            return;
        };
        match present {
            Present::At(present) => *due = Due::Feed { uid, current: Some(present) },
            // It is asked again when a new feed is found in [`Session::follow_again`].
            Present::Ended => self.place_soon(),
            Present::Away => {
                let stores = self.watches.get(&uid).and_then(|watch| match watch.origin {
                    Origin::Feed(no) => Some(self.feeds.get(&no)?.key.stores()),
                    Origin::Store(_) => None,
                });
                let away = stores.and_then(|mut stores| stores.find_map(|store| self.outside.away(store)));
                let reason = away.unwrap_or_else(|| "the stores did not answer in time".to_owned());
                *due = Due::Answer(message::refused(self.ids.header(self.seen), &reason));
                self.remove(uid);
            }
        }
        self.advance_creates();
    }

    /// Sends `created` for a watch on a feed.
    pub(super) fn announce(&mut self, uid: i64, current: Revision) {
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        watch.announced = true;
        watch.live = true;
        if watch.next == 0 {
            watch.next = current.get() + 1;
            watch.floor = current.get();
        }
        let (client_id, cancel, start) = (watch.client_id, watch.cancel, watch.create.start_revision);
        self.expect_periodic(uid);
        self.show(uid, current.get());
        let head = WatchHead { created: true, ..WatchHead::default() };
        self.say(message::own(self.ids.header(current.get()), client_id, head));
        self.give_turn(uid);
        let compacted = self.outside.compacted().get();
        if cancel {
            self.cancel(uid);
        } else if (1..compacted).contains(&start) {
            self.cancel_compacted(uid, Revision(compacted));
        } else {
            self.watches_changed();
        }
    }

    pub(super) fn can_pump(&self) -> bool {
        self.outgoing.len() < READY_MAX
    }

    /// Reads for the watches on feeds that have something, in turn, until the client has enough messages.
    pub(super) fn pump(&mut self) {
        if !self.dirty || !self.can_pump() {
            return;
        }
        self.hear();
        self.dirty = !self.looked_at.is_empty();
        for _ in 0..self.ready.len() {
            if !self.can_pump() {
                self.dirty = true;
                return;
            }
            let Some(uid) = self.ready.pop_front() else { break };
            self.read_on(uid);
        }
        self.conclude_round();
    }

    /// Gives a turn to every watch for which there may be something.
    fn hear(&mut self) {
        let target = self.progress.target();
        let mut rung: BTreeSet<FeedNo> = BTreeSet::new();
        if std::mem::replace(&mut self.read_to, target) != target {
            // A watch that was read up to the old target may have more, and the round has to learn which feeds have
            // reached the target.
            rung.extend(self.feeds.keys());
        }
        for rung_by in self.outside.rung() {
            match rung_by {
                Rung::Feed(no) => {
                    rung.insert(no);
                }
                Rung::Watch(uid) => {
                    let waits = |watch: &Watch<O::Reader>| {
                        watch.feed.as_ref().is_some_and(|side| side.turn == Turn::Waits)
                    };
                    if self.watches.get(&uid).is_some_and(waits) {
                        self.give_turn(uid);
                    }
                }
            }
        }
        rung.append(&mut self.looked_at);
        for no in rung {
            self.look_through(no);
            let waiting = self.feeds.get_mut(&no).map(|followed| std::mem::take(&mut followed.waiting));
            waiting.into_iter().flatten().for_each(|uid| self.give_turn(uid));
        }
    }

    /// Looks through the news of a feed for all watches that rest there, and wakes those that it concerns.
    fn look_through(&mut self, no: FeedNo) {
        let Some(followed) = self.feeds.get_mut(&no) else { return };
        let limit = Limit { last: None, bytes: self.settings.look_bytes };
        let taken = followed.stand.and_then(|stand| followed.live.look(stand, limit));
        let (Some(taken), Some(stand)) = (taken, followed.stand) else {
            // The feed was opened anew, has ended, or has a new gap or floor that each watch must check for itself.
            let resting: Vec<i64> = followed.ranges.numbers().collect();
            resting.into_iter().for_each(|uid| self.wake_resting(uid, None));
            if let Some(followed) = self.feeds.get_mut(&no) {
                followed.stand = followed.live.present();
            }
            return;
        };
        let mut concerned = Vec::new();
        for entry in &taken.entries {
            for event in entry.payload.iter() {
                followed.ranges.holding(event.key(), |uid| concerned.push((uid, entry.revision)));
            }
        }
        // Positions are computed from the stand, so it may advance only after this.
        concerned.into_iter().for_each(|(uid, revision)| self.wake_resting(uid, Some(revision)));
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.stand = Some(Stand { position: taken.next, ..stand });
        }
        if taken.more {
            self.looked_at.insert(no);
        }
    }

    /// Gives a resting watch a turn; `at` is the revision of the first event that concerns it.
    fn wake_resting(&mut self, uid: i64, at: Option<Revision>) {
        let rests =
            |watch: &Watch<O::Reader>| watch.feed.as_ref().is_some_and(|side| side.turn == Turn::Rests);
        if !self.watches.get(&uid).is_some_and(rests) {
            return;
        }
        self.give_turn(uid);
        if let (Some(watch), Some(at)) = (self.watches.get_mut(&uid), at) {
            // No event of its range lies before this one.
            watch.next = watch.next.max(at.get());
        }
    }

    /// Ends the turn of a watch. If it was read up to `next` on the live feed, and that is as far as the feed was
    /// looked through, it rests; otherwise it waits.
    fn no_turn(&mut self, uid: i64, next: Option<Revision>) {
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        let (Origin::Feed(no), Some(side)) = (watch.origin, &mut watch.feed) else { return };
        let Some(followed) = self.feeds.get_mut(&no) else { return };
        let rests = followed.stand.is_some_and(|stand| next.is_some_and(|next| next >= stand.position));
        side.turn = if rests { Turn::Rests } else { Turn::Waits };
        side.caught_up |= next.is_some();
        if !rests {
            followed.waiting.insert(uid);
        }
    }

    /// Reads for one watch, and decides when it is read next.
    fn read_on(&mut self, uid: i64) {
        let limit = Limit { last: self.progress.target(), bytes: self.settings.take_bytes };
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        let (Origin::Feed(no), Some(side)) = (watch.origin, &mut watch.feed) else { return };
        // The queue may hold an outdated turn: the watch may have moved, had another turn, or come to rest since.
        if side.turn != Turn::Ready {
            return;
        }
        side.turn = Turn::Off;
        self.outside.count(Count::Turn);
        let Some(Followed { key, live, .. }) = self.feeds.get(&no) else { return };
        let position = Revision(watch.next);
        let mut take = live.take(position, &mut side.passed, limit);
        let ended = matches!(take, Take::Ended);
        match take {
            Take::Taken(_) => side.catch_up = None,
            Take::Behind => {
                take = match &mut side.catch_up {
                    Some((reader, passed)) => reader.take(position, passed, limit),
                    None => Take::Ended,
                };
                if let Some((reader, _)) = &side.catch_up
                    && reader.has_moved()
                {
                    // It is not yet decided where the keys go.
                    side.catch_up = None;
                    self.place_soon();
                    return self.no_turn(uid, None);
                }
                if matches!(take, Take::Behind | Take::Ended) {
                    let generation = live.generation();
                    let reader = self.outside.catch_up(key, generation, position, uid);
                    side.catch_up = Some((reader, Passed::default()));
                }
                // The catch-up should reach the present position of the live feed.
                if let (Some((reader, _)), Some(covered)) = (&side.catch_up, live.covered()) {
                    reader.want(covered);
                }
            }
            _ => {}
        }
        let catches_up = side.catch_up.is_some();
        match take {
            Take::Taken(taken) => {
                let more = self.give(uid, &taken);
                // The catch-up may have reached the live feed, and nothing else would trigger a look there.
                match more || (catches_up && taken.next > position) {
                    true => self.give_turn(uid),
                    false => self.no_turn(uid, Some(taken.next).filter(|_| !catches_up)),
                }
            }
            Take::Compacted(floor) => self.cancel_compacted(uid, floor),
            // The keys are moving: the watch continues at their new owner.
            Take::Ended if ended => {
                self.place_soon();
                self.no_turn(uid, None);
            }
            // The bell wakes the watch when there is something.
            Take::Behind | Take::Opening | Take::Ended => self.no_turn(uid, None),
        }
    }

    /// Sends a watch the events of these revisions that it wants, whole revisions only; returns whether there is more.
    fn give(&mut self, uid: i64, taken: &Taken<Events>) -> bool {
        let Some(watch) = self.watches.get_mut(&uid) else { return false };
        let Some(side) = &mut watch.feed else { return false };
        watch.next = taken.next.get();
        let of_feed = match (&side.catch_up, watch.origin) {
            (None, Origin::Feed(no)) => self.feeds.get(&no),
            _ => None,
        };
        // A catch-up has few readers, which stand at different positions.
        let encoded = match of_feed {
            Some(followed) => followed.live.encoded(&taken.entries, &side.filter),
            None => Encoded::of(&taken.entries, &side.filter),
        };
        let Some(Encoded { span: (first, last), fields }) = encoded else { return taken.more };
        watch.quiet = false;
        // With more to come, the header must not promise more than was sent.
        let header = if taken.more { last } else { taken.next.prev() };
        // Feeds are read no further than the target of the round, so these events never have to be held.
        let (_, commands) = self.progress.admit(uid, first, last);
        let head = WatchHead {
            header: self.ids.header(header.get()),
            watch_id: watch.client_id,
            ..WatchHead::default()
        };
        let fragment_bytes = side.fragment.then_some(self.settings.fragment_bytes);
        let fresh = side.caught_up && side.catch_up.is_none();
        let mut bytes = 0;
        message::with_events(head, fields, fragment_bytes, |message| {
            bytes += message.len();
            self.outgoing.push_back(message);
        });
        self.outside.delivered(uid, bytes, fresh.then_some(first));
        self.show(uid, header.get());
        self.follow(commands);
        taken.more
    }

    fn cancel_compacted(&mut self, uid: i64, floor: Revision) {
        let Some(watch) = self.watches.get(&uid) else { return };
        let head = WatchHead { canceled: true, compact_revision: floor.get(), ..WatchHead::default() };
        let header = self.ids.header(self.seen);
        self.say(message::own(header, watch.client_id, head));
        self.remove(uid);
    }

    /// Tells the progress round which feeds have delivered everything up to the target.
    fn conclude_round(&mut self) {
        let Some(target) = self.progress.target() else { return };
        let mut behind: BTreeSet<Origin> = BTreeSet::new();
        for watch in self.watches.values().filter(|watch| watch.announced) {
            if self.next_of(watch) <= target.get() {
                behind.insert(watch.origin);
            }
        }
        let numbers: Vec<FeedNo> = self.feeds.keys().copied().collect();
        for origin in numbers.into_iter().map(Origin::Feed).filter(|origin| !behind.contains(origin)) {
            if self.progress.target() != Some(target) {
                // The target has changed, and there is more to read up to the new one.
                return;
            }
            self.on_progressed(origin, target);
        }
    }
}
