//! The task that owns the engine.
//!
//! Requests come over one bounded queue, which the loop drains in batches: it applies all of a batch, hands the records
//! to the logs, publishes what need not wait for them, wakes the watch streams and answers (R9). Changes that must be
//! on disk first wait, in order and with the answers that depend on them, until their log has them. Answers to writes
//! of mode `buffered` wait until the kernel has the record, so that it outlives this process. The loop itself never
//! waits for a disk. Long work (freeing compacted memory, expiring leases, checkpoints) is done in slices between
//! batches, and long reads are produced chunk by chunk on request.

use std::{collections::VecDeque, time::Duration};

use kindred_engine::ops::Op;
use kindred_partition_config::ids::Revision;
use kindred_wire::error::EtcdError;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    core::{self, Call, Core, Flushed},
    durability::{
        Logs,
        failpoint::{Point, Side, reach},
        waiting::Waiting,
    },
    etcd_status::KvError,
    metrics::LoopMetrics,
    read_hints::ReadHints,
};

mod request;
mod requests;

pub(crate) use self::request::{Batched, BatchedCall, Raise, RaiseSince, Refusing, Request, Respond};
use self::{
    request::{Answer, Waiter},
    requests::Requests,
};

/// Requests that may wait in the queue; more senders wait for room.
const QUEUE_MAX: usize = 4096;
/// Maximum requests of a batch.
const BATCH_MAX: usize = 256;
/// A batch ends after about this time, so that its last request does not delay its first.
const BATCH_TIME_MAX: Duration = Duration::from_micros(200);
/// Versions freed in one slice.
const GC_SLICE: usize = 256;
/// Interval of the search for resources of vanished clients.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long, at most, requests are held up by a call that waits for both logs to be flushed.
const STALL_MAX: Duration = Duration::from_millis(500);
/// The number of writes that may wait for the clock's ceiling (R2), and for how long.
const HELD_MAX: usize = 4096;
const HELD_TIME_MAX: Duration = Duration::from_secs(2);

/// Starts the loop. It ends, after answering its queue, when `stop` is cancelled or every handle is dropped.
pub(crate) fn spawn(
    core: Core,
    logs: Logs,
    progress_interval: Duration,
    stop: CancellationToken,
) -> (mpsc::Sender<Request>, Refusing, JoinHandle<()>) {
    let (sender, requests) = mpsc::channel(QUEUE_MAX);
    let now = Instant::now();
    let refusing = Refusing::default();
    let apply_loop = ApplyLoop {
        core,
        refusing: refusing.clone(),
        logs,
        requests: Requests::new(requests),
        answers: Vec::with_capacity(BATCH_MAX),
        late: Vec::new(),
        raised: Vec::new(),
        waiting: Waiting::default(),
        unwritten: Waiting::default(),
        stalled: None,
        held: VecDeque::new(),
        progress_interval,
        progress_at: now + progress_interval,
        sweep_at: now + SWEEP_INTERVAL,
        expiring: false,
        metrics: LoopMetrics::new(),
    };
    (sender, refusing, tokio::spawn(apply_loop.run(stop)))
}

struct ApplyLoop {
    core: Core,
    refusing: Refusing,
    logs: Logs,
    requests: Requests,
    /// The answers of this batch, and what each waits for.
    answers: Vec<(Answer, Waits)>,
    late: Vec<Call>,
    /// Calls that need a raise first, and until when that may wait for the clock's ceiling.
    raised: Vec<(Instant, Raise, Call)>,
    /// Answers and calls that wait for a position of the fsync log.
    waiting: Waiting<Waiter>,
    /// Answers that wait until the kernel has the buffered log, each with the position of the fsync log that it needs
    /// then.
    unwritten: Waiting<(Answer, u64)>,
    /// The call that waits for both logs, and until when. The queue is not read meanwhile.
    stalled: Option<(Instant, Flushed)>,
    /// Writes that wait for the clock's ceiling, and until when.
    held: VecDeque<(Instant, Request)>,
    progress_interval: Duration,
    progress_at: Instant,
    sweep_at: Instant,
    /// Whether more leases have expired than the last slice ended.
    expiring: bool,
    metrics: LoopMetrics,
}

