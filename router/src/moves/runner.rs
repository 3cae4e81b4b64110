//! The task of one move: polls its state machine, runs the steps, and feeds the answers back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::map::StoreIdx;
use kindred_router_core::moves::machine::{Machine, Request, Status, TICK};
use kindred_router_core::moves::record::{MoveRecord, Phase};
use kindred_router_core::moves::step::{Answer, Step, StepName, Ticket, UnitAt, What, together};
use kindred_router_core::parts::store_ix;
use kindred_transport::failpoint::Side;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::rate::Rate;
use super::units::LegSteps;
use super::{Failing, Moves, Progress, coordinator_key, record_steps, request_key};
use crate::failpoint;
use crate::meta::client::{Expect, Write};
use crate::meta::{Meta, MetaError};
use crate::moves::mover::Mover;

/// How often changed progress is written to meta.
const REPORT: Duration = Duration::from_secs(1);
/// The most failing steps in a report.
const FAILING_MAX: usize = 8;

/// Counters of what a move's steps have copied.
#[derive(Debug, Default)]
pub(super) struct Copied {
    pub keys: AtomicU64,
    pub bytes: AtomicU64,
}

/// An operator's request for a move. The coordinator writes its answer here, once it refuses the request or the move's
/// record contains it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// `abort`, `reverse` or `complete`.
    pub request: String,
    /// The answer: absent until there is one, empty if accepted, else the reason for the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

pub(super) struct Runner {
    mover: Arc<Mover>,
    meta: Arc<Meta>,
    id: MoveId,
    machine: Machine,
    rate: Arc<Rate>,
    lease: i64,
    copied: Arc<Copied>,
    began: Instant,
    steps: JoinSet<(StepName, Vec<Answered>)>,
    /// The steps that failed when last tried.
    failing: BTreeMap<(StepName, Option<UnitAt>), Failing>,
    phase: Phase,
    frozen_at: Option<Instant>,
    pause: Option<Duration>,
    reported: Progress,
    /// The mod revisions of the latest request that the machine accepted, and of the latest that was answered.
    taken: i64,
    answered: i64,
    /// Report at once, because operators wait for the news.
    report_now: bool,
    /// Writes to meta that the machine does not wait for; at most one report and one answer at a time.
    writes: JoinSet<Written>,
    reporting: bool,
    report_again: bool,
    answering: bool,
}

/// A step's ticket, its unit if it has one, and the answer.
type Answered = (Ticket, Option<UnitAt>, Answer);

/// The result of a background write.
enum Written {
    /// The progress was written; `Ok(false)` if the claim is no longer this router's.
    Report(Progress, Result<bool, MetaError>),
    /// The request with this mod revision was answered; `Ok(None)` if the request had changed.
    Answer(i64, Result<Option<i64>, MetaError>),
}

impl Runner {
    /// The runner of a move with this record, for a claim that was written under `lease`.
    pub(super) fn new(moves: &Moves, record: MoveRecord, version: i64, lease: i64) -> Self {
        let (id, phase) = (record.id, record.phase);
        Self {
            mover: moves.mover.clone(),
            meta: moves.meta.clone(),
            id,
            machine: Machine::new(moves.me.clone(), moves.settings.machine.clone(), record, version),
            rate: moves.rate.clone(),
            lease,
            copied: Arc::default(),
            began: Instant::now(),
            steps: JoinSet::new(),
            failing: BTreeMap::new(),
            phase,
            frozen_at: None,
            pause: None,
            reported: Progress::default(),
            taken: 0,
            answered: 0,
            report_now: false,
            writes: JoinSet::new(),
            reporting: false,
            report_again: false,
            answering: false,
        }
    }

