//! The interface to the apply loop: a cheap handle with a method per request.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use kindred_engine::{
    durability::KindModes,
    engine::{FeedId, FeedOut, StreamId, WatchId, WatchOut, WatchSpec},
    error::EngineError,
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery},
    version::Version,
};
use kindred_partition_config::ids::{LeaseId, Revision, Slot};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    apply_loop::{
        self, ApplyLoop, Batched, Control, Raise, Refusing, Request, Respond, Senders,
        call::{self, Call, CoreCall, To},
    },
    core::{
        Core, CursorId, FeedWanted, Started, Taken,
        feeds::{Pushed, WAITING_MAX},
    },
    durability::Logs,
    etcd_status::KvError,
    read,
    read_hints::ReadHints,
    standby::shipping::Shipping,
};

pub(crate) mod read_txn;

/// Ended leases that may wait for a listener. One that is further behind asks again.
const ENDED_MAX: usize = 1024;

/// A handle to the apply loop.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    controls: mpsc::Sender<Control>,
    refusing: Refusing,
}

/// Starts the loop; see `apply_loop::spawn`.
pub fn spawn(
    core: Core,
    logs: Logs,
    shipping: Shipping,
    progress_interval: Duration,
    stop: CancellationToken,
) -> (Handle, JoinHandle<()>) {
    let (senders, apply_loop) = apply_loop::spawn(core, logs, shipping, progress_interval, stop);
    (Handle::of(senders), apply_loop)
}

/// A loop that the caller takes through its turns, in place of [`spawn`].
#[must_use]
pub fn unspawned(core: Core, logs: Logs, progress_interval: Duration) -> (Handle, ApplyLoop) {
    let (senders, apply_loop) = ApplyLoop::new(core, logs, Shipping::alone(), progress_interval);
    (Handle::of(senders), apply_loop)
}

impl Handle {
    fn of(senders: Senders) -> Self {
        let Senders { requests, controls, refusing } = senders;
        Self { requests, controls, refusing }
    }

    /// Tells the loop something of standbys, which it does before all requests. False when it has ended.
    pub(crate) async fn control(&self, control: impl Into<Control>) -> bool {
        self.controls.send(control.into()).await.is_ok()
    }

