//! The records of a shard, who may see what, and which requests they refuse.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kindred_partition_config::{
    ids::{LeaseId, MoveId, Revision, Term},
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, UnitError, UnitMove, UnitRecord, UnitState};
use crate::{
    durability::{Gap, UnitLayer, UnitTable},
    space::Splitting,
};

mod durable;
mod past;
mod pseudo;

pub(crate) use self::past::{Past, Readers};

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
    /// What was owned when a long read began: these, and what was since split off from what is seen; without the keys of
    /// `opened`, which came later.
    Since { next: UnitId, seen: Vec<UnitId>, turn: u64, opened: Vec<Unit> },
    /// As `Now`, with units that were owned when the reader's end was fixed, without the keys of those that came then.
    Ending { with: Vec<UnitId>, opened: Vec<Unit> },
    /// What was owned by another map: of what is owned now without some, and with some that another store owns now.
    ByMap { with: Vec<UnitId>, without: Vec<UnitId> },
    /// One unit and nothing else.
    Only(UnitId),
}

impl View {
    pub(crate) fn sees(&self, record: &Record) -> bool {
        match self {
            Self::Now => record.is_visible(),
            Self::Since { .. } => self.saw(record.id, record.split),
            Self::Ending { with, .. } => with.contains(&record.id) || record.is_visible(),
            Self::ByMap { with, without } => {
                with.contains(&record.id) || (record.is_visible() && !without.contains(&record.id))
            }
            Self::Only(id) => record.id == *id,
        }
    }

    fn saw(&self, id: UnitId, split: bool) -> bool {
        match self {
            Self::Since { next, seen, .. } => {
                if id < *next {
                    seen.contains(&id)
                } else {
                    split
                }
            }
            _ => false,
        }
    }

    /// Whether it sees no key of this name, wherever it may stand by now.
    pub(crate) fn leaves_out(&self, key: &[u8]) -> bool {
        match self {
            Self::Since { opened, .. } | Self::Ending { opened, .. } => {
                opened.iter().any(|unit| unit.contains(key))
            }
            Self::Now | Self::ByMap { .. } | Self::Only(_) => false,
        }
    }

    /// Whether it sees what stands in no unit.
    pub(crate) fn sees_rest(&self) -> bool {
        !matches!(self, Self::Only(_))
    }

    fn ending(&mut self) -> (&mut Vec<UnitId>, &mut Vec<Unit>) {
        if !matches!(self, Self::Ending { .. }) {
            *self = Self::Ending { with: Vec::new(), opened: Vec::new() };
        }
        match self {
            Self::Ending { with, opened } => (with, opened),
            _ => unreachable!("made above"),
        }
    }

    /// Goes on to see a unit that is frozen.
    pub(crate) fn keep(&mut self, id: UnitId) {
        self.ending().0.push(id);
    }

    /// Does not see a unit that is opened, unless it saw it before it was released: that is the same again.
    pub(crate) fn leave_out(&mut self, id: UnitId, unit: &Unit) {
        let (with, opened) = self.ending();
        if !with.contains(&id) {
            opened.push(unit.clone());
        }
    }

    /// Whether it was kept although another store owns it.
    pub(crate) fn keeps(&self, id: UnitId) -> bool {
        matches!(self, Self::Ending { with, .. } if with.contains(&id))
    }
}

/// A unit came or its data went: what long reads must know that began before.
struct Turn {
    number: u64,
    id: UnitId,
    split: bool,
    unit: Unit,
    /// The epoch by which its data was dropped; `None` when it came.
    lost: Option<u64>,
}

/// As many turns are remembered; a read that began before them is refused.
const TURNS_MAX: usize = 256;

/// Who is to delete a key whose lease is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This store.
    Ours,
    /// That is being decided.
    Undecided,
    /// Another store, whose deletion comes to this unit.
    Copied(UnitId),
    /// Another store.
    Gone,
}

/// How far a target has made room for a unit.
#[derive(Debug, Clone)]
pub(crate) enum Room {
    /// No key of it may exist; these are still to be looked at.
    Look(KeyRange),
    /// What is left of keys that existed once is removed.
    Clear(Splitting),
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
    /// By which maps it was owned.
    pub past: Past,
    /// Another store owns it since this final revision, and up to there everything is here.
    pub settled: Option<Revision>,
    /// Who still reads that.
    pub readers: Readers,
    /// The highest event imported.
    pub newest: Revision,
    /// Target: how far what this store held of it before is removed; `None` when all is.
    pub clearing: Option<Room>,
    /// Revisions of which something of it may be lost.
    pub gaps: Vec<Gap>,
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
    /// What was opened here.
    pub(crate) layers: Vec<UnitLayer>,
    /// The table that was logged last.
    logged: UnitTable,
    turns: VecDeque<Turn>,
    turn: u64,
    /// Several calls are being made as one: the table is logged behind the last.
    pub(crate) held: bool,
}

