//! The fence of a stock etcd: what a shard's table of units is to the shard, as a value under one key of the etcd (R13).
//!
//! A stock etcd does not know whose its keys are. So every request of a router compares the mod revision of this key, and
//! the etcd refuses those of routers that do not know its newest value, however long these have heard nothing. Who freezes a
//! unit writes it there: from that revision on no request that was made before is executed any more.
//!
//! Every change is a function from one value to the next; whoever makes it writes it with a compare on the revision that it
//! has read.

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

/// The value.
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

/// What it says of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FenceRecord {
    #[serde(rename = "move")]
    id: MoveId,
    /// The highest that was seen of the move.
    term: Term,
    transfer: Transfer,
    state: FenceState,
}

/// How a unit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FenceState {
    /// Served here.
    Open,
    /// Nothing of it is executed (R15a).
    Frozen {
        /// From where on its new owner counts.
        last: Revision,
    },
    /// Another store has it.
    Moved {
        /// Since the map of this generation.
        epoch: Epoch,
    },
}

/// Why a change is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// A coordinator that another one has followed.
    #[error("move {id} has a coordinator of term {seen}, this is term {term}; stop")]
    Stale {
        /// The move.
        id: u64,
        /// The call's.
        term: u64,
        /// The highest seen.
        seen: u64,
    },
    /// The move has not begun with the unit here, or has ended.
    #[error("move {0}: the etcd's fence has no record of the unit")]
    Unknown(u64),
    /// The unit stands otherwise.
    #[error("move {id}: the unit is {state} at the etcd, by move {other}")]
    State {
        /// The move.
        id: u64,
        /// How it stands.
        state: &'static str,
        /// By which.
        other: u64,
    },
    /// Not a value that this version reads.
    #[error("the fence key of the etcd cannot be read: {0}")]
    Malformed(String),
}

impl FenceState {
    const fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Frozen { .. } => "frozen",
            Self::Moved { .. } => "moved",
        }
    }
}

/// Who changes what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedUnit {
    /// The move.
    pub id: MoveId,
    /// Of its coordinator.
    pub term: Term,
    /// What moves.
    pub transfer: Transfer,
}

impl FenceDoc {
    /// Reads the value; no bytes are that of a key that does not exist.
    ///
    /// # Errors
    /// When it is malformed or of another version.
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

