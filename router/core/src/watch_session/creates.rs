//! Creates: in the order of the requests, also across stores.

use std::time::Duration;

use kindred_partition_config::ids::Epoch;
use kindred_partition_config::kind::KindPrefix;
use kindred_wire::error::WatchRefusal;

use super::message::{self, Create};
use super::outside::Outside;
use super::state::{Due, FeedWatch, Fragments, Session, Upstream, Watch};
use super::types::Origin;
use crate::place::{Placed, place};
use crate::store::StoreIx;

/// How long a create waits for a store that is down before it is refused.
pub const CREATE_WAIT: Duration = Duration::from_secs(10);
/// The pause before a stream that broke is opened again; it doubles with each time in a row.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Where a new watch begins, and the generation of the map that says so.
struct Place {
    placed: Placed,
    spread: Vec<KindPrefix>,
    client_id: i64,
    generation: Epoch,
}

impl<O: Outside> Session<O> {
    pub(super) fn on_create(&mut self, create: Create) {
        let due = match self.place(&create) {
            Ok(Place { placed, spread, client_id, generation }) => {
                let uid = self.next_uid;
                self.next_uid += 1;
                self.by_client.insert(client_id, uid);
                self.outside.begun(uid, &create.asked());
                let start = create.start_revision;
                let (origin, feed) = match placed {
                    Placed::Store(store) => (Origin::Store(store), None),
                    Placed::Feed(key) => {
                        (Origin::Feed(self.follow_feed(key, generation)), Some(FeedWatch::new(&create)))
                    }
                };
                let watch = Watch {
                    client_id,
                    origin,
                    feed,
                    spread,
                    create,
                    next: start,
                    floor: start,
                    announced: false,
                    live: false,
                    fragments: Fragments::default(),
                    quiet: true,
                    cancel: false,
                    displaced: false,
                    places: 0,
                };
                self.watches.insert(uid, watch);
                self.join(uid, origin);
                match origin {
                    Origin::Store(_) => Due::Store { uid, sent: false, since: self.now },
                    Origin::Feed(no) => Due::Feed { uid, current: self.ask_present(uid, no) },
                }
            }
            Err(reason) => Due::Answer(message::refused(self.ids.header(self.seen), &reason)),
        };
        self.creates.push_back(due);
    }

    /// Chooses the place and the id of a new watch, or refuses it; makes etcd's checks in etcd's order.
    fn place(&mut self, create: &Create) -> Result<Place, String> {
        let end = create.range_end.as_ref();
        if create.start_revision < 0 {
            return Err(WatchRefusal::NegativeStart.reason().to_owned());
        }
        self.outside.may_watch(&create.key, end)?;
        if !end.is_empty() && end != [0] && create.key.as_ref() >= end {
            return Err(WatchRefusal::EmptyRange.reason().to_owned());
        }
        let routes = self.outside.routes();
        let (placed, spread) = place(&create.key, end, &routes).map_err(|refusal| refusal.to_string())?;
        let client_id = match create.watch_id {
            0 => {
                while self.by_client.contains_key(&self.next_auto) {
                    self.next_auto += 1;
                }
                self.next_auto += 1;
                self.next_auto - 1
            }
            chosen => {
                self.free_id(chosen);
                if self.by_client.contains_key(&chosen) {
                    return Err(WatchRefusal::DuplicateId.reason().to_owned());
                }
                chosen
            }
        };
        Ok(Place { placed, spread, client_id, generation: routes.generation() })
    }

    /// Frees the id of a watch that the client has cancelled: as in etcd, it may be used again at once. What its store
    /// still sends of the watch is ignored. One that is not announced yet is so first, and ends then.
    fn free_id(&mut self, client_id: i64) {
        let Some(uid) = self.by_client.get(&client_id).copied() else { return };
        let Some(watch) = self.watches.get(&uid).filter(|watch| watch.cancel) else { return };
        if !watch.announced {
            self.by_client.remove(&client_id);
            return;
        }
        if self.held.iter().any(|(held, _)| *held == uid) {
            // Nothing of the old watch may come behind `created` of the new one.
            self.abort_round();
        }
        self.canceled(uid);
    }

    /// Answers creates, and sends creates to stores, as far as the order of answers allows.
    pub(super) fn advance_creates(&mut self) {
        loop {
            match self.creates.front() {
                Some(Due::Answer(_)) => {
                    if let Some(Due::Answer(answer)) = self.pop_create() {
                        self.say(answer);
                    }
                }
                Some(Due::Feed { uid, current: Some(current) }) => {
                    let (uid, current) = (*uid, *current);
                    self.pop_create();
                    self.announce(uid, current);
                }
                _ => break,
            }
        }
        let mut sending = Vec::new();
        // No answer is in front here, so if any create is settled, the first one was sent to the store in `advanced`.
        let (mut advanced, mut only) = if self.advanced.0 > 0 { self.advanced } else { (0, None) };
        for due in self.creates.iter_mut().skip(advanced) {
            // Skip an answer that waits for its turn: the store answers in order, so no create sent behind it is
            // answered too early.
            let (uid, sent) = match due {
                Due::Store { uid, sent, .. } => (uid, sent),
                Due::Feed { .. } => break,
                Due::Answer(_) => {
                    advanced += 1;
                    continue;
                }
            };
            let Some(Watch { origin: Origin::Store(store), displaced, .. }) = self.watches.get(uid) else {
                advanced += 1;
                continue;
            };
            // It is placed again first, and what is behind it must not be answered before it.
            if *displaced {
                break;
            }
            if *only.get_or_insert(*store) != *store {
                break;
            }
            advanced += 1;
            if !*sent {
                *sent = true;
                sending.push(*uid);
            }
        }
        self.advanced = (advanced, only);
        let Some(store) = only.filter(|_| !sending.is_empty()) else { return };
        for uid in sending {
            if !self.send_create(uid, store) {
                return;
            }
        }
    }

