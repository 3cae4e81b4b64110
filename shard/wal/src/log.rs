//! A log that is open for appending: its handle, its writer thread and, for the buffered log, its sync thread.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kindred_partition_config::ids::Revision;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    disk::{Disk, ensure_directory, lost},
    error::WalError,
    layout::LogKind,
    number::FrameSeq,
    options::LogOptions,
    record::{Batch, TooLarge},
    scan::LogEnd,
    workers::{Job, Stepped, Workers},
    writer::{
        Event, Failure, LogStatus,
        core::{Core, Step, Sync},
        executor::{Executor, ToSync},
    },
};

/// A log that is open for appending.
///
/// Appending never waits for the disk. A frame is durable when [`Event::Durable`] says so. Until then it is kept in
/// memory, and if the disk fails it is written again to a new segment. To bound that memory, ask [`Log::has_room`]
/// before accepting work, and again after each [`Event::Durable`].
///
/// Dropping the log ends its threads after the current step and loses what is not durable, like a crash.
/// [`Log::close`] writes everything first.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// The callback for events.
type Events = Box<dyn FnMut(Event) + Send>;

struct Shared {
    /// Locked before the state changes, so that events are reported in the order in which they happened.
    events: Mutex<Events>,
    /// The segment that is being written, in the buffered log only.
    to_sync: Mutex<Option<ToSync>>,
    state: Mutex<State>,
    /// Notified when there is something to write or the log ends.
    work: Condvar,
    /// Notified when there is something to sync or the log ends.
    sync_work: Condvar,
    /// Notified when frames became durable or a step failed.
    progress: Condvar,
    workers: Workers,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    core: Core,
    stop: bool,
    /// Set while the writer thread sleeps. It is not woken for work that can wait until then.
    sleeps: Option<Sleep>,
    /// The same for the sync thread.
    sync_sleeps: Option<Sleep>,
}

/// The time when a thread wakes up by itself; `None` if it must be woken.
#[derive(Debug, Clone, Copy)]
struct Sleep(Option<Duration>);

/// What a log failed to write before it was closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log was closed with frames from {from} on not on the disk: {why}")]
pub struct Unwritten {
    /// The first frame that was not written.
    pub from: FrameSeq,
    /// The disk's error, or that it took too long.
    pub why: String,
}

impl Log {
    /// Opens a log at the end that [`scan`](crate::scan()) or [`recover`](crate::recover()) found; a new log starts
    /// with [`LogEnd::fresh`]. The log begins a new segment with the frames that are not proven durable. If the
    /// disk refuses that, the log still opens and reports the failure ([`Log::status`]), so that a shard on a full
    /// disk can serve reads.
    ///
    /// `events` is called on the log's threads, one call at a time. It must not block: send into a channel, or
    /// notify.
    ///
    /// # Errors
    /// When the directory cannot be created, a segment cannot be set aside, or a thread cannot be started.
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        options: LogOptions,
        end: LogEnd,
        events: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, WalError> {
        Self::open_with(&Workers::threads(), disk, directory, options, end, events)
    }

    /// As [`Log::open`], with the workers that write and sync.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(
        workers: &Workers,
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        options: LogOptions,
        end: LogEnd,
        mut events: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, WalError> {
        prepare(&*disk, &directory, &end)?;
        let kind = options.kind;
        let mut core = Core::new(options.clone(), end, workers.elapsed());
        let mut executor = Executor::new(disk, directory.clone(), options);
        let first = core.next(workers.elapsed());
        let outcome = executor.perform(&first);
        core.done(workers.elapsed(), outcome).into_iter().for_each(&mut events);
        let shared = Arc::new(Shared {
            events: Mutex::new(Box::new(events)),
            to_sync: Mutex::new(executor.take_to_sync()),
            state: Mutex::new(State { core, stop: false, sleeps: None, sync_sleeps: None }),
            work: Condvar::new(),
            sync_work: Condvar::new(),
            progress: Condvar::new(),
            workers: workers.clone(),
        });
        let mut log = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let start = |name: String, job: Box<dyn Job>| {
            workers.start(name, job).map_err(WalError::io("start the writer of", &directory))
        };
        let writer = Writer { shared: Arc::clone(&shared), executor };
        log.threads.extend(start(format!("wal-{kind}"), Box::new(writer))?);
        if kind == LogKind::Buffered {
            log.threads.extend(start(format!("wal-{kind}-sync"), Box::new(Syncer { shared }))?);
        }
        Ok(log)
    }

