//! The table of a shard's unit records: which units a reader sees, and which requests are refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kindred_partition_config::{
    ids::{Epoch, LeaseId, MoveId, Revision, Term},
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, UnitError, UnitMove, UnitRecord, UnitState};
use crate::{
    durability::{UnitLayer, UnitTable},
    pages::Sight,
    types::Gap,
};

mod durable;
mod past;
mod pseudo;
mod splitting;

pub(crate) use self::{
    past::{Past, Readers},
    splitting::Splitting,
};

/// Number of a record; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UnitId(pub(crate) u64);

/// Moves whose highest term is remembered.
const TERMS_MAX: usize = 4096;

/// Which units a reader sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum View {
    /// The units that are owned at the time of each read.
    Now,
    /// The units that were visible when a long read began: `seen`, and every unit split off since from what it sees. It
    /// leaves out the keys of the units in `opened`, which became visible later.
    Since { next: UnitId, seen: Vec<UnitId>, turn: u64, opened: Vec<Unit> },
    /// As `Now`, plus the units that were frozen here since the reader's end was fixed (`with`), less the keys of those
    /// that were opened (`opened`).
    Ending { with: Vec<UnitId>, opened: Vec<Unit> },
    /// The units that were owned by the map of an older generation: those owned now except `without`, and the units
    /// `with`, which another store owns now.
    ByMap { with: Vec<UnitId>, without: Vec<UnitId> },
    /// One unit alone.
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

    /// Whether the view excludes this key, whatever keyspace now holds it.
    pub(crate) fn leaves_out(&self, key: &[u8]) -> bool {
        match self {
            Self::Since { opened, .. } | Self::Ending { opened, .. } => {
                opened.iter().any(|unit| unit.contains(key))
            }
            Self::Now | Self::ByMap { .. } | Self::Only(_) => false,
        }
    }

    /// Whether the view includes the keys that are in no unit.
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

    /// Keeps a unit visible that is being frozen.
    pub(crate) fn keep(&mut self, id: UnitId) {
        self.ending().0.push(id);
    }

    /// Excludes a unit that is being opened, unless the view kept it when it was frozen: then it still sees that unit.
    pub(crate) fn leave_out(&mut self, id: UnitId, unit: &Unit) {
        let (with, opened) = self.ending();
        if !with.contains(&id) {
            opened.push(unit.clone());
        }
    }

    /// Whether the view keeps a unit although another store may own it.
    pub(crate) fn keeps(&self, id: UnitId) -> bool {
        matches!(self, Self::Ending { with, .. } if with.contains(&id))
    }
}

/// A unit became visible or its data was dropped: long reads that began before must take note.
struct Turn {
    number: u64,
    id: UnitId,
    split: bool,
    unit: Unit,
    /// The epoch under which the data was dropped; `None` if the unit became visible.
    lost: Option<Epoch>,
}

/// Turns that are remembered. A read that has missed one that is forgotten is refused.
const TURNS_MAX: usize = 256;

/// Which store deletes a key whose lease has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This store does.
    Ours,
    /// A switch is in progress.
    Undecided,
    /// Another store does; its deletion event is imported into this unit.
    Copied(UnitId),
    /// Another store does; the unit's data is not kept here.
    Gone,
}

/// The progress of a target in making room for a unit.
#[derive(Debug, Clone)]
pub(crate) enum Room {
    /// No key of the unit may be live here; this range is still to be checked.
    Look(KeyRange),
    /// The history of deleted keys of the unit is being removed.
    Clear(Splitting),
}

/// A unit's record as the engine keeps it.
pub(crate) struct Record {
    pub id: UnitId,
    pub by: UnitMove,
    pub state: UnitState,
    pub epoch: Epoch,
    /// The lowest readable revision of the unit.
    pub floor: Revision,
    /// Whether the unit was split off from owned keys; otherwise it was imported.
    pub split: bool,
    /// The progress of splitting it off.
    pub splitting: Splitting,
    /// The map generations by which this store owned the unit.
    pub past: Past,
    /// The final revision at which another store became the owner; this store holds everything up to it.
    pub settled: Option<Revision>,
    /// The reads that still use the unit's data here.
    pub readers: Readers,
    /// The revision of the newest imported event.
    pub newest: Revision,
    /// Target: the progress of removing older data of the unit's keys; `None` when done.
    pub clearing: Option<Room>,
    /// Revision intervals of which events of the unit may be lost (R10).
    pub gaps: Vec<Gap>,
    /// Imported keys whose leases are not known to this shard yet.
    pub unattached: BTreeMap<LeaseId, BTreeSet<Key>>,
}

