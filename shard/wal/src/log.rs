//! A log that is open for appending: the handle, the thread that writes, and for the buffered log the one that syncs.

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
    writer::{
        Event, Failure, LogStatus,
        core::{Core, Step, Sync},
        executor::{Executor, ToSync},
    },
};

/// A log that is open for appending.
///
/// Appending never waits for the disk. What was appended is durable when [`Event::Durable`] says so; until then it is kept in memory, and
/// written again, elsewhere, if the disk fails. To keep that bounded, ask [`Log::has_room`] before taking work that will be appended, and
/// again after each [`Event::Durable`].
///
/// Dropping it ends the thread after the step that is under way and leaves what is not durable, as a crash does; [`Log::close`] writes all.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Who is told what happens.
type Events = Box<dyn FnMut(Event) + Send>;

struct Shared {
    /// Taken before the state is changed by what was done, so that it is told in the order in which it was.
    events: Mutex<Events>,
    /// Of the buffered log: the segment that is written.
    to_sync: Mutex<Option<ToSync>>,
    state: Mutex<State>,
    /// Something is to be written, or the log is to end.
    work: Condvar,
    /// Something is to be synced, or the log is to end.
    sync_work: Condvar,
    /// Something became durable, or failed.
    progress: Condvar,
    begun: Instant,
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
    /// Until when the thread that writes sleeps, if it does: nobody wakes it for what can wait until then.
    sleeps: Option<Sleep>,
    /// The same of the one that syncs.
    sync_sleeps: Option<Sleep>,
}

/// Until when; nothing for until it is woken.
#[derive(Debug, Clone, Copy)]
struct Sleep(Option<Duration>);

/// What a log could not write before it was closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log was closed with frames from {from} on not on the disk: {why}")]
pub struct Unwritten {
    /// The first one.
    pub from: FrameSeq,
    /// What the disk said, or that it took too long.
    pub why: String,
}

impl Log {
    /// Opens a log where [`scan`](crate::scan()) or [`recover`](crate::recover()) found its end; [`LogEnd::fresh`] for a new one. Begins a
    /// new segment, with the frames of the end that nothing proves to be on the disk. When the disk does not take that, the log is open and
    /// failing ([`Log::status`]), so that a shard on a full disk can still be read.
    ///
    /// `events` is called on the log's threads, one at a time, and must not wait: send into a channel, or notify.
    ///
    /// # Errors
    /// When the directory cannot be made, what is to be put aside cannot be, or the thread cannot be started.
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        options: LogOptions,
        end: LogEnd,
        mut events: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, WalError> {
        prepare(&*disk, &directory, &end)?;
        let kind = options.kind;
        let begun = Instant::now();
        let mut core = Core::new(options.clone(), end, Duration::ZERO);
        let mut executor = Executor::new(disk, directory.clone(), options);
        let first = core.next(begun.elapsed());
        let outcome = executor.perform(&first);
        core.done(begun.elapsed(), outcome).into_iter().for_each(&mut events);
        let shared = Arc::new(Shared {
            events: Mutex::new(Box::new(events)),
            to_sync: Mutex::new(executor.take_to_sync()),
            state: Mutex::new(State { core, stop: false, sleeps: None, sync_sleeps: None }),
            work: Condvar::new(),
            sync_work: Condvar::new(),
            progress: Condvar::new(),
            begun,
        });
        let mut log = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            let spawned = thread::Builder::new().name(name).spawn(run);
            spawned.map_err(WalError::io("start the writer of", &directory))
        };
        let writer = Arc::clone(&shared);
        log.threads.push(spawn(format!("wal-{kind}"), Box::new(move || writer.run(&mut executor)))?);
        if kind == LogKind::Buffered {
            log.threads.push(spawn(format!("wal-{kind}-sync"), Box::new(move || shared.run_syncs()))?);
        }
        Ok(log)
    }

    /// Appends a batch; answers the number of its frame. Numbers grow with every call; the log's own frames take some in between.
    ///
    /// # Errors
    /// When no frame can hold it. Nothing is appended then.
    pub fn append(&self, batch: Batch) -> Result<FrameSeq, TooLarge> {
        self.change(|core, now| core.append(now, batch))
    }

    /// Says that everything up to this revision of what the log keeps has been appended. A record of it follows with the next write, or
    /// after [`LogOptions::promise_interval`] alone. Lower ones than before are ignored.
    pub fn promise(&self, revision: Revision) {
        self.change(|core, now| core.promise(now, revision));
    }

    /// Writes what there is without waiting for more.
    pub fn flush(&self) {
        self.change(|core, _| core.hurry());
    }

    fn change<T>(&self, change: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let mut state = self.shared.state.lock();
        let answer = change(&mut state.core, self.shared.begun.elapsed());
        self.shared.wake(state);
        answer
    }

    /// The last frame that the system has, so that it outlives this process; 0 when there is none.
    #[must_use]
    pub fn written(&self) -> FrameSeq {
        self.shared.state.lock().core.written()
    }

    /// The last frame that is on the disk; 0 when there is none.
    #[must_use]
    pub fn durable(&self) -> FrameSeq {
        self.shared.state.lock().core.durable()
    }

    /// The number that the next frame gets: what a checkpoint that is begun now names as the place to replay from.
    #[must_use]
    pub fn next(&self) -> FrameSeq {
        self.shared.state.lock().core.next_seq()
    }

    /// Whether less than [`LogOptions::max_pending_bytes`] are waiting to become durable.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.state.lock().core.has_room()
    }

    /// What it has done and still has to do.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        self.shared.state.lock().core.status(self.shared.begun.elapsed())
    }

    /// Waits until a frame is durable, without holding up anything else. `false` when the time has passed before.
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

    /// Writes everything, then ends the thread. Gives up at the first failure, at once when the log is failing, and after `timeout`.
    ///
    /// # Errors
    /// When not everything could be written.
    pub fn close(mut self, timeout: Duration) -> Result<(), Unwritten> {
        let until = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        state.core.hurry();
        self.shared.wake(state);
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
            // It panics only when the callback does, whose owner then knows.
            thread.join().ok();
        }
    }
}

