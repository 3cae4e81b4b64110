//! Progress answers on one client stream (R7), as a state machine.
//!
//! A client that gets a progress answer at revision P resumes *every* watch of the stream at P + 1. So P must be
//! covered by every watch of the stream, and must not lie below an event that was already sent: too high a P loses
//! events silently, one that goes back delivers events twice. P must also be at least the current revisions that the
//! stores showed when the request came in, because a probe may have shown those to the client.
//!
//! If the stream has a single member that relays progress ([`Member::relays`]), the request is forwarded and its answer
//! is passed on: it travels in the stream behind the events that it covers. Otherwise a *round* asks all members for
//! their current revisions, takes the maximum P, raises all to P, asks each for progress, and answers P when all have
//! reached it. Events above P that arrive meanwhile are held, bounded and for the length of the round, so that P does
//! not lie below anything sent. A request during a round gets the next one, because the revisions of the present round
//! were asked before it came.
//!
//! This code neither waits nor reads a clock: the caller feeds events in and carries the commands out in order.

use kindred_partition_config::ids::Revision;

use crate::store::StoreIx;

/// What serves some watches of a stream: an upstream stream on a store, or another source that the caller reads.
pub trait Member: Copy + Eq {
    /// Whether its stream answers a progress request itself, with a promise behind the events that it covers.
    fn relays(self) -> bool;
}

impl Member for StoreIx {
    fn relays(self) -> bool {
        true
    }
}

/// How often a message that spans the target may move it, before the round is aborted.
const BUMPS_MAX: u32 = 8;

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<M = StoreIx> {
    /// Ask the member for the current revision of its watches' ranges, then call [`Progress::current`].
    Ask(M),
    /// Raise the member to at least this revision, then call [`Progress::raised`].
    Raise(M, Revision),
    /// Ask for progress in the member's event stream; the answer goes to [`Progress::progressed`].
    Forward(M),
    /// Send the client a progress answer with this revision.
    Answer(Revision),
    /// Send the held messages in order.
    Release,
}

/// What to do with a message from upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Send it to the client.
    Forward,
    /// Keep it, in order, until [`Command::Release`].
    Hold,
}

/// The caller's number of a watch.
pub type WatchUid = i64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Asked,
    Raising,
    Waiting,
    Reached(Revision),
}

#[derive(Debug)]
struct Round<M> {
    stores: Vec<(M, Step)>,
    /// The highest current revision so far; the target once `fixed`.
    target: Revision,
    fixed: bool,
    bumps: u32,
    held: Vec<WatchUid>,
    /// The highest revision among the held messages.
    held_to: Revision,
}

/// The progress of one client stream.
#[derive(Debug)]
pub struct Progress<M = StoreIx> {
    round: Option<Round<M>>,
    wanted: bool,
    sent: Revision,
    answered: Revision,
    /// The only member of the stream, after a request was forwarded to it.
    single: Option<M>,
}

impl<M> Default for Progress<M> {
    fn default() -> Self {
        Self { round: None, wanted: false, sent: Revision::ZERO, answered: Revision::ZERO, single: None }
    }
}

impl<M: Member> Progress<M> {
    /// Whether a round is under way.
    #[must_use]
    pub fn in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Whether [`Progress::changed`] needs the members.
    #[must_use]
    pub fn depends_on_members(&self) -> bool {
        self.round.is_some() || self.single.is_some()
    }

    /// The target of the round, once fixed. A caller that reads no further shows nothing above it until the round ends.
    #[must_use]
    pub fn target(&self) -> Option<Revision> {
        self.round.as_ref().filter(|round| round.fixed).map(|round| round.target)
    }

    /// The highest revision that the client was shown in events and promises.
    #[must_use]
    pub fn shown(&self) -> Revision {
        self.sent.max(self.answered)
    }

    /// Handles a progress request; `stores` are the members that the stream's watches are on, each once.
    pub fn request(&mut self, stores: &[M]) -> Vec<Command<M>> {
        if self.round.is_some() {
            self.wanted = true;
            return Vec::new();
        }
        match stores {
            [] => Vec::new(),
            [one] if one.relays() => {
                self.single = Some(*one);
                vec![Command::Forward(*one)]
            }
            _ => self.begin(stores),
        }
    }

    /// Begins a round even if a single member could relay; none may be under way.
    pub fn begin(&mut self, stores: &[M]) -> Vec<Command<M>> {
        self.wanted = false;
        self.single = None;
        self.round = Some(Round {
            stores: stores.iter().map(|store| (*store, Step::Asked)).collect(),
            target: self.sent.max(self.answered),
            fixed: false,
            bumps: 0,
            held: Vec::new(),
            held_to: Revision::ZERO,
        });
        stores.iter().map(|store| Command::Ask(*store)).collect()
    }

