//! One client's watch stream: its watches and their positions, the order of its answers, and what it reads next.
//!
//! A state machine: what happens goes in as an [`Event`] with the time, and what it uses of its router is an
//! [`Outside`]. `router/src/watch` runs it for clients, the simulation for its own.
//!
//! * **Position.** For every watch the session knows the next revision to deliver to the client. When a store's stream
//!   breaks, the session creates its watches again at their own positions; the client's stream and the watches on other
//!   stores go on. If the store has compacted a position, it answers `compacted` and the client gets that answer. So a
//!   dead store delays its own watches only, and no event is lost.
//! * **Order of `created`.** Creates are answered in the order of the requests, also across stores, because clients
//!   match answers to requests by order. So a create is sent to a store only when all earlier creates on other stores
//!   are answered. A create that waits for a store that is down is refused after [`CREATE_WAIT`], so that it does not
//!   block later creates on live stores for ever.
//! * **Slow clients.** While a client does not read, its session takes no messages of its stores.
//! * **Progress** follows [`crate::progress`].

mod creates;
mod deliver;
mod message;
mod moved;
mod outside;
mod readers;
mod round;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod types;

pub use creates::CREATE_WAIT;
pub use outside::{Count, FeedReader, Outside, Rung};
pub use round::ROUND_MAX;
pub use state::Session;
pub use types::{Ask, End, Event, FeedNo, Origin, Present, Said, Settings};
