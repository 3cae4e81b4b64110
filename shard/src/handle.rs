//! The interface to the apply loop: a cheap handle with a method per request.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use kindred_engine::{
    engine::{FeedId, FeedOut, StreamId, WatchId, WatchOut, WatchSpec},
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery},
    version::Version,
};
use kindred_partition_config::ids::Revision;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    apply_loop::{self, Batched, Raise, Refusing, Request, Respond},
    core::{
        Call, Core, CursorId, FeedWanted, Started,
        feeds::{Pushed, WAITING_MAX},
    },
    durability::Logs,
    etcd_status::KvError,
    read,
    read_hints::ReadHints,
};

/// A handle to the apply loop.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    refusing: Refusing,
}

/// Starts the loop; see `apply_loop::spawn`.
pub fn spawn(
    core: Core,
    logs: Logs,
    progress_interval: Duration,
    stop: CancellationToken,
) -> (Handle, JoinHandle<()>) {
    let (requests, refusing, apply_loop) = apply_loop::spawn(core, logs, progress_interval, stop);
    (Handle { requests, refusing }, apply_loop)
}

impl Handle {
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
        let (answer, answered) = oneshot::channel();
        self.send(Request::Apply { op, hints, answer: Respond::One(answer) }, answered).await?
    }

    /// Sends operations that came in one message. Each is answered through its reply, even when the loop has ended.
    pub(crate) async fn batch(&self, ops: Vec<Batched>) {
        // On an error the operations are dropped, which answers them.
        let _ = self.requests.send(Request::Batch(ops)).await;
    }

    /// Runs a call once everything before it, its own batch included, is published. Its changes are as durable as they
    /// must be before the answer comes.
    pub async fn call_visible<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Late(answering(call, answer)), answered).await
    }

    /// Runs a call whose answer depends on more than its own changes: the answer comes when everything executed so far
    /// is visible and as durable as it must be.
    pub(crate) async fn call_durable<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        let call = move |core: &mut Core| {
            let result = call(core);
            core.when_durable(Box::new(move |_| Box::new(move || drop(answer.send(result)))));
        };
        self.call(call).await?;
        answered.await.map_err(|_| KvError::Stopped)
    }

    /// Raises ranges and runs a call once the raise is visible, even in a Kind whose writes wait for the disk.
    pub(crate) async fn call_raised<T: Send + 'static>(
        &self,
        raise: Raise,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Raised { raise, late: answering(call, answer) }, answered).await
    }

    /// Runs a call when everything applied is published and on disk, and before anything else is executed.
    pub async fn call_flushed<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        let call = move |core: Result<&mut Core, KvError>| -> Box<dyn FnOnce() + Send> {
            let result = core.map(call);
            Box::new(move || drop(answer.send(result)))
        };
        self.send(Request::Flushed(Box::new(call)), answered).await?
    }

    /// The same in two steps, if `first` returns no answer: `second` runs when what `first` logged is on disk, and
    /// nothing is executed between them.
    pub(crate) async fn call_flushed_twice<T: Send + 'static>(
        &self,
        first: impl FnOnce(&mut Core) -> Option<T> + Send + 'static,
        second: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        let call = move |core: Result<&mut Core, KvError>| -> Box<dyn FnOnce() + Send> {
            let core = match core {
                Ok(core) => core,
                Err(refused) => return Box::new(move || drop(answer.send(Err(refused)))),
            };
            if let Some(result) = first(core) {
                return Box::new(move || drop(answer.send(Ok(result))));
            }
            core.again_when_flushed(Box::new(move |core| {
                let result = core.map(second);
                Box::new(move || drop(answer.send(result)))
            }));
            Box::new(|| {})
        };
        self.send(Request::Flushed(Box::new(call)), answered).await?
    }

    /// Compacts. Answers once no pin is below `at` and, if `physical`, the memory is free.
    pub async fn compact(&self, at: Revision, physical: bool) -> Result<Revision, KvError> {
        let (answer, answered) = oneshot::channel();
        self.call(move |core| core.compact(at, physical, answer)).await?;
        answered.await.map_err(|_| KvError::Stopped)?
    }

    /// Runs a call on the loop; the answer comes once its batch is visible. For rare calls, since it allocates. The
    /// call must return at once.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Call(answering(call, answer)), answered).await
    }

    /// Executes a whole read; a long one is collected in chunks in the caller's task.
    pub async fn range(&self, query: RangeQuery, hints: ReadHints) -> Result<RangeAnswer, KvError> {
        let mut long = match self.start(query.clone(), hints).await? {
            Start::Whole(answer) => return Ok(answer),
            Start::Long(long) => long,
        };
        let enough = read::enough(&query);
        let mut kvs = Vec::new();
        while kvs.len() < enough && !long.is_done() {
            let chunk = long.next().await?;
            kvs.extend(chunk.into_iter().filter(|kv| read::passes(&query.filter, kv)));
        }
        let (kvs, more) = read::finish(&query, kvs);
        Ok(RangeAnswer { header: long.header, kvs, more, count: long.count, contents: query.contents })
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
        let id = self.call(move |core| core.watch_open(notify, owner)).await?;
        Ok(WatchStream { handle: self.clone(), id, wake, _alive: alive })
    }

    pub(crate) async fn feed(&self, wanted: FeedWanted) -> Result<(FeedStream, FeedMessages), KvError> {
        let (to, pushed) = mpsc::channel(WAITING_MAX);
        let id = self.call_visible(move |core| core.feed_open(wanted, to)).await??;
        Ok((FeedStream { handle: self.clone(), id }, FeedMessages { handle: self.clone(), id, pushed }))
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    pub async fn current(&self) -> Result<Revision, KvError> {
        self.call(|core| core.engine.current_all()).await
    }
}

