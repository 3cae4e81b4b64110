//! The answers of one stream of batches, on their way from the apply loop to the connection.
//!
//! The code that executes an operation holds its `Reply`, and every reply is given exactly once, even if it is
//! dropped. So all operations that were read and whose answers were not taken yet are counted, and bounded by reading
//! no more.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use kindred_engine::ops::OpAnswer;
use kindred_partition_config::ids::Revision;
use kindred_proto::shard_v1::RaiseSinceResponse;
use kindred_transport::metrics::calls::Calls;
use kindred_wire::batch::{Refusal, put_answer, put_last};
use prost::Message as _;
use tokio::{sync::Notify, time::Instant};
use tokio_stream::Stream;
use tonic::{Code, Status};

use crate::{
    encode::{self, ServerIds},
    etcd_status::{KvError, status},
};

/// Operations of one stream that may be read and not answered.
const OPS_MAX: usize = 4096;
/// Bytes of the requests of these operations.
const BYTES_MAX: usize = 16 << 20;
/// The size at which a message of answers is complete.
const MESSAGE_BYTES: usize = 128 << 10;
/// The room that a message has for each answer; most are of writes, and shorter.
const SHORT_BYTES: usize = 128;
/// Cancellations that are remembered. Those of operations that were just answered are never needed.
const CANCELLED_MAX: usize = 1024;

type Answered = Result<Given, Box<Status>>;

/// The content of an answer.
enum Given {
    Op(OpAnswer),
    Raised(RaiseSinceResponse),
    Released,
}

impl Given {
    fn put(&self, out: &mut Vec<u8>, ids: &ServerIds) {
        match self {
            Self::Op(answer) => encode::put_answer(out, ids, answer),
            Self::Raised(raised) => raised.encode_raw(out),
            // A message without fields.
            Self::Released => {}
        }
    }
}

/// The state of one stream; see the module's documentation.
#[derive(Default)]
pub(crate) struct Replies {
    state: Mutex<State>,
    /// Whether some operations may no longer be wanted.
    unwanted: AtomicBool,
    /// Notified when there is room again, or the connection is gone.
    changed: Notify,
}

#[derive(Default)]
struct State {
    ready: Vec<(u64, Answered)>,
    /// Operations that were read and whose answers the connection has not taken.
    open_ops: usize,
    /// Bytes of the requests that are not answered.
    open_bytes: usize,
    cancelled: BTreeSet<u64>,
    /// The last operation that was read, until the router is told of it.
    last: Option<u64>,
    /// How the stream ends once everything is answered; `None` while more may be read.
    end: Option<Result<(), Status>>,
    gone: bool,
    connection: Option<Waker>,
}

impl State {
    fn wake(&mut self) -> Option<Waker> {
        self.connection.take()
    }
}

impl Replies {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts operations that were read, and their bytes.
    pub(crate) fn begun(&self, ops: usize, bytes: usize) {
        let mut state = self.state();
        state.open_ops += ops;
        state.open_bytes += bytes;
    }

    /// Waits until more may be read; false when the connection is gone.
    pub(crate) async fn room(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.gone {
                    return false;
                }
                if state.open_ops < OPS_MAX && state.open_bytes < BYTES_MAX {
                    return true;
                }
            }
            changed.await;
        }
    }

    /// Notes that no client waits for an operation any more.
    pub(crate) fn cancel(&self, id: u64) {
        let mut state = self.state();
        if state.open_ops > 0 {
            state.cancelled.insert(id);
            if state.cancelled.len() > CANCELLED_MAX {
                state.cancelled.pop_first();
            }
            self.unwanted.store(true, Ordering::Release);
        }
    }

    /// Ends the reading. With `last`, the router is told that no later operation was read. The stream ends once all is
    /// answered.
    pub(crate) fn end(&self, last: Option<u64>, with: Result<(), Status>) {
        let wake = {
            let mut state = self.state();
            (state.last, state.end) = (last, Some(with));
            state.wake()
        };
        wake.into_iter().for_each(Waker::wake);
    }

    fn is_wanted(&self, id: u64) -> bool {
        if !self.unwanted.load(Ordering::Acquire) {
            return true;
        }
        let state = self.state();
        !state.gone && !state.cancelled.contains(&id)
    }

    fn answer(&self, id: u64, bytes: usize, answer: Answered) {
        let (wake, room) = {
            let mut state = self.state();
            let was_full = state.open_bytes >= BYTES_MAX;
            state.open_bytes -= bytes;
            let room = was_full && state.open_bytes < BYTES_MAX;
            if !state.cancelled.is_empty() {
                state.cancelled.remove(&id);
                let none = state.cancelled.is_empty() && !state.gone;
                self.unwanted.store(!none, Ordering::Release);
            }
            if state.gone {
                state.open_ops -= 1;
                return;
            }
            state.ready.push((id, answer));
            (state.wake(), room)
        };
        if room {
            self.changed.notify_waiters();
        }
        wake.into_iter().for_each(Waker::wake);
    }
}

