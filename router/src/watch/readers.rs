//! Watches on feeds: positions of this client on streams that all clients share.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_proto::etcdserverpb::{self as pb, watch_create_request::FilterType};
use kindred_router_core::cursor::{Limit, Taken};
use kindred_router_core::feed_event::{Events, Filter};
use kindred_router_core::gaps::Passed;
use kindred_wire::kv::WatchHead;

use super::message;
use super::session::{CREATE_WAIT, Due, Origin, Session};
use crate::feeds::feed::{Feed, Reader, Take};
use kindred_router_core::place::FeedKey;

/// Messages from feeds that are made ahead of the client; beyond, its watches stay where they are.
const READY_MAX: usize = 4;
/// Bytes read for a watch at a time, about.
const TAKE_BYTES: usize = 64 << 10;
/// Messages of watches that take fragments, as etcd's: the largest request and the message around it.
const FRAGMENT_BYTES: usize = 2 << 20;
/// Before a feed that could not tell its present is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A feed by the session's own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FeedNo(pub usize);

/// A feed that some watches of the session read.
#[derive(Debug)]
pub(super) struct Followed {
    key: FeedKey,
    live: Reader,
}

impl Followed {
    pub(super) fn live(&self) -> Arc<Feed> {
        self.live.feed().clone()
    }

    pub(super) fn want(&self, to: Revision) {
        self.live.feed().want(to);
    }
}

/// What a watch on a feed has beside its position.
#[derive(Debug)]
pub(super) struct FeedWatch {
    filter: Filter,
    fragment: bool,
    /// The gaps of the live feed that it has passed (R10).
    passed: Passed,
    /// What it reads while the live feed does not reach back to its position, and the gaps that it has passed there.
    catch_up: Option<(Reader, Passed)>,
    /// Had no events since the last periodic progress.
    pub quiet: bool,
}

impl FeedWatch {
    pub(super) fn new(create: &pb::WatchCreateRequest) -> Self {
        let has = |filter: FilterType| create.filters.contains(&(filter as i32));
        let filter = Filter {
            range: KeyRange::from_wire(create.key.clone(), create.range_end.clone()),
            no_put: has(FilterType::Noput),
            no_delete: has(FilterType::Nodelete),
            prev_kv: create.prev_kv,
        };
        Self { filter, fragment: create.fragment, passed: Passed::default(), catch_up: None, quiet: true }
    }

    /// The same at another feed.
    pub(super) fn at_new_place(self) -> Self {
        Self { passed: Passed::default(), catch_up: None, ..self }
    }

    pub(super) fn is_caught_up(&self) -> bool {
        self.catch_up.is_none()
    }
}

/// The present of the feed of a watch that is being created.
#[derive(Debug)]
pub(super) struct Created {
    uid: i64,
    present: Option<Revision>,
}

impl Session {
    /// The number of a feed of the session's, followed from now on.
    pub(super) fn follow_feed(&mut self, key: FeedKey, generation: u64) -> FeedNo {
        if let Some((no, followed)) = self.feeds.iter().find(|(_, followed)| followed.key == key) {
            followed.live().is_placed_by(generation);
            return *no;
        }
        let no = self.next_feed;
        self.next_feed = FeedNo(no.0 + 1);
        let live = self.app.feeds.live(&key, generation, &self.wake);
        self.feeds.insert(no, Followed { key, live });
        no
    }