    /// A description of the requests that the shard refuses, and why; `None` if it refuses none.
    #[must_use]
    pub fn refuses(&self) -> Option<&'static str> {
        self.refusing.get()
    }

    async fn send<T>(&self, request: Request, answer: oneshot::Receiver<T>) -> Result<T, KvError> {
        self.requests.send(request).await.map_err(|_| KvError::Stopped)?;
        answer.await.map_err(|_| KvError::Stopped)
    }

    /// Executes a write or transaction. Its revision is above `min_revision` if the clock may follow to it.
    pub async fn apply(&self, op: Op, hints: ReadHints) -> Result<OpAnswer, KvError> {
        let op = match op {
            Op::Txn(txn) if read_txn::is_long(&txn) => {
                return self.read_txn(Arc::from(txn), hints, || true).await;
            }
            op => op,
        };
        let (answer, answered) = oneshot::channel();
        self.send(Request::Apply { op, hints, answer: Respond::One(answer) }, answered).await?
    }

    /// Sends operations that came in one message. Each is answered through its reply, even when the loop has ended.
    pub(crate) async fn batch(&self, ops: Vec<Batched>) {
        // On an error the operations are dropped, which answers them.
        let _ = self.requests.send(Request::Batch(ops)).await;
    }

    /// Hands to the loop what a primary has shipped. False when it has ended.
    pub(crate) async fn replicate(&self, replicate: call::Replicate) -> bool {
        self.requests.send(Request::Call(unanswered(replicate))).await.is_ok()
    }

    /// Makes a call; the answer comes once its batch is visible, and what it changed as durable as it must be.
    pub async fn call<C: CoreCall>(&self, call: C) -> Result<C::Answer, KvError> {
        let (to, answered) = oneshot::channel();
        self.send(Request::Call(call.named(To::Published(to)).0), answered).await
    }

    /// Makes a call once everything before it, its own batch included, is published.
    pub async fn call_visible<C: CoreCall>(&self, call: C) -> Result<C::Answer, KvError> {
        let (to, answered) = oneshot::channel();
        self.send(Request::Late(call.named(To::Published(to)).0), answered).await
    }

    /// Makes a call whose answer depends on more than its own changes: the answer comes when everything executed so far
    /// is visible and as durable as it must be.
    pub async fn call_durable<C: CoreCall>(&self, call: C) -> Result<C::Answer, KvError> {
        let (to, answered) = oneshot::channel();
        self.send(Request::Call(call.named(To::Durable(to)).0), answered).await
    }

    /// Waits until everything executed so far is durable.
    pub async fn durable(&self) -> Result<(), KvError> {
        self.call_durable(call::Reachable {}).await
    }

    /// Waits for a call that asks for a lease. That there is none is answered when everything executed so far is
    /// durable: a lease whose end is not on disk lives again after a crash (R12).
    pub async fn find_lease<T>(
        &self,
        asked: impl Future<Output = Result<Result<T, EngineError>, KvError>>,
    ) -> Result<T, KvError> {
        let found = asked.await?;
        if matches!(found, Err(EngineError::LeaseNotFound(_))) {
            self.durable().await?;
        }
        Ok(found?)
    }

    /// The leases that ended here and wait for other stores, with these, now and as they end.
    pub async fn watch_ended(&self) -> Result<mpsc::Receiver<(LeaseId, Vec<Slot>)>, KvError> {
        let (sender, ended) = mpsc::channel(ENDED_MAX);
        self.call(call::WatchEnded { sender }).await?;
        Ok(ended)
    }

    /// Raises ranges and makes a call once the raise is visible, even in a Kind whose writes wait for the disk.
    pub async fn call_raised<C: CoreCall>(&self, raise: Raise, call: C) -> Result<C::Answer, KvError> {
        let (to, answered) = oneshot::channel();
        let late = call.named(To::Published(to)).0;
        self.send(Request::Raised { raise, late }, answered).await
    }

    /// Makes a call when everything applied is published and on disk, and before anything else is executed.
    pub async fn call_flushed<C: CoreCall>(&self, call: C) -> Result<C::Answer, KvError> {
        let (to, answered) = oneshot::channel();
        self.send(Request::Flushed(call.named(To::Flushed(to)).0), answered).await?
    }

    /// Has the engine ship to standbys, once both logs are flushed. No lease is needed for that: a primary that has lost its
    /// standbys can only answer again when another one follows.
    pub(crate) async fn ship(&self) -> Result<(), KvError> {
        let (to, answered) = oneshot::channel();
        let call = call::Ship {}.named(To::Flushed(to)).0;
        self.controls.send(Control::Ship(Box::new(call))).await.map_err(|_| KvError::Stopped)?;
        answered.await.map_err(|_| KvError::Stopped)?
    }

    /// Sets the modes of the Kinds when both logs are flushed. If they have to be logged first, nothing is executed
    /// between that and their coming into force.
    pub(crate) async fn set_modes(&self, asked: KindModes) -> Result<Taken, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Flushed(Call::SetModes { asked, answer }), answered).await?
    }

    /// Compacts. Answers once no pin is below `at` and, if `physical`, the memory is free.
    pub async fn compact(&self, at: Revision, physical: bool) -> Result<Revision, KvError> {
        let (answer, answered) = oneshot::channel();
        self.call(call::Compact { at, physical, answer }).await?;
        answered.await.map_err(|_| KvError::Stopped)?
    }

    /// Looks at the core, for tests.
    #[doc(hidden)]
    pub async fn inspect<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (to, answered) = oneshot::channel();
        let look = move |core: &mut Core| -> Box<dyn FnOnce() + Send> {
            let seen = look(core);
            Box::new(move || drop(to.send(seen)))
        };
        self.send(Request::Call(Call::Inspect(Box::new(look))), answered).await
    }

    /// Executes a whole read; a long one is collected in chunks in the caller's task.
    pub async fn range(&self, query: RangeQuery, hints: ReadHints) -> Result<RangeAnswer, KvError> {
        match self.start(query.clone(), hints).await? {
            Start::Whole(answer) => Ok(answer),
            Start::Long(long) => long.collect(&query).await,
        }
    }

    pub async fn start(&self, query: RangeQuery, hints: ReadHints) -> Result<Start, KvError> {
        let alive = Arc::new(());
        let (answer, answered) = oneshot::channel();
        let (owner, answer) = (Arc::downgrade(&alive), Respond::One(answer));
        let request = Request::Read { query, hints, owner, answer };
        Ok(match self.send(request, answered).await?? {
            Started::Whole(answer) => Start::Whole(answer),
            Started::Long { header, count, first, cursor } => Start::Long(LongRead {
                header,
                count,
                first,
                pin: cursor.map(|cursor| Pin { handle: self.clone(), cursor, _alive: alive }),
            }),
        })
    }

    pub async fn watch(&self) -> Result<WatchStream, KvError> {
        let (wake, alive) = (Arc::new(Notify::new()), Arc::new(()));
        let (notify, owner) = (wake.clone(), Arc::downgrade(&alive));
        let id = self.call(call::OpenWatches { wake: notify, owner }).await?;
        Ok(WatchStream { handle: self.clone(), id, wake, _alive: alive })
    }

    pub async fn feed(&self, wanted: FeedWanted) -> Result<(FeedStream, FeedMessages), KvError> {
        let (to, pushed) = mpsc::channel(WAITING_MAX);
        let id = self.call_visible(call::OpenFeed { wanted, to }).await??;
        Ok((FeedStream { handle: self.clone(), id }, FeedMessages { handle: self.clone(), id, pushed }))
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    pub async fn current(&self) -> Result<Revision, KvError> {
        self.call(call::Current {}).await
    }
}

/// A call without an answer.
fn unanswered(call: impl CoreCall) -> Call {
    call.named(To::Nowhere).0
}

/// The beginning of a read.
pub enum Start {
    Whole(RangeAnswer),
    Long(LongRead),
}

