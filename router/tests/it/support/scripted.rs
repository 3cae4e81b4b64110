//! A shard whose stream of batches a test controls, and which counts unary calls.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::raw::batches::batches_server::Batches;
use kindred_proto::raw::kv::k_v_server::KV;
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// The shard's side of a stream, controlled by a test.
pub struct Opened {
    pub requests: Streaming<Bytes>,
    pub responses: mpsc::Sender<Result<Bytes, Status>>,
}

impl Opened {
    /// Receives this many operations; also returns the ids cancelled meanwhile.
    pub async fn ops(&mut self, count: usize) -> (Vec<shard::BatchOp>, Vec<u64>) {
        let (mut ops, mut cancelled) = (Vec::new(), Vec::new());
        while ops.len() < count {
            let message = in_time(self.requests.next()).await.unwrap().unwrap();
            let message = shard::BatchRequest::decode(message).unwrap();
            ops.extend(message.ops);
            cancelled.extend(message.cancelled);
        }
        assert_eq!(ops.len(), count);
        (ops, cancelled)
    }

    pub async fn op(&mut self) -> shard::BatchOp {
        self.ops(1).await.0.remove(0)
    }

    pub async fn say(&self, response: shard::BatchResponse) {
        self.responses.send(Ok(response.encode_to_vec().into())).await.unwrap();
    }

    /// Answers each operation with its own request.
    pub async fn echo(&self, ops: &[&shard::BatchOp]) {
        let answer = |op: &&shard::BatchOp| shard::BatchAnswer {
            id: op.id,
            response: op.request.clone(),
            ..Default::default()
        };
        self.say(shard::BatchResponse { answers: ops.iter().map(answer).collect(), last: None }).await;
    }

    pub async fn put_done(&self, id: u64, revision: i64) {
        let header = Some(pb::ResponseHeader { revision, ..Default::default() });
        let response = pb::PutResponse { header, prev_kv: None }.encode_to_vec().into();
        let answers = vec![shard::BatchAnswer { id, response, refused: None }];
        self.say(shard::BatchResponse { answers, last: None }).await;
    }

    /// Answers an operation with this message.
    pub async fn answer(&self, id: u64, response: &impl prost::Message) {
        let answers =
            vec![shard::BatchAnswer { id, response: response.encode_to_vec().into(), refused: None }];
        self.say(shard::BatchResponse { answers, last: None }).await;
    }

    pub async fn stop_behind(&self, last: u64) {
        self.say(shard::BatchResponse { answers: Vec::new(), last: Some(last) }).await;
    }
}

/// Serves batches as a test says, or refuses to.
pub struct Scripted {
    opened: mpsc::Sender<Opened>,
    pub refusal: Option<Status>,
}

#[tonic::async_trait]
impl Batches for Scripted {
    type RunStream = ReceiverStream<Result<Bytes, Status>>;

    async fn run(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Self::RunStream>, Status> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let (responses, messages) = mpsc::channel(16);
        self.opened.send(Opened { requests: request.into_inner(), responses }).await.unwrap();
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

pub fn scripted() -> (Scripted, mpsc::Receiver<Opened>) {
    let (opened, streams) = mpsc::channel(16);
    (Scripted { opened, refusal: None }, streams)
}

/// A KV service for unary calls, which it counts; answers each with an empty response at revision 1.
pub struct Unary(pub Arc<AtomicUsize>);

impl Unary {
    fn answer(&self) -> Result<Response<Bytes>, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let header = Some(pb::ResponseHeader { revision: 1, ..Default::default() });
        Ok(Response::new(pb::PutResponse { header, prev_kv: None }.encode_to_vec().into()))
    }
}

#[tonic::async_trait]
impl KV for Unary {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn range(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer()
    }
    async fn range_stream(&self, _: Request<Bytes>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
    async fn put(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer()
    }
    async fn delete_range(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer()
    }
    async fn txn(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer()
    }
    async fn compact(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer()
    }
}
