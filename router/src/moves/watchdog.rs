//! Looks after the moves of other coordinators while keys are held up: [`kindred_router_core::moves::watchdog`] decides,
//! here it is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::{Answer, Step, StepName, Ticket, UnitCall, What};
use kindred_router_core::moves::watchdog::{Settings, Watchdog};
use kindred_router_core::parts::store_ix;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::rate::Rate;
use super::runner::Copied;
use super::units::UnitSteps;
use super::{record_steps, records};
use crate::app::App;
use crate::meta::Meta;

/// How often to look while there is something to wait for.
const EVERY: Duration = Duration::from_millis(25);

/// For as long as the router runs; `me` is its coordinators' name.
pub(super) async fn run(app: Arc<App>, meta: Arc<Meta>, me: String, settings: Settings) {
    let began = Instant::now();
    let mut entries = meta.entries();
    let mut known = records(&entries.borrow_and_update());
    let mut dogs: BTreeMap<MoveId, Watchdog> = BTreeMap::new();
    let mut steps: JoinSet<(MoveId, Ticket, Answer)> = JoinSet::new();
    loop {
        dogs.retain(|id, _| known.contains_key(id));
        for (id, (record, version)) in &known {
            let dog = dogs.entry(*id).or_insert_with(|| Watchdog::new(settings.clone(), 0));
            for step in dog.poll(began.elapsed(), &me, record, *version) {
                spawn(&mut steps, &app, &meta, record, step);
            }
        }
        let waits = dogs.values().any(Watchdog::waits);
        tokio::select! {
            changed = entries.changed() => match changed {
                Ok(()) => known = records(&entries.borrow_and_update()),
                Err(_) => return,
            },
            Some(Ok((id, ticket, answer))) = steps.join_next(), if !steps.is_empty() => {
                if let Some(dog) = dogs.get_mut(&id) {
                    dog.answer(ticket, &answer, began.elapsed());
                }
            }
            () = tokio::time::sleep(EVERY), if waits => {}
        }
    }
}

fn spawn(
    steps: &mut JoinSet<(MoveId, Ticket, Answer)>,
    app: &Arc<App>,
    meta: &Arc<Meta>,
    record: &MoveRecord,
    step: Step,
) {
    let Step { ticket, name, what } = step;
    let (id, coordinator) = (record.id, record.coordinator.clone());
    let (app, meta) = (app.clone(), meta.clone());
    steps.spawn(async move {
        let answer = match what {
            What::Swap { record, version } => {
                tracing::warn!(move_id = id.0, coordinator, "an attempt without a decision is given up");
                record_steps::swap(&app, &meta, record, version).await
            }
            What::Unit(call) => at_store(&app, id, name, &call).await,
            // Not what watchdogs do.
            What::Read | What::Decide { .. } => Answer::Conflict,
        };
        if let Answer::Failed { reason } = &answer {
            tracing::debug!(
                move_id = id.0,
                step = name.as_str(),
                reason,
                "a step for another coordinator failed"
            );
        }
        (id, ticket, answer)
    });
}

async fn at_store(app: &App, id: MoveId, name: StepName, call: &UnitCall) -> Answer {
    // The record may be of stores that this router is about to hear of.
    if [call.owner, call.follower].iter().any(|store| store_ix(*store).0 >= app.stores.len()) {
        return Answer::Failed { reason: "this router does not know the store yet".to_owned() };
    }
    let (rate, copied) = (Rate::new(0), Copied::default());
    UnitSteps { app, id, call, rate: &rate, copied: &copied }.run(name).await
}
