//! The body of an answer: a prefix, a message and the trailers of success, or the body that tonic made.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::{Body, Frame};
use kindred_wire::rope::Rope;
use tonic::Status;

use super::long::{FRAME_BYTES, LongMessage, Message, prefix};
use super::message::PREFIX_BYTES;
use crate::server::Open;
use crate::unread::{LongRead, Unread, UnreadBody};

/// A part of an answer: the gRPC prefix and the pieces of the message, without joining them.
#[derive(Debug)]
pub struct Piece {
    prefix: [u8; PREFIX_BYTES],
    /// The number of prefix bytes already consumed.
    taken: u8,
    bytes: Rope,
}

impl Piece {
    fn message(prefix: [u8; PREFIX_BYTES], bytes: Rope) -> Self {
        Self { prefix, taken: 0, bytes }
    }

    fn plain(bytes: Bytes) -> Self {
        Self { prefix: [0; PREFIX_BYTES], taken: PREFIX_BYTES as u8, bytes: bytes.into() }
    }

    fn head(&self) -> &[u8] {
        &self.prefix[usize::from(self.taken)..]
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.head().len() + self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        let head = self.head();
        if head.is_empty() { self.bytes.chunk() } else { head }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let head = self.head();
        match into {
            [] => 0,
            into if head.is_empty() => self.bytes.chunks_vectored(into),
            [first, rest @ ..] => {
                *first = IoSlice::new(head);
                1 + self.bytes.chunks_vectored(rest)
            }
        }
    }

    fn advance(&mut self, count: usize) {
        let of_prefix = count.min(self.head().len());
        self.taken += of_prefix as u8;
        self.bytes.advance(count - of_prefix);
    }
}

/// The body of an answer.
#[derive(Debug)]
pub struct AnswerBody {
    next: Next,
    /// Keeps its stream counted as open.
    _open: Option<Open>,
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
        Self { next, _open: None }
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
        if let Next::Tonic(body) = &mut this.next {
            let frame = Pin::new(body).poll_frame(cx);
            return frame.map_ok(|frame| frame.map_data(Piece::plain));
        }
        if let Next::Long(long) = &mut this.next {
            return long.poll_next(cx).map_ok(|frame| frame.map_data(Piece::plain));
        }
        Poll::Ready(match std::mem::replace(&mut this.next, Next::End) {
            Next::Message(prefix, message) => {
                this.next = Next::Trailers;
                Some(Ok(Frame::data(Piece::message(prefix, message))))
            }
            Next::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
            Next::End | Next::Tonic(_) | Next::Long(_) => None,
        })
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

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_piece_is_its_prefix_and_its_bytes_however_it_is_taken(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4),
            steps in prop::collection::vec(1usize..9, 1..9),
        ) {
            let message = pieces.concat();
            let mut rope = Rope::default();
            pieces.into_iter().for_each(|piece| rope.push(piece.into()));
            let AnswerBody { next: Next::Message(prefix, bytes), .. } = AnswerBody::message(rope.into(), &Unread::default()).unwrap()
            else { unreachable!() };
            let mut piece = Piece::message(prefix, bytes);
            let mut expected = vec![0];
            expected.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            expected.extend_from_slice(&message);
            let (mut taken, mut turn) = (Vec::new(), 0);
            while piece.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 5];
                let filled = piece.chunks_vectored(&mut slices);
                let left: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(&left[..], &expected[taken.len()..]);
                prop_assert_eq!(piece.remaining(), left.len());
                let step = steps[turn % steps.len()].min(piece.remaining());
                taken.put(piece.copy_to_bytes(step));
                turn += 1;
            }
            prop_assert_eq!(taken, expected);
        }
    }
}
