//! Work that a log, and the other files of a shard, have beside the thread that appends: usually a thread for each
//! [`Job`]. A simulation takes the jobs through their steps itself, and is their clock.

use std::{
    fmt, io,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Work beside its caller.
pub trait Job: Send {
    /// Works until the job is over, and waits while there is nothing to do.
    fn run(self: Box<Self>);

    /// Does one piece of the work, and does not wait.
    fn step(&mut self) -> Stepped;
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// Something was done, and there may be more to do.
    Worked,
    /// There is nothing to do until this time, if no work comes before.
    Idle(Option<Duration>),
    /// The job has ended.
    Over,
}

/// Does the jobs of a shard, and tells them the time.
#[derive(Debug, Clone)]
pub enum Workers {
    /// Each job has a thread of its own; the time is counted from this instant.
    Threads(Instant),
    /// The owner of this takes the jobs through their steps.
    Driven(Driven),
}

/// Jobs that wait for their owner to take them through their steps.
#[derive(Clone)]
pub struct Driven {
    time: Arc<dyn Fn() -> Duration + Send + Sync>,
    jobs: Arc<Mutex<Vec<Box<dyn Job>>>>,
}

impl fmt::Debug for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").finish_non_exhaustive()
    }
}

impl Workers {
    /// A thread for each job.
    #[must_use]
    pub fn threads() -> Self {
        Self::Threads(Instant::now())
    }

    /// The time that the jobs see.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match self {
            Self::Threads(began) => began.elapsed(),
            Self::Driven(driven) => (driven.time)(),
        }
    }

    /// The instant until which a thread waits for `time`.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        match self {
            Self::Threads(began) => *began + time,
            Self::Driven(_) => Instant::now(),
        }
    }

    /// Starts a job. Returns its thread, if it has one.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(&self, name: String, job: Box<dyn Job>) -> io::Result<Option<JoinHandle<()>>> {
        match self {
            Self::Threads(_) => Builder::new().name(name).spawn(move || job.run()).map(Some),
            Self::Driven(driven) => {
                driven.jobs.lock().push(job);
                Ok(None)
            }
        }
    }

    /// Takes every driven job through its steps until none of them works. Returns whether one did.
    pub fn work(&self) -> bool {
        let Self::Driven(driven) = self else { return false };
        let mut worked = false;
        while (0..driven.count()).any(|at| driven.step(at) == Some(Stepped::Worked)) {
            worked = true;
        }
        worked
    }
}

impl Driven {
    /// No jobs yet; `time` tells the time that they see.
    #[must_use]
    pub fn new(time: Arc<dyn Fn() -> Duration + Send + Sync>) -> Self {
        Self { time, jobs: Arc::default() }
    }

    /// How many jobs there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Takes the job at this place through one step, and removes it when it is over; `None` when there is no job at
    /// this place.
    #[must_use]
    pub fn step(&self, at: usize) -> Option<Stepped> {
        // Out of the list meanwhile: a job may start others.
        let mut job = {
            let mut jobs = self.jobs.lock();
            if at >= jobs.len() {
                return None;
            }
            jobs.remove(at)
        };
        let stepped = job.step();
        if stepped != Stepped::Over {
            let mut jobs = self.jobs.lock();
            let at = at.min(jobs.len());
            jobs.insert(at, job);
        }
        Some(stepped)
    }

    /// Drops all jobs where they stand, as the end of a process does.
    pub fn kill(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        drop(jobs);
    }
}
