//! The state of a session.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_wire::rope::Rope;

use super::message::Create;
use super::outside::Outside;
use super::types::{End, FeedNo, Origin, Settings};
use crate::feed_event::Filter;
use crate::feed_state::Stand;
use crate::gaps::Passed;
use crate::header_ids::HeaderIds;
use crate::place::FeedKey;
use crate::progress::Progress;
use crate::stabs::Stabs;
use crate::store::StoreIx;

/// The id that a store sees: the low `UID_BITS` are the session's number of the watch, the others count placements.
pub(super) const UID_BITS: u32 = 40;
pub(super) const PLACES_MASK: u32 = (1 << 22) - 1;

/// The fragments of a message that have come so far.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// The first revision in them.
    pub(super) first: Option<i64>,
    pub(super) messages: Vec<Bytes>,
}

#[derive(Debug)]
pub(super) struct Watch<R> {
    pub(super) client_id: i64,
    pub(super) origin: Origin,
    /// Set exactly while the watch reads a feed.
    pub(super) feed: Option<FeedWatch<R>>,
    /// The Kinds, each on several stores, for which the revisions in its headers count as shown (R8).
    pub(super) spread: Vec<KindPrefix>,
    pub(super) create: Create,
    /// The first revision that the client has not been given; 0 until `created` sets the start of a watch without one.
    pub(super) next: i64,
    /// The revision at which the watch starts: no progress below it may be shown.
    pub(super) floor: i64,
    /// The client has received `created`.
    pub(super) announced: bool,
    /// The store has confirmed the watch on the present upstream stream, or the watch reads a feed.
    pub(super) live: bool,
    /// The fragments of a message whose last one has not come. The client gets them together: between the fragments of a
    /// message no other may come (etcd's `clientv3/watch.go`, `serveWatchClient`, drops it).
    pub(super) fragments: Fragments,
    /// No event was sent since the last periodic progress.
    pub(super) quiet: bool,
    /// The client has cancelled the watch and waits for the answer.
    pub(super) cancel: bool,
    /// The store has refused or ended the watch because its keys are moving.
    pub(super) displaced: bool,
    /// How often the watch was placed at another store or feed.
    pub(super) places: u32,
}

impl<R> Watch<R> {
    /// The watch's id at its store. It differs for each placement, so that messages of a placement that the watch has
    /// left are not taken for messages of the next one.
    pub(super) fn upstream_id(&self, uid: i64) -> i64 {
        uid | (i64::from(self.places & PLACES_MASK) << UID_BITS)
    }

    pub(super) fn on(&self, store: StoreIx) -> bool {
        self.origin == Origin::Store(store)
    }
}

/// A create that is not answered yet; creates are answered in the order of the requests.
#[derive(Debug)]
pub(super) enum Due {
    /// The answer is known, and waits for its turn.
    Answer(Bytes),
    /// The create is to be sent to the store, or is sent and waits for the store's answer.
    Store { uid: i64, sent: bool, since: Instant },
    /// A watch on a feed; `current`, once known, is the revision for the header of `created`.
    Feed { uid: i64, current: Option<Revision> },
}

/// A stream to a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upstream {
    /// The number of the stream among all streams of the session.
    pub(super) number: u64,
    /// How often in a row a stream to this store broke before it delivered a message.
    pub(super) failures: u32,
    /// The number of progress requests on it that were not answered yet.
    pub(super) asked: u32,
    /// The number of those answers that come until the last question of a round is answered; 0 if it is.
    pub(super) asked_by_round: u32,
}

/// A feed that at least one watch of the session reads.
#[derive(Debug)]
pub(super) struct Followed<R> {
    pub(super) key: FeedKey,
    pub(super) live: R,
    /// The ranges of its watches, to find those that an event concerns.
    pub(super) ranges: Stabs,
    /// How far the feed was looked through for resting watches; `None` while it is being opened.
    pub(super) stand: Option<Stand>,
    /// The watches that wait for the feed to have more.
    pub(super) waiting: BTreeSet<i64>,
}

/// Whether a watch on a feed is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Not registered: the watch is new, or is being read or moved.
    Off,
    /// It is in [`Session::ready`] and will be read.
    Ready,
    /// It waits for more from its feed.
    Waits,
    /// It was given everything; [`Session::look_through`] wakes it when an event concerns it.
    Rests,
}

impl<R> Followed<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// The state that only watches on feeds have.
#[derive(Debug)]
pub(super) struct FeedWatch<R> {
    pub(super) filter: Filter,
    pub(super) fragment: bool,
    /// The gaps of the live feed that the watch has passed (R10).
    pub(super) passed: Passed,
    /// The feed that it reads while the live feed does not reach back to its position, and its passed gaps there.
    pub(super) catch_up: Option<(R, Passed)>,
    pub(super) turn: Turn,
    /// It has had everything once, so that what comes now is new.
    pub(super) caught_up: bool,
}

