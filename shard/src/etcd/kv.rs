//! KV: requests decoded with prost, answers written around the stored bytes.

use std::pin::Pin;

use bytes::Bytes;
use kindred_engine::ops::{Delete, Op, RangeQuery, RevisionFilter};
use kindred_partition_config::ids::Revision;
use kindred_proto::{etcdserverpb as pb, raw::kv::k_v_server::KV as Kv};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::Member;
use crate::{
    convert, encode,
    etcd_status::KvError,
    handle::Start,
    wish::{self, Wish},
};

/// Chunks of a range stream that wait for the client.
const STREAM_CHUNKS_MAX: usize = 2;

/// The service.
#[derive(Clone)]
pub struct KvService(pub Member);

impl KvService {
    async fn write(&self, op: Op, wish: Wish) -> Result<Response<Bytes>, Status> {
        let answer = self.0.handle.apply(op, wish).await?;
        Ok(Response::new(encode::answer(&self.0.ids, &answer)))
    }
}

/// A request as it came.
struct Incoming<M> {
    message: M,
    wish: Wish,
    size: usize,
}

fn decode<M: Message + Default>(request: Request<Bytes>) -> Result<Incoming<M>, KvError> {
    let wish = Wish::of(request.metadata());
    let bytes = request.into_inner();
    let size = bytes.len();
    Ok(Incoming { message: M::decode(bytes)?, wish, size })
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let Incoming { message, wish, .. } = decode::<pb::RangeRequest>(request)?;
        let query = convert::range(message).map_err(KvError::from)?;
        if query.sort.is_some() || query.filter != RevisionFilter::default() {
            let answer = self.0.handle.range(query, wish).await?;
            return Ok(Response::new(encode::range(&self.0.ids, &answer)));
        }
        Ok(Response::new(natural_range(&self.0, query, wish).await?))
    }

    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn range_stream(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let Incoming { message, wish, .. } = decode::<pb::RangeRequest>(request)?;
        let query = convert::range_stream(message).map_err(KvError::from)?;
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
        let Incoming { message, wish, size } = decode::<pb::PutRequest>(request)?;
        let put = convert::put(message).map_err(KvError::from)?;
        self.0.check_size(size)?;
        self.write(Op::Put(put), wish).await
    }

    async fn delete_range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let buckets = wish::buckets(request.metadata())?;
        let Incoming { message, wish, size } = decode::<pb::DeleteRangeRequest>(request)?;
        let delete = convert::delete(message).map_err(KvError::from)?;
        self.0.check_size(size)?;
        self.write(Op::Delete(Delete { buckets, ..delete }), wish).await
    }

    async fn txn(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let Incoming { message, wish, size } = decode::<pb::TxnRequest>(request)?;
        let txn = convert::txn(message, self.0.txn_ops_max).map_err(KvError::from)?;
        if !convert::is_read_only(&txn) {
            self.0.check_size(size)?;
        }
        self.write(Op::Txn(Box::new(txn)), wish).await
    }

    async fn compact(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let pb::CompactionRequest { revision, physical } = decode(request)?.message;
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
