//! Watches. A watch is a cursor into the event logs of its range: publishing marks the watches that an event concerns
//! as pending, and the owner of a stream pulls what its pending watches have not delivered yet. Nothing is queued per
//! watch, so a slow client costs no more than its position (A9, B3, B6). History and live events are one sequence, so
//! they can neither overlap nor be out of order (A5).
//!
//! **Invariants:** a watch that is not pending has delivered every published event of its range from its start on; no
//! event of its range at or above its `next` is published. A pending watch is in its stream's queue exactly once. The
//! queue holds no other entries, except those of cancelled watches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

use crate::{
    error::EngineError,
    space::{KindId, Space},
    types::{StreamId, WatchId, WatchOut, WatchSpec},
    units::table::View,
    version::Version,
};

mod cursor;
mod ending;
pub(crate) mod feed;
mod progress;
mod pull;

use self::cursor::Want;

/// Identifies a watch across all streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct WatchKey(u64);

/// The list in which a watch is found when an event is published.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Key(Key),
    Kind(KindId),
    Wide,
}

struct Watch {
    stream: StreamId,
    spec: WatchSpec,
    id: WatchId,
    place: Place,
    /// The first revision that the client wants.
    start: Revision,
    /// Every wanted event of the range below this revision was delivered.
    next: Revision,
    /// Whether an event for it may be published at or above `next`.
    pending: bool,
    /// Whether it had no events since the last periodic progress.
    quiet: bool,
    /// The revision after which it ends, because keys of it move to another store.
    end: Option<Revision>,
    /// The units that it sees.
    view: View,
    /// Whether data that it needs to reach its end was dropped.
    lost: bool,
    /// Whether it is in the list `blocked`.
    blocked: bool,
}

impl Watch {
    /// Whether a promise at a revision may cover this watch. A watch that begins now is behind what is current, and has
    /// everything up to that.
    fn has_started(&self, at: Revision) -> bool {
        self.start <= if self.spec.start.is_none() { at.next() } else { at }
    }

    fn want(&self) -> Want<'_> {
        let WatchSpec { range, prev_kv, no_put, no_delete, .. } = &self.spec;
        Want {
            ranges: std::slice::from_ref(range),
            in_order: false,
            from: self.next,
            prev_kv: *prev_kv,
            no_put: *no_put,
            no_delete: *no_delete,
            view: &self.view,
            unit: None,
        }
    }
}

#[derive(Default)]
struct Stream {
    watches: BTreeMap<WatchId, WatchKey>,
    /// Ids of watches that ended as compacted or moved: in use until the client cancels them, as in etcd.
    over: BTreeSet<WatchId>,
    next_id: i64,
    /// Messages to send before any event.
    control: VecDeque<WatchOut>,
    pending: VecDeque<WatchKey>,
    /// The highest revision of an event or progress sent on this stream.
    high: Option<Revision>,
    progress: progress::ProgressTarget,
    /// The request for progress waits until something is published.
    waits: bool,
    woken: bool,
}

