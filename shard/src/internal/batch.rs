//! Batches: a stream is read here, executed on the apply loop, and answered by [`Answers`].

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use kindred_engine::ops::{Op, RangeQuery};
use kindred_partition_config::ids::Revision;
use kindred_proto::raw::batches::batches_server::Batches;
use kindred_transport::metrics::calls::{self, Calls};
use kindred_wire::batch::{BatchOp, Method, read_request};
use prost::Message;
use tokio::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::raise_since;
use crate::{
    apply_loop::{Batched, BatchedCall},
    core::is_short,
    etcd::{Member, front::transport_status, request},
    etcd_status::{KvError, status},
    handle::read_txn,
    read_hints::{ReadHints, checked, pin_id},
    replies::{Answers, Replies, Reply},
};

/// The longest message that is read; routers limit theirs to a few hundred KiB.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Operations handed to the loop at a time, so that other requests come in between.
const ENTRY_OPS: usize = 64;

#[derive(Clone)]
pub struct BatchService(pub Member);

#[tonic::async_trait]
impl Batches for BatchService {
    type RunStream = Answers;

    async fn run(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Answers>, Status> {
        let replies = Arc::new(Replies::default());
        let reader = Reader { member: self.0.clone(), replies: replies.clone(), last: 0 };
        tokio::spawn(reader.run(request.into_inner()));
        Ok(Response::new(Answers::new(replies, self.0.ids)))
    }
}

/// The counters of the calls that operations stand for; `None` for a method that does not exist.
fn calls_of(method: Option<Method>) -> Option<&'static Calls> {
    static COUNTED: LazyLock<[Option<&'static Calls>; 6]> = LazyLock::new(|| {
        [
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/DeleteRange",
            "/etcdserverpb.KV/Txn",
            "/kindred.shard.v1.Shard/RaiseSince",
            "/kindred.shard.v1.Shard/ReleasePins",
        ]
        .map(calls::of)
    });
    COUNTED[match method? {
        Method::Range => 0,
        Method::Put => 1,
        Method::DeleteRange => 2,
        Method::Txn => 3,
        Method::RaiseSince => 4,
        Method::ReleasePins => 5,
    }]
}

/// The reader of one stream.
struct Reader {
    member: Member,
    replies: Arc<Replies>,
    /// The id of the last operation read.
    last: u64,
}

impl Reader {
    /// Ends when the router closes the stream or is gone, or when the process stops; the router is then told which
    /// operations were not read.
    async fn run(mut self, mut requests: Streaming<Bytes>) {
        let stopping = self.member.stopping.clone();
        let stopped = stopping.cancelled();
        tokio::pin!(stopped);
        loop {
            let message = tokio::select! {
                biased;
                () = &mut stopped => {
                    return self.replies.end(Some(self.last), Err(status(&KvError::Stopped)));
                }
                message = self.message(&mut requests) => message,
            };
            let read = match message {
                Some(Ok(message)) => self.take(&message),
                Some(Err(broken)) => Err(transport_status(broken)),
                None => return self.replies.end(None, Ok(())),
            };
            let ops = match read {
                Ok(ops) => ops,
                Err(refused) => return self.replies.end(None, Err(refused)),
            };
            let mut ops = ops.into_iter();
            while ops.len() > 0 {
                // If the loop has ended, dropping the operations answers them.
                self.member.handle.batch(ops.by_ref().take(ENTRY_OPS).collect()).await;
            }
        }
    }

    /// The next message, once there is room for what it may bring.
    async fn message(&self, requests: &mut Streaming<Bytes>) -> Option<Result<Bytes, Status>> {
        if self.replies.room().await { requests.next().await } else { None }
    }

    /// The operations of a message; refused ones are answered here.
    fn take(&mut self, message: &Bytes) -> Result<Vec<Batched>, Status> {
        let (mut read, mut cancelled) = (Vec::new(), Vec::new());
        read_request(message, |op| read.push(op), |id| cancelled.push(id))
            .map_err(|error| Status::invalid_argument(format!("kindred: a batch: {error}")))?;
        cancelled.into_iter().for_each(|id| self.replies.cancel(id));
        if read.is_empty() {
            return Ok(Vec::new());
        }
        self.replies.begun(read.len(), read.iter().map(|op| op.request.len()).sum());
        let now = Instant::now();
        let mut ops = Vec::with_capacity(read.len());
        for op in read {
            self.last = self.last.max(op.id);
            let until = (op.timeout_micros != 0)
                .then(|| now.checked_add(Duration::from_micros(op.timeout_micros)))
                .flatten();
            let method = Method::from_wire(op.method);
            let reply = Reply::new(&self.replies, op.id, op.request.len(), until, calls_of(method));
            match self.call(method, &op, message) {
                Ok(BatchedCall::Apply(Op::Txn(txn))) if read_txn::is_long(&txn) => {
                    let (handle, hints) = (self.member.handle.clone(), hints(&op));
                    tokio::spawn(async move {
                        let wanted = || reply.is_wanted(Instant::now());
                        let answer = handle.read_txn(Arc::from(txn), hints, wanted).await;
                        reply.send(answer);
                    });
                }
                Ok(call) => ops.push(Batched { call, hints: hints(&op), reply }),
                Err(refused) => reply.refuse(refused),
            }
        }
        Ok(ops)
    }

    fn call(&self, method: Option<Method>, op: &BatchOp<'_>, message: &Bytes) -> Result<BatchedCall, Status> {
        let bytes = message.slice_ref(op.request);
        let method = method
            .ok_or_else(|| Status::unimplemented(format!("kindred: a batch has no method {}", op.method)))?;
        let write = |op: Result<Op, Status>| op.map(BatchedCall::Apply);
        match method {
            Method::Range => short(request::range(bytes)?).map(BatchedCall::Read),
            Method::Put => write(request::put(&self.member, bytes)),
            Method::DeleteRange => write(request::delete(&self.member, bytes, None)),
            Method::Txn => write(request::txn(&self.member, bytes)),
            Method::RaiseSince => Ok(BatchedCall::Raise(raise_since(decoded(bytes)?))),
            Method::ReleasePins => super::pins(decoded(bytes)?).map(BatchedCall::Release),
        }
    }
}

fn decoded<M: Message + Default>(request: Bytes) -> Result<M, Status> {
    Ok(M::decode(request).map_err(KvError::from)?)
}

fn hints(op: &BatchOp<'_>) -> ReadHints {
    let min_revision = Revision::from_wire(op.min_revision).filter(|least| *least > Revision::ZERO);
    ReadHints { min_revision, pin: pin_id(op.pin), generation: checked(op.generation) }
}

/// Refuses a long read, which would delay the others: it must be a call of its own.
fn short(query: RangeQuery) -> Result<RangeQuery, Status> {
    if is_short(&query) {
        return Ok(query);
    }
    Err(Status::invalid_argument("kindred: this read is too long for a batch, send it as KV/Range"))
}
