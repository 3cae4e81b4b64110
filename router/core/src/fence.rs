//! The fence of a stock etcd (R13): a value under one of its keys that serves as a shard's table of units does.
//!
//! A stock etcd does not know which of its keys it owns. So every request of a router compares the mod revision of the
//! fence key. The etcd thereby refuses requests of routers that do not know the newest fence, however long these have
//! heard nothing. A coordinator freezes a unit by a write of the fence: from its revision on, no request made under an
//! earlier fence is executed.
//!
//! Every change is a function from one value to the next. The caller writes the result with a compare on the revision
//! that it has read.

use bytes::Bytes;
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Term},
    key::KeyRange,
    transfers::Transfer,
    unit::Unit,
};
use serde::{Deserialize, Serialize};

/// The version of the value that this code writes, and the only one that it reads.
pub const FENCE_VERSION: u32 = 1;

/// The value of the fence key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FenceDoc {
    version: u32,
    records: Vec<FenceRecord>,
}

impl Default for FenceDoc {
    fn default() -> Self {
        Self { version: FENCE_VERSION, records: Vec::new() }
    }
}

/// The state of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FenceRecord {
    #[serde(rename = "move")]
    id: MoveId,
    /// The highest term that was seen of the move.
    term: Term,
    transfer: Transfer,
    state: FenceState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FenceState {
    /// The etcd serves the unit.
    Open,
    /// The etcd executes no request for the unit (R15a).
    Frozen {
        /// The revision of the freeze in the target's clock, above which the new owner assigns.
        last: Revision,
    },
    /// Another store owns the unit.
    Moved {
        /// The generation of the map since which it does.
        epoch: Epoch,
    },
    /// The unit is coming from another store, which serves it.
    Taking {
        /// The last revision of the unit at that store, once all of it is here.
        sealed: Option<Revision>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// A newer coordinator of the move has been here.
    #[error("move {id} has a coordinator of term {seen}, this is term {term}; stop")]
    Stale {
        id: MoveId,
        /// The term of the call.
        term: Term,
        /// The highest term seen.
        seen: Term,
    },
    /// The fence has no record of this unit for the move, which has not begun here or has ended.
    #[error("move {0}: the etcd's fence has no record of the unit")]
    Unknown(MoveId),
    /// The unit's state does not allow the change.
    #[error("move {id}: the unit is {state} at the etcd, by move {other}")]
    State {
        id: MoveId,
        /// The unit's state.
        state: &'static str,
        /// The move that set it.
        other: MoveId,
    },
    /// The value cannot be parsed, or has another version.
    #[error("the fence key of the etcd cannot be read: {0}")]
    Malformed(String),
}

impl FenceState {
    const fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Frozen { .. } => "frozen",
            Self::Moved { .. } => "moved",
            Self::Taking { .. } => "being taken",
        }
    }
}

/// A unit of a move, with the coordinator's term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedUnit {
    pub id: MoveId,
    /// The coordinator's term.
    pub term: Term,
    pub transfer: Transfer,
}