impl Units {
    pub(crate) fn new() -> Self {
        Self {
            records: Vec::new(),
            // Zero is the number of what no unit imported.
            next: 1,
            terms: BTreeMap::new(),
            layers: Vec::new(),
            logged: UnitTable { next: 1, ..UnitTable::default() },
            turns: VecDeque::new(),
            turn: 0,
            held: false,
        }
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
        let (clearing, gaps) = (None, Vec::new());
        let epoch = 0;
        self.records.push(Record {
            id,
            by,
            state,
            epoch,
            floor,
            split,
            splitting,
            past: Past::default(),
            settled: None,
            readers: Readers::default(),
            newest,
            clearing,
            gaps,
            unattached,
        });
        id
    }

    pub(crate) fn remove(&mut self, id: UnitId) {
        self.records.retain(|record| record.id != id);
    }

    /// Notes that a unit is seen from now on, or (`lost`, the epoch of who has it) that its data goes.
    pub(crate) fn turned(&mut self, id: UnitId, lost: Option<u64>) {
        let Some(record) = self.get(id) else { return };
        let (split, unit) = (record.split, record.by.unit.clone());
        self.turn += 1;
        self.turns.push_back(Turn { number: self.turn, id, split, unit, lost });
        if self.turns.len() > TURNS_MAX {
            self.turns.pop_front();
        }
    }

    /// The view of a long read that begins now with this one.
    pub(crate) fn since(&self, view: &View) -> View {
        let seen = self.records.iter().filter(|record| view.sees(record)).map(|record| record.id).collect();
        let opened = match view {
            // By name, as what is split off from them later is not seen either.
            View::ByMap { without, .. } => {
                let left_out = without.iter().filter_map(|id| self.get(*id));
                left_out.map(|record| record.by.unit.clone()).collect()
            }
            _ => Vec::new(),
        };
        View::Since { next: self.next_id(), seen, turn: self.turn, opened }
    }

    /// Brings the view of a long read, of which this is left, up to date; refused when keys that it saw are dropped.
    pub(crate) fn go_on(&self, view: &mut View, left: &KeyRange) -> Result<(), NotOwned> {
        let View::Since { turn: known, .. } = &*view else { return Ok(()) };
        let known = *known;
        if known == self.turn {
            return Ok(());
        }
        let refuse = |epoch| Err(NotOwned { key: left.start().clone(), epoch });
        if self.turns.front().is_none_or(|first| first.number > known + 1) {
            return refuse(0);
        }
        let mut came = Vec::new();
        for turn in self.turns.iter().filter(|turn| turn.number > known) {
            match turn.lost {
                Some(epoch) if view.saw(turn.id, turn.split) && turn.unit.overlaps(left) => {
                    return refuse(epoch);
                }
                None if !view.saw(turn.id, turn.split) => came.push(turn.unit.clone()),
                _ => {}
            }
        }
        if let View::Since { turn, opened, .. } = view {
            *turn = self.turn;
            opened.append(&mut came);
        }
        Ok(())
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

    /// The highest number of a move that was heard of.
    pub(crate) fn highest_move(&self) -> Option<MoveId> {
        let of_records = self.records.iter().map(|record| record.by.id);
        of_records.chain(self.terms.last_key_value().map(|(id, _)| *id)).max()
    }

    /// The record of exactly this unit that decides over all of it.
    pub(crate) fn of(&self, unit: &Unit) -> Option<&Record> {
        let newest = self.records.iter().rev().find(|record| record.by.unit.overlaps_unit(unit))?;
        (newest.by.unit == *unit).then_some(newest)
    }

    /// The records that decide over some key of a unit, and what none decides over.
    pub(crate) fn over(&self, unit: &Unit) -> (Vec<&Record>, Vec<Unit>) {
        let (mut found, mut rest) = (Vec::new(), vec![unit.clone()]);
        for record in self.records.iter().rev() {
            if rest.iter().any(|piece| piece.overlaps_unit(&record.by.unit)) {
                found.push(record);
                rest = without(rest, &record.by.unit);
            }
        }
        (found, rest)
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
            UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone => record.changed(),
        };
        Err(NotOwned { key: key.clone(), epoch })
    }

