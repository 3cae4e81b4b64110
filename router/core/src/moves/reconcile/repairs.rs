//! Plans the changes in meta and the calls to shards. The plan never destroys an only copy: data is dropped only where
//! another shard owns and serves it.

use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Term},
    key::KeyRange,
    map::StoreIdx,
    state::{ClusterState, StoreState},
    transfers::Transfer,
    unit::Unit,
};

use super::{
    Held, HeldState, Report,
    owners::{Cell, cells},
};
use crate::moves::record::{Leg, MoveRecord, Phase};

/// What a shard is asked to do with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Stop serving it, because another shard owns it.
    Freeze,
    /// Record that another shard owns it since the map of this generation.
    Release { epoch: Epoch },
    /// Prepare to serve it with the data that it has, which is complete up to this revision.
    Seal { last: Revision },
    /// Serve it as its owner since the map of this generation.
    Open { epoch: Epoch },
    /// Serve it again, because nothing was decided.
    Unfreeze,
    /// Drop its copy. The map of this generation gave the unit to its owner; [`Epoch::NONE`] if nothing was decided.
    Drop { epoch: Epoch },
    /// Forget the move.
    Forget,
}

impl Ask {
    /// The request in words.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Release { .. } => "release",
            Self::Seal { .. } => "seal",
            Self::Open { .. } => "open",
            Self::Unfreeze => "unfreeze",
            Self::Drop { .. } => "drop the copy of",
            Self::Forget => "end the move of",
        }
    }

    /// The turn of the call among those of a plan, which are made one after the other until one fails:
    ///
    /// - A shard releases only what it has frozen, opens only what it has sealed, drops only what it does not own, and
    ///   forgets a move only when it serves the unit.
    /// - A shard releases before another opens, so no keys are served twice.
    /// - Owners serve again before copies are dropped, so a call that fails leaves every copy where it is.
    const fn turn(self) -> u8 {
        match self {
            Self::Freeze => 0,
            Self::Release { .. } => 1,
            Self::Seal { .. } => 2,
            Self::Open { .. } => 3,
            Self::Unfreeze => 4,
            Self::Drop { .. } => 5,
            Self::Forget => 6,
        }
    }
}

/// A call to a shard about a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub store: StoreIdx,
    pub ask: Ask,
    /// The last move of the unit.
    pub id: MoveId,
    /// Above all terms seen of the move.
    pub term: Term,
    pub unit: Unit,
}

/// The repairs, in the order in which they are made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The differences, for people.
    pub found: Vec<String>,
    /// What cannot be repaired, for people.
    pub problems: Vec<String>,
    /// In meta: transfers of keys to their actual owners.
    pub transfers: Vec<Transfer>,
    /// In meta: the new generation of the map, if it changes.
    pub generation: Option<Epoch>,
    /// In meta: moves to end, because their records contradict the shards.
    pub ends: Vec<MoveId>,
    /// After that: calls to shards, in their order.
    pub calls: Vec<Call>,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
            && self.generation.is_none()
            && self.ends.is_empty()
            && self.calls.is_empty()
    }
}

/// The differences that a router reports at once, for people: where shards own other units than the map says. Keys of
/// moves under way are left out.
#[must_use]
pub fn elsewhere(state: &ClusterState, moves: &[&MoveRecord], reports: &[Report]) -> Vec<String> {
    let open: Vec<_> = moves.iter().filter(|record| !record.phase.is_over()).collect();
    let moving = |cell: &Cell| open.iter().any(|record| record.concerns(&cell.unit.range));
    let differ = cells(state, reports).into_iter().filter(|cell| !cell.agrees() && !moving(cell));
    differ.map(|cell| words(state, &cell)).collect()
}

fn words(state: &ClusterState, cell: &Cell) -> String {
    let by_map = state.store_name(cell.by_map.0);
    let keys = keys(&cell.unit);
    match cell.owner {
        Some(owner) => format!(
            "{keys} belong to store {:?} since map {}, and the map in use, {}, says store {by_map:?}",
            state.store_name(owner),
            cell.said,
            state.generation
        ),
        None => format!(
            "{keys} changed hands with map {}, and no store says that it owns them; the map in use, {}, says store {by_map:?}",
            cell.said, state.generation
        ),
    }
}

fn keys(unit: &Unit) -> String {
    let start = unit.range.start();
    let end = match &unit.range {
        KeyRange::Span { end: Some(end), .. } => format!("up to {end}"),
        _ => "on".to_owned(),
    };
    let buckets =
        unit.buckets.map_or_else(String::new, |buckets| format!(" ({} of 256 buckets)", buckets.set.len()));
    format!("keys from {start} {end}{buckets}")
}

