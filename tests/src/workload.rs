//! Concurrent clients that write, read, list and watch at random, and record the answers for `kindred-checker`. They
//! draw everything from seeded generators and use only tokio's clock. So they work against processes (`guarantees`) and
//! in a simulation (`netsim`) alike.

pub mod caller;
pub mod crowd;
pub mod keys;
pub mod leased;
pub mod recorder;
pub mod stream;
pub mod watchers;
pub mod wire;
pub mod workers;
