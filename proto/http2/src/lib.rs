//! The server's side of HTTP/2 (RFC 9113), for gRPC, as a state machine: no I/O, no clock, no tasks.
//!
//! [`Connection`] takes the bytes that arrive ([`Connection::receive`]) and says what they mean ([`Event`]). It takes
//! answers ([`Connection::answer`], or [`Connection::message`] and [`Connection::finish`] for streams) and has the bytes
//! to be sent ([`Connection::gather`], [`Connection::advance`]). Whoever uses it moves the bytes:
//!
//! ```
//! use std::sync::Arc;
//! use bytes::{Bytes, BytesMut};
//! use kindred_http2::{Connection, Event, Limits, Routes};
//!
//! /// Takes what was read, and leaves in the connection what is to be written.
//! fn turn(connection: &mut Connection, input: &mut BytesMut, events: &mut Vec<Event>) {
//!     // An error has queued a GOAWAY, which is to be written before the connection is closed.
//!     let _ended = connection.receive(input, events);
//!     for event in events.drain(..) {
//!         if let Event::Request { stream, .. } = event {
//!             let _gone = connection.answer(stream, &[Bytes::from_static(b"hello")]);
//!         }
//!     }
//! }
//!
//! let mut connection = Connection::new(Limits::default(), Arc::new(Routes::default()));
//! turn(&mut connection, &mut BytesMut::from("PRI * HTTP/2.0"), &mut Vec::new());
//! ```
//!
//! What makes a unary call cheap: a field of the client's header table is interpreted once, when it enters the table
//! ([`RequestHead`], [`Routes`]); an answer whose windows are open goes into the output in one step; payloads are not
//! copied unless they are small; the streams are found without hashing.
//!
//! # Messages
//!
//! The prefix of five bytes before each message of gRPC is written by [`Connection::answer`] and
//! [`Connection::message`], and by nobody else. It is not removed from what arrives: [`Event::Data`] has parts of
//! messages, as they were cut into frames.
//!
//! # Back pressure
//!
//! A client that does not read leaves its answers here. The caller sees how much waits on a stream
//! ([`Connection::queued`]), on all streams ([`Connection::queued_in_all`]) and for the socket
//! ([`Connection::unsent`]), and is told when a stream can take more ([`Event::Writable`]). For the socket there is never
//! much: the rest stays on the streams, of which there are at most [`Limits::streams_max`]. So the caller always reads, and
//! neither side waits for the other to read first. A body that the caller does not release
//! ([`Connection::released`]) closes the window of its stream and of no other.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod event;
#[doc(hidden)]
pub mod exercise;
pub mod frame;
mod head;
mod hpack;
mod limits;
mod output;
mod probe;
mod receive;
mod request;
mod routes;
mod send;
mod stream;
mod streams;

pub use connection::Connection;
pub use error::{ConnectionError, SendError};
pub use event::Event;
pub use frame::ErrorCode;
pub use head::{Common, ContentType, Method, Path, RequestHead, TimeUnit, Timeout};
pub use hpack::encoder::{BadField, Block, Trailers};
pub use limits::Limits;
pub use routes::{RouteId, Routes};
pub use streams::StreamId;

#[cfg(test)]
mod support;
