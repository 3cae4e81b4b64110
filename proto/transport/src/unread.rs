//! Bounds the memory and the time that answers hold while their clients do not read them.
//!
//! A long answer goes to HTTP/2 piece by piece, as its client makes room. This module accounts for the rest. If a
//! client takes nothing for [`Limits::patience`], its answer is given up with all that it holds: memory here, pins
//! in an engine, the stream to a store. If all answers together hold more than [`Limits::bytes`], those that have
//! stalled longest are given up after [`Limits::grace`]. An answer that waits for its own source is never given up.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf as _;
use http::HeaderMap;
use hyper::body::{Body as _, Frame};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

use crate::rest::{Rest, Share};
use crate::unary::long::LongMessage;
use crate::unary::piece::Piece;

/// The interval between checks.
const TICK: Duration = Duration::from_secs(1);
/// The estimated memory of a stream: the window of the stream behind it and a few chunks.
const STREAM_BYTES: usize = 2 << 20;

/// A response extension that marks its stream as a long read, whose client may stop reading.
#[derive(Debug, Clone, Copy)]
pub struct LongRead;

/// The limits of unread answers.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long an answer may stall.
    pub patience: Duration,
    /// The maximum memory of all answers, in bytes.
    pub bytes: usize,
    /// How long an answer may stall while that maximum is exceeded.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { patience: Duration::from_secs(120), bytes: 1 << 30, grace: Duration::from_secs(5) }
    }
}

/// A server's long answers in progress. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Unread(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    limits: Limits,
    held: HashMap<u64, Weak<Answer>>,
    next: u64,
    /// Whether the checking task runs.
    watched: bool,
}

#[derive(Debug)]
struct Answer(Mutex<State>);

#[derive(Debug)]
struct State {
    source: Source,
    /// When the present piece was ready for the client; `None` while it is still being produced.
    since: Option<Instant>,
}

#[derive(Debug)]
enum Source {
    Message(LongMessage),
    Stream(Body),
    /// The answer was given up, and the client must get this status.
    Cut(Status),
    Over,
}

impl Source {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.held(),
            Self::Stream(_) => STREAM_BYTES,
            Self::Cut(_) | Self::Over => 0,
        }
    }
}

impl Answer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unread {
    /// Uses other limits than the defaults.
    #[must_use]
    pub fn with(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Answers { limits, ..Answers::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of an answer with one long message.
    pub(crate) fn message(&self, message: LongMessage) -> UnreadBody {
        self.hold(Source::Message(message))
    }

    /// The body of a streaming answer.
    pub(crate) fn stream(&self, body: Body) -> UnreadBody {
        self.hold(Source::Stream(body))
    }

    fn hold(&self, source: Source) -> UnreadBody {
        let answer = Arc::new(Answer(Mutex::new(State { source, since: Some(Instant::now()) })));
        let mut answers = self.lock();
        let id = answers.next;
        answers.next += 1;
        answers.held.insert(id, Arc::downgrade(&answer));
        if !std::mem::replace(&mut answers.watched, true) {
            tokio::spawn(self.clone().watch());
        }
        UnreadBody { unread: self.clone(), id, answer, share: Share::default(), rest: Rest::default() }
    }

    /// Checks the answers until none are left.
    async fn watch(self) {
        loop {
            tokio::time::sleep(TICK).await;
            let held: Vec<Arc<Answer>> = {
                let mut answers = self.lock();
                if answers.held.is_empty() {
                    answers.watched = false;
                    return;
                }
                answers.held.values().filter_map(Weak::upgrade).collect()
            };
            self.look(&held, Instant::now());
        }
    }

    fn look(&self, held: &[Arc<Answer>], now: Instant) {
        let limits = self.lock().limits;
        let mut standing = Vec::new();
        let mut bytes = 0;
        for (at, answer) in held.iter().enumerate() {
            let state = answer.lock();
            let holds = state.source.bytes();
            bytes += holds;
            if let Some(since) = state.since.filter(|_| holds > 0) {
                standing.push(Standing { at, stood: now.saturating_duration_since(since), bytes: holds });
            }
        }
        for Standing { at, stood, bytes } in given_up(standing, bytes, limits) {
            tracing::warn!(
                stood_s = stood.as_secs(),
                bytes,
                "a client does not read its answer, which is given up"
            );
            let status = Status::resource_exhausted(format!(
                "kindred: the client has read nothing of this answer for {} s, so it was given up; read faster, or ask for \
                 less at a time with a limit",
                stood.as_secs()
            ));
            let mut state = held[at].lock();
            let source = std::mem::replace(&mut state.source, Source::Cut(status));
            drop(state);
            // Outside the lock, because this also drops streams and pins.
            drop(source);
        }
    }
}

/// An answer that its client does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    at: usize,
    stood: Duration,
    bytes: usize,
}

/// The answers to give up, where all answers together hold `bytes`.
fn given_up(mut standing: Vec<Standing>, mut bytes: usize, limits: Limits) -> Vec<Standing> {
    standing.sort_by_key(|answer| std::cmp::Reverse(answer.stood));
    standing.retain(|answer| {
        let over = bytes > limits.bytes && answer.stood >= limits.grace;
        let gone = over || answer.stood >= limits.patience;
        bytes -= if gone { answer.bytes } else { 0 };
        gone
    });
    standing
}

/// The body of a long answer. Dropping it frees everything that it holds.
#[derive(Debug)]
pub struct UnreadBody {
    unread: Unread,
    id: u64,
    answer: Arc<Answer>,
    /// What HTTP/2 was given in this turn.
    share: Share,
    rest: Rest,
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.unread.lock().held.remove(&self.id);
    }
}

