//! Batches: a stream is read here, executed on the apply loop, and answered by [`Answers`].

use std::sync::Arc;

use bytes::Bytes;
use kindred_engine::ops::{Op, RangeQuery};
use kindred_partition_config::ids::Revision;
use kindred_proto::raw::batches::batches_server::Batches;
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
    metrics::{CallMetrics, call_metrics},
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
        let reader =
            Reader { member: self.0.clone(), replies: replies.clone(), calls: Calls::new(), last: 0 };
        tokio::spawn(reader.run(request.into_inner()));
        Ok(Response::new(Answers::new(replies, self.0.ids)))
    }
}

/// The counters of the calls that operations stand for.
struct Calls {
    range: &'static CallMetrics,
    put: &'static CallMetrics,
    delete_range: &'static CallMetrics,
    txn: &'static CallMetrics,
    raise_since: &'static CallMetrics,
    release_pins: &'static CallMetrics,
}

impl Calls {
    fn new() -> Self {
        Self {
            range: call_metrics("/etcdserverpb.KV/Range"),
            put: call_metrics("/etcdserverpb.KV/Put"),
            delete_range: call_metrics("/etcdserverpb.KV/DeleteRange"),
            txn: call_metrics("/etcdserverpb.KV/Txn"),
            raise_since: call_metrics("/kindred.shard.v1.Shard/RaiseSince"),
            release_pins: call_metrics("/kindred.shard.v1.Shard/ReleasePins"),
        }
    }

    fn of(&self, method: Method) -> &'static CallMetrics {
        match method {
            Method::Range => self.range,
            Method::Put => self.put,
            Method::DeleteRange => self.delete_range,
            Method::Txn => self.txn,
            Method::RaiseSince => self.raise_since,
            Method::ReleasePins => self.release_pins,
        }
    }
}

/// The reader of one stream.
struct Reader {
    member: Member,
    replies: Arc<Replies>,
    calls: Calls,
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
            let calls = method.map_or_else(|| call_metrics(""), |method| self.calls.of(method));
            let reply = Reply::new(&self.replies, op.id, op.request.len(), until, calls);
            match self.call(method, &op, message) {
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
