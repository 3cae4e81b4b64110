//! What the loop is asked, and the answers that it holds back.

use std::sync::Weak;

use kindred_engine::{
    engine::{FeedId, PinId, StreamId, WatchOut},
    ops::{Op, OpAnswer, RangeQuery},
    version::Version,
};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    core::{Core, CursorId, Started},
    etcd_status::KvError,
    internal::RaiseSince,
    replies::Reply,
    wish::Wish,
};

/// What the loop is asked. Hot requests are variants; the rest runs as a closure.
pub(crate) enum Request {
    /// A write or a txn.
    Apply { op: Op, wish: Wish, answer: Respond<OpAnswer> },
    /// A read that may turn out to be long.
    Read { query: RangeQuery, wish: Wish, owner: Weak<()>, answer: Respond<Started> },
    /// Several of these that came in one message, in their order.
    Batch(Vec<Batched>),
    /// More of a long read.
    Chunk { cursor: CursorId, answer: oneshot::Sender<Result<LongChunk, KvError>> },
    /// What a watch stream has to say.
    Pull { stream: StreamId, bytes_max: usize, answer: oneshot::Sender<Vec<WatchOut>> },
    /// A feed's stream has room again.
    ResumeFeed(FeedId),
    /// Anything else; what it returns is called after the batch is published, and when what it changed is as durable as
    /// it must be.
    Call(Call),
    /// What is to see its whole batch: it runs when that is published.
    Late(Call),
    /// What is to see ranges at a revision or above: they are raised, and it runs when that is visible.
    Raised { raise: Raise, late: Call },
    /// What is to see everything published and on disk: nothing else is executed before it.
    Flushed(Flushed),
}

/// Some keys of a long read, and whether there are no more.
pub(crate) type LongChunk = (Vec<Version>, bool);

/// An operation of a batch.
pub(crate) struct Batched {
    pub call: BatchedCall,
    pub wish: Wish,
    pub reply: Reply,
}

/// What an operation of a batch does.
pub(crate) enum BatchedCall {
    /// See [`Request::Apply`].
    Apply(Op),
    /// See [`Request::Read`]; one that is answered whole.
    Read(RangeQuery),
    /// See [`Request::Raised`].
    Raise(RaiseSince),
    /// Reads are done with what they pinned.
    Release(Vec<PinId>),
}

impl From<Batched> for Request {
    fn from(Batched { call, wish, reply }: Batched) -> Self {
        match call {
            BatchedCall::Apply(op) => Self::Apply { op, wish, answer: Respond::Batch(reply) },
            // Nothing stays open for it.
            BatchedCall::Read(query) => {
                Self::Read { query, wish, owner: Weak::new(), answer: Respond::Batch(reply) }
            }
            BatchedCall::Raise(asked) => {
                let raise = asked.first();
                let late = move |core: &mut Core| -> AfterPublish {
                    let raised = asked.run(core);
                    Box::new(move || reply.raised(raised))
                };
                Self::Raised { raise, late: Box::new(late) }
            }
            BatchedCall::Release(pins) => Self::Call(Box::new(move |core| {
                core.release(&pins);
                Box::new(|| reply.released())
            })),
        }
    }
}

/// Where an answer goes.
pub(crate) enum Respond<T> {
    /// To whoever waits for this one; if nobody does its request is done all the same.
    One(oneshot::Sender<Result<T, KvError>>),
    /// To the stream that it came over.
    Batch(Reply),
}

impl<T: InBatch> Respond<T> {
    /// Gives the answer.
    pub(crate) fn send(self, answer: Result<T, KvError>) {
        match self {
            Self::One(to) => drop(to.send(answer)),
            Self::Batch(reply) => reply.send(answer.and_then(T::in_batch)),
        }
    }

    /// Whether the request is to be executed: one of a batch that nobody waits for is not.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        match self {
            Self::One(_) => true,
            Self::Batch(reply) => reply.is_wanted(now),
        }
    }
}

/// What can be answered in a batch.
pub(crate) trait InBatch {
    fn in_batch(self) -> Result<OpAnswer, KvError>;
}

impl InBatch for OpAnswer {
    fn in_batch(self) -> Result<OpAnswer, KvError> {
        Ok(self)
    }
}

impl InBatch for Started {
    fn in_batch(self) -> Result<OpAnswer, KvError> {
        match self {
            Self::Whole(answer) => Ok(OpAnswer::Range(answer)),
            // Not let in at the door.
            Self::Long { .. } => Err(KvError::Malformed("a long read in a batch".to_owned())),
        }
    }
}

/// See [`Request::Call`].
pub(crate) type Call = Box<dyn FnOnce(&mut Core) -> AfterPublish + Send>;

/// Sends an answer.
pub(crate) type AfterPublish = Box<dyn FnOnce() + Send>;

/// See [`Request::Flushed`]; with an error when the disk takes too long.
pub(crate) type Flushed = Box<dyn FnOnce(Result<&mut Core, KvError>) -> AfterPublish + Send>;

/// What is to be raised, and by which map (see [`Core::raise`]).
pub(crate) struct Raise {
    pub ranges: Vec<KeyRange>,
    pub to: Revision,
    pub generation: Option<u64>,
}

/// An answer that waits for its batch.
pub(crate) enum Answer {
    Apply(Respond<OpAnswer>, Result<OpAnswer, KvError>),
    Read(Respond<Started>, Result<Started, KvError>),
    Chunk(oneshot::Sender<Result<LongChunk, KvError>>, Result<LongChunk, KvError>),
    Pull(oneshot::Sender<Vec<WatchOut>>, Vec<WatchOut>),
    Call(AfterPublish),
}

impl Answer {
    /// A receiver that is gone does not matter: its request is done.
    pub(crate) fn send(self) {
        match self {
            Self::Apply(to, answer) => to.send(answer),
            Self::Read(to, answer) => to.send(answer),
            Self::Chunk(to, answer) => drop(to.send(answer)),
            Self::Pull(to, answer) => drop(to.send(answer)),
            Self::Call(send) => send(),
        }
    }
}

/// What waits for the log.
pub(crate) enum Waiter {
    /// To be sent.
    Answer(Answer),
    /// To be run then.
    Late(Call),
}
