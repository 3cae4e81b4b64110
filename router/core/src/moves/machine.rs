//! The coordinator of one move, as a state machine: it takes answers and returns steps. No I/O and no clock: its owner
//! polls it after each answer and every [`TICK`], runs the steps, and answers each once.
//!
//! The next steps are a function of the record and of what this coordinator has learnt since it took over. So a step
//! that failed is simply still to be done, and a coordinator that begins in the middle repeats what it cannot rule out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kindred_partition_config::{
    ids::{Epoch, Revision, Term},
    map::StoreIdx,
};

use super::{
    record::{Goal, MoveRecord, Phase},
    step::{Answer, Step, StepName, Ticket, UnitAt, UnitCall, What},
};

mod next;
mod unit;

use self::unit::UnitState;

/// How often to poll while no answer comes.
pub const TICK: Duration = Duration::from_millis(20);

/// The settings of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The longest time from the first freeze of an attempt to its decision; after that the attempt is given up (R15).
    pub budget: Duration,
    /// The pause after an attempt that was given up; doubled with each further one in a row.
    pub backoff: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// After so many attempts in a row were given up, the move itself turns back.
    pub attempts_max: u32,
    /// An attempt begins only if both stores of every unit answered within this time.
    pub fresh: Duration,
    /// The pause before a failed step is repeated.
    pub retry: Duration,
    /// The pause between two rounds of tailing.
    pub follow_every: Duration,
    /// The largest lag of a follower at which an attempt may begin.
    pub ready_lag: Duration,
    /// How long the way back stays open if no operator closes it.
    pub reverse_window: Duration,
    /// How many units are copied or compared at a time.
    pub concurrent: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            budget: Duration::from_millis(500),
            backoff: Duration::from_secs(2),
            backoff_max: Duration::from_secs(60),
            attempts_max: 10,
            fresh: Duration::from_secs(2),
            retry: Duration::from_millis(100),
            follow_every: Duration::from_millis(50),
            ready_lag: Duration::from_millis(100),
            reverse_window: Duration::from_secs(600),
            concurrent: 2,
        }
    }
}

/// A request of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Give the move up; what has moved goes back. For a move on its way back: stay at the new stores.
    Abort,
    /// Switch back. For a move that is being aborted: continue it.
    Reverse,
    /// Close the way back, which ends the move.
    Complete,
    /// Wait no longer: switch as soon as all is copied and compared.
    Switch,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The move's phase does not allow it.
    #[error("the move is {phase}: {what_to_do}")]
    Phase {
        /// The phase, for people.
        phase: &'static str,
        /// What can be asked for instead.
        what_to_do: &'static str,
    },
    /// Another request is being carried out.
    #[error("another request is being carried out: ask again in a moment")]
    Busy,
    /// One of the owners is a stock etcd.
    #[error(
        "there is no way back: the keys came from a stock etcd, or went to one; complete the move, and begin another one"
    )]
    OneWay,
    /// A store of the move was lost, so there is nothing to bring back.
    #[error(
        "there is no way back: a store of the move was lost, and another one is in its place; complete the move"
    )]
    Lost,
    /// The old owner does not have all that the new one has.
    #[error(
        "the way back is not usable: store {store} does not follow yet; see the move's status, and ask again"
    )]
    NoWayBack {
        /// The store that would be the owner again.
        store: StoreIdx,
    },
}

/// Whether this coordinator has anything left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Poll on.
    Running,
    /// Another coordinator has taken the move over.
    Fenced,
    Over,
}

