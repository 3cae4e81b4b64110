//! The loop's decisions: what a request does to the engine, and when its answer may be sent. There is no task here and
//! no waiting: the caller brings requests and the time, leases and revisions go by the clock that the core was given,
//! and answers go into channels. [`super::ApplyLoop`] drives it in a shard, and the simulation drives the same code.

use std::time::Duration;

use kindred_engine::{durability::AnswerWaits, error::EngineError, ops::Op};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use kindred_wire::error::EtcdError;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Control,
    background::Background,
    call::Call,
    pending::{LogAt, Needs, Pending, Ready, Timed, Until},
    request::{Answer, Batched, Raise, Refusing, Request},
};
use crate::{
    core::{self, Core, Later},
    durability::{
        Logs,
        failpoint::{Point, Side, reach},
    },
    etcd_status::KvError,
    metrics::{LoopMetrics, kinds},
    read_hints::ReadHints,
    standby::shipping::Shipping,
};

/// Versions freed in one slice.
const GC_SLICE: usize = 256;
/// Interval of the search for resources of vanished clients, about a second: a turn that comes anyway does it after the
/// first of these, so that an idle shard, of which a router asks something each second, does not wake for it alone.
const SWEEP_AFTER: Duration = Duration::from_millis(950);
const SWEEP_BY: Duration = Duration::from_millis(1_200);

/// The engine, its logs, and what waits.
pub(super) struct Machine {
    pub(super) core: Core,
    pub(super) logs: Logs,
    pub(super) shipping: Shipping,
    began: Instant,
    /// Who waits for this standby to go on in its primary's place.
    promoted: Option<oneshot::Sender<Result<(), KvError>>>,
    /// Calls that have the engine ship, which run when the logs are flushed.
    ships: Vec<Call>,
    pending: Pending,
    refusing: Refusing,
    progress_interval: Duration,
    progress_at: Instant,
    swept: Instant,
    /// Whether more leases have expired than the last slice ended.
    expiring: bool,
    background: Background,
    /// If set, a slice of long work was done that [`Machine::take_sliced`] has not told yet.
    sliced: bool,
    pub(super) metrics: LoopMetrics,
}

/// The number of logged records when a call began.
#[derive(Debug, Clone, Copy)]
struct LoggedBefore {
    fsync: usize,
    buffered: usize,
    shipped: usize,
}

impl LoggedBefore {
    fn of(core: &Core) -> Self {
        let engine = &core.engine;
        Self {
            fsync: engine.logged_fsync(),
            buffered: engine.logged_buffered(),
            shipped: engine.logged_shipped(),
        }
    }

    /// The logs that the answer to the call needs.
    fn needs(self, core: &Core) -> Needs {
        let now = Self::of(core);
        Needs {
            fsync: now.fsync != self.fsync,
            buffered: now.buffered != self.buffered,
            received: now.shipped != self.shipped,
        }
    }
}

impl Machine {
    /// Nothing waits; `batch_max` is the size of the batches to come.
    pub(super) fn new(
        core: Core,
        logs: Logs,
        shipping: Shipping,
        progress_interval: Duration,
        batch_max: usize,
    ) -> Self {
        let (now, metrics) = (core.clock.now(), LoopMetrics::new(&core.label));
        Self {
            core,
            logs,
            shipping,
            began: now,
            promoted: None,
            ships: Vec::new(),
            pending: Pending::with_capacity(batch_max),
            refusing: Refusing::default(),
            progress_interval,
            progress_at: now + progress_interval,
            swept: now,
            expiring: false,
            background: Background::default(),
            sliced: false,
            metrics,
        }
    }

    /// What is refused at present, for the handles.
    pub(super) fn refusing(&self) -> Refusing {
        self.refusing.clone()
    }

    /// Whether a request that has come before `now` may be executed: no call waits for the logs, and no standby can have
    /// been promoted (R20).
    pub(super) fn takes_requests(&self, now: Instant) -> bool {
        !self.pending.stalls() && !self.answers_nothing(now)
    }

    /// Whether no request may be executed because a standby may have been promoted (R20).
    pub(super) fn answers_nothing(&self, now: Instant) -> bool {
        !self.shipping.answers(now.duration_since(self.began))
    }