    /// Appends a batch and returns its sequence number. Numbers increase with every call; the log's own frames use
    /// some of them.
    ///
    /// # Errors
    /// When the batch exceeds the maximum payload of a frame. Nothing is appended then.
    pub fn append(&self, batch: Batch) -> Result<FrameSeq, TooLarge> {
        self.change(|core, now| core.append(now, batch))
    }

    /// Declares that every change up to this revision that belongs to this log has been appended. A record of it is
    /// written with the next frame, or alone after [`LogOptions::promise_interval`]. A lower revision than before
    /// is ignored.
    pub fn promise(&self, revision: Revision) {
        self.change(|core, now| core.promise(now, revision));
    }

    /// Writes and syncs pending frames at once.
    pub fn flush(&self) {
        self.change(|core, _| core.hurry());
    }

    fn change<T>(&self, change: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let mut state = self.shared.state.lock();
        let answer = change(&mut state.core, self.shared.workers.elapsed());
        self.shared.wake(state);
        answer
    }

    /// The last frame that was written to the operating system and thus survives this process; 0 if there is none.
    #[must_use]
    pub fn written(&self) -> FrameSeq {
        self.shared.state.lock().core.written()
    }

    /// The last durable frame; 0 if there is none.
    #[must_use]
    pub fn durable(&self) -> FrameSeq {
        self.shared.state.lock().core.durable()
    }

    /// The sequence number of the next frame. A checkpoint that begins now uses it as the start of its replay.
    #[must_use]
    pub fn next(&self) -> FrameSeq {
        self.shared.state.lock().core.next_seq()
    }

    /// Whether less than [`LogOptions::max_pending_bytes`] are not yet durable.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.state.lock().core.has_room()
    }

    /// A snapshot of the log's progress.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        self.shared.state.lock().core.status(self.shared.workers.elapsed())
    }

    /// Waits until a frame is durable, without blocking other callers. Returns `false` on timeout.
    #[must_use]
    pub fn wait_durable(&self, seq: FrameSeq, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        while state.core.durable() < seq {
            if self.shared.progress.wait_until(&mut state, until).timed_out() {
                return state.core.durable() >= seq;
            }
        }
        true
    }

    /// Writes all frames, then ends the threads. Gives up at the first failure, at once if the log is already
    /// failing, and after `timeout`.
    ///
    /// # Errors
    /// When not all frames could be written.
    pub fn close(mut self, timeout: Duration) -> Result<(), Unwritten> {
        let until = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        state.core.hurry();
        self.shared.wake(state);
        // Nobody else takes driven jobs through their steps now.
        self.shared.workers.work();
        let mut state = self.shared.state.lock();
        let why = loop {
            if state.core.is_idle() {
                break None;
            }
            if let Some(failure) = state.core.failing() {
                break Some(failure.to_string());
            }
            if self.shared.progress.wait_until(&mut state, until).timed_out() && !state.core.is_idle() {
                break Some(format!("the disk took longer than {timeout:?}"));
            }
        };
        let from = state.core.durable().next();
        drop(state);
        self.stop();
        why.map_or(Ok(()), |why| Err(Unwritten { from, why }))
    }

    fn stop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_one();
        self.shared.sync_work.notify_one();
        for thread in self.threads.drain(..) {
            // A thread panics only if the callback does, and the callback's owner handles that.
            thread.join().ok();
        }
    }
}

impl State {
    /// Whether to wake the writer thread and the sync thread. Clears the sleep of a thread, so that it is woken
    /// only once.
    fn wakes(&mut self) -> [bool; 2] {
        let sooner = |sleeps: &mut Option<Sleep>, at: Option<Duration>| {
            let Some(Sleep(until)) = *sleeps else { return false };
            let wakes = at.is_some_and(|at| until.is_none_or(|until| at < until));
            if wakes {
                *sleeps = None;
            }
            wakes
        };
        [sooner(&mut self.sleeps, self.core.acts_at()), sooner(&mut self.sync_sleeps, self.core.syncs_at())]
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Unlocks the state, then wakes the threads that have work.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let [writes, syncs] = state.wakes();
        drop(state);
        if writes {
            self.work.notify_one();
        }
        if syncs {
            self.sync_work.notify_one();
        }
    }

