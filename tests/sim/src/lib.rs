//! Pure: routers, shards, their clocks and the network between them, simulated from a seed. What runs is the product: a
//! shard's loop, and a router's feeds, watch streams, reads, deletes, leases, compactions and moves. What is simulated is time,
//! chance, and messages. One seed is one run, always the same.
//!
//! | module | what |
//! | --- | --- |
//! | [`world`] | virtual time, the scheduler, chance |
//! | [`clocks`], [`net`] | wall clocks, links |
//! | [`shard`], [`router`], [`meta`] | the processes |
//! | [`client`] | what clients do |
//! | [`history`] | what happened |
//! | [`invariants`] | what must hold, a file for each |
//! | [`sabotage`] | what can be broken on purpose |
//! | [`run`], [`many`] | a seed, and many |
//!
//! Shards stall, lose connections, and restart: told to, killed, after a power loss, or with an empty disk. Their files
//! are on a simulated disk, and the product's jobs write them ([`shard::files`]).

#![forbid(unsafe_code)]

pub mod client;
pub mod clocks;
pub mod history;
pub mod invariants;
pub mod many;
pub mod messages;
pub mod meta;
pub mod net;
pub mod router;
pub mod run;
pub mod sabotage;
pub mod shard;
pub mod topology;
pub mod truth;
pub mod world;
