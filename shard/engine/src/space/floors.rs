//! Floors: the lowest readable revisions of the store, of single Kinds and of units.

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{KindId, MISC, Space, View};
use crate::{keyspace::Span, types::KindGap};

impl Space {
    /// The highest floor among the visible units and the rest: from it on everything is readable.
    pub(crate) fn floor_highest(&self) -> Revision {
        let visible = self.units.records.iter().filter(|record| record.is_visible());
        let kinds = self.kinds.iter().map(|kind| kind.floor).filter(|floor| *floor > Revision::ZERO);
        visible.map(|record| record.floor).chain(kinds).fold(self.floor, Revision::max)
    }

    /// The floor of a range, its lowest readable revision.
    pub(crate) fn floor_of(&self, range: &KeyRange) -> Revision {
        self.floor_seen(range, &View::Now)
    }

    /// The floor of a range, as far as the view sees it.
    pub(crate) fn floor_seen(&self, range: &KeyRange, view: &View) -> Revision {
        if self.units.is_empty() {
            return self.floor_of_rest(range);
        }
        let KeyRange::Single(key) = range else {
            return self.floor_of_unit(&Unit::of_range(range.clone()), view);
        };
        match (self.units.deciding(key), self.kind_of_pseudo(range)) {
            (Some(record), _) if view.sees(record) => record.floor,
            // Another store owns the pseudo-key, so no history of it here could be lost.
            (Some(_), Some(_)) => self.compacted,
            (None, Some(kind)) => self.floor_of_unit(&Unit::of_range(kind), view),
            _ => self.floor_of_rest(range),
        }
    }

    /// The floor of a unit: the highest floor of the records that the view sees in it and, for keys in no record, the
    /// store's own, which is the last compaction or the store's beginning.
    ///
    /// The store's beginning hides what an earlier life of the store may have held (R10). It does not limit a Kind of
    /// which the store has units and was asked for nothing else: of such a Kind it owns nothing else, and the units
    /// came with their history. Otherwise a move to a new store would cancel every watch (R16).
    pub(crate) fn floor_of_unit(&self, unit: &Unit, view: &View) -> Revision {
        let (records, rest) = self.units.over(unit);
        let visible = || records.iter().filter(|record| view.sees(record));
        let mut floor = visible().map(|record| record.floor).fold(self.compacted, Revision::max);
        for piece in rest {
            let mut scratch = None;
            let limits = self.segments(&piece.range, &mut scratch).into_iter().any(|(home, span)| {
                let kind = self.kind(home);
                let span = if home == MISC {
                    range_of(span)
                } else {
                    KeyRange::Span { start: kind.prefix.clone(), end: kind.end.clone() }
                };
                kind.asked || !visible().any(|record| record.by.unit.range.overlaps(&span))
            });
            if limits {
                floor = floor.max(self.floor_of_rest(&piece.range));
            }
        }
        floor
    }

    /// The floor of keys in no unit: the store's, or a higher one of the Kinds that the range reads.
    fn floor_of_rest(&self, range: &KeyRange) -> Revision {
        if !self.kinds_have_floors {
            return self.floor;
        }
        let floor = |id: &KindId| self.kind(*id).floor;
        let range = &self.kind_of_pseudo(range).unwrap_or_else(|| range.clone());
        let highest = match (self.only_kind(range), range) {
            (Some(prefix), _) => self.by_prefix.get(prefix).map_or(Revision::ZERO, floor),
            (None, KeyRange::Single(_)) => Revision::ZERO,
            (None, KeyRange::Span { .. }) => {
                self.kinds_in(range).map(|id| floor(&id)).max().unwrap_or(Revision::ZERO)
            }
        };
        highest.max(self.floor)
    }

    /// The keyspace of a Kind that has a floor by the logs or another engine; creates it if needed.
    pub(crate) fn kind_to_compact(&mut self, prefix: &[u8]) -> KindId {
        self.open_kind(prefix)
    }

    /// Raises the floor of one Kind, and of the units that are served here and lie within it. Units over several Kinds
    /// keep theirs.
    pub(crate) fn compact_kind(&mut self, id: KindId, at: Revision) {
        self.restore_floor(id, at);
        let kind = self.kind(id);
        let range = KeyRange::Span { start: kind.prefix.clone(), end: kind.end.clone() };
        for record in self.units.records.iter_mut().filter(|record| record.is_visible()) {
            if record.by.unit.range.intersection(&range) == record.by.unit.range {
                record.floor = record.floor.max(at);
            }
        }
    }

    /// Raises the floor of a Kind's keys in no unit.
    pub(crate) fn restore_floor(&mut self, id: KindId, at: Revision) {
        let kind = self.kind_mut(id);
        kind.floor = kind.floor.max(at);
        self.kinds_have_floors = true;
    }

    /// Forgets the floors of Kinds that the store's own has passed.
    pub(crate) fn pass_kind_floors(&mut self, at: Revision) {
        if self.kinds_have_floors {
            for kind in self.kinds.iter_mut().filter(|kind| kind.floor <= at) {
                kind.floor = Revision::ZERO;
            }
            self.kinds_have_floors = self.kinds.iter().any(|kind| kind.floor > Revision::ZERO);
        }
    }

    /// The floor of a Kind, with that of the store.
    pub(crate) fn floor_of_kind(&self, id: KindId) -> Revision {
        self.kind(id).floor.max(self.floor)
    }

    /// The floors of the Kinds as gaps from the beginning on, which is how logs and checkpoints keep them.
    pub(crate) fn kind_floors(&self) -> impl Iterator<Item = KindGap> {
        let floors = self.kinds.iter().filter(|kind| kind.floor > Revision::ZERO);
        floors.map(|kind| KindGap::floor(kind.prefix.clone(), kind.floor))
    }
}

fn range_of(span: Span<'_>) -> KeyRange {
    KeyRange::Span { start: Key::copy_from(span.start), end: span.end.map(Key::copy_from) }
}