impl Record {
    pub(crate) fn is_visible(&self) -> bool {
        matches!(self.state, UnitState::Tracked { .. } | UnitState::Frozen { .. } | UnitState::Owned)
    }

    /// Whether all of the unit's keys are in keyspaces of its own.
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

    /// The refusal of a call that the unit's state does not allow.
    pub(crate) fn refuse(&self, call: &'static str) -> UnitError {
        UnitError::State { id: self.by.id, state: self.state_name(), call }
    }

    pub(crate) fn view(&self, keys: u64) -> UnitRecord {
        UnitRecord { by: self.by.clone(), state: self.state, epoch: self.epoch, keys, floor: self.floor }
    }
}

/// All records, oldest first. Where units overlap, the newest record that contains a key decides over it.
pub(crate) struct Units {
    pub(crate) records: Vec<Record>,
    next: u64,
    terms: BTreeMap<MoveId, Term>,
    /// The units that were opened here, oldest first.
    pub(crate) layers: Vec<UnitLayer>,
    /// The table as it was last logged.
    logged: UnitTable,
    turns: VecDeque<Turn>,
    turn: u64,
    /// Number of releases so far.
    released: u64,
    /// Whether the table is not logged until [`crate::engine::Engine::log_units_held`].
    pub(crate) held: bool,
}

