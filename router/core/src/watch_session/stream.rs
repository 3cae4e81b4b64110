//! What happens to a session, one event at a time, and what is common to its parts.

use std::time::Instant;

use bytes::Bytes;
use kindred_wire::kv::WatchHead;
use kindred_wire::peek::WatchRequest;
use kindred_wire::refusal::KindredError;
use kindred_wire::rope::Rope;

use super::creates::CREATE_WAIT;
use super::message::{self, Create};
use super::outside::Outside;
use super::round::ROUND_MAX;
use super::state::{Due, Followed, Session, Watch};
use super::types::{End, Event, Origin};
use crate::store::StoreIx;

/// Messages queued for the client; while the queue is full, the session reads neither client nor stores.
const OUTGOING_MAX: usize = 32;
/// Unanswered creates; beyond this many, the session reads no more requests of the client.
const CREATES_MAX: usize = 1024;
impl<O: Outside> Session<O> {
    /// The number of watches.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.watches.len()
    }

    /// Whether there is something for the client.
    #[must_use]
    pub fn has_message(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes the next message for the client.
    pub fn next_message(&mut self) -> Option<Rope> {
        self.outgoing.pop_front()
    }

    /// Queues a message in one piece for the client.
    pub(super) fn say(&mut self, message: Bytes) {
        self.outgoing.push_back(message.into());
    }

    /// Whether [`Event::Upstream`] may come.
    #[must_use]
    pub fn takes_upstream(&self) -> bool {
        self.outgoing.len() < OUTGOING_MAX
    }

    /// Whether [`Event::Request`] may come.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        self.takes_upstream() && self.creates.len() < CREATES_MAX
    }

    /// Whether another [`Session::turn`] has something to do, without any event.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.dirty && self.can_pump()
    }

    /// The earliest time at which the session has to act by itself.
    #[must_use]
    pub fn timer(&self) -> Option<Instant> {
        let create = match self.creates.front() {
            Some(Due::Store { since, .. }) => Some(*since + CREATE_WAIT),
            _ => None,
        };
        let round = self.round_since.map(|since| since + ROUND_MAX);
        let timers = create.into_iter().chain(round).chain(self.next_periodic);
        timers.chain(self.place_at).chain(self.request_due()).chain(self.pass_due()).min()
    }

    /// Takes one event. A [`Session::turn`] must follow.
    pub fn step(&mut self, now: Instant, event: Event<'_>) {
        self.now = now;
        match event {
            Event::Request(request) => self.on_request(request),
            Event::Upstream { store, number, said } => self.on_upstream(store, number, said),
            Event::Asked(ask, answer) => self.on_asked(&ask, answer),
            Event::Present { uid, present } => self.on_feed_present(uid, present),
            Event::Rung => self.dirty = true,
            Event::NewMap => self.place_again(),
            Event::Compacted => self.on_compacted(),
            Event::Timer => self.on_timer(),
        }
    }

    /// Reads feeds for the client and begins rounds, as far as there is room. Returns how the stream ends, if it does.
    pub fn turn(&mut self, now: Instant) -> Option<End> {
        self.now = now;
        self.pump();
        self.answer_request();
        self.pass_compaction();
        self.end.take()
    }

    pub(super) fn on_request(&mut self, request: &Bytes) {
        match WatchRequest::parse(request) {
            Ok(WatchRequest::Create(create)) => {
                self.on_create(Create::of(&create));
                self.advance_creates();
            }
            Ok(WatchRequest::Cancel(cancel)) => self.on_cancel(cancel.watch_id),
            Ok(WatchRequest::Progress) => self.on_progress_request(),
            // As in etcd, unknown requests are ignored.
            Ok(WatchRequest::Nothing) => {}
            Err(error) => {
                self.end = Some(End::Malformed(KindredError::Malformed { reason: error.to_string() }));
            }
        }
    }

    pub(super) fn on_cancel(&mut self, client_id: i64) {
        // etcd ignores unknown ids.
        let Some(uid) = self.by_client.get(&client_id).copied() else { return };
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        watch.cancel = true;
        if watch.announced {
            self.cancel(uid);
        }
    }

    /// Ends a watch that the client has cancelled and knows of.
    pub(super) fn cancel(&mut self, uid: i64) {
        let Some(watch) = self.watches.get(&uid) else { return };
        // Nothing of it may come behind `created` of another with its id.
        let is_taken = self.by_client.get(&watch.client_id) != Some(&uid);
        let (live, upstream_id) = (watch.live, watch.upstream_id(uid));
        let sent = match watch.origin {
            Origin::Store(store) => self.send(store, message::cancel(upstream_id)),
            Origin::Feed(_) => false,
        };
        if sent && live && !is_taken {
            // The store's answer ends the watch, after the events that are already under way.
            return;
        }
        self.canceled(uid);
    }

    /// Tells the client that the watch it cancelled has ended, and removes the watch.
    pub(super) fn canceled(&mut self, uid: i64) {
        let Some(client_id) = self.watches.get(&uid).map(|watch| watch.client_id) else { return };
        let header = self.ids.header(self.seen);
        let canceled = message::own(header, client_id, WatchHead { canceled: true, ..WatchHead::default() });
        self.emit_behind(uid, canceled);
        self.remove(uid);
    }

    /// Ends those of the selected watches that the client has cancelled. Used where the store's answer to the cancel
    /// can no longer come: its stream broke, or the session ignores it.
    pub(super) fn cancel_left(&mut self, which: impl Fn(&Watch<O::Reader>) -> bool) {
        let left = |watch: &Watch<O::Reader>| watch.cancel && watch.announced && which(watch);
        let uids: Vec<i64> =
            self.watches.iter().filter(|(_, watch)| left(watch)).map(|(uid, _)| *uid).collect();
        uids.into_iter().for_each(|uid| self.canceled(uid));
    }

    /// Removes a watch; removing the last watch of a store or feed also closes its upstream stream or leaves the feed.
    pub(super) fn remove(&mut self, uid: i64) {
        let Some(watch) = self.watches.remove(&uid) else { return };
        if self.by_client.get(&watch.client_id) == Some(&uid) {
            self.by_client.remove(&watch.client_id);
        }
        self.outside.ended(uid);
        self.periodic.remove(&uid);
        self.leave(uid, watch.origin);
        self.leave_if_empty(watch.origin);
        self.watches_changed();
    }

    /// Registers a watch at the store or feed that it reads from.
    pub(super) fn join(&mut self, uid: i64, origin: Origin) {
        match origin {
            Origin::Store(store) => *self.on_store.entry(store).or_default() += 1,
            Origin::Feed(no) => self.join_feed(no, uid),
        }
    }

    /// Unregisters a watch from a store or feed.
    pub(super) fn leave(&mut self, uid: i64, origin: Origin) {
        match origin {
            Origin::Store(store) => {
                if let Some(count) = self.on_store.get_mut(&store) {
                    *count = count.saturating_sub(1);
                }
            }
            Origin::Feed(no) => self.leave_feed(no, uid),
        }
    }

    /// Closes the upstream stream of a store, or leaves a feed, if no watch is there.
    pub(super) fn leave_if_empty(&mut self, origin: Origin) {
        match origin {
            Origin::Store(store) if self.on_store.get(&store).is_none_or(|count| *count == 0) => {
                self.on_store.remove(&store);
                self.close(store);
            }
            Origin::Feed(no) if self.feeds.get(&no).is_some_and(Followed::is_empty) => self.unfollow_feed(no),
            Origin::Store(_) | Origin::Feed(_) => {}
        }
    }

    pub(super) fn on_timer(&mut self) {
        self.expire_round();
        self.on_period();
        if self.place_at.is_some_and(|at| at <= self.now) {
            self.place_again();
        }
        self.refuse_late_create();
    }

    /// Queues a request on the store's stream. If there is no room, the stream is about to break, and the next one
    /// begins with the watches as they are.
    pub(super) fn send(&mut self, store: StoreIx, request: Bytes) -> bool {
        self.upstreams.contains_key(&store) && self.outside.send(store, request)
    }

    pub(super) fn close(&mut self, store: StoreIx) {
        if self.upstreams.remove(&store).is_some() {
            self.outside.close(store);
        }
    }
}
