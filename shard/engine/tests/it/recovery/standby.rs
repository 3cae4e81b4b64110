//! Standbys: a copy that is made while the engine works, and takes over all that is shipped since, has everything of every
//! Kind when it is promoted, whatever the Kinds' modes are.

use kindred_engine::{
    checkpoint::Walk,
    durability::{Durability, KindModes, Logged},
    engine::{Engine, RevisionMode, WallMicros},
    recover::Recovered,
};
use kindred_partition_config::{
    ids::{Revision, Slot},
    key::Key,
};
use proptest::{prelude::*, sample::Index};

use crate::recovery::{
    check,
    world::{MONO, Step, World, config, mixed, put, step},
};

const KINDS: [&str; 3] = ["/registry/pods/", "/registry/minions/", "/registry/services/specs/"];
const MODES: [Durability; 3] = [Durability::None, Durability::Buffered, Durability::Fsync];

#[derive(Debug, Clone)]
enum Turn {
    Do(Step),
    Mode(Index, Index),
    /// A slice of the copy, or what was shipped since.
    Send(usize),
    /// The disk of the standby has what it took over.
    Publish(usize),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        10 => step().prop_map(Turn::Do),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(kind, mode)| Turn::Mode(kind, mode)),
        4 => (1..4_usize).prop_map(Turn::Send),
        2 => (0..4_usize).prop_map(Turn::Publish),
    ]
}

pub fn hlc() -> RevisionMode {
    RevisionMode::Hlc(Slot::new(5).expect("below 1024"))
}

enum Standby {
    Copying(Walk, Box<Recovered>),
    Follows(Box<Engine>),
}

impl Standby {
    /// Begins with what is shipped from now on.
    fn of(world: &mut World) -> Self {
        world.log();
        world.unsent.clear();
        let recovered = Recovered { copied: true, ..Recovered::default() };
        Self::Copying(world.engine.copy_begin(), Box::new(recovered))
    }

    fn send(&mut self, world: &mut World, keys: usize) {
        world.log();
        let sent = std::mem::take(&mut world.unsent);
        match self {
            Self::Copying(walk, recovered) => {
                let goes_on =
                    world.engine.checkpoint_next(walk, keys, 1 << 20, |logged| recovered.push(logged));
                sent.into_iter().for_each(|logged| recovered.push(logged));
                if !goes_on {
                    let recovered = std::mem::take(&mut **recovered);
                    let replica = Engine::recover(config(hlc()), WallMicros(0), MONO, recovered);
                    *self = Self::Follows(Box::new(replica.expect("no clock is off")));
                }
            }
            Self::Follows(replica) => {
                for logged in sent {
                    // With all its logs on disk it may set other modes at any time.
                    let modes = replica.replicate(MONO, logged).expect("no clock is off");
                    if let Some(modes) = modes {
                        publish(replica);
                        while replica.set_modes(modes.clone())
                            == Ok(kindred_engine::durability::ModesTaken::AfterLog)
                        {
                            publish(replica);
                        }
                    }
                }
            }
        }
    }
}

fn publish(replica: &mut Engine) {
    let applied = replica.take_applied();
    replica.publish();
    replica.publish_fsync(applied.mark);
    replica.validate();
}

