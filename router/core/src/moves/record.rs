//! What the meta store knows of a move.

use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::{
    ids::{Epoch, MoveId, Term},
    key::KeyRange,
    kind::KindPrefix,
    map::StoreIdx,
    state::Said,
    transfers::Transfer,
};
use serde::{Deserialize, Serialize};

/// The version of the record that this code writes, and the only one that it reads.
pub const RECORD_VERSION: u32 = 1;

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// The followers are being filled.
    Copying,
    /// They follow.
    CatchingUp,
    /// Both sides are compared.
    Verifying,
    /// The next leg can be switched.
    Ready,
    /// A leg is being switched: its units are frozen, or will be. Undecided.
    #[serde(rename_all = "camelCase")]
    Switching {
        /// Which try of this move, from 1.
        attempt: u32,
        /// Which leg.
        leg: usize,
    },
    /// All legs are where they go; the others follow, so that there is a way back.
    Switched,
    /// The followers' data goes.
    Completing,
    /// Over: everything is where it was to go, or back if the goal was changed to that.
    Done,
    /// Nothing has moved, or all of it is back; the followers' data goes.
    Aborting,
    /// Over: everything is where it was.
    Aborted,
}

impl Phase {
    /// Whether nothing will ever happen to the move any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Aborted)
    }
}

/// Where a move goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Goal {
    /// To the new stores.
    There,
    /// Back to the old ones: reversed.
    Back,
    /// Back to the old ones, and without a trace: aborted.
    Abort,
}

/// All transfers of a move between one pair of stores. They are switched together, by one decision; legs one after the
/// other, so that of a Kind no more than one store is frozen at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Leg {
    /// The store that owned the units when the move began.
    pub from: StoreIdx,
    /// The store that they go to.
    pub to: StoreIdx,
    /// What moves.
    pub transfers: Vec<Transfer>,
    /// Whether `to` owns them now.
    pub moved: bool,
    /// There is no way back: `from` is a stock etcd, to which no live move goes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub one_way: bool,
    /// The generation of the last decision about them; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// One of the two stores was lost and replaced (R14): the leg stays as it is, wherever the move goes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lost: bool,
}

impl Leg {
    /// Who owns the units now.
    #[must_use]
    pub fn owner(&self) -> StoreIdx {
        if self.moved { self.to } else { self.from }
    }

    /// Who follows, or will.
    #[must_use]
    pub fn follower(&self) -> StoreIdx {
        if self.moved { self.from } else { self.to }
    }

    /// What the next switch of the leg does to the map.
    #[must_use]
    pub fn next_transfers(&self) -> Vec<Transfer> {
        match self.moved {
            false => self.transfers.clone(),
            true => self.transfers.iter().map(Transfer::reversed).collect(),
        }
    }
}

/// A move, as it is in the meta store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRecord {
    /// [`RECORD_VERSION`].
    pub(crate) version: u32,
    /// Its number.
    pub id: MoveId,
    /// The Kind that moves, by its prefix; `None` for keys of no Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// One more with every change of what may be sent to the stores. 0 before the first coordinator.
    pub term: Term,
    /// Who took the last term over; empty before the first.
    pub coordinator: String,
    /// How far it is.
    pub phase: Phase,
    /// Where it goes.
    pub goal: Goal,
    /// How many attempts to switch were begun.
    pub attempts: u32,
    /// How many of them were given up since the last that was decided, or since the goal is this one.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub failed: u32,
    /// Why it was aborted, or its last attempt was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The version in meta of the last request of an operator that this record carries out; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heard: i64,
    /// What moves.
    pub legs: Vec<Leg>,
    /// What the configuration said of the Kind before: it says so again when the move ends where it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Said>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(answer: &bool) -> bool {
    !*answer
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_none_yet(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Why bytes are no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not a record's JSON.
    #[error("the move's record is malformed: {0}")]
    Malformed(String),
    /// Of another version of kindred.
    #[error(
        "the move's record has version {0}, this kindred reads {RECORD_VERSION}: use the version that wrote it"
    )]
    Version(u32),
}

impl MoveRecord {
    /// A move of these transfers, which are of one Kind, before anything was done. `None` without transfers.
    #[must_use]
    pub fn new(id: MoveId, transfers: &[Transfer]) -> Option<Self> {
        let kind: Option<KindPrefix> = transfers.first()?.kind.clone();
        let mut pairs: BTreeMap<(StoreIdx, StoreIdx), Vec<Transfer>> = BTreeMap::new();
        for transfer in transfers {
            pairs.entry((transfer.from, transfer.to)).or_default().push(transfer.clone());
        }
        let leg = |((from, to), transfers)| Leg {
            from,
            to,
            transfers,
            moved: false,
            one_way: false,
            epoch: None,
            lost: false,
        };
        Some(Self {
            version: RECORD_VERSION,
            id,
            kind: kind.map(|kind| kind.to_string()),
            term: Term(0),
            coordinator: String::new(),
            phase: Phase::Copying,
            goal: Goal::There,
            attempts: 0,
            failed: 0,
            reason: None,
            heard: 0,
            legs: pairs.into_iter().map(leg).collect(),
            before: None,
        })
    }

    /// The same with what the configuration said before the change that it is of.
    #[must_use]
    pub fn after(self, before: Said) -> Self {
        Self { before: Some(before), ..self }
    }

