//! Tests of this crate over real sockets.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod admin;
mod attacks;
mod channel;
mod support;
mod tls;
mod unary;
mod web;
mod workers;
