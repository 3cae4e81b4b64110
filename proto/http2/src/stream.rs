//! One stream: what it has received, and what waits to be sent on it.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

use crate::{hpack::encoder::Trailers, output::Output};

/// The length of the prefix of a message of gRPC: whether it is compressed, and how long it is.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The prefix of a message that is not compressed.
#[inline]
pub(crate) fn prefix(length: u32) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = length.to_be_bytes();
    [0, a, b, c, d]
}

/// A part of what waits on a stream.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The prefix of a message, of which some bytes may have gone.
    Prefix {
        bytes: [u8; PREFIX_BYTES],
        gone: usize,
    },
    Data(Bytes),
}

/// The state of a stream that is open on at least one side.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Zero is no stream.
    pub(crate) id: u32,
    /// Whether the client may still send.
    pub(crate) receiving: bool,
    pub(crate) head_sent: bool,
    /// Whether it waits in one of the queues of streams that can send.
    pub(crate) scheduled: bool,
    /// Whether the caller is told when the queue is short again.
    pub(crate) writable_wanted: bool,
    /// What ends the answer, behind the queue.
    pub(crate) trailers: Option<Trailers>,
    queue: VecDeque<Piece>,
    pub(crate) queued: usize,
    /// What the client takes. It is negative when the client has made its windows smaller.
    pub(crate) send_window: i32,
    /// What the client may send. It is negative when our window became smaller.
    pub(crate) receive_window: i32,
    /// Bytes in the hands of the caller.
    pub(crate) unreleased: u32,
    /// Released bytes that the client has not been told of.
    pub(crate) credit: u32,
    /// What the body still has to have, where the client has said its length.
    pub(crate) body_left: Option<u64>,
}

/// What a stream begins with.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Begin {
    pub(crate) id: u32,
    pub(crate) receiving: bool,
    pub(crate) send_window: i32,
    pub(crate) receive_window: i32,
    pub(crate) body_left: Option<u64>,
}

impl From<Begin> for Stream {
    fn from(begin: Begin) -> Self {
        Self {
            id: begin.id,
            receiving: begin.receiving,
            head_sent: false,
            scheduled: false,
            writable_wanted: false,
            trailers: None,
            queue: VecDeque::new(),
            queued: 0,
            send_window: begin.send_window,
            receive_window: begin.receive_window,
            unreleased: 0,
            credit: 0,
            body_left: begin.body_left,
        }
    }
}

impl Stream {
    /// Begins in the place of a stream that has ended, on which nothing waits.
    #[inline]
    pub(crate) fn begin(&mut self, begin: Begin) {
        debug_assert!(
            self.queue.is_empty() && self.trailers.is_none() && self.queued == 0,
            "something waits"
        );
        self.id = begin.id;
        self.receiving = begin.receiving;
        self.head_sent = false;
        self.scheduled = false;
        self.writable_wanted = false;
        self.send_window = begin.send_window;
        self.receive_window = begin.receive_window;
        self.unreleased = 0;
        self.credit = 0;
        self.body_left = begin.body_left;
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        self.queued += piece.len();
        self.queue.push_back(piece);
    }

    /// Moves bytes from the queue to the output. The queue has as many.
    pub(crate) fn take(&mut self, mut length: usize, output: &mut Output) {
        self.queued -= length;
        while length > 0
            && let Some(piece) = self.queue.front_mut()
        {
            let taken = piece.len().min(length);
            length -= taken;
            match piece {
                Piece::Prefix { bytes, gone } => {
                    output.bytes().extend_from_slice(&bytes[*gone..*gone + taken]);
                    *gone += taken;
                }
                Piece::Data(bytes) if bytes.len() == taken => output.payload(std::mem::take(bytes)),
                // A small part is copied in any case, so it needs no handle of its own.
                Piece::Data(bytes) if taken <= crate::output::COPY_BYTES_MAX => {
                    output.bytes().extend_from_slice(&bytes[..taken]);
                    bytes.advance(taken);
                }
                Piece::Data(bytes) => output.payload(bytes.split_to(taken)),
            }
            if piece.len() == 0 {
                self.queue.pop_front();
            }
        }
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Prefix { gone, .. } => PREFIX_BYTES - gone,
            Self::Data(bytes) => bytes.len(),
        }
    }
}
