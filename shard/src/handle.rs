//! How everybody else talks to the apply loop: one cheap handle with a method for each request.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use kindred_engine::{
    engine::{FeedId, FeedOut, StreamId, WatchId, WatchOut, WatchSpec},
    ops::{Op, OpAnswer, RangeAnswer, RangeQuery},
    version::Version,
};
use kindred_partition_config::ids::Revision;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    apply_loop::{Batched, Call, Raise, Request, Respond},
    core::{
        Core, CursorId, FeedWanted, Started,
        feeds::{Pushed, WAITING_MAX},
    },
    etcd_status::KvError,
    read,
    wish::Wish,
};

/// A handle on the apply loop.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    refusing: Refusing,
}

/// What the loop refuses, as it found at its last look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusing(Arc<Mutex<Option<&'static str>>>);

impl Refusing {
    pub(crate) fn set(&self, what: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    fn get(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    pub(crate) fn new(requests: mpsc::Sender<Request>, refusing: Refusing) -> Self {
        Self { requests, refusing }
    }

    /// What is refused, and why; `None` when nothing is.
    #[must_use]
    pub fn refuses(&self) -> Option<&'static str> {
        self.refusing.get()
    }

    async fn send<T>(&self, request: Request, answer: oneshot::Receiver<T>) -> Result<T, KvError> {
        self.requests.send(request).await.map_err(|_| KvError::Stopped)?;
        answer.await.map_err(|_| KvError::Stopped)
    }

    /// A write, or a txn; its revision is above the one wished for if the clock may follow.
    pub async fn apply(&self, op: Op, wish: Wish) -> Result<OpAnswer, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Apply { op, wish, answer: Respond::One(answer) }, answered).await?
    }

    /// Operations that came in one message. Each is answered where its reply says, also when the loop has ended.
    pub(crate) async fn batch(&self, ops: Vec<Batched>) {
        // What is not taken is dropped, which answers.
        let _ = self.requests.send(Request::Batch(ops)).await;
    }

    /// Runs something once everything before it, and in the same batch, is published; what it changes is on disk before
    /// it is answered, where it must be.
    pub async fn call_visible<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Late(answering(call, answer)), answered).await
    }

    /// Runs something whose answer says that more has happened than it did itself: it comes when all that was executed by
    /// then is on disk where it must be, and visible.
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

    /// Raises ranges and runs something once that is visible: also in a Kind whose writes wait for the disk.
    pub(crate) async fn call_raised<T: Send + 'static>(
        &self,
        raise: Raise,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Raised { raise, late: answering(call, answer) }, answered).await
    }

    /// Runs something when everything that was applied is published and on disk, and before anything else is.
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

    /// The same in two steps where the first one has no answer yet: the second one runs when what the first one logged is on
    /// disk, and nothing is executed between them.
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

    /// Compacts; answers once nothing is held below `at` any more and, if `physical`, its memory is free.
    pub async fn compact(&self, at: Revision, physical: bool) -> Result<Revision, KvError> {
        let (answer, answered) = oneshot::channel();
        self.call(move |core| core.compact(at, physical, answer)).await?;
        answered.await.map_err(|_| KvError::Stopped)?
    }

    /// Runs something on the loop; the answer comes once its batch is visible. For what is rare: it costs allocations,
    /// and it must return at once.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Result<T, KvError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Call(answering(call, answer)), answered).await
    }

    /// A whole read; long ones are collected chunk by chunk here, in the caller's task.
    pub async fn range(&self, query: RangeQuery, wish: Wish) -> Result<RangeAnswer, KvError> {
        let mut long = match self.start(query.clone(), wish).await? {
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

    /// Begins a read.
    pub async fn start(&self, query: RangeQuery, wish: Wish) -> Result<Start, KvError> {
        let alive = Arc::new(());
        let (answer, answered) = oneshot::channel();
        let (owner, answer) = (Arc::downgrade(&alive), Respond::One(answer));
        let request = Request::Read { query, wish, owner, answer };
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

    /// Opens a client's watch stream.
    pub async fn watch(&self) -> Result<WatchStream, KvError> {
        let (wake, alive) = (Arc::new(Notify::new()), Arc::new(()));
        let (notify, owner) = (wake.clone(), Arc::downgrade(&alive));
        let id = self.call(move |core| core.watch_open(notify, owner)).await?;
        Ok(WatchStream { handle: self.clone(), id, wake, _alive: alive })
    }

    /// Opens a feed.
    pub(crate) async fn feed(&self, wanted: FeedWanted) -> Result<(FeedStream, FeedMessages), KvError> {
        let (to, pushed) = mpsc::channel(WAITING_MAX);
        let id = self.call_visible(move |core| core.feed_open(wanted, to)).await??;
        Ok((FeedStream { handle: self.clone(), id }, FeedMessages { handle: self.clone(), id, pushed }))
    }

    /// Whether the loop still takes requests.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    /// The current revision of the whole shard.
    pub async fn current(&self) -> Result<Revision, KvError> {
        self.call(|core| core.engine.current_all()).await
    }
}

/// A call whose result is sent once it may be told.
fn answering<T: Send + 'static>(
    call: impl FnOnce(&mut Core) -> T + Send + 'static,
    answer: oneshot::Sender<T>,
) -> Call {
    Box::new(move |core| {
        let result = call(core);
        Box::new(move || drop(answer.send(result)))
    })
}

/// A call that nobody waits for.
fn closing(close: impl FnOnce(&mut Core) + Send + 'static) -> Call {
    Box::new(move |core| {
        close(core);
        Box::new(|| {})
    })
}

/// How a read began.
pub enum Start {
    /// It is answered.
    Whole(RangeAnswer),
    /// It goes on.
    Long(LongRead),
}

/// A read in key order, produced chunk by chunk at one revision. It ends where there is no further key, whatever was
/// counted. Dropping it ends it.
pub struct LongRead {
    /// The header's revision.
    pub header: Revision,
    /// All keys of the range; for the answer, and for how much room it may need.
    pub count: u64,
    first: Vec<Version>,
    pin: Option<Pin>,
}

/// What the loop holds for a long read; the loop forgets it when this is dropped.
struct Pin {
    handle: Handle,
    cursor: CursorId,
    _alive: Arc<()>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let cursor = self.cursor;
        // With a full queue the loop's sweep finds it.
        let _ = self.handle.requests.try_send(Request::Call(closing(move |core| core.close(cursor))));
    }
}

