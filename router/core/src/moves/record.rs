//! The record of a move in the meta store.

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

/// The phase of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// The followers get their copies.
    Copying,
    /// The followers have copies and follow the owners.
    CatchingUp,
    /// Both sides are compared.
    Verifying,
    /// The next leg can be switched.
    Ready,
    /// An attempt to switch a leg is under way: its units are frozen or will be, and nothing is decided yet.
    #[serde(rename_all = "camelCase")]
    Switching {
        /// The number of the attempt in this move, from 1.
        attempt: u32,
        /// The leg that is being switched.
        leg: usize,
    },
    /// All legs are at their goal; the former owners follow, so that there is a way back.
    Switched,
    /// The way back is closed, and the followers drop their data.
    Completing,
    /// Over: everything is at its goal, or back if the goal was changed to that.
    Done,
    /// Nothing has moved, or all of it is back; the followers drop their data.
    Aborting,
    /// Over: everything is where it was.
    Aborted,
}

impl Phase {
    /// Whether the move has ended for good.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Aborted)
    }
}

/// The goal of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Goal {
    /// The new stores.
    There,
    /// The old stores, with a way forward: the move was reversed.
    Back,
    /// The old stores, and the end: the move was aborted.
    Abort,
}

/// All transfers of a move between one pair of stores, which are switched together by one decision. Legs are switched
/// one after another, so that at most one store of a Kind is frozen at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Leg {
    /// The store that owned the units when the move began.
    pub from: StoreIdx,
    /// The store that the units move to.
    pub to: StoreIdx,
    pub transfers: Vec<Transfer>,
    /// Whether `to` owns the units.
    pub moved: bool,
    /// Whether there is no way back, because `from` or `to` is a stock etcd: the other store cannot follow its revisions.
    #[serde(default, skip_serializing_if = "is_false")]
    pub one_way: bool,
    /// The map generation of the last decision about the units; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Whether one of the two stores was lost and replaced (R14); then the leg stays as it is, whatever the goal.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lost: bool,
}

impl Leg {
    /// The store that owns the units.
    #[must_use]
    pub fn owner(&self) -> StoreIdx {
        if self.moved { self.to } else { self.from }
    }

    /// The store that follows the owner, or will.
    #[must_use]
    pub fn follower(&self) -> StoreIdx {
        if self.moved { self.from } else { self.to }
    }

    /// The transfers in the map that the next switch of the leg makes.
    #[must_use]
    pub fn next_transfers(&self) -> Vec<Transfer> {
        match self.moved {
            false => self.transfers.clone(),
            true => self.transfers.iter().map(Transfer::reversed).collect(),
        }
    }
}

/// A move as it is recorded in meta.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRecord {
    /// Always [`RECORD_VERSION`].
    pub(crate) version: u32,
    pub id: MoveId,
    /// The prefix of the Kind that moves; `None` for keys of no Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Incremented with every change of what may be sent to stores. 0 before the first coordinator.
    pub term: Term,
    /// The coordinator that took the last term over; empty before the first.
    pub coordinator: String,
    pub phase: Phase,
    pub goal: Goal,
    /// The number of attempts to switch that were begun.
    pub attempts: u32,
    /// The number of attempts given up since the last decision or change of the goal.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub failed: u32,
    /// Why the move was aborted, or its last attempt was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the move waits, copied and compared, until an operator asks it to switch.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hold: bool,
    /// The mod revision in meta of the last operator's request that this record carries out; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heard: i64,
    pub legs: Vec<Leg>,
    /// The earlier configuration of the Kind, which is restored if the move ends where it began.
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

/// Why bytes are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// They are not the JSON of a record.
    #[error("the move's record is malformed: {0}")]
    Malformed(String),
    /// The record has another version.
    #[error(
        "the move's record has version {0}, this kindred reads {RECORD_VERSION}: use the version that wrote it"
    )]
    Version(u32),
}

impl MoveRecord {
    /// A record of these transfers, which must be of one Kind, before anything was done. `None` without transfers.
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
            hold: false,
            heard: 0,
            legs: pairs.into_iter().map(leg).collect(),
            before: None,
        })
    }

    /// Sets the configuration that was in force before the change that begins the move.
    #[must_use]
    pub fn after(self, before: Said) -> Self {
        Self { before: Some(before), ..self }
    }

    /// Marks the legs from and to stock etcds as having no way back.
    #[must_use]
    pub fn one_way_from(mut self, is_etcd: impl Fn(StoreIdx) -> bool) -> Self {
        self.legs.iter_mut().for_each(|leg| leg.one_way = is_etcd(leg.from) || is_etcd(leg.to));
        self
    }

    /// Whether some leg has moved and cannot go back.
    #[must_use]
    pub fn has_no_way_back(&self) -> bool {
        self.legs.iter().any(|leg| leg.one_way && leg.moved)
    }

    /// The configuration to restore: set if the move is over and everything is where it was.
    #[must_use]
    pub fn to_put_back(&self) -> Option<&Said> {
        self.before.as_ref().filter(|_| self.phase.is_over() && self.goal != Goal::There)
    }

    /// Parses a record.
    ///
    /// # Errors
    /// When it is malformed, or has another version.
    pub fn from_json(bytes: &[u8]) -> Result<Self, RecordError> {
        /// Only the version is parsed first, because another version may have other fields.
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

    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has string keys only and nothing that fails to serialise")
    }

    /// The legs that are not at their goal, in the order of switching: on the way back the last leg is first. Legs with
    /// a lost store are left out, because they cannot be switched.
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

    /// The record after the present attempt was given up, so that frozen units may be served again. The new term fences
    /// all calls of the attempt.
    #[must_use]
    pub fn given_up(&self, reason: String) -> Self {
        let term = Term(self.term.0 + 1);
        let failed = self.failed.saturating_add(1);
        Self { term, phase: Phase::CatchingUp, failed, reason: Some(reason), ..self.clone() }
    }

    /// The phase that follows from where the legs are and from the goal.
    #[must_use]
    pub fn phase_by_goal(&self) -> Phase {
        match (self.unsettled().is_empty(), self.goal) {
            (false, _) => Phase::CatchingUp,
            (true, Goal::Abort) => Phase::Aborting,
            (true, _) => Phase::Switched,
        }
    }

    /// The record after stores were lost and replaced: legs with such a store stay as they are, and an attempt under
    /// way is given up. `None` if there is nothing to change.
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

    /// The record of a move that waits for [`super::machine::Request::Switch`] before its first switch.
    #[must_use]
    pub fn held(self, hold: bool) -> Self {
        Self { hold, ..self }
    }

    /// The record of a move that ends because its keys were settled otherwise; the configuration is not restored.
    #[must_use]
    pub fn ended(&self, reason: &str) -> Self {
        let moved = self.legs.iter().all(|leg| leg.moved);
        let phase = if moved { Phase::Done } else { Phase::Aborted };
        let reason = Some(reason.to_owned());
        Self { term: Term(self.term.0 + 1), phase, reason, before: None, ..self.clone() }
    }

    /// Whether this version of the record was written after the other, for when meta has lost the latest.
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

    /// The record after the decision that the leg changes owner, by the map of this generation (R15c). It is written in
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

    /// Whether the move is not over and concerns keys of `range`; a second move of them is then refused.
    #[must_use]
    pub fn concerns(&self, range: &KeyRange) -> bool {
        !self.phase.is_over()
            && self.legs.iter().flat_map(|leg| &leg.transfers).any(|transfer| transfer.unit.overlaps(range))
    }
}
