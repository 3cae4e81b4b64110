//! Random sequences of what an operator may do to the partitions of several Kinds over several shards (move, split, merge,
//! drain, rings that grow and shrink, configs that are edited or deleted; moves that are completed, reversed, aborted, or
//! left open), on real engines, with the cluster's real document and map. After each, and at each step of a move, every
//! kind of read that a kube-apiserver sends is sent for every Kind, as a router sends it, and held against a model.
//!
//! By the newest map nothing is ever refused, but what waits for a switch that is under way. By an older map what is not
//! answered is refused with a newer one's number, so that the router takes that and asks again.

mod moving;
mod random;
mod reads;
mod requests;
mod watches;
mod world;

use crate::verbs::world::World;

/// Worlds, and changes in each.
const WORLDS: u64 = 60;
const CHANGES: usize = 14;

/// How many moves there were.
fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.ask_all();
    for _ in 0..CHANGES {
        world.change();
        world.ask_all();
    }
    world.conclude();
    world.ask_all();
    world.moves_begun()
}

#[test]
fn f44_every_read_is_answered_whatever_was_moved_where() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
    let worlds = WORLDS * number("KINDRED_SOAK_CASES").unwrap_or(1).max(1);
    let mut moves = 0;
    for seed in first..first.saturating_add(worlds) {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok(ran) = ran else { panic!("see above; it is replayed by KINDRED_SOAK_SEED={seed}") };
        moves += ran;
    }
    assert!(moves > 3 * worlds, "the worlds do not stand still: {moves} moves in {worlds}");
}
