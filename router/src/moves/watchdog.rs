//! Watches over the moves of other coordinators while they hold keys. [`kindred_router_core::moves::watchdog`] decides;
//! this module acts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::{Answer, Step, StepName, Ticket, UnitCall, What, together};
use kindred_router_core::moves::watchdog::{Settings, Watchdog};
use kindred_router_core::parts::store_ix;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::rate::Rate;
use super::runner::Copied;
use super::units::LegSteps;
use super::{record_steps, records};
use crate::meta::Meta;
use crate::moves::mover::Mover;

/// How often moves are looked at while something is waited for.
const EVERY: Duration = Duration::from_millis(25);

/// Runs for ever; `me` is the name of this router's own coordinators.
pub(super) async fn run(mover: Arc<Mover>, meta: Arc<Meta>, me: String, settings: Settings) {
    let began = Instant::now();
    let mut entries = meta.entries();
    let mut known = records(&entries.borrow_and_update());
    let mut dogs: BTreeMap<MoveId, Watchdog> = BTreeMap::new();
    let mut steps: JoinSet<(MoveId, Vec<(Ticket, Answer)>)> = JoinSet::new();
    loop {
        dogs.retain(|id, _| known.contains_key(id));
        for (id, (record, version)) in &known {
            let dog = dogs.entry(*id).or_insert_with(|| Watchdog::new(settings.clone(), 0));
            for some in together(dog.poll(began.elapsed(), &me, record, *version)) {
                spawn(&mut steps, &mover, &meta, record, some);
            }
        }
        let waits = dogs.values().any(Watchdog::waits);
        tokio::select! {
            changed = entries.changed() => match changed {
                Ok(()) => known = records(&entries.borrow_and_update()),
                Err(_) => return,
            },
            Some(Ok((id, answers))) = steps.join_next(), if !steps.is_empty() => {
                if let Some(dog) = dogs.get_mut(&id) {
                    for (ticket, answer) in answers {
                        dog.answer(ticket, &answer, began.elapsed());
                    }
                }
            }
            () = tokio::time::sleep(EVERY), if waits => {}
        }
    }
}

fn spawn(
    steps: &mut JoinSet<(MoveId, Vec<(Ticket, Answer)>)>,
    mover: &Arc<Mover>,
    meta: &Arc<Meta>,
    record: &MoveRecord,
    some: Vec<Step>,
) {
    let Some(name) = some.first().map(|step| step.name) else { return };
    let (id, coordinator) = (record.id, record.coordinator.clone());
    let (mover, meta) = (mover.clone(), meta.clone());
    steps.spawn(async move {
        let (mut answers, mut tickets, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for Step { ticket, what, .. } in some {
            match what {
                What::Swap { record, version } => {
                    tracing::warn!(move_id = id.0, coordinator, "an attempt without a decision is given up");
                    answers.push((ticket, record_steps::swap(&mover.keeper, &meta, record, version).await));
                }
                What::Unit(call) => {
                    tickets.push(ticket);
                    calls.push(call);
                }
                // Watchdogs make no such steps.
                What::Read | What::Decide { .. } => answers.push((ticket, Answer::Conflict)),
            }
        }
        if !calls.is_empty() {
            answers.extend(tickets.into_iter().zip(at_stores(&mover, id, name, &calls).await));
        }
        for (_, answer) in &answers {
            if let Answer::Failed { reason } = answer {
                let step = name.as_str();
                tracing::debug!(move_id = id.0, step, reason, "a step for another coordinator failed");
            }
        }
        (id, answers)
    });
}

async fn at_stores(mover: &Mover, id: MoveId, name: StepName, calls: &[UnitCall]) -> Vec<Answer> {
    // The record may name stores that this router has not heard of yet.
    let ends = calls.iter().flat_map(|call| [call.owner, call.follower]);
    if ends.into_iter().any(|store| store_ix(store).0 >= mover.stores.len()) {
        let reason = "this router does not know the store yet".to_owned();
        return vec![Answer::Failed { reason }; calls.len()];
    }
    let (rate, copied) = (Rate::new(0), Copied::default());
    LegSteps { mover, id, calls, rate: &rate, copied: &copied }.run(name).await
}
