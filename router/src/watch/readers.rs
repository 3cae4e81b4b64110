//! Watches on feeds: positions of this client on streams that all clients share.
//!
//! Most watches of a stream have nothing to be given most of the time, so none is looked at before there is something for it. A
//! watch that was given all there is *rests*: the session goes through a feed once for all that rest there, and finds by the
//! key of each event which of them it concerns. Those, and what does not rest, are read on one by one.
//!
//! **Invariants:** a watch that rests was given every event of its range below its own position and below that at which its
//! feed was gone through ([`Followed::stand`]), whichever is further. What neither rests nor has its turn waits for its
//! feed or its catch-up to have more, or for the target of a round to change.

use std::collections::BTreeSet;
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
use super::session::{CREATE_WAIT, Due, Origin, Session, Watch};
use crate::feeds::Counts;
use crate::feeds::bell::Rung;
use crate::feeds::feed::{Feed, Reader, Stand, Take};
use kindred_router_core::place::FeedKey;
use kindred_router_core::stabs::Stabs;

/// Messages from feeds that are made ahead of the client; beyond, its watches stay where they are.
const READY_MAX: usize = 4;
/// Bytes read for a watch at a time, about.
const TAKE_BYTES: usize = 64 << 10;
/// Bytes of a feed that are gone through at a time, about.
const LOOK_BYTES: usize = 1 << 20;
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
    /// The ranges of its watches.
    ranges: Stabs,
    /// How far it was gone through for those that rest; `None` while it is being opened.
    stand: Option<Stand>,
    /// Those that wait for it.
    waiting: BTreeSet<i64>,
}

/// Where a watch on a feed is in the turns of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has none yet.
    Off,
    /// It is to be read on.
    Ready,
    /// Its feed has nothing for it now.
    Waits,
    /// It was given all that there is.
    Rests,
}

impl Followed {
    pub(super) fn live(&self) -> Arc<Feed> {
        self.live.feed().clone()
    }

    pub(super) fn want(&self, to: Revision) {
        self.live.feed().want(to);
    }

    /// Whether no watch is here.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
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
    turn: Turn,
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
        Self {
            filter,
            fragment: create.fragment,
            passed: Passed::default(),
            catch_up: None,
            turn: Turn::Off,
            quiet: true,
        }
    }

    /// The same at another feed.
    pub(super) fn at_new_place(self) -> Self {
        Self { passed: Passed::default(), catch_up: None, turn: Turn::Off, ..self }
    }

    pub(super) fn is_caught_up(&self) -> bool {
        self.catch_up.is_none()
    }
}

/// The present of the feed of a watch that is being created.
#[derive(Debug)]
pub(super) struct Created {
    uid: i64,
    present: Present,
}

/// What a feed says of its present.
#[derive(Debug)]
enum Present {
    /// All its stores promise this revision.
    At(Revision),
    /// They could not be asked in time.
    Away,
    /// It has ended, so there is another one to be asked, or there will be.
    Ended,
}

impl Session {
    /// The number of a feed of the session's, followed from now on.
    pub(super) fn follow_feed(&mut self, key: FeedKey, generation: u64) -> FeedNo {
        if let Some(no) = self.feed_numbers.get(&key)
            && let Some(followed) = self.feeds.get(no)
        {
            followed.live().is_placed_by(generation);
            return *no;
        }
        let no = self.next_feed;
        self.next_feed = FeedNo(no.0 + 1);
        let live = self.app.feeds.live(&key, generation, self.wake.bell(Rung::Feed(no.0)));
        self.feed_numbers.insert(key.clone(), no);
        let followed =
            Followed { key, live, ranges: Stabs::default(), stand: None, waiting: BTreeSet::new() };
        self.feeds.insert(no, followed);
        no
    }

    /// Leaves a feed.
    pub(super) fn unfollow_feed(&mut self, no: FeedNo) {
        if let Some(followed) = self.feeds.remove(&no) {
            self.feed_numbers.remove(&followed.key);
        }
    }

    /// A watch is on this feed now.
    pub(super) fn join_feed(&mut self, no: FeedNo, uid: i64) {
        let range = self.watches.get(&uid).and_then(|watch| Some(watch.feed.as_ref()?.filter.range.clone()));
        if let (Some(followed), Some(range)) = (self.feeds.get_mut(&no), range) {
            followed.ranges.insert(uid, range);
        }
    }

