//! The task of one move: runs what its desk begins, and brings the answers back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::map::StoreIdx;
use kindred_router_core::moves::machine::{Status, TICK};
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::{Step, StepName};
use kindred_router_core::parts::store_ix;
use kindred_transport::failpoint::Side;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Moves;
use super::desk::{self, Desk, Writing, Written};
use super::rate::Rate;
use super::steps::{Answered, carry_out};
use crate::failpoint;
use crate::meta::Meta;
use crate::meta::live::Live;
use crate::moves::mover::Mover;

/// How often changed progress is written to meta.
const REPORT: Duration = Duration::from_secs(1);

pub(super) struct Runner {
    mover: Arc<Mover>,
    meta: Arc<Meta>,
    desk: Desk,
    rate: Arc<Rate>,
    lease: i64,
    began: Instant,
    steps: JoinSet<(StepName, Vec<Answered>)>,
    writes: JoinSet<Written>,
}

impl Runner {
    /// The runner of a move with this record, for a claim that was written under `lease`.
    pub(super) fn new(moves: &Moves, record: MoveRecord, version: i64, lease: i64) -> Self {
        let router = moves.mover.identity.name.clone();
        Self {
            mover: moves.mover.clone(),
            meta: moves.meta.clone(),
            desk: Desk::new(moves.me.clone(), router, moves.settings.machine.clone(), record, version),
            rate: moves.rate.clone(),
            lease,
            began: Instant::now(),
            steps: JoinSet::new(),
            writes: JoinSet::new(),
        }
    }

    /// Runs until the move is over or another router has taken it over.
    pub(super) async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut report = tokio::time::interval(REPORT);
        let mut entries = self.meta.entries();
        let id = self.desk.id();
        loop {
            let gone = self.stores_gone();
            for steps in self.desk.poll(self.began.elapsed(), gone) {
                self.spawn(steps);
            }
            let heard = self.desk.hear(&self.meta.entries().borrow());
            self.write(heard);
            if self.desk.reports_now() {
                report.reset_immediately();
            }
            match self.desk.status() {
                Status::Running => {}
                Status::Fenced => {
                    tracing::warn!(move_id = id.0, "another router has taken the move over");
                    return;
                }
                Status::Over => break,
            }
            tokio::select! {
                Some(step) = self.steps.join_next(), if !self.steps.is_empty() => match step {
                    Ok((name, answers)) => self.desk.answer(name, answers, self.began.elapsed()),
                    Err(error) => tracing::error!(move_id = id.0, %error, "a step of a move failed badly"),
                },
                Some(Ok(written)) = self.writes.join_next(), if !self.writes.is_empty() => {
                    self.desk.written(written);
                }
                _ = tick.tick() => {}
                _ = report.tick() => {
                    let report = self.desk.report();
                    self.write(report);
                }
                // Only wakes the loop, which then looks for requests.
                _ = entries.changed() => {}
            }
        }
        // The last report describes the end.
        self.settle_writes().await;
        let report = self.desk.report();
        self.write(report);
        self.settle_writes().await;
        self.leave().await;
    }

    /// The stores of the move that were removed or replaced since.
    fn stores_gone(&self) -> BTreeSet<StoreIdx> {
        let is_gone = |store: &StoreIdx| {
            let at = store_ix(*store);
            at.0 < self.mover.stores.len() && self.mover.stores.get(at).is_removed()
        };
        self.desk.stores().filter(is_gone).collect()
    }

    async fn settle_writes(&mut self) {
        while let Some(written) = self.writes.join_next().await {
            if let Ok(written) = written {
                self.desk.written(written);
            }
        }
    }

    /// Runs steps that were grouped to run together.
    fn spawn(&mut self, steps: Vec<Step>) {
        let Some(name) = steps.first().map(|step| step.name) else { return };
        let (mover, live, id) = (self.mover.clone(), self.live(), self.desk.id());
        let (rate, copied) = (self.rate.clone(), self.desk.copied().clone());
        self.steps.spawn(async move {
            failpoint::reach(name, Side::Before).await;
            let answers = carry_out(mover, &live, id, (rate, copied), steps).await;
            failpoint::reach(name, Side::After).await;
            (name, answers)
        });
    }

    fn live(&self) -> Live {
        Live { keeper: self.mover.keeper.clone(), meta: self.meta.clone() }
    }

    /// Writes to meta beside the steps.
    fn write(&mut self, writing: Option<Writing>) {
        let Some(writing) = writing else { return };
        let (live, id, lease) = (self.live(), self.desk.id(), self.lease);
        self.writes.spawn(async move { desk::write(&live, id, lease, writing).await });
    }

    /// Deletes the claim, retrying while meta is away: its lease lives on because other claims share it.
    async fn leave(&self) {
        let live = self.live();
        while let Err(error) = desk::leave(&live, self.desk.id(), self.lease).await {
            tracing::debug!(move_id = self.desk.id().0, %error, "a claim was not taken back");
            tokio::time::sleep(REPORT).await;
        }
    }
}
