//! Watches over the moves of other coordinators while they hold keys. [`kindred_router_core::moves::watchdog`] decides;
//! this module acts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::{Answer, Step, Ticket, together};
use kindred_router_core::moves::watchdog::{Settings, Watchdog};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::keys::records;
use super::steps::carry_out_beside;
use crate::meta::Meta;
use crate::meta::client::Entries;
use crate::meta::live::Live;
use crate::moves::mover::Mover;

/// How often moves are looked at while something is waited for.
pub const EVERY: Duration = Duration::from_millis(25);

/// The watchdogs of a router, one a move. No I/O and no clock.
#[derive(Debug)]
pub struct Dogs {
    /// The name of this router's own coordinators.
    me: String,
    settings: Settings,
    known: BTreeMap<MoveId, (MoveRecord, i64)>,
    dogs: BTreeMap<MoveId, Watchdog>,
}

impl Dogs {
    /// Those of the router whose own coordinators have this name.
    #[must_use]
    pub fn new(me: String, settings: Settings) -> Self {
        Self { me, settings, known: BTreeMap::new(), dogs: BTreeMap::new() }
    }

    /// Meta has these keys.
    pub fn hear(&mut self, entries: &Entries) {
        self.known = records(entries);
    }

    /// The steps to begin: groups that run together, with the move and its coordinator.
    pub fn poll(&mut self, now: Duration) -> Vec<((MoveId, String), Vec<Step>)> {
        self.dogs.retain(|id, _| self.known.contains_key(id));
        let mut begun = Vec::new();
        for (id, (record, version)) in &self.known {
            let dog = self.dogs.entry(*id).or_insert_with(|| Watchdog::new(self.settings.clone(), 0));
            for some in together(dog.poll(now, &self.me, record, *version)) {
                begun.push(((*id, record.coordinator.clone()), some));
            }
        }
        begun
    }

    /// Takes the answers to steps of a move.
    pub fn answer(&mut self, id: MoveId, answers: Vec<(Ticket, Answer)>, now: Duration) {
        if let Some(dog) = self.dogs.get_mut(&id) {
            answers.into_iter().for_each(|(ticket, answer)| dog.answer(ticket, &answer, now));
        }
    }

    /// Whether to poll again every [`EVERY`] while no record changes.
    #[must_use]
    pub fn wait(&self) -> bool {
        self.dogs.values().any(Watchdog::waits)
    }
}

/// Runs for ever; `me` is the name of this router's own coordinators.
pub(super) async fn run(mover: Arc<Mover>, meta: Arc<Meta>, me: String, settings: Settings) {
    let began = Instant::now();
    let mut entries = meta.entries();
    let mut dogs = Dogs::new(me, settings);
    dogs.hear(&entries.borrow_and_update());
    let mut steps: JoinSet<(MoveId, Vec<(Ticket, Answer)>)> = JoinSet::new();
    loop {
        for (of, some) in dogs.poll(began.elapsed()) {
            let (mover, meta) = (mover.clone(), meta.clone());
            steps.spawn(async move {
                let id = of.0;
                let live = Live { keeper: mover.keeper.clone(), meta };
                (id, carry_out_beside(mover, &live, of, some).await)
            });
        }
        tokio::select! {
            changed = entries.changed() => match changed {
                Ok(()) => dogs.hear(&entries.borrow_and_update()),
                Err(_) => return,
            },
            Some(Ok((id, answers))) = steps.join_next(), if !steps.is_empty() => {
                dogs.answer(id, answers, began.elapsed());
            }
            () = tokio::time::sleep(EVERY), if dogs.wait() => {}
        }
    }
}
