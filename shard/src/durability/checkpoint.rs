//! Writes checkpoints while requests are executed: the loop walks the engine slice by slice, and a thread writes the
//! records.
//!
//! Writes during the walk are in the log behind the position from which the checkpoint says to replay. The checkpoint
//! gets its name only when the logs are on disk up to where the walk ended, so a start never finds part of a
//! transaction (see [`kindred_wal::CheckpointWriter`]).

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    time::Duration,
};

use kindred_engine::engine::checkpoint::Walk;
use kindred_partition_config::ids::Revision;
use kindred_transport::random::bits as random;
use kindred_wal::{
    Batch, Checkpoint, CheckpointWriter, Disk, Frame, Job, Layout, LogKind, LogPlaces, Record, Stepped,
    Visit, VisitError, WalError, Workers, checkpoints, read_checkpoint, segments, sweep,
};
use tokio::{sync::Notify, time::Instant};

use super::{
    disk_logs::{DiskLogs, push},
    failpoint::{Point, around},
    reserve::Reserve,
    status::CheckpointStatus,
};
use crate::{
    core::{CheckpointWaiter, Core},
    metrics::checkpoint_done,
};

/// Approximate bytes of one slice.
const SLICE_BYTES: usize = 256 << 10;
/// Keys of one slice.
const SLICE_KEYS: usize = 128;
/// Slices that may wait for the thread.
const SLICES_MAX: usize = 4;
/// Checkpoints kept; if the newest is damaged, the previous one is used.
const KEEP: usize = 2;
/// Free bytes that must remain for the logs beside a checkpoint; otherwise room is made first.
const LOGS_BYTES: u64 = 12 << 20;
/// How long to wait for logs that had no room, after room was made.
const LOGS_WAIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// Delay before the next attempt after a failure or on a full disk.
const AGAIN: Duration = Duration::from_secs(30);
/// Time after which a checkpoint is given up because it waits for a log that cannot be written.
const STUCK: Duration = Duration::from_secs(60);

enum Work {
    Write(Batch),
    Finish(LogPlaces),
}

/// The thread's result, once it has ended.
type Outcome = Arc<Mutex<Option<Result<Checkpoint, WalError>>>>;

struct Running {
    began: Instant,
    /// `None` once the walk has ended.
    walk: Option<Walk>,
    /// The checkpoint has everything up to here.
    promise: Revision,
    to: SyncSender<Work>,
    /// A slice for which the thread had no room.
    unsent: Option<Batch>,
    /// The log positions at the end of the walk; the logs must be on disk up to there.
    until: Option<LogPlaces>,
    /// Whether the thread was told to finish.
    finishing: bool,
    /// Whether the disk was full when it began.
    full: bool,
    outcome: Outcome,
    waiters: Vec<CheckpointWaiter>,
    /// The generation of the modes that wait for it.
    modes: Option<u64>,
}

/// Schedules checkpoints and drives the one under way.
#[derive(Default)]
pub struct Checkpoints {
    running: Option<Running>,
    waiters: Vec<CheckpointWaiter>,
    /// See `--checkpoint-bytes`.
    every_bytes: u64,
    /// Bytes of log from before this start that no checkpoint covers; zero once one has begun.
    base: u64,
    /// The bytes that the logs had written when the last checkpoint began.
    written_at: u64,
    written: u64,
    again_at: Option<Instant>,
    /// No checkpoint to make room is begun before this time.
    full_at: Option<Instant>,
    due: bool,
    /// Files read at the start were damaged, and no checkpoint was made since.
    damaged: bool,
    last: Option<CheckpointStatus>,
    log_bytes: [u64; 2],
    /// Whether the logs' files are as they were measured.
    measured: bool,
}

impl std::fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoints").field("running", &self.running.is_some()).finish_non_exhaustive()
    }
}

impl Checkpoints {
    /// No checkpoint under way; `tail_bytes` of log were replayed at the start. After accepted damage a checkpoint is
    /// due at once, so that the next start does not refuse it again.
    #[must_use]
    pub fn new(every_bytes: u64, tail_bytes: u64, damaged: bool) -> Self {
        Self { every_bytes, base: tail_bytes, damaged, ..Self::default() }
    }

    /// The last checkpoint since the start.
    #[must_use]
    pub fn last(&self) -> Option<CheckpointStatus> {
        self.last.clone()
    }

