//! Checkpoints, while writes go on: the loop walks through the engine a slice at a time, a thread writes what it finds.
//!
//! What is written during the walk is in the log behind the place where the checkpoint says that replaying begins, and the
//! checkpoint is given its name only when the logs are on disk up to where the walk ended: so a start never finds half of
//! what belongs together (see [`kindred_wal::CheckpointWriter`]).

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, SystemTime},
};

use kindred_engine::engine::checkpoint::Walk;
use kindred_wal::{
    Batch, Checkpoint, CheckpointWriter, Disk, Layout, LogKind, LogPlaces, WalError, segments, sweep,
};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    failpoint::{Point, around},
    kept::{Kept, push},
};
use crate::{core::Core, identity::random, metrics::checkpoint_done};

/// Bytes of one slice, about.
const SLICE_BYTES: usize = 256 << 10;
/// Keys of one slice.
const SLICE_KEYS: usize = 256;
/// Slices that wait for the thread.
const SLICES_MAX: usize = 4;
/// Checkpoints kept: should the newest turn out to be damaged, the one before serves.
const KEEP: usize = 2;
/// A disk with less is not filled up by a checkpoint.
const FREE_BYTES_MIN: u64 = 32 << 20;
/// After a failure, the next one is tried so much later.
const AGAIN: Duration = Duration::from_secs(30);

/// Who waits for a checkpoint that begins after the question.
pub type CheckpointWaiter = oneshot::Sender<Result<(), String>>;

enum Work {
    Write(Batch),
    Finish(LogPlaces),
}

/// What the thread tells at its end.
type Outcome = Arc<Mutex<Option<Result<Checkpoint, WalError>>>>;

/// A checkpoint under way.
struct Running {
    began: Instant,
    /// `None` once everything was sent.
    walk: Option<Walk>,
    to: SyncSender<Work>,
    /// A slice that the thread had no room for.
    unsent: Option<Batch>,
    /// Where the walk ended: the logs must be on disk up to there.
    until: Option<LogPlaces>,
    /// The thread was told so.
    finishing: bool,
    outcome: Outcome,
    waiters: Vec<CheckpointWaiter>,
    /// The modes that wait for it.
    modes: Option<u64>,
}

/// The last one.
#[derive(Debug, Clone)]
pub struct Last {
    /// When it was finished.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Its size.
    pub bytes: u64,
}

/// When checkpoints are due, and the one under way.
#[derive(Default)]
pub struct Checkpoints {
    running: Option<Running>,
    waiters: Vec<CheckpointWaiter>,
    /// See `--checkpoint-bytes`.
    every_bytes: u64,
    /// Bytes of log before this start that no checkpoint covers, less what had been written when the last one began.
    base: u64,
    /// What the logs had written when the last one began.
    written_at: u64,
    written: u64,
    again_at: Option<Instant>,
    due: bool,
    /// Of what was read at the start something was damaged, and no checkpoint has been made since.
    damaged: bool,
    last: Option<Last>,
    log_bytes: [u64; 2],
}

impl std::fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoints").field("running", &self.running.is_some()).finish_non_exhaustive()
    }
}

impl Checkpoints {
    /// None under way; `tail_bytes` of log were replayed at the start. After damage that was accepted one is due at once:
    /// the next start does not ask again then.
    #[must_use]
    pub fn new(every_bytes: u64, tail_bytes: u64, damaged: bool) -> Self {
        Self { every_bytes, base: tail_bytes, damaged, ..Self::default() }
    }

    /// The last one since the start.
    #[must_use]
    pub fn last(&self) -> Option<&Last> {
        self.last.as_ref()
    }

    /// Bytes of the segments of a log.
    #[must_use]
    pub fn log_bytes(&self, kind: LogKind) -> u64 {
        self.log_bytes[usize::from(kind == LogKind::Buffered)]
    }

    /// Notes how much log there is, of which `written` bytes since the start.
    pub fn measure(&mut self, disk: &dyn Disk, layout: &Layout, written: u64) {
        self.written = written;
        self.due = self.base + written.saturating_sub(self.written_at) >= self.every_bytes;
        for kind in LogKind::ALL {
            // A directory that cannot be listed is told of by the log itself.
            if let Ok(segments) = segments(disk, &layout.log(kind), kind) {
                self.log_bytes[usize::from(kind == LogKind::Buffered)] =
                    segments.iter().map(|file| file.bytes).sum();
            }
        }
    }

