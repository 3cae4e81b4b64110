//! Units that move between three engines, compared with a reference that keeps every event and never moves anything.
//! There are random writes, leases, compactions and garbage collections, while ranges and ring buckets are tracked, copied,
//! followed, frozen, opened, reversed and dropped at random points. After every few steps all histories, reads, counts,
//! watches and digests are compared. Each engine has a standby, which is compared with it now and then.

mod check;
mod client;
mod moving;
mod random;
mod reference;
mod standby;
mod world;

use crate::moves_model::world::World;

/// The number of worlds, and of steps in each.
const WORLDS: u64 = 300;
const STEPS: usize = 160;

/// Worlds in which something went wrong once.
const FOUND: [u64; 7] = [34, 224, 225, 1604, 3054, 10_503, 20_601];

/// Answers how many switches this world made, and how many moves began and ended in it.
fn run(seed: u64, steps: usize) -> (u64, u64) {
    let mut world = World::new(seed);
    for step in 0..steps {
        world.at = step;
        world.step();
    }
    world.finish();
    (world.generation.0 - 1, world.next_move - 1)
}

#[test]
fn nothing_is_lost_or_doubled_however_units_move() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    if let Some(seed) = number("MOVES_SEED") {
        run(seed, STEPS);
        return;
    }
    let (mut switches, mut moves) = (0, 0);
    let worlds = number("MOVES_WORLDS").or(number("KINDRED_SOAK_CASES")).unwrap_or(WORLDS);
    let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
    for seed in FOUND.into_iter().chain(first..first + worlds) {
        let ran = std::panic::catch_unwind(|| run(seed, STEPS));
        let Ok((switched, moved)) = ran else { panic!("see above; to run it alone: MOVES_SEED={seed}") };
        (switches, moves) = (switches + switched, moves + moved);
    }
    println!("{worlds} worlds, {moves} moves, {switches} switches");
    assert!(switches > worlds && moves > worlds, "the worlds do not stand still");
}