impl FenceDoc {
    /// Parses the value; an empty one is that of a key that does not exist.
    ///
    /// # Errors
    /// When it is malformed or has another version.
    pub fn read(value: &[u8]) -> Result<Self, FenceError> {
        if value.is_empty() {
            return Ok(Self::default());
        }
        let doc: Self =
            serde_json::from_slice(value).map_err(|error| FenceError::Malformed(error.to_string()))?;
        match doc.version {
            FENCE_VERSION => Ok(doc),
            other => Err(FenceError::Malformed(format!("it is of version {other}"))),
        }
    }

    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the value has string keys only and nothing that fails to serialise")
    }

    /// Whether no unit is frozen or moved.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.records.iter().all(|record| record.state == FenceState::Open)
    }

    /// Whether requests for a key or range are refused. Returns the generation of the map since which another store
    /// owns keys of it; 0 while that is being decided.
    #[must_use]
    pub fn refuses(&self, key: &[u8], range_end: &[u8]) -> Option<Epoch> {
        let range = KeyRange::from_wire(Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
        let touched = self.records.iter().filter(|record| record.transfer.unit.overlaps(&range));
        touched
            .filter_map(|record| match record.state {
                FenceState::Open => None,
                FenceState::Frozen { .. } | FenceState::Taking { .. } => Some(Epoch::NONE),
                FenceState::Moved { epoch } => Some(epoch),
            })
            .min()
    }

    /// The ranges that have moved away and are not being taken back.
    #[must_use]
    pub fn moved(&self) -> Vec<KeyRange> {
        let units = |wanted: fn(&FenceState) -> bool| {
            self.records
                .iter()
                .filter(move |record| wanted(&record.state))
                .map(|record| &record.transfer.unit)
        };
        let taken: Vec<_> = units(|state| matches!(state, FenceState::Taking { .. })).collect();
        let moved = units(|state| matches!(state, FenceState::Moved { .. }));
        let stays = moved.filter(|unit| !taken.iter().any(|taken| taken.overlaps_unit(unit)));
        stays.map(|unit| unit.range.clone()).collect()
    }

    /// The state of a unit in a move's record.
    #[must_use]
    pub fn state(&self, id: MoveId, unit: &Unit) -> Option<FenceState> {
        let is_it = |record: &&FenceRecord| record.id == id && record.transfer.unit == *unit;
        self.records.iter().find(is_it).map(|record| record.state)
    }

    /// The record of a unit for a move. Checks the term against the highest one seen, and raises that.
    fn of(&mut self, by: &FencedUnit) -> Result<&mut FenceRecord, FenceError> {
        let is_it =
            |record: &&mut FenceRecord| record.id == by.id && record.transfer.unit == by.transfer.unit;
        let record = self.records.iter_mut().find(is_it).ok_or(FenceError::Unknown(by.id))?;
        if by.term < record.term {
            return Err(FenceError::Stale { id: by.id, term: by.term, seen: record.term });
        }
        record.term = by.term;
        Ok(record)
    }

    /// Begins the move of a unit, or continues it under another coordinator. Only a tracked unit can be frozen.
    ///
    /// # Errors
    /// When the term is outdated, or another move has frozen or moved keys of the unit.
    pub fn track(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => {}
            found => return found.map(drop),
        }
        let others =
            self.records.iter().filter(|record| record.transfer.unit.overlaps_unit(&by.transfer.unit));
        if let Some(other) = others.into_iter().find(|record| record.state != FenceState::Open) {
            let (state, other) = (other.state.word(), other.id);
            return Err(FenceError::State { id: by.id, state, other });
        }
        // Open records of other moves are leftovers.
        self.records.retain(|record| !record.transfer.unit.overlaps_unit(&by.transfer.unit));
        let (id, term, transfer) = (by.id, by.term, by.transfer.clone());
        self.records.push(FenceRecord { id, term, transfer, state: FenceState::Open });
        Ok(())
    }

    /// Freezes the unit: from the revision of this write on, the etcd executes nothing of it, and the new owner assigns
    /// above `last`. Returns the `last` that counts, the earlier one if the unit is frozen already.
    ///
    /// # Errors
    /// When the term is outdated, the move does not track the unit, or the unit has moved.
    pub fn freeze(&mut self, by: &FencedUnit, last: Revision) -> Result<Revision, FenceError> {
        let record = self.of(by)?;
        match record.state {
            FenceState::Open => {
                record.state = FenceState::Frozen { last };
                Ok(last)
            }
            FenceState::Frozen { last } => Ok(last),
            state @ (FenceState::Moved { .. } | FenceState::Taking { .. }) => {
                Err(FenceError::State { id: by.id, state: state.word(), other: by.id })
            }
        }
    }

    /// Serves the unit again after a committed abort of the attempt (R15). Does nothing if it is unknown or not frozen.
    ///
    /// # Errors
    /// When the term is outdated.
    pub fn unfreeze(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => Ok(()),
            Err(refused) => Err(refused),
            Ok(record) => {
                if matches!(record.state, FenceState::Frozen { .. }) {
                    record.state = FenceState::Open;
                }
                Ok(())
            }
        }
    }

    /// Hands the unit over after the decision: another store owns it since the map of this generation.
    ///
    /// # Errors
    /// When the term is outdated, or the unit is not frozen.
    pub fn release(&mut self, by: &FencedUnit, epoch: Epoch) -> Result<(), FenceError> {
        let record = self.of(by)?;
        match record.state {
            FenceState::Frozen { .. } | FenceState::Moved { .. } => {
                record.state = FenceState::Moved { epoch };
                Ok(())
            }
            state @ (FenceState::Open | FenceState::Taking { .. }) => {
                Err(FenceError::State { id: by.id, state: state.word(), other: by.id })
            }
        }
    }

    /// Begins to take a unit from another store, or continues that under another coordinator. Until it is opened the etcd
    /// serves nothing of it.
    ///
    /// # Errors
    /// When the term is outdated, or another move is under way with keys of the unit.
    pub fn take(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => {}
            Err(refused) => return Err(refused),
            Ok(record) => match record.state {
                FenceState::Taking { .. } => return Ok(()),
                FenceState::Open => record.state = FenceState::Taking { sealed: None },
                state @ (FenceState::Frozen { .. } | FenceState::Moved { .. }) => {
                    return Err(FenceError::State { id: by.id, state: state.word(), other: by.id });
                }
            },
        }
        let mut others = self
            .records
            .iter()
            .filter(|record| record.id != by.id && record.transfer.unit.overlaps_unit(&by.transfer.unit));
        // What this etcd gave away comes back, whole.
        let stays = |record: &&FenceRecord| match record.state {
            FenceState::Open => false,
            FenceState::Moved { .. } => !covers(&by.transfer.unit.range, &record.transfer.unit.range),
            FenceState::Frozen { .. } | FenceState::Taking { .. } => true,
        };
        if let Some(other) = others.find(stays) {
            let (state, other) = (other.state.word(), other.id);
            return Err(FenceError::State { id: by.id, state, other });
        }
        if self.state(by.id, &by.transfer.unit).is_none() {
            let (id, term, transfer) = (by.id, by.term, by.transfer.clone());
            self.records.push(FenceRecord { id, term, transfer, state: FenceState::Taking { sealed: None } });
        }
        Ok(())
    }

    /// The term of the coordinator that takes the unit; `None` if it is not being taken. One of a higher term takes it too,
    /// which changes the fence, so no write of an earlier one comes behind that.
    ///
    /// # Errors
    /// When the term is outdated.
    pub fn taken_in(&self, by: &FencedUnit) -> Result<Option<Term>, FenceError> {
        let is_it = |record: &&FenceRecord| record.id == by.id && record.transfer.unit == by.transfer.unit;
        match self.records.iter().find(is_it) {
            Some(record) if by.term < record.term => {
                Err(FenceError::Stale { id: by.id, term: by.term, seen: record.term })
            }
            Some(FenceRecord { term, state: FenceState::Taking { .. }, .. }) => Ok(Some(*term)),
            _ => Ok(None),
        }
    }

    /// Notes that everything of the unit is here, up to its last revision at the other store.
    ///
    /// # Errors
    /// When the term is outdated, or the unit is not being taken.
    pub fn seal(&mut self, by: &FencedUnit, last: Revision) -> Result<(), FenceError> {
        let record = self.of(by)?;
        match record.state {
            FenceState::Taking { .. } => {
                record.state = FenceState::Taking { sealed: Some(last) };
                Ok(())
            }
            state => Err(FenceError::State { id: by.id, state: state.word(), other: by.id }),
        }
    }

    /// Serves the unit after the decision. Does nothing if it is served.
    ///
    /// # Errors
    /// When the term is outdated, or the unit was not sealed.
    pub fn open(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => return Ok(()),
            Err(refused) => return Err(refused),
            Ok(record) => match record.state {
                FenceState::Taking { sealed: Some(_) } => {}
                state => return Err(FenceError::State { id: by.id, state: state.word(), other: by.id }),
            },
        }
        let range = by.transfer.unit.range.clone();
        self.records.retain(|record| !covers(&range, &record.transfer.unit.range));
        Ok(())
    }

    /// Gives up taking a unit. Does nothing if it is not being taken.
    ///
    /// # Errors
    /// When the term is outdated.
    pub fn leave(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => return Ok(()),
            Err(refused) => return Err(refused),
            Ok(record) if !matches!(record.state, FenceState::Taking { .. }) => return Ok(()),
            Ok(_) => {}
        }
        self.records.retain(|record| record.id != by.id || record.transfer.unit != by.transfer.unit);
        Ok(())
    }

    /// Ends the move of a unit. A unit that has moved stays refused for ever; an open one is forgotten.
    ///
    /// # Errors
    /// When the term is outdated, or the unit is frozen.
    pub fn forget(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => return Ok(()),
            Err(refused) => return Err(refused),
            Ok(record) => match record.state {
                FenceState::Open => {}
                FenceState::Moved { .. } => return Ok(()),
                state @ (FenceState::Frozen { .. } | FenceState::Taking { .. }) => {
                    return Err(FenceError::State { id: by.id, state: state.word(), other: by.id });
                }
            },
        }
        self.records.retain(|record| record.id != by.id || record.transfer.unit != by.transfer.unit);
        Ok(())
    }
}

