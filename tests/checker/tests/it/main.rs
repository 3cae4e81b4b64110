//! The checker finds what breaks a guarantee, and nothing in a history that breaks none.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod pitfalls;
mod read_mutations;
mod support;
mod valid;
mod watch_mutations;
