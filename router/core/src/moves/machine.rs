//! The coordinator of one move: answers in, steps out. No I/O and no clock: whoever owns the machine polls it after each
//! answer and every [`TICK`], runs the steps, and answers each once.
//!
//! What to do next is a function of the record and of what this coordinator has learnt since it took over, so a step that
//! failed is simply still to be done, and a coordinator that begins in the middle does what it cannot rule out again.

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

/// How often to poll when no answer comes.
pub const TICK: Duration = Duration::from_millis(20);

/// What may be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// From the first freeze of an attempt to its decision; later it is given up (R15).
    pub budget: Duration,
    /// From an attempt that was given up to the next one; twice as long after each that follows.
    pub backoff: Duration,
    /// It does not grow longer than this.
    pub backoff_max: Duration,
    /// So many attempts in a row may be given up: then the move itself goes back to where it came from.
    pub attempts_max: u32,
    /// An attempt begins only when every unit of it was followed this recently: both of its stores answer.
    pub fresh: Duration,
    /// From a step that failed to its repetition.
    pub retry: Duration,
    /// Between rounds of following.
    pub follow_every: Duration,
    /// How far behind a follower may be when an attempt begins.
    pub ready_lag: Duration,
    /// How long the way back stays open when nobody says otherwise.
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

/// What an operator may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Give the move up; what has moved already goes back. Of a move on its way back: it stays at the new store.
    Abort,
    /// Switch back. Of a move that is being aborted: it goes on.
    Reverse,
    /// Close the way back.
    Complete,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not in this phase.
    #[error("the move is {phase}: {what_to_do}")]
    Phase {
        /// How far it is.
        phase: &'static str,
        /// What can be asked for instead.
        what_to_do: &'static str,
    },
    /// Another request came first.
    #[error("another request is being carried out: ask again in a moment")]
    Busy,
    /// The old owner is a stock etcd.
    #[error(
        "there is no way back: the keys came from a stock etcd, to which no live move goes; complete the move"
    )]
    OneWay,
    /// There is nothing to bring back.
    #[error(
        "there is no way back: a store of the move was lost, and another one is in its place; complete the move"
    )]
    Lost,
    /// The old owner does not have all that the new one has.
    #[error(
        "the way back is not usable: store {store} does not follow yet; see the move's status, and ask again"
    )]
    NoWayBack {
        /// The store that would own it again.
        store: StoreIdx,
    },
}

/// Whether there is something left to do for this coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Poll it.
    Running,
    /// Another coordinator has taken over.
    Fenced,
    /// The move is over.
    Over,
}

/// What this coordinator knows of a unit.
#[derive(Debug, Clone, Default)]
struct UnitState {
    tracked: bool,
    copied: bool,
    leased: bool,
    /// How far the follower is behind; `None` before the first round.
    lag: Option<Duration>,
    /// When both stores last answered for it.
    followed_at: Option<Duration>,
    follow_at: Duration,
    verified: bool,
    /// The final revision, and the owner's incarnation.
    frozen: Option<(Revision, u64)>,
    imported: bool,
    /// The follower's incarnation.
    sealed: Option<u64>,
    /// Both stand in these incarnations.
    confirmed: bool,
    /// To do: the owner may be frozen by an attempt that was given up.
    unfreeze: bool,
    /// To do: after a decision.
    release: bool,
    open: bool,
    dropped: bool,
    forgotten: bool,
    /// Not before this, after a failure.
    retry_at: Duration,
}

/// The coordinator. `me` must be new with every incarnation of a router: a record that names it was written by this
/// machine.
#[derive(Debug)]
pub struct Machine {
    me: String,
    settings: Settings,
    record: MoveRecord,
    version: i64,
    /// Who had it when this machine began.
    before: String,
    /// Whether this coordinator has taken the move over.
    holds: bool,
    status: Status,
    units: BTreeMap<UnitAt, UnitState>,
    tickets: u64,
    /// Calls to stores.
    calls: BTreeMap<Ticket, (StepName, UnitAt)>,
    /// The same, by what is called.
    under_way: BTreeSet<(StepName, UnitAt)>,
    /// The one access to meta that is under way.
    meta: Option<(Ticket, StepName)>,
    /// A decision that is under way, and not waited for any longer.
    late: Option<Ticket>,
    meta_retry_at: Duration,
    read: bool,
    /// Of the attempt: when its first freeze was sent.
    frozen_at: Option<Duration>,
    give_up: Option<String>,
    attempt_not_before: Duration,
    redirect: Option<(Goal, Option<String>)>,
    complete: bool,
    /// Stores that were lost and replaced.
    gone: BTreeSet<StoreIdx>,
    /// The highest term that a store has seen of the move, where that is one that meta does not know.
    seen: Term,
    /// When it was polled or answered last.
    clock: Duration,
    /// The version of the request that is being carried out, or was last.
    asked: i64,
    switched_at: Option<Duration>,
}