impl State {
    /// Which threads are to be woken: the one that writes, the one that syncs. Neither is told twice.
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
    /// Lets the state go, and wakes who has something to do now.
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

    /// Takes in how something went, and tells it.
    fn done(&self, take_in: impl FnOnce(&mut Core, Duration) -> Vec<Event>) {
        let mut events = self.events.lock();
        let mut state = self.state.lock();
        let told = take_in(&mut state.core, self.begun.elapsed());
        self.wake(state);
        self.progress.notify_all();
        told.into_iter().for_each(&mut *events);
    }

    fn run(&self, executor: &mut Executor) {
        while let Some(step) = self.next_step() {
            let outcome: Result<(), Failure> = executor.perform(&step);
            // The frames may be the last ones to be held, and large.
            drop(step);
            if let Some(made) = executor.take_to_sync() {
                *self.to_sync.lock() = Some(made);
            }
            self.done(|core, now| core.done(now, outcome));
        }
    }

    fn run_syncs(&self) {
        while let Some(sync) = self.next_sync() {
            let mut to_sync = self.to_sync.lock();
            // Where another segment was made meanwhile, that has all that was not durable.
            let segment = to_sync.as_mut().filter(|segment| segment.number == sync.number);
            let outcome = segment.map(ToSync::sync);
            drop(to_sync);
            self.done(|core, now| core.synced(now, outcome));
        }
    }

    /// Waits for something to sync; nothing when the log ends.
    fn next_sync(&self) -> Option<Sync> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let now = self.begun.elapsed();
            if let Some(sync) = state.core.next_sync(now) {
                return Some(sync);
            }
            let until = state.core.syncs_at();
            state.sync_sleeps = Some(Sleep(until));
            match until {
                None => self.sync_work.wait(&mut state),
                Some(until) => {
                    self.sync_work.wait_until(&mut state, self.begun + until);
                }
            }
            state.sync_sleeps = None;
        }
    }

    /// Waits for something to do; nothing when the log ends.
    fn next_step(&self) -> Option<Step> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            match state.core.next(self.begun.elapsed()) {
                Step::Wait(until) => {
                    state.sleeps = Some(Sleep(until));
                    match until {
                        None => self.work.wait(&mut state),
                        Some(until) => {
                            self.work.wait_until(&mut state, self.begun + until);
                        }
                    }
                    state.sleeps = None;
                }
                step @ (Step::Create(_) | Step::Commit(_)) => return Some(step),
            }
        }
    }
}

/// Makes the directory ready for a new segment.
pub(crate) fn prepare(disk: &dyn Disk, directory: &std::path::Path, end: &LogEnd) -> Result<(), WalError> {
    ensure_directory(disk, directory).map_err(WalError::io("make", directory))?;
    // The last one first: a crash in between leaves a log without a hole.
    for path in &end.discard {
        disk.rename(path, &lost(path)).map_err(WalError::io("put aside", path))?;
        disk.sync_directory(directory).map_err(WalError::io("sync", directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
