//! KV: requests decoded with prost, answers written around the stored bytes.

use std::{pin::Pin, sync::LazyLock};

use bytes::Bytes;
use kindred_engine::ops::{RangeQuery, RevisionFilter};
use kindred_partition_config::{ids::Revision, unit::UnitBuckets};
use kindred_proto::{etcdserverpb as pb, raw::kv::k_v_server::KV as Kv};
use kindred_transport::unary::UnaryCalls;
use kindred_wire::rope::Rope;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status};

use super::{Member, request};
use crate::{
    convert, encode,
    etcd_status::KvError,
    handle::Start,
    metrics::{CallMetrics, call_metrics},
    wish::{self, Wish},
};

/// Chunks of a range stream that wait for the client.
const STREAM_CHUNKS_MAX: usize = 2;

/// The service.
#[derive(Clone)]
pub struct KvService(pub Member);

/// What a [`KvService`] answers with one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `Range`.
    Range,
    /// `Put`.
    Put,
    /// `DeleteRange`.
    DeleteRange,
    /// `Txn`.
    Txn,
}

impl KvService {
    /// Answers a request; `buckets` are of a `DeleteRange`.
    ///
    /// # Errors
    /// etcd's.
    pub async fn answer(
        &self,
        method: Method,
        message: Bytes,
        wish: Wish,
        buckets: Option<UnitBuckets>,
    ) -> Result<Bytes, Status> {
        let Self(member) = self;
        let op = match method {
            Method::Range => {
                let query = request::range(message)?;
                if query.sort.is_some() || query.filter != RevisionFilter::default() {
                    let answer = member.handle.range(query, wish).await?;
                    return Ok(encode::range(&member.ids, &answer));
                }
                return Ok(natural_range(member, query, wish).await?);
            }
            Method::Put => request::put(member, message)?,
            Method::DeleteRange => request::delete(member, message, buckets)?,
            Method::Txn => request::txn(member, message)?,
        };
        let answer = member.handle.apply(op, wish).await?;
        Ok(encode::answer(&member.ids, &answer))
    }

    async fn unary(&self, method: Method, request: Request<Bytes>) -> Result<Bytes, Status> {
        let wish = Wish::of(request.metadata());
        let buckets = match method {
            Method::DeleteRange => wish::buckets(request.metadata())?,
            _ => None,
        };
        self.answer(method, request.into_inner(), wish, buckets).await
    }
}

impl UnaryCalls for KvService {
    type Method = Method;

    fn method(&self, path: &str) -> Option<Method> {
        let method = match path.strip_prefix("/etcdserverpb.KV/")? {
            "Range" => Method::Range,
            "Put" => Method::Put,
            "DeleteRange" => Method::DeleteRange,
            "Txn" => Method::Txn,
            _ => return None,
        };
        // The front door says why nothing is answered yet.
        self.0.is_serving().then_some(method)
    }

    fn message_bytes_max(&self) -> usize {
        self.0.receive_bytes_max()
    }

    async fn call(&self, method: Method, request: Request<Bytes>) -> Result<Rope, Status> {
        self.unary(method, request).await.map(Rope::from)
    }

    fn began(&self, method: Method) {
        counters(method).started();
    }

    fn ended(&self, method: Method, code: Code) {
        counters(method).handled(code);
    }
}

fn counters(method: Method) -> &'static CallMetrics {
    static COUNTERS: LazyLock<[&'static CallMetrics; 4]> = LazyLock::new(|| {
        ["Range", "Put", "DeleteRange", "Txn"]
            .map(|method| call_metrics(&format!("/etcdserverpb.KV/{method}")))
    });
    COUNTERS[method as usize]
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, KvError> {
    Ok(M::decode(message)?)
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.unary(Method::Range, request).await.map(Response::new)
    }

    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn range_stream(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let wish = Wish::of(request.metadata());
        let query = convert::range_stream(decode(request.into_inner())?).map_err(KvError::from)?;
        let (sender, mut chunks) = mpsc::channel(STREAM_CHUNKS_MAX);
        let member = self.0.clone();
        // Ends with the last chunk, or when the client goes away and `chunks` with it.
        tokio::spawn(async move {
            if let Err(error) = stream_range(&member, query, wish, &sender).await {
                let _ = sender.send(Err(error.into())).await;
            }
        });
        // What is refused is refused at once, as by etcd: nothing of a stream has begun that could not be asked again.
        let first = chunks.recv().await.transpose()?.map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(first).chain(ReceiverStream::new(chunks)))))
    }

    async fn put(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.unary(Method::Put, request).await.map(Response::new)
    }

    async fn delete_range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.unary(Method::DeleteRange, request).await.map(Response::new)
    }

    async fn txn(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.unary(Method::Txn, request).await.map(Response::new)
    }

    async fn compact(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let pb::CompactionRequest { revision, physical } = decode(request.into_inner())?;
        let header = self.0.handle.compact(Revision(revision), physical).await?;
        Ok(Response::new(encode::header_only(&self.0.ids, header)))
    }
}

/// A read in key order, written while it is produced.
async fn natural_range(member: &Member, query: RangeQuery, wish: Wish) -> Result<Bytes, KvError> {
    let (limit, contents) = (query.limit, query.contents);
    let mut long = match member.handle.start(query, wish).await? {
        Start::Whole(answer) => return Ok(encode::range(&member.ids, &answer)),
        Start::Long(long) => long,
    };
    let mut out = encode::RangeWriter::new(&member.ids, long.header, contents);
    let total = if limit == 0 { long.count } else { long.count.min(limit as u64) };
    let mut left = total;
    while left > 0 {
        let mut chunk = long.next().await?;
        if chunk.is_empty() {
            break;
        }
        chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        out.push(&chunk, left);
        left -= chunk.len() as u64;
    }
    Ok(out.finish(encode::RangeTail { more: total < long.count, count: long.count }))
}

/// Sends a range in key order; header, `more` and `count` only in the last chunk. A pin that was lost to a compaction
/// ends it as compacted.
async fn stream_range(
    member: &Member,
    query: RangeQuery,
    wish: Wish,
    to: &mpsc::Sender<Result<Bytes, Status>>,
) -> Result<(), KvError> {
    let (limit, contents, count_only) = (query.limit, query.contents, query.count_only);
    let mut long = match member.handle.start(query, wish).await? {
        Start::Whole(mut answer) => {
            if count_only {
                answer.kvs.clear();
            }
            let tail = encode::RangeTail { more: answer.more && !count_only, count: answer.count };
            let end = Some((answer.header, tail));
            let _ = to.send(Ok(encode::range_chunk(&member.ids, &answer.kvs, contents, end))).await;
            return Ok(());
        }
        Start::Long(long) => long,
    };
    let total = if limit == 0 { long.count } else { long.count.min(limit as u64) };
    let mut sent = 0;
    loop {
        let mut chunk = long.next().await?;
        chunk.truncate(usize::try_from(total - sent).unwrap_or(usize::MAX));
        sent += chunk.len() as u64;
        let done = sent >= total || chunk.is_empty();
        let tail = encode::RangeTail { more: total < long.count, count: long.count };
        let message = encode::range_chunk(&member.ids, &chunk, contents, done.then_some((long.header, tail)));
        if to.send(Ok(message)).await.is_err() || done {
            return Ok(());
        }
    }
}
