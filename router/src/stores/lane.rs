//! The stream of batches to a shard: small operations of all clients leave together, and their answers come back in
//! whatever order they are ready. Which leave when, and whose an answer is, decides [`Outbox`].
//!
//! Nothing waits for company: the connection takes what is there whenever it can send, so that batches grow with the load
//! alone. The stream is opened by the first operation and again after every end. One that ends in good order says which
//! operations it did not read; of any other end nobody knows about those that had left (R11).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::Stream;
use kindred_partition_config::ids::Revision;
use kindred_proto::raw::batches::batches_client::BatchesClient;
use kindred_router_core::outbox::{BatchLimit, OpId, Outbox};
use kindred_transport::connect::RouterChannel as Channel;
use kindred_wire::batch::{Answer, BatchOp, Method, Refusal, put_cancel, read_response};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};

use super::failure::Failure;

/// One message, at most.
const MESSAGE: BatchLimit = BatchLimit { ops: 256, bytes: 128 << 10 };
/// Operations that wait or are under way, each counted once for every begun [`UNIT_BYTES`]. Others wait for room, in turn.
const UNITS_MAX: usize = 8192;
const UNIT_BYTES: usize = 4 << 10;

/// An operation.
#[derive(Debug)]
pub struct Op {
    /// What it is.
    pub method: Method,
    /// The client's own message.
    pub request: Bytes,
    /// As a call's metadata has it; zero for no wish.
    pub at_least: Revision,
    /// Of the map; zero = not checked.
    pub generation: u64,
    /// As a call's metadata has it; zero for none.
    pub pin: u64,
    /// When its client waits no longer.
    pub until: Instant,
}

/// Why there is no answer from the shard.
#[derive(Debug)]
pub enum LaneError {
    /// As for a call of its own.
    Failed(Failure),
    /// The shard has no such stream; nothing was executed.
    Unsupported,
}

type Answered = Result<Bytes, LaneError>;

/// The stream to one shard. When it is dropped nobody waits for an answer, and the stream is ended.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    room: Semaphore,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to open a stream for, or the lane is gone.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    outbox: Outbox<Op, oneshot::Sender<Answered>>,
    /// The stream that takes from it; none while none is open.
    stream: Option<u64>,
    streams: u64,
    /// Takes the next message.
    connection: Option<Waker>,
    gone: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// A lane over this channel. It needs a tokio runtime, and connects at its first operation.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        let shared = Arc::new(Shared::default());
        tokio::spawn(run(shared.clone(), channel));
        Self { shared, room: Semaphore::new(UNITS_MAX) }
    }

    /// Sends an operation, and gives the shard's answer. When the future is dropped the operation is cancelled: it is not
    /// sent any more, or the shard is told.
    ///
    /// # Errors
    /// See [`LaneError`].
    pub async fn call(&self, op: Op) -> Answered {
        let units = op.request.len() / UNIT_BYTES + 1;
        let units = u32::try_from(units.min(UNITS_MAX)).unwrap_or(u32::MAX);
        let _room = self.room.acquire_many(units).await.map_err(|_| lost("the lane is closed"))?;
        let (waiter, answered) = oneshot::channel();
        let id = self.push(op, waiter);
        let mut waiting = Waiting { lane: self, id: Some(id) };
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

impl Drop for Lane {
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

/// Cancels the operation that is not answered when it is dropped.
struct Waiting<'l> {
    lane: &'l Lane,
    id: Option<OpId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let connection = {
            let mut state = self.lane.shared.state();
            if state.outbox.cancel(id) { state.connection.take() } else { None }
        };
        connection.into_iter().for_each(Waker::wake);
    }
}

fn lost(reason: &str) -> LaneError {
    LaneError::Failed(Failure::Lost(reason.to_owned()))
}

/// The messages of one stream.
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
        at_least: op.at_least.get(),
        generation: op.generation,
        // None is no limit.
        timeout_micros: u64::try_from(left).unwrap_or(u64::MAX).max(1),
        request: &op.request,
        pin: op.pin,
    }
}

/// Opens a stream whenever there is something to send and none is open, until the lane is gone.
async fn run(shared: Arc<Shared>, channel: Channel) {
    // Nothing up to this is a present stream's.
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
                        // The shard stops: it answers what it has read, and the next stream goes elsewhere.
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

/// The answers of one stream.
struct Incoming {
    shared: Arc<Shared>,
    /// Its operations are behind this one.
    after: OpId,
    /// Up to this one, once the shard has said that it stops.
    last: Option<OpId>,
}

impl Incoming {
    /// Gives answers to who waits for them. Ends well when the shard has said that it reads no more, once.
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
                        given.push((waiter, Err(LaneError::Failed(Failure::Answered(status(&refusal))))));
                    }
                }
                Answer::Last(last) => {
                    self.last = Some(last);
                    // What still waits goes over the next stream.
                    state.close();
                    for waiter in state.outbox.unanswered(last.max(self.after), OpId::MAX) {
                        let reason = "the shard stops and has not read it".to_owned();
                        given.push((waiter, Err(LaneError::Failed(Failure::NotSent(reason)))));
                    }
                }
            })
        };
        for (waiter, answer) in given {
            // Who is gone does not want it.
            let _ = waiter.send(answer);
        }
        if self.last.is_some() {
            self.shared.news.notify_one();
        }
        read
    }

    /// The stream was not opened: nothing of it was executed, unless the connection was lost on the way.
    fn refused(self, status: Status) {
        let unsupported = status.code() == Code::Unimplemented;
        match Failure::of(status) {
            Failure::Answered(_) if unsupported => {
                self.fail(|_| LaneError::Unsupported);
            }
            Failure::Answered(status) => {
                self.fail(|_| LaneError::Failed(Failure::Answered(status.clone())));
            }
            Failure::NotConnected(reason) => self.fail(|left| {
                let reason = reason.clone();
                LaneError::Failed(if left { Failure::Lost(reason) } else { Failure::NotConnected(reason) })
            }),
            Failure::NotSent(reason) | Failure::Lost(reason) => self.lose(&reason),
        }
    }

    /// The stream is over; what was read of it and not answered may have been executed.
    fn broken(self, status: Option<Status>) {
        let reason = status.map_or_else(
            || "the shard has ended the stream".to_owned(),
            |status| Failure::of(status).reason().to_owned(),
        );
        match self.last {
            // A later stream has what was not sent.
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
            LaneError::Failed(if left { Failure::Lost(reason) } else { Failure::NotSent(reason) })
        });
    }

    /// Ends the present stream: `error` says of an operation that has left, or has not, what became of it.
    fn fail(self, error: impl Fn(bool) -> LaneError) {
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
    /// Nothing more is taken by the present stream.
    fn close(&mut self) {
        self.stream = None;
        self.outbox.forget_cancelled();
        // Its body ends when it is asked, or with its connection.
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
