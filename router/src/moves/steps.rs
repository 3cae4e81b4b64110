//! Carries out the steps of coordinators and watchdogs, over any stores and any meta store.

use std::sync::Arc;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::step::{Answer, Step, StepName, Ticket, UnitAt, UnitCall, What};
use kindred_router_core::parts::store_ix;

use super::rate::{Copied, Rate};
use super::record_steps;
use super::units::{LegSteps, UnitStores};
use crate::meta::store::MetaStore;

/// A step's ticket, its unit if it has one, and the answer.
pub type Answered = (Ticket, Option<UnitAt>, Answer);

/// Carries out steps of a coordinator that were grouped to run together.
pub async fn carry_out(
    stores: impl UnitStores,
    meta: &impl MetaStore,
    id: MoveId,
    (rate, copied): (Arc<Rate>, Arc<Copied>),
    steps: Vec<Step>,
) -> Vec<Answered> {
    let Some(name) = steps.first().map(|step| step.name) else { return Vec::new() };
    let (mut answers, mut units, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for Step { ticket, what, .. } in steps {
        let answer = match what {
            What::Read => record_steps::read(meta, id).await,
            What::Swap { record, version } => record_steps::swap(meta, record, version).await,
            What::Decide { record, version, leg } => record_steps::decide(meta, &record, version, leg).await,
            What::Unit(call) => {
                units.push((ticket, Some(call.at)));
                calls.push(call);
                continue;
            }
        };
        answers.push((ticket, None, answer));
    }
    if !calls.is_empty() {
        let steps = LegSteps { stores, id, calls, rate, copied };
        let of_units = units.into_iter().zip(steps.run(name).await);
        answers.extend(of_units.map(|((ticket, at), answer)| (ticket, at, answer)));
    }
    answers
}

/// Carries out steps of a watchdog.
pub async fn carry_out_beside(
    stores: impl UnitStores,
    meta: &impl MetaStore,
    (id, coordinator): (MoveId, String),
    some: Vec<Step>,
) -> Vec<(Ticket, Answer)> {
    let Some(name) = some.first().map(|step| step.name) else { return Vec::new() };
    let (mut answers, mut tickets, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for Step { ticket, what, .. } in some {
        match what {
            What::Swap { record, version } => {
                tracing::warn!(move_id = id.0, coordinator, "an attempt without a decision is given up");
                answers.push((ticket, record_steps::swap(meta, record, version).await));
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
        answers.extend(tickets.into_iter().zip(at_stores(stores, id, name, calls).await));
    }
    for (_, answer) in &answers {
        if let Answer::Failed { reason } = answer {
            let step = name.as_str();
            tracing::debug!(move_id = id.0, step, reason, "a step for another coordinator failed");
        }
    }
    answers
}

async fn at_stores(stores: impl UnitStores, id: MoveId, name: StepName, calls: Vec<UnitCall>) -> Vec<Answer> {
    // The record may name stores that this router has not heard of yet.
    let mut ends = calls.iter().flat_map(|call| [call.owner, call.follower]);
    if ends.any(|store| !stores.knows(store_ix(store))) {
        let reason = "this router does not know the store yet".to_owned();
        return vec![Answer::Failed { reason }; calls.len()];
    }
    let rate = Arc::new(Rate::new(0));
    LegSteps { stores, id, calls, rate, copied: Arc::default() }.run(name).await
}
