//! One upstream feed of a store. The merging task reads it directly, until it breaks.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt as _};
use kindred_partition_config::ids::Revision;
use kindred_proto::shard_v1::{self as pb, feed_request::Request};
use kindred_router_core::feed_event::{FeedEvent, entry};
use kindred_router_core::feed_machine::{Message, OPEN_MAX};
use kindred_router_core::gaps::Gap;
use kindred_wire::scan::WireError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::not_owned::NotOwned;
use crate::stores::Store;
use crate::stores::failure::Failure;

/// Room for the open request and for advances, of which the merge has one under way.
const REQUESTS_MAX: usize = 4;

/// One attempt to read a feed. Dropping it cancels the stream at the store.
pub(super) struct Source {
    responses: Pin<Box<dyn Stream<Item = Vec<Message>> + Send>>,
    ready: VecDeque<Message>,
    asks: mpsc::Sender<pb::FeedRequest>,
}

impl Source {
    /// Opens a feed after a delay.
    #[must_use]
    pub fn open(store: Arc<Store>, open: pb::FeedOpen, delay: Duration, live: bool) -> Self {
        let (asks, requests) = mpsc::channel(REQUESTS_MAX);
        // The queue is empty, so there is room.
        let _ = asks.try_send(pb::FeedRequest { request: Some(Request::Open(open)) });
        let stage = Stage::New { store, requests, live, delay };
        Self { responses: Box::pin(stream::unfold(stage, Stage::step).fuse()), ready: VecDeque::new(), asks }
    }

    /// The next message. The stream is read only here, so a source that is not polled slows its store down.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Message> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Poll::Ready(message);
            }
            match ready!(self.responses.as_mut().poll_next(cx)) {
                Some(messages) => self.ready.extend(messages),
                None => return Poll::Ready(Message::Broken("it is over".to_owned())),
            }
        }
    }

    /// Asks for a watermark. If the queue is full or closed, the stream is about to break.
    pub fn advance(&self, to: Revision) {
        let advance = Request::Advance(pb::FeedAdvance { to: to.get() });
        let _ = self.asks.try_send(pb::FeedRequest { request: Some(advance) });
    }
}

/// The progress of one attempt.
enum Stage {
    New { store: Arc<Store>, requests: mpsc::Receiver<pb::FeedRequest>, live: bool, delay: Duration },
    Open { store: Arc<Store>, stream: Box<Streaming<pb::FeedResponse>>, opened: bool },
    Over,
}

impl Stage {
    /// The next messages and the next stage. The last message says how the stream ended.
    async fn step(self) -> Option<(Vec<Message>, Self)> {
        let (store, mut stream, mut opened) = match self {
            Self::New { store, requests, live, delay } => {
                tokio::time::sleep(delay).await;
                match open(&store, requests, live).await {
                    Ok(stream) => (store, Box::new(stream), false),
                    Err(end) => return Some((vec![end], Self::Over)),
                }
            }
            Self::Open { store, stream, opened } => (store, stream, opened),
            Self::Over => return None,
        };
        loop {
            let response = match next(&mut stream).await {
                Ok(response) => response,
                Err(Some(status)) => return Some((vec![judge(&store, status)], Self::Over)),
                Err(None) => {
                    let why = "the store ended the feed".to_owned();
                    return Some((vec![Message::Broken(why)], Self::Over));
                }
            };
            let moved = response.moved > 0;
            let mut messages = match read(response, &mut opened) {
                Ok(messages) => messages,
                Err(error) => {
                    tracing::error!(store = store.name(), %error, "the store sent an event that does not parse");
                    return Some((vec![Message::Broken(error.to_string())], Self::Over));
                }
            };
            if moved {
                messages.push(Message::Moved);
                return Some((messages, Self::Over));
            }
            if !messages.is_empty() {
                return Some((messages, Self::Open { store, stream, opened }));
            }
        }
    }
}

async fn open(
    store: &Store,
    requests: mpsc::Receiver<pb::FeedRequest>,
    live: bool,
) -> Result<Streaming<pb::FeedResponse>, Message> {
    store.state().wait_up().await;
    let mut client = store.feeds(live);
    let opening = client.feed(ReceiverStream::new(requests));
    match tokio::time::timeout(OPEN_MAX, opening).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(judge(store, status)),
        Err(_) => Err(Message::Broken("the store did not open the feed in time".to_owned())),
    }
}

async fn next(stream: &mut Streaming<pb::FeedResponse>) -> Result<pb::FeedResponse, Option<tonic::Status>> {
    stream.message().await.map_err(Some)?.ok_or(None)
}

/// Turns a response into messages. Only the first response of a stream can be `Opened` or `Lost`.
fn read(response: pb::FeedResponse, opened: &mut bool) -> Result<Vec<Message>, WireError> {
    let mut messages = Vec::new();
    let gap = |gap: pb::Gap| Gap { after: Revision(gap.after), until: Revision(gap.until) };
    let gaps: Vec<_> = response.gaps.into_iter().map(gap).collect();
    if let Some(floor) = Revision::from_wire(response.compacted) {
        let lost = gaps.iter().find(|gap| gap.until == floor && !*opened).copied();
        return Ok(vec![lost.map_or(Message::Compacted(floor), |gap| Message::Lost(gap, gaps))]);
    }
    if !std::mem::replace(opened, true) {
        messages.push(Message::Opened(Revision(response.opened), gaps));
    }
    let mut batch = Vec::new();
    let mut events = response.events.into_iter().peekable();
    while let Some(first) = events.next() {
        let mut whole = vec![FeedEvent::parse(first.event)?];
        while let Some(more) = events.next_if(|next| next.revision == first.revision) {
            whole.push(FeedEvent::parse(more.event)?);
        }
        batch.push(entry(Revision(first.revision), whole));
    }
    let watermark = Revision::from_wire(response.watermark.max(response.moved));
    if !batch.is_empty() || watermark.is_some() {
        messages.push(Message::More(batch, watermark));
    }
    Ok(messages)
}

/// Reports a failure to the store's monitor, and turns it into the last message.
fn judge(store: &Store, status: tonic::Status) -> Message {
    if NotOwned::of(&status).is_some() {
        return Message::Moved;
    }
    let failure = Failure::of(status);
    match &failure {
        Failure::NotConnected(reason) => store.state().lost(reason),
        Failure::NotSent(_) | Failure::Lost(_) => store.state().suspect(),
        Failure::Answered(_) => {}
    }
    Message::Broken(failure.reason().to_owned())
}
