//! Moves keys with their history between keyspaces: within this shard, or as copies to and from other stores.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use kindred_partition_config::{ids::Revision, key::Key, unit::Unit};

use super::{Keyspace, Place, Span, folded::Step};
use crate::{
    object::Object,
    types::Event,
    units::{CopiedKey, FollowedEvent},
    version::Version,
};

/// The progress of clearing a keyspace of a unit's keys and events. Keys are moved first; from then on no events of
/// theirs are added here, and the events follow.
#[derive(Debug, Clone, Default)]
pub(crate) enum Clearing {
    /// The clearing has not begun.
    #[default]
    Begin,
    Keys(Key),
    /// The log before the first position, and the flips before the second.
    Logs(Option<(u64, u64)>),
    /// The events beside the log, from this place on.
    Early(Place),
    /// The flips beside the log, from this place on.
    EarlyFlips(Place),
    Done,
}

const FIRST: Place = (Revision(i64::MIN), 0, 0);

/// Removes the wanted entries among the next `budget` of a map. Returns them, and where to continue if there are more.
fn some<T>(
    map: &mut BTreeMap<Place, T>,
    from: Place,
    budget: &mut usize,
    wanted: impl Fn(&T) -> bool,
) -> (Vec<T>, Option<Place>) {
    let mut looked = map.range(from..).map(|(place, entry)| (*place, wanted(entry)));
    let now: Vec<(Place, bool)> = looked.by_ref().take(*budget).collect();
    let next = looked.next().map(|(place, _)| place);
    *budget = budget.saturating_sub(now.len().max(1));
    let ours = now.into_iter().filter(|(_, ours)| *ours);
    (ours.filter_map(|(place, _)| map.remove(&place)).collect(), next)
}

/// Objects, events and flips that were taken out of a keyspace.
#[derive(Default)]
pub(crate) struct Taken {
    pub objects: Vec<Object>,
    pub events: Vec<Event>,
    pub flips: Vec<Version>,
    pub folded: Vec<Step>,
}

impl Taken {
    pub(crate) fn is_nothing(&self) -> bool {
        self.objects.is_empty() && self.events.is_empty() && self.flips.is_empty() && self.folded.is_empty()
    }
}

impl Keyspace {
    pub(crate) fn is_empty(&self) -> bool {
        let flips = self.flips.len() + self.early_flips.len();
        self.by_order.is_empty() && self.log.len() + self.early.len() + flips == 0
    }

    pub(crate) fn live_keys(&self) -> u64 {
        self.by_order.live_len()
    }

    /// The objects of a span in key order, including deleted ones.
    pub(crate) fn walk<'s>(&'s self, span: Span<'s>) -> impl Iterator<Item = &'s Object> {
        self.by_order
            .iter_from(span.start, &self.objects)
            .map_while(|id| self.by_id(*id))
            .take_while(move |object| span.end.is_none_or(|end| object.key() < end))
    }

    // ---- between keyspaces of this shard

    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Object> {
        self.remove(key)
    }

    /// Adds the object of a key that is not here.
    pub(crate) fn put(&mut self, object: Object) {
        self.total_bytes += object.versions().map(Version::footprint).sum::<u64>();
        self.live_bytes += object.live().map_or(0, Version::footprint);
        // Its last flip cannot be later.
        self.last_flip = self.last_flip.max(object.head().mod_revision());
        self.newest = self.newest.max(object.head().mod_revision());
        if object.is_held() {
            self.held.push(Key::copy_from(object.key()));
        }
        self.insert(object);
    }

    /// Takes out some of a unit's keys and events, examining about `budget` of them.
    pub(crate) fn clear(
        &mut self,
        unit: &Unit,
        span: Span<'_>,
        at: &mut Clearing,
        budget: &mut usize,
    ) -> Taken {
        let mut taken = Taken::default();
        while *budget > 0 {
            match at {
                Clearing::Begin => *at = Clearing::Keys(Key::copy_from(span.start)),
                Clearing::Keys(from) => {
                    let from = from.clone();
                    let span = Span { start: &from, end: span.end };
                    let looked: Vec<Key> =
                        self.walk(span).take(*budget).map(|object| Key::copy_from(object.key())).collect();
                    *at = match looked.last() {
                        Some(last) => Clearing::Keys(last.successor()),
                        None => Clearing::Logs(None),
                    };
                    *budget = budget.saturating_sub(looked.len().max(1));
                    for key in looked.iter().filter(|key| unit.contains(key)) {
                        taken.objects.extend(self.take(key));
                    }
                }
                Clearing::Logs(None) => {
                    taken.folded.extend(self.folded.take(unit, span));
                    *budget = budget.saturating_sub(taken.folded.len());
                    *at = Clearing::Logs(Some((self.log.end(), self.flips.end())));
                }
                Clearing::Logs(Some((log, flips))) => {
                    let events = self.log.extract(*log, |event| unit.contains(event.kv.key()));
                    let flipped = self.flips.extract(*flips, |flip| unit.contains(flip.key()));
                    if events.is_none() && flipped.is_none() {
                        *at = Clearing::Early(FIRST);
                        continue;
                    }
                    *budget = budget.saturating_sub(1024);
                    if let Some((next, events)) = events {
                        *log = next;
                        taken.events.extend(events);
                    }
                    if let Some((next, flipped)) = flipped {
                        *flips = next;
                        taken.flips.extend(flipped);
                    }
                }
                Clearing::Early(from) => {
                    let (events, next) =
                        some(&mut self.early, *from, budget, |event| unit.contains(event.kv.key()));
                    taken.events.extend(events);
                    *at = next.map_or(Clearing::EarlyFlips(FIRST), Clearing::Early);
                }
                Clearing::EarlyFlips(from) => {
                    let (flips, next) =
                        some(&mut self.early_flips, *from, budget, |flip| unit.contains(flip.key()));
                    taken.flips.extend(flips);
                    *at = next.map_or(Clearing::Done, Clearing::EarlyFlips);
                }
                Clearing::Done => break,
            }
        }
        taken
    }

