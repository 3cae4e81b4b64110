//! The keys of one Kind, or those of no Kind: objects by hash and in key order, their event log, and the log of creates
//! and deletes from which counts at older revisions are computed.

use std::{collections::BTreeMap, hash::BuildHasher, hint::black_box};

use hashbrown::DefaultHashBuilder;
use kindred_partition_config::{ids::Revision, key::Key};

use crate::{
    hash_index::HashIndex,
    log::ChunkedLog,
    object::{Object, Pins, Pruned},
    order_index::{Keys, OrderIndex},
    types::Event,
    version::Version,
};

mod folded;
#[cfg(test)]
mod tests;
mod transfer;

pub(crate) use self::transfer::{Clearing, Taken};

/// The sort key of an event beside the log: its revision and sub-revision, then the order of arrival.
type Place = (Revision, u32, u64);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub start: &'a [u8],
    pub end: Option<&'a [u8]>,
}

impl Span<'_> {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= self.start && self.end.is_none_or(|end| key < end)
    }
}

/// The number of an object in its keyspace.
pub(crate) type ObjectId = u32;

/// Objects by number, in pieces, so that no insertion waits for a large vector to be moved.
#[derive(Default)]
struct Objects {
    pieces: Vec<Vec<Option<Object>>>,
    len: usize,
}

/// So many objects do not fit into a processor's caches with what refers to them.
const WARM_MIN: usize = if cfg!(test) { 8 } else { 1 << 16 };

/// Objects per piece.
const PIECE: usize = 4096;

impl Objects {
    fn get(&self, id: ObjectId) -> Option<&Object> {
        self.pieces.get(id as usize / PIECE)?.get(id as usize % PIECE)?.as_ref()
    }

    fn place_mut(&mut self, id: ObjectId) -> Option<&mut Option<Object>> {
        self.pieces.get_mut(id as usize / PIECE)?.get_mut(id as usize % PIECE)
    }

    fn get_mut(&mut self, id: ObjectId) -> Option<&mut Object> {
        self.place_mut(id)?.as_mut()
    }

    /// Adds an object; returns its number.
    fn push(&mut self, object: Object) -> ObjectId {
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => last.push(Some(object)),
            // The first piece grows on demand, since most Kinds are small.
            None => self.pieces.push(vec![Some(object)]),
            Some(_) => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(Some(object));
                self.pieces.push(piece);
            }
        }
        self.len += 1;
        ObjectId::try_from(self.len - 1).expect("4 billion keys do not fit into one process")
    }

    fn iter(&self) -> impl Iterator<Item = &Option<Object>> {
        self.pieces.iter().flatten()
    }
}

impl Keys<ObjectId> for Objects {
    fn key<'k>(&'k self, id: &'k ObjectId) -> &'k [u8] {
        self.get(*id).map_or(&[], Object::key)
    }
}

/// See the module's documentation.
pub(crate) struct Keyspace {
    objects: Objects,
    free: ChunkedLog<ObjectId>,
    by_hash: HashIndex,
    hasher: DefaultHashBuilder,
    by_order: OrderIndex<ObjectId>,
    log: ChunkedLog<Event>,
    /// The events that created or deleted a key.
    flips: ChunkedLog<Version>,
    /// Events that came from other keyspaces with their keys, and do not fit at the end of the log.
    early: BTreeMap<Place, Event>,
    /// The same for flips.
    early_flips: BTreeMap<Place, Version>,
    /// The part of freed flips that counts at pins below the floor still need.
    folded: folded::Folded,
    /// The number of entries that came so.
    came: u64,
    /// The revision of the last flip, even if it is no longer in `flips`.
    last_flip: Revision,
    /// The highest revision of any version that was ever here.
    newest: Revision,
    /// Keys of objects that hold a version only for a pin, each once.
    held: ChunkedLog<Key>,
    /// Held keys to examine again after a pin ended.
    released: ChunkedLog<Key>,
    live_bytes: u64,
    total_bytes: u64,
}

