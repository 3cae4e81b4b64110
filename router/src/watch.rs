//! Watch streams of clients over upstream watch streams of stores.
//!
//! A watch over ranges of shards is a position on a feed ([`crate::feeds`]), which all clients of the router share. A
//! watch on a stock etcd, or of one key, has a watch of its own on its store:
//!
//! Each client stream has one task, the [`session::Session`], which owns everything about it: its watches, their
//! positions, and for every store that they are on one upstream stream ([`upstream`]). Messages pass as bytes; only the
//! watch id and the header are rewritten.
//!
//! * **Position.** The session knows for every watch the next revision that the client has not been given. When an
//!   upstream stream breaks, its watches are created again there at their own positions while the client's stream, and
//!   the watches on other stores, go on. What the store no longer has it answers with `compacted`, and that goes to the
//!   client. So a dead store costs its own watches silence, and nobody an event.
//! * **Order of `created`.** Answers to creates come in the order of the requests, also across stores, because clients
//!   match them so: a create is sent to a store only when all creates before it, on other stores, are answered. One that
//!   waits for a store that is down keeps waiting like on a slow server, for at most [`session::CREATE_WAIT`]; then it is
//!   refused, so that later creates on live stores are not held up for ever.
//! * **Slow clients.** A client that does not read stops its session from reading, and that its upstream streams. After
//!   [`upstream::STALLED_MAX`] they are closed instead of holding the windows of a shared connection, and opened again at
//!   the watches' positions when the client reads on.
//! * **Progress** follows [`kindred_router_core::progress`].

pub mod deliver;
pub mod message;
pub mod moved;
mod readers;
pub mod round;
pub mod session;
pub mod upstream;
