//! The HTTP/2 machine against the client of the crate h2 and under h2spec.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod echo;
mod h2_client;
mod h2spec;
