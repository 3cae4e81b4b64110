//! A log that is open for appending: the handle, and the thread that writes.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kindred_partition_config::ids::Revision;
use parking_lot::{Condvar, Mutex};

use crate::{
    disk::{Disk, ensure_directory, lost},
    error::WalError,
    number::FrameSeq,
    options::LogOptions,
    record::{Batch, TooLarge},
    scan::LogEnd,
    writer::{
        Event, Failure, LogStatus,
        core::{Core, Step},
        executor::Executor,
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
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something is to be written, or the log is to end.
    work: Condvar,
    /// Something became durable, or failed.
    progress: Condvar,
    begun: Instant,
}

#[derive(Debug)]
struct State {
    core: Core,
    stop: bool,
    /// Until when the thread sleeps, if it does: nobody wakes it for what can wait until then.
    sleeps: Option<Sleep>,
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
    /// `events` is called on the log's thread and must not wait: send into a channel, or notify.
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
        let name = format!("wal-{}", options.kind);
        let begun = Instant::now();
        let mut core = Core::new(options.clone(), end, Duration::ZERO);
        let mut executor = Executor::new(disk, directory.clone(), options);
        let first = core.next(begun.elapsed());
        let outcome = executor.perform(&first);
        core.done(begun.elapsed(), outcome).into_iter().for_each(&mut events);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { core, stop: false, sleeps: None }),
            work: Condvar::new(),
            progress: Condvar::new(),
            begun,
        });
        let writer = Arc::clone(&shared);
        let spawned = thread::Builder::new().name(name).spawn(move || writer.run(&mut executor, &mut events));
        let thread = spawned.map_err(WalError::io("start the writer of", &directory))?;
        Ok(Self { shared, thread: Some(thread) })
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
        let wakes = state.wakes();
        drop(state);
        if wakes {
            self.shared.work.notify_one();
        }
        answer
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
        if state.wakes() {
            self.shared.work.notify_one();
        }
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
        if let Some(thread) = self.thread.take() {
            // It panics only when the callback does, whose owner then knows.
            thread.join().ok();
        }
    }
}

impl State {
    /// Whether the thread is to be woken. It is not told twice.
    fn wakes(&mut self) -> bool {
        let Some(Sleep(until)) = self.sleeps else { return false };
        let wakes = self.core.acts_at().is_some_and(|at| until.is_none_or(|until| at < until));
        if wakes {
            self.sleeps = None;
        }
        wakes
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, executor: &mut Executor, events: &mut dyn FnMut(Event)) {
        while let Some(step) = self.next_step() {
            let outcome: Result<(), Failure> = executor.perform(&step);
            // The frames may be the last ones to be held, and large.
            drop(step);
            let told = self.state.lock().core.done(self.begun.elapsed(), outcome);
            self.progress.notify_all();
            told.into_iter().for_each(&mut *events);
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
