//! Moves under fire: clients write, read, list, page, watch and hold leases through two routers of a `kindred up` while
//! Kinds move, are split and merged, and a ring grows and shrinks. No client may be refused anything, no watch may end, and
//! what the clients wrote down must keep etcd's guarantees, as `guarantees` checks them.
//!
//! `KINDRED_MOVES_SWITCHES` is how often keys change hands in each test, `KINDRED_MOVES_SEED` what clients draw their
//! requests from. A history that breaks a guarantee is kept; the test `replay` of `guarantees` checks it again.

mod changes;
mod fire;
mod held;

use std::time::Duration;

use kindred_tests::scenario::{self, env_number, report};
use parking_lot::Mutex;

use changes::Program;

const LIMIT: Duration = Duration::from_secs(900);
const SWITCHES: u64 = 8;

/// Tests side by side would slow each other down until little happens in each.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn under_fire(name: &'static str, program: Program) {
    let _alone = ONE_AT_A_TIME.lock();
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
