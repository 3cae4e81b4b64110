//! The records of a shard, who may see what, and which requests they refuse.

use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::{
    ids::{LeaseId, MoveId, Revision, Term},
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, UnitError, UnitMove, UnitRecord, UnitState};
use crate::space::Splitting;

/// Which record; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UnitId(pub(crate) u64);

/// Moves whose terms are remembered.
const TERMS_MAX: usize = 4096;

/// What a reader sees of the units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum View {
    /// What is owned at the time of each read.
    Now,
    /// What was owned when a long read began: these, and what was since split off from what is seen.
    Since { next: UnitId, seen: Vec<UnitId> },
    /// As `Now`, with units that were owned when the reader's end was fixed, without those that came then.
    Ending { with: Vec<UnitId>, without: Vec<UnitId> },
    /// One unit and nothing else.
    Only(UnitId),
}

impl View {
    pub(crate) fn sees(&self, record: &Record) -> bool {
        match self {
            Self::Now => record.is_visible(),
            Self::Since { next, seen } if record.id < *next => seen.contains(&record.id),
            Self::Since { .. } => record.split,
            Self::Ending { with, without } => {
                with.contains(&record.id) || (record.is_visible() && !without.contains(&record.id))
            }
            Self::Only(id) => record.id == *id,
        }
    }

    /// Whether it sees what stands in no unit.
    pub(crate) fn sees_rest(&self) -> bool {
        !matches!(self, Self::Only(_))
    }

    fn ending(&mut self) -> (&mut Vec<UnitId>, &mut Vec<UnitId>) {
        if !matches!(self, Self::Ending { .. }) {
            *self = Self::Ending { with: Vec::new(), without: Vec::new() };
        }
        match self {
            Self::Ending { with, without } => (with, without),
            _ => unreachable!("made above"),
        }
    }

    /// Goes on to see a unit that is frozen.
    pub(crate) fn keep(&mut self, id: UnitId) {
        self.ending().0.push(id);
    }

    /// Does not see a unit that is opened.
    pub(crate) fn leave_out(&mut self, id: UnitId) {
        let (with, without) = self.ending();
        with.retain(|other| *other != id);
        without.push(id);
    }

    /// Whether it was kept although another store owns it.
    pub(crate) fn keeps(&self, id: UnitId) -> bool {
        matches!(self, Self::Ending { with, .. } if with.contains(&id))
    }
}

/// A record, as the engine keeps it.
pub(crate) struct Record {
    pub id: UnitId,
    pub by: UnitMove,
    pub state: UnitState,
    pub epoch: u64,
    /// Nothing of it below is readable.
    pub floor: Revision,
    /// It was split off from what was owned; else it was imported.
    pub split: bool,
    /// How far that is.
    pub splitting: Splitting,
    /// The highest event imported.
    pub newest: Revision,
    /// Imported keys whose leases are not known here yet.
    pub unattached: BTreeMap<LeaseId, BTreeSet<Key>>,
}

impl Record {
    pub(crate) fn is_visible(&self) -> bool {
        matches!(self.state, UnitState::Tracked { .. } | UnitState::Frozen { .. } | UnitState::Owned)
    }

    /// What stands in keyspaces of its own.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.state, UnitState::Tracked { ready: false } | UnitState::Gone)
    }

    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            UnitState::Tracked { .. } => "tracked",
            UnitState::Frozen { .. } => "frozen",
            UnitState::Following { sealed: None, .. } => "following",
            UnitState::Following { sealed: Some(_), .. } => "sealed",
            UnitState::Owned => "owned",
            UnitState::Dropping => "dropping",
            UnitState::Gone => "gone",
        }
    }

    /// The refusal of another state than this call wants.
    pub(crate) fn refuse(&self, call: &'static str) -> UnitError {
        UnitError::State { id: self.by.id, state: self.state_name(), call }
    }

    pub(crate) fn view(&self, keys: u64) -> UnitRecord {
        UnitRecord { by: self.by.clone(), state: self.state, epoch: self.epoch, keys, floor: self.floor }
    }
}

/// All records, the oldest first. Where units overlap, the newest record that holds a key decides over it.
pub(crate) struct Units {
    pub(crate) records: Vec<Record>,
    next: u64,
    terms: BTreeMap<MoveId, Term>,
}

