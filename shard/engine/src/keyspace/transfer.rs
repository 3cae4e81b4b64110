//! Keys with their history on the way from one keyspace to another: of this shard, or of another one as copies.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use kindred_partition_config::{ids::Revision, key::Key, unit::Unit};

use super::{Keyspace, Place, Span, folded::Step};
use crate::{
    engine::Event,
    object::Object,
    units::{CopiedKey, FollowedEvent},
    version::Version,
};

/// How far a keyspace is cleared of a unit's keys and events. The events stay where they were until the keys have moved:
/// from then on none are added.
#[derive(Debug, Clone, Default)]
pub(crate) enum Clearing {
    /// Keys behind this one are still to be looked at.
    #[default]
    Begin,
    Keys(Key),
    /// The log before this place, and the flips before that one.
    Logs(Option<(u64, u64)>),
    /// What came early from this place on.
    Early(Place),
    /// Its flips.
    EarlyFlips(Place),
    Done,
}

/// Before every place.
const FIRST: Place = (Revision(i64::MIN), 0, 0);

/// Takes those that are wanted out of the next ones of a map; and where to go on, when there are more.
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

/// What is taken out of a keyspace.
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

    /// Live keys.
    pub(crate) fn live_keys(&self) -> u64 {
        self.by_order.live_len()
    }

    /// Objects of a span in key order, dead ones too.
    pub(crate) fn walk<'s>(&'s self, span: Span<'s>) -> impl Iterator<Item = &'s Object> {
        self.by_order
            .iter_from(span.start, &self.objects)
            .map_while(|id| self.by_id(*id))
            .take_while(move |object| span.end.is_none_or(|end| object.key() < end))
    }

    // ---- between keyspaces of this shard

    /// Takes one key out.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Object> {
        self.remove(key)
    }

    /// Takes in a key that is not here.
    pub(crate) fn put(&mut self, object: Object) {
        self.total_bytes += object.versions().map(Version::footprint).sum::<u64>();
        self.live_bytes += object.live().map_or(0, Version::footprint);
        // It came or went then at the latest.
        self.last_flip = self.last_flip.max(object.head().mod_revision());
        self.newest = self.newest.max(object.head().mod_revision());
        if object.is_held() {
            self.held.push(Key::copy_from(object.key()));
        }
        self.insert(object);
    }

    /// Takes some of a unit's keys and events out; about `budget` of them are looked at.
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

    /// Takes in what another keyspace gave.
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

    /// Takes everything into a keyspace that is empty, in any order and also twice: of what is below the floor only what
    /// was current there.
    pub(crate) fn restore(&mut self, mut versions: Vec<Version>, floor: Revision) {
        // Of what is there twice the first one stays, so that what goes was made later and its memory is in one place.
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

    /// A key as a copy carries it, without what is not published; `None` when nothing of it can be read.
    pub(crate) fn copied(
        &self,
        object: &Object,
        floor: Revision,
        unpublished: Option<Revision>,
    ) -> Option<CopiedKey> {
        self.copied_from(object, floor, unpublished, &[self])
    }

    /// The same, with the keyspaces among which its events are.
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
        let replaced = versions.first().and_then(|first| {
            let event = events.iter().find_map(|keys| keys.event_of(first));
            event?.prev.clone()
        });
        let before = before.filter(|version| !version.is_tombstone()).cloned().or(replaced);
        versions.splice(0..0, before);
        (!versions.is_empty()).then_some(CopiedKey { versions })
    }

    /// Takes in the versions of a copied key that are newer than what is here; answers the one that was the newest
    /// before.
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

    /// Takes in an event that follows a copy; false when its key is as new already.
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

    /// Takes out some objects and events, whatever they are, until there are none; answers the objects.
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
