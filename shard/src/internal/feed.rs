//! Feeds: the loop pushes each feed's messages, and the connection takes them from there. A task reads the router's
//! requests meanwhile.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use kindred_engine::engine::FeedOut;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_proto::{
    raw::feeds::feeds_server::Feeds,
    shard_v1::{self as pb, feed_request::Request as FeedCall},
};
use kindred_transport::ending::broken_off;
use prost::Message;
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::key_ranges;
use crate::{
    convert::units as convert,
    core::{FeedOf, FeedWanted},
    encode,
    etcd::{Member, front::transport_status},
    etcd_status::{KvError, status},
    handle::FeedMessages,
    read_hints::checked,
};

/// Ranges of one feed. A Kind that is split between two stores has as many on each as there are splits.
const RANGES_MAX: usize = 4096;

#[derive(Clone)]
pub struct FeedService(pub Member);

#[tonic::async_trait]
impl Feeds for FeedService {
    type FeedStream = Messages;

    async fn feed(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Messages>, Status> {
        let (opened, stage) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        tokio::spawn(run(self.0.clone(), request.into_inner(), opened, end));
        Ok(Response::new(Messages { stage: Stage::Opening(stage), ended }))
    }
}

/// Reads one feed's requests. Ends when the router is gone, on an error, or when the process stops.
async fn run(
    member: Member,
    requests: Streaming<Bytes>,
    opened: oneshot::Sender<FeedMessages>,
    mut end: oneshot::Sender<Option<Status>>,
) {
    let stopping = member.stopping.clone();
    let served = tokio::select! {
        () = stopping.cancelled() => Err(status(&KvError::Stopped)),
        () = end.closed() => return,
        served = serve(&member, requests, opened) => served,
    };
    // The router may be gone.
    let _ = end.send(served.err());
}

async fn serve(
    member: &Member,
    mut requests: Streaming<Bytes>,
    opened: oneshot::Sender<FeedMessages>,
) -> Result<(), Status> {
    let Some(first) = requests.next().await else { return Ok(()) };
    let FeedCall::Open(open) = call(first)? else {
        return Err(Status::invalid_argument("kindred: a feed begins with open"));
    };
    let (feed, messages) = member.handle.feed(wanted(open)?).await?;
    // The router may be gone.
    let _ = opened.send(messages);
    while let Some(request) = requests.next().await {
        match call(request)? {
            // The engine merges those that wait.
            FeedCall::Advance(advance) => feed.advance(Revision(advance.to)).await?,
            FeedCall::Open(_) => return Err(Status::invalid_argument("kindred: a feed is opened once")),
        }
    }
    // The router closed its sending half; the feed continues while its messages are read.
    std::future::pending().await
}

/// The message stream of one feed.
pub struct Messages {
    stage: Stage,
    /// The final status, if no message tells the end. If the task is dropped without sending one, it has failed.
    ended: oneshot::Receiver<Option<Status>>,
}

enum Stage {
    Opening(oneshot::Receiver<FeedMessages>),
    Open(FeedMessages),
    /// Only the final status is still to come.
    Ending,
    Over,
}

impl Messages {
    /// The next message; `None` when no more will come.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<FeedOut>> {
        loop {
            match &mut self.stage {
                Stage::Opening(opening) => match ready!(Pin::new(opening).poll(cx)) {
                    Ok(messages) => self.stage = Stage::Open(messages),
                    Err(_) => self.stage = Stage::Ending,
                },
                Stage::Open(messages) => return messages.poll_next(cx),
                Stage::Ending | Stage::Over => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for Messages {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if matches!(this.stage, Stage::Over) {
            return Poll::Ready(None);
        }
        match this.poll_message(cx) {
            Poll::Ready(Some(out)) => {
                if out.compacted.is_some() || out.moved.is_some() {
                    this.stage = Stage::Over;
                }
                return Poll::Ready(Some(Ok(encode::feed::response(&out))));
            }
            Poll::Ready(None) => this.stage = Stage::Ending,
            // Pending messages come before the end.
            Poll::Pending => {}
        }
        let end = ready!(Pin::new(&mut this.ended).poll(cx));
        this.stage = Stage::Over;
        Poll::Ready(end.unwrap_or_else(|_| Some(broken_off())).map(Err))
    }
}

fn call(message: Result<Bytes, Status>) -> Result<FeedCall, Status> {
    let message = pb::FeedRequest::decode(message.map_err(transport_status)?).map_err(KvError::from)?;
    message.request.ok_or_else(|| Status::invalid_argument("kindred: a feed's request says nothing"))
}

fn wanted(open: pb::FeedOpen) -> Result<FeedWanted, Status> {
    let pb::FeedOpen { ranges, start, generation, unit } = open;
    let start = convert::revision(start, "start")?;
    if let Some(unit) = unit {
        // The unit determines the ranges.
        return Ok(FeedWanted { of: FeedOf::Unit(convert::unit(unit)?), start });
    }
    let ranges = key_ranges(ranges);
    if ranges.is_empty() || ranges.len() > RANGES_MAX || ranges.iter().any(KeyRange::is_empty) {
        let reason = format!("kindred: a feed has 1 to {RANGES_MAX} ranges, none of them empty");
        return Err(Status::invalid_argument(reason));
    }
    Ok(FeedWanted { of: FeedOf::Ranges { ranges, generation: checked(generation) }, start })
}
