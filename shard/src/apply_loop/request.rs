//! Requests to the loop, and the answers that it holds back.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use kindred_engine::{
    engine::{FeedId, PinId, StreamId, WatchOut},
    ops::{Op, OpAnswer, RangeQuery, Txn},
    version::Version,
};
use kindred_partition_config::{
    ids::{Epoch, Revision},
    key::KeyRange,
};
use tokio::{sync::oneshot, time::Instant};

use super::call::Call;
use crate::{
    core::{AfterPublish, BegunReads, Core, CursorId, Started},
    etcd_status::KvError,
    read_hints::ReadHints,
    replies::Reply,
};

/// A request to the loop. Frequent ones are variants, all others a [`Call`].
pub(crate) enum Request {
    /// A write or a transaction.
    Apply { op: Op, hints: ReadHints, answer: Respond<OpAnswer> },
    /// A read, which may turn out to be long.
    Read { query: RangeQuery, hints: ReadHints, owner: Weak<()>, answer: Respond<Started> },
    /// The beginning of a transaction of reads, which are then made one by one.
    BeginReads {
        txn: Arc<Txn>,
        hints: ReadHints,
        owner: Weak<()>,
        answer: oneshot::Sender<Result<BegunReads, KvError>>,
    },
    /// Requests that came in one message, in order.
    Batch(Vec<Batched>),
    /// The next chunk of a long read.
    Chunk { cursor: CursorId, answer: oneshot::Sender<Result<LongChunk, KvError>> },
    /// The next messages of a watch stream.
    Pull { stream: StreamId, bytes_max: usize, answer: oneshot::Sender<Vec<WatchOut>> },
    /// A feed's stream has room again.
    ResumeFeed(FeedId),
    /// Any other call. Its answer is sent after the batch is published and its changes are as durable as they must be.
    Call(Call),
    /// A call that must see its whole batch: it runs after the publish.
    Late(Call),
    /// A call that must see ranges at or above a revision: it runs when the raise is visible.
    Raised { raise: Raise, late: Call },
    /// A call that must see everything published and on disk. Nothing else is executed before it.
    Flushed(Call),
}

impl Request {
    /// Refuses to execute the request. What is dropped learns only that there will be no answer.
    pub(crate) fn refuse(self, why: &KvError) {
        match self {
            Self::Apply { answer, .. } => answer.send(Err(why.clone())),
            Self::Read { answer, .. } => answer.send(Err(why.clone())),
            Self::Batch(ops) => ops.into_iter().for_each(|op| op.reply.send(Err(why.clone()))),
            Self::Chunk { answer, .. } => drop(answer.send(Err(why.clone()))),
            Self::BeginReads { answer, .. } => drop(answer.send(Err(why.clone()))),
            Self::Pull { .. }
            | Self::ResumeFeed(_)
            | Self::Call(_)
            | Self::Late(_)
            | Self::Raised { .. }
            | Self::Flushed(_) => {}
        }
    }
}

/// Keys of a long read, and whether they are the last.
pub(crate) type LongChunk = (Vec<Version>, bool);

pub(crate) struct Batched {
    pub call: BatchedCall,
    pub hints: ReadHints,
    pub reply: Reply,
}

/// The kind of an operation in a batch.
pub(crate) enum BatchedCall {
    Apply(Op),
    /// See [`Request::Read`]; it must be short.
    Read(RangeQuery),
    Raise(RaiseSince),
    /// Reads release their pins.
    Release(Vec<PinId>),
}

impl BatchedCall {
    /// The key that the operation looks up first, if it is about single keys.
    pub fn key(&self) -> Option<&[u8]> {
        let range = match self {
            Self::Apply(Op::Put(put)) => return Some(&put.key),
            Self::Apply(Op::Txn(txn)) => &txn.compares.first()?.range,
            Self::Read(query) => &query.range,
            _ => return None,
        };
        matches!(range, KeyRange::Single(_)).then(|| &range.start()[..])
    }
}