    /// The value.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the value has string keys only and nothing that fails to serialise")
    }

    /// Whether nothing is refused.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.records.iter().all(|record| record.state == FenceState::Open)
    }

    /// Whether requests for a key, or for a range of them, are refused, and since which map another store has them; 0 while
    /// that is being decided.
    #[must_use]
    pub fn refuses(&self, key: &[u8], range_end: &[u8]) -> Option<Epoch> {
        let range = KeyRange::from_wire(Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
        let touched = self.records.iter().filter(|record| record.transfer.unit.overlaps(&range));
        touched
            .filter_map(|record| match record.state {
                FenceState::Open => None,
                FenceState::Frozen { .. } => Some(Epoch(0)),
                FenceState::Moved { epoch } => Some(epoch),
            })
            .min()
    }

    /// How a unit stands for a move of it.
    #[must_use]
    pub fn state(&self, id: MoveId, unit: &Unit) -> Option<FenceState> {
        let is_it = |record: &&FenceRecord| record.id == id && record.transfer.unit == *unit;
        self.records.iter().find(is_it).map(|record| record.state)
    }

    /// The record of a unit by a move, fenced.
    fn of(&mut self, by: &FencedUnit) -> Result<&mut FenceRecord, FenceError> {
        let is_it =
            |record: &&mut FenceRecord| record.id == by.id && record.transfer.unit == by.transfer.unit;
        let record = self.records.iter_mut().find(is_it).ok_or(FenceError::Unknown(by.id.0))?;
        if by.term < record.term {
            return Err(FenceError::Stale { id: by.id.0, term: by.term.0, seen: record.term.0 });
        }
        record.term = by.term;
        Ok(record)
    }

    /// A move of a unit begins, or another coordinator goes on with it: only what has begun can be frozen.
    ///
    /// # Errors
    /// When the coordinator is not the last one, or another move has taken keys of the unit away.
    pub fn track(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => {}
            found => return found.map(drop),
        }
        let others =
            self.records.iter().filter(|record| record.transfer.unit.overlaps_unit(&by.transfer.unit));
        if let Some(other) = others.into_iter().find(|record| record.state != FenceState::Open) {
            let (state, other) = (other.state.word(), other.id.0);
            return Err(FenceError::State { id: by.id.0, state, other });
        }
        // What is open by another move is what that one has left behind.
        self.records.retain(|record| !record.transfer.unit.overlaps_unit(&by.transfer.unit));
        let (id, term, transfer) = (by.id, by.term, by.transfer.clone());
        self.records.push(FenceRecord { id, term, transfer, state: FenceState::Open });
        Ok(())
    }

    /// Nothing of the unit is executed from the revision on at which this is written; its new owner counts from `last`.
    /// Answers from where it does: where the unit is frozen already, that stands.
    ///
    /// # Errors
    /// When the coordinator is not the last one, or the unit is not its own to freeze.
    pub fn freeze(&mut self, by: &FencedUnit, last: Revision) -> Result<Revision, FenceError> {
        let record = self.of(by)?;
        match record.state {
            FenceState::Open => {
                record.state = FenceState::Frozen { last };
                Ok(last)
            }
            FenceState::Frozen { last } => Ok(last),
            state @ FenceState::Moved { .. } => {
                Err(FenceError::State { id: by.id.0, state: state.word(), other: by.id.0 })
            }
        }
    }

    /// The unit is served again, after a committed abort of the attempt (R15). Nothing happens where it is not frozen, nor
    /// where it is unknown.
    ///
    /// # Errors
    /// When the coordinator is not the last one.
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

    /// After the decision: another store has the unit since the map of this generation.
    ///
    /// # Errors
    /// When the coordinator is not the last one, or the unit is not frozen.
    pub fn release(&mut self, by: &FencedUnit, epoch: Epoch) -> Result<(), FenceError> {
        let record = self.of(by)?;
        match record.state {
            FenceState::Frozen { .. } | FenceState::Moved { .. } => {
                record.state = FenceState::Moved { epoch };
                Ok(())
            }
            FenceState::Open => Err(FenceError::State { id: by.id.0, state: "open", other: by.id.0 }),
        }
    }

    /// The move is over. What was taken away stays refused for ever; what was not is forgotten.
    ///
    /// # Errors
    /// When the coordinator is not the last one, or the unit is frozen.
    pub fn forget(&mut self, by: &FencedUnit) -> Result<(), FenceError> {
        match self.of(by) {
            Err(FenceError::Unknown(_)) => return Ok(()),
            Err(refused) => return Err(refused),
            Ok(record) => match record.state {
                FenceState::Open => {}
                FenceState::Moved { .. } => return Ok(()),
                FenceState::Frozen { .. } => {
                    return Err(FenceError::State { id: by.id.0, state: "frozen", other: by.id.0 });
                }
            },
        }
        self.records.retain(|record| record.id != by.id || record.transfer.unit != by.transfer.unit);
        Ok(())
    }
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
        assert_eq!(doc.refuses(KEY, b""), Some(Epoch(0)));
        assert_eq!(doc.refuses(b"/registry/", b"/registry0"), Some(Epoch(0)));
        assert_eq!(doc.refuses(b"\0", b"\0"), Some(Epoch(0)), "all keys");
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
    fn what_comes_late_is_refused() {
        let mut doc = FenceDoc::default();
        assert_eq!(doc.freeze(&by(1, 1), Revision(5)), Err(FenceError::Unknown(1)));
        doc.track(&by(1, 1)).unwrap();
        doc.freeze(&by(1, 2), Revision(5)).unwrap();
        doc.unfreeze(&by(1, 3)).unwrap();
        let stale = FenceError::Stale { id: 1, term: 2, seen: 3 };
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
        assert_eq!(doc.freeze(&by(1, 4), Revision(8)), Err(FenceError::Unknown(1)), "the move is over");
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
        assert!(matches!(doc.track(&by(3, 1)), Err(FenceError::State { other: 2, .. })));
    }

    #[test]
    fn values_of_others_are_not_taken_for_none() {
        assert!(FenceDoc::read(b"{}").is_err());
        let newer = FenceDoc::default().to_json();
        let newer = String::from_utf8(newer).unwrap().replace("\"version\":1", "\"version\":2");
        assert!(matches!(FenceDoc::read(newer.as_bytes()), Err(FenceError::Malformed(_))));
    }
}
