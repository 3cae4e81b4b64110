//! Pure: routers, shards, a meta store, their clocks and the network between them, simulated from a seed. The code that
//! runs is the product's: a shard's loop, and a router's feeds, watch streams, reads, deletes, leases, compactions and
//! moves. Time, chance and messages are simulated. A seed always gives the same run.
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
//! | [`standbys`] | another simulation: one store, its standbys, and who keeps its record |
//!
//! Shards stall, lose connections, and restart: by request, by a kill, by a power loss, or with an empty disk. Their
//! files are on a simulated disk, and the product's jobs write them ([`shard::files`]).

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
pub mod standbys;
pub mod topology;
pub mod truth;
pub mod world;