/// A read in key order at one revision, produced in chunks. It ends where there is no further key, whatever the count
/// was. Dropping it ends it.
pub struct LongRead {
    pub header: Revision,
    /// The number of keys in the range; also tells how much room the answer may need.
    pub count: u64,
    first: Vec<Version>,
    pin: Option<Pin>,
}

/// The resources that the loop holds for a long read. Dropping it tells the loop to release them.
struct Pin {
    handle: Handle,
    cursor: CursorId,
    _alive: Arc<()>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let cursor = self.cursor;
        // If the queue is full, the loop's sweep closes it.
        let _ = self.handle.requests.try_send(Request::Call(unanswered(call::CloseRead { cursor })));
    }
}

impl LongRead {
    /// Reads what the query is about, and brings it into its order.
    async fn collect(mut self, query: &RangeQuery) -> Result<RangeAnswer, KvError> {
        let enough = read::enough(query);
        let mut kvs = Vec::new();
        while kvs.len() < enough && !self.is_done() {
            let chunk = self.next().await?;
            kvs.extend(chunk.into_iter().filter(|kv| read::passes(&query.filter, kv)));
        }
        let (kvs, more) = read::finish(query, kvs);
        Ok(RangeAnswer { header: self.header, kvs, more, count: self.count, contents: query.contents })
    }

    /// Whether every key was returned; otherwise at least one is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.first.is_empty() && self.pin.is_none()
    }

    /// The next keys; empty at the end.
    pub async fn next(&mut self) -> Result<Vec<Version>, KvError> {
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            return Ok(first);
        }
        let Some(pin) = &self.pin else { return Ok(Vec::new()) };
        let (answer, answered) = oneshot::channel();
        let (chunk, done) =
            pin.handle.send(Request::Chunk { cursor: pin.cursor, answer }, answered).await??;
        if done || chunk.is_empty() {
            self.pin = None;
        }
        Ok(chunk)
    }
}

/// A client's watch stream. Dropping it frees its watches.
pub struct WatchStream {
    handle: Handle,
    id: StreamId,
    wake: Arc<Notify>,
    _alive: Arc<()>,
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let close = unanswered(call::CloseWatches { stream: self.id });
        // If the queue is full, the loop's sweep closes it.
        let _ = self.handle.requests.try_send(Request::Call(close));
    }
}

impl WatchStream {
    /// Notified when there may be something to pull.
    pub fn woken(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Adds a watch. A refusal comes with the current revision, for its header.
    pub async fn create(&self, spec: WatchSpec) -> Result<Result<WatchId, (KvError, Revision)>, KvError> {
        self.handle.call(call::CreateWatch { stream: self.id, spec }).await
    }

    /// Cancels a watch. Returns whether it existed.
    pub async fn cancel(&self, watch: WatchId) -> Result<bool, KvError> {
        self.handle.call(call::CancelWatch { stream: self.id, watch }).await
    }

    pub async fn progress(&self) -> Result<(), KvError> {
        self.handle.call(call::AskProgress { stream: self.id }).await
    }

    /// The next messages, about `bytes_max`.
    pub async fn pull(&self, bytes_max: usize) -> Result<Vec<WatchOut>, KvError> {
        let (answer, answered) = oneshot::channel();
        self.handle.send(Request::Pull { stream: self.id, bytes_max, answer }, answered).await
    }
}

/// A router's feed. Dropping it closes it.
pub struct FeedStream {
    handle: Handle,
    id: FeedId,
}

impl Drop for FeedStream {
    fn drop(&mut self) {
        let close = unanswered(call::CloseFeed { feed: self.id });
        // If the queue is full, the loop's sweep closes it.
        let _ = self.handle.requests.try_send(Request::Late(close));
    }
}

impl FeedStream {
    /// Raises the ranges; the answer is a watermark in the feed.
    pub async fn advance(&self, to: Revision) -> Result<(), KvError> {
        // Without ranges: the answer comes in the feed, and only the clock must be able to reach the revision.
        let raise = Raise { ranges: Vec::new(), to, generation: None };
        let late = unanswered(call::AdvanceFeed { feed: self.id, to });
        self.handle.requests.send(Request::Raised { raise, late }).await.map_err(|_| KvError::Stopped)
    }
}

/// The messages of a feed, as they come.
pub struct FeedMessages {
    handle: Handle,
    id: FeedId,
    pushed: mpsc::Receiver<Pushed>,
}

impl FeedMessages {
    /// The next message; `None` when the feed is closed.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<FeedOut>> {
        self.pushed.poll_recv(cx).map(|pushed| {
            let Pushed { out, is_last } = pushed?;
            if is_last {
                self.resume();
            }
            Some(out)
        })
    }

    fn resume(&self) {
        let request = Request::ResumeFeed(self.id);
        if let Err(mpsc::error::TrySendError::Full(request)) = self.handle.requests.try_send(request) {
            let requests = self.handle.requests.clone();
            // If the loop has ended, there is nothing to resume.
            tokio::spawn(async move { drop(requests.send(request).await) });
        }
    }
}
