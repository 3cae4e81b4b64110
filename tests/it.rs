//! Every suite over running processes, in one executable.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod compatibility;
mod crash;
mod deploy;
mod differential;
mod doors;
mod e2e;
mod failover;
mod guarantees;
mod kills;
mod kube;
mod moves;
mod order;
mod page;
mod pitfalls;
mod readme;
mod robustness;
mod upgrade;
mod wire;