/// A call whose result is sent when the loop allows it.
fn answering<T: Send + 'static>(
    call: impl FnOnce(&mut Core) -> T + Send + 'static,
    answer: oneshot::Sender<T>,
) -> Call {
    Box::new(move |core| {
        let result = call(core);
        Box::new(move || drop(answer.send(result)))
    })
}

/// A call without an answer.
fn closing(close: impl FnOnce(&mut Core) + Send + 'static) -> Call {
    Box::new(move |core| {
        close(core);
        Box::new(|| {})
    })
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
        let _ = self.handle.requests.try_send(Request::Call(closing(move |core| core.close(cursor))));
    }
}

impl LongRead {
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
        let id = self.id;
        // If the queue is full, the loop's sweep closes it.
        let _ = self.handle.requests.try_send(Request::Call(closing(move |core| core.watch_close(id))));
    }
}

impl WatchStream {
    /// Notified when there may be something to pull.
    pub fn woken(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Adds a watch. A refusal comes with the current revision, for its header.
    pub async fn create(&self, spec: WatchSpec) -> Result<Result<WatchId, (KvError, Revision)>, KvError> {
        let id = self.id;
        self.handle
            .call(move |core| {
                let created = core.engine.watch_create(id, spec);
                created.map_err(|error| (error.into(), core.engine.current_all()))
            })
            .await
    }

    /// Cancels a watch. Returns whether it existed.
    pub async fn cancel(&self, watch: WatchId) -> Result<bool, KvError> {
        let id = self.id;
        self.handle.call(move |core| core.engine.watch_cancel(id, watch)).await
    }

    pub async fn progress(&self) -> Result<(), KvError> {
        let id = self.id;
        self.handle.call(move |core| core.engine.watch_progress(id)).await
    }

    /// The next messages, about `bytes_max`.
    pub async fn pull(&self, bytes_max: usize) -> Result<Vec<WatchOut>, KvError> {
        let (answer, answered) = oneshot::channel();
        self.handle.send(Request::Pull { stream: self.id, bytes_max, answer }, answered).await
    }
}

/// A router's feed. Dropping it closes it.
pub(crate) struct FeedStream {
    handle: Handle,
    id: FeedId,
}

impl Drop for FeedStream {
    fn drop(&mut self) {
        let id = self.id;
        // If the queue is full, the loop's sweep closes it.
        let _ = self.handle.requests.try_send(Request::Late(closing(move |core| core.feed_close(id))));
    }
}

impl FeedStream {
    /// Raises the ranges; the answer is a watermark in the feed.
    pub(crate) async fn advance(&self, to: Revision) -> Result<(), KvError> {
        let id = self.id;
        // Without ranges: the answer comes in the feed, and only the clock must be able to reach the revision.
        let raise = Raise { ranges: Vec::new(), to, generation: None };
        let late = closing(move |core| core.feed_advance(id, to));
        self.handle.requests.send(Request::Raised { raise, late }).await.map_err(|_| KvError::Stopped)
    }
}

/// The messages of a feed, as they come.
pub(crate) struct FeedMessages {
    handle: Handle,
    id: FeedId,
    pushed: mpsc::Receiver<Pushed>,
}

impl FeedMessages {
    /// The next message; `None` when the feed is closed.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<FeedOut>> {
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