/// The repairs, given the reports of all shards (the units of a silent shard are unknown), and a state and records that
/// were read after these.
#[must_use]
pub fn plan(state: &ClusterState, records: &BTreeMap<MoveId, MoveRecord>, reports: &[Report]) -> Plan {
    let mut plan = Plan::default();
    let cells = cells(state, reports);
    for cell in cells.iter().filter(|cell| !cell.agrees()) {
        let words = words(state, cell);
        let Some(owner) = cell.owner else {
            plan.problems.push(words);
            continue;
        };
        plan.found.push(words);
        plan.transfers.push(Transfer {
            unit: cell.unit.clone(),
            from: cell.by_map.0,
            to: owner,
            kind: cell.kind.clone(),
        });
    }
    let known =
        reports.iter().flat_map(|report| &report.records).map(|held| held.epoch).max().unwrap_or(Epoch::NONE);
    if !plan.transfers.is_empty() || known > state.generation {
        plan.generation = Some(state.generation.max(known).next());
        if known > state.generation {
            plan.found.push(format!("stores know of map {known}, the one in use is {}", state.generation));
        }
    }
    let contradicted =
        |record: &&MoveRecord| contradicts(state, record, &cells) || claims_again(record, reports);
    for record in records.values().filter(contradicted) {
        plan.found.push(format!(
            "the record of move {} says otherwise than the stores who owns its keys",
            record.id
        ));
        plan.ends.push(record.id);
    }
    let open = |id: &MoveId| {
        records.get(id).is_some_and(|record| !record.phase.is_over()) && !plan.ends.contains(id)
    };
    let terms = terms(records, reports);
    let mut calls = Vec::new();
    let mut problems = Vec::new();
    for report in reports {
        for held in report.records.iter().filter(|held| !open(&held.id)) {
            let term = terms.get(&held.id).copied().unwrap_or(held.term);
            match left_behind(report.store, held, &cells, plan.generation) {
                Ok(asks) => calls.extend(asks.into_iter().map(|ask| Call {
                    store: report.store,
                    ask,
                    id: held.id,
                    term: Term(term.0 + 1),
                    unit: held.unit.clone(),
                })),
                Err(why) => problems.push(format!("store {:?}: {why}", state.store_name(report.store))),
            }
        }
    }
    calls.sort_by_key(|call| call.ask.turn());
    for call in &calls {
        let (store, ask) = (state.store_name(call.store), call.ask.word());
        plan.found.push(format!(
            "store {store:?} is to {ask} {}, left so by move {}",
            keys(&call.unit),
            call.id
        ));
    }
    plan.calls = calls;
    plan.problems.extend(problems);
    plan
}

/// Whether an unfinished move has other owners of its keys than its record says.
fn contradicts(state: &ClusterState, record: &MoveRecord, cells: &[Cell]) -> bool {
    let over = matches!(record.phase, Phase::Done | Phase::Aborted);
    let differs = |leg: &Leg| {
        let of_leg =
            |cell: &&Cell| leg.transfers.iter().any(|transfer| transfer.unit.overlaps_unit(&cell.unit));
        // A removed owner has a replacement.
        let replaced = is_removed(state, leg.owner());
        let other = |of: StoreIdx| of == leg.follower() || (!replaced && of != leg.owner());
        // The owner gave the keys away by a decision that the record does not know.
        let unknown = |cell: &Cell| cell.hidden && cell.said > leg.epoch.unwrap_or(Epoch::NONE);
        cells.iter().filter(of_leg).any(|cell| cell.owner.is_some_and(other) || unknown(cell))
    };
    !over && record.legs.iter().any(differs)
}

/// Whether both stores of a leg say that they own its keys, the former owner by an older map: a router that did not
/// know of the decision told it to serve them again. The move cannot continue from there.
fn claims_again(record: &MoveRecord, reports: &[Report]) -> bool {
    let undecided = matches!(record.phase, Phase::Switching { .. } | Phase::Done | Phase::Aborted);
    let claims = |leg: &Leg, store: StoreIdx, by: &dyn Fn(Epoch, Epoch) -> bool| {
        let Some(epoch) = leg.epoch else { return false };
        let of_leg = |unit: &Unit| leg.transfers.iter().any(|transfer| transfer.unit.overlaps_unit(unit));
        let held = reports.iter().filter(|report| report.store == store).flat_map(|report| &report.records);
        let mut owned = held.filter(|held| {
            let owns = matches!(held.state, HeldState::Owned | HeldState::Tracked);
            owns && held.id == record.id && of_leg(&held.unit)
        });
        owned.any(|held| by(held.epoch, epoch))
    };
    let both = |leg: &Leg| {
        claims(leg, leg.owner(), &|held, epoch| held >= epoch)
            && claims(leg, leg.follower(), &|held, epoch| held < epoch)
    };
    !undecided && record.legs.iter().any(both)
}

