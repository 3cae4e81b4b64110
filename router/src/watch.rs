//! Watch streams of clients, served from the watches of stores.
//!
//! A watch over ranges of shards reads a feed ([`crate::feeds`]), which all clients of the router share; the watch is a
//! position on it. A watch of a single key, or on a stock etcd, has an upstream watch of its own at its store.
//!
//! Each client stream has one task ([`session`]). It runs the stream's machine, [`kindred_router_core::watch_session`],
//! which has all state, over one upstream stream ([`upstream`]) for each store with upstream watches of its own. Messages
//! pass as bytes; the router rewrites only the watch id and the header.
//!
//! An upstream stream that a slow client has left unread for [`upstream::STALLED_MAX`] is closed, because it holds the
//! windows of a shared connection. It is opened again at the positions of its watches when the client reads on.

pub mod around;
pub mod session;
pub mod upstream;