impl Units {
    pub(crate) fn new() -> Self {
        Self {
            records: Vec::new(),
            // Zero is the number of data that no unit imported.
            next: 1,
            terms: BTreeMap::new(),
            layers: Vec::new(),
            logged: UnitTable { next: 1, ..UnitTable::default() },
            turns: VecDeque::new(),
            turn: 0,
            released: 0,
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
        let epoch = Epoch::NONE;
        self.records.push(Record {
            id,
            by,
            state,
            epoch,
            floor,
            split,
            splitting,
            past: Past::since(Epoch::NONE, false),
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

    /// A token that changes whenever the units visible to [`View::Now`] may change: when a unit is opened or released,
    /// and when a new record may hide the keys of an older one.
    pub(crate) fn sight(&self) -> Sight {
        (self.turn, self.next, self.released)
    }

    /// Notes that a unit was released, so [`View::Now`] sees it no more.
    pub(crate) fn hidden(&mut self) {
        self.released += 1;
    }

    /// Notes that a unit becomes visible, or that its data is dropped (`lost` = the epoch under which another store
    /// owns it).
    pub(crate) fn turned(&mut self, id: UnitId, lost: Option<Epoch>) {
        let Some(record) = self.get(id) else { return };
        let (split, unit) = (record.split, record.by.unit.clone());
        self.turn += 1;
        self.turns.push_back(Turn { number: self.turn, id, split, unit, lost });
        if self.turns.len() > TURNS_MAX {
            self.turns.pop_front();
        }
    }

    /// The view of a long read that begins now with `view`.
    pub(crate) fn since(&self, view: &View) -> View {
        let seen = self.records.iter().filter(|record| view.sees(record)).map(|record| record.id).collect();
        let opened = match view {
            // As units and not record numbers, because what is split off from them later is not seen either.
            View::ByMap { without, .. } => {
                let left_out = without.iter().filter_map(|id| self.get(*id));
                left_out.map(|record| record.by.unit.clone()).collect()
            }
            _ => Vec::new(),
        };
        View::Since { next: self.next_id(), seen, turn: self.turn, opened }
    }

    /// Updates the view of a long read that has `left` still to read. Refused when keys that it saw there were dropped.
    pub(crate) fn go_on(&self, view: &mut View, left: &KeyRange) -> Result<(), NotOwned> {
        let View::Since { turn: known, .. } = &*view else { return Ok(()) };
        let known = *known;
        if known == self.turn {
            return Ok(());
        }
        let refuse = |epoch| Err(NotOwned { key: left.start().clone(), epoch });
        if self.turns.front().is_none_or(|first| first.number > known + 1) {
            return refuse(Epoch::NONE);
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

    /// Refuses a move's call whose term is below the highest seen, and a unit whose range is empty or not a span.
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

    /// The highest move number in the records and the remembered terms.
    pub(crate) fn highest_move(&self) -> Option<MoveId> {
        let of_records = self.records.iter().map(|record| record.by.id);
        of_records.chain(self.terms.last_key_value().map(|(id, _)| *id)).max()
    }

    /// The newest record that overlaps the unit, if it is of exactly this unit.
    pub(crate) fn of(&self, unit: &Unit) -> Option<&Record> {
        let newest = self.records.iter().rev().find(|record| record.by.unit.overlaps_unit(unit))?;
        (newest.by.unit == *unit).then_some(newest)
    }

    /// The records that decide over some key of a unit, and the rest of the unit, over which none decides.
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

    /// The record of this unit and move, whose term is updated.
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

    /// Refuses a request for one key that is not owned; keys of a frozen unit stay readable at or below its final
    /// revision.
    pub(crate) fn check_key(&self, key: &Key, at: Option<Revision>) -> Result<(), NotOwned> {
        let Some(record) = self.deciding(key) else { return Ok(()) };
        let epoch = match record.state {
            UnitState::Tracked { .. } | UnitState::Owned => return Ok(()),
            UnitState::Frozen { last } if at.is_some_and(|at| at <= last) => return Ok(()),
            UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => Epoch::NONE,
            UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone => record.changed(),
        };
        Err(NotOwned { key: key.clone(), epoch })
    }

    /// Which store deletes a key whose lease has ended.
    pub(crate) fn whose(&self, key: &Key) -> Whose {
        let Some(record) = self.deciding(key) else { return Whose::Ours };
        match record.state {
            UnitState::Tracked { .. } | UnitState::Owned => Whose::Ours,
            UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => Whose::Undecided,
            UnitState::Following { .. } => Whose::Copied(record.id),
            UnitState::Dropping | UnitState::Gone => Whose::Gone,
        }
    }

    /// Whether a key is listed here among its lease's keys, for a request by the map of `generation`. Refused while no
    /// store serves the key (R13), and by a map that is older than the key's last change of owner.
    pub(crate) fn lists(&self, key: &Key, generation: Option<Epoch>) -> Result<bool, NotOwned> {
        let Some(record) = self.deciding(key) else { return Ok(true) };
        let refuse = |epoch| Err(NotOwned { key: key.clone(), epoch });
        match record.state {
            UnitState::Tracked { .. } | UnitState::Owned => Ok(true),
            UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => refuse(Epoch::NONE),
            _ if generation.is_some_and(|generation| record.changed() > generation) => {
                refuse(record.changed())
            }
            UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone => Ok(false),
        }
    }

    /// Refuses a request for a span that touches a switch in progress, or by a map that is older than a change of owner
    /// in it.
    pub(crate) fn check_span(&self, range: &KeyRange, generation: Option<Epoch>) -> Result<(), NotOwned> {
        let asked = Unit::of_range(range.clone());
        let newest = self.records.iter().rev().find(|record| record.by.unit.overlaps(range)).map(|r| r.id);
        for record in self.records.iter().filter(|record| record.by.unit.overlaps(range)) {
            let refuse = |epoch| Err(NotOwned { key: range.start().clone(), epoch });
            match record.state {
                UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => {
                    return refuse(Epoch::NONE);
                }
                _ if generation.is_some_and(|generation| record.changed() > generation) => {
                    return refuse(record.changed());
                }
                // The span lies in one unit that is not owned here: the sender's map is not the one by which this store
                // knows it.
                _ if !record.is_visible() && newest == Some(record.id) && record.by.unit.covers(&asked) => {
                    return refuse(record.changed());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The lowest final revision of the frozen units in a range: nothing of the range is shown above it.
    pub(crate) fn last_of(&self, range: &KeyRange) -> Option<Revision> {
        let frozen = self.records.iter().filter(|record| record.by.unit.overlaps(range));
        frozen
            .filter_map(|record| match record.state {
                UnitState::Frozen { last } => Some(last),
                _ => None,
            })
            .min()
    }

    /// Removes from older records what the record `id` and its successors decide over: its data was moved or dropped.
    /// Returns the owned records that are covered completely and therefore removed.
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
                // A tombstone has no data, so it may be cut into pieces, which take its place.
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
            // Records that do not overlap the unit are unchanged.
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

/// The parts of `units` outside `other`.
fn without(units: Vec<Unit>, other: &Unit) -> Vec<Unit> {
    units.into_iter().flat_map(|unit| unit.minus(other).unwrap_or_else(|| vec![unit])).collect()
}