fn is_removed(state: &ClusterState, store: StoreIdx) -> bool {
    state.stores.get(usize::from(store.0)).is_some_and(|store| store.state == StoreState::Removed)
}

/// The highest term that meta or a shard has seen of each move.
fn terms(records: &BTreeMap<MoveId, MoveRecord>, reports: &[Report]) -> BTreeMap<MoveId, Term> {
    let mut terms: BTreeMap<MoveId, Term> = records.iter().map(|(id, record)| (*id, record.term)).collect();
    for held in reports.iter().flat_map(|report| &report.records) {
        let term = terms.entry(held.id).or_insert(held.term);
        *term = (*term).max(held.term);
    }
    terms
}

/// What a shard must do with a record that no open move is responsible for.
fn left_behind(
    store: StoreIdx,
    held: &Held,
    cells: &[Cell],
    generation: Option<Epoch>,
) -> Result<Vec<Ask>, String> {
    if matches!(held.state, HeldState::Gone | HeldState::Dropping) {
        return Ok(Vec::new());
    }
    let of_unit: Vec<_> = cells.iter().filter(|cell| cell.unit.overlaps_unit(&held.unit)).collect();
    let owners: BTreeSet<_> = of_unit.iter().map(|cell| cell.owner).collect();
    let keys = keys(&held.unit);
    let owner = match owners.iter().collect::<Vec<_>>()[..] {
        [Some(owner)] => *owner,
        [None] => return Err(format!("{keys} are left as they are: nobody can say whose they are")),
        _ => return Err(format!("{keys} are left as they are: parts of them belong to different stores")),
    };
    let changed = of_unit.iter().any(|cell| !cell.agrees());
    let by_now = of_unit.iter().map(|cell| cell.epoch()).max().unwrap_or(Epoch::NONE);
    let epoch = generation.filter(|_| changed).unwrap_or(by_now);
    let (release, drop) = (Ask::Release { epoch }, Ask::Drop { epoch });
    let hidden = of_unit.iter().any(|cell| cell.hidden);
    let claimed = of_unit.iter().all(|cell| cell.claimed);
    Ok(match (held.state, owner == store) {
        (HeldState::Owned, true) => Vec::new(),
        (HeldState::Tracked, true) => vec![Ask::Forget],
        (HeldState::Frozen, true) => vec![Ask::Unfreeze, Ask::Forget],
        // Another store has taken the unit over, and says so itself.
        (HeldState::Owned | HeldState::Tracked, false) if claimed => vec![Ask::Freeze, release, drop],
        (HeldState::Frozen, false) if claimed => vec![release, drop],
        // Its copy is dropped in a later run, when the owner serves the keys.
        (HeldState::Tracked, false) if hidden => vec![Ask::Freeze, release],
        (HeldState::Frozen, false) if hidden => vec![release],
        (HeldState::Owned | HeldState::Tracked | HeldState::Frozen, false) => {
            return Err(format!(
                "it owns {keys}, and by the map they are another store's, which knows nothing of them: nothing is dropped"
            ));
        }
        (HeldState::Following { sealed: true }, true) => vec![Ask::Open { epoch }],
        (HeldState::Following { sealed: false }, true) => match held.through {
            Some(last) if held.epoch > Epoch::NONE => {
                vec![Ask::Seal { last }, Ask::Open { epoch: generation.unwrap_or(by_now) }]
            }
            _ => {
                return Err(format!(
                    "{keys} are its own by the map, and it has only a part of a copy of them"
                ));
            }
        },
        // A copy of keys that never changed hands is dropped; a copy of others only if their owner has them, so never
        // the only one.
        (HeldState::Following { .. }, false) if !hidden && held.epoch == Epoch::NONE => {
            vec![Ask::Drop { epoch: Epoch::NONE }]
        }
        (HeldState::Following { .. }, false) if claimed => vec![drop],
        (HeldState::Following { .. }, false) => {
            return Err(format!("its copy of {keys} stays: their owner does not say that it has them"));
        }
        (HeldState::Gone | HeldState::Dropping, _) => Vec::new(),
    })
}
