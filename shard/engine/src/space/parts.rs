//! The keyspaces of a Kind: its own, and those of units (see [`crate::units`]). A key stands in one of them; an event in one
//! too, which is another than its key's only while a unit is being split off.

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    kind::Located,
    unit::Unit,
};

use super::{Kind, KindId, Space, View, bounds};
use crate::{
    engine::Event,
    keyspace::{Clearing, Keyspace, Span, Taken},
    object::{Object, Pins},
    units::{
        NotOwned,
        table::{Record, UnitId},
    },
    version::Version,
};

fn range_of(span: Span<'_>) -> KeyRange {
    KeyRange::Span { start: Key::copy_from(span.start), end: span.end.map(Key::copy_from) }
}

/// Several keyspaces as one, in key order.
pub(super) fn merged<'s>(
    spaces: &[&'s Keyspace],
    span: Span<'s>,
    at: Revision,
) -> impl Iterator<Item = &'s Version> {
    let mut scans: Vec<_> = spaces.iter().map(|keys| keys.scan(span, at).peekable()).collect();
    std::iter::from_fn(move || {
        let heads = scans.iter_mut().enumerate().filter_map(|(i, scan)| Some((scan.peek()?.key(), i)));
        let (_, first) = heads.min()?;
        scans.get_mut(first)?.next()
    })
}

/// How far a unit is split off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Splitting {
    kind: usize,
    /// Which keyspace of the Kind: its own is 0.
    source: usize,
    at: Clearing,
}

