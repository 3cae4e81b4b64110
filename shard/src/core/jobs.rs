//! Calls about many units. All that one turn of the loop changes is logged as one table of units. Each call succeeds or
//! is refused independently, as it would alone.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use kindred_engine::units::{Import, UnitError, UnitMove};
use kindred_partition_config::{
    ids::{Epoch, LeaseId, Revision},
    key::Key,
};
use kindred_proto::shard_v1::{self as pb, unit_answer::Answer, unit_call::Call};
use tokio::time::Instant;
use tonic::Status;

use super::Core;
use crate::{convert::units as convert, metrics::UnitMetrics};

/// Keys in one slice of a track, or of a search for leases.
const SLICE_KEYS: usize = 128;
/// Keys or events in one slice of a copy or an import.
pub const CHUNK_KEYS: usize = 256;
/// Approximate bytes in one slice of a copy or an import; the history of one key in one message may exceed it.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Time after which tracks, and calls that wait for them or for room, answer although they are not done; the coordinator
/// then repeats them.
const TRACK_TIME: Duration = Duration::from_millis(200);
/// The cost of a slice of a search that reached the end of its unit.
const SHORT_SLICE: usize = SLICE_KEYS / 8;

/// A call, and the rest of its work.
enum Job {
    Track(UnitMove),
    Freeze { by: UnitMove, generation: Epoch },
    Unfreeze(UnitMove),
    Release { by: UnitMove, epoch: Epoch },
    Import { by: UnitMove, left: VecDeque<Import>, through: Revision },
    Seal { by: UnitMove, last: Revision, generation: Epoch, imported: Option<Revision> },
    Open { by: UnitMove, epoch: Epoch },
    Drop { by: UnitMove, epoch: Epoch },
    Forget(UnitMove),
    Leases { by: UnitMove, after: Option<Key>, ids: BTreeSet<i64> },
    LeasesMissing(UnitMove),
    Look(UnitMove),
    Unseal(UnitMove),
}

