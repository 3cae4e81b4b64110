//! The one task that owns the engine.
//!
//! Requests come over one bounded queue, which the loop owns and drains in batches: apply all, make the batch as durable
//! as it must be, publish it, wake the watch streams, and only then answer (R9). Long work (freeing compacted memory,
//! expiring leases) is done in slices between batches, and long reads are produced chunk by chunk on request.

use std::{sync::Weak, time::Duration};

use kindred_engine::{
    engine::{FeedId, FeedOut, StreamId, WatchOut},
    ops::{Op, OpAnswer, RangeQuery},
    version::Version,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    core::{Core, CursorId, Started},
    durability::Log,
    etcd_status::KvError,
    handle::Handle,
    metrics::LoopMetrics,
    wish::Wish,
};

/// Requests that may wait for the loop; further senders wait themselves.
const QUEUE_MAX: usize = 4096;
/// Requests of one batch, at most.
const BATCH_MAX: usize = 256;
/// A batch ends after about this long, so that its first request is not held up by its last.
const BATCH_TIME_MAX: Duration = Duration::from_micros(200);
/// Versions freed in one slice.
const SCRUB_SLICE: usize = 256;
/// How often things of vanished clients are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What the loop is asked. Hot requests are variants; the rest runs as a closure.
pub(crate) enum Request {
    /// A write or a txn.
    Apply { op: Op, wish: Wish, answer: oneshot::Sender<Result<OpAnswer, KvError>> },
    /// A read that may turn out to be long.
    Read { query: RangeQuery, wish: Wish, owner: Weak<()>, answer: oneshot::Sender<Result<Started, KvError>> },
    /// More of a long read.
    Chunk { cursor: CursorId, answer: oneshot::Sender<Result<Vec<Version>, KvError>> },
    /// What a watch stream has to say.
    Pull { stream: StreamId, bytes_max: usize, answer: oneshot::Sender<Vec<WatchOut>> },
    /// What a feed has to say.
    PullFeed { feed: FeedId, bytes_max: usize, answer: oneshot::Sender<Option<FeedOut>> },
    /// Anything else; what it returns is called after the batch is published.
    Call(Box<dyn FnOnce(&mut Core) -> AfterPublish + Send>),
    /// What writes nothing and is to see its whole batch: it runs when that is published, and answers by itself.
    Late(Late),
}

/// See [`Request::Late`].
pub(crate) type Late = Box<dyn FnOnce(&mut Core) + Send>;

/// Sends an answer.
pub(crate) type AfterPublish = Box<dyn FnOnce() + Send>;

/// An answer that waits for its batch.
enum Answer {
    Apply(oneshot::Sender<Result<OpAnswer, KvError>>, Result<OpAnswer, KvError>),
    Read(oneshot::Sender<Result<Started, KvError>>, Result<Started, KvError>),
    Chunk(oneshot::Sender<Result<Vec<Version>, KvError>>, Result<Vec<Version>, KvError>),
    Pull(oneshot::Sender<Vec<WatchOut>>, Vec<WatchOut>),
    Feed(oneshot::Sender<Option<FeedOut>>, Option<FeedOut>),
    Call(AfterPublish),
}

impl Answer {
    /// A receiver that is gone does not matter: its request is done.
    fn send(self) {
        match self {
            Self::Apply(to, answer) => drop(to.send(answer)),
            Self::Read(to, answer) => drop(to.send(answer)),
            Self::Chunk(to, answer) => drop(to.send(answer)),
            Self::Pull(to, answer) => drop(to.send(answer)),
            Self::Feed(to, answer) => drop(to.send(answer)),
            Self::Call(send) => send(),
        }
    }
}

/// Starts the loop. It ends, after everything in its queue, when `stop` is cancelled or every handle is gone.
pub fn spawn(
    core: Core,
    log: Log,
    progress_interval: Duration,
    stop: CancellationToken,
) -> (Handle, JoinHandle<()>) {
    let (sender, requests) = mpsc::channel(QUEUE_MAX);
    let now = Instant::now();
    let apply_loop = ApplyLoop {
        core,
        log,
        requests,
        answers: Vec::with_capacity(BATCH_MAX),
        late: Vec::new(),
        progress_interval,
        progress_at: now + progress_interval,
        sweep_at: now + SWEEP_INTERVAL,
        expiring: false,
        metrics: LoopMetrics::new(),
    };
    (Handle::new(sender), tokio::spawn(apply_loop.run(stop)))
}