/// All watches; see the module's documentation.
#[derive(Default)]
pub(crate) struct Watches {
    streams: BTreeMap<StreamId, Stream>,
    watches: HashMap<WatchKey, Watch>,
    by_key: HashMap<Key, BTreeSet<WatchKey>>,
    by_kind: HashMap<KindId, BTreeSet<WatchKey>>,
    wide: BTreeSet<WatchKey>,
    /// Watches that stopped at an unpublished event, with its revision. Later events of another Kind may be
    /// published.
    blocked: Vec<(Revision, WatchKey)>,
    /// Streams whose request for progress waits until something is published.
    waiting: Vec<StreamId>,
    wakes: Vec<StreamId>,
    next_stream: u64,
    next_watch: u64,
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.watches.len()
    }

    pub(crate) fn open(&mut self) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.streams.insert(id, Stream::default());
        id
    }

    pub(crate) fn close(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(&id) else { return };
        for key in stream.watches.into_values() {
            self.forget(key);
        }
        self.wakes.retain(|woken| *woken != id);
        self.waiting.retain(|waits| *waits != id);
    }

    pub(crate) fn take_wakes(&mut self) -> Vec<StreamId> {
        let wakes = std::mem::take(&mut self.wakes);
        for id in &wakes {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.woken = false;
            }
        }
        wakes
    }

    fn wake(streams: &mut BTreeMap<StreamId, Stream>, wakes: &mut Vec<StreamId>, id: StreamId) {
        if let Some(stream) = streams.get_mut(&id)
            && !std::mem::replace(&mut stream.woken, true)
        {
            wakes.push(id);
        }
    }

    // ---- coming and going

    /// See [`crate::engine::Engine::watch_create`]. On a closed stream it returns an id and does nothing else.
    pub(crate) fn create(
        &mut self,
        space: &mut Space,
        stream_id: StreamId,
        spec: WatchSpec,
    ) -> Result<WatchId, EngineError> {
        space.check(&spec.range, None)?;
        let floor = space.floor_of(&spec.range);
        let gap = spec.start.and_then(|start| space.gap_of_start(&spec.range, start));
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return Ok(spec.id.unwrap_or(WatchId(0)));
        };
        let id = stream.take_id(spec.id)?;
        let scope = space.scope_to_raise(&spec.range);
        let header = space.show(&scope);
        let start = spec.start.unwrap_or(header.next());
        stream.control.push_back(WatchOut::Created { id, header });
        if start < floor || gap.is_some() {
            stream.over.insert(id);
            let floor = floor.max(gap.unwrap_or(floor));
            stream.control.push_back(WatchOut::Compacted { id, floor });
        } else {
            let key = WatchKey(self.next_watch);
            self.next_watch += 1;
            stream.watches.insert(id, key);
            // With several Kinds one may show more than the header.
            let pending = start <= space.visible_somewhere(&scope);
            if pending {
                stream.pending.push_back(key);
            }
            let place = match &spec.range {
                KeyRange::Single(only) => Place::Key(Key::copy_from(only)),
                range => space.kind_to_watch(range).map_or(Place::Wide, Place::Kind),
            };
            self.places(&place).insert(key);
            let watch = Watch {
                stream: stream_id,
                spec,
                id,
                place,
                start,
                next: start,
                pending,
                quiet: true,
                end: None,
                view: View::Now,
                lost: false,
                blocked: false,
            };
            self.watches.insert(key, watch);
        }
        Self::wake(&mut self.streams, &mut self.wakes, stream_id);
        Ok(id)
    }

    fn places(&mut self, place: &Place) -> &mut BTreeSet<WatchKey> {
        match place {
            Place::Key(key) => self.by_key.entry(key.clone()).or_default(),
            Place::Kind(kind) => self.by_kind.entry(*kind).or_default(),
            Place::Wide => &mut self.wide,
        }
    }

    /// Removes a watch from all lists except its stream's.
    fn forget(&mut self, key: WatchKey) -> Option<Watch> {
        let watch = self.watches.remove(&key)?;
        let list = self.places(&watch.place);
        list.remove(&key);
        if list.is_empty()
            && let Place::Key(only) = &watch.place
        {
            self.by_key.remove(only);
        }
        Some(watch)
    }

    pub(crate) fn cancel(&mut self, space: &mut Space, stream_id: StreamId, id: WatchId) -> bool {
        let Some(stream) = self.streams.get_mut(&stream_id) else { return false };
        let header = if let Some(key) = stream.watches.remove(&id) {
            // Its entry in the queue is skipped when its turn comes.
            let watch = self.forget(key);
            let range = watch.map_or_else(KeyRange::everything, |watch| watch.spec.range);
            let scope = space.scope(&range);
            space.show(&scope)
        } else if stream.over.remove(&id) {
            space.visible(&space.everything())
        } else {
            return false;
        };
        if let Some(stream) = self.streams.get_mut(&stream_id) {
            stream.control.push_back(WatchOut::Canceled { id, header });
        }
        Self::wake(&mut self.streams, &mut self.wakes, stream_id);
        true
    }

    // ---- events

    /// Marks the watches that these events concern as pending, and resumes those that waited for a publish.
    pub(crate) fn published(&mut self, space: &mut Space, events: &[(KindId, Version)]) {
        let unpublished = space.first_unpublished();
        self.unblock(unpublished);
        let Self { streams, watches, by_key, by_kind, wide, wakes, .. } = self;
        let none = BTreeSet::new();
        for (kind, version) in events {
            let lists = [by_key.get(version.key()), by_kind.get(kind), Some(&*wide)];
            for key in lists.into_iter().flat_map(|list| list.unwrap_or(&none)) {
                let Some(watch) = watches.get_mut(key) else { continue };
                if watch.pending || !watch.want().takes(version) {
                    continue;
                }
                watch.pending = true;
                // A watch of several Kinds must also look at what another Kind publishes later, below this event.
                let from = version.mod_revision();
                let wide = watch.place == Place::Wide;
                let from = unpublished.filter(|_| wide).map_or(from, |first| first.min(from));
                watch.next = watch.next.max(from);
                if let Some(stream) = streams.get_mut(&watch.stream) {
                    stream.pending.push_back(*key);
                }
                Self::wake(streams, wakes, watch.stream);
            }
        }
        self.end_waits(space);
    }

    /// Resumes the watches whose blocking event is published.
    fn unblock(&mut self, unpublished: Option<Revision>) {
        if self.blocked.is_empty() {
            return;
        }
        let free = |at: Revision| unpublished.is_none_or(|first| at < first);
        for (_, key) in self.blocked.extract_if(.., |(at, _)| free(*at)) {
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            watch.blocked = false;
            if !std::mem::replace(&mut watch.pending, true)
                && let Some(stream) = self.streams.get_mut(&watch.stream)
            {
                stream.pending.push_back(key);
                Self::wake(&mut self.streams, &mut self.wakes, watch.stream);
            }
        }
    }

    /// Panics when an invariant is violated. For tests.
    pub(crate) fn validate(&self) {
        let listed: usize = self.by_key.values().chain(self.by_kind.values()).map(BTreeSet::len).sum();
        assert_eq!(listed + self.wide.len(), self.watches.len());
        let held: usize = self.streams.values().map(|stream| stream.watches.len()).sum();
        assert_eq!(held, self.watches.len());
        for (key, watch) in &self.watches {
            let stream = &self.streams[&watch.stream];
            assert_eq!(stream.watches.get(&watch.id), Some(key));
            let queued = stream.pending.iter().filter(|other| *other == key).count();
            assert_eq!(queued, usize::from(watch.pending), "watch {:?}", watch.id);
            assert!(watch.next >= watch.start);
        }
        for (id, stream) in &self.streams {
            assert!(!stream.woken || self.wakes.contains(id));
        }
    }
}

impl Stream {
    /// etcd's rule: the client's choice if that id is free, else the next free number.
    fn take_id(&mut self, wanted: Option<WatchId>) -> Result<WatchId, EngineError> {
        let taken = |stream: &Self, id| stream.watches.contains_key(&id) || stream.over.contains(&id);
        if let Some(id) = wanted {
            return if taken(self, id) { Err(EngineError::DuplicateWatchId) } else { Ok(id) };
        }
        while taken(self, WatchId(self.next_id)) {
            self.next_id += 1;
        }
        let id = WatchId(self.next_id);
        self.next_id += 1;
        Ok(id)
    }

    fn said(&mut self, revision: Revision) {
        self.high = self.high.max(Some(revision));
    }
}
