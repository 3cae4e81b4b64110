//! The task that owns the engine.
//!
//! Requests come over one bounded queue, which the loop drains in batches: it applies all of a batch, hands the records
//! to the logs, publishes what need not wait for them, wakes the watch streams and answers (R9). Changes that must be
//! on disk first wait, in order and with the answers that depend on them, until their log has them. Answers to writes
//! of mode `buffered` wait until the kernel has the record, so that it outlives this process. The loop itself never
//! waits for a disk. Long work (freeing compacted memory, expiring leases, checkpoints) is done in slices between
//! batches, and long reads are produced chunk by chunk on request.

use std::pin::pin;
use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_transport::give_way;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    core::Core,
    durability::Logs,
    etcd_status::KvError,
    standby::shipping::{Said, Shipping},
};

mod background;
pub mod call;
mod machine;
mod pending;
mod request;
mod requests;

pub(crate) use self::request::{Batched, BatchedCall, Refusing, Request, Respond};
pub use self::request::{Raise, RaiseSince};
use self::{call::Call, machine::Machine, pending::Pending, requests::Requests};

/// Requests that may wait in the queue; more senders wait for room.
const QUEUE_MAX: usize = 4096;
/// What may wait of standbys' connections; more wait for room.
const CONTROLS_MAX: usize = 256;
/// Maximum requests of a batch.
const BATCH_MAX: usize = 256;
/// A batch ends after about this time, so that its last request does not delay its first.
const BATCH_TIME_MAX: Duration = Duration::from_micros(200);

/// Starts the loop. It ends, after answering its queue, when `stop` is cancelled or every handle is dropped.
pub(crate) fn spawn(
    core: Core,
    logs: Logs,
    shipping: Shipping,
    progress_interval: Duration,
    stop: CancellationToken,
) -> (Senders, JoinHandle<()>) {
    let (senders, apply_loop) = ApplyLoop::new(core, logs, shipping, progress_interval);
    (senders, tokio::spawn(apply_loop.run(stop)))
}

/// What the loop is told of this process as a member of its store.
pub(crate) enum Control {
    /// As a primary.
    Said(Said),
    /// As a primary: a standby is about to follow.
    Ship(Box<Call>),
    /// As a standby: to go on in its primary's place, once everything that it has is on disk.
    Promote {
        /// Set where the primary may have shown more than is here, everything below this.
        behind: Option<Revision>,
        /// Told when it has.
        answer: oneshot::Sender<Result<(), KvError>>,
    },
    /// As a former primary: to wait for no standby, and to go on behind what another member may have shown.
    Reopen { behind: Revision, in_doubt: bool, answer: oneshot::Sender<Result<(), KvError>> },
}

impl From<Said> for Control {
    fn from(said: Said) -> Self {
        Self::Said(said)
    }
}

/// The ways to the loop.
#[derive(Clone)]
pub(crate) struct Senders {
    pub(crate) requests: mpsc::Sender<Request>,
    /// Read before requests, also while these wait.
    pub(crate) controls: mpsc::Sender<Control>,
    pub(crate) refusing: Refusing,
}

/// The state machine and its queues.
pub struct ApplyLoop {
    machine: Machine,
    requests: Requests,
    controls: mpsc::Receiver<Control>,
    /// A request that was read when no request could be executed any more.
    held: Option<Request>,
}

impl ApplyLoop {
    /// A loop that nobody drives yet.
    pub(crate) fn new(
        core: Core,
        logs: Logs,
        shipping: Shipping,
        progress_interval: Duration,
    ) -> (Senders, Self) {
        let (requests, read_requests) = mpsc::channel(QUEUE_MAX);
        let (controls, read_controls) = mpsc::channel(CONTROLS_MAX);
        let machine = Machine::new(core, logs, shipping, progress_interval, BATCH_MAX);
        let senders = Senders { requests, controls, refusing: machine.refusing() };
        let requests = Requests::new(read_requests);
        (senders, Self { machine, requests, controls: read_controls, held: None })
    }