    /// Runs until the move is over or another router has taken it over.
    pub(super) async fn run(mut self) -> MoveId {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut report = tokio::time::interval(REPORT);
        let mut entries = self.meta.entries();
        loop {
            self.machine.stores_gone(self.stores_gone());
            for steps in together(self.machine.poll(self.began.elapsed())) {
                self.spawn(steps);
            }
            self.note_phase();
            self.hear();
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
                    Ok((name, answers)) => {
                        for (ticket, at, answer) in answers {
                            self.answer(ticket, name, at, answer);
                        }
                    }
                    Err(error) => tracing::error!(move_id = self.id.0, %error, "a step of a move failed badly"),
                },
                Some(Ok(written)) = self.writes.join_next(), if !self.writes.is_empty() => self.written(written),
                _ = tick.tick() => {}
                _ = report.tick() => self.report(),
                // Only wakes the loop, which then looks for requests.
                _ = entries.changed() => {}
            }
        }
        // The last report describes the end.
        self.settle_writes().await;
        self.report();
        self.settle_writes().await;
        self.leave().await;
        self.id
    }

    /// The stores of the move that were removed or replaced since.
    fn stores_gone(&self) -> BTreeSet<StoreIdx> {
        let legs = self.machine.record().legs.iter().filter(|leg| !leg.lost);
        let ends = legs.flat_map(|leg| [leg.from, leg.to]);
        ends.filter(|store| {
            let at = store_ix(*store);
            at.0 < self.mover.stores.len() && self.mover.stores.get(at).is_removed()
        })
        .collect()
    }

    async fn settle_writes(&mut self) {
        while let Some(written) = self.writes.join_next().await {
            if let Ok(written) = written {
                self.written(written);
            }
        }
    }

    /// Runs steps that were grouped to run together.
    fn spawn(&mut self, steps: Vec<Step>) {
        let Some(name) = steps.first().map(|step| step.name) else { return };
        match name {
            StepName::BeginSwitch => self.frozen_at = None,
            StepName::Freeze if self.frozen_at.is_none() => self.frozen_at = Some(Instant::now()),
            _ => {}
        }
        let (mover, meta, id) = (self.mover.clone(), self.meta.clone(), self.id);
        let (rate, copied) = (self.rate.clone(), self.copied.clone());
        self.steps.spawn(async move {
            failpoint::reach(name, Side::Before).await;
            let (mut answers, mut units, mut calls) = (Vec::new(), Vec::new(), Vec::new());
            for Step { ticket, what, .. } in steps {
                let answer = match what {
                    What::Read => record_steps::read(&meta, id).await,
                    What::Swap { record, version } => {
                        record_steps::swap(&mover.keeper, &meta, record, version).await
                    }
                    What::Decide { record, version, leg } => {
                        record_steps::decide(&mover.keeper, &meta, &record, version, leg).await
                    }
                    What::Unit(call) => {
                        units.push((ticket, Some(call.at)));
                        calls.push(call);
                        continue;
                    }
                };
                answers.push((ticket, None, answer));
            }
            if !calls.is_empty() {
                let steps = LegSteps { mover: &mover, id, calls: &calls, rate: &rate, copied: &copied };
                let of_units = units.into_iter().zip(steps.run(name).await);
                answers.extend(of_units.map(|((ticket, at), answer)| (ticket, at, answer)));
            }
            failpoint::reach(name, Side::After).await;
            (name, answers)
        });
    }

    fn answer(&mut self, ticket: Ticket, name: StepName, at: Option<UnitAt>, answer: Answer) {
        match &answer {
            Answer::Failed { reason } => {
                tracing::debug!(move_id = self.id.0, step = name.as_str(), reason, "a step failed");
                self.failed(name, at, reason);
            }
            Answer::Lost { reason }
            | Answer::Restarted { reason }
            | Answer::Different { reason }
            | Answer::Refused { reason } => {
                tracing::warn!(move_id = self.id.0, step = name.as_str(), reason, "a move cannot go on so");
                self.failed(name, at, reason);
            }
            // Neither a success nor a failure.
            Answer::Conflict | Answer::Stale { .. } | Answer::NotReady => {}
            _ => {
                self.failing.remove(&(name, at));
                let ended = name == StepName::Open || name == StepName::Unfreeze;
                if let Some(frozen_at) = self.frozen_at.filter(|_| ended) {
                    self.pause = Some(frozen_at.elapsed());
                    self.report_now = true;
                }
            }
        }
        self.machine.answer(ticket, answer, self.began.elapsed());
    }

    fn failed(&mut self, name: StepName, at: Option<UnitAt>, reason: &str) {
        let failing = self.failing.entry((name, at)).or_insert_with(|| Failing {
            step: name.as_str().to_owned(),
            times: 0,
            reason: String::new(),
        });
        failing.times += 1;
        reason.clone_into(&mut failing.reason);
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
            router: self.mover.identity.name.clone(),
            keys_copied: self.copied.keys.load(Ordering::Relaxed),
            bytes_copied: self.copied.bytes.load(Ordering::Relaxed),
            lag_micros: self.machine.lag().map(micros),
            pause_micros: self.pause.map(micros),
            failing: self.failing.values().take(FAILING_MAX).cloned().collect(),
        }
    }

    /// Writes the progress to meta if it has changed. A report that is lost is made up for by the next one.
    fn report(&mut self) {
        let progress = self.progress();
        if progress == self.reported {
            return;
        }
        if self.reporting {
            self.report_again = true;
            return;
        }
        let key = coordinator_key(self.id);
        let value = serde_json::to_vec(&progress).unwrap_or_default();
        let (lease, meta) = (self.lease, self.meta.clone());
        let write = Write { lease, ..Write::put(key, value) };
        self.reporting = true;
        // Written only while the claim is this router's: it must not come back without its lease, nor replace
        // another's.
        self.writes
            .spawn(async move { Written::Report(progress, meta.client.commit_under(lease, write).await) });
    }

    /// Takes up an operator's request, and answers it once it is refused or the move's record contains it. If another
    /// router takes the move over before that, it does the same again.
    fn hear(&mut self) {
        let key = request_key(self.id);
        let stored = self.meta.entries().borrow().keys.get(&key).cloned();
        let Some(stored) = stored.filter(|stored| stored.mod_revision > self.answered) else { return };
        let Ok(asked) = serde_json::from_slice::<Asked>(&stored.value) else { return };
        let version = stored.mod_revision;
        if asked.refused.is_some() || self.answering {
            return;
        }
        if self.machine.record().heard >= version {
            return self.answer_asked(asked, version, String::new());
        }
        if self.taken == version {
            return;
        }
        let result = match asked.request.as_str() {
            "abort" => self.machine.request(Request::Abort, version),
            "reverse" => self.machine.request(Request::Reverse, version),
            "complete" => self.machine.request(Request::Complete, version),
            other => {
                let why = format!("a move cannot be asked to {other:?}: abort, reverse or complete");
                return self.answer_asked(asked, version, why);
            }
        };
        match result {
            Ok(()) => self.taken = version,
            Err(refusal) => self.answer_asked(asked, version, refusal.to_string()),
        }
    }

    /// Answers the request with this mod revision; `refused` is empty if it was accepted.
    fn answer_asked(&mut self, asked: Asked, version: i64, refused: String) {
        let key = request_key(self.id);
        let value = serde_json::to_vec(&Asked { refused: Some(refused), ..asked }).unwrap_or_default();
        let expect = Expect { key: key.clone(), mod_revision: version };
        self.answering = true;
        let meta = self.meta.clone();
        self.writes.spawn(async move {
            Written::Answer(version, meta.client.commit(&[expect], vec![Write::put(key, value)]).await)
        });
    }

    fn written(&mut self, written: Written) {
        match written {
            Written::Report(progress, result) => {
                self.reporting = false;
                self.report_now |= std::mem::take(&mut self.report_again);
                if let Ok(true) = result {
                    self.reported = progress;
                }
            }
            Written::Answer(version, result) => {
                self.answering = false;
                match result {
                    // If somebody else has changed the request, the change is taken up next.
                    Ok(_) => self.answered = version,
                    Err(error) => {
                        tracing::debug!(move_id = self.id.0, %error, "an operator's request was not answered");
                    }
                }
            }
        }
    }

    /// Deletes the claim, retrying while meta is away: its lease lives on because other claims share it.
    async fn leave(&self) {
        loop {
            let gone = Write { value: None, ..Write::put(coordinator_key(self.id), "") };
            match self.meta.client.commit_under(self.lease, gone).await {
                Ok(_) => return,
                Err(error) => tracing::debug!(move_id = self.id.0, %error, "a claim was not taken back"),
            }
            tokio::time::sleep(REPORT).await;
        }
    }
}
