//! The conversion of the records to and from their logged form.

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::unit::Unit;

use super::{Past, Record, UnitId, Units};
use crate::{
    durability::{DurableUnit, UnitEntry, UnitLayer, UnitTable},
    units::UnitState,
};

impl Record {
    /// The part of the record that must outlive the process. An import that is not sealed does not; of a unit that was
    /// given away only the tombstone does.
    fn durable(&self) -> Option<UnitEntry> {
        let state = match self.state {
            UnitState::Tracked { .. } => DurableUnit::Tracked,
            UnitState::Frozen { last } => DurableUnit::Frozen { last },
            UnitState::Following { sealed: Some(last), .. } => DurableUnit::Sealed { last },
            UnitState::Owned => DurableUnit::Owned,
            UnitState::Gone => DurableUnit::Gone,
            UnitState::Following { .. } | UnitState::Dropping if self.epoch > Epoch::NONE => {
                DurableUnit::Gone
            }
            UnitState::Following { .. } | UnitState::Dropping => return None,
        };
        let (number, by, epoch) = (self.id.0, self.by.clone(), self.epoch);
        let (floor, split, gaps) = (self.floor, self.split, self.gaps.clone());
        Some(UnitEntry { number, by, state, epoch, floor, split, gaps })
    }
}

impl Units {
    pub(crate) fn durable(&self) -> UnitTable {
        UnitTable {
            next: self.next,
            records: self.records.iter().filter_map(Record::durable).collect(),
            terms: self.terms.iter().map(|(id, term)| (*id, *term)).collect(),
            layers: self.layers.clone(),
        }
    }

    /// The durable table, if it differs from the one that was logged last.
    pub(crate) fn changed(&mut self) -> Option<UnitTable> {
        let mut table = self.durable();
        // Numbers used by imports that were never sealed are in no table and need not be remembered.
        if (&table.records, &table.terms, &table.layers)
            == (&self.logged.records, &self.logged.terms, &self.logged.layers)
        {
            return None;
        }
        std::mem::swap(&mut table, &mut self.logged);
        Some(self.logged.clone())
    }

    /// Notes that a unit is opened: the data of its record counts from now on.
    pub(crate) fn layer(&mut self, id: UnitId, fresh: bool, since: Revision) {
        let Some(unit) = self.get(id).map(|record| record.by.unit.clone()) else { return };
        let layer = UnitLayer { unit, number: id.0, fresh, since };
        self.layers.retain(|old| {
            let again = old.number == layer.number && old.unit == layer.unit;
            let over = fresh && layer.unit.covers(&old.unit);
            !again && !over
        });
        self.layers.push(layer);
    }

    /// The number under which a checkpoint writes a key that the keyspace of record `id` holds.
    pub(crate) fn number_of(&self, id: Option<UnitId>, key: &[u8]) -> u64 {
        match id.and_then(|id| self.get(id)) {
            Some(Record { id, state: UnitState::Following { .. }, .. }) => id.0,
            _ => {
                let layer = self.layers.iter().rev().find(|layer| layer.unit.contains(key));
                layer.map_or(0, |layer| layer.number)
            }
        }
    }

    /// Keeps a number from being used again although no durable record names it.
    pub(crate) fn next_is_above(&mut self, used: UnitId) {
        self.next = self.next.max(used.0 + 1);
    }

    /// The records after a restart. Units that were being split off have their own keyspaces at once.
    pub(crate) fn restore(table: UnitTable) -> Self {
        let mut units = Self::new();
        for entry in &table.records {
            let (by, epoch) = (entry.by.clone(), entry.epoch);
            let state = match entry.state {
                DurableUnit::Tracked => UnitState::Tracked { ready: true },
                DurableUnit::Frozen { last } => UnitState::Frozen { last },
                DurableUnit::Sealed { last } => UnitState::Following { through: last, sealed: Some(last) },
                DurableUnit::Owned => UnitState::Owned,
                DurableUnit::Gone => UnitState::Gone,
            };
            let newest = match entry.state {
                DurableUnit::Sealed { last } | DurableUnit::Frozen { last } => last,
                _ => Revision::ZERO,
            };
            units.next = entry.number;
            units.add(by, state, entry.floor, entry.split);
            if let Some(record) = units.records.last_mut() {
                (record.epoch, record.newest, record.gaps) = (epoch, newest, entry.gaps.clone());
                // The owners before the last switch are not logged.
                record.past = Past::since(epoch, record.is_visible());
            }
        }
        units.next = table.next.max(1);
        units.terms = table.terms.iter().copied().collect();
        units.layers.clone_from(&table.layers);
        units.logged = table;
        units
    }
}

impl UnitTable {
    /// Where a recovered version belongs that was logged under `number`: in no unit, or in the record at this index.
    /// `None` when it no longer counts, because another store has the key or newer data replaced it.
    pub(crate) fn place(&self, number: u64, key: &[u8], at: Revision, kept: bool) -> Option<Option<usize>> {
        let place = self.records.iter().rposition(|record| record.by.unit.contains(key));
        let record = place.and_then(|place| self.records.get(place));
        let sealed = match record.map(|record| (record, record.state)) {
            Some((_, DurableUnit::Gone)) => return None,
            Some((record, DurableUnit::Sealed { last })) => Some((record, last)),
            _ => None,
        };
        // A sealed import is kept until it is opened, whatever the Kind's mode (R15b).
        let fresh = sealed.is_some_and(|(record, _)| record.epoch == Epoch::NONE);
        if !kept && !fresh {
            return None;
        }
        let top = sealed.map(|(record, since)| (record.number, fresh, since));
        let layers = self.layers.iter().rev().filter(|layer| layer.unit.contains(key));
        for (of, fresh, since) in
            top.into_iter().chain(layers.map(|layer| (layer.number, layer.fresh, layer.since)))
        {
            if number == of {
                return Some(place);
            }
            if fresh && at <= since {
                return None;
            }
        }
        (number == 0).then_some(place)
    }

    /// The number of the unit of a key that was given away.
    pub(crate) fn given_away(&self, key: &[u8]) -> Option<u64> {
        let deciding = self.records.iter().rfind(|entry| entry.by.unit.contains(key))?;
        (deciding.state == DurableUnit::Gone).then_some(deciding.number)
    }

    /// Whether imports under this number are placed for good, because their unit is open here. The number of a unit that
    /// was given away counts again when it is imported again.
    pub(crate) fn has_opened(&self, number: u64) -> bool {
        match self.records.iter().find(|entry| entry.number == number).map(|entry| entry.state) {
            Some(DurableUnit::Sealed { .. } | DurableUnit::Gone) => false,
            Some(_) => true,
            None => self.layers.iter().any(|layer| layer.number == number),
        }
    }

    /// Whether this store wrote a version that was logged under `number`, and did not import it.
    pub(crate) fn is_own(&self, number: u64, key: &[u8], at: Revision) -> bool {
        let is_sealed =
            |entry: &UnitEntry| entry.number == number && matches!(entry.state, DurableUnit::Sealed { .. });
        let is_later = |layer: &UnitLayer| layer.unit.contains(key) && at > layer.since;
        number == 0
            || !self.records.iter().any(is_sealed)
                && self.layers.iter().any(|layer| layer.number == number && is_later(layer))
    }

    /// The revision up to which everything of a unit was on the disk before this store opened it (R15b).
    pub(crate) fn taken_over(&self, unit: &Unit) -> Option<Revision> {
        let layers = self.layers.iter().filter(|layer| layer.unit.covers(unit));
        layers.map(|layer| layer.since).max()
    }
}
