//! The stream of batches to a shard. Small operations of all clients leave together, and their answers come back in
//! whatever order they are ready. [`Outbox`] decides which operations leave when, and matches answers to them.
//!
//! No operation waits for company: whenever the connection can send, it takes what is there, so batches grow only with
//! the load. The first operation opens the stream, and opens another after each end. A stream that ends in good order
//! says which operations the shard did not read; after any other end, operations that had left may have been executed
//! (R11).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::Stream;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_proto::raw::batches::batches_client::BatchesClient;
use kindred_router_core::outbox::{BatchLimit, OpId, Outbox};
use kindred_transport::connect::RouterChannel as Channel;
use kindred_wire::batch::{Answer, BatchOp, Method, Refusal, put_cancel, read_response};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};

use super::failure::Failure;

/// The limits of one message.
const MESSAGE: BatchLimit = BatchLimit { ops: 256, bytes: 128 << 10 };
/// Operations that wait or are under way, each counted once per begun [`UNIT_BYTES`] of its request; further ones wait
/// for room in turn.
const UNITS_MAX: usize = 8192;
const UNIT_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub struct Op {
    pub method: Method,
    /// The request as the client sent it.
    pub request: Bytes,
    /// The revision at or above which the shard should answer; zero for none.
    pub min_revision: Revision,
    /// The generation of the map; zero if the shard need not check it.
    pub generation: Epoch,
    /// The id of the pin to set; zero for none.
    pub pin: u64,
    /// The client's deadline.
    pub until: Instant,
}

/// Why the shard gave no answer.
#[derive(Debug)]
pub enum BatchStreamError {
    /// Classified as for a unary call.
    Failed(Failure),
    /// The shard does not serve batches; nothing was executed.
    Unsupported,
}

type Answered = Result<Bytes, BatchStreamError>;

/// The stream of batches to one shard. Dropping it ends the stream.
#[derive(Debug)]
pub struct BatchStream {
    shared: Arc<Shared>,
    room: Semaphore,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the task that opens streams: an operation waits, or the stream was dropped.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    outbox: Outbox<Op, oneshot::Sender<Answered>>,
    /// The number of the open stream, which takes operations from the outbox; `None` while none is open.
    stream: Option<u64>,
    streams: u64,
    /// Wakes the open stream to take the next message.
    connection: Option<Waker>,
    gone: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BatchStream {
    /// A batch stream over this channel. Needs a tokio runtime; connects at the first operation.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        let shared = Arc::new(Shared::default());
        tokio::spawn(run(shared.clone(), channel));
        Self { shared, room: Semaphore::new(UNITS_MAX) }
    }

    /// Sends an operation and returns the shard's answer. Dropping the future cancels the operation: it is removed if
    /// it has not left yet, else the shard is told.
    ///
    /// # Errors
    /// See [`BatchStreamError`].
    pub async fn call(&self, op: Op) -> Answered {
        let units = op.request.len() / UNIT_BYTES + 1;
        let units = u32::try_from(units.min(UNITS_MAX)).unwrap_or(u32::MAX);
        let _room = self.room.acquire_many(units).await.map_err(|_| lost("the stream is closed"))?;
        let (waiter, answered) = oneshot::channel();
        let id = self.push(op, waiter);
        let mut waiting = Waiting { stream: self, id: Some(id) };
        let answer = answered.await;
        waiting.id = None;
        answer.unwrap_or_else(|_| Err(lost("the stream of batches has failed")))
    }

    fn push(&self, op: Op, waiter: oneshot::Sender<Answered>) -> OpId {
        let (id, connection, opens) = {
            let mut state = self.shared.state();
            let id = state.outbox.push(op, waiter);
            (id, state.connection.take(), state.stream.is_none())
        };
        if opens {
            self.shared.news.notify_one();
        }
        connection.into_iter().for_each(Waker::wake);
        id
    }
}

impl Drop for BatchStream {
    fn drop(&mut self) {
        let connection = {
            let mut state = self.shared.state();
            state.gone = true;
            state.connection.take()
        };
        self.shared.news.notify_one();
        connection.into_iter().for_each(Waker::wake);
    }
}