    /// Adds what was taken out of another keyspace.
    pub(crate) fn settle(&mut self, taken: Taken) {
        taken.objects.into_iter().for_each(|object| self.put(object));
        taken.events.into_iter().for_each(|event| self.came(event));
        taken.flips.into_iter().for_each(|flip| self.flip_came(flip));
        taken.folded.into_iter().for_each(|(pin, key, by)| self.folded.put(pin, key, by));
    }

    fn came(&mut self, event: Event) {
        let (revision, sub) = event.kv.order();
        self.came += 1;
        self.early.insert((revision, sub, self.came), event);
    }

    fn flip_came(&mut self, flip: Version) {
        let (revision, sub) = flip.order();
        self.came += 1;
        self.early_flips.insert((revision, sub, self.came), flip);
    }

    // ---- after a restart

    /// Fills an empty keyspace with versions in any order, possibly repeated. Below the floor only what was current
    /// there is kept.
    pub(crate) fn restore(&mut self, mut versions: Vec<Version>, floor: Revision) {
        // Of equal versions the first stays, so the later allocations are freed and free memory is contiguous.
        versions.sort_by(|a, b| a.order().cmp(&b.order()).then_with(|| a.key().cmp(b.key())));
        versions.dedup_by(|a, b| a.order() == b.order() && a.key() == b.key());
        let first = versions.partition_point(|version| version.mod_revision() < floor);
        let events = versions.split_off(first);
        let mut dead: HashSet<&[u8]> = HashSet::new();
        for version in versions.iter().rev() {
            if self.find(version.key()).is_some() || dead.contains(version.key()) {
                continue;
            }
            if version.is_tombstone() {
                dead.insert(version.key());
            } else {
                self.chain(version);
            }
        }
        for version in events {
            self.write(version);
        }
    }

    // ---- copies

    /// A key as a copy carries it, without unpublished versions; `None` when nothing of it is readable.
    pub(crate) fn copied(
        &self,
        object: &Object,
        floor: Revision,
        unpublished: Option<Revision>,
    ) -> Option<CopiedKey> {
        self.copied_from(object, floor, unpublished, &[self])
    }

    /// The same, given the keyspaces that may hold its events.
    pub(crate) fn copied_from(
        &self,
        object: &Object,
        floor: Revision,
        unpublished: Option<Revision>,
        events: &[&Self],
    ) -> Option<CopiedKey> {
        let published = |version: &&Version| unpublished.is_none_or(|first| version.mod_revision() < first);
        let (mut versions, mut before) = (Vec::new(), None);
        for version in object.versions().filter(published) {
            if version.mod_revision() < floor {
                before = Some(version);
            } else {
                versions.push(version.clone());
            }
        }
        let event = versions.first().and_then(|first| events.iter().find_map(|keys| keys.event_of(first)));
        let before = match event {
            // What garbage collection has left of the versions below the floor need not have the last one.
            Some(event) => event.prev.clone(),
            None => before.filter(|version| !version.is_tombstone()).cloned(),
        };
        versions.splice(0..0, before);
        (!versions.is_empty()).then_some(CopiedKey { versions })
    }

    /// Adds the versions of a copied key that are newer than those here. Returns the version that was live before.
    pub(crate) fn import_key(&mut self, copied: &CopiedKey, floor: Revision) -> Option<Version> {
        let known = self.object(copied.key()).map(|object| object.head().clone());
        let newer = known.as_ref().map(Version::mod_revision);
        for version in copied.versions.iter().filter(|version| Some(version.mod_revision()) > newer) {
            let (_, before, flips) = self.chain(version);
            if version.mod_revision() < floor {
                continue;
            }
            if flips {
                self.flip_came(version.clone());
            }
            self.came(Event { kv: version.clone(), prev: before });
        }
        known.filter(|version| !version.is_tombstone())
    }

    /// Adds an event that follows a copy. Returns false when its key is as new already.
    pub(crate) fn import_event(&mut self, followed: &FollowedEvent) -> bool {
        let version = &followed.version;
        let known = self.object(version.key()).map(|object| object.head().mod_revision());
        if known >= Some(version.mod_revision()) {
            return false;
        }
        let (_, before, flips) = self.chain(version);
        let event = Event { kv: version.clone(), prev: before.or(followed.prev.clone()) };
        let in_order = self.log.back().is_none_or(|last| last.kv.order() <= version.order());
        if in_order {
            self.log.push(event);
        } else {
            self.came(event);
        }
        if flips {
            match self.flips.back() {
                Some(last) if last.order() > version.order() => self.flip_came(version.clone()),
                _ => self.flips.push(version.clone()),
            }
        }
        true
    }

    /// Removes up to `budget` objects, then events. Returns the objects.
    pub(crate) fn drain(&mut self, budget: &mut usize) -> Vec<Object> {
        let all = self.walk(Span { start: &[], end: None });
        let keys: Vec<Key> = all.take(*budget).map(|object| Key::copy_from(object.key())).collect();
        *budget -= keys.len();
        let objects = keys.iter().filter_map(|key| self.remove(key)).collect();
        self.folded.clear();
        while *budget > 0 && (self.log.pop().is_some() | self.early.pop_first().is_some()) {
            *budget -= 1;
        }
        while *budget > 0 && (self.flips.pop().is_some() | self.early_flips.pop_first().is_some()) {
            *budget -= 1;
        }
        objects
    }
}
