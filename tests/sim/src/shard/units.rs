//! The product's service for moves, without its encoding.

use std::pin::pin;
use std::task::Poll;

use kindred_proto::shard_v1::{self as pb, units_server::Units as _};
use kindred_shard::internal::units::{Outbound, UnitService};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::streams::Inbox;
use crate::messages::{StreamOut, UnitReply, UnitRequest};
use crate::world::World;

/// Messages of a stream that wait for the network, as in the product.
const STREAM_MAX: usize = 2;

pub async fn answer(service: &UnitService, request: UnitRequest) -> Result<UnitReply, Status> {
    Ok(match request {
        UnitRequest::List => {
            UnitReply::Listed(service.list(Request::new(pb::UnitsListRequest {})).await?.into_inner())
        }
        UnitRequest::Together(calls) => {
            UnitReply::Together(service.together(Request::new(calls)).await?.into_inner())
        }
        UnitRequest::Tails(request) => {
            UnitReply::Tails(service.tails(Request::new(request)).await?.into_inner())
        }
        UnitRequest::Import(request) => {
            service.import(Request::new(request)).await.map(Response::into_inner).map(UnitReply::Imported)?
        }
    })
}

pub async fn copy(world: &World, service: &UnitService, inbox: &Inbox, request: pb::CopyRequest) {
    let run = |to| service.clone().send_copy(request, to);
    stream(world, inbox, run, StreamOut::Copied).await;
}

pub async fn verify(world: &World, service: &UnitService, inbox: &Inbox, request: pb::VerifyRequest) {
    let run = |to| service.clone().send_digests(request, to);
    stream(world, inbox, run, StreamOut::Digest).await;
}

enum Step<T> {
    In,
    Message(T),
    Over(Result<(), Status>),
}

/// Sends the messages that `run` makes, until it ends or the router closes the stream.
async fn stream<T, F>(
    world: &World,
    inbox: &Inbox,
    run: impl FnOnce(Outbound<T>) -> F,
    out: impl Fn(Option<T>) -> StreamOut,
) where
    F: Future<Output = Result<(), Status>>,
{
    let (to, mut messages) = mpsc::channel(STREAM_MAX);
    let mut running = pin!(run(to));
    let mut ended = None;
    loop {
        let step = std::future::poll_fn(|context| {
            if inbox.poll(context.waker()).is_ready() {
                return Poll::Ready(Step::In);
            }
            if ended.is_none()
                && let Poll::Ready(end) = running.as_mut().poll(context)
            {
                ended = Some(end);
            }
            if !inbox.may_send() {
                return Poll::Pending;
            }
            match messages.poll_recv(context) {
                Poll::Ready(Some(message)) => Poll::Ready(Step::Message(message)),
                _ => ended.take().map_or(Poll::Pending, |end| Poll::Ready(Step::Over(end))),
            }
        });
        match step.await {
            // Only the end of the stream is still to come.
            Step::In => return,
            Step::Message(Ok(message)) => inbox.send(world, out(Some(message))),
            Step::Message(Err(status)) | Step::Over(Err(status)) => {
                return inbox.send(world, StreamOut::Refused(status));
            }
            Step::Over(Ok(())) => return inbox.send(world, out(None)),
        }
    }
}