/// The logs that an answer waits for.
#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    /// The fsync log must be on disk, because the answer depends on a record in it.
    fsync: bool,
    /// The kernel must have the buffered log, because a write in it is answered.
    buffered: bool,
}

/// The number of logged records when a call began.
#[derive(Debug, Clone, Copy)]
struct LoggedBefore {
    fsync: usize,
    buffered: usize,
}

impl LoggedBefore {
    fn of(core: &Core) -> Self {
        Self { fsync: core.engine.logged_fsync(), buffered: core.engine.logged_buffered() }
    }

    /// The logs that the answer to the call waits for.
    fn waits(self, core: &Core) -> Waits {
        let now = Self::of(core);
        Waits { fsync: now.fsync != self.fsync, buffered: now.buffered != self.buffered }
    }
}

impl ApplyLoop {
    async fn run(mut self, stop: CancellationToken) {
        let changed = self.logs.changed();
        loop {
            let wake_at = self.next_timer();
            let began = tokio::select! {
                biased;
                request = self.requests.recv(), if self.stalled.is_none() => match request {
                    Some(request) => self.batch(request),
                    None => break,
                },
                () = changed.notified() => Instant::now(),
                () = stop.cancelled(), if !self.requests.is_closed() => {
                    self.requests.close();
                    Instant::now()
                }
                () = tokio::time::sleep_until(wake_at) => Instant::now(),
            };
            self.disk();
            self.timers();
            self.publish();
            // After the logs: the walk must find only what is logged.
            self.logs.checkpoint_slice(&mut self.core);
            self.metrics.turn(began.elapsed());
            // The tasks that were just answered run first, and fill the queue for the next batch.
            tokio::task::yield_now().await;
        }
        self.end().await;
    }

    /// Executes the waiting requests. Returns when it began.
    fn batch(&mut self, first: Request) -> Instant {
        let began = Instant::now();
        self.execute(first);
        while self.size() < BATCH_MAX && self.stalled.is_none() && began.elapsed() < BATCH_TIME_MAX {
            let Ok(request) = self.requests.try_recv() else { break };
            self.execute(request);
        }
        self.metrics.batch(self.size(), began.elapsed());
        began
    }

    fn size(&self) -> usize {
        self.answers.len() + self.late.len() + self.raised.len()
    }

    fn execute(&mut self, request: Request) {
        let core = &mut self.core;
        let before = LoggedBefore::of(core);
        let (answer, waits) = match request {
            Request::Apply { ref op, hints, .. } if !fits(core, op, hints) => {
                return self.hold(request, hints);
            }
            Request::Apply { op, hints, answer } => {
                let applied = core.apply(op, hints);
                let waits = applied.is_ok() && core.engine.answer_waits();
                (Answer::Apply(answer, applied), waits)
            }
            Request::Read { query, hints, owner, answer } if core.waits(&query, hints) => {
                // The read must show, for its whole range, what any of its Kinds already shows.
                let to = hints.min_revision.unwrap_or_else(|| core.engine.current_all());
                let raise = Raise { ranges: vec![query.range.clone()], to, generation: hints.generation };
                let read = move |core: &mut Core| -> Box<dyn FnOnce() + Send> {
                    let read = core.read(&query, hints, &owner);
                    Box::new(move || answer.send(read))
                };
                return self.raise(raise, Box::new(read));
            }
            Request::Read { query, hints, owner, answer } => {
                (Answer::Read(answer, core.read(&query, hints, &owner)), false)
            }
            Request::Batch(ops) => return self.execute_batch(ops),
            Request::Chunk { cursor, answer } => (Answer::Chunk(answer, core.chunk(cursor)), false),
            Request::Pull { stream, bytes_max, answer } => {
                (Answer::Pull(answer, core.engine.watch_pull(stream, bytes_max)), false)
            }
            Request::ResumeFeed(feed) => return core.feed_resume(feed),
            Request::Call(call) => (Answer::Call(call(core)), false),
            Request::Late(late) => return self.late.push(late),
            Request::Raised { raise, late } => return self.raise(raise, late),
            Request::Flushed(call) => {
                self.stalled = Some((Instant::now() + STALL_MAX, call));
                return;
            }
        };
        let logged = before.waits(&self.core);
        self.answers.push((answer, Waits { fsync: waits || logged.fsync, ..logged }));
    }

