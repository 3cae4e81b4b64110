//! What waits in the loop, and for what: the only place where anything waits.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{
    call::Call,
    request::{Answer, Raise, Request},
};
use crate::durability::waiting::Waiting;

/// How long, at most, requests are held up by a call that waits for both logs to be flushed.
const STALL_MAX: Duration = Duration::from_millis(500);
/// The number of writes that may wait for the clock's ceiling (R2), and for how long.
const CEILING_MAX: usize = 4096;
const CEILING_TIME_MAX: Duration = Duration::from_secs(2);

/// The logs that an answer waits for once its batch is published.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// The fsync log must be on disk, because the answer depends on a record in it.
    pub(super) fsync: bool,
    /// The kernel must have the buffered log, because a write in it is answered.
    pub(super) buffered: bool,
    /// The standbys must have what is shipped, because a change in it is answered (R18).
    pub(super) received: bool,
}

/// Positions in the two logs, and in what is shipped. Zero waits for nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogAt {
    /// The kernel has the buffered log up to here.
    pub(super) written: u64,
    /// The fsync log is on disk up to here.
    pub(super) durable: u64,
    /// The standbys have received everything up to here.
    pub(super) received: u64,
}

/// An entry: what it waits for, and what happens then.
pub(super) enum Until {
    /// Its batch is published, and after that the logs are as far as it needs.
    Published(Answer, Needs),
    /// Its batch is published.
    PublishedCall(Call),
    /// A raise is visible, or the ceiling did not allow it in time.
    Raised(Raise, Call),
    /// The logs are that far.
    Logged(LogAt, Ready),
    /// Everything appended to either log is on disk, or that took too long. No request is read meanwhile.
    Flushed(Call),
}

/// What no log keeps from happening any more.
pub(super) enum Ready {
    /// An answer to send.
    Answer(Answer),
    /// A call to run.
    Call(Call),
}

/// What waits until a moment at most.
pub(super) struct Timed<T> {
    pub(super) until: Instant,
    pub(super) what: T,
}

/// A queue for each condition. What waits for the same condition leaves in the order in which it came.
#[derive(Default)]
pub(super) struct Pending {
    answers: Vec<(Answer, Needs)>,
    calls: Vec<Call>,
    raised: Vec<Timed<(Raise, Call)>>,
    /// Entries that need the standbys, each with the positions of the logs that it needs then.
    received: Waiting<(Ready, LogAt)>,
    /// Entries that need the buffered log, each with the position of the fsync log that it needs then.
    written: Waiting<(Ready, u64)>,
    durable: Waiting<Ready>,
    flushed: Option<Timed<Call>>,
    ceiling: VecDeque<Timed<Request>>,
}

impl Pending {
    /// Nothing, with room for the answers of a batch.
    pub(super) fn with_capacity(answers: usize) -> Self {
        Self { answers: Vec::with_capacity(answers), ..Self::default() }
    }

    pub(super) fn push(&mut self, now: Instant, entry: Until) {
        match entry {
            Until::Published(answer, needs) => self.answers.push((answer, needs)),
            Until::PublishedCall(call) => self.calls.push(call),
            Until::Raised(raise, call) => {
                self.raised.push(Timed { until: now + CEILING_TIME_MAX, what: (raise, call) });
            }
            Until::Logged(at @ LogAt { received: 1.., .. }, ready) => {
                self.received.push(at.received, (ready, at));
            }
            Until::Logged(LogAt { written: 0, durable, .. }, ready) => self.durable.push(durable, ready),
            Until::Logged(LogAt { written, durable, .. }, ready) => {
                self.written.push(written, (ready, durable));
            }
            Until::Flushed(call) => self.flushed = Some(Timed { until: now + STALL_MAX, what: call }),
        }
    }

    /// Keeps a write until the clock's ceiling lets it be executed, behind those that wait for that already. Returns it
    /// when too many do.
    pub(super) fn push_above_ceiling(&mut self, now: Instant, write: Request) -> Option<Request> {
        if self.ceiling.len() >= CEILING_MAX {
            return Some(write);
        }
        self.ceiling.push_back(Timed { until: now + CEILING_TIME_MAX, what: write });
        None
    }

    /// The next entry for which the logs are far enough.
    pub(super) fn pop_logged(&mut self, logs: LogAt) -> Option<Ready> {
        while let Some((ready, at)) = self.received.pop(logs.received) {
            if at.written > logs.written {
                self.written.push(at.written, (ready, at.durable));
            } else if at.durable > logs.durable {
                self.durable.push(at.durable, ready);
            } else {
                return Some(ready);
            }
        }
        while let Some((ready, durable)) = self.written.pop(logs.written) {
            if durable <= logs.durable {
                return Some(ready);
            }
            self.durable.push(durable, ready);
        }
        self.durable.pop(logs.durable)
    }

    /// The first write that waits for the ceiling.
    pub(super) fn pop_above_ceiling(&mut self) -> Option<Timed<Request>> {
        self.ceiling.pop_front()
    }

    /// Gives back the first write, which must wait on.
    pub(super) fn put_back_above_ceiling(&mut self, write: Timed<Request>) {
        self.ceiling.push_front(write);
    }

    pub(super) fn take_raised(&mut self) -> Vec<Timed<(Raise, Call)>> {
        std::mem::take(&mut self.raised)
    }

    /// Gives back a raise, which must wait on.
    pub(super) fn put_back_raised(&mut self, raise: Timed<(Raise, Call)>) {
        self.raised.push(raise);
    }

    pub(super) fn take_flushed(&mut self) -> Option<Timed<Call>> {
        self.flushed.take()
    }

    /// Gives back the call, which must wait on.
    pub(super) fn put_back_flushed(&mut self, call: Timed<Call>) {
        self.flushed = Some(call);
    }

    /// The calls of the batch that is published.
    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// The answers of the batch that is published. [`Pending::reuse`] takes the room back.
    pub(super) fn take_answers(&mut self) -> Vec<(Answer, Needs)> {
        std::mem::take(&mut self.answers)
    }

    pub(super) fn reuse(&mut self, room: Vec<(Answer, Needs)>) {
        debug_assert!(room.is_empty() && self.answers.is_empty(), "no answer is lost");
        self.answers = room;
    }

    /// The number of entries of this batch.
    pub(super) fn batch_len(&self) -> usize {
        self.answers.len() + self.calls.len() + self.raised.len()
    }

    /// Whether a call waits for both logs: nothing else may be executed before it.
    pub(super) fn stalls(&self) -> bool {
        self.flushed.is_some()
    }

    /// Whether anything waits for a log.
    pub(super) fn waits_for_logs(&self) -> bool {
        !(self.durable.is_empty() && self.written.is_empty() && self.received.is_empty()) || self.stalls()
    }

    /// When the first entry has waited too long.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let flushed = self.flushed.as_ref().map(|call| call.until);
        let ceiling = self.ceiling.front().map(|write| write.until);
        let raised = self.raised.first().map(|raise| raise.until);
        [flushed, ceiling, raised].into_iter().flatten().min()
    }

    /// How long the end of a shard waits for the logs.
    pub(super) const END_MAX: Duration = STALL_MAX;
}
