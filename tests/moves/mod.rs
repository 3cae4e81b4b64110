//! Moves under load. Clients write, read, list in pages, watch and hold leases through two routers of a `kindred up`,
//! while Kinds move, split and merge, and a ring grows and shrinks. No request may be refused, no watch may end, and
//! the history that the clients recorded must fulfil etcd's guarantees, as in `guarantees`.
//!
//! `KINDRED_MOVES_SWITCHES` is the number of switches in each test. `KINDRED_MOVES_SEED` is the seed of the clients'
//! requests. A history that breaks a guarantee is stored, and the test `replay` of `guarantees` checks it again.

mod changes;
mod fire;
mod held;

use std::time::Duration;

use kindred_tests::scenario::{self, env_number, report};

use changes::Program;

const LIMIT: Duration = Duration::from_secs(900);
const SWITCHES: u64 = 8;

fn under_fire(name: &'static str, program: Program) {
    scenario::run(name, LIMIT, |dir| async move {
        let switches = env_number("KINDRED_MOVES_SWITCHES", SWITCHES)?;
        let seed = env_number("KINDRED_MOVES_SEED", 1)?;
        let done = fire::run(&dir, name, program, switches, seed).await?;
        report(&format!("moves test={name} seed={seed} {done}"));
        Ok(())
    });
}

#[test]
fn there_and_back() {
    under_fire("there_and_back", Program::ThereAndBack);
}

#[test]
fn split_and_merged() {
    under_fire("split_and_merged", Program::SplitAndMerged);
}

#[test]
fn a_ring_grows_and_shrinks() {
    under_fire("a_ring_grows_and_shrinks", Program::Ring);
}