    /// The create of this watch will be sent once more, because its keys are moving. Stores may still answer those that
    /// were sent behind it; so that these are not answered before it, they are sent once more, too.
    pub(super) fn send_again_behind(&mut self, uid: i64) {
        let is_of = |due: &Due| match due {
            Due::Store { uid: due, .. } | Due::Feed { uid: due, .. } => *due == uid,
            Due::Answer(_) => false,
        };
        let Some(at) = self.creates.iter().position(is_of) else { return };
        let mut again = Vec::new();
        for due in self.creates.iter_mut().skip(at + 1) {
            if let Due::Store { uid, sent, .. } = due
                && std::mem::take(sent)
            {
                again.push(*uid);
            }
        }
        for uid in again {
            let Some(watch) = self.watches.get_mut(&uid) else { continue };
            let (origin, old) = (watch.origin, watch.upstream_id(uid));
            // What its store says of it until then is not heard.
            watch.places = watch.places.wrapping_add(1);
            if let Origin::Store(store) = origin {
                self.send(store, message::cancel(old));
            }
        }
        self.creates_changed();
    }

    /// Removes the first create.
    pub(super) fn pop_create(&mut self) -> Option<Due> {
        self.advanced.0 = self.advanced.0.saturating_sub(1);
        self.creates.pop_front()
    }

    /// Some create other than the first was replaced or removed, so [`Session::advance_creates`] must look at all of
    /// them again.
    pub(super) fn creates_changed(&mut self) {
        self.advanced = (0, None);
    }

    /// Creates a watch on the store's stream. If there is no stream, or no room in its queue, which nobody empties while the store is
    /// away, a new stream begins with all watches as they are. Then this returns false, and the caller sends no more creates to the
    /// store.
    pub(super) fn send_create(&mut self, uid: i64, store: StoreIx) -> bool {
        let Some(watch) = self.watches.get(&uid) else { return true };
        let fenced = !self.outside.is_shard(store);
        let request = watch.create.for_store(watch.upstream_id(uid), watch.next, fenced);
        let sent = self.send(store, request);
        if !sent {
            self.open(store, 0);
        }
        sent
    }

    /// Opens the store's upstream stream and creates all watches of that store on it.
    pub(super) fn open(&mut self, store: StoreIx, failures: u32) {
        let mut first = Vec::new();
        let waiting = |uid: i64| {
            self.creates
                .iter()
                .any(|due| matches!(due, Due::Store { uid: due, sent: false, .. } if *due == uid))
        };
        let fenced = !self.outside.is_shard(store);
        // The map is ordered by the session's numbers, which is the order of the creates.
        for (uid, watch) in &mut self.watches {
            if watch.on(store) && (watch.announced || !waiting(*uid)) {
                (watch.live, watch.displaced) = (false, false);
                first.push(watch.create.for_store(watch.upstream_id(*uid), watch.next, fenced));
            }
        }
        if first.is_empty() {
            return self.close(store);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.upstreams.insert(store, Upstream { number, failures, asked: 0, asked_by_round: 0 });
        self.outside.open(store, number, backoff(failures), first);
    }

    /// Refuses the first create when its store is down and was for [`CREATE_WAIT`].
    pub(super) fn refuse_late_create(&mut self) {
        let Some(Due::Store { uid, since, .. }) = self.creates.front_mut() else { return };
        if self.now.saturating_duration_since(*since) < CREATE_WAIT {
            return;
        }
        let uid = *uid;
        let store = self.watches.get(&uid).and_then(|watch| match watch.origin {
            Origin::Store(store) => Some(store),
            Origin::Feed(_) => None,
        });
        let Some((store, reason)) = store.and_then(|store| Some((store, self.outside.away(store)?))) else {
            // The store is up and will answer.
            *since = self.now;
            return;
        };
        self.say(message::refused(self.ids.header(self.seen), &reason));
        self.pop_create();
        // The create may be in the stream's queue: without a cancel, the store would keep a watch that no client has.
        if let Some(id) = self.watches.get(&uid).map(|watch| watch.upstream_id(uid)) {
            self.send(store, message::cancel(id));
        }
        self.remove(uid);
        self.advance_creates();
    }
}

/// A new pause for each failure in a row.
fn backoff(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => (BACKOFF_MIN * 2_u32.saturating_pow(n.min(16) - 1)).min(BACKOFF_MAX),
    }
}