impl Job {
    fn read(call: Call) -> Result<Self, Status> {
        let unit = convert::unit_move;
        Ok(match call {
            Call::Track(call) => Self::Track(unit(call.r#move)?),
            Call::Freeze(call) => Self::Freeze { by: unit(call.r#move)?, generation: Epoch(call.generation) },
            Call::Unfreeze(call) => Self::Unfreeze(unit(call.r#move)?),
            Call::Release(call) => {
                Self::Release { by: unit(call.r#move)?, epoch: convert::epoch(call.epoch)? }
            }
            Call::Import(mut call) => {
                let by = unit(call.r#move.take())?;
                let left = convert::import(call, CHUNK_KEYS, CHUNK_BYTES)?.into();
                Self::Import { by, left, through: Revision::ZERO }
            }
            Call::Seal(call) => {
                let last = convert::revision(call.final_revision, "final_revision")?;
                Self::Seal {
                    by: unit(call.r#move)?,
                    last: last
                        .ok_or_else(|| Status::invalid_argument("kindred: final_revision is missing"))?,
                    generation: Epoch(call.generation),
                    imported: convert::revision(call.imported, "imported")?,
                }
            }
            Call::Open(call) => Self::Open { by: unit(call.r#move)?, epoch: convert::epoch(call.epoch)? },
            Call::Drop(call) => Self::Drop { by: unit(call.r#move)?, epoch: Epoch(call.epoch) },
            Call::Forget(call) => Self::Forget(unit(call.r#move)?),
            Call::Leases(call) if call.missing => Self::LeasesMissing(unit(call.r#move)?),
            Call::Leases(call) => Self::Leases { by: unit(call.r#move)?, after: None, ids: BTreeSet::new() },
            Call::Look(call) => Self::Look(unit(call.r#move)?),
            Call::Unseal(call) => Self::Unseal(unit(call.r#move)?),
        })
    }

    /// Whether it must run when everything applied is published and on disk, before anything else is executed (R15).
    fn wants_flush(&self) -> bool {
        matches!(self, Self::Freeze { .. } | Self::Seal { .. } | Self::Open { .. })
    }

    /// The revision that the clock must have reached.
    fn clock(&self) -> Option<Revision> {
        match self {
            Self::Seal { last, .. } => Some(*last),
            _ => None,
        }
    }

    /// Executes the call or a slice of it; `None` when there is more to do.
    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Option<Answer>, UnitError> {
        turn.cost(1);
        Ok(Some(match self {
            Self::Track(by) => {
                let tracking = core.engine.unit_track(by, SLICE_KEYS)?;
                let looked = usize::try_from(tracking.keys + tracking.events).unwrap_or(SLICE_KEYS);
                turn.cost(if tracking.ready { looked.min(SLICE_KEYS) } else { SLICE_KEYS });
                if !tracking.ready && !turn.is_late {
                    return Ok(None);
                }
                Answer::Track(convert::tracking(tracking))
            }
            Self::Freeze { by, generation } => {
                core.engine.unit_undecided(by, *generation)?;
                let last = core.engine.unit_freeze(core.clock.wall(), by)?;
                Answer::Freeze(pb::FreezeResponse {
                    final_revision: last.get(),
                    incarnation: turn.incarnation,
                })
            }
            Self::Unfreeze(by) => {
                core.engine.unit_unfreeze(by)?;
                Answer::Unfreeze(pb::UnfreezeResponse {})
            }
            Self::Release { by, epoch } => {
                core.engine.unit_release(by, *epoch)?;
                Answer::Release(pb::ReleaseResponse {})
            }
            Self::Import { by, left, through } => {
                if !core.engine.unit_room(by)? {
                    if turn.is_late {
                        return Err(UnitError::NotReady(by.id));
                    }
                    turn.cost(SLICE_KEYS);
                    return Ok(None);
                }
                if let Some(piece) = left.pop_front() {
                    let (keys, events) = (piece.keys.len(), piece.events.len());
                    turn.cost(keys + events);
                    *through = core.engine.unit_import(by, piece)?;
                    turn.metrics.imported(keys, events);
                }
                if !left.is_empty() {
                    return Ok(None);
                }
                Answer::Import(pb::ImportResponse { through: through.get() })
            }
            Self::Seal { by, last, generation, imported } => {
                core.engine.unit_undecided(by, *generation)?;
                let now = core.clock.wall();
                match imported {
                    None => core.engine.unit_seal(now, by, *last)?,
                    Some(imported) => core.engine.unit_seal_renumbered(now, by, *last, *imported)?,
                }
                Answer::Seal(pb::SealResponse { incarnation: turn.incarnation })
            }
            Self::Open { by, epoch } => {
                core.engine.unit_open(by, *epoch)?;
                Answer::Open(pb::OpenResponse {})
            }
            Self::Drop { by, epoch } => {
                core.unit_drop(by, *epoch)?;
                Answer::Drop(pb::DropResponse {})
            }
            Self::Forget(by) => match core.engine.unit_forget(by) {
                // A split that has begun is finished first; for an abandoned move no other call does that.
                Err(UnitError::NotReady(_)) if !turn.is_late => {
                    core.engine.unit_track(by, SLICE_KEYS)?;
                    turn.cost(SLICE_KEYS);
                    return Ok(None);
                }
                done => {
                    done?;
                    Answer::Forget(pb::ForgetResponse {})
                }
            },
            Self::Leases { by, after, ids } => {
                let (found, rest) = core.engine.unit_leases(&by.unit, after.as_ref(), SLICE_KEYS)?;
                ids.extend(found.into_iter().map(|id| id.get()));
                turn.cost(if rest.is_some() { SLICE_KEYS } else { SHORT_SLICE });
                *after = rest;
                if after.is_some() {
                    return Ok(None);
                }
                Answer::Leases(pb::UnitLeasesResponse { ids: std::mem::take(ids).into_iter().collect() })
            }
            Self::LeasesMissing(by) => {
                let missing = core.engine.unit_leases_missing(&by.unit);
                turn.cost(missing.len());
                Answer::Leases(pb::UnitLeasesResponse {
                    ids: missing.into_iter().map(LeaseId::get).collect(),
                })
            }
            Self::Look(by) => {
                let record = core.engine.unit_record(by).map(convert::record);
                Answer::Look(pb::LookResponse { record })
            }
            Self::Unseal(by) => {
                core.engine.unit_unseal(by)?;
                Answer::Unseal(pb::UnsealResponse {})
            }
        }))
    }
}

/// The budget and context of one turn of the loop.
pub struct Turn {
    /// The rest of the budget, in keys and calls.
    left: usize,
    /// Tracks answer although they are not done.
    is_late: bool,
    incarnation: u64,
    metrics: &'static UnitMetrics,
}

impl Turn {
    /// The turn of a shard with this incarnation. With a flush it does everything, otherwise a slice.
    #[must_use]
    pub fn new(flushed: bool, incarnation: u64, metrics: &'static UnitMetrics) -> Self {
        Self { left: if flushed { usize::MAX } else { SLICE_KEYS }, is_late: false, incarnation, metrics }
    }

    fn cost(&mut self, work: usize) {
        self.left = self.left.saturating_sub(work);
    }
}

/// Calls in order; those already answered come first.
pub struct Jobs {
    answered: Vec<Result<Answer, UnitError>>,
    left: VecDeque<Job>,
    /// When their first turn came.
    began: Option<Instant>,
}

impl Jobs {
    /// Reads calls.
    ///
    /// # Errors
    /// Names what is missing or wrong.
    pub fn read(calls: Vec<Call>) -> Result<Self, Status> {
        let left: VecDeque<Job> = calls.into_iter().map(Job::read).collect::<Result<_, _>>()?;
        Ok(Self { answered: Vec::with_capacity(left.len()), left, began: None })
    }

    /// The revision that the clock must have reached before.
    #[must_use]
    pub fn clock(&self) -> Option<Revision> {
        self.left.iter().filter_map(Job::clock).max()
    }

    /// Whether they must run when everything applied is published and on disk, before anything else is executed (R15).
    #[must_use]
    pub fn want_flush(&self) -> bool {
        self.left.iter().any(Job::wants_flush)
    }

    /// The answers, in the order of the calls; the jobs themselves while some are left.
    pub fn answers(self) -> Result<Vec<Result<Answer, UnitError>>, Self> {
        if self.left.is_empty() { Ok(self.answered) } else { Err(self) }
    }

    /// Does a turn's worth of them.
    #[must_use]
    pub fn turn(mut self, core: &mut Core, mut turn: Turn) -> Self {
        let now = core.clock.now();
        turn.is_late = now.saturating_duration_since(*self.began.get_or_insert(now)) > TRACK_TIME;
        core.unit_calls(|core| {
            while turn.left > 0
                && let Some(job) = self.left.front_mut()
            {
                let done = match job.step(core, &mut turn) {
                    Ok(None) => continue,
                    Ok(Some(answer)) => Ok(answer),
                    Err(refused) => Err(refused),
                };
                self.answered.push(done);
                self.left.pop_front();
            }
        });
        self
    }
}
