//! The keyspaces of a Kind: its own, and those of units (see [`crate::units`]). A key is in exactly one of them, and so
//! is an event. An event is in another one than its key only while a unit is being split off.

use kindred_partition_config::{
    ids::{Epoch, Revision},
    key::{Key, KeyRange},
    kind::Located,
    unit::Unit,
};

use super::{Kind, KindId, Space, View, bounds};
use crate::{
    keyspace::{Clearing, Keyspace, Span, Taken},
    object::{Object, Pins},
    types::Event,
    units::{
        NotOwned,
        table::{Record, Splitting, UnitId},
    },
    version::Version,
};

/// Merges several keyspaces in key order.
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

impl Space {
    /// The keyspaces of a Kind that a view sees.
    pub(crate) fn spaces<'s>(&'s self, id: KindId, view: &View) -> impl Iterator<Item = &'s Keyspace> {
        let kind = self.kind(id);
        let parts = kind.parts.iter();
        let parts = parts.filter(|(unit, _)| self.units.get(*unit).is_some_and(|record| view.sees(record)));
        view.sees_rest().then_some(&kind.keys).into_iter().chain(parts.map(|(_, keys)| keys))
    }

    /// All keyspaces of keys that the shard owns.
    pub(crate) fn owned(&self) -> impl Iterator<Item = &Keyspace> {
        (0..self.kinds.len()).flat_map(|id| self.spaces(KindId(id), &View::Now))
    }

    /// All keyspaces, including hidden ones.
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

    /// The events of one key from `from` on, found without scanning events of other keys.
    pub(crate) fn events_of<'s>(
        &'s self,
        home: KindId,
        key: &[u8],
        from: Revision,
        view: &View,
    ) -> impl Iterator<Item = &'s Event> {
        let spaces: Vec<&Keyspace> = self.spaces(home, view).collect();
        let object = spaces.iter().find_map(|keys| keys.object(key));
        let chain = object.into_iter().flat_map(move |object| object.versions_from(from));
        chain.filter_map(move |version| spaces.iter().find_map(|keys| keys.event_of(version)))
    }

    // ---- ownership checks

    /// Refuses a read of a range that is not owned; see [`crate::engine::Engine::owns`].
    pub(crate) fn check(&self, range: &KeyRange, generation: Option<Epoch>) -> Result<(), NotOwned> {
        if self.units.is_empty() {
            return Ok(());
        }
        match (range, self.kind_of_pseudo(range)) {
            (KeyRange::Single(key), Some(kind)) => self.units.check_pseudo_read(key, &kind, generation),
            (KeyRange::Single(key), None) => self.units.check_key(key, None),
            (span, _) => self.units.check_span(span, generation),
        }
    }

    /// Refuses a write of a range, or a transaction that reads it. For a pseudo-key only the owner of the key executes
    /// these.
    pub(crate) fn check_write(&self, range: &KeyRange, generation: Option<Epoch>) -> Result<(), NotOwned> {
        match (range, self.kind_of_pseudo(range)) {
            (KeyRange::Single(key), Some(kind)) if !self.units.is_empty() => {
                self.units.check_pseudo_write(key, &kind, generation)
            }
            _ => self.check(range, generation),
        }
    }

    /// The range of the Kind's objects if `range` is its pseudo-key.
    pub(super) fn kind_of_pseudo(&self, range: &KeyRange) -> Option<KeyRange> {
        let KeyRange::Single(key) = range else { return None };
        let Located::Pseudo { stem } = self.scheme.locate(key) else { return None };
        Some(KeyRange::prefix(Key::copy_from(&[stem, b"/"].concat())))
    }

    /// The view of a read, or its refusal (R13), by the map of `generation` if one is named.
    pub(crate) fn sight(
        &self,
        range: &KeyRange,
        generation: Option<Epoch>,
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

    /// Notes a request for a Kind without units. For a Kind with units, only a write shows that more of it is owned.
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

    /// The keyspace for the next version of a key. A key of a unit that is being split off is moved there first.
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

    /// A unit's keyspace in a Kind; creates it if needed.
    pub(crate) fn part_mut(&mut self, home: KindId, id: UnitId) -> &mut Keyspace {
        let parts = &mut self.kind_mut(home).parts;
        let at = parts.iter().position(|(unit, _)| *unit == id).unwrap_or_else(|| {
            parts.push((id, Keyspace::new()));
            parts.len() - 1
        });
        &mut parts[at].1
    }

    /// A unit's keyspace for a key; creates it and its Kind if needed.
    pub(crate) fn part_for(&mut self, id: UnitId, key: &[u8]) -> &mut Keyspace {
        let home = match self.scheme.locate(key) {
            Located::Object { kind } => self.open_kind(kind),
            Located::Pseudo { .. } | Located::Health | Located::Other => super::MISC,
        };
        self.part_mut(home, id)
    }

    pub(crate) fn parts_of(&self, id: UnitId) -> impl Iterator<Item = (KindId, &Keyspace)> {
        let ids = (0..self.kinds.len()).map(KindId);
        ids.filter_map(move |home| Some((home, self.part(home, id)?)))
    }

    /// Calls `give` for each object of a unit behind `after`, in key order and including deleted ones, until it returns
    /// false.
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

    /// Examines about `budget` live keys of a range. Returns one that belongs to the unit, if any, and the range that
    /// is left.
    pub(crate) fn any_live(&self, unit: &Unit, left: &KeyRange, budget: usize) -> (Option<Key>, KeyRange) {
        let (versions, left) = self.chunk(left, crate::types::LATEST, &View::Now, budget.max(1), usize::MAX);
        let ours = versions.iter().find(|version| unit.contains(version.key()));
        (ours.map(|version| Key::copy_from(version.key())), left)
    }

    /// Removes the keyspaces, emptied before, of records that are gone.
    pub(crate) fn forget_parts(&mut self, over: &[UnitId]) {
        if !over.is_empty() {
            self.kinds.iter_mut().for_each(|kind| kind.parts.retain(|(id, _)| !over.contains(id)));
        }
    }

    // ---- splitting off, dropping, freeing

    /// Moves about `budget` keys and events of a unit into its keyspaces, or with `keep` false discards them. True when
    /// done.
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

    /// Removes about `budget` objects and events of a unit. Returns the objects, and whether nothing is left.
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

    /// Frees about `budget` of what is below the floors and not pinned. Returns whether there is more.
    pub(crate) fn gc(&mut self, pins: &Pins, unpinned: bool, budget: usize) -> bool {
        let (mut left, mut more) = (budget, false);
        let Self { kinds, units, floor, .. } = self;
        // While keys and their events are in different keyspaces, the events do not tell what to free.
        let splitting = |kind: &Kind| {
            let parts = kind.parts.iter().filter_map(|(id, _)| units.get(*id));
            parts.into_iter().any(|record| !record.is_whole())
        };
        for kind in kinds {
            let waits = !kind.parts.is_empty() && splitting(kind);
            let parts = kind.parts.iter_mut();
            let parts = parts.map(|(id, keys)| (units.get(*id).map_or(*floor, |record| record.floor), keys));
            let floor = kind.floor.max(*floor);
            for (floor, keys) in std::iter::once((floor, &mut kind.keys)).chain(parts) {
                if unpinned {
                    keys.release_held();
                }
                if !waits {
                    left = keys.gc(floor, pins, left);
                    more |= keys.wants_gc(floor);
                }
            }
        }
        more
    }

    /// Panics when a key is in a wrong keyspace. For tests.
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
