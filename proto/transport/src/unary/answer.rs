//! The body of an answer that is not sent at once: a long message, or the body that tonic made.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Buf as _;
use http::Response;
use hyper::body::{Body, Frame};
use tonic::Status;

use super::long::{LongMessage, Message};
use super::piece::Piece;
use crate::metrics::calls::Counting;
use crate::unread::{LongRead, Unread, UnreadBody};

/// The body of an answer.
#[derive(Debug)]
pub struct AnswerBody {
    next: Next,
    /// The call that it answers, if that has not ended before its body.
    counting: Option<Counting>,
}

#[derive(Debug)]
enum Next {
    End,
    Tonic(tonic::body::Body),
    /// A long body that the client takes piece by piece.
    Long(UnreadBody),
}

impl AnswerBody {
    /// A message that the client takes piece by piece, followed by the status OK.
    ///
    /// # Errors
    /// When it is too long for a prefix; the text is tonic's.
    pub fn long(message: Message, unread: &Unread) -> Result<Self, Status> {
        Ok(Self::of(Next::Long(unread.message(LongMessage::of(message)?))))
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
        Self { next, counting: None }
    }

    /// Counts what the body sends, and the call as ended with the status of its trailers.
    pub(crate) fn counted(self, counting: Counting) -> Self {
        Self { counting: Some(counting), ..self }
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
        match &mut self.next {
            Next::End => Poll::Ready(None),
            Next::Tonic(body) => Pin::new(body).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::from)),
            Next::Long(long) => long.poll_next(cx),
        }
    }
}
