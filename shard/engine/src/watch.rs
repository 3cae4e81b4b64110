//! Watches. A watch is a cursor into the event logs of its range: publishing marks the watches that an event concerns as
//! pending, and a stream's owner pulls what its pending watches have not seen yet. Nothing is queued per watch, so a slow
//! client costs nothing but its position (A9, B3, B6), and history and live events are one sequence that cannot overlap
//! or be out of order (A5).
//!
//! **Invariants:** a watch that is not pending has been given every published event of its range from its start on; what
//! was published at or above its `next` is nothing of its range. A pending watch stands in its stream's queue once;
//! beside those, only watches that were cancelled stand there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

use crate::{
    engine::{StreamId, WatchId, WatchOut, WatchSpec},
    error::EngineError,
    space::{KindId, Space},
    units::table::View,
    version::Version,
};

mod cursor;
mod ending;
pub(crate) mod feed;
mod progress;
mod pull;

use self::cursor::Want;

/// A watch, whatever its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct WatchKey(u64);

/// Where a watch is looked up when an event is published.
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
    /// The first revision that it wants.
    start: Revision,
    /// Everything of its range below this was delivered, or is not wanted.
    next: Revision,
    /// Something at or above `next` may be published for it.
    pending: bool,
    /// Had no events since the last periodic progress.
    quiet: bool,
    /// It ends behind this revision: keys of it are moving.
    end: Option<Revision>,
    /// Whose keys it sees.
    view: View,
    /// What it should see before its end is dropped.
    lost: bool,
    /// It stands in the list of those that stopped before something unpublished.
    blocked: bool,
}

impl Watch {
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
    /// Ids of watches that ended as compacted: in use until the client cancels them, as in etcd.
    over: BTreeSet<WatchId>,
    next_id: i64,
    /// What is to be said before any event.
    control: VecDeque<WatchOut>,
    pending: VecDeque<WatchKey>,
    /// The highest revision of an event or a progress said on this stream.
    high: Option<Revision>,
    wish: progress::Wish,
    /// The wish waits for something to be published.
    waits: bool,
    woken: bool,
}

/// All watches; see the module's text.
#[derive(Default)]
pub(crate) struct Watches {
    streams: BTreeMap<StreamId, Stream>,
    watches: HashMap<WatchKey, Watch>,
    by_key: HashMap<Key, BTreeSet<WatchKey>>,
    by_kind: HashMap<KindId, BTreeSet<WatchKey>>,
    wide: BTreeSet<WatchKey>,
    /// Watches that stopped before an event that was not published, with its revision: behind it something of another
    /// Kind may be.
    blocked: Vec<(Revision, WatchKey)>,
    /// Streams whose wish waits for something to be published.
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

    /// See [`crate::engine::Engine::watch_create`]. A stream that is closed gets a watch id and nothing ever after.
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
            // Of several Kinds one may show more.
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

    /// Takes a watch out of everything but its stream.
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
            // Its place in the queue is passed over when its turn comes.
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

    /// Marks the watches that these events concern, and those that waited for some to be published.
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
                // One that sees several Kinds has to look at what is published of another later, too.
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

    /// Goes on with watches that stopped before what is published now.
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

    /// Panics when something is not as it must be. For tests.
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
    /// etcd's rule: the next number that is not in use, unless the client chose one that is not.
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