    /// Applies the outcome of a step or sync, then reports its events.
    fn done(&self, take_in: impl FnOnce(&mut Core, Duration) -> Vec<Event>) {
        let mut events = self.events.lock();
        let mut state = self.state.lock();
        let told = take_in(&mut state.core, self.workers.elapsed());
        self.wake(state);
        self.progress.notify_all();
        told.into_iter().for_each(&mut *events);
    }

    fn write(&self, executor: &mut Executor, step: Step) {
        let outcome: Result<(), Failure> = executor.perform(&step);
        // Free the frames, which may be large and not referenced elsewhere.
        drop(step);
        if let Some(made) = executor.take_to_sync() {
            *self.to_sync.lock() = Some(made);
        }
        self.done(|core, now| core.done(now, outcome));
    }

    fn sync(&self, sync: &Sync) {
        let mut to_sync = self.to_sync.lock();
        // If another segment was created meanwhile, that one has all frames that were not durable.
        let segment = to_sync.as_mut().filter(|segment| segment.number == sync.number);
        let outcome = segment.map(ToSync::sync);
        drop(to_sync);
        self.done(|core, now| core.synced(now, outcome));
    }

    /// Waits for something to sync; `None` when the log ends.
    fn next_sync(&self) -> Option<Sync> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let now = self.workers.elapsed();
            if let Some(sync) = state.core.next_sync(now) {
                return Some(sync);
            }
            let until = state.core.syncs_at();
            state.sync_sleeps = Some(Sleep(until));
            match until {
                None => self.sync_work.wait(&mut state),
                Some(until) => {
                    self.sync_work.wait_until(&mut state, self.workers.instant(until));
                }
            }
            state.sync_sleeps = None;
        }
    }

    /// Waits for the next step; `None` when the log ends.
    fn next_step(&self) -> Option<Step> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            match state.core.next(self.workers.elapsed()) {
                Step::Wait(until) => {
                    state.sleeps = Some(Sleep(until));
                    match until {
                        None => self.work.wait(&mut state),
                        Some(until) => {
                            self.work.wait_until(&mut state, self.workers.instant(until));
                        }
                    }
                    state.sleeps = None;
                }
                step @ (Step::Create(_) | Step::Commit(_)) => return Some(step),
            }
        }
    }
}

/// Writes the log's frames.
struct Writer {
    shared: Arc<Shared>,
    executor: Executor,
}

impl Job for Writer {
    fn run(mut self: Box<Self>) {
        while let Some(step) = self.shared.next_step() {
            self.shared.write(&mut self.executor, step);
        }
    }

    fn step(&mut self) -> Stepped {
        let mut state = self.shared.state.lock();
        if state.stop {
            return Stepped::Over;
        }
        match state.core.next(self.shared.workers.elapsed()) {
            Step::Wait(until) => Stepped::Idle(until),
            step @ (Step::Create(_) | Step::Commit(_)) => {
                drop(state);
                self.shared.write(&mut self.executor, step);
                Stepped::Worked
            }
        }
    }
}

/// Syncs what the writer of the buffered log wrote.
struct Syncer {
    shared: Arc<Shared>,
}

impl Job for Syncer {
    fn run(self: Box<Self>) {
        while let Some(sync) = self.shared.next_sync() {
            self.shared.sync(&sync);
        }
    }

    fn step(&mut self) -> Stepped {
        let mut state = self.shared.state.lock();
        if state.stop {
            return Stepped::Over;
        }
        let next = state.core.next_sync(self.shared.workers.elapsed());
        let Some(sync) = next else { return Stepped::Idle(state.core.syncs_at()) };
        drop(state);
        self.shared.sync(&sync);
        Stepped::Worked
    }
}

/// Prepares the directory for a new segment.
pub(crate) fn prepare(disk: &dyn Disk, directory: &std::path::Path, end: &LogEnd) -> Result<(), WalError> {
    ensure_directory(disk, directory).map_err(WalError::io("make", directory))?;
    // Last segment first, so that a crash in between leaves a log without a hole.
    for path in &end.discard {
        disk.rename(path, &lost(path)).map_err(WalError::io("put aside", path))?;
        disk.sync_directory(directory).map_err(WalError::io("sync", directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