    /// A member reported its current revision, asked for in this round.
    pub fn current(&mut self, store: M, current: Revision) -> Vec<Command<M>> {
        let sent = self.sent;
        let Some(round) = self.round.as_mut().filter(|round| !round.fixed) else { return Vec::new() };
        let Some(entry) = round.stores.iter_mut().find(|entry| entry.0 == store && entry.1 == Step::Asked)
        else {
            return Vec::new();
        };
        entry.1 = Step::Raising;
        round.target = round.target.max(current);
        if round.stores.iter().any(|entry| entry.1 == Step::Asked) {
            return Vec::new();
        }
        round.fixed = true;
        round.target = round.target.max(sent);
        round.stores.iter().map(|entry| Command::Raise(entry.0, round.target)).collect()
    }

    /// The member was raised to `to`.
    pub fn raised(&mut self, store: M, to: Revision) -> Vec<Command<M>> {
        let Some(round) = self.round.as_mut().filter(|round| round.fixed && to >= round.target) else {
            return Vec::new();
        };
        match round.stores.iter_mut().find(|entry| entry.0 == store && entry.1 == Step::Raising) {
            Some(entry) => {
                entry.1 = Step::Waiting;
                vec![Command::Forward(store)]
            }
            None => Vec::new(),
        }
    }

    /// A progress answer came from the member, behind every event at or below `at`. `starts_above` says whether a watch
    /// of the client stream starts above a revision, which then must not be answered.
    pub fn progressed(
        &mut self,
        store: M,
        at: Revision,
        starts_above: impl Fn(Revision) -> bool,
    ) -> Vec<Command<M>> {
        let Some(round) = self.round.as_mut() else {
            // Pass it on only while this is the stream's only member; another one would not be covered.
            let covered = self.single == Some(store) && at >= self.sent && at >= self.answered;
            return if covered && !starts_above(at) { vec![self.answer(at)] } else { Vec::new() };
        };
        let target = round.target;
        let Some(entry) = round.stores.iter_mut().find(|entry| entry.0 == store) else { return Vec::new() };
        if entry.1 != Step::Waiting || at < target {
            return Vec::new();
        }
        entry.1 = Step::Reached(at);
        if !round.stores.iter().all(|entry| matches!(entry.1, Step::Reached(_))) {
            return Vec::new();
        }
        let stores: Vec<M> = round.stores.iter().map(|entry| entry.0).collect();
        let held_to = round.held_to;
        self.round = None;
        let mut commands = Vec::new();
        if target >= self.answered && !starts_above(target) {
            commands.push(self.answer(target));
        }
        self.sent = self.sent.max(held_to);
        commands.push(Command::Release);
        if self.wanted {
            commands.extend(self.begin(&stores));
        }
        commands
    }

    /// Decides whether a message with events from `first` to `last` (or progress of one watch, at `last`) may be sent.
    /// Follow the commands after acting on the answer.
    pub fn admit(&mut self, watch: WatchUid, first: Revision, last: Revision) -> (Admit, Vec<Command<M>>) {
        let Some(round) = self.round.as_mut().filter(|round| round.fixed) else {
            self.sent = self.sent.max(last);
            return (Admit::Forward, Vec::new());
        };
        let behind = round.held.contains(&watch);
        if behind || first > round.target {
            round.held_to = round.held_to.max(last);
            if !behind {
                round.held.push(watch);
            }
            return (Admit::Hold, Vec::new());
        }
        self.sent = self.sent.max(last);
        if last <= round.target {
            return (Admit::Forward, Vec::new());
        }
        // The message spans the target and cannot be split, so the target moves to its end, and past the held messages.
        round.bumps += 1;
        if round.bumps > BUMPS_MAX {
            return (Admit::Forward, self.abort());
        }
        let mut commands = Vec::new();
        if !round.held.is_empty() {
            round.held.clear();
            commands.push(Command::Release);
        }
        let target = last.max(round.held_to);
        round.target = target;
        self.sent = self.sent.max(target);
        for (store, step) in &mut round.stores {
            if !matches!(step, Step::Reached(at) if *at >= target) {
                *step = Step::Raising;
                commands.push(Command::Raise(*store, target));
            }
        }
        (Admit::Forward, commands)
    }

    /// The watches of the stream have changed: one was added, or an upstream stream was opened again. The round does
    /// not cover that, so it begins anew.
    pub fn changed(&mut self, stores: &[M]) -> Vec<Command<M>> {
        if self.single.is_some_and(|single| stores != [single]) {
            self.single = None;
        }
        if self.round.is_none() {
            return Vec::new();
        }
        let mut commands = self.abort();
        commands.extend(self.request(stores));
        commands
    }

    /// Aborts the round without an answer: a store did not answer in time, or too much is held.
    pub fn abort(&mut self) -> Vec<Command<M>> {
        self.wanted = false;
        let Some(round) = self.round.take() else { return Vec::new() };
        self.sent = self.sent.max(round.held_to);
        vec![Command::Release]
    }

    fn answer(&mut self, at: Revision) -> Command<M> {
        self.answered = at;
        self.sent = self.sent.max(at);
        Command::Answer(at)
    }
}

#[cfg(test)]
#[path = "progress_test.rs"]
mod tests;
