//! Metrics that a port counts for whatever is served on it, and the text form in which they are read.
//!
//! The counters are plain atomics in tables of this process, so that an answered call costs a few additions, and so
//! that other readers than Prometheus can read them.

pub mod calls;
pub mod exposition;
pub mod histogram;