    /// Whether another member is the primary, so that nothing will be executed here any more.
    pub(super) fn refuses_all(&self) -> bool {
        self.shipping.is_superseded()
    }

    /// Does what the loop is told of this member.
    pub(super) fn control(&mut self, now: Instant, control: Control) {
        match control {
            Control::Said(said) => {
                self.shipping.hear(&mut self.core.engine, said, now.duration_since(self.began));
            }
            Control::Ship(call) => self.ships.push(*call),
            Control::Promote { behind, answer } => {
                behind.into_iter().for_each(|ceiling| self.core.is_behind(ceiling));
                self.promoted = Some(answer);
            }
            Control::Reopen { behind, in_doubt, answer } => {
                self.core.reopens(behind, in_doubt);
                // What waits for its standbys is published.
                self.shipping.stands_alone();
                self.promoted = Some(answer);
            }
        }
    }

    /// The number of entries of this batch.
    pub(super) fn batch_len(&self) -> usize {
        self.pending.batch_len()
    }

    /// Whether answers or calls wait for the logs.
    pub(super) fn waits_for_logs(&self) -> bool {
        self.pending.waits_for_logs()
    }

    /// Executes a request as one of this batch.
    pub(super) fn execute(&mut self, now: Instant, request: Request) {
        let core = &mut self.core;
        let before = LoggedBefore::of(core);
        let (answer, waits) = match request {
            Request::Apply { ref op, hints, .. } if !fits(core, op, hints) => {
                return self.wait_for_ceiling(now, request, hints);
            }
            Request::Apply { op, hints, answer } => {
                let applied = core.apply(op, hints);
                let waits = match &applied {
                    Ok(_) => core.engine.answer_waits(),
                    // The end of the lease may not be on disk yet (R12).
                    Err(KvError::Engine(EngineError::LeaseNotFound(_))) => {
                        AnswerWaits { fsync: true, received: core.engine.ships() }
                    }
                    Err(_) => AnswerWaits::default(),
                };
                (Answer::Apply(answer, applied), waits)
            }
            Request::Read { query, hints, owner, answer }
                if core.waits(std::slice::from_ref(&query.range), hints) =>
            {
                let raise = raise_of_read(core, vec![query.range.clone()], hints);
                let read = Call::Read { query, hints, owner, answer };
                return self.pending.push(now, Until::Raised(raise, read));
            }
            Request::Read { query, hints, owner, answer } => {
                (Answer::Read(answer, core.read(&query, hints, &owner)), AnswerWaits::default())
            }
            Request::BeginReads { txn, hints, owner, answer }
                if core.waits(&core::ranges_of(&txn), hints) =>
            {
                let raise = raise_of_read(core, core::ranges_of(&txn), hints);
                let begin = Call::BeginReads { txn, hints, owner, answer };
                return self.pending.push(now, Until::Raised(raise, begin));
            }
            Request::BeginReads { txn, hints, owner, answer } => {
                (Answer::BegunReads(answer, core.begin_reads(&txn, hints, &owner)), AnswerWaits::default())
            }
            Request::Batch(ops) => return self.execute_batch(now, ops),
            Request::Chunk { cursor, answer } => {
                self.sliced = true;
                (Answer::Chunk(answer, core.chunk(cursor)), AnswerWaits::default())
            }
            Request::Pull { stream, bytes_max, answer } => {
                (Answer::Pull(answer, core.engine.watch_pull(stream, bytes_max)), AnswerWaits::default())
            }
            Request::ResumeFeed(feed) => return core.feed_resume(feed),
            Request::Call(call) => (Answer::Call(call.run(core)), AnswerWaits::default()),
            Request::Late(late) => {
                // Most are slices of a move.
                self.sliced = true;
                return self.pending.push(now, Until::PublishedCall(late));
            }
            Request::Raised { raise, late } => return self.pending.push(now, Until::Raised(raise, late)),
            Request::Flushed(call) => return self.pending.push(now, Until::Flushed(call)),
        };
        let logged = before.needs(&self.core);
        let needs = Needs {
            fsync: waits.fsync || logged.fsync,
            received: waits.received || logged.received,
            ..logged
        };
        self.pending.push(now, Until::Published(answer, needs));
    }