    /// Follows the live feed of the same key that there is now.
    pub(super) fn renew_feed(&mut self, no: FeedNo, generation: u64) {
        let (feeds, wake) = (&self.app.feeds, &self.wake);
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.live = feeds.live(&followed.key, generation, wake);
        }
        for watch in self.watches.values_mut().filter(|watch| watch.origin == Origin::Feed(no)) {
            if let Some(side) = &mut watch.feed {
                side.passed = Passed::default();
            }
        }
    }

    /// Whether a feed of the session's is of this key; then the map of this generation places watches there too.
    pub(super) fn feed_is(&self, no: FeedNo, key: &FeedKey, generation: u64) -> bool {
        let Some(followed) = self.feeds.get(&no).filter(|followed| followed.key == *key) else {
            return false;
        };
        followed.live().is_placed_by(generation);
        true
    }

    /// The revision for the header of `created`: known at once for a watch that says where it starts, else what all
    /// stores of the feed promise (R8), which goes to [`Session::on_feed_present`].
    pub(super) fn ask_present(&mut self, uid: i64, no: FeedNo) -> Option<Revision> {
        let feed = self.feeds.get(&no)?.live();
        let starts = self.watches.get(&uid).is_some_and(|watch| watch.next > 0);
        if let Some(covered) = feed.covered().filter(|_| starts) {
            return Some(covered);
        }
        self.creating.spawn(async move {
            let asking = async {
                loop {
                    match feed.current().await {
                        Ok(present) => return present,
                        Err(()) => tokio::time::sleep(ASK_AGAIN).await,
                    }
                }
            };
            Created { uid, present: tokio::time::timeout(CREATE_WAIT, asking).await.ok() }
        });
        None
    }

    pub(super) fn on_feed_present(&mut self, created: Created) {
        let Created { uid, present } = created;
        let Some(due) =
            self.creates.iter_mut().find(|due| matches!(due, Due::Feed { uid: due, .. } if *due == uid))
        else {
            return;
        };
        match present {
            Some(present) => *due = Due::Feed { uid, current: Some(present) },
            None => {
                let stores = self.watches.get(&uid).and_then(|watch| match watch.origin {
                    Origin::Feed(no) => Some(self.feeds.get(&no)?.key.stores()),
                    Origin::Store(_) => None,
                });
                let away = stores
                    .and_then(|mut stores| stores.find_map(|store| self.app.stores.get(store).ready().err()));
                let reason =
                    away.map_or("the stores did not answer in time".to_owned(), |s| s.message().to_owned());
                *due = Due::Answer(message::refused(self.app.identity.header(self.seen), &reason));
                self.remove(uid);
            }
        }
        self.advance_creates();
    }

    /// Tells the client that a watch on a feed exists.
    pub(super) fn announce(&mut self, uid: i64, current: Revision) {
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        watch.announced = true;
        watch.live = true;
        if watch.next == 0 {
            watch.next = current.get() + 1;
            watch.floor = current.get();
        }
        if watch.create.progress_notify && self.next_periodic.is_none() {
            self.next_periodic = Some(tokio::time::Instant::now() + super::round::PERIOD);
        }
        let (client_id, cancel, start) = (watch.client_id, watch.cancel, watch.create.start_revision);
        self.show(uid, current.get());
        let head = WatchHead { created: true, ..WatchHead::default() };
        self.outgoing.push_back(message::own(self.app.identity.header(current.get()), client_id, head));
        self.dirty = true;
        let compacted = self.app.compacted.load(Ordering::Acquire);
        if cancel {
            self.on_cancel(client_id);
        } else if (1..compacted).contains(&start) {
            self.cancel_compacted(uid, Revision(compacted));
        } else {
            self.watches_changed();
        }
    }

    pub(super) fn can_pump(&self) -> bool {
        self.outgoing.len() < READY_MAX
    }

    /// Reads on for the watches on feeds, in turn, as far as there is room for the client.
    pub(super) fn pump(&mut self) {
        if !self.dirty || !self.can_pump() {
            return;
        }
        self.dirty = false;
        self.read_to = self.progress.target();
        let on_feed = |(uid, watch): (&i64, &super::session::Watch)| {
            (watch.announced && watch.feed.is_some()).then_some(*uid)
        };
        let behind = self.watches.range(self.turn + 1..).filter_map(on_feed);
        let uids: Vec<i64> = behind.chain(self.watches.range(..=self.turn).filter_map(on_feed)).collect();
        for uid in uids {
            if !self.can_pump() {
                self.dirty = true;
                return;
            }
            self.turn = uid;
            self.dirty |= self.read_on(uid);
        }
        self.conclude_round();
    }

    /// Reads on for one watch; whether there is more.
    fn read_on(&mut self, uid: i64) -> bool {
        let limit = Limit { last: self.progress.target(), bytes: TAKE_BYTES };
        let Some(watch) = self.watches.get_mut(&uid) else { return false };
        let (Origin::Feed(no), Some(side)) = (watch.origin, &mut watch.feed) else { return false };
        let Some(Followed { key, live }) = self.feeds.get(&no) else { return false };
        let position = Revision(watch.next);
        let mut take = live.feed().take(position, &mut side.passed, limit);
        let ended = matches!(take, Take::Ended);
        match take {
            Take::Taken(_) => side.catch_up = None,
            Take::Behind => {
                take = match &mut side.catch_up {
                    Some((reader, passed)) => reader.feed().take(position, passed, limit),
                    None => Take::Ended,
                };
                if let Some((reader, _)) = &side.catch_up
                    && reader.feed().has_moved()
                {
                    // Where it is to go on is not decided yet.
                    side.catch_up = None;
                    self.place_soon();
                    return false;
                }
                if matches!(take, Take::Behind | Take::Ended) {
                    let generation = live.feed().generation();
                    let reader = self.app.feeds.catch_up(key, generation, position, &self.wake);
                    side.catch_up = Some((reader, Passed::default()));
                }
                // Where the live feed is now, the catch-up is to come.
                if let (Some((reader, _)), Some(covered)) = (&side.catch_up, live.feed().covered()) {
                    reader.feed().want(covered);
                }
            }
            _ => {}
        }
        let catches_up = side.catch_up.is_some();
        match take {
            // What came from a catch-up may be all up to the live feed, and then nothing else tells to look there.
            Take::Taken(taken) => self.give(uid, &taken) || (catches_up && taken.next > position),
            Take::Compacted(floor) => {
                self.cancel_compacted(uid, floor);
                false
            }
            // Its keys are moving: the watch goes on where they are then.
            Take::Ended if ended => {
                self.place_soon();
                false
            }
            // Woken when there is something.
            Take::Behind | Take::Opening | Take::Ended => false,
        }
    }

    /// Gives a watch what it wants of these revisions, whole; whether there is more.
    fn give(&mut self, uid: i64, taken: &Taken<Events>) -> bool {
        let Some(watch) = self.watches.get_mut(&uid) else { return false };
        let Some(side) = &mut watch.feed else { return false };
        watch.next = taken.next.get();
        let (mut events, mut span) = (Vec::new(), None);
        for entry in &taken.entries {
            let before = events.len();
            events.extend(entry.payload.iter().filter_map(|event| side.filter.pick(event)));
            if events.len() > before {
                let (first, _) = span.unwrap_or((entry.revision, entry.revision));
                span = Some((first, entry.revision));
            }
        }
        let Some((first, last)) = span else { return taken.more };
        side.quiet = false;
        // With more to come the header must not pass what was said.
        let header = if taken.more { last } else { taken.next.prev() };
        // Read no further than the target of the round, so never to be held.
        let (_, commands) = self.progress.admit(uid, first, last);
        let head = WatchHead {
            header: self.app.identity.header(header.get()),
            watch_id: watch.client_id,
            ..WatchHead::default()
        };
        let fragment_bytes = side.fragment.then_some(FRAGMENT_BYTES);
        message::with_events(head, &events, fragment_bytes, |message| self.outgoing.push_back(message));
        self.show(uid, header.get());
        self.follow(commands);
        taken.more
    }

    fn cancel_compacted(&mut self, uid: i64, floor: Revision) {
        let Some(watch) = self.watches.get(&uid) else { return };
        let head = WatchHead { canceled: true, compact_revision: floor.get(), ..WatchHead::default() };
        let header = self.app.identity.header(self.seen);
        self.outgoing.push_back(message::own(header, watch.client_id, head));
        self.remove(uid);
    }

    /// Tells the round which feeds have given all that the target covers.
    fn conclude_round(&mut self) {
        let numbers: Vec<FeedNo> = self.feeds.keys().copied().collect();
        for no in numbers {
            let Some(target) = self.progress.target() else { return };
            let origin = Origin::Feed(no);
            let mut watches = self.watches.values().filter(|watch| watch.announced && watch.origin == origin);
            if watches.all(|watch| watch.next > target.get()) {
                self.on_progressed(origin, target);
            }
        }
    }
}
