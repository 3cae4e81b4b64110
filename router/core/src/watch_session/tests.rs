//! Promises of a session, one a test, over a router in which only happens what the test says ([`fake`]).
//!
//! A [`client::Client`] takes its session through its turns as `router/src/watch` does. What it hears, and what its
//! session does, are lines of text, so that a test reads like a log.

mod client;
mod creates;
mod delivery;
mod fake;
mod losses;
mod moves;
mod progress;
mod stores;
