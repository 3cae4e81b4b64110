//! One shard, in this process or in one of its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod batches;
mod common;
mod doors;
mod etcd_api;
mod feeds;
mod full_disk;
mod internal;
mod log;
mod older_disk;
mod pitfalls;
mod restarts;
mod units;
mod wrong_clock;
