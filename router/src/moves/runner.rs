//! The task of one move: polls its machine, runs the steps, and brings back the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::machine::{Machine, Request, Status, TICK};
use kindred_router_core::moves::record::{MoveRecord, Phase};
use kindred_router_core::moves::step::{Answer, Step, StepName, Ticket, What};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::rate::Rate;
use super::units::UnitSteps;
use super::{Moves, Progress, coordinator_key, record_steps, request_key};
use crate::app::App;
use crate::failpoint;
use crate::meta::Meta;
use crate::meta::client::{Expect, Write};

/// How often the progress is written to meta, when it has changed.
const REPORT: Duration = Duration::from_secs(1);

/// What was copied by the steps of one move.
#[derive(Debug, Default)]
pub(super) struct Copied {
    pub keys: AtomicU64,
    pub bytes: AtomicU64,
}

/// What an operator asks of a move; the coordinator puts its answer in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// `abort`, `reverse` or `complete`.
    pub request: String,
    /// Absent until it is answered; then empty, or why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

pub(super) struct Runner {
    app: Arc<App>,
    meta: Arc<Meta>,
    id: MoveId,
    machine: Machine,
    rate: Arc<Rate>,
    lease: i64,
    copied: Arc<Copied>,
    began: Instant,
    steps: JoinSet<(Ticket, StepName, Answer)>,
    phase: Phase,
    frozen_at: Option<Instant>,
    pause: Option<Duration>,
    reported: Progress,
    /// The version of the last request that was answered.
    answered: i64,
    /// There is something that operators wait for.
    report_now: bool,
}

impl Runner {
    pub(super) fn new(moves: &Moves, record: MoveRecord, version: i64, lease: i64) -> Self {
        let (id, phase) = (record.id, record.phase);
        Self {
            app: moves.app.clone(),
            meta: moves.meta.clone(),
            id,
            machine: Machine::new(moves.me.clone(), moves.settings.machine.clone(), record, version),
            rate: moves.rate.clone(),
            lease,
            copied: Arc::default(),
            began: Instant::now(),
            steps: JoinSet::new(),
            phase,
            frozen_at: None,
            pause: None,
            reported: Progress::default(),
            answered: 0,
            report_now: false,
        }
    }

    /// Until the move is over, or another router has it.
    pub(super) async fn run(mut self) -> MoveId {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut report = tokio::time::interval(REPORT);
        let mut entries = self.meta.entries();
        loop {
            for step in self.machine.poll(self.began.elapsed()) {
                self.spawn(step);
            }
            self.note_phase();
            if std::mem::take(&mut self.report_now) {
                report.reset_immediately();
            }
            match self.machine.status() {
                Status::Running => {}
                Status::Fenced => {
                    tracing::warn!(move_id = self.id.0, "another router has taken the move over");
                    return self.id;
                }
                Status::Over => break,
            }
            tokio::select! {
                Some(step) = self.steps.join_next(), if !self.steps.is_empty() => match step {
                    Ok((ticket, name, answer)) => self.answer(ticket, name, answer),
                    Err(error) => tracing::error!(move_id = self.id.0, %error, "a step of a move failed badly"),
                },
                _ = tick.tick() => {}
                _ = report.tick() => self.report().await,
                changed = entries.changed() => if changed.is_ok() { self.hear().await },
            }
        }
        self.report().await;
        self.leave().await;
        self.id
    }

    fn spawn(&mut self, step: Step) {
        let Step { ticket, name, what } = step;
        match name {
            StepName::BeginSwitch => self.frozen_at = None,
            StepName::Freeze if self.frozen_at.is_none() => self.frozen_at = Some(Instant::now()),
            _ => {}
        }
        let (app, meta, id) = (self.app.clone(), self.meta.clone(), self.id);
        let (rate, copied) = (self.rate.clone(), self.copied.clone());
        self.steps.spawn(async move {
            failpoint::reach(name.as_str(), "before").await;
            let answer = match what {
                What::Read => record_steps::read(&meta, id).await,
                What::Swap { record, version } => record_steps::swap(&app, &meta, record, version).await,
                What::Decide { record, version, leg } => {
                    record_steps::decide(&app, &meta, &record, version, leg).await
                }
                What::Unit(call) => {
                    let steps = UnitSteps { app: &app, id, call: &call, rate: &rate, copied: &copied };
                    steps.run(name).await
                }
            };
            failpoint::reach(name.as_str(), "after").await;
            (ticket, name, answer)
        });
    }

