//! One move at its coordinator: its machine, the steps that fail, what operators ask, and what is reported of it. No
//! I/O and no clock: `super::runner` runs it, and so does the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::map::StoreIdx;
use kindred_router_core::moves::machine::{Machine, Request, Settings, Status};
use kindred_router_core::moves::record::{MoveRecord, Phase};
use kindred_router_core::moves::step::{Answer, Step, StepName, UnitAt, together};
use serde::{Deserialize, Serialize};

use super::keys::{Failing, Progress, coordinator_key, request_key};
use super::rate::Copied;
use super::steps::Answered;
use crate::meta::MetaError;
use crate::meta::client::{Entries, Expect, Write};
use crate::meta::store::MetaStore;

/// The most failing steps in a report.
const FAILING_MAX: usize = 8;

/// An operator's request for a move. The coordinator writes its answer here, once it refuses the request or the move's
/// record contains it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// `abort`, `reverse`, `complete` or `switch`.
    pub request: String,
    /// The answer: absent until there is one, empty if accepted, else the reason for the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A write to meta that the machine does not wait for; at most one report and one answer are under way.
#[derive(Debug)]
pub enum Writing {
    /// The progress.
    Report(Progress),
    /// The answer to the request with this mod revision.
    Answer(Asked, i64),
}

/// The result of such a write.
#[derive(Debug)]
pub enum Written {
    /// The progress was written; `Ok(false)` if the claim is no longer this router's.
    Report(Progress, Result<bool, MetaError>),
    /// The request with this mod revision was answered; `Ok(None)` if the request had changed.
    Answer(i64, Result<Option<i64>, MetaError>),
}

/// See the text above. Times are since the desk was made.
#[derive(Debug)]
pub struct Desk {
    id: MoveId,
    /// This router's name.
    router: String,
    machine: Machine,
    copied: Arc<Copied>,
    /// The steps that failed when last tried.
    failing: BTreeMap<(StepName, Option<UnitAt>), Failing>,
    phase: Phase,
    frozen_at: Option<Duration>,
    pause: Option<Duration>,
    reported: Progress,
    /// The mod revisions of the latest request that the machine accepted, and of the latest that was answered.
    taken: i64,
    answered: i64,
    /// Report at once, because operators wait for the news.
    report_now: bool,
    reporting: bool,
    report_again: bool,
    answering: bool,
}

impl Desk {
    /// The desk of coordinator `me` of this router for a move with this record.
    #[must_use]
    pub fn new(me: String, router: String, settings: Settings, record: MoveRecord, version: i64) -> Self {
        let (id, phase) = (record.id, record.phase);
        Self {
            id,
            router,
            machine: Machine::new(me, settings, record, version),
            copied: Arc::default(),
            failing: BTreeMap::new(),
            phase,
            frozen_at: None,
            pause: None,
            reported: Progress::default(),
            taken: 0,
            answered: 0,
            report_now: false,
            reporting: false,
            report_again: false,
            answering: false,
        }
    }

    /// The number of the move.
    #[must_use]
    pub fn id(&self) -> MoveId {
        self.id
    }

    /// What its steps have copied.
    #[must_use]
    pub fn copied(&self) -> &Arc<Copied> {
        &self.copied
    }

    /// Whether anything is left to do.
    #[must_use]
    pub fn status(&self) -> Status {
        self.machine.status()
    }

