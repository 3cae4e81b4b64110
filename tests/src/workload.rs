//! Concurrent clients that write, read, list and watch at random, and write down what they were answered for
//! `kindred-checker`. They draw everything from seeded generators and live on tokio's clock, so that they work against
//! processes (`guarantees`) and in a simulation (`netsim`) alike.

pub mod caller;
pub mod crowd;
pub mod keys;
pub mod leased;
pub mod recorder;
pub mod stream;
pub mod watchers;
pub mod wire;
pub mod workers;