    /// Who is to delete a key whose lease is over.
    pub(crate) fn whose(&self, key: &Key) -> Whose {
        let Some(record) = self.deciding(key) else { return Whose::Ours };
        match record.state {
            UnitState::Tracked { .. } | UnitState::Owned => Whose::Ours,
            UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => Whose::Undecided,
            UnitState::Following { .. } => Whose::Copied(record.id),
            UnitState::Dropping | UnitState::Gone => Whose::Gone,
        }
    }

    /// Whether a key counts among those of a lease here, for who goes by the map of this generation; refused while nobody
    /// serves it (R13), and by a map that is too old to know where it is.
    pub(crate) fn lists(&self, key: &Key, generation: Option<u64>) -> Result<bool, NotOwned> {
        let Some(record) = self.deciding(key) else { return Ok(true) };
        let refuse = |epoch| Err(NotOwned { key: key.clone(), epoch });
        match record.state {
            UnitState::Tracked { .. } | UnitState::Owned => Ok(true),
            UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => refuse(0),
            _ if generation.is_some_and(|generation| record.changed() > generation) => {
                refuse(record.changed())
            }
            UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone => Ok(false),
        }
    }

    /// Whether a request for a span is refused, by a map of this generation if one is named.
    pub(crate) fn check_span(&self, range: &KeyRange, generation: Option<u64>) -> Result<(), NotOwned> {
        let asked = Unit::of_range(range.clone());
        let newest = self.records.iter().rev().find(|record| record.by.unit.overlaps(range)).map(|r| r.id);
        for record in self.records.iter().filter(|record| record.by.unit.overlaps(range)) {
            let refuse = |epoch| Err(NotOwned { key: range.start().clone(), epoch });
            match record.state {
                UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => return refuse(0),
                _ if generation.is_some_and(|generation| record.changed() > generation) => {
                    return refuse(record.changed());
                }
                // Whatever map says that this store has it is not the one by which this store knows it.
                _ if !record.is_visible() && newest == Some(record.id) && record.by.unit.covers(&asked) => {
                    return refuse(record.changed());
                }
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

    /// What newer records decide over altogether is not the older ones' any more: their data moved there, or was dropped.
    /// Answers those that are gone for that.
    pub(crate) fn trim(&mut self, id: UnitId) -> Vec<UnitId> {
        let Some(place) = self.records.iter().position(|record| record.id == id) else { return Vec::new() };
        let newer = self.records.split_off(place);
        let Some(unit) = newer.first().map(|record| record.by.unit.clone()) else { return Vec::new() };
        let mut over = Vec::new();
        for record in std::mem::take(&mut self.records) {
            if !record.by.unit.overlaps_unit(&unit) {
                self.records.push(record);
                continue;
            }
            match record.state {
                // A tombstone has no data, so it may go to pieces, which stand where it stood.
                UnitState::Gone => {
                    let rest = record.by.unit.minus(&unit).unwrap_or_else(|| vec![record.by.unit.clone()]);
                    for unit in rest {
                        let by = UnitMove { unit, ..record.by.clone() };
                        self.add(by, UnitState::Gone, record.floor, false);
                        if let Some(piece) = self.records.last_mut() {
                            (piece.epoch, piece.gaps) = (record.epoch, record.gaps.clone());
                            piece.past = record.past.clone();
                        }
                    }
                }
                _ => self.records.push(record),
            }
        }
        self.records.extend(newer);
        for (place, record) in self.records.iter().enumerate() {
            // What the unit does not touch is as it was.
            if record.state != UnitState::Owned || !record.by.unit.overlaps_unit(&unit) {
                continue;
            }
            let newer = self
                .records
                .iter()
                .skip(place + 1)
                .filter(|newer| newer.state == UnitState::Gone || newer.is_whole());
            let rest = newer.fold(vec![record.by.unit.clone()], |rest, newer| without(rest, &newer.by.unit));
            if rest.is_empty() {
                over.push(record.id);
            }
        }
        self.records.retain(|record| !over.contains(&record.id));
        over
    }
}

/// What of these units is not the other's.
fn without(units: Vec<Unit>, other: &Unit) -> Vec<Unit> {
    units.into_iter().flat_map(|unit| unit.minus(other).unwrap_or_else(|| vec![unit])).collect()
}