    pub(super) fn has_work(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.walk.is_some() && running.unsent.is_none())
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.again_at.filter(|_| self.due || self.damaged || !self.waiters.is_empty())
    }

    /// Begins one if it is due, or takes the next step of the one under way.
    pub(super) fn slice(&mut self, kept: &Kept, core: &mut Core) {
        self.waiters.extend(core.checkpoint_waiters());
        if self.running.is_some() {
            self.step(kept, core);
            return;
        }
        let wanted = self.due || self.damaged || !self.waiters.is_empty() || core.modes_wait.is_some();
        if wanted && self.again_at.is_none_or(|at| at <= Instant::now() || !self.waiters.is_empty()) {
            self.begin(kept, core);
        }
    }

    fn begin(&mut self, kept: &Kept, core: &mut Core) {
        self.again_at = None;
        let from = kept.next();
        let (to, work) = sync_channel(SLICES_MAX);
        let outcome = Outcome::default();
        let writer = Writer {
            disk: kept.disk.clone(),
            layout: kept.layout.clone(),
            changed: kept.changed(),
            outcome: outcome.clone(),
        };
        let spawned =
            std::thread::Builder::new().name("checkpoint".to_owned()).spawn(move || writer.run(from, &work));
        let waiters = std::mem::take(&mut self.waiters);
        if let Err(error) = spawned {
            return self.failed(waiters, &error);
        }
        self.running = Some(Running {
            began: Instant::now(),
            walk: Some(around(Point::WalkBegin, || core.engine.checkpoint_begin())),
            to,
            unsent: None,
            until: None,
            finishing: false,
            outcome,
            waiters,
            modes: core.modes_wait.take(),
        });
        (self.base, self.written_at, self.due) = (0, self.written, false);
    }

    fn step(&mut self, kept: &Kept, core: &mut Core) {
        let Some(mut running) = self.running.take() else { return };
        let ended = running.outcome.lock().ok().and_then(|mut outcome| outcome.take());
        match ended {
            Some(Ok(checkpoint)) => {
                return around(Point::WalkDone, || self.done(running, &checkpoint, core));
            }
            Some(Err(error)) => {
                self.due = true;
                core.modes_wait = core.modes_wait.max(running.modes);
                return self.failed(running.waiters, &error);
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
            }
            if !batch.is_empty() {
                running.send(batch);
            }
        }
        if running.walk.is_none() && running.unsent.is_none() {
            let next = kept.next();
            let end = LogPlaces { fsync: next.fsync.prev(), buffered: next.buffered.prev() };
            let until = *running.until.get_or_insert(end);
            let durable =
                kept.fsync.durable() >= until.fsync.0 && kept.buffered.durable() >= until.buffered.0;
            if !durable {
                kept.buffered.log.flush();
            } else if !running.finishing {
                running.finishing =
                    around(Point::WalkEnd, || running.to.try_send(Work::Finish(until)).is_ok());
            }
        }
        self.running = Some(running);
    }

    fn done(&mut self, running: Running, checkpoint: &Checkpoint, core: &mut Core) {
        let took = running.began.elapsed();
        self.damaged = false;
        tracing::info!(number = %checkpoint.number, bytes = checkpoint.bytes, ?took, "checkpoint");
        checkpoint_done(took, checkpoint.bytes);
        self.last = Some(Last { at: SystemTime::now(), took, bytes: checkpoint.bytes });
        if let Some(generation) = running.modes {
            core.engine.modes_settled(generation);
        }
        running.waiters.into_iter().for_each(|waiter| drop(waiter.send(Ok(()))));
    }

    fn failed(&mut self, waiters: Vec<CheckpointWaiter>, error: &dyn std::fmt::Display) {
        tracing::warn!(%error, "no checkpoint; the logs are kept, and it is tried again");
        self.again_at = Some(Instant::now() + AGAIN);
        let text = error.to_string();
        waiters.into_iter().for_each(|waiter| drop(waiter.send(Err(text.clone()))));
    }
}

impl Running {
    fn send(&mut self, batch: Batch) {
        match self.to.try_send(Work::Write(batch)) {
            Ok(()) => {}
            Err(TrySendError::Full(Work::Write(batch))) => self.unsent = Some(batch),
            // It has ended, and says why.
            Err(_) => self.walk = None,
        }
    }
}

/// The thread.
struct Writer {
    disk: Arc<dyn Disk>,
    layout: Layout,
    changed: Arc<Notify>,
    outcome: Outcome,
}

impl Writer {
    fn run(self, from: LogPlaces, work: &Receiver<Work>) {
        // Without work any more, the loop has ended: so does this, and leaves nothing.
        let Some(ended) = self.write(from, work).transpose() else { return };
        if let Ok(mut outcome) = self.outcome.lock() {
            *outcome = Some(ended);
        }
        self.changed.notify_one();
    }

    fn write(&self, from: LogPlaces, work: &Receiver<Work>) -> Result<Option<Checkpoint>, WalError> {
        let mut file =
            CheckpointWriter::create(self.disk.clone(), &self.layout, from, random(), FREE_BYTES_MIN)?;
        while let Ok(next) = work.recv() {
            match next {
                Work::Write(batch) => file.write(batch)?,
                Work::Finish(until) => {
                    let done = file.finish(until)?;
                    if let Err(error) = sweep(&*self.disk, &self.layout, KEEP) {
                        tracing::warn!(%error, "old logs are not removed; it is tried again after the next checkpoint");
                    }
                    return Ok(Some(done));
                }
            }
            self.changed.notify_one();
        }
        Ok(None)
    }
}
