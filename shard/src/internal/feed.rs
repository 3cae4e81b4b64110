//! Feeds: one task for each, which pulls from the engine what the router can take. A router that is slow costs its
//! position in the history and nothing else.

use std::pin::Pin;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_proto::{
    raw::feeds::feeds_server::Feeds,
    shard_v1::{self as pb, feed_request::Request as FeedCall},
};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{key_ranges, units::convert};
use crate::{
    core::{FeedOf, FeedWanted},
    encode,
    etcd::{Member, front::transport_status},
    etcd_status::{KvError, status},
    wish::checked,
};

/// Messages that wait for the connection to take them.
const OUTBOUND_MAX: usize = 4;
/// Bytes pulled from the engine at a time, about.
const PULL_BYTES: usize = 256 << 10;
/// Ranges of one feed.
const RANGES_MAX: usize = 256;

/// The service.
#[derive(Clone)]
pub struct FeedService(pub Member);

type Outbound = mpsc::Sender<Result<Bytes, Status>>;

#[tonic::async_trait]
impl Feeds for FeedService {
    type FeedStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn feed(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Self::FeedStream>, Status> {
        let (sender, messages) = mpsc::channel(OUTBOUND_MAX);
        tokio::spawn(run(self.0.clone(), request.into_inner(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// Ends when the router is gone, the feed is compacted or its keys move, or the process stops.
async fn run(member: Member, requests: Streaming<Bytes>, to: Outbound) {
    let stopping = member.stopping.clone();
    let served = tokio::select! {
        () = stopping.cancelled() => Err(status(&KvError::Stopped)),
        () = to.closed() => return,
        served = serve(&member, requests, &to) => served,
    };
    if let Err(end) = served {
        let _ = to.send(Err(end)).await;
    }
}

async fn serve(member: &Member, mut requests: Streaming<Bytes>, to: &Outbound) -> Result<(), Status> {
    let Some(first) = requests.next().await else { return Ok(()) };
    let FeedCall::Open(open) = call(first)? else {
        return Err(Status::invalid_argument("kindred: a feed begins with open"));
    };
    let feed = member.handle.feed(wanted(open)?).await?;
    let woken = feed.woken();
    let (mut pull, mut half_closed) = (true, false);
    loop {
        tokio::select! {
            () = woken.notified() => pull = true,
            request = requests.next(), if !half_closed => match request.map(call) {
                // Those that wait are one in the engine.
                Some(Ok(FeedCall::Advance(advance))) => feed.advance(Revision(advance.to)).await?,
                Some(Ok(FeedCall::Open(_))) => {
                    return Err(Status::invalid_argument("kindred: a feed is opened once"));
                }
                Some(Err(error)) => return Err(error),
                None => half_closed = true,
            },
            room = to.reserve(), if pull => {
                let Ok(room) = room else { return Ok(()) };
                let out = feed.pull(PULL_BYTES).await?;
                pull = out.is_some();
                let Some(out) = out else { continue };
                room.send(Ok(encode::feed::response(&out)));
                if out.compacted.is_some() || out.moved.is_some() {
                    return Ok(());
                }
            }
        }
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
        // Its ranges say nothing that the unit does not.
        return Ok(FeedWanted { of: FeedOf::Unit(convert::unit(unit)?), start });
    }
    let ranges = key_ranges(ranges);
    if ranges.is_empty() || ranges.len() > RANGES_MAX || ranges.iter().any(KeyRange::is_empty) {
        let reason = format!("kindred: a feed has 1 to {RANGES_MAX} ranges, none of them empty");
        return Err(Status::invalid_argument(reason));
    }
    Ok(FeedWanted { of: FeedOf::Ranges { ranges, generation: checked(generation) }, start })
}