    /// A watch is on this feed no more.
    pub(super) fn leave_feed(&mut self, no: FeedNo, uid: i64) {
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.ranges.remove(uid);
            followed.waiting.remove(&uid);
        }
    }

    /// The first revision that a watch was not given: it is here only that its position is known while it rests.
    pub(super) fn next_of(&self, watch: &Watch) -> i64 {
        let stand = match (watch.origin, &watch.feed) {
            (Origin::Feed(no), Some(FeedWatch { turn: Turn::Rests, .. })) => {
                self.feeds.get(&no).and_then(|followed| followed.stand)
            }
            _ => None,
        };
        stand.map_or(watch.next, |stand| watch.next.max(stand.position.get()))
    }

    /// A watch rests no more, and has its position by itself.
    pub(super) fn rouse(&mut self, uid: i64) {
        let Some(next) = self.watches.get(&uid).map(|watch| self.next_of(watch)) else { return };
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        watch.next = next;
        if let Some(side) = watch.feed.as_mut().filter(|side| side.turn == Turn::Rests) {
            side.turn = Turn::Off;
        }
    }

    /// The watch gets a turn.
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

    /// Follows the live feed of the same key that there is now.
    pub(super) fn renew_feed(&mut self, no: FeedNo, generation: u64) {
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
        let bell = self.wake.bell(Rung::Feed(no.0));
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.live = self.app.feeds.live(&followed.key, generation, bell);
            followed.stand = None;
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
                        Ok(present) => return Present::At(present),
                        Err(()) if feed.has_ended() => return Present::Ended,
                        Err(()) => tokio::time::sleep(ASK_AGAIN).await,
                    }
                }
            };
            Created { uid, present: tokio::time::timeout(CREATE_WAIT, asking).await.unwrap_or(Present::Away) }
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
            Present::At(present) => *due = Due::Feed { uid, current: Some(present) },
            // It is asked again with the feeds that are looked for anew.
            Present::Ended => self.place_soon(),
            Present::Away => {
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
        self.give_turn(uid);
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

    /// Reads on for the watches on feeds that have something, in turn, as far as there is room for the client.
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

    /// Gives turns to those for whom there may be something.
    fn hear(&mut self) {
        let target = self.progress.target();
        let mut rung: BTreeSet<FeedNo> = BTreeSet::new();
        if std::mem::replace(&mut self.read_to, target) != target {
            // What was read up to a target only goes on; and how far all are is to be known.
            rung.extend(self.feeds.keys());
        }
        for rung_by in self.wake.heard() {
            match rung_by {
                Rung::Feed(no) => {
                    rung.insert(FeedNo(no));
                }
                Rung::Watch(uid) => {
                    let waits =
                        |watch: &Watch| watch.feed.as_ref().is_some_and(|side| side.turn == Turn::Waits);
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

    /// Goes through what came on a feed for those that rest there.
    fn look_through(&mut self, no: FeedNo) {
        let Some(followed) = self.feeds.get_mut(&no) else { return };
        let limit = Limit { last: None, bytes: LOOK_BYTES };
        let taken = followed.stand.and_then(|stand| followed.live.feed().look(stand, limit));
        let (Some(taken), Some(stand)) = (taken, followed.stand) else {
            // It was opened anew, or has told of something that each has to find out for itself.
            let resting: Vec<i64> = followed.ranges.numbers().collect();
            resting.into_iter().for_each(|uid| self.wake_resting(uid, None));
            if let Some(followed) = self.feeds.get_mut(&no) {
                followed.stand = followed.live.feed().present();
            }
            return;
        };
        let mut concerned = Vec::new();
        for entry in &taken.entries {
            for event in entry.payload.iter() {
                followed.ranges.holding(event.key(), |uid| concerned.push((uid, entry.revision)));
            }
        }
        // They have their positions while the feed still stands where it stood for them.
        concerned.into_iter().for_each(|(uid, revision)| self.wake_resting(uid, Some(revision)));
        if let Some(followed) = self.feeds.get_mut(&no) {
            followed.stand = Some(Stand { position: taken.next, ..stand });
        }
        if taken.more {
            self.looked_at.insert(no);
        }
    }

    /// A watch that rests has its turn, for what is at this revision first.
    fn wake_resting(&mut self, uid: i64, at: Option<Revision>) {
        let rests = |watch: &Watch| watch.feed.as_ref().is_some_and(|side| side.turn == Turn::Rests);
        if !self.watches.get(&uid).is_some_and(rests) {
            return;
        }
        self.give_turn(uid);
        if let (Some(watch), Some(at)) = (self.watches.get_mut(&uid), at) {
            // Nothing of its range is before.
            watch.next = watch.next.max(at.get());
        }
    }

    /// There is nothing more for a watch, which was read up to `next` on the live feed, or waits for something.
    fn no_turn(&mut self, uid: i64, next: Option<Revision>) {
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        let (Origin::Feed(no), Some(side)) = (watch.origin, &mut watch.feed) else { return };
        let Some(followed) = self.feeds.get_mut(&no) else { return };
        let rests = followed.stand.is_some_and(|stand| next.is_some_and(|next| next >= stand.position));
        side.turn = if rests { Turn::Rests } else { Turn::Waits };
        if !rests {
            followed.waiting.insert(uid);
        }
    }

    /// Reads on for one watch, and says when it has its next turn.
    fn read_on(&mut self, uid: i64) {
        let limit = Limit { last: self.progress.target(), bytes: TAKE_BYTES };
        let Some(watch) = self.watches.get_mut(&uid) else { return };
        let (Origin::Feed(no), Some(side)) = (watch.origin, &mut watch.feed) else { return };
        // It may have left this turn behind with its place, and have had another one, or rest, since.
        if side.turn != Turn::Ready {
            return;
        }
        side.turn = Turn::Off;
        Counts::one(&self.app.feeds.counts().turns);
        let Some(Followed { key, live, .. }) = self.feeds.get(&no) else { return };
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
                    return self.no_turn(uid, None);
                }
                if matches!(take, Take::Behind | Take::Ended) {
                    let generation = live.feed().generation();
                    let bell = self.wake.bell(Rung::Watch(uid));
                    let reader = self.app.feeds.catch_up(key, generation, position, bell);
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
            Take::Taken(taken) => {
                let more = self.give(uid, &taken);
                // What came from a catch-up may be all up to the live feed, and then nothing else tells to look there.
                match more || (catches_up && taken.next > position) {
                    true => self.give_turn(uid),
                    false => self.no_turn(uid, Some(taken.next).filter(|_| !catches_up)),
                }
            }
            Take::Compacted(floor) => self.cancel_compacted(uid, floor),
            // Its keys are moving: the watch goes on where they are then.
            Take::Ended if ended => {
                self.place_soon();
                self.no_turn(uid, None);
            }
            // Woken when there is something.
            Take::Behind | Take::Opening | Take::Ended => self.no_turn(uid, None),
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
                // Another target, up to which there is more to read first.
                return;
            }
            self.on_progressed(origin, target);
        }
    }
}
