//! Raises the clock's durable ceiling (R2) in a thread of its own, so that the loop does not wait for its disk. Each
//! ceiling is stored with the positions up to which both logs are on disk, so that a start detects a truncated log.
//!
//! An idle shard's ceiling is raised too: its promises advance with the present (R7) and stay below the ceiling.
//! Otherwise they would stop, and the first write would wait for a sync.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use kindred_engine::engine::WallMicros;
use kindred_partition_config::ids::{Revision, SLOT_BITS};
use kindred_wal::{ClockFile, Job, LogPlaces, Stepped, WalError, Workers};
use tokio::sync::Notify;

/// The distance of the ceiling from the present.
const AHEAD: Duration = Duration::from_secs(3);
/// The distance from the last revision, which a burst or raise may have moved ahead of the wall clock.
const ABOVE_LAST: Duration = Duration::from_millis(10);
/// The maximum distance, which grows while the disk takes seconds to sync.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// The time after which a failed write is retried.
const RETRY: Duration = Duration::from_millis(200);
/// How long after half of the distance is used up an idle loop looks at the ceiling: behind the second second, in which a
/// router has asked something of the shard.
const LOOK_LATE: Duration = Duration::from_millis(600);

fn micros(of: Duration) -> i64 {
    i64::try_from(of.as_micros()).unwrap_or(i64::MAX >> SLOT_BITS)
}

/// The distance of the next ceiling from the present, in microseconds, when the last write took so long.
fn ahead(took: Duration) -> i64 {
    micros((AHEAD + 2 * took).min(AHEAD_MAX))
}

/// The next ceiling, if it is time for one: when half of the distance is used up. `took` is the duration of the last
/// write.
#[must_use]
pub fn wanted(now: WallMicros, last: Revision, ceiling: Revision, took: Duration) -> Option<Revision> {
    let ahead = ahead(took);
    let most = i64::MAX >> SLOT_BITS;
    let now = i64::try_from(now.0).unwrap_or(most).min(most - ahead);
    let last = last.get() >> SLOT_BITS;
    let next = (now + ahead).max(last.saturating_add(micros(ABOVE_LAST)).min(most));
    let used = (ceiling.get() >> SLOT_BITS) - now < ahead / 2
        || (ceiling.get() >> SLOT_BITS).saturating_sub(last) < micros(ABOVE_LAST) / 2;
    let next = Revision(next << SLOT_BITS);
    (used && next > ceiling).then_some(next)
}

/// How long a loop that nothing else wakes may leave the ceiling alone. A turn that comes anyway raises it from half of the
/// distance on, so an idle loop has other turns do it and wakes seldom for this alone.
#[must_use]
pub fn look_in(now: WallMicros, ceiling: Revision, took: Duration) -> Duration {
    let now = i64::try_from(now.0).unwrap_or(i64::MAX);
    let left = (ceiling.get() >> SLOT_BITS).saturating_sub(now);
    let idle = left.saturating_sub(ahead(took) / 2 - micros(LOOK_LATE));
    match u64::try_from(idle) {
        Ok(idle @ 1..) => Duration::from_micros(idle).min(AHEAD_MAX),
        // It is being raised, which wakes the loop, or its job has failed.
        _ => LOOK_LATE,
    }
}

/// The ceiling that a start stores before anything is assigned. It is above the one in force, of which a higher
/// successor may have been lost in a crash.
#[must_use]
pub fn first(now: WallMicros, last: Revision, in_force: Revision) -> Revision {
    let next = wanted(now, last, Revision::ZERO, Duration::ZERO);
    next.unwrap_or(above(last)).max(above(in_force))
}

/// The ceiling that lets the clock reach a revision, with a little room.
#[must_use]
pub fn above(to: Revision) -> Revision {
    Revision(to.get().saturating_add(micros(ABOVE_LAST) << SLOT_BITS))
}

/// State shared by the job and the loop.
#[derive(Debug, Default)]
struct Shared {
    ceiling: AtomicI64,
    /// Duration of the last write, in microseconds.
    took_micros: AtomicU64,
    /// The log positions that were stored last.
    noted: Mutex<Option<LogPlaces>>,
    stopped: AtomicBool,
}

/// Tells up to where both logs are on disk.
pub type Durable = Box<dyn Fn() -> LogPlaces + Send>;

/// The file, and the source of the log positions to store in it.
struct Keeping {
    file: ClockFile,
    durable: Durable,
}

impl Keeping {
    fn store(&mut self, ceiling: Revision) -> Result<LogPlaces, WalError> {
        let durable = (self.durable)();
        self.file.store_with(ceiling, durable)?;
        Ok(durable)
    }
}

/// The handle of the job that raises the ceiling.
pub struct CeilingKeeper {
    wanted: Option<SyncSender<Revision>>,
    /// The last requested ceiling, until it is in force.
    asked: Option<Revision>,
    shared: Arc<Shared>,
    keeping: Arc<Mutex<Keeping>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for CeilingKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CeilingKeeper").field("asked", &self.asked).field("shared", &self.shared).finish()
    }
}