    fn execute_batch(&mut self, ops: Vec<Batched>) {
        let now = Instant::now();
        for op in ops {
            if op.reply.is_wanted(now) {
                self.execute(op.into());
            } else {
                // No client waits for it, and it has done nothing yet.
                op.reply.send(Err(KvError::Invalid(EtcdError::Timeout)));
            }
        }
    }

    fn raise(&mut self, raise: Raise, late: Call) {
        self.raised.push((Instant::now() + HELD_TIME_MAX, raise, late));
    }

    fn ask_ceiling(&mut self, to: Option<Revision>) {
        self.logs.ask_ceiling(to.filter(|to| self.core.waits_for_ceiling(*to)));
    }

    /// Keeps a write until the clock may assign again.
    fn hold(&mut self, request: Request, hints: ReadHints) {
        self.ask_ceiling(hints.min_revision);
        if self.held.len() < HELD_MAX {
            self.held.push_back((Instant::now() + HELD_TIME_MAX, request));
        } else {
            refuse(request);
        }
    }

    /// Handles what the logs have completed since the last call.
    fn disk(&mut self) {
        self.logs.settle(&mut self.core);
        let (written, durable) = (self.logs.written(), self.logs.durable());
        while let Some((answer, position)) = self.unwritten.pop(written) {
            if position <= durable {
                self.answers.push((answer, Waits::default()));
            } else {
                self.waiting.push(position, Waiter::Answer(answer));
            }
        }
        while let Some(waiter) = self.waiting.pop(durable) {
            match waiter {
                Waiter::Answer(answer) => self.answers.push((answer, Waits::default())),
                Waiter::Late(late) => self.late.push(late),
            }
        }
        if self.stalled.is_some() {
            return;
        }
        let now = Instant::now();
        while let Some((until, request)) = self.held.pop_front() {
            let Request::Apply { op, hints, answer } = &request else { continue };
            let wanted = answer.is_wanted(now);
            if wanted && fits(&self.core, op, *hints) {
                self.execute(request);
            } else if !wanted || until <= now {
                refuse(request);
            } else {
                self.ask_ceiling(hints.min_revision);
                self.held.push_front((until, request));
                break;
            }
        }
    }

    fn publish(&mut self) {
        self.logs.append(&mut self.core.engine);
        self.core.engine.publish();
        self.raise_all();
        let mut ran = self.run_stalled();
        for late in std::mem::take(&mut self.late) {
            let before = LoggedBefore::of(&self.core);
            let answer = Answer::Call(late(&mut self.core));
            self.answers.push((answer, before.waits(&self.core)));
            ran = true;
        }
        if ran {
            self.logs.append(&mut self.core.engine);
            self.core.engine.publish();
        }
        let (position, buffered) = (self.logs.position(), self.logs.position_buffered());
        let all_written = self.logs.written() >= buffered;
        let all_durable = self.logs.durable() >= position;
        for deferred in self.core.take_deferred() {
            if all_durable {
                self.answers.push((Answer::Call(deferred(&mut self.core)), Waits::default()));
            } else {
                self.waiting.push(position, Waiter::Late(deferred));
            }
        }
        self.core.wake();
        let some = !self.answers.is_empty();
        if some {
            reach(Point::LoopAnswer, Side::Before);
        }
        for (answer, waits) in self.answers.drain(..) {
            if waits.buffered && !all_written {
                self.unwritten.push(buffered, (answer, if waits.fsync { position } else { 0 }));
            } else if waits.fsync && !all_durable {
                self.waiting.push(position, Waiter::Answer(answer));
            } else {
                answer.send();
            }
        }
        if some {
            reach(Point::LoopAnswer, Side::After);
        }
        self.core.push_feeds();
    }

    fn raise_all(&mut self) {
        let now = Instant::now();
        for (until, raise, late) in std::mem::take(&mut self.raised) {
            if self.core.waits_for_ceiling(raise.to) && until > now {
                self.ask_ceiling(Some(raise.to));
                self.raised.push((until, raise, late));
            } else if self.core.engine.unpublished_in(&raise.ranges) {
                // The revision is fixed here: no later write is at or below it. A refusal comes again when the call
                // runs.
                let _ = self.core.raise(&raise.ranges, raise.to, raise.generation);
                self.waiting.push(self.logs.position(), Waiter::Late(late));
            } else {
                self.late.push(late);
            }
        }
    }

