//! Small runs of the benchmarks, and the instructions of a fixed script.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod instructions;
mod scale;
mod standby;
mod table;