impl Space {
    /// The keyspaces of a Kind that a view sees.
    pub(crate) fn spaces<'s>(&'s self, id: KindId, view: &View) -> impl Iterator<Item = &'s Keyspace> {
        let kind = self.kind(id);
        let parts = kind.parts.iter();
        let parts = parts.filter(|(unit, _)| self.units.get(*unit).is_some_and(|record| view.sees(record)));
        view.sees_rest().then_some(&kind.keys).into_iter().chain(parts.map(|(_, keys)| keys))
    }

    /// Every keyspace of what the shard owns.
    pub(crate) fn owned(&self) -> impl Iterator<Item = &Keyspace> {
        (0..self.kinds.len()).flat_map(|id| self.spaces(KindId(id), &View::Now))
    }

    /// Every keyspace, hidden ones too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Keyspace> {
        self.kinds
            .iter()
            .flat_map(|kind| std::iter::once(&kind.keys).chain(kind.parts.iter().map(|(_, keys)| keys)))
    }

    pub(crate) fn object(&self, key: &[u8], view: &View) -> Option<&Object> {
        let home = self.home_of(key)?;
        let kind = self.kind(home);
        if kind.parts.is_empty() && view.sees_rest() {
            return kind.keys.object(key);
        }
        if view.leaves_out(key) {
            return None;
        }
        self.spaces(home, view).find_map(|keys| keys.object(key))
    }

    /// The events of one key from `from` on, without walking those of others.
    pub(crate) fn events_of<'s>(
        &'s self,
        home: KindId,
        key: &[u8],
        from: Revision,
        view: &View,
    ) -> impl Iterator<Item = &'s Event> {
        let spaces: Vec<&Keyspace> = self.spaces(home, view).collect();
        let object = spaces.iter().find_map(|keys| keys.object(key));
        let chain = object.into_iter().flat_map(|object| object.versions());
        chain
            .filter(move |version| version.mod_revision() >= from)
            .filter_map(move |version| spaces.iter().find_map(|keys| keys.event_of(version)))
    }

    // ---- who may

    /// Whether a read of a range is refused; see [`crate::engine::Engine::owns`].
    pub(crate) fn check(&self, range: &KeyRange, generation: Option<u64>) -> Result<(), NotOwned> {
        if self.units.is_empty() {
            return Ok(());
        }
        match (range, self.kind_of_pseudo(range)) {
            (KeyRange::Single(key), Some(kind)) => self.units.check_pseudo_read(key, &kind, generation),
            (KeyRange::Single(key), None) => self.units.check_key(key, None),
            (span, _) => self.units.check_span(span, generation),
        }
    }

    /// Whether a write of a range is refused, or a transaction that looks at it: only the store that owns a pseudo-key
    /// executes these.
    pub(crate) fn check_write(&self, range: &KeyRange, generation: Option<u64>) -> Result<(), NotOwned> {
        match (range, self.kind_of_pseudo(range)) {
            (KeyRange::Single(key), Some(kind)) if !self.units.is_empty() => {
                self.units.check_pseudo_write(key, &kind, generation)
            }
            _ => self.check(range, generation),
        }
    }

    /// The objects of the Kind whose pseudo-key this is.
    fn kind_of_pseudo(&self, range: &KeyRange) -> Option<KeyRange> {
        let KeyRange::Single(key) = range else { return None };
        let Located::Pseudo { stem } = self.scheme.locate(key) else { return None };
        Some(KeyRange::prefix(Key::copy_from(&[stem, b"/"].concat())))
    }

    /// What a read sees, by the map of this generation, if one is named; or that it is refused (R13).
    pub(crate) fn sight(
        &self,
        range: &KeyRange,
        generation: Option<u64>,
        at: Option<Revision>,
    ) -> Result<View, NotOwned> {
        let at = at.filter(|_| !self.units.is_empty() && self.kind_of_pseudo(range).is_none());
        let Some(at) = at else {
            return self.check(range, generation).map(|()| View::Now);
        };
        match range {
            KeyRange::Single(key) => self.units.sight_of_key(key, at),
            span @ KeyRange::Span { .. } => self.units.sight_of_span(span, generation, at),
        }
    }

    /// The highest floor of what the store shows: at and above it everything can be read.
    pub(crate) fn floor_highest(&self) -> Revision {
        let visible = self.units.records.iter().filter(|record| record.is_visible());
        visible.map(|record| record.floor).fold(self.floor, Revision::max)
    }

    /// The floor of a range: below it nothing can be read.
    pub(crate) fn floor_of(&self, range: &KeyRange) -> Revision {
        self.floor_seen(range, &View::Now)
    }

    /// The same of what a view sees of it.
    pub(crate) fn floor_seen(&self, range: &KeyRange, view: &View) -> Revision {
        if self.units.is_empty() {
            return self.floor;
        }
        let KeyRange::Single(key) = range else {
            return self.floor_of_unit(&Unit::of_range(range.clone()), view);
        };
        match (self.units.deciding(key), self.kind_of_pseudo(range)) {
            (Some(record), _) if view.sees(record) => record.floor,
            // Of a pseudo-key that another store owns there is nothing here that could be lost.
            (Some(_), Some(_)) => self.compacted,
            (None, Some(kind)) => self.floor_of_unit(&Unit::of_range(kind), view),
            _ => self.floor,
        }
    }

    /// The floor of a unit: the highest of the units of which it has keys; and of what stands in none, the store's own,
    /// which is the last compaction or the store's beginning, whatever is later.
    ///
    /// The store's beginning hides what an earlier life of the store may have held (R10). So it does not limit a Kind
    /// of which the store has units, and of which it was asked for nothing else since it began: of that Kind it owns
    /// nothing else, and the units came with their history. Otherwise a move to a new store would cancel every watch (R16).
    pub(crate) fn floor_of_unit(&self, unit: &Unit, view: &View) -> Revision {
        let (records, rest) = self.units.over(unit);
        let visible = || records.iter().filter(|record| view.sees(record));
        let mut floor = visible().map(|record| record.floor).fold(self.compacted, Revision::max);
        for piece in rest {
            let mut scratch = None;
            let limits = self.segments(&piece.range, &mut scratch).into_iter().any(|(home, span)| {
                let kind = self.kind(home);
                let span = if home == super::MISC {
                    range_of(span)
                } else {
                    KeyRange::Span { start: kind.prefix.clone(), end: kind.end.clone() }
                };
                kind.asked || !visible().any(|record| record.by.unit.range.overlaps(&span))
            });
            if limits {
                floor = floor.max(self.floor);
            }
        }
        floor
    }

    /// Notes that a Kind was asked for that has no units; beside units only a write shows that more of it is owned.
    pub(super) fn ask(&mut self, home: KindId) {
        let kind = self.kind(home);
        if kind.asked {
            return;
        }
        let all = KeyRange::Span { start: kind.prefix.clone(), end: kind.end.clone() };
        if !self.units.records.iter().any(|record| record.by.unit.overlaps(&all)) {
            self.kind_mut(home).asked = true;
        }
    }

    // ---- writes

    /// Where the next version of a key goes. A key of a unit that is being split off moves there first.
    pub(super) fn space_to_write(&mut self, home: KindId, key: &[u8]) -> &mut Keyspace {
        if self.units.is_empty() {
            let kind = self.kind_mut(home);
            kind.asked = true;
            return &mut kind.keys;
        }
        let Some(record) = self.units.deciding(key).filter(|record| record.is_visible()) else {
            let kind = self.kind_mut(home);
            kind.asked = true;
            return &mut kind.keys;
        };
        let (id, whole) = (record.id, record.is_whole());
        if !whole && self.part(home, id).is_none_or(|keys| keys.object(key).is_none()) {
            let kind = self.kind_mut(home);
            let others = kind.parts.iter_mut().filter(|(unit, _)| *unit != id).map(|(_, keys)| keys);
            let object = std::iter::once(&mut kind.keys).chain(others).find_map(|keys| keys.take(key));
            let part = self.part_mut(home, id);
            part.settle(Taken { objects: object.into_iter().collect(), ..Taken::default() });
        }
        self.part_mut(home, id)
    }

    pub(crate) fn part(&self, home: KindId, id: UnitId) -> Option<&Keyspace> {
        self.kind(home).parts.iter().find(|(unit, _)| *unit == id).map(|(_, keys)| keys)
    }

    /// A unit's keyspace of a Kind, made when it is not there.
    pub(crate) fn part_mut(&mut self, home: KindId, id: UnitId) -> &mut Keyspace {
        let parts = &mut self.kind_mut(home).parts;
        let at = parts.iter().position(|(unit, _)| *unit == id).unwrap_or_else(|| {
            parts.push((id, Keyspace::new()));
            parts.len() - 1
        });
        &mut parts[at].1
    }

    /// A unit's keyspace for a key, whose Kind is made when it is not there.
    pub(crate) fn part_for(&mut self, id: UnitId, key: &[u8]) -> &mut Keyspace {
        let home = match self.scheme.locate(key) {
            Located::Object { kind } => self.open_kind(kind),
            Located::Pseudo { .. } | Located::Health | Located::Other => super::MISC,
        };
        self.part_mut(home, id)
    }

    /// A unit's keyspaces.
    pub(crate) fn parts_of(&self, id: UnitId) -> impl Iterator<Item = (KindId, &Keyspace)> {
        let ids = (0..self.kinds.len()).map(KindId);
        ids.filter_map(move |home| Some((home, self.part(home, id)?)))
    }

    /// Gives a unit's objects behind a key, in key order, dead ones too, until it is told to stop.
    pub(crate) fn walk_unit(
        &self,
        record: &Record,
        after: Option<&Key>,
        mut give: impl FnMut(&Keyspace, &Object) -> bool,
    ) {
        let (from, end) = bounds(&record.by.unit.range);
        let start = after.map_or_else(|| Key::copy_from(from), Key::successor);
        let rest = KeyRange::Span { start, end: end.map(Key::copy_from) };
        let mut scratch = None;
        for (home, span) in self.segments(&rest, &mut scratch) {
            let Some(keys) = self.part(home, record.id) else { continue };
            if !keys.walk(span).all(|object| give(keys, object)) {
                return;
            }
        }
    }

    /// Looks at about `budget` of the keys in what is left of a range; one of the unit's, if there is one, and what is left
    /// then.
    pub(crate) fn any_live(&self, unit: &Unit, left: &KeyRange, budget: usize) -> (Option<Key>, KeyRange) {
        let (versions, left) = self.chunk(left, crate::read::LATEST, &View::Now, budget.max(1), usize::MAX);
        let ours = versions.iter().find(|version| unit.contains(version.key()));
        (ours.map(|version| Key::copy_from(version.key())), left)
    }

    /// Removes the keyspaces of records that are gone, from which everything was taken.
    pub(crate) fn forget_parts(&mut self, over: &[UnitId]) {
        if !over.is_empty() {
            self.kinds.iter_mut().for_each(|kind| kind.parts.retain(|(id, _)| !over.contains(id)));
        }
    }

    // ---- splitting off, dropping, freeing

    /// Brings about `budget` keys and events of a unit from where they are into its keyspaces, or just takes them out; true
    /// when there are no more.
    pub(crate) fn split_off(
        &mut self,
        id: UnitId,
        at: &mut Splitting,
        mut budget: usize,
        keep: bool,
    ) -> bool {
        let Some(unit) = self.units.get(id).map(|record| record.by.unit.clone()) else { return true };
        while budget > 0 {
            let Some(kind) = self.kinds.get_mut(at.kind) else { return true };
            let (from, end) = bounds(&unit.range);
            let outside = kind.end.as_ref().is_some_and(|last| from >= &last[..])
                || end.is_some_and(|end| end <= &kind.prefix[..]);
            let sees = |other: &UnitId| self.units.get(*other).is_some_and(Record::is_visible);
            let source = match at.source {
                _ if outside => None,
                0 => Some(&mut kind.keys),
                n => match kind.parts.get_mut(n - 1) {
                    Some((other, keys)) if *other != id && sees(other) => Some(keys),
                    Some(_) => {
                        at.source += 1;
                        at.at = Clearing::Begin;
                        continue;
                    }
                    None => None,
                },
            };
            let Some(source) = source else {
                *at = Splitting { kind: at.kind + 1, ..Splitting::default() };
                budget -= 1;
                continue;
            };
            let taken = source.clear(&unit, Span { start: from, end }, &mut at.at, &mut budget);
            if keep && !taken.is_nothing() {
                let home = KindId(at.kind);
                self.part_mut(home, id).settle(taken);
            }
            if matches!(at.at, Clearing::Done) {
                at.source += 1;
                at.at = Clearing::Begin;
            }
        }
        false
    }

    /// Removes about `budget` objects and events of a unit; answers the objects, and whether it is all gone.
    pub(crate) fn drain(&mut self, id: UnitId, budget: &mut usize) -> (Vec<Object>, bool) {
        let mut objects = Vec::new();
        for kind in &mut self.kinds {
            let Some(at) = kind.parts.iter().position(|(unit, _)| *unit == id) else { continue };
            objects.append(&mut kind.parts[at].1.drain(budget));
            if !kind.parts[at].1.is_empty() {
                return (objects, false);
            }
            kind.parts.remove(at);
        }
        (objects, true)
    }

    /// Frees what is below the floors and no pin needs, at most about `budget` of it; whether there is more.
    pub(crate) fn scrub(&mut self, pins: &Pins, unpinned: bool, budget: usize) -> bool {
        let (mut left, mut more) = (budget, false);
        let Self { kinds, units, floor, .. } = self;
        // While keys are away from their events, events tell nobody what to free.
        let splitting = |kind: &Kind| {
            let parts = kind.parts.iter().filter_map(|(id, _)| units.get(*id));
            parts.into_iter().any(|record| !record.is_whole())
        };
        for kind in kinds {
            let waits = !kind.parts.is_empty() && splitting(kind);
            let parts = kind.parts.iter_mut();
            let parts = parts.map(|(id, keys)| (units.get(*id).map_or(*floor, |record| record.floor), keys));
            for (floor, keys) in std::iter::once((*floor, &mut kind.keys)).chain(parts) {
                if unpinned {
                    keys.release_held();
                }
                if !waits {
                    left = keys.scrub(floor, pins, left);
                    more |= keys.wants_scrub(floor);
                }
            }
        }
        more
    }

    /// Panics when a key stands where it must not. For tests.
    pub(super) fn validate_parts(&self, kind: &Kind) {
        for (id, keys) in &kind.parts {
            keys.validate();
            let record = self.units.get(*id).expect("a keyspace of a record");
            for object in keys.objects() {
                assert!(record.by.unit.contains(object.key()), "{:?} in {:?}", object.head(), record.by);
                let elsewhere = kind.parts.iter().filter(|(other, _)| other != id).map(|(_, keys)| keys);
                let twice = std::iter::once(&kind.keys)
                    .chain(elsewhere)
                    .any(|keys| keys.object(object.key()).is_some_and(|object| object.live().is_some()));
                assert!(!twice, "{:?} stands in two places", object.head());
            }
        }
    }
}