impl CeilingKeeper {
    /// Starts the job; `changed` is notified of every new ceiling.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(
        workers: &Workers,
        file: ClockFile,
        changed: Arc<Notify>,
        durable: Durable,
    ) -> std::io::Result<Self> {
        let ceiling = AtomicI64::new(file.ceiling().get());
        let shared = Arc::new(Shared { ceiling, ..Shared::default() });
        let keeping = Arc::new(Mutex::new(Keeping { file, durable }));
        let (wanted, requests) = sync_channel(1);
        let job = Keep {
            keeping: keeping.clone(),
            requests,
            shared: shared.clone(),
            changed,
            workers: workers.clone(),
            wanted: None,
            failed_at: None,
        };
        let thread = workers.start("clock-ceiling".to_owned(), Box::new(job))?;
        Ok(Self { wanted: Some(wanted), asked: None, shared, keeping, thread })
    }

    /// Stores the log positions if they changed since the last write. Called now and then.
    pub fn note(&mut self, durable: LogPlaces) {
        let noted = *self.shared.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted != Some(durable)
            && let Some(wanted) = &self.wanted
        {
            // A write under way stores them too. If the job has ended, the ceiling stops rising, which is noticed
            // elsewhere.
            let _ = wanted.try_send(Revision::ZERO);
        }
    }

    #[must_use]
    pub fn ceiling(&self) -> Revision {
        Revision(self.shared.ceiling.load(Ordering::Acquire))
    }

    /// Duration of the last write.
    #[must_use]
    pub fn last_took(&self) -> Duration {
        Duration::from_micros(self.shared.took_micros.load(Ordering::Acquire))
    }

    /// Requests a higher ceiling; without effect while a request is pending.
    pub fn ask(&mut self, ceiling: Revision) {
        let current = self.ceiling();
        self.asked = self.asked.filter(|asked| *asked > current);
        if self.asked.is_some() || ceiling <= current {
            return;
        }
        let Some(wanted) = &self.wanted else { return };
        match wanted.try_send(ceiling) {
            Ok(()) => self.asked = Some(ceiling),
            // A write is under way, or the job has ended and the ceiling stops rising.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Ends the job. A clean stop lowers the ceiling to the last promise, so that the next start does not run ahead
    /// of the wall clock.
    ///
    /// # Errors
    /// When the disk fails; the ceiling then stays as it was.
    pub fn stop(mut self, last: Option<Revision>) -> Result<(), WalError> {
        self.shared.stopped.store(true, Ordering::Release);
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the lock below says so.
            let _ = thread.join();
        }
        // If the job has panicked, the ceiling stays as it was.
        match (self.keeping.lock(), last) {
            (Ok(mut keeping), Some(last)) => keeping.store(last).map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// The job that stores the ceilings.
struct Keep {
    keeping: Arc<Mutex<Keeping>>,
    requests: Receiver<Revision>,
    shared: Arc<Shared>,
    changed: Arc<Notify>,
    workers: Workers,
    /// The ceiling that is not stored yet.
    wanted: Option<Revision>,
    /// The time of the last attempt to store it, which failed.
    failed_at: Option<Duration>,
}

impl Job for Keep {
    fn run(mut self: Box<Self>) {
        loop {
            let next = match self.wanted {
                None => self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => self.requests.recv_timeout(RETRY),
            };
            match next {
                Ok(next) => self.wanted = self.wanted.max(Some(next)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.store() == Stepped::Over {
                return;
            }
        }
    }

    fn step(&mut self) -> Stepped {
        match self.requests.try_recv() {
            Ok(next) => self.wanted = self.wanted.max(Some(next)),
            Err(TryRecvError::Empty) if self.wanted.is_none() => return Stepped::Idle(None),
            Err(TryRecvError::Empty) => {
                let again_at = self.failed_at.map_or(Duration::ZERO, |failed| failed + RETRY);
                if self.workers.elapsed() < again_at {
                    return Stepped::Idle(Some(again_at));
                }
            }
            Err(TryRecvError::Disconnected) => return Stepped::Over,
        }
        self.store()
    }
}

impl Keep {
    /// Stores the wanted ceiling, if there is one.
    fn store(&mut self) -> Stepped {
        let Some(wanted) = self.wanted else { return Stepped::Worked };
        if self.shared.stopped.load(Ordering::Acquire) {
            return Stepped::Over;
        }
        let began = self.workers.elapsed();
        let Ok(mut keeping) = self.keeping.lock() else { return Stepped::Over };
        // A note of log positions keeps the ceiling in force.
        let ceiling = wanted.max(keeping.file.ceiling());
        let stored = keeping.store(ceiling);
        drop(keeping);
        match stored {
            Ok(durable) => {
                let took = (self.workers.elapsed() - began).as_micros();
                self.shared.took_micros.store(u64::try_from(took).unwrap_or(u64::MAX), Ordering::Release);
                self.shared.ceiling.store(ceiling.get(), Ordering::Release);
                *self.shared.noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(durable);
                self.wanted = None;
                if self.failed_at.take().is_some() {
                    tracing::info!("the clock's ceiling can be kept again");
                }
                self.changed.notify_one();
            }
            Err(error) => {
                if self.failed_at.replace(self.workers.elapsed()).is_none() {
                    tracing::error!(%error, "the clock's ceiling cannot be kept: writes are refused soon");
                }
            }
        }
        Stepped::Worked
    }
}

#[cfg(test)]
mod tests;
