//! The clock's durable ceiling (R2) is raised in the background, by a thread of its own, so that nobody waits for its disk. With each ceiling
//! goes how far both logs are on disk, so that a start finds out a log that was cut off.
//!
//! Also of an idle shard: its promises are to move on with the present (R7), and they stay below the ceiling as all else does. With an old one
//! they would stand still, and the first write would wait for a sync.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use kindred_engine::engine::WallMicros;
use kindred_partition_config::ids::{Revision, SLOT_BITS};
use kindred_wal::{ClockFile, LogPlaces, WalError};
use tokio::sync::Notify;

/// The ceiling stands so far above the present.
const AHEAD: Duration = Duration::from_secs(3);
/// And so far above what was assigned, when a burst or a raise ran ahead of the wall clock.
const ABOVE_LAST: Duration = Duration::from_millis(10);
/// A disk that takes seconds is asked earlier, up to here.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// A write that failed is tried again after this long.
const RETRY: Duration = Duration::from_millis(200);

fn micros(of: Duration) -> i64 {
    i64::try_from(of.as_micros()).unwrap_or(i64::MAX >> SLOT_BITS)
}

/// The next ceiling, when it is time for one: with half of the way to the one in force used up. `took` is how long the last
/// write of one took.
#[must_use]
pub fn wanted(now: WallMicros, last: Revision, ceiling: Revision, took: Duration) -> Option<Revision> {
    let ahead = micros((AHEAD + 2 * took).min(AHEAD_MAX));
    let most = i64::MAX >> SLOT_BITS;
    let now = i64::try_from(now.0).unwrap_or(most).min(most - ahead);
    let last = last.get() >> SLOT_BITS;
    let next = (now + ahead).max(last.saturating_add(micros(ABOVE_LAST)).min(most));
    let used = (ceiling.get() >> SLOT_BITS) - now < ahead / 2
        || (ceiling.get() >> SLOT_BITS).saturating_sub(last) < micros(ABOVE_LAST) / 2;
    let next = Revision(next << SLOT_BITS);
    (used && next > ceiling).then_some(next)
}

/// The one that a start stores before anything is assigned: above what was in force, which may have been on its way to the
/// disk at a crash.
#[must_use]
pub fn first(now: WallMicros, last: Revision, in_force: Revision) -> Revision {
    let next = wanted(now, last, Revision::ZERO, Duration::ZERO);
    next.unwrap_or(above(last)).max(above(in_force))
}

/// The ceiling that lets the clock come to a revision, and a little further.
#[must_use]
pub fn above(to: Revision) -> Revision {
    Revision(to.get().saturating_add(micros(ABOVE_LAST) << SLOT_BITS))
}

/// What the keeper's thread and the loop share.
#[derive(Debug, Default)]
struct Shared {
    ceiling: AtomicI64,
    /// How long the last write took, microseconds.
    took_micros: AtomicU64,
    /// How far both logs were on disk by what was written last.
    noted: Mutex<Option<LogPlaces>>,
    stopped: AtomicBool,
}

/// Tells how far both logs are on disk.
pub type Durable = Box<dyn Fn() -> LogPlaces + Send>;

/// The file, and what is written to it.
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

/// The thread.
#[derive(Debug)]
pub struct CeilingKeeper {
    wanted: Option<SyncSender<Revision>>,
    /// What was asked for last and is not there yet.
    asked: Option<Revision>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Keeping>>,
}

impl CeilingKeeper {
    /// Starts the thread; `changed` is notified at every new ceiling.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(file: ClockFile, changed: Arc<Notify>, durable: Durable) -> std::io::Result<Self> {
        let ceiling = AtomicI64::new(file.ceiling().get());
        let shared = Arc::new(Shared { ceiling, ..Shared::default() });
        let (wanted, wishes) = sync_channel(1);
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("clock-ceiling".to_owned())
            .spawn(move || keep(Keeping { file, durable }, &wishes, &of_thread, &changed))?;
        Ok(Self { wanted: Some(wanted), asked: None, shared, thread: Some(thread) })
    }

    /// Called once in a while: how far both logs are on disk is written, if it is not what was written last.
    pub fn note(&mut self, durable: LogPlaces) {
        let noted = *self.shared.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted != Some(durable)
            && let Some(wanted) = &self.wanted
        {
            // One that is under way does the same; a thread that has ended is told of where the ceiling stands still.
            let _ = wanted.try_send(Revision::ZERO);
        }
    }

    /// The ceiling in force.
    #[must_use]
    pub fn ceiling(&self) -> Revision {
        Revision(self.shared.ceiling.load(Ordering::Acquire))
    }

    /// How long the last write took.
    #[must_use]
    pub fn last_took(&self) -> Duration {
        Duration::from_micros(self.shared.took_micros.load(Ordering::Acquire))
    }

    /// Asks for a higher one; without effect while one is under way.
    pub fn ask(&mut self, ceiling: Revision) {
        let current = self.ceiling();
        self.asked = self.asked.filter(|asked| *asked > current);
        if self.asked.is_some() || ceiling <= current {
            return;
        }
        let Some(wanted) = &self.wanted else { return };
        match wanted.try_send(ceiling) {
            Ok(()) => self.asked = Some(ceiling),
            // One is under way, or the thread has ended, which `ceiling` shows by standing still.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Ends the thread; after a clean stop the ceiling is what was promised last, so that the next start does not run ahead
    /// of the wall clock.
    ///
    /// # Errors
    /// When the disk does not take it: the one before stays.
    pub fn stop(mut self, last: Option<Revision>) -> Result<(), WalError> {
        self.shared.stopped.store(true, Ordering::Release);
        self.wanted = None;
        // The thread ends by itself; should it have panicked, the ceiling of before stays.
        let file = self.thread.take().and_then(|thread| thread.join().ok());
        match (file, last) {
            (Some(mut file), Some(last)) => file.store(last).map(|_| ()),
            _ => Ok(()),
        }
    }
}

fn keep(mut file: Keeping, wishes: &Receiver<Revision>, shared: &Shared, changed: &Notify) -> Keeping {
    let mut wish = None;
    let mut failing = false;
    loop {
        let next = match wish {
            None => wishes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => wishes.recv_timeout(RETRY),
        };
        match next {
            Ok(next) => wish = wish.max(Some(next)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return file,
        }
        // A note keeps the ceiling that is in force.
        let Some(ceiling) = wish.map(|wish| wish.max(file.file.ceiling())) else { continue };
        if shared.stopped.load(Ordering::Acquire) {
            return file;
        }
        let began = Instant::now();
        match file.store(ceiling) {
            Ok(durable) => {
                let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                shared.took_micros.store(took, Ordering::Release);
                shared.ceiling.store(ceiling.get(), Ordering::Release);
                *shared.noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(durable);
                wish = None;
                if std::mem::take(&mut failing) {
                    tracing::info!("the clock's ceiling can be kept again");
                }
                changed.notify_one();
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "the clock's ceiling cannot be kept: writes are refused soon");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