/// Cancels an unanswered operation when it is dropped.
struct Waiting<'l> {
    stream: &'l BatchStream,
    id: Option<OpId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let connection = {
            let mut state = self.stream.shared.state();
            if state.outbox.cancel(id) { state.connection.take() } else { None }
        };
        connection.into_iter().for_each(Waker::wake);
    }
}

fn lost(reason: &str) -> BatchStreamError {
    BatchStreamError::Failed(Failure::Lost(reason.to_owned()))
}

/// The outgoing messages of one stream.
struct Outgoing {
    shared: Arc<Shared>,
    stream: u64,
}

impl Stream for Outgoing {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.shared.state();
        if state.stream != Some(self.stream) {
            return Poll::Ready(None);
        }
        let Some(batch) = state.outbox.take(MESSAGE, |op| op.request.len()) else {
            if state.gone {
                return Poll::Ready(None);
            }
            if !state.connection.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.connection = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        drop(state);
        let now = Instant::now();
        let ops: Vec<_> = batch.ops.iter().map(|(id, op)| on_wire(*id, op, now)).collect();
        let bytes = ops.iter().map(BatchOp::field_len).sum::<usize>() + 11 * batch.cancelled.len();
        let mut message = Vec::with_capacity(bytes);
        batch.cancelled.iter().for_each(|id| put_cancel(&mut message, *id));
        ops.iter().for_each(|op| op.put(&mut message));
        Poll::Ready(Some(message.into()))
    }
}

fn on_wire(id: OpId, op: &Op, now: Instant) -> BatchOp<'_> {
    let left = op.until.saturating_duration_since(now).as_micros();
    BatchOp {
        id,
        method: op.method as i32,
        min_revision: op.min_revision.get(),
        generation: op.generation.0,
        // 0 would mean no limit.
        timeout_micros: u64::try_from(left).unwrap_or(u64::MAX).max(1),
        request: &op.request,
        pin: op.pin,
    }
}

/// Opens a stream whenever operations wait and none is open, until the [`BatchStream`] is dropped.
async fn run(shared: Arc<Shared>, channel: Channel) {
    // Operations up to this id belong to earlier streams.
    let mut settled = 0;
    loop {
        shared.news.notified().await;
        let stream = {
            let mut state = shared.state();
            if state.gone {
                return;
            }
            if !state.outbox.has_news() {
                continue;
            }
            state.streams += 1;
            state.stream = Some(state.streams);
            state.streams
        };
        let outgoing = Outgoing { shared: shared.clone(), stream };
        let client = BatchesClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let mut incoming = Incoming { shared: shared.clone(), after: settled, last: None };
        match client.clone().run(outgoing).await {
            Err(status) => incoming.refused(status),
            Ok(opened) => {
                let mut answers = opened.into_inner();
                match incoming.read(&mut answers).await {
                    Ok(()) => {
                        // The shard is stopping: it still answers the operations that it has read. The next stream is
                        // a new one.
                        settled = incoming.last.unwrap_or(settled).max(settled);
                        tokio::spawn(async move {
                            let end = incoming.read(&mut answers).await;
                            incoming.broken(end.err());
                        });
                    }
                    Err(broken) => incoming.broken(Some(broken)),
                }
            }
        }
    }
}

/// The incoming answers of one stream.
struct Incoming {
    shared: Arc<Shared>,
    /// The stream's operations have ids above this one.
    after: OpId,
    /// The last operation that the shard has read; set once it has announced that it stops.
    last: Option<OpId>,
}

impl Incoming {
    /// Delivers answers to their waiters. Returns `Ok` once, when the shard announces that it reads no more.
    async fn read(&mut self, answers: &mut Streaming<Bytes>) -> Result<(), Status> {
        let was_told = self.last.is_some();
        loop {
            let Some(message) = answers.message().await? else {
                return Err(Status::unavailable("the shard has ended the stream"));
            };
            self.take(&message).map_err(|error| Status::internal(error.to_string()))?;
            if self.last.is_some() && !was_told {
                return Ok(());
            }
        }
    }

