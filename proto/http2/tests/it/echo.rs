//! A server that returns what it gets, on top of a [`Connection`], with the I/O that a product would have.

use std::{collections::HashMap, io, io::IoSlice, sync::Arc};

use bytes::{Bytes, BytesMut};
use kindred_http2::{Block, Connection, Event, Limits, Path, RouteId, Routes, StreamId, Trailers};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The message of the request is the message of the answer.
pub const UNARY: (&str, RouteId) = ("/echo/Unary", RouteId(1));
/// Each byte of the request's body is a byte of the answer's.
pub const STREAM: (&str, RouteId) = ("/echo/Stream", RouteId(2));
/// Each part of a body is returned as a message of its own, and the call fails in the end.
pub const FAIL: (&str, RouteId) = ("/echo/Fail", RouteId(3));

/// The calls of one connection.
struct Echo {
    connection: Connection,
    calls: HashMap<StreamId, Call>,
}

struct Call {
    route: Option<RouteId>,
    body: BytesMut,
    /// Bytes that are released when the answer's queue is short again.
    unreleased: usize,
}

/// What a stream may have queued before its body is not read any more.
const QUEUED_MAX: usize = 64 * 1024;

impl Echo {
    fn on(&mut self, event: Event) {
        match event {
            Event::Request { stream, head, end } => {
                let route = match head.path {
                    Path::Known(route) => Some(route),
                    Path::Unknown(_) => None,
                };
                self.calls.insert(stream, Call { route, body: BytesMut::new(), unreleased: 0 });
                self.body(stream, Bytes::new(), end);
            }
            Event::Data { stream, bytes, end } => self.body(stream, bytes, end),
            Event::Trailers { stream } => self.body(stream, Bytes::new(), true),
            Event::Reset { stream, .. } => drop(self.calls.remove(&stream)),
            Event::Writable { stream } => {
                if let Some(call) = self.calls.get_mut(&stream) {
                    self.connection.released(stream, std::mem::take(&mut call.unreleased));
                }
            }
            Event::Pong { .. } | Event::GoAway { .. } => {}
        }
    }

    /// What is sent on a stream that has ended goes nowhere, and its reset is the next event.
    fn body(&mut self, stream: StreamId, bytes: Bytes, end: bool) {
        let Some(call) = self.calls.get_mut(&stream) else { return };
        match call.route {
            Some(route) if route == STREAM.1 || route == FAIL.1 => {
                call.unreleased += bytes.len();
                if route == FAIL.1 {
                    let _ended = self.connection.message(stream, &[bytes]);
                } else {
                    let _ended = self.connection.data(stream, [bytes]);
                }
                if self.connection.queued(stream) < QUEUED_MAX {
                    self.connection.released(stream, std::mem::take(&mut call.unreleased));
                }
            }
            _ => {
                self.connection.released(stream, bytes.len());
                call.body.extend_from_slice(&bytes);
            }
        }
        if end && let Some(call) = self.calls.remove(&stream) {
            let _ended = match call.route {
                Some(route) if route == UNARY.1 => {
                    let mut message = call.body.freeze();
                    let message = message.split_off(message.len().min(5));
                    let half = message.len() / 2;
                    self.connection.answer(stream, &[message.slice(..half), message.slice(half..)])
                }
                Some(route) if route == FAIL.1 => {
                    self.connection.finish(stream, Block::status(5, "as\nasked").into())
                }
                Some(_) => self.connection.finish(stream, Trailers::Ok),
                // Requests that are not gRPC's have a body, for those who look at HTTP.
                None => self
                    .connection
                    .message(stream, &[call.body.freeze()])
                    .and_then(|()| self.connection.finish(stream, Trailers::Ok)),
            };
        }
    }
}

/// Serves a connection until it ends.
pub async fn serve(io: impl AsyncRead + AsyncWrite, limits: Limits) -> io::Result<()> {
    let routes: Routes = [UNARY, STREAM, FAIL].into_iter().collect();
    let mut echo = Echo { connection: Connection::new(limits, Arc::new(routes)), calls: HashMap::new() };
    let (mut reader, mut writer) = tokio::io::split(io);
    let (mut input, mut events) = (BytesMut::new(), Vec::new());
    loop {
        if echo.connection.is_done() {
            return writer.shutdown().await;
        }
        input.reserve(4096);
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = echo.connection.gather(&mut slices);
        let (mut read, mut written) = (None, None);
        tokio::select! {
            length = writer.write_vectored(&slices[..filled]), if filled > 0 => written = Some(length?),
            length = reader.read_buf(&mut input) => read = Some(length?),
        }
        if let Some(written) = written {
            echo.connection.advance(written, &mut events);
        }
        match read {
            Some(0) => return Ok(()),
            // An error has left a GOAWAY in the output.
            Some(_) => {
                let _failed = echo.connection.receive(&mut input, &mut events);
            }
            None => {}
        }
        for event in events.drain(..) {
            echo.on(event);
        }
    }
}
