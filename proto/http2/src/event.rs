//! What a client did.

use bytes::Bytes;

use crate::{frame::ErrorCode, head::RequestHead, streams::StreamId};

/// An event of a connection. Events of one stream come in the order of the wire, and nothing follows its `Reset`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request begins. With `end` it has no body.
    Request { stream: StreamId, head: RequestHead, end: bool },
    /// A part of a body. It is empty only with `end`. The caller gives it back by [`crate::Connection::released`].
    Data { stream: StreamId, bytes: Bytes, end: bool },
    /// A body ends with trailers, which have no meaning in gRPC.
    Trailers { stream: StreamId },
    /// The client gave a request up, or the stream broke the protocol. Nothing can be sent any more.
    Reset { stream: StreamId, code: ErrorCode },
    /// The queue of a stream had more than [`crate::Limits::writable_bytes`], and has not any more.
    Writable { stream: StreamId },
    /// The answer to [`crate::Connection::ping`].
    Pong { payload: [u8; 8] },
    /// The client will begin no more requests.
    GoAway { code: ErrorCode },
}