    /// The same with legs that have no way back: those from stores of which this says that they are stock etcds.
    #[must_use]
    pub fn one_way_from(mut self, is_etcd: impl Fn(StoreIdx) -> bool) -> Self {
        self.legs.iter_mut().for_each(|leg| leg.one_way = is_etcd(leg.from));
        self
    }

    /// Whether what is settled now stays so.
    #[must_use]
    pub fn has_no_way_back(&self) -> bool {
        self.legs.iter().any(|leg| leg.one_way && leg.moved)
    }

    /// What the configuration is to say again: the move is over, and everything is where it was.
    #[must_use]
    pub fn to_put_back(&self) -> Option<&Said> {
        self.before.as_ref().filter(|_| self.phase.is_over() && self.goal != Goal::There)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is malformed or of another version.
    pub fn from_json(bytes: &[u8]) -> Result<Self, RecordError> {
        /// The version first: another one may have other fields.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let malformed = |error: serde_json::Error| RecordError::Malformed(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
        if head.version != RECORD_VERSION {
            return Err(RecordError::Version(head.version));
        }
        let record: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        match record.phase {
            Phase::Switching { leg, .. } if leg >= record.legs.len() => {
                Err(RecordError::Malformed(format!("it switches leg {leg} of {}", record.legs.len())))
            }
            _ => Ok(record),
        }
    }

    /// Writes the record.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has string keys only and nothing that fails to serialise")
    }

    /// The legs that are not where they are to go, in the order in which they are switched: on the way back the last one
    /// first. Those with a lost store are not: nothing can be switched there any more.
    #[must_use]
    pub fn unsettled(&self) -> Vec<usize> {
        let there = self.goal == Goal::There;
        let due = |leg: &usize| self.legs[*leg].moved != there && !self.legs[*leg].lost;
        let mut legs: Vec<_> = (0..self.legs.len()).filter(due).collect();
        if !there {
            legs.reverse();
        }
        legs
    }

    /// The record after the attempt that is under way was given up: what is frozen may serve again. A new term fences what
    /// was sent for the attempt.
    #[must_use]
    pub fn given_up(&self, reason: String) -> Self {
        let term = Term(self.term.0 + 1);
        let failed = self.failed.saturating_add(1);
        Self { term, phase: Phase::CatchingUp, failed, reason: Some(reason), ..self.clone() }
    }

    /// How far the move is by where its legs are and where it goes.
    #[must_use]
    pub fn phase_by_goal(&self) -> Phase {
        match (self.unsettled().is_empty(), self.goal) {
            (false, _) => Phase::CatchingUp,
            (true, Goal::Abort) => Phase::Aborting,
            (true, _) => Phase::Switched,
        }
    }

    /// The record when stores were lost and replaced: legs with one of them stay as they are. An attempt that is under way
    /// at one of them is given up. `None` when it says so already.
    #[must_use]
    pub fn without(&self, gone: &BTreeSet<StoreIdx>) -> Option<Self> {
        let lost = |leg: &Leg| !leg.lost && (gone.contains(&leg.from) || gone.contains(&leg.to));
        if self.phase.is_over() || !self.legs.iter().any(lost) {
            return None;
        }
        let mut next = Self { term: Term(self.term.0 + 1), ..self.clone() };
        next.legs.iter_mut().filter(|leg| lost(leg)).for_each(|leg| leg.lost = true);
        next.reason = Some("a store of the move was lost, and another one is in its place".to_owned());
        if !matches!(self.phase, Phase::Completing | Phase::Aborting) {
            next.phase = next.phase_by_goal();
        }
        Some(next)
    }

    /// The record of a move that is over because others have settled what it was about. The configuration is theirs, too.
    #[must_use]
    pub fn ended(&self, reason: &str) -> Self {
        let moved = self.legs.iter().all(|leg| leg.moved);
        let phase = if moved { Phase::Done } else { Phase::Aborted };
        let reason = Some(reason.to_owned());
        Self { term: Term(self.term.0 + 1), phase, reason, before: None, ..self.clone() }
    }

    /// Whether this was written after the other: of one move, when meta has lost what it was told last.
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        let age = |record: &Self| {
            let rank = match record.phase {
                Phase::Done | Phase::Aborted => 2,
                Phase::Completing | Phase::Aborting => 1,
                _ => 0,
            };
            let decided = record.legs.iter().filter_map(|leg| leg.epoch).max();
            (record.term, decided, rank, record.heard)
        };
        age(self) > age(other)
    }

    /// The record after the decision that the leg changes hands, by the map of this generation (R15c). It is written in
    /// one transaction with that map.
    #[must_use]
    pub fn decided(&self, leg: usize, generation: Epoch) -> Self {
        let mut next = self.clone();
        if let Some(leg) = next.legs.get_mut(leg) {
            leg.moved = !leg.moved;
            leg.epoch = Some(generation);
        }
        next.reason = None;
        next.failed = 0;
        next.phase = next.phase_by_goal();
        next
    }

    /// Whether the move has to do with keys of `range`: a second move of them is refused meanwhile.
    #[must_use]
    pub fn concerns(&self, range: &KeyRange) -> bool {
        !self.phase.is_over()
            && self.legs.iter().flat_map(|leg| &leg.transfers).any(|transfer| transfer.unit.overlaps(range))
    }
}