/// The only answer of an operation. Dropped, it answers that the shard is stopping.
pub(crate) struct Reply {
    replies: Arc<Replies>,
    id: u64,
    bytes: usize,
    until: Option<Instant>,
    calls: Option<&'static Calls>,
    given: bool,
}

impl Reply {
    /// The reply to an operation counted by [`Replies::begun`] with its bytes; no client waits for it after `until`.
    pub(crate) fn new(
        replies: &Arc<Replies>,
        id: u64,
        bytes: usize,
        until: Option<Instant>,
        calls: Option<&'static Calls>,
    ) -> Self {
        calls.into_iter().for_each(Calls::started);
        Self { replies: replies.clone(), id, bytes, until, calls, given: false }
    }

    /// Whether a client still waits for it; otherwise the operation need not be executed.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until) && self.replies.is_wanted(self.id)
    }

    pub(crate) fn send(self, answer: Result<OpAnswer, KvError>) {
        match answer {
            Ok(answer) => self.give(Ok(Given::Op(answer))),
            Err(refused) => self.refuse(status(&refused)),
        }
    }

    /// Answers a raise with the current revision, and whether something changed.
    pub(crate) fn raised(self, raised: Result<(Revision, bool), KvError>) {
        match raised {
            Ok((current, changed)) => {
                self.give(Ok(Given::Raised(RaiseSinceResponse { current: current.get(), changed })));
            }
            Err(refused) => self.refuse(status(&refused)),
        }
    }

    /// Answers a release of pins.
    pub(crate) fn released(self) {
        self.give(Ok(Given::Released));
    }

    pub(crate) fn refuse(self, status: Status) {
        self.give(Err(Box::new(status)));
    }

    /// Counts the call as ended. Only whole calls have a time.
    fn count(&self, code: Code) {
        if let Some(calls) = self.calls {
            calls.handled(code, None);
        }
    }

    fn give(mut self, answer: Answered) {
        self.given = true;
        self.count(answer.as_ref().map_or_else(|status| status.code(), |_| Code::Ok));
        self.replies.answer(self.id, self.bytes, answer);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.given {
            self.count(Code::Unavailable);
            self.replies.answer(self.id, self.bytes, Err(Box::new(status(&KvError::Stopped))));
        }
    }
}

/// The messages of a stream: each has the answers that are ready when the connection asks for more.
pub struct Answers {
    replies: Arc<Replies>,
    ids: ServerIds,
    /// Taken in the order in which they became ready, and not yet in a message.
    taken: std::vec::IntoIter<(u64, Answered)>,
}

impl Answers {
    pub(crate) fn new(replies: Arc<Replies>, ids: ServerIds) -> Self {
        Self { replies, ids, taken: Vec::new().into_iter() }
    }

    fn message(&mut self, last: Option<u64>) -> Bytes {
        let mut message = Vec::with_capacity((self.taken.len() * SHORT_BYTES).min(MESSAGE_BYTES));
        last.iter().for_each(|last| put_last(&mut message, *last));
        while message.len() < MESSAGE_BYTES
            && let Some((id, answer)) = self.taken.next()
        {
            match answer {
                Ok(answer) => {
                    put_answer(&mut message, id, |out| answer.put(out, &self.ids));
                }
                Err(refused) => put_refusal(&mut message, id, &refused),
            }
        }
        message.into()
    }
}

fn put_refusal(message: &mut Vec<u8>, id: u64, status: &Status) {
    let headers = status.metadata().as_ref();
    Refusal {
        code: status.code() as i32,
        message: status.message().as_bytes(),
        details: status.details(),
        metadata: headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())).collect(),
    }
    .put(message, id);
}

impl Stream for Answers {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.taken.len() > 0 {
            return Poll::Ready(Some(Ok(this.message(None))));
        }
        let replies = this.replies.clone();
        let mut state = replies.state();
        let last = state.last.take();
        if state.ready.is_empty() && last.is_none() {
            return match state.end.clone() {
                Some(end) if state.open_ops == 0 => Poll::Ready(end.err().map(Err)),
                _ => {
                    if !state.connection.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                        state.connection = Some(cx.waker().clone());
                    }
                    Poll::Pending
                }
            };
        }
        let was_full = state.open_ops >= OPS_MAX;
        let room = state.ready.capacity();
        let ready = std::mem::replace(&mut state.ready, Vec::with_capacity(room.min(256)));
        state.open_ops -= ready.len();
        let has_room = was_full && state.open_ops < OPS_MAX;
        drop(state);
        if has_room {
            replies.changed.notify_waiters();
        }
        this.taken = ready.into_iter();
        Poll::Ready(Some(Ok(this.message(last))))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let mut state = self.replies.state();
        state.gone = true;
        state.open_ops -= state.ready.len();
        state.ready.clear();
        drop(state);
        self.replies.unwanted.store(true, Ordering::Release);
        self.replies.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