    /// Bytes of a log's segments.
    #[must_use]
    pub fn log_bytes(&self, kind: LogKind) -> u64 {
        self.log_bytes[usize::from(kind == LogKind::Buffered)]
    }

    /// Measures the logs; `written` is the number of bytes written since the start. Only a log that is written and a
    /// checkpoint change their files, so those of an idle shard are not listed.
    pub fn measure(&mut self, disk: &dyn Disk, layout: &Layout, written: u64) {
        let changed = self.written != written || self.running.is_some();
        self.written = written;
        self.due = self.base + written.saturating_sub(self.written_at) >= self.every_bytes;
        if self.measured && !changed {
            return;
        }
        self.measured = true;
        for kind in LogKind::ALL {
            // If the directory cannot be listed, the log itself reports it.
            if let Ok(segments) = segments(disk, &layout.log(kind), kind) {
                self.log_bytes[usize::from(kind == LogKind::Buffered)] =
                    segments.iter().map(|file| file.bytes).sum();
            }
        }
    }

    /// Whether what the engine has is on disk only with the next checkpoint.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn has_work(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.walk.is_some() && running.unsent.is_none())
    }

    /// Whether the one under way should not rest: the disk was full when it began, or the next one is due already.
    pub(super) fn is_urgent(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.full || self.due)
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.again_at.filter(|_| self.due || self.damaged || !self.waiters.is_empty())
    }

    /// Begins a checkpoint if one is due, or takes the next step of the one under way.
    pub(super) fn slice(&mut self, logs: &mut DiskLogs, core: &mut Core) {
        self.waiters.extend(core.checkpoint_waiters());
        if self.running.is_some() {
            self.step(logs, core);
            return;
        }
        let now = core.clock.now();
        // On a full disk, a checkpoint lets old logs be removed.
        let full = ((logs.full())() || logs.reserve.is_released()) && self.full_at.is_none_or(|at| at <= now);
        if full {
            self.full_at = Some(now + AGAIN);
        }
        let wanted =
            full || self.due || self.damaged || !self.waiters.is_empty() || core.modes_wait.is_some();
        if wanted && self.again_at.is_none_or(|at| at <= now || !self.waiters.is_empty()) {
            self.begin(logs, core, full);
        }
    }

    fn begin(&mut self, logs: &DiskLogs, core: &mut Core, full: bool) {
        self.again_at = None;
        let from = logs.next();
        let (to, work) = sync_channel(SLICES_MAX);
        let outcome = Outcome::default();
        let writer = Writer {
            disk: logs.disk.clone(),
            layout: logs.layout.clone(),
            changed: logs.changed(),
            outcome: outcome.clone(),
            reserve: logs.reserve.clone(),
            full: Box::new(logs.full()),
            workers: logs.workers.clone(),
            from,
            work,
            stage: Stage::Room,
        };
        let started = logs.workers.start("checkpoint".to_owned(), Box::new(writer));
        let waiters = std::mem::take(&mut self.waiters);
        let now = core.clock.now();
        if let Err(error) = started {
            return self.failed(now, waiters, &error);
        }
        self.running = Some(Running {
            began: now,
            promise: core.engine.last_revision(),
            walk: Some(around(Point::WalkBegin, || core.engine.checkpoint_begin())),
            to,
            unsent: None,
            until: None,
            finishing: false,
            full,
            outcome,
            waiters,
            modes: core.modes_wait.take(),
        });
        (self.base, self.written_at, self.due) = (0, self.written, false);
    }

    fn step(&mut self, logs: &mut DiskLogs, core: &mut Core) {
        let Some(mut running) = self.running.take() else { return };
        let now = core.clock.now();
        let ended = running.outcome.lock().ok().and_then(|mut outcome| outcome.take());
        match ended {
            Some(Ok(checkpoint)) => {
                return around(Point::WalkDone, || self.done(running, &checkpoint, logs, core));
            }
            Some(Err(error)) => {
                self.due = true;
                core.modes_wait = core.modes_wait.max(running.modes);
                return self.failed(now, running.waiters, &error);
            }
            None => {}
        }
        if let Some(batch) = running.unsent.take() {
            running.send(batch);
        } else if let Some(walk) = &mut running.walk {
            let mut batch = Batch::new();
            let goes_on = around(Point::WalkSlice, || {
                core.engine.checkpoint_next(walk, SLICE_KEYS, SLICE_BYTES, |logged| push(&mut batch, &logged))
            });
            if !goes_on {
                running.walk = None;
                // The checkpoint takes the place of the log's promises (R10).
                batch.push(&Record::Promise(running.promise));
            }
            if !batch.is_empty() {
                running.send(batch);
            }
        }
        if running.walk.is_none() && running.unsent.is_none() {
            let next = logs.next();
            let end = LogPlaces { fsync: next.fsync.prev(), buffered: next.buffered.prev() };
            let until = *running.until.get_or_insert(end);
            let durable =
                logs.fsync.durable() >= until.fsync.0 && logs.buffered.durable() >= until.buffered.0;
            if !durable && now.duration_since(running.began) > STUCK && logs.is_failing() {
                // It cannot be completed, and the log may need its room.
                self.due = true;
                core.modes_wait = core.modes_wait.max(running.modes);
                return self.failed(now, running.waiters, &"a log cannot be written");
            }
            if !durable {
                logs.buffered.log.flush();
            } else if !running.finishing {
                running.finishing =
                    around(Point::WalkEnd, || running.to.try_send(Work::Finish(until)).is_ok());
            }
        }
        self.running = Some(running);
    }

    fn done(&mut self, running: Running, checkpoint: &Checkpoint, logs: &mut DiskLogs, core: &mut Core) {
        let took = core.clock.now().duration_since(running.began);
        (self.damaged, self.measured) = (false, false);
        if !logs.reserve.is_released() {
            self.full_at = None;
        }
        tracing::info!(number = %checkpoint.number, bytes = checkpoint.bytes, ?took, "checkpoint");
        checkpoint_done(took, checkpoint.bytes, &core.label);
        self.last = Some(CheckpointStatus::now(took, checkpoint.bytes));
        if let Some(generation) = running.modes {
            // No log has what was written before to the Kinds that are kept from now on, so a start must not do without
            // this checkpoint or a later one. The log states that before it states the new modes.
            let mut needs = Batch::new();
            needs.push(&Record::Needs(checkpoint.number));
            logs.fsync.append(needs);
            core.engine.modes_settled(generation);
        }
        running.waiters.into_iter().for_each(|waiter| drop(waiter.send(Ok(()))));
    }

    fn failed(&mut self, now: Instant, waiters: Vec<CheckpointWaiter>, error: &dyn std::fmt::Display) {
        tracing::warn!(%error, "no checkpoint; the logs are kept, and it is tried again");
        (self.again_at, self.measured) = (Some(now + AGAIN), false);
        let text = error.to_string();
        waiters.into_iter().for_each(|waiter| drop(waiter.send(Err(text.clone()))));
    }
}