impl LongRead {
    /// Whether every key was given; otherwise there is at least one more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.first.is_empty() && self.pin.is_none()
    }

    /// The next keys; none at the end.
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

/// A client's watch stream; dropping it frees its watches.
pub struct WatchStream {
    handle: Handle,
    id: StreamId,
    wake: Arc<Notify>,
    _alive: Arc<()>,
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let id = self.id;
        // With a full queue the loop's sweep finds it.
        let _ = self.handle.requests.try_send(Request::Call(closing(move |core| core.watch_close(id))));
    }
}

impl WatchStream {
    /// Resolves when there may be something to pull.
    pub fn woken(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Adds a watch; on a refusal also the current revision, for the header of the refusal.
    pub async fn create(&self, spec: WatchSpec) -> Result<Result<WatchId, (KvError, Revision)>, KvError> {
        let id = self.id;
        self.handle
            .call(move |core| {
                let created = core.engine.watch_create(id, spec);
                created.map_err(|error| (error.into(), core.engine.current_all()))
            })
            .await
    }

    /// Ends a watch; whether there was one.
    pub async fn cancel(&self, watch: WatchId) -> Result<bool, KvError> {
        let id = self.id;
        self.handle.call(move |core| core.engine.watch_cancel(id, watch)).await
    }

    /// Asks for a manual progress.
    pub async fn progress(&self) -> Result<(), KvError> {
        let id = self.id;
        self.handle.call(move |core| core.engine.watch_progress(id)).await
    }

    /// What there is to say, about `bytes_max` of it.
    pub async fn pull(&self, bytes_max: usize) -> Result<Vec<WatchOut>, KvError> {
        let (answer, answered) = oneshot::channel();
        self.handle.send(Request::Pull { stream: self.id, bytes_max, answer }, answered).await
    }
}

/// A router's feed; dropping it frees its place.
pub(crate) struct FeedStream {
    handle: Handle,
    id: FeedId,
}

impl Drop for FeedStream {
    fn drop(&mut self) {
        let id = self.id;
        // With a full queue the loop's sweep finds it.
        let _ = self.handle.requests.try_send(Request::Late(closing(move |core| core.feed_close(id))));
    }
}

impl FeedStream {
    /// Raises the ranges; the answer is a watermark in the feed.
    pub(crate) async fn advance(&self, to: Revision) -> Result<(), KvError> {
        let id = self.id;
        // No range: the answer is in the feed, and only the clock must be able to come there.
        let raise = Raise { ranges: Vec::new(), to, generation: None };
        let late = closing(move |core| core.feed_advance(id, to));
        self.handle.requests.send(Request::Raised { raise, late }).await.map_err(|_| KvError::Stopped)
    }
}

/// What a feed has to say, as it comes.
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
            // A loop that has ended resumes nothing.
            tokio::spawn(async move { drop(requests.send(request).await) });
        }
    }
}