    fn answer(&mut self, ticket: Ticket, name: StepName, answer: Answer) {
        match &answer {
            Answer::Failed { reason } => {
                tracing::debug!(move_id = self.id.0, step = name.as_str(), reason, "a step failed");
            }
            Answer::Lost { reason } | Answer::Different { reason } | Answer::Refused { reason } => {
                tracing::warn!(move_id = self.id.0, step = name.as_str(), reason, "a move cannot go on so");
            }
            Answer::Done if name == StepName::Open || name == StepName::Unfreeze => {
                if let Some(frozen_at) = self.frozen_at {
                    self.pause = Some(frozen_at.elapsed());
                    self.report_now = true;
                }
            }
            _ => {}
        }
        self.machine.answer(ticket, answer, self.began.elapsed());
    }

    fn note_phase(&mut self) {
        let record = self.machine.record();
        if record.phase != self.phase {
            let (id, phase, reason) = (self.id.0, record.phase, record.reason.clone());
            tracing::info!(move_id = id, ?phase, reason, pause = ?self.pause, "a move goes on");
            self.phase = phase;
        }
    }

    fn progress(&self) -> Progress {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Progress {
            router: self.app.identity.name.clone(),
            keys_copied: self.copied.keys.load(Ordering::Relaxed),
            bytes_copied: self.copied.bytes.load(Ordering::Relaxed),
            lag_micros: self.machine.lag().map(micros),
            pause_micros: self.pause.map(micros),
        }
    }

    /// Lets operators see how far the move is. Lost reports are followed by others.
    async fn report(&mut self) {
        let progress = self.progress();
        if progress == self.reported {
            return;
        }
        let value = serde_json::to_vec(&progress).unwrap_or_default();
        let write = Write { lease: self.lease, ..Write::put(coordinator_key(self.id), value) };
        // Only while the claim is still there: it must not come back without its lease.
        let claim = self.meta.entries().borrow().keys.get(&coordinator_key(self.id)).map(|c| c.mod_revision);
        let Some(mod_revision) = claim else { return };
        let expect = Expect { key: coordinator_key(self.id), mod_revision };
        if let Ok(Some(_)) = self.meta.client.commit(&[expect], vec![write]).await {
            self.reported = progress;
        }
    }

    /// Answers what an operator asks of the move.
    async fn hear(&mut self) {
        let key = request_key(self.id);
        let stored = self.meta.entries().borrow().keys.get(&key).cloned();
        let Some(stored) = stored.filter(|stored| stored.mod_revision > self.answered) else { return };
        let Ok(asked) = serde_json::from_slice::<Asked>(&stored.value) else { return };
        if asked.refused.is_some() {
            return;
        }
        let result = match asked.request.as_str() {
            "abort" => self.machine.request(Request::Abort).map_err(|refusal| refusal.to_string()),
            "reverse" => self.machine.request(Request::Reverse).map_err(|refusal| refusal.to_string()),
            "complete" => self.machine.request(Request::Complete).map_err(|refusal| refusal.to_string()),
            other => Err(format!("a move cannot be asked to {other:?}: abort, reverse or complete")),
        };
        self.answered = stored.mod_revision;
        let answer = Asked { refused: Some(result.err().unwrap_or_default()), ..asked };
        let value = serde_json::to_vec(&answer).unwrap_or_default();
        let expect = Expect { key: key.clone(), mod_revision: stored.mod_revision };
        if let Err(error) = self.meta.client.commit(&[expect], vec![Write::put(key, value)]).await {
            tracing::debug!(move_id = self.id.0, %error, "an operator's request was not answered");
        }
    }

    /// Takes the claim back.
    async fn leave(&self) {
        let gone = Write { value: None, ..Write::put(coordinator_key(self.id), "") };
        // Else it goes with the lease.
        let _ = self.meta.client.commit(&[], vec![gone]).await;
    }
}