impl Running {
    fn send(&mut self, batch: Batch) {
        match self.to.try_send(Work::Write(batch)) {
            Ok(()) => {}
            Err(TrySendError::Full(Work::Write(batch))) => self.unsent = Some(batch),
            // The thread has ended; its outcome tells why.
            Err(_) => self.walk = None,
        }
    }
}

/// The stage of the job that writes a checkpoint.
enum Stage {
    /// It looks whether there is room.
    Room,
    /// Room was short: until this time it waits for the logs that can be written now, since the checkpoint cannot be
    /// finished without them.
    Logs { until: Duration },
    /// It writes; `tight` tells whether room was short.
    Writing { file: CheckpointWriter, tight: bool },
    /// It is done or has failed.
    Ended,
}

/// The job that writes a checkpoint.
struct Writer {
    disk: Arc<dyn Disk>,
    layout: Layout,
    changed: Arc<Notify>,
    outcome: Outcome,
    reserve: Arc<Reserve>,
    /// Whether a log cannot be written because the disk is full.
    full: Box<dyn Fn() -> bool + Send>,
    workers: Workers,
    from: LogPlaces,
    work: Receiver<Work>,
    stage: Stage,
}

impl Job for Writer {
    fn run(mut self: Box<Self>) {
        loop {
            match self.step() {
                Stepped::Worked => {}
                Stepped::Over => return,
                Stepped::Idle(Some(_)) => std::thread::park_timeout(LOOK),
                Stepped::Idle(None) => match self.work.recv() {
                    Ok(next) => self.take(next),
                    // The loop has ended: this job ends too, and leaves nothing.
                    Err(_) => return,
                },
            }
        }
    }