    fn execute_batch(&mut self, now: Instant, ops: Vec<Batched>) {
        if ops.len() > 1 {
            self.core.engine.warm(ops.iter().filter_map(|op| op.call.key()));
        }
        for op in ops {
            if op.reply.is_wanted(now) {
                self.execute(now, op.into());
            } else {
                // No client waits for it, and it has done nothing yet.
                op.reply.send(Err(KvError::Invalid(EtcdError::Timeout)));
            }
        }
    }

    fn ask_ceiling(&mut self, to: Option<Revision>) {
        self.logs.ask_ceiling(to.filter(|to| self.core.waits_for_ceiling(*to)));
    }

    /// Keeps a write until the clock may assign again.
    fn wait_for_ceiling(&mut self, now: Instant, write: Request, hints: ReadHints) {
        self.ask_ceiling(hints.min_revision);
        if let Some(write) = self.pending.push_above_ceiling(now, write) {
            refuse(write);
        }
    }

    /// Ends the batch: does what is due by now, publishes, and sends every answer that nothing keeps back.
    pub(super) fn end_batch(&mut self, now: Instant) {
        self.settle(now);
        self.timers(now);
        self.begin_to_ship(now);
        self.publish(now);
        self.replica(now);
        self.checkpoint(now);
        self.shipping.copy(&mut self.core.engine);
    }

    /// Does a slice of a checkpoint. It comes after the logs: the walk must find only what is logged.
    fn checkpoint(&mut self, now: Instant) {
        if self.background.rests(now).is_some() && !self.logs.checkpoint_is_urgent() {
            return;
        }
        let began = self.logs.has_checkpoint_work().then(|| self.core.clock.now());
        self.logs.checkpoint_slice(&mut self.core);
        if let Some(began) = began {
            self.worked(began);
        }
    }

    /// Notes a slice of what no client waits for.
    fn worked(&mut self, from: Instant) {
        self.background.worked(from, self.core.clock.now());
        self.sliced = true;
    }

    /// Tells if a slice of long work was done since the last call.
    pub(super) fn take_sliced(&mut self) -> bool {
        std::mem::take(&mut self.sliced)
    }

    /// Has the engine ship for a standby that is about to follow. If it ships already, nothing is to be waited for: what
    /// is not published may wait for that very standby.
    fn begin_to_ship(&mut self, now: Instant) {
        if !self.core.has_begun() {
            // The engine begins anew when its clock is confirmed.
            return;
        }
        if self.core.engine.ships() {
            for call in self.ships.drain(..) {
                call.run(&mut self.core)();
            }
        } else if !self.pending.stalls()
            && let Some(call) = self.ships.pop()
        {
            self.pending.push(now, Until::Flushed(call));
        }
    }

    /// What a standby does besides taking over what comes.
    fn replica(&mut self, now: Instant) {
        if self.pending.stalls() {
            return;
        }
        if let Some(asked) = self.core.modes_shipped() {
            // Nobody waits for the answer. What could not be set now, routers set after a promotion.
            let (answer, _) = oneshot::channel();
            self.pending.push(now, Until::Flushed(Call::SetModes { asked, answer }));
        } else if self.promoted.is_some()
            && self.core.replica.as_ref().is_none_or(|replica| self.logs.is_whole_above(replica.ceiling))
            && let Some(answer) = self.promoted.take()
        {
            // The caller may have given up; asked again, it is told.
            let _ = answer.send(self.core.take_over());
        }
    }

    /// Handles what the logs have completed since the last call.
    fn settle(&mut self, now: Instant) {
        self.logs.settle(&mut self.core, &mut self.shipping);
        let done = self.logs_done();
        while let Some(ready) = self.pending.pop_logged(done) {
            let entry = match ready {
                Ready::Answer(answer) => Until::Published(answer, Needs::default()),
                Ready::Call(call) => Until::PublishedCall(call),
            };
            self.pending.push(now, entry);
        }
        if self.pending.stalls() {
            return;
        }
        while let Some(Timed { until, what: request }) = self.pending.pop_above_ceiling() {
            let Request::Apply { op, hints, answer } = &request else { continue };
            let wanted = answer.is_wanted(now);
            if wanted && fits(&self.core, op, *hints) {
                self.execute(now, request);
            } else if !wanted || until <= now {
                refuse(request);
            } else {
                self.ask_ceiling(hints.min_revision);
                self.pending.put_back_above_ceiling(Timed { until, what: request });
                break;
            }
        }
    }

