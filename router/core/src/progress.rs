//! Manual progress on one client stream (R7), as a state machine.
//!
//! A client that gets a progress answer at revision P resumes *every* watch of the stream at P + 1. So P must be
//! covered by every watch of the stream and must not lie below an event already sent; one that is too high loses events
//! silently, one that goes back delivers events twice. It must also be at least what the stores showed as their current
//! revisions when the request came in, because a probe may have shown those to the client.
//!
//! With one store that relays progress ([`Member::relays`]) its own answer is passed on: it travels in the stream behind
//! the events that it covers. With several members, or one that does not relay, a *round* asks all for their current
//! revisions, takes the maximum P, raises all to P, asks each for progress and answers P when every one has reached it. Events above P that arrive meanwhile are held, bounded and for
//! the length of a round, so that P is still not below anything sent when it is answered. A request during a round gets
//! the next one: the currents of the round in flight were asked before it came.
//!
//! Nothing here waits or reads a clock: the caller feeds events in and carries the commands out, in their order.

use kindred_partition_config::ids::Revision;

use crate::store::StoreIx;

/// What answers for some watches of a stream: an upstream stream on a store, or something else that the caller reads
/// events from.
pub trait Member: Copy + Eq {
    /// Whether its stream answers a progress request by itself, with a promise behind the events that it covers.
    fn relays(self) -> bool;
}

impl Member for StoreIx {
    fn relays(self) -> bool {
        true
    }
}

/// A round may be overtaken by messages that span its target this often before it is given up.
const BUMPS_MAX: u32 = 8;

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<M = StoreIx> {
    /// Ask the member for the current revision of its watches' ranges; answer with [`Progress::current`].
    Ask(M),
    /// Raise the member to at least this revision, then [`Progress::raised`].
    Raise(M, Revision),
    /// Ask for progress in the member's stream of events; its answer goes to [`Progress::progressed`].
    Forward(M),
    /// Send the client a progress answer with this revision.
    Answer(Revision),
    /// Send what was held, in its order.
    Release,
}

/// What to do with a message from upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Send it on.
    Forward,
    /// Keep it, in order, until [`Command::Release`].
    Hold,
}

/// A watch of the stream, under the caller's own number.
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
    /// The maximum of the currents so far; the target once `fixed`.
    target: Revision,
    fixed: bool,
    bumps: u32,
    held: Vec<WatchUid>,
    /// The highest revision held: sent with [`Command::Release`].
    held_to: Revision,
}

/// The progress state of one client stream.
#[derive(Debug)]
pub struct Progress<M = StoreIx> {
    round: Option<Round<M>>,
    wanted: bool,
    sent: Revision,
    answered: Revision,
    /// Set while the stream has one store and requests are simply passed on.
    single: Option<M>,
}

impl<M> Default for Progress<M> {
    fn default() -> Self {
        Self { round: None, wanted: false, sent: Revision::ZERO, answered: Revision::ZERO, single: None }
    }
}

impl<M: Member> Progress<M> {
    /// Whether a round is under way, for the caller's timer.
    #[must_use]
    pub fn in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Whether [`Progress::changed`] has to know the members.
    #[must_use]
    pub fn depends_on_members(&self) -> bool {
        self.round.is_some() || self.single.is_some()
    }

    /// The revision that the round under way has fixed: who can stop there shows nothing above it until it ends.
    #[must_use]
    pub fn target(&self) -> Option<Revision> {
        self.round.as_ref().filter(|round| round.fixed).map(|round| round.target)
    }

    /// The highest revision that the client was shown in events and promises.
    #[must_use]
    pub fn shown(&self) -> Revision {
        self.sent.max(self.answered)
    }

    /// The client asked for progress; `stores` are the members that its watches are on, each once.
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

    /// Begins a round whatever the members can do by themselves; the caller has none under way.
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

    /// A store told its current revision, asked for after the round began.
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

    /// The store was raised to `to`.
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

    /// The upstream stream of `store` carried a progress answer, behind every event at or below it. `starts_above` tells
    /// whether a watch of the client stream starts above a revision: then nothing may be said about it.
    pub fn progressed(
        &mut self,
        store: M,
        at: Revision,
        starts_above: impl Fn(Revision) -> bool,
    ) -> Vec<Command<M>> {
        let Some(round) = self.round.as_mut() else {
            // Passed on only while the stream still has this one store: with another one it would not be covered.
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

    /// Whether a message with events from `first` to `last` (or a progress of that watch alone, at `last`) may go to the
    /// client now. Follow the commands after acting on the answer.
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
        // The message spans the target and cannot be split: the target moves up to its end, and past what is held.
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

    /// The watches of the stream changed: one was added, or an upstream stream was opened again. A promise that is under
    /// way does not cover it, so the round begins anew.
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

    /// Gives the round up, silently: a store did not answer in time or too much is held.
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
