//! Walks the keys for a checkpoint.

use kindred_partition_config::key::Key;

use super::{KindId, Space};
use crate::{
    durability::{Imported, Logged},
    keyspace::{Keyspace, Span},
    types::Durability,
    units::{UnitState, table::UnitId},
};

/// The position of a walk: Kinds, then a Kind's keyspaces by age, then keys. Keys only ever move to a younger keyspace
/// than the one they were in, so the walk misses none.
#[derive(Debug, Default)]
pub(crate) struct Place {
    kind: usize,
    /// `None` = the Kind's own keyspace.
    unit: Option<UnitId>,
    after: Option<Key>,
}

impl Place {
    /// The beginning of a keyspace.
    pub(super) fn of(kind: KindId, unit: Option<UnitId>) -> Self {
        Self { kind: kind.0, unit, after: None }
    }
}

/// Selects the keyspaces of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walked {
    /// Those that the logs cover.
    Kept,
    /// Those of Kinds that a start would not find in the logs: Kinds of mode `none`, and Kinds whose new mode waits for
    /// its checkpoint.
    Unkept,
    /// All that were not dropped.
    All,
}

impl Space {
    /// Gives the records of the next keys; false when the walk is over.
    pub(crate) fn walk_slice(
        &self,
        at: &mut Place,
        walked: Walked,
        max_keys: usize,
        max_bytes: usize,
        give: &mut impl FnMut(Logged),
    ) -> bool {
        let (mut keys, mut bytes) = (0, 0);
        while at.kind < self.kinds.len() {
            if self.is_walked(at, walked) {
                let ended = self.walk_space(at, give, |versions, size| {
                    keys += versions;
                    bytes += size;
                    keys < max_keys.max(1) && bytes < max_bytes.max(1)
                });
                if !ended {
                    return true;
                }
            }
            self.next_space(at);
        }
        false
    }

    fn next_space(&self, at: &mut Place) {
        let parts = self.kind(KindId(at.kind)).parts.iter().map(|(id, _)| *id);
        let next = parts.filter(|id| at.unit.is_none_or(|unit| *id > unit)).min();
        *at = match next {
            Some(unit) => Place { unit: Some(unit), after: None, ..*at },
            None => Place { kind: at.kind + 1, ..Place::default() },
        };
    }

    /// Whether the walk covers this keyspace. Imports that are not opened are kept even in mode `none` (R15b).
    fn is_walked(&self, at: &Place, walked: Walked) -> bool {
        let state = at.unit.and_then(|unit| self.units.get(unit)).map(|record| record.state);
        match state {
            Some(UnitState::Dropping | UnitState::Gone) => false,
            Some(UnitState::Following { .. }) => walked != Walked::Unkept,
            _ => match walked {
                Walked::All => true,
                Walked::Kept => self.kind(KindId(at.kind)).mode != Durability::None,
                Walked::Unkept => self.mode_at_start(&self.kind(KindId(at.kind)).prefix) == Durability::None,
            },
        }
    }

    /// Gives the records of one keyspace until `goes_on` returns false. Returns whether the keyspace was finished.
    pub(super) fn walk_space(
        &self,
        at: &mut Place,
        give: &mut impl FnMut(Logged),
        mut goes_on: impl FnMut(usize, usize) -> bool,
    ) -> bool {
        let kind = self.kind(KindId(at.kind));
        let keys = match at.unit {
            None => Some(&kind.keys),
            Some(unit) => self.part(KindId(at.kind), unit),
        };
        let Some(keys) = keys else { return true };
        let floor = at.unit.and_then(|unit| self.units.get(unit)).map_or(self.floor, |record| record.floor);
        let start = at.after.as_ref().map_or_else(|| Key::copy_from(b""), Key::successor);
        for object in keys.walk(Span { start: &start, end: None }) {
            // While a unit is split off, an event may still be in the keyspace where its key was.
            let others = std::iter::once(&kind.keys).chain(kind.parts.iter().map(|(_, keys)| keys));
            let others: Vec<&Keyspace> = others.collect();
            let copied = keys.copied_from(object, floor, None, &others);
            let mut size = object.key().len();
            if let Some(copied) = copied {
                let versions = copied.versions;
                size += versions.iter().map(|version| version.encoded_len()).sum::<usize>();
                match self.units.number_of(at.unit, object.key()) {
                    0 => versions.into_iter().for_each(|version| give(Logged::Version(version))),
                    unit => give(Logged::Imported(Box::new(Imported { unit, versions }))),
                }
            }
            at.after = Some(Key::copy_from(object.key()));
            if !goes_on(1, size) {
                return false;
            }
        }
        true
    }
}