    /// The stores of the move that are not known to be lost.
    pub fn stores(&self) -> impl Iterator<Item = StoreIdx> + '_ {
        let legs = self.machine.record().legs.iter().filter(|leg| !leg.lost);
        legs.flat_map(|leg| [leg.from, leg.to])
    }

    /// The steps to begin, in groups that run together. `gone` are stores that were removed or replaced.
    pub fn poll(&mut self, now: Duration, gone: BTreeSet<StoreIdx>) -> Vec<Vec<Step>> {
        self.machine.stores_gone(gone);
        let groups = together(self.machine.poll(now));
        for name in groups.iter().filter_map(|steps| steps.first()).map(|step| step.name) {
            match name {
                StepName::BeginSwitch => self.frozen_at = None,
                StepName::Freeze if self.frozen_at.is_none() => self.frozen_at = Some(now),
                _ => {}
            }
        }
        self.note_phase();
        groups
    }

    /// Takes the answers of a group of steps.
    pub fn answer(&mut self, name: StepName, answers: Vec<Answered>, now: Duration) {
        for (ticket, at, answer) in answers {
            match &answer {
                Answer::Failed { reason } => {
                    tracing::debug!(move_id = self.id.0, step = name.as_str(), reason, "a step failed");
                    self.failed(name, at, reason);
                }
                Answer::Lost { reason }
                | Answer::Restarted { reason }
                | Answer::Different { reason }
                | Answer::Refused { reason } => {
                    tracing::warn!(
                        move_id = self.id.0,
                        kind = self.machine.record().kind,
                        step = name.as_str(),
                        reason,
                        "a move cannot go on so"
                    );
                    self.failed(name, at, reason);
                }
                // Neither a success nor a failure.
                Answer::Conflict | Answer::Stale { .. } | Answer::NotReady => {}
                _ => {
                    self.failing.remove(&(name, at));
                    let ended = name == StepName::Open || name == StepName::Unfreeze;
                    if let Some(frozen_at) = self.frozen_at.filter(|_| ended) {
                        self.pause = Some(now.saturating_sub(frozen_at));
                        self.report_now = true;
                    }
                }
            }
            self.machine.answer(ticket, answer, now);
        }
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
            tracing::info!(move_id = id, kind = record.kind, ?phase, reason, pause = ?self.pause, "a move goes on");
            self.phase = phase;
        }
    }

    /// What is to be reported.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Progress {
            router: self.router.clone(),
            keys_copied: self.copied.keys.load(Ordering::Relaxed),
            bytes_copied: self.copied.bytes.load(Ordering::Relaxed),
            lag_micros: self.machine.lag().map(micros),
            pause_micros: self.pause.map(micros),
            failing: self.failing.values().take(FAILING_MAX).cloned().collect(),
        }
    }

    /// Whether there is news that operators wait for; once.
    pub fn reports_now(&mut self) -> bool {
        std::mem::take(&mut self.report_now)
    }

    /// The report to write, if the progress has changed. A report that is lost is made up for by the next one.
    pub fn report(&mut self) -> Option<Writing> {
        let progress = self.progress();
        if progress == self.reported {
            return None;
        }
        if self.reporting {
            self.report_again = true;
            return None;
        }
        self.reporting = true;
        Some(Writing::Report(progress))
    }

    /// Takes up an operator's request, and answers it once it is refused or the move's record contains it. If another
    /// router takes the move over before that, it does the same again.
    pub fn hear(&mut self, entries: &Entries) -> Option<Writing> {
        let stored = entries.keys.get(&request_key(self.id))?;
        let version = stored.mod_revision;
        if version <= self.answered {
            return None;
        }
        let asked = serde_json::from_slice::<Asked>(&stored.value).ok()?;
        if asked.refused.is_some() || self.answering {
            return None;
        }
        if self.machine.record().heard >= version {
            return Some(self.answer_asked(asked, version, String::new()));
        }
        if self.taken == version {
            return None;
        }
        let result = match asked.request.as_str() {
            "abort" => self.machine.request(Request::Abort, version),
            "reverse" => self.machine.request(Request::Reverse, version),
            "complete" => self.machine.request(Request::Complete, version),
            "switch" => self.machine.request(Request::Switch, version),
            other => {
                let why = format!("a move cannot be asked to {other:?}: abort, reverse, complete or switch");
                return Some(self.answer_asked(asked, version, why));
            }
        };
        match result {
            Ok(()) => {
                self.taken = version;
                None
            }
            Err(refusal) => Some(self.answer_asked(asked, version, refusal.to_string())),
        }
    }

    /// Answers the request with this mod revision; `refused` is empty if it was accepted.
    fn answer_asked(&mut self, asked: Asked, version: i64, refused: String) -> Writing {
        self.answering = true;
        Writing::Answer(Asked { refused: Some(refused), ..asked }, version)
    }

    /// A write has ended.
    pub fn written(&mut self, written: Written) {
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
}

/// Writes to meta what a desk gives.
pub async fn write(meta: &impl MetaStore, id: MoveId, lease: i64, writing: Writing) -> Written {
    match writing {
        Writing::Report(progress) => {
            let key = coordinator_key(id);
            let value = serde_json::to_vec(&progress).unwrap_or_default();
            let write = Write { lease, ..Write::put(key, value) };
            // Written only while the claim is this router's: it must not come back without its lease, nor replace
            // another's.
            Written::Report(progress, meta.commit_under(lease, write).await)
        }
        Writing::Answer(asked, version) => {
            let key = request_key(id);
            let value = serde_json::to_vec(&asked).unwrap_or_default();
            let expect = Expect { key: key.clone(), mod_revision: version };
            Written::Answer(version, meta.commit(&[expect], vec![Write::put(key, value)]).await)
        }
    }
}

/// Writes an operator's request for a move's coordinator. Returns meta's revision of it, `None` if another request was
/// written meanwhile.
///
/// # Errors
/// When meta cannot be asked.
pub async fn ask(meta: &impl MetaStore, id: MoveId, request: &str) -> Result<Option<i64>, MetaError> {
    let key = request_key(id);
    let before = meta.get(&key).await?.map_or(0, |stored| stored.mod_revision);
    let asked = Asked { request: request.to_owned(), refused: None };
    // A struct of strings always serialises.
    let write = Write::put(key.clone(), serde_json::to_vec(&asked).unwrap_or_default());
    meta.commit(&[Expect { key, mod_revision: before }], vec![write]).await
}

/// Deletes a claim.
///
/// # Errors
/// When meta cannot be asked.
pub async fn leave(meta: &impl MetaStore, id: MoveId, lease: i64) -> Result<(), MetaError> {
    let gone = Write { value: None, ..Write::put(coordinator_key(id), "") };
    meta.commit_under(lease, gone).await.map(drop)
}