/// The coordinator. `me` must be new with every incarnation of a router: a record that names it was written by this
/// machine.
#[derive(Debug)]
pub struct Machine {
    me: String,
    settings: Settings,
    record: MoveRecord,
    version: i64,
    /// The coordinator in the record when this machine began.
    before: String,
    /// Whether this coordinator has taken the move over.
    holds: bool,
    status: Status,
    units: BTreeMap<UnitAt, UnitState>,
    tickets: u64,
    /// Calls to stores that are under way.
    calls: BTreeMap<Ticket, (StepName, UnitAt)>,
    /// The same calls, by what is called.
    under_way: BTreeSet<(StepName, UnitAt)>,
    /// The one access to meta that is under way.
    meta: Option<(Ticket, StepName)>,
    /// A decision under way whose answer is no longer waited for.
    late: Option<Ticket>,
    meta_retry_at: Duration,
    read: bool,
    /// When the first freeze of the present attempt was sent.
    frozen_at: Option<Duration>,
    give_up: Option<String>,
    attempt_not_before: Duration,
    redirect: Option<(Goal, Option<String>)>,
    complete: bool,
    /// Stores that were lost and replaced, or removed.
    gone: BTreeSet<StoreIdx>,
    /// The highest term that a store reported to have seen of the move.
    seen: Term,
    /// The time of the last poll or answer.
    clock: Duration,
    /// The mod revision of the last request that was accepted.
    asked: i64,
    switched_at: Option<Duration>,
}

impl Machine {
    /// A coordinator that will take over the move of this record, which has mod revision `version` in meta.
    #[must_use]
    pub fn new(me: String, settings: Settings, record: MoveRecord, version: i64) -> Self {
        let units = record.legs.iter().enumerate().flat_map(|(leg, of_leg)| {
            (0..of_leg.transfers.len()).map(move |transfer| (UnitAt { leg, transfer }, UnitState::default()))
        });
        let status = if record.phase.is_over() { Status::Over } else { Status::Running };
        Self {
            units: units.collect(),
            before: record.coordinator.clone(),
            me,
            settings,
            record,
            version,
            holds: false,
            status,
            tickets: 0,
            calls: BTreeMap::new(),
            under_way: BTreeSet::new(),
            meta: None,
            meta_retry_at: Duration::ZERO,
            read: false,
            late: None,
            frozen_at: None,
            give_up: None,
            attempt_not_before: Duration::ZERO,
            redirect: None,
            complete: false,
            gone: BTreeSet::new(),
            seen: Term(0),
            clock: Duration::ZERO,
            asked: 0,
            switched_at: None,
        }
    }

    /// Sets the stores that were lost and replaced (R14), or removed; nothing is moved to or from them any more.
    pub fn stores_gone(&mut self, gone: BTreeSet<StoreIdx>) {
        self.gone = gone;
    }

    /// Whether to poll on.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// The record as last seen.
    #[must_use]
    pub fn record(&self) -> &MoveRecord {
        &self.record
    }

