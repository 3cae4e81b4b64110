//! How a session handles the messages of its upstream streams.

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_wire::answer::WatchResponse;
use kindred_wire::kv::WatchHead;
use kindred_wire::refusal::is_not_owned;
use kindred_wire::rope::Rope;
use kindred_wire::scan::WireError;

use super::message::{self, NO_WATCH};
use super::outside::{Count, Outside};
use super::state::{Due, Fragments, Session, UID_BITS};
use super::types::{End, Origin, Said};
use crate::progress::Admit;
use crate::store::StoreIx;

/// Bytes of messages that may be held for a progress round; beyond this the round is aborted and they are released.
const HELD_BYTES_MAX: usize = 4 << 20;

impl<O: Outside> Session<O> {
    pub(super) fn on_upstream(&mut self, store: StoreIx, number: u64, said: Said) {
        match self.upstreams.get_mut(&store) {
            Some(upstream) if upstream.number == number => {
                if matches!(said, Said::Message(_)) {
                    upstream.failures = 0;
                }
            }
            // The message is of a stream that the session has closed meanwhile.
            _ => return,
        }
        match said {
            Said::Message(message) => {
                if let Err(error) = self.on_message(store, message) {
                    self.end = Some(End::BadMessage(store, error.to_string()));
                }
            }
            Said::Refused => self.end = Some(End::Refused(store)),
            Said::Broken => self.on_broken(store),
        }
    }

    fn on_broken(&mut self, store: StoreIx) {
        for watch in self.watches.values_mut().filter(|watch| watch.on(store)) {
            watch.fragments = Fragments::default();
        }
        self.cancel_left(|watch| watch.on(store));
        self.outside.count(Count::Reopened);
        let failures = self.upstreams.get(&store).map_or(0, |upstream| upstream.failures);
        self.open(store, failures.saturating_add(1));
        self.watches_changed();
    }

    fn on_message(&mut self, store: StoreIx, bytes: Bytes) -> Result<(), WireError> {
        let response = WatchResponse::parse(&bytes)?;
        let revision = response.header.map_or(0, |header| header.revision);
        self.seen = self.seen.max(revision);
        if response.created {
            self.on_created(store, &bytes, &response, revision);
            return Ok(());
        }
        if response.watch_id == NO_WATCH && response.is_progress() {
            if let Some(upstream) = self.upstreams.get_mut(&store) {
                upstream.asked = upstream.asked.saturating_sub(1);
                upstream.asked_by_round = upstream.asked_by_round.saturating_sub(1);
            }
            self.on_progressed(Origin::Store(store), Revision(revision));
            return Ok(());
        }
        let Some(uid) = self.there(store, response.watch_id) else {
            // The client has cancelled the watch meanwhile, or the watch has been placed elsewhere.
            return Ok(());
        };
        self.show(uid, revision);
        let Some(watch) = self.watches.get_mut(&uid) else { return Ok(()) };
        let client_id = watch.client_id;
        if response.canceled && is_displaced(&response) {
            // The store has delivered everything up to there. Without this, a quiet watch could resume at a position
            // that its new owner has compacted.
            watch.next = watch.next.max(revision + 1);
            self.displaced(uid);
            return Ok(());
        }
        if response.canceled {
            let canceled = message::for_client(bytes, self.ids, client_id);
            self.emit_behind(uid, canceled);
            self.remove(uid);
            return Ok(());
        }
        let (first, last) = match message::span(&bytes)? {
            Some((first, last)) => {
                watch.quiet = false;
                let first = watch.fragments.first.unwrap_or(first);
                if response.fragment {
                    watch.fragments.first = Some(first);
                    watch.fragments.messages.push(message::for_client(bytes, self.ids, client_id));
                    return Ok(());
                }
                watch.next = watch.next.max(last + 1);
                (first, last)
            }
            None if response.is_progress() => {
                watch.next = watch.next.max(revision + 1);
                (revision, revision)
            }
            None => return Ok(()),
        };
        let before = std::mem::take(&mut watch.fragments).messages;
        if !response.is_progress() {
            let bytes = before.iter().map(Bytes::len).sum::<usize>() + bytes.len();
            self.outside.delivered(uid, bytes, None);
        }
        let (admit, commands) = self.progress.admit(uid, Revision(first), Revision(last));
        let messages = before.into_iter().chain([message::for_client(bytes, self.ids, client_id)]);
        match admit {
            Admit::Forward => self.outgoing.extend(messages.map(Rope::from)),
            Admit::Hold => self.hold(uid, messages),
        }
        self.follow(commands);
        Ok(())
    }