impl UnreadBody {
    /// The next frame, polled when HTTP/2 has room for one.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        ready!(self.rest.poll_over(cx));
        let mut state = self.answer.lock();
        let next = match &mut state.source {
            Source::Message(message) => match message.next_piece() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => {
                    state.source = Source::Over;
                    let mut trailers = HeaderMap::with_capacity(1);
                    trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("0"));
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                }
            },
            Source::Stream(body) => Pin::new(body).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::from)),
            Source::Cut(status) => {
                let mut trailers = HeaderMap::new();
                let told = status.add_header(&mut trailers).map(|()| Frame::trailers(trailers));
                state.source = Source::Over;
                Poll::Ready(Some(told))
            }
            Source::Over => Poll::Ready(None),
        };
        state.since = next.is_ready().then(Instant::now);
        if let Poll::Ready(Some(Ok(frame))) = &next
            && let Some(data) = frame.data_ref()
        {
            self.share.pay(data.remaining());
            if self.share.is_spent() {
                self.rest.begin(cx);
            }
        }
        next
    }

    pub(crate) fn is_end(&self) -> bool {
        match &self.answer.lock().source {
            Source::Message(_) | Source::Cut(_) => false,
            Source::Stream(body) => body.is_end_stream(),
            Source::Over => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;
    use kindred_wire::rope::Rope;

    use super::*;
    use crate::unary::long::{FRAME_BYTES, Message};

    fn long(bytes: usize) -> LongMessage {
        LongMessage::of(Message::Whole(Rope::from(Bytes::from(vec![7; bytes])))).unwrap()
    }

    async fn next(body: &mut UnreadBody) -> Option<Result<Frame<Piece>, Status>> {
        poll_fn(|cx| body.poll_next(cx)).await
    }

    fn code(frame: Frame<Piece>) -> Option<String> {
        let trailers = frame.into_trailers().ok()?;
        Some(trailers.get(Status::GRPC_STATUS)?.to_str().unwrap().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn f37_an_answer_that_is_read_comes_whole_however_slowly() {
        let unread = Unread::default();
        let mut body = unread.message(long(3 * FRAME_BYTES));
        let (mut taken, mut status) = (0, None);
        while let Some(frame) = next(&mut body).await {
            match frame.unwrap().into_data() {
                Ok(data) => taken += data.remaining(),
                Err(frame) => status = code(frame),
            }
            tokio::time::sleep(Limits::default().patience - 2 * TICK).await;
        }
        assert_eq!((taken, status.as_deref()), (5 + 3 * FRAME_BYTES, Some("0")));
    }

    #[tokio::test(start_paused = true)]
    async fn f37_an_answer_that_nobody_reads_is_given_up_and_says_so() {
        let unread = Unread::default();
        let mut body = unread.message(long(3 * FRAME_BYTES));
        assert!(next(&mut body).await.unwrap().unwrap().is_data());
        tokio::time::sleep(Limits::default().patience + 2 * TICK).await;
        assert_eq!(body.answer.lock().source.bytes(), 0);
        // The client gets resource exhausted (8), never an end that looks like success.
        assert_eq!(code(next(&mut body).await.unwrap().unwrap()).as_deref(), Some("8"));
        assert!(next(&mut body).await.is_none() && body.is_end());
    }

    #[tokio::test(start_paused = true)]
    async fn f37_what_a_stream_holds_goes_with_it_and_one_that_waits_for_its_store_stays() {
        let unread = Unread::default();
        let (to, messages) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Status>>(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(messages);
        let mut body = unread.stream(Body::new(http_body_util::StreamBody::new(stream)));
        // The client waits, but nothing is there yet.
        assert!(poll_fn(|cx| Poll::Ready(body.poll_next(cx).is_pending())).await);
        tokio::time::sleep(10 * Limits::default().patience).await;
        to.send(Ok(Frame::data(Bytes::from_static(b"x")))).await.unwrap();
        assert!(next(&mut body).await.unwrap().unwrap().is_data());
        to.send(Ok(Frame::data(Bytes::from_static(b"y")))).await.unwrap();
        // The client does not take it, so the producer is cancelled.
        tokio::time::timeout(Limits::default().patience + 2 * TICK, to.closed()).await.unwrap();
        assert_eq!(code(next(&mut body).await.unwrap().unwrap()).as_deref(), Some("8"));
    }

    #[tokio::test(start_paused = true)]
    async fn f37_all_of_them_together_are_bounded() {
        let limits = Limits { bytes: 4 * FRAME_BYTES, ..Limits::default() };
        let unread = Unread::with(limits);
        let mut bodies: Vec<_> = (0..6).map(|_| unread.message(long(2 * FRAME_BYTES))).collect();
        tokio::time::sleep(limits.grace - TICK).await;
        // The client of the first one reads.
        assert!(next(&mut bodies[0]).await.unwrap().unwrap().is_data());
        tokio::time::sleep(3 * TICK).await;
        let held = |body: &UnreadBody| body.answer.lock().source.bytes();
        assert!(held(&bodies[0]) > 0);
        assert!(bodies.iter().map(held).sum::<usize>() <= limits.bytes);
        drop(bodies);
        assert!(unread.lock().held.is_empty());
        tokio::time::sleep(2 * TICK).await;
        assert!(!unread.lock().watched);
    }

    #[test]
    fn f37_the_longest_standing_go_first_and_no_more_than_is_needed() {
        let limits = Limits { patience: Duration::from_secs(100), bytes: 10, grace: Duration::from_secs(5) };
        let standing = |at, seconds, bytes| Standing { at, stood: Duration::from_secs(seconds), bytes };
        let gone = |standing: Vec<Standing>, bytes| -> Vec<usize> {
            given_up(standing, bytes, limits).iter().map(|answer| answer.at).collect()
        };
        let three = vec![standing(0, 6, 4), standing(1, 50, 4), standing(2, 4, 4)];
        assert_eq!(gone(three.clone(), 12), [1]);
        assert_eq!(gone(three.clone(), 10), [0; 0]);
        // An answer that stalled only for a moment is not given up for others.
        assert_eq!(gone(three, 40), [1, 0]);
        assert_eq!(gone(vec![standing(0, 100, 1)], 1), [0]);
    }
}