    fn step(&mut self) -> Stepped {
        match &self.stage {
            Stage::Room => {
                let next = self.make_room().and_then(|tight| match tight {
                    true => Ok(Stage::Logs { until: self.workers.elapsed() + LOGS_WAIT }),
                    false => self.create(false),
                });
                self.enter(next);
            }
            Stage::Logs { until } => {
                let now = self.workers.elapsed();
                if (self.full)() && now < *until {
                    return Stepped::Idle(Some(now + LOOK));
                }
                let next = self.create(true);
                self.enter(next);
            }
            Stage::Writing { .. } => match self.work.try_recv() {
                Ok(next) => self.take(next),
                Err(TryRecvError::Empty) => return Stepped::Idle(None),
                Err(TryRecvError::Disconnected) => return Stepped::Over,
            },
            Stage::Ended => return Stepped::Over,
        }
        Stepped::Worked
    }
}

impl Writer {
    fn create(&self, tight: bool) -> Result<Stage, WalError> {
        let file = CheckpointWriter::create(self.disk.clone(), &self.layout, self.from, random(), 0)?;
        Ok(Stage::Writing { file, tight })
    }

    /// Goes on with the next stage, or ends because of an error.
    fn enter(&mut self, next: Result<Stage, WalError>) {
        match next {
            Ok(next) => self.stage = next,
            Err(error) => self.end(Err(error)),
        }
    }

    fn end(&mut self, ended: Result<Checkpoint, WalError>) {
        self.stage = Stage::Ended;
        if let Ok(mut outcome) = self.outcome.lock() {
            *outcome = Some(ended);
        }
        self.changed.notify_one();
    }

    fn take(&mut self, work: Work) {
        let Stage::Writing { mut file, tight } = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return;
        };
        match work {
            Work::Write(batch) => match file.write(batch) {
                Ok(()) => {
                    self.stage = Stage::Writing { file, tight };
                    self.changed.notify_one();
                }
                Err(error) => self.end(Err(error)),
            },
            Work::Finish(until) => {
                let ended = self.finish(file, until, tight);
                self.end(ended);
            }
        }
    }

    fn finish(&self, file: CheckpointWriter, until: LogPlaces, tight: bool) -> Result<Checkpoint, WalError> {
        let done = file.finish(until)?;
        // The previous checkpoint, and the logs that it needs, may have no room beside this one.
        let keep = if tight && self.newest_is_whole()? { 1 } else { KEEP };
        if let Err(error) = sweep(&*self.disk, &self.layout, keep) {
            tracing::warn!(%error, "old logs are not removed; it is tried again after the next checkpoint");
        }
        self.reserve.restore();
        Ok(done)
    }

    /// Makes room if a checkpoint does not fit beside the logs: first removes the checkpoint before the newest, then
    /// releases the reserve. Returns whether room was short.
    fn make_room(&self) -> Result<bool, WalError> {
        let newest = checkpoints(&*self.disk, &self.layout)?.last().map_or(0, |file| file.bytes);
        let needed = newest.saturating_add(newest / 4).saturating_add(LOGS_BYTES);
        if self.has_room(needed) {
            return Ok(false);
        }
        if self.newest_is_whole()? {
            let swept = sweep(&*self.disk, &self.layout, 1)?;
            tracing::warn!(
                bytes = swept.bytes,
                "the disk is full: the checkpoint before the last one is removed"
            );
        }
        if !self.has_room(needed) {
            self.reserve.release();
        }
        Ok(true)
    }

    fn has_room(&self, needed: u64) -> bool {
        // The directory of checkpoints may not exist before the first one, so the log's is asked.
        let directory = self.layout.log(LogKind::Fsync);
        let held = !(self.full)() && !self.reserve.is_released();
        held && self.disk.free_space(&directory).is_ok_and(|free| free >= needed)
    }

    /// Whether the newest checkpoint can be read to its end, so that the one before is not needed.
    fn newest_is_whole(&self) -> Result<bool, WalError> {
        let all = checkpoints(&*self.disk, &self.layout)?;
        let Some(newest) = all.last() else { return Ok(false) };
        match read_checkpoint(&*self.disk, newest, &mut Unused) {
            Ok(_) => Ok(true),
            Err(WalError::Damaged(loss)) => {
                tracing::error!(%loss, "the newest checkpoint");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Ignores what it reads, for a check of a file.
struct Unused;

impl Visit for Unused {
    fn frame(&mut self, _frame: &Frame<'_>) -> Result<(), VisitError> {
        Ok(())
    }
}