impl<R> FeedWatch<R> {
    pub(super) fn new(create: &Create) -> Self {
        let filter = Filter {
            range: KeyRange::from_wire(create.key.clone(), create.range_end.clone()),
            no_put: create.no_put,
            no_delete: create.no_delete,
            prev_kv: create.prev_kv,
        };
        Self {
            filter,
            fragment: create.fragment,
            passed: Passed::default(),
            catch_up: None,
            turn: Turn::Off,
            caught_up: false,
        }
    }

    /// The same watch at the start of its time on another feed.
    pub(super) fn at_new_place(self) -> Self {
        Self { passed: Passed::default(), catch_up: None, turn: Turn::Off, ..self }
    }

    pub(super) fn is_caught_up(&self) -> bool {
        self.catch_up.is_none()
    }
}

/// A progress request of the client that is not answered yet. etcd drops a request while a watch of the stream is
/// behind; the router keeps it, because a client cannot know whether one of its watches is behind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) since: Instant,
    pub(super) not_before: Instant,
    /// The upstream stream to which the request was forwarded (its store and number), if it was; that store answers
    /// by itself.
    pub(super) passed_on: Option<(StoreIx, u64)>,
    /// How many requests were forwarded and not answered; requests that share a round get one answer.
    pub(super) owed: u32,
}

/// The state of one client stream.
#[derive(Debug)]
pub struct Session<O: Outside> {
    /// What it uses of its router.
    pub outside: O,
    pub(super) settings: Settings,
    pub(super) ids: HeaderIds,
    /// The time of the event that it handles.
    pub(super) now: Instant,
    pub(super) outgoing: VecDeque<Rope>,
    pub(super) watches: BTreeMap<i64, Watch<O::Reader>>,
    pub(super) upstreams: BTreeMap<StoreIx, Upstream>,
    pub(super) creates: VecDeque<Due>,
    /// The first `.0` creates are settled: each is an answer, or was sent to store `.1`. See
    /// [`Session::advance_creates`].
    pub(super) advanced: (usize, Option<StoreIx>),
    pub(super) progress: Progress<Origin>,
    /// Messages above the target of the progress round, held back until it ends; each with its watch.
    pub(super) held: VecDeque<(i64, Bytes)>,
    pub(super) held_bytes: usize,
    /// The number of the latest questions of a round: answers to earlier ones do not count.
    pub(super) asked: u64,
    pub(super) round_since: Option<Instant>,
    /// The highest revision in any header from upstream; the header revision of messages that the router makes.
    pub(super) seen: i64,
    pub(super) end: Option<End>,
    pub(super) feeds: BTreeMap<FeedNo, Followed<O::Reader>>,
    pub(super) next_feed: FeedNo,
    /// Watches that get a progress notification when the present round is answered.
    pub(super) periodic: BTreeSet<i64>,
    /// The round under way answers no request of the client.
    pub(super) only_periodic: bool,
    pub(super) next_periodic: Option<Instant>,
    /// A compaction has come up to the positions of idle watches, which a round is to raise, but not before this time.
    pub(super) pass_at: Option<Instant>,
    /// The client's latest unanswered progress request.
    pub(super) requested: Option<Request>,
    /// Feeds may have something for the client, so [`Session::turn`] has work.
    pub(super) dirty: bool,
    /// The target of the progress round when feeds were last read.
    pub(super) read_to: Option<Revision>,
    /// Watches on feeds whose turn it is to be read, each at most once.
    pub(super) ready: VecDeque<i64>,
    /// Feeds of which only a part was looked through.
    pub(super) looked_at: BTreeSet<FeedNo>,
    pub(super) feed_numbers: HashMap<FeedKey, FeedNo>,
    /// The number of watches on each store's upstream stream.
    pub(super) on_store: BTreeMap<StoreIx, usize>,
    /// When to place the watches again, even if no newer map has come by then.
    pub(super) place_at: Option<Instant>,
    pub(super) by_client: HashMap<i64, i64>,
    pub(super) next_auto: i64,
    pub(super) next_uid: i64,
    /// The generation of the map by which all watches were placed last; newer watches may be placed by a newer map.
    pub(super) placed_by: Epoch,
    pub(super) next_number: u64,
}

impl<O: Outside> Session<O> {
    /// A stream without watches.
    #[must_use]
    pub fn new(outside: O, ids: HeaderIds, settings: Settings, now: Instant) -> Self {
        let placed_by = outside.routes().generation();
        Self {
            outside,
            settings,
            ids,
            now,
            outgoing: VecDeque::new(),
            watches: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            creates: VecDeque::new(),
            advanced: (0, None),
            progress: Progress::default(),
            held: VecDeque::new(),
            held_bytes: 0,
            asked: 0,
            round_since: None,
            seen: 0,
            end: None,
            feeds: BTreeMap::new(),
            next_feed: FeedNo(0),
            periodic: BTreeSet::new(),
            only_periodic: false,
            next_periodic: None,
            pass_at: None,
            requested: None,
            dirty: false,
            read_to: None,
            ready: VecDeque::new(),
            looked_at: BTreeSet::new(),
            feed_numbers: HashMap::new(),
            on_store: BTreeMap::new(),
            place_at: None,
            by_client: HashMap::new(),
            next_auto: 0,
            next_uid: 1,
            next_number: 1,
            placed_by,
        }
    }
}