    fn logs_done(&self) -> LogAt {
        let (written, durable) = (self.logs.written(), self.logs.durable());
        LogAt { written, durable, received: self.shipping.received() }
    }

    fn publish(&mut self, now: Instant) {
        self.hand_over();
        self.raise_all(now);
        let mut ran = self.run_flushed(now);
        for call in self.pending.take_calls() {
            let before = LoggedBefore::of(&self.core);
            let answer = Answer::Call(call.run(&mut self.core));
            self.pending.push(now, Until::Published(answer, before.needs(&self.core)));
            ran = true;
        }
        if ran {
            self.hand_over();
        }
        let last = LogAt {
            written: self.logs.position_buffered(),
            durable: self.logs.position(),
            received: self.shipping.position(),
        };
        let done = self.logs_done();
        for later in self.core.take_later() {
            match later {
                Later::Durable(call) if done.durable >= last.durable && done.received >= last.received => {
                    let answer = Answer::Call(Call::Durable(call).run(&mut self.core));
                    self.pending.push(now, Until::Published(answer, Needs::default()));
                }
                Later::Durable(call) => {
                    let at = LogAt { written: 0, ..last };
                    self.pending.push(now, Until::Logged(at, Ready::Call(Call::Durable(call))));
                }
                Later::Flushed(modes) => self.pending.push(now, Until::Flushed(Call::Logged(modes))),
            }
        }
        self.core.wake();
        self.answer(now, last, done);
        self.core.push_feeds();
    }

    /// Hands what was applied to the logs, and publishes what need not wait for them.
    fn hand_over(&mut self) {
        let now = self.core.clock.now().duration_since(self.began);
        let engine = &mut self.core.engine;
        let applied = engine.take_applied();
        self.shipping.ship(engine, &applied, now);
        self.logs.append(engine, applied, self.shipping.position());
        engine.publish();
    }

    /// Sends the answers of the batch that need no log, or one that is far enough.
    fn answer(&mut self, now: Instant, last: LogAt, done: LogAt) {
        let mut answers = self.pending.take_answers();
        let some = !answers.is_empty();
        if some {
            reach(Point::LoopAnswer, Side::Before);
        }
        for (answer, needs) in answers.drain(..) {
            let waits = |needs: bool, last: u64, done: u64| if needs && done < last { last } else { 0 };
            let at = LogAt {
                written: waits(needs.buffered, last.written, done.written),
                durable: waits(needs.fsync, last.durable, done.durable),
                received: waits(needs.received, last.received, done.received),
            };
            match at {
                LogAt { written: 0, durable: 0, received: 0 } => answer.send(),
                at => self.pending.push(now, Until::Logged(at, Ready::Answer(answer))),
            }
        }
        self.pending.reuse(answers);
        if some {
            reach(Point::LoopAnswer, Side::After);
        }
    }

    fn raise_all(&mut self, now: Instant) {
        for Timed { until, what: (raise, call) } in self.pending.take_raised() {
            if self.core.waits_for_ceiling(raise.to) && until > now {
                self.ask_ceiling(Some(raise.to));
                self.pending.put_back_raised(Timed { until, what: (raise, call) });
            } else if self.core.engine.unpublished_in(&raise.ranges) {
                // The revision is fixed here: no later write is at or below it. A refusal comes again when the call
                // runs.
                let _ = self.core.raise(&raise.ranges, raise.to, raise.generation);
                let (durable, received) = (self.logs.position(), self.shipping.position());
                let at = LogAt { written: 0, durable, received };
                self.pending.push(now, Until::Logged(at, Ready::Call(call)));
            } else {
                self.pending.push(now, Until::PublishedCall(call));
            }
        }
    }

    /// Runs the call that waits for both logs, once they are flushed; fails it when that takes too long. Returns
    /// whether it ran.
    fn run_flushed(&mut self, now: Instant) -> bool {
        let Some(Timed { until, what: call }) = self.pending.take_flushed() else { return false };
        if self.logs.is_flushed() {
            let before = LoggedBefore::of(&self.core);
            let answer = Answer::Call(call.run(&mut self.core));
            self.pending.push(now, Until::Published(answer, before.needs(&self.core)));
            return true;
        }
        if until <= now {
            self.core.engine.keep_modes();
            call.refuse(KvError::DiskWait);
        } else {
            self.pending.put_back_flushed(Timed { until, what: call });
        }
        false
    }