    /// The largest lag of any follower; `None` while some unit has not been followed.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.units.values().map(|unit| unit.lag).try_fold(Duration::ZERO, |most, lag| Some(most.max(lag?)))
    }

    /// Accepts an operator's request, which the next polls carry out. It survives this coordinator only once
    /// [`MoveRecord::heard`] has reached its `version` in meta.
    ///
    /// # Errors
    /// When the move's phase does not allow it, or the move cannot do it.
    pub fn request(&mut self, request: Request, version: i64) -> Result<(), Refusal> {
        self.may(request)?;
        self.asked = version;
        match request {
            Request::Complete => self.complete = true,
            Request::Switch => self.redirect = Some((Goal::There, None)),
            Request::Reverse => {
                let goal = if self.record.goal == Goal::There { Goal::Back } else { Goal::There };
                self.redirect = Some((goal, None));
            }
            Request::Abort if self.record.goal == Goal::Back => {
                self.redirect = Some((Goal::There, Some("the way back was given up on request".to_owned())));
            }
            Request::Abort => self.redirect = Some((Goal::Abort, Some("on request".to_owned()))),
        }
        Ok(())
    }

    fn may(&self, request: Request) -> Result<(), Refusal> {
        if self.redirect.is_some() || self.complete {
            return Err(Refusal::Busy);
        }
        let refused = |phase, what_to_do| Err(Refusal::Phase { phase, what_to_do });
        match (request, self.record.phase) {
            (_, Phase::Done | Phase::Aborted) => refused("over", "begin another one"),
            (_, Phase::Completing) => refused("completing", "begin another one when it is done"),
            (_, Phase::Aborting) => refused("being aborted", "wait until it is"),
            (Request::Switch, _) => match self.record.hold {
                true => Ok(()),
                false => refused("not waiting to be asked", "wait until it has switched"),
            },
            (Request::Complete, Phase::Switched) => Ok(()),
            (Request::Complete, _) => refused("not switched yet", "wait until it is, or abort it"),
            (Request::Reverse, Phase::Switched) => self.usable_way_back(),
            (Request::Abort, Phase::Switched) => refused("switched", "reverse it, or complete it"),
            (Request::Reverse, _) => match self.record.goal {
                Goal::There => refused("not switched yet", "abort it"),
                Goal::Back => refused("on its way back", "wait, or abort it: then it stays at the new store"),
                Goal::Abort => Ok(()),
            },
            (Request::Abort, _) => match self.record.goal {
                Goal::There => self.usable_way_back(),
                Goal::Back => Ok(()),
                Goal::Abort => {
                    refused("being aborted", "wait, or reverse it: then it goes on to the new store")
                }
            },
        }
    }

    /// Checks that the followers of all switched legs follow and have answered recently.
    fn usable_way_back(&self) -> Result<(), Refusal> {
        if self.record.has_no_way_back() {
            return Err(Refusal::OneWay);
        }
        let switched = self.record.phase == Phase::Switched;
        if switched && self.record.legs.iter().all(|leg| leg.lost) {
            return Err(Refusal::Lost);
        }
        for (at, unit) in &self.units {
            let leg = &self.record.legs[at.leg];
            let is_there = unit.has(StepName::Copy) && unit.lag.is_some() && self.is_fresh(unit);
            let is_there = is_there && !unit.owes(StepName::Release) && !unit.owes(StepName::Open);
            if leg.epoch.is_some() && switched && !is_there && !leg.lost {
                return Err(Refusal::NoWayBack { store: leg.follower() });
            }
        }
        Ok(())
    }

    /// Whether the follower's lag is small, and both stores have answered recently.
    fn is_near(&self, unit: &UnitState) -> bool {
        self.is_fresh(unit) && unit.lag.is_some_and(|lag| lag <= self.settings.ready_lag)
    }

    /// Whether both stores have answered for the unit recently.
    fn is_fresh(&self, unit: &UnitState) -> bool {
        unit.followed_at.is_some_and(|at| self.clock <= at + self.settings.fresh)
    }

    /// The pause after the last attempt that was given up; longer each time.
    fn pause(&self) -> Duration {
        let doubled = self.record.failed.saturating_sub(1).min(16);
        self.settings.backoff.saturating_mul(1 << doubled).min(self.settings.backoff_max)
    }

    /// Takes the answer to a step. Answers to steps of an older term are ignored, because these steps are repeated.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer, now: Duration) {
        if self.status != Status::Running {
            return;
        }
        self.clock = self.clock.max(now);
        if self.late == Some(ticket) {
            self.of_late(answer, now);
        } else if self.meta.is_some_and(|(of_meta, _)| of_meta == ticket) {
            let name = self.meta.take().map(|(_, name)| name);
            self.of_meta(name, answer, now);
        } else if let Some((name, at)) = self.calls.remove(&ticket) {
            self.under_way.remove(&(name, at));
            self.of_unit(name, at, answer, now);
        }
    }

    fn of_meta(&mut self, name: Option<StepName>, answer: Answer, now: Duration) {
        match answer {
            Answer::Swapped { record, version } | Answer::Record { record, version } => {
                self.read = false;
                self.adopt(*record, version, now);
            }
            Answer::NoRecord => self.status = Status::Over,
            Answer::Refused { reason } => self.give_up = Some(reason),
            _ => {
                // Whatever was to be written may have been written, or may yet be, so the record must be read.
                self.read = true;
                if !matches!(answer, Answer::Conflict) || name == Some(StepName::Read) {
                    self.meta_retry_at = now + self.settings.retry;
                }
            }
        }
    }

    /// Takes the answer to a decision that was no longer waited for. If it was made after all, the swap that was to
    /// give the attempt up can only fail, so its answer is not waited for either.
    fn of_late(&mut self, answer: Answer, now: Duration) {
        self.late = None;
        if let Answer::Swapped { record, version } = answer
            && version > self.version
        {
            (self.meta, self.read) = (None, false);
            self.adopt(*record, version, now);
        }
    }

    /// Takes over the record that is in meta, after a swap of this coordinator or a read.
    fn adopt(&mut self, record: MoveRecord, version: i64, now: Duration) {
        let mine = record.coordinator == self.me;
        if !mine && (self.holds || record.coordinator != self.before) {
            self.status = Status::Fenced;
            return;
        }
        if self.record.phase == record.phase {
            // A decision that was not made is made later than what it was confirmed for.
            self.units.values_mut().for_each(UnitState::unconfirm);
        }
        let old = std::mem::replace(&mut self.record, record);
        self.version = version;
        if self.record.phase.is_over() {
            self.status = Status::Over;
            return;
        }
        if mine && old.term < self.seen {
            // Meta has lost what was written with the terms between.
            self.units.values_mut().for_each(UnitState::doubt);
        }
        if mine && !self.holds {
            self.holds = true;
            self.began();
            if self.record.failed > 0 {
                self.attempt_not_before = now + self.pause();
            }
        }
        if old.term != self.record.term {
            // Steps under way have a term that stores may refuse by now; they are repeated.
            self.calls.clear();
            self.under_way.clear();
        }
        for leg in 0..self.record.legs.len() {
            if self.record.legs[leg].moved != old.legs[leg].moved {
                self.changed_hands(leg);
            }
        }
        if let (Phase::Switching { leg, .. }, true) = (old.phase, self.record.phase != old.phase) {
            self.frozen_at = None;
            self.give_up = None;
            if self.record.legs[leg].moved == old.legs[leg].moved {
                self.attempt_not_before = now + self.pause();
                self.of_leg(leg).for_each(UnitState::given_up);
            }
        }
        if self.record.goal != old.goal || self.record.hold != old.hold {
            self.redirect = None;
        }
        if self.record.phase != Phase::Switched {
            self.switched_at = None;
            self.complete = false;
        }
    }

    /// Marks what an earlier coordinator may have left to do.
    fn began(&mut self) {
        let attempted = self.record.attempts > 0;
        let decided: Vec<bool> = self.record.legs.iter().map(|leg| leg.epoch.is_some()).collect();
        for (at, unit) in &mut self.units {
            unit.begun(attempted, decided[at.leg]);
        }
    }

    /// The leg has switched: the new owner is to be opened; the former one, which has everything, becomes the follower.
    fn changed_hands(&mut self, leg: usize) {
        for unit in self.of_leg(leg) {
            *unit = UnitState::handed_over();
        }
    }

    fn of_leg(&mut self, leg: usize) -> impl Iterator<Item = &mut UnitState> {
        self.units.iter_mut().filter(move |(at, _)| at.leg == leg).map(|(_, unit)| unit)
    }

    fn of_unit(&mut self, name: StepName, at: UnitAt, answer: Answer, now: Duration) {
        let Some(unit) = self.units.get_mut(&at) else { return };
        match answer {
            Answer::Followed { lag } => {
                unit.lag = Some(lag);
                unit.followed_at = Some(now);
                // Aligned, so that all units are tailed at the same times, by one call.
                unit.follow_at = rounded_down(now + self.settings.follow_every, self.settings.follow_every);
            }
            Answer::Frozen { final_revision, incarnation } => unit.froze(final_revision, incarnation),
            Answer::Sealed { incarnation } => unit.was_sealed(incarnation),
            Answer::Done => unit.did(name),
            Answer::Lost { reason } => {
                unit.lost();
                unit.retry_at = now + self.settings.retry;
                if matches!(self.record.phase, Phase::Switching { .. }) {
                    self.give_up = Some(reason);
                }
            }
            Answer::Restarted { reason } => {
                unit.untrack();
                unit.retry_at = now + self.settings.retry;
                if matches!(self.record.phase, Phase::Switching { .. }) {
                    self.give_up = Some(reason);
                }
            }
            Answer::Different { reason } => {
                if self.record.goal == Goal::There {
                    self.redirect = Some((Goal::Abort, Some(reason)));
                }
            }
            Answer::Stale { seen } => {
                unit.retry_at = now + self.settings.retry;
                self.read = true;
                self.seen = self.seen.max(seen);
            }
            Answer::Failed { .. } if matches!(name, StepName::Track | StepName::Forget) => {
                // The owner may be frozen by an attempt that the record does not know.
                unit.doubt();
                unit.retry_at = now + self.settings.retry;
            }
            _ => {
                if matches!(name, StepName::Tail | StepName::ReverseTail) {
                    unit.not_followed();
                }
                // An owner that has restarted may know nothing of the track.
                if matches!(name, StepName::Copy | StepName::Tail | StepName::ReverseTail) {
                    unit.untrack();
                }
                // Within the budget of an attempt there is no time to wait for long.
                let retry = self.settings.retry;
                let frozen = matches!(self.record.phase, Phase::Switching { .. });
                unit.retry_at = now + if frozen { retry.min(TICK) } else { retry };
            }
        }
    }

    fn step(&mut self, name: StepName, what: What) -> Step {
        self.tickets += 1;
        Step { ticket: Ticket(self.tickets), name, what }
    }

    fn meta_step(&mut self, name: StepName, what: What) -> Vec<Step> {
        let step = self.step(name, what);
        self.meta = Some((step.ticket, name));
        vec![step]
    }

    fn swap(&mut self, name: StepName, record: MoveRecord) -> Vec<Step> {
        let version = self.version;
        self.meta_step(name, What::Swap { record: Box::new(record), version })
    }

    /// Adds a call about a unit, unless the same call is under way or has just failed.
    fn call(&mut self, name: StepName, at: UnitAt, now: Duration, steps: &mut Vec<Step>) {
        let Some(state) = self.units.get(&at) else { return };
        if now < state.retry_at || self.under_way.contains(&(name, at)) {
            return;
        }
        let leg = &self.record.legs[at.leg];
        let call = UnitCall {
            at,
            unit: leg.transfers[at.transfer].unit.clone(),
            term: self.record.term,
            owner: leg.owner(),
            follower: leg.follower(),
            final_revision: state.frozen.map_or(Revision::ZERO, |(last, _)| last),
            incarnations: (state.frozen.map_or(0, |(_, incarnation)| incarnation), state.sealed.unwrap_or(0)),
            epoch: leg.epoch.unwrap_or(Epoch::NONE),
        };
        let step = self.step(name, What::Unit(call));
        self.calls.insert(step.ticket, (name, at));
        self.under_way.insert((name, at));
        steps.push(step);
    }

    /// The value of [`MoveRecord::heard`] for a record that carries out the last request.
    fn hears(&self) -> i64 {
        self.record.heard.max(self.asked)
    }

    fn next_record(&self) -> MoveRecord {
        MoveRecord { term: Term(self.record.term.0 + 1), ..self.record.clone() }
    }
}

/// The last multiple of `every` at or before `time`.
fn rounded_down(time: Duration, every: Duration) -> Duration {
    let over = time.as_nanos().checked_rem(every.as_nanos()).unwrap_or(0);
    time.saturating_sub(Duration::from_nanos(u64::try_from(over).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
