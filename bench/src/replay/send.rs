//! Sends the requests of a trace.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::kv_client::KvClient;
use kindred_proto::etcdserverpb::lease_client::LeaseClient;
use kindred_proto::etcdserverpb::response_op::Response;
use kindred_proto::etcdserverpb::watch_client::WatchClient;
use kindred_proto::etcdserverpb::watch_request::RequestUnion;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::line::Request;
use super::live::{Answer, Ready, compare_with};

/// How a request ended.
#[derive(Debug)]
pub struct Done {
    pub took: Duration,
    pub sent: Request,
    pub answer: Result<Answer, Status>,
    /// The events of a watch.
    pub events: u64,
    /// Whether a key was read first.
    pub read_first: bool,
}

/// Sends a request on this connection. A watch is open until `close`.
pub async fn send(
    channel: Channel,
    ready: Ready,
    limit: Duration,
    close: Option<oneshot::Receiver<()>>,
) -> Done {
    let Ready { mut request, read_first } = ready;
    let reads = read_first.is_some();
    if let (Some(key), Request::Txn(txn)) = (read_first, &mut request) {
        // Where the key does not exist, the compare is sent as it was recorded, and fails.
        if let Ok(Some(revision)) = within(limit, revision_of(channel.clone(), key)).await {
            compare_with(txn, revision);
        }
    }
    let began = Instant::now();
    let mut events = 0;
    let answer = match &request {
        Request::Watch(create) => watch(channel, create.clone(), limit, close, &mut events).await,
        other => within(limit, call(channel, other.clone())).await,
    };
    Done { took: began.elapsed(), sent: request, answer, events, read_first: reads }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded("no answer in time"));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

async fn revision_of(channel: Channel, key: Bytes) -> Result<Option<i64>, Status> {
    let range = pb::RangeRequest { key, keys_only: true, ..Default::default() };
    let answer = kv(channel).range(range).await?.into_inner();
    Ok(answer.kvs.first().map(|kv| kv.mod_revision))
}

fn seen(range: &pb::RangeResponse) -> impl Iterator<Item = (Bytes, i64)> + '_ {
    range.kvs.iter().map(|kv| (kv.key.clone(), kv.mod_revision))
}

fn header(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

async fn call(channel: Channel, request: Request) -> Result<Answer, Status> {
    let mut answer = Answer::default();
    match request {
        Request::Range(range) => {
            let said = kv(channel).range(range).await?.into_inner();
            answer.revision = header(said.header.as_ref());
            answer.seen.extend(seen(&said));
        }
        Request::RangeStream(range) => {
            let mut parts = kv(channel).range_stream(range).await?.into_inner();
            while let Some(part) = parts.message().await? {
                if let Some(said) = part.range_response {
                    answer.revision = header(said.header.as_ref()).max(answer.revision);
                    answer.seen.extend(seen(&said));
                }
            }
        }
        Request::Put(put) => {
            answer.revision = header(kv(channel).put(put).await?.into_inner().header.as_ref())
        }
        Request::DeleteRange(delete) => {
            answer.revision = header(kv(channel).delete_range(delete).await?.into_inner().header.as_ref());
        }
        Request::Txn(txn) => {
            let said = kv(channel).txn(txn).await?.into_inner();
            answer.revision = header(said.header.as_ref());
            answer.succeeded = Some(said.succeeded);
            for op in &said.responses {
                if let Some(Response::ResponseRange(range)) = &op.response {
                    answer.seen.extend(seen(range));
                }
            }
        }
        Request::LeaseGrant(grant) => {
            let said = LeaseClient::new(channel).lease_grant(grant).await?.into_inner();
            (answer.revision, answer.lease) = (header(said.header.as_ref()), said.id);
        }
        Request::LeaseRevoke(revoke) => {
            let said = LeaseClient::new(channel).lease_revoke(revoke).await?.into_inner();
            answer.revision = header(said.header.as_ref());
        }
        Request::LeaseKeepAlive(renew) => {
            // The stream stays open until the answer is here, because a server ends the call when the client's half ends.
            let requests = tokio_stream::once(renew).chain(tokio_stream::pending());
            let mut answers = LeaseClient::new(channel).lease_keep_alive(requests).await?.into_inner();
            let said = answers.message().await?.ok_or_else(|| Status::unavailable("the stream ended"))?;
            answer.revision = header(said.header.as_ref());
        }
        Request::Watch(_) => return Err(Status::internal("a watch is no call")),
    }
    Ok(answer)
}

/// Watches until it is told to end, and counts the events.
async fn watch(
    channel: Channel,
    create: pb::WatchCreateRequest,
    limit: Duration,
    close: Option<oneshot::Receiver<()>>,
    events: &mut u64,
) -> Result<Answer, Status> {
    let (requests, queue) = mpsc::channel(1);
    let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let gone = |_| Status::internal("the queue of a new stream has room");
    requests.try_send(create).map_err(gone)?;
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let opening = async {
        let mut answers = client.watch(ReceiverStream::new(queue)).await?.into_inner();
        let created = answers.message().await?.ok_or_else(ended)?;
        check(&created)?;
        Ok((answers, created))
    };
    let (mut answers, created) = within(limit, opening).await?;
    let answer = Answer { revision: header(created.header.as_ref()), ..Answer::default() };
    let closed = async {
        match close {
            // The sender is dropped when the replay is over.
            Some(close) => drop(close.await),
            None => std::future::pending().await,
        }
    };
    let mut closed = std::pin::pin!(closed);
    loop {
        tokio::select! {
            () = closed.as_mut() => return Ok(answer),
            message = answers.message() => {
                let message = message?.ok_or_else(ended)?;
                check(&message)?;
                *events += message.events.len() as u64;
            }
        }
    }
}

fn ended() -> Status {
    Status::unavailable("the stream of the watch ended")
}

fn check(message: &pb::WatchResponse) -> Result<(), Status> {
    if !message.canceled {
        return Ok(());
    }
    let code = if message.compact_revision > 0 { Code::OutOfRange } else { Code::Cancelled };
    Err(Status::new(code, message.cancel_reason.clone()))
}
