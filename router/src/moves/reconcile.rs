//! Compares the units that shards say they own with meta's map, and makes them agree when an operator asks.
//! [`kindred_router_core::moves::reconcile`] decides; this module asks and acts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::ids::{Epoch, MoveId, Revision, Term};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::state::{ClusterState, StoreState};
use kindred_partition_config::unit::Unit;
use kindred_partition_config::validate::FieldError;
use kindred_proto::shard_v1::{self as pb, unit_answer::Answer as Made, unit_call::Call as OnWire};
use kindred_router_core::moves::reconcile::repairs::{Ask, Call, Plan, elsewhere, plan};
use kindred_router_core::moves::reconcile::{Held, HeldState, Report};
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::parts::store_ix;
use kindred_router_core::store::StoreIx;

use super::keys::{record_key, records};
use super::mover::Mover;
use super::units::{Failed, UnitStores, alone, on_wire};
use crate::meta::change::change_state;
use crate::meta::client::{Expect, Write};
use crate::meta::store::MetaStore;
use crate::meta::{ChangeError, Meta, Next};

/// How often the shards are asked for their units.
const LOOK: Duration = Duration::from_secs(5);

/// How often a store is asked to gather the keys of a unit; it works for 200 ms each time.
const TRACKS_MAX: usize = 100;

/// The shards' answers about their units.
#[derive(Debug, Default)]
pub struct Heard {
    /// The reports of the shards that answered.
    pub reports: Vec<Report>,
    /// The highest number of a move that any of them knows.
    pub highest: u64,
    /// The shards that did not answer, with the reasons.
    pub silent: Vec<(String, String)>,
}

/// Asks every shard in the cluster's state for its units.
pub async fn ask(router: &impl UnitStores, state: &ClusterState) -> Heard {
    let there = state.stores.iter().enumerate().filter(|(_, store)| store.state != StoreState::Removed);
    let stores = there.filter_map(|(at, _)| Some(StoreIdx(u16::try_from(at).ok()?)));
    let known = stores.filter(|at| router.knows(store_ix(*at)));
    let shards = known.filter(|at| router.is_shard(store_ix(*at)));
    let answers = join_all(shards.map(async |at| (at, router.list(store_ix(at)).await))).await;
    let mut heard = Heard::default();
    for (at, answer) in answers {
        match answer {
            Ok(answer) => {
                heard.highest = heard.highest.max(answer.highest_move);
                let records = answer.records.into_iter().filter_map(held).collect();
                heard.reports.push(Report { store: at, records });
            }
            Err(status) => heard.silent.push((router.name(store_ix(at)), status.message().to_owned())),
        }
    }
    heard
}

