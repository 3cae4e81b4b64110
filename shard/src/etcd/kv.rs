//! The KV service. Requests are decoded with prost; answers are written around the stored bytes.

use std::{
    pin::Pin,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use kindred_engine::{
    ops::{RangeQuery, RevisionFilter},
    version::Version,
};
use kindred_partition_config::{ids::Revision, unit::UnitBuckets};
use kindred_proto::{etcdserverpb as pb, raw::kv::k_v_server::KV as Kv};
use kindred_transport::{
    ending,
    listener::ConnectionInfo,
    metrics::calls::{self, Calls},
    unary::{UnaryCalls, long},
    unread::LongRead,
};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::{Member, request};
use crate::{
    convert,
    encode::{self, long::LongRange},
    etcd_status::KvError,
    handle::{self, Start},
    read_hints::{self, ReadHints},
};

/// Chunks of a range stream that may wait for the client.
const STREAM_CHUNKS_MAX: usize = 2;

#[derive(Clone)]
pub struct KvService {
    member: Member,
    /// The caller, if callers are distinguished and the service is of one connection.
    from: Option<Arc<ConnectionInfo>>,
}

/// The unary methods of a [`KvService`] that are answered directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Range,
    Put,
    DeleteRange,
    Txn,
}

impl KvService {
    /// The service of a member, behind [`super::front`].
    #[must_use]
    pub fn new(member: Member) -> Self {
        Self { member, from: None }
    }

    /// Answers a request; `buckets` restrict a `DeleteRange`.
    ///
    /// # Errors
    /// etcd's errors.
    pub async fn answer(
        &self,
        method: Method,
        message: Bytes,
        hints: ReadHints,
        buckets: Option<UnitBuckets>,
    ) -> Result<long::Message, Status> {
        let Self { member, .. } = self;
        let op = match method {
            Method::Range => {
                let query = request::range(message)?;
                if query.sort.is_some() || query.filter != RevisionFilter::default() {
                    let answer = member.handle.range(query, hints).await?;
                    return Ok(encode::range(&member.ids, &answer).into());
                }
                return Ok(natural_range(member, query, hints).await?);
            }
            Method::Put => request::put(member, message)?,
            Method::DeleteRange => request::delete(member, message, buckets)?,
            Method::Txn => request::txn(member, message)?,
        };
        let answer = member.handle.apply(op, hints).await?;
        Ok(encode::answer(&member.ids, &answer).into())
    }

    async fn unary(&self, method: Method, request: Request<Bytes>) -> Result<long::Message, Status> {
        let hints = ReadHints::of(request.metadata());
        let buckets = match method {
            Method::DeleteRange => read_hints::buckets(request.metadata())?,
            _ => None,
        };
        self.answer(method, request.into_inner(), hints, buckets).await
    }

    /// The same for tonic, which takes an answer in one piece.
    async fn whole(&self, method: Method, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.unary(method, request).await.map(|answer| Response::new(answer.into_bytes()))
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
        // Before the shard serves, `Front` answers with the reason.
        self.member.is_serving().then_some(method)
    }