/// The request `RaiseSince`, as a call of its own or in a batch.
#[derive(Debug, Clone)]
pub struct RaiseSince {
    pub ranges: Vec<KeyRange>,
    pub to: Revision,
    pub since: Revision,
    pub pin: Option<PinId>,
    pub generation: Option<Epoch>,
}

impl RaiseSince {
    /// The raise that must be visible before it runs.
    pub fn first(&self) -> Raise {
        Raise { ranges: self.ranges.clone(), to: self.to, generation: self.generation }
    }

    /// The current revision after the raise, and whether something changed since.
    pub fn run(&self, core: &mut Core) -> Result<(Revision, bool), KvError> {
        core.raise_since(&self.ranges, self.to, self.since, self.pin, self.generation)
    }
}

impl From<Batched> for Request {
    fn from(Batched { call, hints, reply }: Batched) -> Self {
        match call {
            BatchedCall::Apply(op) => Self::Apply { op, hints, answer: Respond::Batch(reply) },
            // A short read leaves nothing open.
            BatchedCall::Read(query) => {
                Self::Read { query, hints, owner: Weak::new(), answer: Respond::Batch(reply) }
            }
            BatchedCall::Raise(asked) => {
                Self::Raised { raise: asked.first(), late: Call::RaisedInBatch { asked, reply } }
            }
            BatchedCall::Release(pins) => Self::Call(Call::ReleasedInBatch { pins, reply }),
        }
    }
}

/// The destination of an answer.
pub(crate) enum Respond<T> {
    /// A single receiver. If it is gone, its request is executed all the same.
    One(oneshot::Sender<Result<T, KvError>>),
    /// The stream that the request came over.
    Batch(Reply),
}

impl<T: InBatch> Respond<T> {
    pub(crate) fn send(self, answer: Result<T, KvError>) {
        match self {
            Self::One(to) => drop(to.send(answer)),
            Self::Batch(reply) => reply.send(answer.and_then(T::in_batch)),
        }
    }

    /// Whether to execute the request. One of a batch is skipped when no client waits for it any more.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        match self {
            Self::One(_) => true,
            Self::Batch(reply) => reply.is_wanted(now),
        }
    }
}

/// An answer that fits into a batch.
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
            // Long reads are refused before they reach a batch.
            Self::Long { .. } => Err(KvError::Malformed("a long read in a batch".to_owned())),
        }
    }
}

/// What is to be raised, and by which map (see [`Core::raise`]).
#[derive(Debug, Clone)]
pub struct Raise {
    pub ranges: Vec<KeyRange>,
    pub to: Revision,
    pub generation: Option<Epoch>,
}

/// An answer that waits for its batch.
pub(crate) enum Answer {
    Apply(Respond<OpAnswer>, Result<OpAnswer, KvError>),
    Read(Respond<Started>, Result<Started, KvError>),
    Chunk(oneshot::Sender<Result<LongChunk, KvError>>, Result<LongChunk, KvError>),
    BegunReads(oneshot::Sender<Result<BegunReads, KvError>>, Result<BegunReads, KvError>),
    Pull(oneshot::Sender<Vec<WatchOut>>, Vec<WatchOut>),
    Call(AfterPublish),
}

impl Answer {
    /// Sends the answer. If the receiver is gone, that does not matter: the request is done.
    pub(crate) fn send(self) {
        match self {
            Self::Apply(to, answer) => to.send(answer),
            Self::Read(to, answer) => to.send(answer),
            Self::Chunk(to, answer) => drop(to.send(answer)),
            Self::BegunReads(to, answer) => drop(to.send(answer)),
            Self::Pull(to, answer) => drop(to.send(answer)),
            Self::Call(send) => send(),
        }
    }
}

/// A description of the requests that the loop refused at its last look; shared with the handles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusing(Arc<Mutex<Option<&'static str>>>);

impl Refusing {
    pub(crate) fn set(&self, what: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    pub(crate) fn get(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