/// A unit's record from the wire; `None` for a state that this version does not know, whose unit is left alone.
#[must_use]
pub fn held(record: pb::UnitRecord) -> Option<Held> {
    let state = match record.state() {
        pb::UnitState::Tracked => HeldState::Tracked,
        pb::UnitState::Frozen => HeldState::Frozen,
        pb::UnitState::Following => HeldState::Following { sealed: record.final_revision > 0 },
        pb::UnitState::Owned => HeldState::Owned,
        pb::UnitState::Dropping => HeldState::Dropping,
        pb::UnitState::Gone => HeldState::Gone,
        pb::UnitState::Unspecified => return None,
    };
    let by = record.r#move?;
    let unit = by.unit?;
    let range = unit.range?;
    let buckets = Unit::buckets_from_wire(&unit.buckets, unit.prefix_len)?;
    let unit = Unit { range: KeyRange::from_wire(range.key, range.range_end), buckets };
    let (epoch, through) = (Epoch(record.epoch), Revision::from_wire(record.through));
    Some(Held { id: MoveId(by.r#move), term: Term(by.term), unit, state, epoch, through })
}

fn only(records: &BTreeMap<MoveId, (MoveRecord, i64)>) -> BTreeMap<MoveId, MoveRecord> {
    records.iter().map(|(id, (record, _))| (*id, record.clone())).collect()
}

/// The plan to reconcile meta with these answers, as far as this router knows meta.
pub fn planned(meta: &impl MetaStore, heard: &Heard) -> Plan {
    // The records are read after the shards have answered, so they contain all decisions that the answers reflect.
    plan(&meta.state(), &only(&records(&meta.entries())), &heard.reports)
}

/// Makes map, configs and move records in meta agree with the shards' answers, in one transaction. Returns the plan,
/// whose calls to shards are still to be made.
///
/// # Errors
/// When meta cannot be written, or the resulting state would not be valid.
pub async fn apply_to_meta<E: From<Vec<FieldError>>>(
    meta: &impl MetaStore,
    heard: &Heard,
) -> Result<Plan, ChangeError<E>> {
    let mut made = Plan::default();
    change_state(meta, |state| {
        let records = records(&meta.entries());
        let plan = plan(state, &only(&records), &heard.reports);
        let next = next(state, &plan, &records, heard.highest)?;
        made = plan;
        Ok(next)
    })
    .await?;
    Ok(made)
}

fn next(
    state: &ClusterState,
    plan: &Plan,
    records: &BTreeMap<MoveId, (MoveRecord, i64)>,
    highest: u64,
) -> Result<Next, Vec<FieldError>> {
    let mut next = match plan.generation {
        Some(generation) => state.with_owners(&plan.transfers, generation)?,
        None => state.clone(),
    };
    if next.last_move < highest {
        next.last_move = highest;
        next.revision = state.revision + 1;
    }
    let mut next = Next::from(next);
    for id in &plan.ends {
        let Some((record, version)) = records.get(id) else { continue };
        let ended =
            record.ended("the stores own otherwise than its record said: it was ended by kindred reconcile");
        next.expects.push(Expect { key: record_key(*id), mod_revision: *version });
        next.writes.push(Write::put(record_key(*id), ended.to_json()));
    }
    Ok(next)
}

/// Why meta and the shards were not made to agree.
#[derive(Debug)]
pub enum NotMade<E> {
    /// This shard did not answer, with the reason. Nothing is done without it.
    Silent(String, String),
    /// Meta cannot be written, or the resulting state would not be valid.
    Meta(ChangeError<E>),
}

/// Makes both agree: [`apply_to_meta`], then the plan's calls to shards. Returns the plan, and the first call that failed
/// with the reason; those behind it are not made, because they may depend on it.
///
/// # Errors
/// When a shard did not answer, or meta cannot be written.
pub async fn apply<E: From<Vec<FieldError>>>(
    router: &impl UnitStores,
    meta: &impl MetaStore,
    heard: &Heard,
) -> Result<(Plan, Option<(Call, String)>), NotMade<E>> {
    if let Some((store, why)) = heard.silent.first() {
        return Err(NotMade::Silent(store.clone(), why.clone()));
    }
    let plan = apply_to_meta(meta, heard).await.map_err(NotMade::Meta)?;
    for one in &plan.calls {
        if let Err(why) = call(router, one).await {
            let failed = Some((one.clone(), why));
            return Ok((plan, failed));
        }
    }
    Ok((plan, None))
}

/// Makes one call of a plan to a shard.
///
/// # Errors
/// The shard's message when it does not do it.
pub async fn call(router: &impl UnitStores, call: &Call) -> Result<(), String> {
    let store = store_ix(call.store);
    let by = || Some(pb::UnitMove { r#move: call.id.0, term: call.term.0, unit: Some(on_wire(&call.unit)) });
    let generation = router.generation().0;
    let asked = match call.ask {
        Ask::Freeze => {
            tracked(router, store, by()).await?;
            OnWire::Freeze(pb::FreezeRequest { r#move: by(), generation })
        }
        Ask::Release { epoch } => OnWire::Release(pb::ReleaseRequest { r#move: by(), epoch: epoch.0 }),
        Ask::Seal { last } => {
            let final_revision = last.get();
            OnWire::Seal(pb::SealRequest { r#move: by(), final_revision, generation, imported: 0 })
        }
        Ask::Open { epoch } => OnWire::Open(pb::OpenRequest { r#move: by(), epoch: epoch.0 }),
        Ask::Unfreeze => OnWire::Unfreeze(pb::UnfreezeRequest { r#move: by() }),
        Ask::Drop { epoch } => OnWire::Drop(pb::DropRequest { r#move: by(), epoch: epoch.0 }),
        Ask::Forget => OnWire::Forget(pb::ForgetRequest { r#move: by() }),
    };
    alone(router, store, asked).await.map(drop).map_err(Failed::reason)
}

/// Makes a store gather the keys of a unit into an index of their own, because only such a unit can be frozen.
async fn tracked(router: &impl UnitStores, store: StoreIx, by: Option<pb::UnitMove>) -> Result<(), String> {
    for _ in 0..TRACKS_MAX {
        let request = OnWire::Track(pb::TrackRequest { r#move: by.clone() });
        match alone(router, store, request).await.map_err(Failed::reason)? {
            Made::Track(tracked) if !tracked.ready => {}
            _ => return Ok(()),
        }
    }
    Err("it is still bringing the keys together: run it again".to_owned())
}

/// Runs for ever: checks whether shards own other units than the map says, and publishes the differences.
pub(super) async fn watch(mover: Arc<Mover>, meta: Arc<Meta>) {
    let cluster = &mover.keeper.cluster;
    let mut before: Vec<String> = Vec::new();
    loop {
        mover.keeper.stores.ticks().sleep(LOOK).await;
        let heard = ask(&mover, &cluster.state()).await;
        let records = records(&meta.entries().borrow());
        let moves: Vec<_> = records.values().map(|(record, _)| record).collect();
        let now = elsewhere(&cluster.state(), &moves, &heard.reports);
        // A difference that is seen only once may be a change in progress.
        let stays: Vec<String> = now.iter().filter(|line| before.contains(line)).cloned().collect();
        cluster.note_elsewhere(stays);
        before = now;
    }
}