impl Machine {
    /// A coordinator that will take over the move with this record, whose version is `version`.
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

    /// Tells which stores were lost and replaced (R14), or removed: nothing is moved to or from them any more.
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

    /// How far the furthest follower is behind; `None` while one has not followed yet.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.units.values().map(|unit| unit.lag).try_fold(Duration::ZERO, |most, lag| Some(most.max(lag?)))
    }

    /// Takes an operator's request, to be carried out by the next polls: only when [`MoveRecord::heard`] has come to its
    /// `version` in meta it is sure to be, whatever becomes of this coordinator.
    ///
    /// # Errors
    /// When the move is not in a phase for it, or cannot do it.
    pub fn request(&mut self, request: Request, version: i64) -> Result<(), Refusal> {
        self.may(request)?;
        self.asked = version;
        match request {
            Request::Complete => self.complete = true,
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

    /// Whether all followers of legs that have been switched follow, and have just said so.
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
            let is_there = unit.copied && unit.lag.is_some() && self.is_fresh(unit);
            let is_there = is_there && !unit.release && !unit.open;
            if leg.epoch.is_some() && switched && !is_there && !leg.lost {
                return Err(Refusal::NoWayBack { store: leg.follower() });
            }
        }
        Ok(())
    }

    /// Whether the follower is close behind, and both stores have just said so.
    fn is_near(&self, unit: &UnitState) -> bool {
        self.is_fresh(unit) && unit.lag.is_some_and(|lag| lag <= self.settings.ready_lag)
    }

    /// Whether both stores have answered for the unit a moment ago.
    fn is_fresh(&self, unit: &UnitState) -> bool {
        unit.followed_at.is_some_and(|at| self.clock <= at + self.settings.fresh)
    }

    /// From the last attempt that was given up to the next one: longer each time.
    fn pause(&self) -> Duration {
        let doubled = self.record.failed.saturating_sub(1).min(16);
        self.settings.backoff.saturating_mul(1 << doubled).min(self.settings.backoff_max)
    }

    /// Takes the answer to a step. Answers to steps of an older term are ignored: they have been asked for again.
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
                // Whatever was to be written: it may have been, and it may be yet, if only this version is still there.
                self.read = true;
                if !matches!(answer, Answer::Conflict) || name == Some(StepName::Read) {
                    self.meta_retry_at = now + self.settings.retry;
                }
            }
        }
    }

    /// A decision that was not waited for any longer. When it was made after all, what was to give it up cannot be written
    /// any more, and is not waited for either.
    fn of_late(&mut self, answer: Answer, now: Duration) {
        self.late = None;
        if let Answer::Swapped { record, version } = answer
            && version > self.version
        {
            (self.meta, self.read) = (None, false);
            self.adopt(*record, version, now);
        }
    }

    /// Takes the record that is in meta, after a swap of this coordinator or a read.
    fn adopt(&mut self, record: MoveRecord, version: i64, now: Duration) {
        let mine = record.coordinator == self.me;
        if !mine && (self.holds || record.coordinator != self.before) {
            self.status = Status::Fenced;
            return;
        }
        if self.record.phase == record.phase {
            // A decision that was not made is made later than what it was confirmed for.
            self.units.values_mut().for_each(|unit| unit.confirmed = false);
        }
        let old = std::mem::replace(&mut self.record, record);
        self.version = version;
        if self.record.phase.is_over() {
            self.status = Status::Over;
            return;
        }
        if mine && !self.holds {
            self.holds = true;
            self.began();
            if self.record.failed > 0 {
                self.attempt_not_before = now + self.pause();
            }
        }
        if old.term != self.record.term {
            // What is under way has a term that stores may refuse by now: it is asked for again.
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
                for unit in self.of_leg(leg) {
                    // Both stores are to answer before anything is frozen again.
                    (unit.lag, unit.followed_at) = (None, None);
                    (unit.frozen, unit.imported, unit.sealed, unit.confirmed) = (None, false, None, false);
                    // Why the attempt failed is not known: the owner may have restarted.
                    unit.tracked = false;
                    unit.unfreeze = true;
                }
            }
        }
        if self.record.goal != old.goal {
            self.redirect = None;
        }
        if self.record.phase != Phase::Switched {
            self.switched_at = None;
            self.complete = false;
        }
    }

    /// What a coordinator that begins in the middle cannot rule out.
    fn began(&mut self) {
        let attempted = self.record.attempts > 0;
        let decided: Vec<bool> = self.record.legs.iter().map(|leg| leg.epoch.is_some()).collect();
        for (at, unit) in &mut self.units {
            unit.unfreeze = attempted;
            unit.release = decided[at.leg];
            unit.open = decided[at.leg];
            // Compared before it was switched.
            unit.verified = decided[at.leg];
        }
    }

    /// The follower owns the leg, and the owner will follow: it has everything.
    fn changed_hands(&mut self, leg: usize) {
        for unit in self.of_leg(leg) {
            *unit = UnitState {
                copied: true,
                leased: true,
                verified: true,
                release: true,
                open: true,
                ..UnitState::default()
            };
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
                // All units are followed at the same times, so that one call asks for all of them.
                unit.follow_at = rounded_down(now + self.settings.follow_every, self.settings.follow_every);
            }
            Answer::Frozen { final_revision, life } => unit.frozen = Some((final_revision, life)),
            Answer::Sealed { life } => unit.sealed = Some(life),
            Answer::Done => match name {
                StepName::Track => unit.tracked = true,
                StepName::Copy => unit.copied = true,
                StepName::AttachLeases => unit.leased = true,
                StepName::Verify => unit.verified = true,
                StepName::ImportLast => unit.imported = true,
                StepName::Confirm => unit.confirmed = true,
                StepName::Release => unit.release = false,
                StepName::Open => unit.open = false,
                StepName::Unfreeze => unit.unfreeze = false,
                StepName::Drop => unit.dropped = true,
                StepName::Forget => unit.forgotten = true,
                _ => {}
            },
            Answer::Lost { reason } => {
                (unit.copied, unit.leased, unit.lag, unit.verified) = (false, false, None, false);
                unit.retry_at = now + self.settings.retry;
                if matches!(self.record.phase, Phase::Switching { .. }) {
                    self.give_up = Some(reason);
                }
            }
            Answer::Restarted { reason } => {
                unit.tracked = false;
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
            _ => {
                if matches!(name, StepName::Tail | StepName::ReverseTail) {
                    (unit.lag, unit.followed_at) = (None, None);
                }
                // An owner that has restarted may know nothing of the track.
                unit.tracked &= !matches!(name, StepName::Copy | StepName::Tail | StepName::ReverseTail);
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

    /// A call about a unit, unless the same is under way or has just failed.
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
            lives: (state.frozen.map_or(0, |(_, life)| life), state.sealed.unwrap_or(0)),
            epoch: leg.epoch.unwrap_or(Epoch(0)),
        };
        let step = self.step(name, What::Unit(call));
        self.calls.insert(step.ticket, (name, at));
        self.under_way.insert((name, at));
        steps.push(step);
    }

    /// What a record that carries out what was asked says of it.
    fn hears(&self) -> i64 {
        self.record.heard.max(self.asked)
    }

    fn next_record(&self) -> MoveRecord {
        MoveRecord { term: Term(self.record.term.0 + 1), ..self.record.clone() }
    }
}

/// The last multiple of `every` at or before a time.
fn rounded_down(time: Duration, every: Duration) -> Duration {
    let over = time.as_nanos().checked_rem(every.as_nanos()).unwrap_or(0);
    time.saturating_sub(Duration::from_nanos(u64::try_from(over).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
