//! Pure: routers, shards, their clocks and the network between them, simulated from a seed. What runs is the product: a
//! shard's loop, and a router's feeds, watch streams, reads, deletes, leases and compactions. What is simulated is time,
//! chance, and messages. One seed is one run, always the same.
//!
//! | module | what |
//! | --- | --- |
//! | [`world`] | virtual time, the scheduler, chance |
//! | [`clocks`], [`net`] | wall clocks, links |
//! | [`shard`], [`router`] | the processes |
//! | [`client`] | what clients do |
//! | [`history`] | what happened |
//! | [`invariants`] | what must hold, a file for each |
//! | [`sabotage`] | what can be broken on purpose |
//! | [`run`], [`many`] | a seed, and many |
//!
//! Shards stall and lose connections here; they do not restart, because what survives a restart is a log's business
//! (R2, R10).

#![forbid(unsafe_code)]

pub mod client;
pub mod clocks;
pub mod history;
pub mod invariants;
pub mod many;
pub mod messages;
pub mod net;
pub mod router;
pub mod run;
pub mod sabotage;
pub mod shard;
pub mod topology;
pub mod truth;
pub mod world;