impl Units {
    pub(crate) fn new() -> Self {
        Self { records: Vec::new(), next: 0, terms: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn next_id(&self) -> UnitId {
        UnitId(self.next)
    }

    pub(crate) fn get(&self, id: UnitId) -> Option<&Record> {
        self.records.iter().find(|record| record.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: UnitId) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.id == id)
    }

    pub(crate) fn add(&mut self, by: UnitMove, state: UnitState, floor: Revision, split: bool) -> UnitId {
        let id = self.next_id();
        self.next += 1;
        let (newest, unattached, splitting) = (Revision::ZERO, BTreeMap::new(), Splitting::default());
        self.records.push(Record { id, by, state, epoch: 0, floor, split, splitting, newest, unattached });
        id
    }

    pub(crate) fn remove(&mut self, id: UnitId) {
        self.records.retain(|record| record.id != id);
    }

    /// Fences coordinators that another has followed.
    pub(crate) fn fence(&mut self, by: &UnitMove) -> Result<(), UnitError> {
        match by.unit.range {
            KeyRange::Span { .. } if !by.unit.range.is_empty() => {}
            _ => return Err(UnitError::BadUnit),
        }
        let seen = self.terms.entry(by.id).or_insert(by.term);
        if by.term < *seen {
            return Err(UnitError::StaleTerm { id: by.id, term: by.term, seen: *seen });
        }
        *seen = by.term;
        if self.terms.len() > TERMS_MAX {
            self.terms.pop_first();
        }
        Ok(())
    }

    /// The newest record of exactly this unit.
    pub(crate) fn of(&self, unit: &Unit) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.by.unit == *unit)
    }

    /// Whether a newer record decides over a part of this one's unit, and has what stands there.
    pub(crate) fn is_overlaid(&self, record: &Record) -> bool {
        self.records.iter().any(|other| other.id > record.id && other.by.unit.overlaps_unit(&record.by.unit))
    }

    /// The record of this unit by this move.
    pub(crate) fn by(&mut self, by: &UnitMove) -> Result<&mut Record, UnitError> {
        self.fence(by)?;
        let found = self.records.iter_mut().rev().find(|r| r.by.id == by.id && r.by.unit == by.unit);
        let record = found.ok_or(UnitError::Unknown(by.id))?;
        record.by.term = by.term;
        Ok(record)
    }

    /// The record that decides over a key.
    pub(crate) fn deciding(&self, key: &[u8]) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.by.unit.contains(key))
    }

    /// Whether a request for one key is refused.
    pub(crate) fn check_key(&self, key: &Key, at: Option<Revision>) -> Result<(), NotOwned> {
        let Some(record) = self.deciding(key) else { return Ok(()) };
        let epoch = match record.state {
            UnitState::Tracked { .. } | UnitState::Owned => return Ok(()),
            UnitState::Frozen { last } if at.is_some_and(|at| at <= last) => return Ok(()),
            UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => 0,
            UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone => record.epoch,
        };
        Err(NotOwned { key: key.clone(), epoch })
    }

    /// Whether a request for a span is refused, by a map of this generation if one is named.
    pub(crate) fn check_span(
        &self,
        range: &KeyRange,
        generation: Option<u64>,
        at: Option<Revision>,
    ) -> Result<(), NotOwned> {
        let asked = Unit::of_range(range.clone());
        for record in self.records.iter().filter(|record| record.by.unit.overlaps(range)) {
            let refuse = |epoch| Err(NotOwned { key: range.start().clone(), epoch });
            match record.state {
                UnitState::Frozen { last } if at.is_some_and(|at| at <= last) => {}
                UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => return refuse(0),
                _ if generation.is_some_and(|generation| record.epoch > generation) => {
                    return refuse(record.epoch);
                }
                // Whatever map says that this store has it is not the one by which this store knows it.
                _ if !record.is_visible() && record.by.unit.covers(&asked) => return refuse(record.epoch),
                _ => {}
            }
        }
        Ok(())
    }

    /// The lowest final revision of what is frozen in a range: nothing above is shown of it.
    pub(crate) fn last_of(&self, range: &KeyRange) -> Option<Revision> {
        let frozen = self.records.iter().filter(|record| record.by.unit.overlaps(range));
        frozen
            .filter_map(|record| match record.state {
                UnitState::Frozen { last } => Some(last),
                _ => None,
            })
            .min()
    }

    /// Whether a range lies in one unit that decides over all of it: its floor is then the range's.
    pub(crate) fn floor_within(&self, range: &KeyRange) -> Option<Revision> {
        let asked = Unit::of_range(range.clone());
        let newest = match range {
            KeyRange::Single(key) => self.deciding(key),
            KeyRange::Span { .. } => self.records.iter().rev().find(|r| r.by.unit.overlaps(range)),
        };
        let decides =
            |record: &&Record| matches!(range, KeyRange::Single(_)) || record.by.unit.covers(&asked);
        newest.filter(decides).filter(|record| record.is_visible() && record.is_whole()).map(|r| r.floor)
    }

    /// A newer record's unit is not the older ones' any more, whose data moved to it or was dropped long ago.
    pub(crate) fn trim(&mut self, id: UnitId) {
        let Some(newer) = self.get(id).map(|record| record.by.unit.clone()) else { return };
        let (mut pieces, mut over) = (Vec::new(), Vec::new());
        for record in self.records.iter().filter(|record| record.id < id) {
            let rest = record.by.unit.minus(&newer);
            match (record.state, rest) {
                _ if !record.by.unit.overlaps_unit(&newer) => {}
                // A tombstone has no data, so it may go to pieces.
                (UnitState::Gone, Some(rest)) => {
                    over.push(record.id);
                    let piece = |unit| (UnitMove { unit, ..record.by.clone() }, record.epoch, record.floor);
                    pieces.extend(rest.into_iter().map(piece));
                }
                (UnitState::Owned, _) if newer.covers(&record.by.unit) => over.push(record.id),
                _ => {}
            }
        }
        self.records.retain(|record| !over.contains(&record.id));
        for (by, epoch, floor) in pieces {
            let id = self.add(by, UnitState::Gone, floor, false);
            if let Some(mut piece) = self.records.pop_if(|record| record.id == id) {
                piece.epoch = epoch;
                // It overlaps no other record's share of what was its unit's, so that its place does not matter.
                self.records.insert(0, piece);
            }
        }
    }
}
