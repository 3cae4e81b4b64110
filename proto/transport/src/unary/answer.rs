//! The body of an answer: a prefix, a message and the trailers of success, or the body that tonic made.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Buf as _;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::{Body, Frame};
use kindred_wire::rope::Rope;
use tonic::Status;

use super::long::{FRAME_BYTES, LongMessage, Message, prefix};
use super::message::PREFIX_BYTES;
use super::piece::Piece;
use crate::metrics::calls::Counting;
use crate::server::Open;
use crate::unread::{LongRead, Unread, UnreadBody};

/// The body of an answer.
#[derive(Debug)]
pub struct AnswerBody {
    next: Next,
    /// Keeps its stream counted as open.
    _open: Option<Open>,
    /// The call that it answers, if that has not ended before its body.
    counting: Option<Counting>,
}

#[derive(Debug)]
enum Next {
    Message([u8; PREFIX_BYTES], Rope),
    Trailers,
    End,
    Tonic(tonic::body::Body),
    /// A long body that the client takes piece by piece.
    Long(UnreadBody),
}

impl AnswerBody {
    /// A message, followed by the status OK.
    ///
    /// # Errors
    /// When it is too long for a prefix; the text is tonic's.
    pub fn message(message: Message, unread: &Unread) -> Result<Self, Status> {
        match message {
            Message::Whole(rope) if rope.len() <= FRAME_BYTES => {
                Ok(Self::of(Next::Message(prefix(rope.len())?, rope)))
            }
            long => Ok(Self::of(Next::Long(unread.message(LongMessage::of(long)?)))),
        }
    }

    /// No body: the headers have the status.
    #[must_use]
    pub fn none() -> Self {
        Self::of(Next::End)
    }

    /// Wraps an answer of tonic's.
    #[must_use]
    pub fn tonic(response: Response<tonic::body::Body>, unread: &Unread) -> Response<Self> {
        let long = response.extensions().get::<LongRead>().is_some();
        response.map(|body| Self::of(if long { Next::Long(unread.stream(body)) } else { Next::Tonic(body) }))
    }

    fn of(next: Next) -> Self {
        Self { next, _open: None, counting: None }
    }

    /// Counts what the body sends, and the call as ended with the status of its trailers.
    pub(crate) fn counted(self, counting: Counting) -> Self {
        Self { counting: Some(counting), ..self }
    }

    /// Marks this as the answer of an open stream.
    pub(crate) fn open(self, open: Open) -> Self {
        Self { _open: Some(open), ..self }
    }
}

impl Body for AnswerBody {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let frame = this.poll_next(cx);
        if let (Some(counting), Poll::Ready(Some(ended))) = (&mut this.counting, &frame) {
            count(counting, ended);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.next {
            Next::Message(..) | Next::Trailers => false,
            Next::End => true,
            Next::Tonic(body) => body.is_end_stream(),
            Next::Long(long) => long.is_end(),
        }
    }
}

/// Counts a frame of a call's answer.
fn count(counting: &mut Counting, frame: &Result<Frame<Piece>, Status>) {
    match frame {
        Ok(frame) => {
            if let Some(data) = frame.data_ref() {
                counting.calls.sent(data.remaining());
            } else if let Some(status) = frame.trailers_ref().and_then(Status::from_header_map) {
                counting.end(status.code());
            }
        }
        Err(status) => counting.end(status.code()),
    }
}

impl AnswerBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let this = self;
        if let Next::Tonic(body) = &mut this.next {
            let frame = Pin::new(body).poll_frame(cx);
            return frame.map_ok(|frame| frame.map_data(Piece::from));
        }
        if let Next::Long(long) = &mut this.next {
            return long.poll_next(cx);
        }
        Poll::Ready(match std::mem::replace(&mut this.next, Next::End) {
            Next::Message(prefix, message) => {
                this.next = Next::Trailers;
                Some(Ok(Frame::data(Piece::new(prefix, message))))
            }
            Next::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
            Next::End | Next::Tonic(_) | Next::Long(_) => None,
        })
    }
}