    /// The store has confirmed or refused a watch. A refusal carries no id; it is for the first unconfirmed watch.
    fn on_created(&mut self, store: StoreIx, bytes: &Bytes, response: &WatchResponse<'_>, revision: i64) {
        let uid = match response.watch_id {
            NO_WATCH => self.first_unconfirmed(store),
            id => self.there(store, id),
        };
        let Some(uid) = uid else { return };
        self.show(uid, revision);
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        let (client_id, announced) = (watch.client_id, watch.announced);
        if response.canceled && is_displaced(response) {
            return self.displaced(uid);
        }
        if response.canceled {
            let answer = if announced {
                // The watch was refused when the session created it again: for the client, an existing watch ends.
                let reason = message::reason(response);
                let head = WatchHead {
                    canceled: true,
                    compact_revision: response.compact_revision,
                    cancel_reason: &reason,
                    ..WatchHead::default()
                };
                message::own(self.ids.header(revision), client_id, head)
            } else {
                message::for_client(bytes.clone(), self.ids, NO_WATCH)
            };
            self.emit_behind(uid, answer);
            self.settle(uid);
            self.remove(uid);
            self.advance_creates();
            return;
        }
        watch.live = true;
        if watch.next == 0 {
            watch.next = revision + 1;
            watch.floor = revision;
        }
        if announced {
            self.watches_changed();
            return;
        }
        watch.announced = true;
        let cancel = watch.cancel;
        self.expect_periodic(uid);
        self.say(message::for_client(bytes.clone(), self.ids, client_id));
        self.settle(uid);
        if cancel {
            self.cancel(uid);
        }
        self.watches_changed();
        self.advance_creates();
    }

    /// The watch that has this id at the store, if it is still placed there.
    fn there(&self, store: StoreIx, upstream_id: i64) -> Option<i64> {
        let uid = upstream_id & ((1 << UID_BITS) - 1);
        let watch = self.watches.get(&uid)?;
        (watch.on(store) && watch.upstream_id(uid) == upstream_id).then_some(uid)
    }

    fn first_unconfirmed(&self, store: StoreIx) -> Option<i64> {
        self.watches.iter().find(|(_, watch)| watch.on(store) && !watch.live).map(|(uid, _)| *uid)
    }

    /// Removes the create of this watch, which has been answered.
    fn settle(&mut self, uid: i64) {
        let is_of = |due: &Due| matches!(due, Due::Store { uid: due, .. } if *due == uid);
        if self.creates.front().is_some_and(is_of) {
            self.pop_create();
        } else {
            self.creates.retain(|due| !is_of(due));
            self.creates_changed();
        }
    }

    fn hold(&mut self, uid: i64, messages: impl IntoIterator<Item = Bytes>) {
        for message in messages {
            self.held_bytes += message.len();
            self.held.push_back((uid, message));
        }
        if self.held_bytes > HELD_BYTES_MAX {
            self.abort_round();
        }
    }

    /// Notes that the client sees this revision in a header of this watch: no later read may show less (R8).
    pub(super) fn show(&mut self, uid: i64, revision: i64) {
        self.seen = self.seen.max(revision);
        let Some(watch) = self.watches.get(&uid) else { return };
        match watch.origin {
            Origin::Store(store) => {
                let range = (watch.create.key.as_ref(), watch.create.range_end.as_ref());
                self.outside.show_of_store(store, &watch.spread, Revision(revision), self.placed_by, range);
            }
            Origin::Feed(_) => self.outside.show(&watch.spread, Revision(revision)),
        }
    }

    /// Sends a message of a watch, after any messages of that watch that are held.
    pub(super) fn emit_behind(&mut self, uid: i64, message: Bytes) {
        if self.held.iter().any(|(held, _)| *held == uid) {
            self.hold(uid, [message]);
        } else {
            self.say(message);
        }
    }
}

/// Whether a shard ended or refused the watch because its keys are moving.
fn is_displaced(response: &WatchResponse<'_>) -> bool {
    std::str::from_utf8(response.cancel_reason).is_ok_and(is_not_owned)
}
