//! The body of an answer that is not sent at once: a long message, or the body that tonic made.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf as _;
use http::{HeaderMap, Response};
use hyper::body::{Body, Frame};
use tonic::Status;

use super::long::{self, LongMessage, Message};
use super::piece::Piece;
use crate::direct::{Direct, Source};
use crate::metrics::calls::Counting;
use crate::unread::{LongRead, Unread, UnreadBody};

/// The body of an answer.
pub struct AnswerBody {
    next: Next,
    /// The call that it answers, if that has not ended before its body.
    counting: Option<Counting>,
}

enum Next {
    End,
    Tonic(tonic::body::Body),
    /// A long body that the client takes piece by piece.
    Long(UnreadBody),
    /// Messages as they come.
    Direct(Source),
}

impl std::fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerBody").finish_non_exhaustive()
    }
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
        if let Some(messages) = response.extensions().get::<Direct>().and_then(Direct::take) {
            return response.map(|_| Self::of(Next::Direct(messages)));
        }
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
            Next::Direct(_) => false,
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
            Next::Direct(messages) => {
                let status = match ready!(messages.as_mut().poll_next(cx)) {
                    Some(Ok(message)) => match long::prefix(message.len()) {
                        Ok(prefix) => return Poll::Ready(Some(Ok(Frame::data(Piece::new(prefix, message))))),
                        Err(status) => status,
                    },
                    Some(Err(status)) => status,
                    None => Status::ok(""),
                };
                self.next = Next::End;
                let mut trailers = HeaderMap::new();
                Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
            }
        }
    }
}
