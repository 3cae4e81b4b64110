//! Recovers an engine from any beginning of its logs, with or without a checkpoint before them, and compares it with a
//! reference that knows every change: what a mode promises is there, at every revision, and nothing else.

mod check;
mod skipped;
mod standby;
mod stopped;
mod world;

use kindred_engine::{
    durability::{Durability, KindModes},
    engine::RevisionMode,
};
use kindred_partition_config::ids::Slot;
use proptest::prelude::*;

use crate::recovery::world::{Step, World, mixed, step};

fn run(mode: RevisionMode, modes: KindModes, steps: &[Step], cut: (f64, f64), checkpoint: bool) {
    let mut world = World::new(mode, modes);
    steps.iter().for_each(|step| world.step(step));
    world.log();
    world.crash(cut, checkpoint);
}

fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(400),
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn kinds_of_different_modes(
        steps in prop::collection::vec(step(), 1..60), fsync in 0.0..1.2, buffered in 0.0..1.2,
    ) {
        let mode = RevisionMode::Hlc(Slot::new(5).expect("below 1024"));
        run(mode, mixed(), &steps, (fsync, buffered), false);
    }

    #[test]
    fn a_checkpoint_taken_while_writes_go_on(
        steps in prop::collection::vec(step(), 1..60), fsync in 0.0..1.2, buffered in 0.0..1.2,
    ) {
        let mode = RevisionMode::Hlc(Slot::new(5).expect("below 1024"));
        run(mode, mixed(), &steps, (fsync, buffered), true);
    }

    #[test]
    fn dense(steps in prop::collection::vec(step(), 1..60), fsync in 0.0..1.2, checkpoint: bool) {
        run(RevisionMode::Dense, KindModes::all(Durability::Fsync), &steps, (fsync, 1.0), checkpoint);
    }
}
