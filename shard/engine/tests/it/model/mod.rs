//! Compares the engine with a reference that keeps every event: random requests, reads at every revision, compactions,
//! and watches pulled in random sizes, over a few keys of Kubernetes' shape and a few odd ones.

mod feeds;
mod modes;
mod reference;
mod watches;
mod world;

use kindred_engine::{
    durability::{Durability, KindModes},
    engine::RevisionMode,
};
use kindred_partition_config::ids::Slot;
use proptest::prelude::*;

use crate::model::world::{Step, World, step};

fn run(mode: RevisionMode, modes: KindModes, steps: &[Step]) {
    let mut world = World::new(mode, modes);
    for step in steps {
        world.step(step);
    }
    world.finish();
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
    fn dense(steps in prop::collection::vec(step(), 1..60)) {
        run(RevisionMode::Dense, KindModes::all(Durability::None), &steps);
    }

    #[test]
    fn hlc(steps in prop::collection::vec(step(), 1..60)) {
        run(RevisionMode::Hlc(Slot::new(5).expect("below 1024")), KindModes::all(Durability::None), &steps);
    }

    #[test]
    fn r9_dense_that_waits_for_its_log(steps in prop::collection::vec(step(), 1..60)) {
        run(RevisionMode::Dense, KindModes::all(Durability::Fsync), &steps);
    }

    #[test]
    fn r9_kinds_of_different_modes(steps in prop::collection::vec(step(), 1..60)) {
        run(RevisionMode::Hlc(Slot::new(5).expect("below 1024")), modes::mixed(), &steps);
    }
}