    /// Runs the call that waits for both logs, once they are flushed; fails it when that takes too long. Returns
    /// whether it ran.
    fn run_stalled(&mut self) -> bool {
        let Some((until, call)) = self.stalled.take() else { return false };
        if self.logs.is_flushed() {
            let before = LoggedBefore::of(&self.core);
            let answer = Answer::Call(call(Ok(&mut self.core)));
            self.answers.push((answer, before.waits(&self.core)));
            self.stalled = self.core.take_again().map(|call| (Instant::now() + STALL_MAX, call));
            return true;
        }
        if until <= Instant::now() {
            self.core.engine.keep_modes();
            call(Err(KvError::DiskWait))();
        } else {
            self.stalled = Some((until, call));
        }
        false
    }

    /// Does one slice of each kind of work that is due.
    fn timers(&mut self) {
        self.expiring = self.may_expire() && self.core.lease_expire();
        self.core.compact_due();
        self.core.gc(GC_SLICE);
        let now = Instant::now();
        if now >= self.progress_at {
            self.progress_at = now + self.progress_interval;
            // The changes of this batch are published first, so that the promise may cover them.
            self.logs.append(&mut self.core.engine);
            self.core.engine.publish();
            // A clock that no handshake has confirmed promises nothing (R3).
            if self.core.clock.is_confirmed() {
                self.core.engine.progress_tick(self.core.clock.wall());
            }
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_INTERVAL;
            self.core.sweep();
            self.core.note_written(now);
            let (reads, streams) = self.core.open_counts();
            self.metrics.units(&self.core.engine.unit_records());
            self.metrics.sizes(&self.core.engine.stats(), self.core.applied, reads, streams);
            self.core.durability = self.logs.report(&self.core);
            self.refusing.set(self.core.refuses());
        }
    }

    /// Whether leases may be ended now, which writes.
    fn may_expire(&self) -> bool {
        self.stalled.is_none() && self.core.may_assign()
    }

    fn next_timer(&self) -> Instant {
        let busy = self.expiring || self.core.is_collecting() || self.core.has_feeds_behind();
        if busy || self.logs.has_checkpoint_work() {
            return Instant::now();
        }
        // While it waits for the ceiling, an expired lease sets no timer: raising the ceiling wakes the loop.
        let lease = self.core.engine.lease_deadline().filter(|_| self.may_expire());
        let lease = lease.map(|at| self.core.clock.instant(at));
        let compaction = self.core.compact_deadline().map(|at| self.core.clock.instant(at));
        let stalled = self.stalled.as_ref().map(|(until, _)| *until);
        let held = self.held.front().map(|(until, _)| *until);
        let raised = self.raised.first().map(|(until, ..)| *until);
        let timers = [
            Some(self.progress_at),
            Some(self.sweep_at),
            self.logs.next_timer(),
            lease,
            compaction,
            stalled,
            held,
            raised,
        ];
        timers.into_iter().flatten().min().unwrap_or(self.sweep_at)
    }

    /// Answers all pending requests, as far as the disk allows, and closes the logs.
    async fn end(mut self) {
        for (_, request) in std::mem::take(&mut self.held) {
            refuse(request);
        }
        let changed = self.logs.changed();
        let deadline = Instant::now() + STALL_MAX;
        let waits = |it: &Self| !(it.waiting.is_empty() && it.unwritten.is_empty()) || it.stalled.is_some();
        while waits(&self) && Instant::now() < deadline {
            let _ = tokio::time::timeout_at(deadline, changed.notified()).await;
            self.disk();
            self.publish();
        }
        self.logs.close(&mut self.core).await;
    }
}

/// Whether the clock's ceiling lets a request be executed now.
fn fits(core: &Core, op: &Op, hints: ReadHints) -> bool {
    core::is_read(op)
        || (core.may_assign() && hints.min_revision.is_none_or(|least| !core.waits_for_ceiling(least)))
}

/// Answers a write that could not be executed in time, and was not.
fn refuse(request: Request) {
    if let Request::Apply { answer, .. } = request {
        answer.send(Err(KvError::DiskWait));
    }
}