impl Keyspace {
    pub(crate) fn new() -> Self {
        Self {
            objects: Objects::default(),
            free: ChunkedLog::default(),
            by_hash: HashIndex::new(),
            hasher: DefaultHashBuilder::default(),
            by_order: OrderIndex::new(),
            log: ChunkedLog::default(),
            flips: ChunkedLog::default(),
            early: BTreeMap::new(),
            early_flips: BTreeMap::new(),
            folded: folded::Folded::default(),
            came: 0,
            last_flip: Revision::ZERO,
            newest: Revision::ZERO,
            held: ChunkedLog::default(),
            released: ChunkedLog::default(),
            live_bytes: 0,
            total_bytes: 0,
        }
    }

    // ---- objects

    pub(crate) fn object(&self, key: &[u8]) -> Option<&Object> {
        self.by_id(self.find(key)?)
    }

    /// Looks at what lookups of these keys will look at, one step for all of them at a time. The steps of one lookup
    /// wait for each other, each for memory that is far away in a large keyspace; those of different keys do not.
    pub(crate) fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let hashes: Vec<u64> = keys.map(|key| self.hasher.hash_one(key)).collect();
        let groups: usize = hashes.iter().map(|hash| self.by_hash.warm_table(*hash)).sum();
        black_box(groups);
        let ids: Vec<ObjectId> = hashes.iter().filter_map(|hash| self.by_hash.warm_groups(*hash)).collect();
        let objects = ids.iter().filter(|id| self.by_id(**id).is_some()).count();
        black_box(objects);
        let bytes: usize = ids.iter().filter_map(|id| Some(self.by_id(*id)?.head().encoded_room())).sum();
        black_box(bytes);
    }

    /// Whether the keyspace is so large that [`Keyspace::warm`] is worth more than it costs.
    pub(crate) fn is_large(&self) -> bool {
        self.objects.len >= WARM_MIN
    }

    fn by_id(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(id)
    }

    fn find(&self, key: &[u8]) -> Option<ObjectId> {
        let hash = self.hasher.hash_one(key);
        self.by_hash.find(hash, |id| self.by_id(*id).is_some_and(|o| o.key() == key))
    }

    /// Adds the newest version of its key (a tombstone only if the key exists). Returns the previous version.
    pub(crate) fn write(&mut self, version: Version) -> Option<Version> {
        let (prev, before, flips) = self.chain(&version);
        if flips {
            self.flips.push(version.clone());
        }
        self.log.push(Event { kv: version, prev: before });
        prev
    }

    /// Adds the newest version of a key to its object. Returns the previous version, the one that the event shows as
    /// previous, and whether the key was created or deleted.
    fn chain(&mut self, version: &Version) -> (Option<Version>, Option<Version>, bool) {
        let revision = version.mod_revision();
        let found = self.find(version.key());
        let object = found.and_then(|id| self.by_id(id));
        let prev = object.and_then(Object::live).cloned();
        // An event shows the version before its revision, not an intermediate one of its own transaction.
        let before = match &prev {
            Some(prev) if prev.mod_revision() == revision => {
                object.and_then(|object| object.at(revision.prev())).cloned()
            }
            prev => prev.clone(),
        };
        let before = before.filter(|_| !version.is_creation());
        let footprint = version.footprint();
        self.total_bytes += footprint;
        self.live_bytes -= prev.as_ref().map_or(0, Version::footprint);
        if !version.is_tombstone() {
            self.live_bytes += footprint;
        }
        match found {
            Some(id) => {
                if prev.is_some() == version.is_tombstone() {
                    self.by_order.set_live(version.key(), !version.is_tombstone(), &self.objects);
                }
                if let Some(object) = self.objects.get_mut(id) {
                    object.push(version.clone());
                }
            }
            None => self.insert(Object::new(version.clone())),
        }
        let flips = prev.is_some() == version.is_tombstone();
        self.newest = self.newest.max(revision);
        if flips {
            self.last_flip = self.last_flip.max(revision);
        }
        (prev, before, flips)
    }

    fn insert(&mut self, object: Object) {
        let hash = self.hasher.hash_one(object.key());
        let live = object.live().is_some();
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(place) = self.objects.place_mut(id) {
                    *place = Some(object);
                }
                id
            }
            None => self.objects.push(object),
        };
        let Self { by_hash, objects, hasher, .. } = self;
        by_hash.insert(hash, id, |id| hasher.hash_one(objects.key(id)));
        self.by_order.insert(id, live, &self.objects);
    }

    fn remove(&mut self, key: &[u8]) -> Option<Object> {
        let id = self.find(key)?;
        let hash = self.hasher.hash_one(key);
        self.by_hash.remove(hash, |other| *other == id);
        self.by_order.remove(key, &self.objects);
        let object = self.objects.place_mut(id).and_then(Option::take)?;
        self.total_bytes -= object.versions().map(Version::footprint).sum::<u64>();
        self.live_bytes -= object.live().map_or(0, Version::footprint);
        self.free.push(id);
        Some(object)
    }

    // ---- reads

    /// The number of keys of `span` at `at`, which is pinned or not below the floor. Costs O(log n) plus the creates
    /// and deletes since.
    pub(crate) fn count(&self, span: Span<'_>, at: Revision) -> u64 {
        let now = self.by_order.count_live(span.start, span.end, &self.objects);
        let now = now.wrapping_add_signed(self.folded.count(span, at));
        let early = self.early_flips.range((at.next(), 0, 0)..).map(|(_, flip)| flip);
        let since = self.flips.iter_rev().take_while(|v| v.mod_revision() > at).chain(early);
        // The order of the steps is arbitrary, so intermediate sums may be negative.
        since
            .filter(|v| span.contains(v.key()))
            .fold(now, |count, flip| count.wrapping_add_signed(if flip.is_tombstone() { 1 } else { -1 }))
    }

    /// The versions of the keys of `span` at `at`, in key order.
    pub(crate) fn scan<'s>(&'s self, span: Span<'s>, at: Revision) -> impl Iterator<Item = &'s Version> {
        // Without creates and deletes since `at`, subtrees of tombstones can be skipped.
        let walk = if self.last_flip <= at {
            self.by_order.iter_live_from(span.start, &self.objects)
        } else {
            self.by_order.iter_from(span.start, &self.objects)
        };
        let is_past = self.newest > at;
        walk.map_while(|id| self.by_id(*id))
            .take_while(move |object| span.end.is_none_or(|end| object.key() < end))
            .filter_map(move |object| if is_past { object.at(at) } else { object.live() })
    }

    pub(crate) fn events_from(&self, from: Revision) -> impl Iterator<Item = &Event> {
        self.log.iter_from(move |event| event.kv.mod_revision() < from)
    }

    /// The events beside the log from `from` on; `None` when there are none at all.
    pub(crate) fn early_from(&self, from: Revision) -> Option<impl Iterator<Item = &Event>> {
        (!self.early.is_empty()).then(|| self.early.range((from, 0, 0)..).map(|(_, event)| event))
    }

    /// The events above `since`: the log backwards, then those beside it.
    pub(crate) fn events_above(&self, since: Revision) -> impl Iterator<Item = &Event> {
        let early = self.early.range((since.next(), 0, 0)..).map(|(_, event)| event);
        self.log.iter_rev().take_while(move |event| event.kv.mod_revision() > since).chain(early)
    }

    /// The event of a version, if it is held here.
    pub(crate) fn event_of(&self, version: &Version) -> Option<&Event> {
        let order = version.order();
        let log = self.log.iter_from(move |event| event.kv.order() < order);
        let early = self.early.range((order.0, order.1, 0)..).map(|(_, event)| event);
        let same = move |event: &&Event| event.kv.order() == order;
        let key = |event: &&Event| event.kv.key() == version.key();
        log.take_while(same).find(key).or_else(|| early.take_while(same).find(key))
    }

    /// All objects, in no particular order.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().flatten()
    }

    // ---- memory

    /// Frees up to `budget` flips, and events below the floor with the versions that they replaced. Returns the rest of
    /// the budget.
    pub(crate) fn gc(&mut self, floor: Revision, pins: &Pins, mut budget: usize) -> usize {
        budget = self.folded.settle(pins, budget);
        // Below the floor, counts are needed only at pins.
        while budget > 0 && self.flips.front().is_some_and(|v| v.mod_revision() <= floor) {
            let Some(flip) = self.flips.pop() else { break };
            self.folded.add(&flip, pins);
            budget -= 1;
        }
        while budget > 0
            && let Some(first) = self.early_flips.first_entry()
            && first.key().0 <= floor
        {
            self.folded.add(&first.remove(), pins);
            budget -= 1;
        }
        while budget > 0
            && let Some(first) = self.early.first_entry()
            && first.key().0 < floor
        {
            let event = first.remove();
            self.prune(event.kv.key(), |object| object.prune(floor, pins));
            budget -= 1;
        }
        // Watches may still start at the floor itself, so its events stay.
        while budget > 0 && self.log.front().is_some_and(|e| e.kv.mod_revision() < floor) {
            let Some(event) = self.log.pop() else { break };
            self.prune(event.kv.key(), |object| object.prune(floor, pins));
            budget -= 1;
        }
        while budget > 0
            && let Some(key) = self.released.pop()
        {
            let looked = self.prune(&key, |object| object.prune_held(floor, pins));
            budget = budget.saturating_sub(looked.max(1));
        }
        budget
    }

    /// Whether [`Keyspace::gc`] has something to do.
    pub(crate) fn wants_gc(&self, floor: Revision) -> bool {
        let flipped = |version: &Version| version.mod_revision() <= floor;
        self.released.len() > 0
            || self.folded.wants_settling()
            || self.flips.front().is_some_and(flipped)
            || self.early_flips.first_key_value().is_some_and(|(place, _)| place.0 <= floor)
            || self.early.first_key_value().is_some_and(|(place, _)| place.0 < floor)
            || self.log.front().is_some_and(|e| e.kv.mod_revision() < floor)
    }

    /// Notes that a pin below the floor ended: the next garbage collections examine again what was held for pins.
    pub(crate) fn release_held(&mut self) {
        self.released.append(&mut self.held);
        self.folded.unpin();
    }

    /// Prunes one object. Returns the number of versions examined.
    fn prune(&mut self, key: &[u8], prune: impl FnOnce(&mut Object) -> Pruned) -> usize {
        let Some(id) = self.find(key) else { return 0 };
        let Some(object) = self.objects.get_mut(id) else { return 0 };
        let pruned = prune(object);
        self.total_bytes -= pruned.bytes;
        if pruned.gone {
            self.remove(key);
        } else if pruned.held {
            self.held.push(Key::copy_from(key));
        }
        pruned.looked
    }

    /// Live keys, events held, bytes of live versions, bytes of all versions.
    pub(crate) fn sizes(&self) -> (u64, u64, u64, u64) {
        (
            self.by_order.live_len(),
            (self.log.len() + self.early.len()) as u64,
            self.live_bytes,
            self.total_bytes,
        )
    }

    // ---- invariants

    /// Panics when the parts disagree. For tests.
    pub(crate) fn validate(&self) {
        let mut live = 0;
        let (mut live_bytes, mut total_bytes, mut count) = (0, 0, 0_u64);
        for (id, object) in self.objects.iter().enumerate() {
            let Some(object) = object else { continue };
            count += 1;
            assert_eq!(self.find(object.key()), Some(id as ObjectId), "hash of {:?}", object.head());
            assert_eq!(
                self.by_order.get(object.key(), &self.objects),
                Some(&(id as ObjectId)),
                "order of {:?}",
                object.head()
            );
            assert_eq!(
                self.by_order.is_live(object.key(), &self.objects),
                Some(object.live().is_some()),
                "{:?}",
                object.head()
            );
            let versions: Vec<&Version> = object.versions().collect();
            assert!(versions.windows(2).all(|pair| pair[0].order() < pair[1].order()), "{versions:?}");
            assert!(object.head().mod_revision() <= self.newest, "{:?}", object.head());
            live += u64::from(object.live().is_some());
            live_bytes += object.live().map_or(0, Version::footprint);
            total_bytes += versions.iter().map(|v| v.footprint()).sum::<u64>();
        }
        assert_eq!((self.by_order.len(), self.by_order.live_len()), (count, live));
        assert_eq!(self.by_hash.len() as u64, count);
        assert_eq!((self.live_bytes, self.total_bytes), (live_bytes, total_bytes));
        let log: Vec<&Event> = self.log.iter_from(|_| false).collect();
        assert!(log.windows(2).all(|pair| pair[0].kv.order() <= pair[1].kv.order()), "log order");
        for event in log.into_iter().chain(self.early.values()) {
            let (revision, key) = (event.kv.mod_revision(), event.kv.key());
            assert!(event.prev.as_ref().is_none_or(|p| p.mod_revision() < revision && p.key() == key));
            // A deletion of a key that its own transaction created has no previous version.
            let existed = event.kv.create_revision() < revision;
            assert!(event.is_delete() || event.prev.is_some() == existed, "prev of {:?}", event.kv);
        }
    }
}
