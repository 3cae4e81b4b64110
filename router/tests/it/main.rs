//! A router in this process over shards in processes of their own, and over stores that a test controls.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod batches;
mod clients;
mod clocks;
mod compacted;
mod crashes;
mod deletes;
mod feeds;
mod feeds_shards;
mod identity;
mod lease_moves;
mod meta;
mod modes;
mod moves;
mod openapi;
mod resume;
mod shown;
mod snapshots;
mod spread;
mod support;
mod unread;
mod watch;
mod watch_streams;