fn run(modes: KindModes, before: &[Turn], turns: &[Turn]) {
    let mut world = World::new(hlc(), modes);
    world.shipped = world.all();
    world.engine.ship(true);
    let mut standby = None;
    for (at, turn) in before.iter().chain(turns).enumerate() {
        match turn {
            Turn::Do(step) => world.step(step),
            Turn::Mode(kind, mode) => {
                let mut modes = world.modes.clone();
                modes.generation += 1;
                modes.kinds.insert(Key::from(*kind.get(&KINDS)), *mode.get(&MODES));
                world.set_modes(modes, true);
            }
            Turn::Send(keys) if at >= before.len() => match &mut standby {
                None => standby = Some(Standby::of(&mut world)),
                Some(standby) => standby.send(&mut world, *keys),
            },
            Turn::Publish(versions) => {
                if let Some(Standby::Follows(replica)) = &mut standby {
                    publish(replica);
                    replica.gc(*versions);
                }
            }
            Turn::Send(_) => {}
        }
    }
    let mut standby = standby.unwrap_or_else(|| Standby::of(&mut world));
    loop {
        standby.send(&mut world, 3);
        if world.unsent.is_empty() && matches!(standby, Standby::Follows(_)) {
            break;
        }
    }
    let Standby::Follows(mut replica) = standby else { unreachable!("above") };
    publish(&mut replica);
    let ceiling = Revision(world.engine.last_revision().get() + 5_000);
    replica.promote(ceiling, MONO).expect("no clock is off");
    let records: Vec<Logged> = std::mem::take(&mut world.shipped);
    let start = replica.current_all();
    assert!(start >= ceiling, "R2");
    let hash = |engine: &mut Engine| engine.hash_kv(None).map(|(hash, _, _)| hash);
    assert_eq!(hash(&mut replica), hash(&mut world.engine));
    let want = check::Want {
        changes: check::changes(&records),
        records,
        // Of no Kind anything is missing.
        modes: KindModes::all(Durability::Fsync),
        after: None,
        found: start,
        start,
        dense: false,
    };
    check::all(&mut replica, &want);
}

#[test]
fn r18_a_kind_that_no_log_keeps_is_at_the_standby() {
    let key = "/registry/services/specs/a/x";
    let turns = [Turn::Send(1), Turn::Send(9), Turn::Send(9), Turn::Send(9)];
    let mut world = World::new(hlc(), mixed());
    world.engine.ship(true);
    world.apply(put(key, None));
    let mut standby = Standby::of(&mut world);
    for _ in turns {
        standby.send(&mut world, 9);
    }
    world.apply(put(key, None));
    standby.send(&mut world, 9);
    let Standby::Follows(mut replica) = standby else { panic!("the walk is short") };
    publish(&mut replica);
    replica.promote(Revision(2 << 30), MONO).expect("no clock is off");
    let range = crate::common::query(kindred_partition_config::key::KeyRange::Single(key.into()));
    assert_eq!(replica.range(&range).expect("the present").kvs[0].version(), 2);
}

/// The clock of a copy begins at the ceiling of the other engine, which may have shown what it did not send below that.
#[test]
fn r14_the_gap_of_a_forced_standby_begins_at_what_it_has() {
    let key = "/registry/services/specs/a/x";
    let mut world = World::new(hlc(), mixed());
    world.engine.ship(true);
    world.apply(put(key, None));
    world.log();
    let has = world.engine.last_revision();
    let mut recovered = Recovered { copied: true, start: Revision(1 << 40), ..Recovered::default() };
    let mut walk = world.engine.copy_begin();
    while world.engine.checkpoint_next(&mut walk, 9, 1 << 20, |logged| recovered.push(logged)) {}
    let mut replica =
        Engine::recover(config(hlc()), WallMicros(0), MONO, recovered).expect("no clock is off");
    assert_eq!((replica.found(), replica.last_revision()), (has, Revision(1 << 40)));
    // This one never arrives.
    world.apply(put(key, None));
    let lost = world.engine.last_revision();
    publish(&mut replica);
    replica.promote_behind(replica.found(), Revision(1 << 41), MONO).expect("no clock is off");
    publish(&mut replica);
    let range = || kindred_partition_config::key::KeyRange::Single(key.into());
    for (start, is_told) in [(has, false), (lost, true), (lost.next(), true)] {
        let stream = replica.watch_open();
        replica.watch_create(stream, crate::common::watch(range(), Some(start))).expect("a watch");
        let told = crate::common::pull(&mut replica, stream, 1 << 20);
        assert_eq!(told.iter().any(|line| line.starts_with("compacted")), is_told, "{start}: {told:?}");
    }
}

proptest! {
    #![proptest_config(crate::recovery::cases())]

    #[test]
    fn r18_a_promoted_standby_has_everything(
        before in prop::collection::vec(turn(), 0..30), turns in prop::collection::vec(turn(), 1..60),
    ) {
        run(mixed(), &before, &turns);
    }
}