    async fn run(mut self, stop: CancellationToken) {
        let changed = self.machine.logs.changed();
        // One timer for all turns: one that is made anew lets the runtime wake itself by a system call each time.
        let mut timer = pin!(tokio::time::sleep_until(self.machine.next_timer()));
        let mut works = self.machine.has_work();
        loop {
            if !works {
                let wake_at = self.machine.next_timer();
                // A timer that is due wakes this task at once, so it is not set while there is work: the task would run
                // again before the runtime looks at sockets.
                if timer.deadline() != wake_at || timer.is_elapsed() {
                    timer.as_mut().reset(wake_at);
                }
            }
            // What is refused is read, so that its clients ask the other member at once.
            let takes = self.machine.refuses_all() || self.machine.takes_requests(Instant::now());
            if self.requests.is_closed() && self.machine.answers_nothing(Instant::now()) {
                // The standbys do not let it answer, and it ends: what waits is dropped, which answers it.
                break;
            }
            let held = if takes { self.held.take() } else { None };
            let waits = held.is_none();
            let began = tokio::select! {
                biased;
                () = std::future::ready(()), if !waits => held.map_or_else(Instant::now, |held| self.batch(held)),
                Some(control) = self.controls.recv() => {
                    let now = Instant::now();
                    self.machine.control(now, control);
                    while let Ok(control) = self.controls.try_recv() {
                        self.machine.control(now, control);
                    }
                    now
                }
                request = self.requests.recv(), if takes => match request {
                    Some(request) => self.batch(request),
                    None => break,
                },
                () = changed.notified() => Instant::now(),
                () = stop.cancelled(), if !self.requests.is_closed() => {
                    self.requests.close();
                    Instant::now()
                }
                () = timer.as_mut(), if !works => Instant::now(),
                () = std::future::ready(()), if works => Instant::now(),
            };
            self.machine.end_batch(Instant::now());
            self.machine.metrics.turn(began.elapsed());
            let sliced = self.machine.take_sliced();
            if sliced {
                give_way();
            }
            // The tasks that were just answered run first, and fill the queue for the next batch; sockets are looked at
            // between slices of long work, also if another task asks for each slice. With an empty queue and no such
            // work the loop waits anyway.
            let queued = self.held.is_some() || !self.requests.is_empty() || !self.controls.is_empty();
            works = self.machine.has_work();
            if queued || works || sliced {
                tokio::task::yield_now().await;
            }
        }
        self.end().await;
    }

    /// Executes the waiting requests. Returns when it began.
    fn batch(&mut self, first: Request) -> Instant {
        let began = Instant::now();
        let mut next = Some(first);
        while let Some(request) = next.take().or_else(|| self.requests.try_recv().ok()) {
            // The time is read behind the request: it is executed as of that time.
            let now = Instant::now();
            if self.machine.refuses_all() {
                request.refuse(&KvError::NotPrimary);
                continue;
            }
            if !self.machine.takes_requests(now) {
                self.held = Some(request);
                break;
            }
            self.machine.execute(now, request);
            if self.machine.batch_len() >= BATCH_MAX || now.duration_since(began) >= BATCH_TIME_MAX {
                break;
            }
        }
        self.machine.metrics.batch(self.machine.batch_len(), began.elapsed());
        began
    }

    /// Takes one turn at the time of the core's clock with up to so many of the waiting requests, for a simulation.
    /// Returns whether it read that many.
    pub fn turn(&mut self, requests_max: usize) -> bool {
        let now = self.machine.core.clock.now();
        while let Ok(control) = self.controls.try_recv() {
            self.machine.control(now, control);
        }
        let mut read = 0;
        while read < requests_max
            && (self.machine.refuses_all() || self.machine.takes_requests(now))
            && let Ok(request) = self.requests.try_recv()
        {
            match self.machine.refuses_all() {
                true => request.refuse(&KvError::NotPrimary),
                false => self.machine.execute(now, request),
            }
            read += 1;
        }
        self.machine.end_batch(now);
        read == requests_max
    }

    /// When the next turn is due if no request comes before.
    #[must_use]
    pub fn next_timer(&self) -> Instant {
        self.machine.next_timer()
    }

    /// Ends cleanly, as `ApplyLoop::end` does, with jobs of the logs that nobody else takes through their steps.
    pub fn end_driven(mut self) {
        self.machine.refuse_waiting();
        while self.machine.waits_for_logs() && self.machine.logs.work() {
            let now = self.machine.core.clock.now();
            self.machine.drain(now);
        }
        let Machine { mut core, logs, .. } = self.machine;
        logs.close_driven(&mut core);
    }

    /// The state that the loop owns, for a simulation to look at between turns.
    pub fn core(&mut self) -> &mut Core {
        &mut self.machine.core
    }

    /// Answers all pending requests, as far as the disk allows, and closes the logs.
    async fn end(mut self) {
        self.machine.refuse_waiting();
        let changed = self.machine.logs.changed();
        let deadline = Instant::now() + Pending::END_MAX;
        while self.machine.waits_for_logs() && Instant::now() < deadline {
            let _ = tokio::time::timeout_at(deadline, changed.notified()).await;
            self.machine.drain(Instant::now());
        }
        let Machine { mut core, logs, .. } = self.machine;
        logs.close(&mut core).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
