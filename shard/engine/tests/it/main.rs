//! The engine by example, beside models, and after a crash.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod basics;
mod clocks;
mod common;
mod hash;
mod model;
mod modes_durable;
mod moves;
mod moves_model;
mod moves_named;
mod moves_past;
mod pitfalls;
mod pseudo_key;
mod recovery;
mod retained;
mod units_durable;
