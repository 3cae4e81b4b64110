//! Clean stops: they lose nothing of any Kind, whatever its mode is, was, or is about to be.

use kindred_engine::{
    durability::{Durability, KindModes},
    engine::{MonoMillis, RevisionMode},
};
use kindred_partition_config::{ids::Slot, key::Key};
use proptest::{prelude::*, sample::Index};

use crate::recovery::world::{Step, World, delete, put, step};

const KINDS: [&str; 3] = ["/registry/pods/", "/registry/minions/", "/registry/services/specs/"];
const MODES: [Durability; 3] = [Durability::None, Durability::Buffered, Durability::Fsync];

#[derive(Debug, Clone)]
enum Turn {
    Do(Step),
    /// A Kind gets another mode; or the shard is stopped before that mode is in force.
    Mode(Index, Index, bool),
    Settle,
    Stop,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        12 => step().prop_map(Turn::Do),
        3 => (any::<Index>(), any::<Index>(), prop::bool::weighted(0.8)).prop_map(|(kind, mode, taken)| Turn::Mode(kind, mode, taken)),
        1 => Just(Turn::Settle),
        2 => Just(Turn::Stop),
    ]
}

fn run(turns: &[Turn]) {
    let mut modes = KindModes { generation: 1, ..KindModes::all(Durability::Buffered) };
    let mut world = World::new(RevisionMode::Hlc(Slot::new(5).expect("below 1024")), modes.clone());
    for turn in turns {
        match turn {
            Turn::Do(step) => world.step(step),
            Turn::Mode(kind, mode, taken) => {
                modes.generation += 1;
                modes.kinds.insert(Key::from(KINDS[kind.index(KINDS.len())]), *mode.get(&MODES));
                world.set_modes(modes.clone(), *taken);
                if !taken {
                    world.stop();
                }
            }
            Turn::Settle => world.settle(),
            Turn::Stop => world.stop(),
        }
    }
    world.stop();
}

fn modes(generation: u64, pods: Durability) -> KindModes {
    KindModes {
        generation,
        kinds: [(Key::from(KINDS[0]), pods)].into(),
        ..KindModes::all(Durability::Buffered)
    }
}

fn world(pods: Durability) -> World {
    World::new(RevisionMode::Hlc(Slot::new(5).expect("below 1024")), modes(1, pods))
}

/// The shard is stopped while it waits for the checkpoint that puts the Kind's stronger mode in force. Until then the
/// logs do not have all of the Kind.
#[test]
fn f40_a_kind_that_is_about_to_be_kept_is_there_after_a_stop() {
    let mut world = world(Durability::None);
    world.apply(put("/registry/pods/a/1", None));
    world.set_modes(modes(2, Durability::Buffered), true);
    world.apply(put("/registry/pods/a/2", None));
    world.stop();
    world.settle();
    world.stop();
}

/// Old records of a Kind, from before its mode became `none`, are not taken for its present keys.
#[test]
fn f40_what_was_deleted_while_a_kind_was_not_kept_does_not_come_back() {
    let mut world = world(Durability::Buffered);
    world.apply(put("/registry/pods/a/1", None));
    world.set_modes(modes(2, Durability::None), true);
    world.apply(delete("/registry/pods/a/1"));
    world.apply(put("/registry/minions/n1", None));
    world.log();
    let present = world.engine.current_all();
    world.engine.compact(MonoMillis(2_000), present).expect("it is the present");
    while world.engine.gc(100) {}
    world.stop();
}

proptest! {
    #![proptest_config(crate::recovery::cases())]

    #[test]
    fn f40_a_stop_in_good_order_loses_nothing(turns in prop::collection::vec(turn(), 1..60)) {
        run(&turns);
    }
}
