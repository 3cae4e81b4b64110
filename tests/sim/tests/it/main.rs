//! The simulations over many seeds, and the mistakes that they must notice.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod mutations;
mod replay;
mod seeds;
mod standbys;
mod verbs;