    fn paths(&self) -> &'static [&'static str] {
        &[
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/DeleteRange",
            "/etcdserverpb.KV/Txn",
        ]
    }

    fn message_bytes_max(&self) -> usize {
        self.member.receive_bytes_max()
    }

    fn of_connection(&self, from: &ConnectionInfo) -> Self {
        let from = self.member.door.is_guarded().then(|| Arc::new(from.clone()));
        Self { from, ..self.clone() }
    }

    async fn call(&self, method: Method, request: Request<Bytes>) -> Result<long::Message, Status> {
        if let Some(from) = &self.from {
            self.member.door.admits(Some(from), request.metadata().as_ref())?;
        }
        self.unary(method, request).await
    }

    fn counted(&self, method: Method) -> &'static Calls {
        static COUNTED: LazyLock<[&'static Calls; 4]> =
            LazyLock::new(|| ["Range", "Put", "DeleteRange", "Txn"].map(calls::of_kv));
        COUNTED[method as usize]
    }
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, KvError> {
    Ok(M::decode(message)?)
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Method::Range, request).await
    }

    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn range_stream(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let hints = ReadHints::of(request.metadata());
        let query = convert::range_stream(decode(request.into_inner())?).map_err(KvError::from)?;
        let (sender, chunks) = mpsc::channel(STREAM_CHUNKS_MAX);
        let (good_end, mut chunks) = ending::produced(ReceiverStream::new(chunks));
        let member = self.member.clone();
        // Ends with the last chunk, or when the client goes away and `chunks` is dropped.
        tokio::spawn(async move {
            match stream_range(&member, query, hints, &sender).await {
                Ok(()) => good_end.reached(),
                Err(error) => drop(sender.send(Err(error.into())).await),
            }
        });
        // A refusal is returned at once, as by etcd: nothing has been sent yet, so the client may repeat the call.
        let first = chunks.next().await.transpose()?.map(Ok);
        let chunks: Self::RangeStreamStream = Box::pin(tokio_stream::iter(first).chain(chunks));
        let mut response = Response::new(chunks);
        response.extensions_mut().insert(LongRead);
        Ok(response)
    }

    async fn put(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Method::Put, request).await
    }

    async fn delete_range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Method::DeleteRange, request).await
    }

    async fn txn(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Method::Txn, request).await
    }

    async fn compact(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let pb::CompactionRequest { revision, physical } = decode(request.into_inner())?;
        let header = self.member.handle.compact(Revision(revision), physical).await?;
        Ok(Response::new(encode::header_only(&self.member.ids, header)))
    }
}

/// A read in key order. A long answer is encoded while its client takes it; until then it is a handle per key.
async fn natural_range(
    member: &Member,
    query: RangeQuery,
    hints: ReadHints,
) -> Result<long::Message, KvError> {
    let (limit, contents) = (query.limit, query.contents);
    let mut read = match member.handle.start(query, hints).await? {
        Start::Whole(answer) => return Ok(encode::range(&member.ids, &answer).into()),
        Start::Long(read) => read,
    };
    let mut keys = LongRange::new(contents);
    let mut given = Given::new(limit);
    while !given.is_whole(&read) {
        keys.push(given.cut(read.next().await?));
    }
    Ok(keys.finish(&member.ids, read.header, given.tail(&read)))
}

/// How much of a long read was given to its client. The keys themselves decide where it ends, never a count.
struct Given {
    keys: u64,
    /// Keys that the limit still allows.
    room: u64,
    /// Whether the limit cut off keys.
    more: bool,
}

impl Given {
    fn new(limit: usize) -> Self {
        let room = if limit == 0 { u64::MAX } else { limit as u64 };
        Self { keys: 0, room, more: false }
    }

    /// Cuts a chunk at the limit.
    fn cut(&mut self, mut chunk: Vec<Version>) -> Vec<Version> {
        let room = usize::try_from(self.room).unwrap_or(usize::MAX);
        self.more |= chunk.len() > room;
        chunk.truncate(room);
        self.keys += chunk.len() as u64;
        self.room -= chunk.len() as u64;
        chunk
    }

    /// Whether nothing more is to be given. If the read goes on behind the limit, it has at least one more key.
    fn is_whole(&mut self, read: &handle::LongRead) -> bool {
        self.more |= self.room == 0 && !read.is_done();
        self.more || read.is_done()
    }

    fn tail(&self, read: &handle::LongRead) -> encode::RangeTail {
        let count = if self.more { read.count } else { self.keys };
        encode::RangeTail { more: self.more, count }
    }
}

/// Sends a range in key order, with header, `more` and `count` only in the last chunk. If the pin is lost to a
/// compaction, the stream ends as compacted.
async fn stream_range(
    member: &Member,
    query: RangeQuery,
    hints: ReadHints,
    to: &mpsc::Sender<Result<Bytes, Status>>,
) -> Result<(), KvError> {
    let (limit, contents, count_only) = (query.limit, query.contents, query.count_only);
    let mut long = match member.handle.start(query, hints).await? {
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
    let mut given = Given::new(limit);
    loop {
        let chunk = given.cut(long.next().await?);
        let end = given.is_whole(&long).then(|| (long.header, given.tail(&long)));
        let done = end.is_some();
        let message = encode::range_chunk(&member.ids, &chunk, contents, end);
        if to.send(Ok(message)).await.is_err() || done {
            return Ok(());
        }
    }
}
