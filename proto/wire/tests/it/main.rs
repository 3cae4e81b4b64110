//! Our reading and writing of messages beside prost's, of batches, and of what is fenced.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod against_prost;
mod batch;
mod fence;
mod optimistic;
mod rope;
