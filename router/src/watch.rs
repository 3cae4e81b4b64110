//! Watch streams of clients, served from the watches of stores.
//!
//! A watch over ranges of shards reads a feed ([`crate::feeds`]), which all clients of the router share; the watch is a
//! position on it. A watch of a single key, or on a stock etcd, has an upstream watch of its own at its store.
//!
//! Each client stream has one task, the [`session::Session`]. It owns the watches of the stream, their positions, and
//! one upstream stream ([`upstream`]) for each store that has upstream watches of its own. Messages pass as bytes; the
//! router rewrites only the watch id and the header.
//!
//! * **Position.** For every watch the session knows the next revision to deliver to the client. When an upstream
//!   stream breaks, the session creates its watches again at their own positions; the client's stream and the watches
//!   on other stores go on. If the store has compacted a position, it answers `compacted` and the client gets that
//!   answer. So a dead store delays its own watches only, and no event is lost.
//! * **Order of `created`.** Creates are answered in the order of the requests, also across stores, because clients
//!   match answers to requests by order. So a create is sent to a store only when all earlier creates on other stores
//!   are answered. A create that waits for a store that is down is refused after [`session::CREATE_WAIT`], so that it
//!   does not block later creates on live stores for ever.
//! * **Slow clients.** When a client does not read, its session stops reading its upstream streams. A stream that has
//!   been left unread for [`upstream::STALLED_MAX`] is closed, because it holds the windows of a shared connection. It
//!   is opened again at the positions of its watches when the client reads on.
//! * **Progress** follows [`kindred_router_core::progress`].

pub mod deliver;
pub mod message;
pub mod moved;
mod readers;
pub mod round;
pub mod session;
pub mod upstream;