    fn take(&mut self, message: &Bytes) -> Result<(), kindred_wire::scan::WireError> {
        let mut given = Vec::new();
        let read = {
            let mut state = self.shared.state();
            read_response(message, |answer| match answer {
                Answer::Response(id, response) => {
                    if let Some(waiter) = state.outbox.answered(id) {
                        given.push((waiter, Ok(message.slice_ref(response))));
                    }
                }
                Answer::Refused(id, refusal) => {
                    if let Some(waiter) = state.outbox.answered(id) {
                        given.push((
                            waiter,
                            Err(BatchStreamError::Failed(Failure::Answered(status(&refusal)))),
                        ));
                    }
                }
                Answer::Last(last) => {
                    self.last = Some(last);
                    // Operations that still wait go over the next stream.
                    state.close();
                    for waiter in state.outbox.unanswered(last.max(self.after), OpId::MAX) {
                        let reason = "the shard stops and has not read it".to_owned();
                        given.push((waiter, Err(BatchStreamError::Failed(Failure::NotSent(reason)))));
                    }
                }
            })
        };
        for (waiter, answer) in given {
            // The caller may be gone.
            let _ = waiter.send(answer);
        }
        if self.last.is_some() {
            self.shared.news.notify_one();
        }
        read
    }

    /// The stream was refused. Nothing was executed, unless the connection was lost.
    fn refused(self, status: Status) {
        let unsupported = status.code() == Code::Unimplemented;
        match Failure::of(status) {
            Failure::Answered(_) if unsupported => {
                self.fail(|_| BatchStreamError::Unsupported);
            }
            Failure::Answered(status) => {
                self.fail(|_| BatchStreamError::Failed(Failure::Answered(status.clone())));
            }
            Failure::NotConnected(reason) => self.fail(|left| {
                let reason = reason.clone();
                BatchStreamError::Failed(if left {
                    Failure::Lost(reason)
                } else {
                    Failure::NotConnected(reason)
                })
            }),
            Failure::NotSent(reason) | Failure::Lost(reason) => self.lose(&reason),
        }
    }

    /// The stream has ended; operations that the shard has read and not answered may have been executed.
    fn broken(self, status: Option<Status>) {
        let reason = status.map_or_else(
            || "the shard has ended the stream".to_owned(),
            |status| Failure::of(status).reason().to_owned(),
        );
        match self.last {
            // Operations behind `last` are handled by a later stream.
            Some(last) => {
                let waiters = self.shared.state().outbox.unanswered(self.after, last);
                for waiter in waiters {
                    let _ = waiter.send(Err(lost(&reason)));
                }
            }
            None => self.lose(&reason),
        }
    }

    fn lose(self, reason: &str) {
        self.fail(|left| {
            let reason = reason.to_owned();
            BatchStreamError::Failed(if left { Failure::Lost(reason) } else { Failure::NotSent(reason) })
        });
    }

    /// Ends the present stream. `error` is called for each of its operations with whether the operation had left.
    fn fail(self, error: impl Fn(bool) -> BatchStreamError) {
        let (left, unsent) = {
            let mut state = self.shared.state();
            state.close();
            (state.outbox.unanswered(self.after, OpId::MAX), state.outbox.unsent())
        };
        for (waiters, had_left) in [(left, true), (unsent, false)] {
            for waiter in waiters {
                let _ = waiter.send(Err(error(had_left)));
            }
        }
    }
}

impl State {
    /// Detaches the present stream, so that it takes no more operations.
    fn close(&mut self) {
        self.stream = None;
        self.outbox.forget_cancelled();
        // Wake the stream's body, so that it ends.
        self.connection.take().into_iter().for_each(Waker::wake);
    }
}

fn status(refusal: &Refusal<'_>) -> Status {
    let mut headers = http::HeaderMap::new();
    for (name, value) in &refusal.metadata {
        let name = http::HeaderName::from_bytes(name);
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    Status::with_details_and_metadata(
        Code::from_i32(refusal.code),
        String::from_utf8_lossy(refusal.message),
        Bytes::copy_from_slice(refusal.details),
        MetadataMap::from_headers(headers),
    )
}