    /// Does one slice of each kind of work that is due.
    fn timers(&mut self, now: Instant) {
        self.expiring = self.may_expire() && self.core.lease_expire();
        self.core.compact_due();
        if self.core.is_collecting() && self.background.rests(now).is_none() {
            let began = self.core.clock.now();
            self.core.gc(GC_SLICE);
            self.worked(began);
        }
        let sweeps = now >= self.swept + SWEEP_AFTER;
        // A promise that is due before the next sweep is made with this one, so that the loop does not wake for it.
        if now >= self.progress_at || (sweeps && now + SWEEP_AFTER > self.progress_at) {
            self.progress_at = now + self.progress_interval;
            // The changes of this batch are published first, so that the promise may cover them.
            self.hand_over();
            // A clock that no handshake has confirmed promises nothing (R3).
            if self.core.clock.is_confirmed() && self.core.replica.is_none() {
                self.core.engine.progress_tick(self.core.clock.wall());
            }
        }
        if sweeps {
            self.swept = now;
            self.core.sweep();
            self.core.note_written(now);
            let (reads, streams) = self.core.open_counts();
            self.metrics.units(&self.core.engine.unit_records());
            let (stats, quota) = (self.core.engine.stats(), self.core.quota_bytes());
            self.metrics.sizes(&stats, self.core.applied, reads, streams, quota);
            kinds::set(&self.core.label, self.core.load(&[KeyRange::everything()]).kinds);
            self.core.durability = self.logs.report(&self.core);
            let waits = "all requests: a standby that must have everything first does not answer";
            self.refusing.set(if self.answers_nothing(now) { Some(waits) } else { self.core.refuses() });
        }
    }

    /// Whether leases may be ended now, which writes.
    fn may_expire(&self) -> bool {
        !self.pending.stalls() && self.core.may_assign()
    }

    /// Tells if a turn without requests has something to do at once.
    pub(super) fn has_work(&self) -> bool {
        let awaited = self.expiring || self.core.has_feeds_behind() || self.shipping.has_work();
        let checkpoint = self.logs.has_checkpoint_work();
        let urgent = checkpoint && self.logs.checkpoint_is_urgent();
        let background = checkpoint || self.core.is_collecting();
        awaited || urgent || (background && self.background.rests(self.core.clock.now()).is_none())
    }

    /// When the next batch must end, if no request comes before; in the past when there is work now.
    pub(super) fn next_timer(&self) -> Instant {
        let now = self.core.clock.now();
        if self.has_work() {
            return now;
        }
        // While it waits for the ceiling, an expired lease sets no timer: raising the ceiling wakes the loop.
        let lease = self.core.engine.lease_deadline().filter(|_| self.may_expire());
        let lease = lease.map(|at| self.core.clock.instant(at));
        let compaction = self.core.compact_deadline().map(|at| self.core.clock.instant(at));
        let beat = self.shipping.next_beat().map(|at| self.began + at);
        // The loop wakes at the end of a rest, and does what it left alone.
        let rest = self.background.rests(now);
        let timers =
            [self.logs.next_timer(&self.core), self.pending.next_timer(), lease, compaction, beat, rest];
        timers.into_iter().flatten().fold(self.progress_at.min(self.swept + SWEEP_BY), Instant::min)
    }

    /// Refuses the writes that wait for the ceiling: the shard ends.
    pub(super) fn refuse_waiting(&mut self) {
        while let Some(write) = self.pending.pop_above_ceiling() {
            refuse(write.what);
        }
    }

    /// Handles what the logs have completed, and sends what that allows; nothing else is done any more.
    pub(super) fn drain(&mut self, now: Instant) {
        self.settle(now);
        self.publish(now);
    }
}

/// The raise that a read waits for: it must show, for all of its ranges, what any of their Kinds already shows.
fn raise_of_read(core: &mut Core, ranges: Vec<KeyRange>, hints: ReadHints) -> Raise {
    let to = hints.min_revision.unwrap_or_else(|| core.engine.current_all());
    Raise { ranges, to, generation: hints.generation }
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

#[cfg(test)]
mod tests;