/// Whether all keys of `inner` are in `outer`.
fn covers(outer: &KeyRange, inner: &KeyRange) -> bool {
    outer.intersection(inner) == *inner
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::{key::Key, map::StoreIdx};

    use super::*;

    fn by(id: u64, term: u64) -> FencedUnit {
        let range = KeyRange::prefix(Key::from("/registry/pods/"));
        let transfer =
            Transfer { unit: Unit::of_range(range), from: StoreIdx(0), to: StoreIdx(1), kind: None };
        FencedUnit { id: MoveId(id), term: Term(term), transfer }
    }

    const KEY: &[u8] = b"/registry/pods/a/b";

    #[test]
    fn what_is_frozen_or_moved_is_refused_and_nothing_else() {
        let mut doc = FenceDoc::read(b"").unwrap();
        doc.track(&by(1, 1)).unwrap();
        assert!(doc.is_open());
        assert_eq!(doc.refuses(KEY, b""), None);
        assert_eq!(doc.freeze(&by(1, 1), Revision(70)), Ok(Revision(70)));
        assert_eq!(doc.freeze(&by(1, 2), Revision(80)), Ok(Revision(70)), "as it was frozen");
        assert_eq!(doc.refuses(KEY, b""), Some(Epoch::NONE));
        assert_eq!(doc.refuses(b"/registry/", b"/registry0"), Some(Epoch::NONE));
        assert_eq!(doc.refuses(b"\0", b"\0"), Some(Epoch::NONE), "all keys");
        assert_eq!(doc.refuses(b"/registry/pods", b""), None, "the pseudo-key is a unit of its own");
        assert_eq!(doc.refuses(b"/registry/secrets/", b"/registry/secrets0"), None);
        doc.release(&by(1, 2), Epoch(9)).unwrap();
        assert_eq!(doc.refuses(KEY, b""), Some(Epoch(9)));
        let read = FenceDoc::read(&doc.to_json()).unwrap();
        assert_eq!(read, doc);
        doc.forget(&by(1, 2)).unwrap();
        assert_eq!(doc, read, "what was taken away is never served here again");
        doc.unfreeze(&by(1, 3)).unwrap();
        assert_eq!(doc.refuses(KEY, b""), Some(Epoch(9)), "a decision is not undone");
        assert!(matches!(doc.track(&by(2, 1)), Err(FenceError::State { state: "moved", .. })));
    }

    #[test]
    fn what_is_taken_is_served_when_it_is_opened() {
        let mut doc = FenceDoc::default();
        // It was given away once.
        doc.track(&by(1, 1)).unwrap();
        doc.freeze(&by(1, 1), Revision(5)).unwrap();
        doc.release(&by(1, 1), Epoch(3)).unwrap();
        let given_away = doc.clone();
        doc.take(&by(2, 1)).unwrap();
        assert_eq!(doc.refuses(KEY, b""), Some(Epoch::NONE), "while it is being decided");
        assert_eq!((given_away.moved().len(), doc.moved().len()), (1, 0));
        assert!(doc.open(&by(2, 1)).is_err(), "not all of it is here");
        assert!(doc.take(&by(3, 1)).is_err(), "one move at a time");
        assert_eq!((doc.taken_in(&by(2, 2)), doc.taken_in(&by(3, 1))), (Ok(Some(Term(1))), Ok(None)));
        doc.leave(&by(2, 2)).unwrap();
        doc.leave(&by(2, 2)).unwrap();
        assert_eq!(doc, given_away, "as it was");
        doc.take(&by(2, 3)).unwrap();
        assert!(matches!(doc.seal(&by(2, 2), Revision(9)), Err(FenceError::Stale { .. })));
        assert!(matches!(doc.taken_in(&by(2, 2)), Err(FenceError::Stale { .. })), "it copies no more");
        doc.seal(&by(2, 3), Revision(9)).unwrap();
        assert_eq!(FenceDoc::read(&doc.to_json()).unwrap(), doc);
        doc.open(&by(2, 3)).unwrap();
        doc.open(&by(2, 3)).unwrap();
        assert_eq!(doc, FenceDoc::default(), "nothing is refused");
    }

    #[test]
    fn what_comes_late_is_refused() {
        let mut doc = FenceDoc::default();
        assert_eq!(doc.freeze(&by(1, 1), Revision(5)), Err(FenceError::Unknown(MoveId(1))));
        doc.track(&by(1, 1)).unwrap();
        doc.freeze(&by(1, 2), Revision(5)).unwrap();
        doc.unfreeze(&by(1, 3)).unwrap();
        let stale = FenceError::Stale { id: MoveId(1), term: Term(2), seen: Term(3) };
        assert_eq!(
            doc.freeze(&by(1, 2), Revision(6)),
            Err(stale.clone()),
            "a freeze behind what followed it"
        );
        assert_eq!(doc.release(&by(1, 2), Epoch(3)), Err(stale));
        assert!(doc.release(&by(1, 3), Epoch(3)).is_err(), "nothing was frozen");
        assert!(doc.is_open());
        doc.freeze(&by(1, 4), Revision(7)).unwrap();
        assert!(doc.unfreeze(&by(1, 3)).is_err() && !doc.is_open(), "an unfreeze behind the next freeze");
        doc.unfreeze(&by(1, 5)).unwrap();
        doc.forget(&by(1, 5)).unwrap();
        assert_eq!(doc, FenceDoc::default());
        assert_eq!(
            doc.freeze(&by(1, 4), Revision(8)),
            Err(FenceError::Unknown(MoveId(1))),
            "the move is over"
        );
        doc.unfreeze(&by(1, 4)).unwrap();
    }

    #[test]
    fn a_move_takes_the_place_of_what_another_one_left_open() {
        let mut doc = FenceDoc::default();
        doc.track(&by(1, 7)).unwrap();
        doc.track(&by(2, 1)).unwrap();
        assert_eq!(doc.state(MoveId(1), &by(1, 1).transfer.unit), None);
        assert_eq!(doc.state(MoveId(2), &by(1, 1).transfer.unit), Some(FenceState::Open));
        doc.freeze(&by(2, 1), Revision(5)).unwrap();
        assert!(matches!(doc.track(&by(3, 1)), Err(FenceError::State { other: MoveId(2), .. })));
    }

    #[test]
    fn values_of_others_are_not_taken_for_none() {
        assert!(FenceDoc::read(b"{}").is_err());
        let newer = FenceDoc::default().to_json();
        let newer = String::from_utf8(newer).unwrap().replace("\"version\":1", "\"version\":2");
        assert!(matches!(FenceDoc::read(newer.as_bytes()), Err(FenceError::Malformed(_))));
    }
}
