//! What the loop is asked, and the answers that it holds back.

use std::sync::Weak;

use kindred_engine::{
    engine::{FeedId, FeedOut, StreamId, WatchOut},
    ops::{Op, OpAnswer, RangeQuery},
    version::Version,
};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use tokio::sync::oneshot;

use crate::{
    core::{Core, CursorId, Started},
    etcd_status::KvError,
    wish::Wish,
};

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
    Apply(oneshot::Sender<Result<OpAnswer, KvError>>, Result<OpAnswer, KvError>),
    Read(oneshot::Sender<Result<Started, KvError>>, Result<Started, KvError>),
    Chunk(oneshot::Sender<Result<Vec<Version>, KvError>>, Result<Vec<Version>, KvError>),
    Pull(oneshot::Sender<Vec<WatchOut>>, Vec<WatchOut>),
    Feed(oneshot::Sender<Option<FeedOut>>, Option<FeedOut>),
    Call(AfterPublish),
}

impl Answer {
    /// A receiver that is gone does not matter: its request is done.
    pub(crate) fn send(self) {
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

/// What waits for the log.
pub(crate) enum Waiter {
    /// To be sent.
    Answer(Answer),
    /// To be run then.
    Late(Call),
}
