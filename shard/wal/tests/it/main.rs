//! The logs of a shard: what they write, and what is read back.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod decoder;
mod golden;
mod log;
mod recovery;