struct ApplyLoop {
    core: Core,
    log: Log,
    requests: mpsc::Receiver<Request>,
    answers: Vec<Answer>,
    late: Vec<Late>,
    progress_interval: Duration,
    progress_at: Instant,
    sweep_at: Instant,
    /// More leases are due than one slice ended.
    expiring: bool,
    metrics: LoopMetrics,
}

impl ApplyLoop {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let wake_at = self.next_timer();
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => self.batch(request),
                    None => break,
                },
                () = stop.cancelled(), if !self.requests.is_closed() => self.requests.close(),
                () = tokio::time::sleep_until(wake_at) => {}
            }
            self.timers();
            self.publish();
            // The tasks that were just answered come first, and fill the queue for the next batch.
            tokio::task::yield_now().await;
        }
    }

    fn batch(&mut self, first: Request) {
        let began = Instant::now();
        self.execute(first);
        while self.answers.len() + self.late.len() < BATCH_MAX && began.elapsed() < BATCH_TIME_MAX {
            let Ok(request) = self.requests.try_recv() else { break };
            self.execute(request);
        }
        self.metrics.batch(self.answers.len() + self.late.len(), began.elapsed());
    }

    fn execute(&mut self, request: Request) {
        let core = &mut self.core;
        self.answers.push(match request {
            Request::Apply { op, wish, answer } => Answer::Apply(answer, core.apply(op, wish)),
            Request::Read { query, wish, owner, answer } if core.waits(&query, wish) => {
                let read = move |core: &mut Core| drop(answer.send(core.read(&query, wish, &owner)));
                return self.late.push(Box::new(read));
            }
            Request::Read { query, wish, owner, answer } => {
                Answer::Read(answer, core.read(&query, wish, &owner))
            }
            Request::Chunk { cursor, answer } => Answer::Chunk(answer, core.chunk(cursor)),
            Request::Pull { stream, bytes_max, answer } => {
                Answer::Pull(answer, core.engine.watch_pull(stream, bytes_max))
            }
            Request::PullFeed { feed, bytes_max, answer } => {
                Answer::Feed(answer, core.engine.feed_pull(feed, bytes_max))
            }
            Request::Call(call) => Answer::Call(call(core)),
            Request::Late(late) => return self.late.push(late),
        });
    }

    fn publish(&mut self) {
        self.log.commit();
        self.core.engine.publish();
        for late in self.late.drain(..) {
            late(&mut self.core);
        }
        self.core.wake();
        for answer in self.answers.drain(..) {
            answer.send();
        }
    }

    /// What is due, a slice of each.
    fn timers(&mut self) {
        self.expiring = self.core.lease_expire();
        self.core.compact_due();
        self.core.scrub(SCRUB_SLICE);
        let now = Instant::now();
        if now >= self.progress_at {
            self.progress_at = now + self.progress_interval;
            // Whatever this batch applied is published first, so the promise may cover it.
            self.log.commit();
            self.core.engine.publish();
            self.core.engine.progress_tick(self.core.clock.wall());
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_INTERVAL;
            self.core.sweep();
            let (reads, streams) = self.core.open_counts();
            self.metrics.units(&self.core.engine.unit_records());
            self.metrics.sizes(&self.core.engine.stats(), self.core.applied, reads, streams);
        }
    }

    fn next_timer(&self) -> Instant {
        if self.expiring || self.core.is_scrubbing() {
            return Instant::now();
        }
        let lease = self.core.engine.lease_deadline().map(|at| self.core.clock.instant(at));
        let compaction = self.core.compact_deadline().map(|at| self.core.clock.instant(at));
        let timers = [Some(self.progress_at), Some(self.sweep_at), lease, compaction];
        timers.into_iter().flatten().min().unwrap_or(self.sweep_at)
    }
}
