//! Kinds of different modes: which answers wait for which log, what is logged and shipped to standbys, and which
//! transactions are allowed.

use std::collections::{BTreeMap, VecDeque};

use kindred_engine::{
    durability::{Applied, Durability, KindModes, Logged, Mark},
    error::MixedModes,
    ops::*,
};
use kindred_partition_config::{
    key::{Key, KeyRange},
    kind::{KindScheme, Located},
};

use crate::model::{
    reference::Change,
    world::{World, from_version},
};

/// All three modes; keys of no Kind have the strongest.
pub fn mixed() -> KindModes {
    let modes = [
        ("/registry/pods/", Durability::Fsync),
        ("/registry/minions/", Durability::Buffered),
        ("/registry/services/specs/", Durability::None),
        ("/registry/podtemplates/", Durability::None),
        ("/registry/example.com/foos/", Durability::Buffered),
    ];
    let kinds: BTreeMap<Key, Durability> = modes.map(|(kind, mode)| (Key::from(kind), mode)).into();
    KindModes { generation: 1, default: Durability::Fsync, kinds }
}

/// The logged records, and the marks that are not on disk.
#[derive(Default)]
pub struct Logs {
    buffered: Vec<Logged>,
    fsync: Vec<Logged>,
    /// Each mark, with the number of the reference's changes at that time.
    marks: VecDeque<(Mark, usize)>,
    /// The marks that the standbys have not received.
    sent: VecDeque<(Mark, usize)>,
    ships: bool,
    shipped: Vec<(Durability, Logged)>,
    /// The number of the reference's changes that were taken, and which of them were to be shipped.
    taken: usize,
    to_ship: Vec<usize>,
}

impl Logs {
    pub fn new(applied: Applied) -> Self {
        Self { buffered: applied.buffered, fsync: applied.fsync, ..Self::default() }
    }
}

fn mode(world: &World, key: &[u8]) -> Durability {
    match KindScheme::default().locate(key) {
        Located::Object { kind } => world.engine.modes().of(kind),
        _ => world.engine.modes().default,
    }
}

/// Logs and publishes as the loop does.
pub fn publish(world: &mut World) {
    let applied = world.engine.take_applied();
    world.logs.buffered.extend(applied.buffered);
    world.logs.fsync.extend(applied.fsync);
    let upto = world.reference.changes.len();
    world.logs.marks.push_back((applied.mark, upto));
    world.logs.sent.push_back((applied.mark, upto));
    assert!(world.logs.ships || applied.shipped.is_empty());
    world.logs.shipped.extend(applied.shipped);
    let taken = std::mem::replace(&mut world.logs.taken, upto);
    if world.logs.ships {
        world.logs.to_ship.extend(taken..upto);
    }
    world.engine.publish();
    if !world.logs.ships {
        received(world, usize::MAX);
    }
}

/// The standbys receive what was sent up to the next marks.
pub fn received(world: &mut World, marks: usize) {
    for _ in 0..marks {
        let Some((mark, upto)) = world.logs.sent.pop_front() else { return };
        world.engine.publish_received(mark);
        for i in 0..upto {
            let waits = mode(world, &world.reference.changes[i].key) == Durability::Fsync;
            world.reference.published[i] |= !waits;
        }
    }
}

/// Standbys come, or go.
pub fn ship(world: &mut World, on: bool) {
    publish(world);
    durable(world, usize::MAX);
    received(world, usize::MAX);
    world.engine.ship(on);
    world.logs.ships = on;
}

/// Puts the next marks of the fsync log on disk.
pub fn durable(world: &mut World, marks: usize) {
    for _ in 0..marks {
        let Some((mark, upto)) = world.logs.marks.pop_front() else { return };
        world.engine.publish_fsync(mark);
        for i in 0..upto {
            let waits = mode(world, &world.reference.changes[i].key) == Durability::Fsync;
            world.reference.published[i] |= waits;
        }
    }
}

/// Checks that an answer waits exactly if it depends on something that waits for the fsync log or the standbys.
pub fn answered(world: &World, op: &Op, changes: &[Change]) {
    let mut touched = Vec::new();
    match op {
        // The branch taken does not matter here: what it wrote is in `changes`.
        Op::Txn(txn) => touched.extend(txn.compares.iter().map(|compare| compare.range.clone())),
        op => ranges(op, &mut touched),
    }
    touched.extend(changes.iter().map(|change| KeyRange::Single(Key::copy_from(&change.key))));
    let earlier = world.reference.changes.iter().zip(&world.reference.published);
    let hidden = earlier.filter(|(_, published)| !**published).map(|(change, _)| change).chain(changes);
    let (fsync, others): (Vec<&Change>, Vec<&Change>) =
        hidden.partition(|change| mode(world, &change.key) == Durability::Fsync);
    let touches =
        |of: &[&Change]| of.iter().any(|change| touched.iter().any(|range| range.contains(&change.key)));
    let waits = world.engine.answer_waits();
    assert!(waits.fsync || !touches(&fsync), "{op:?} tells of what is not on disk");
    assert!(!waits.fsync || !fsync.is_empty(), "{op:?} waits for nothing");
    assert!(waits.received || !world.logs.ships || !touches(&others), "{op:?} tells of what no standby has");
    assert!(!waits.received || (world.logs.ships && !others.is_empty()), "{op:?} waits for no standby");
}

fn ranges(op: &Op, found: &mut Vec<KeyRange>) {
    match op {
        Op::Range(query) => found.push(query.range.clone()),
        Op::Put(put) => found.push(KeyRange::Single(put.key.clone())),
        Op::Delete(delete) => found.push(delete.range.clone()),
        Op::Txn(txn) => {
            found.extend(txn.compares.iter().map(|compare| compare.range.clone()));
            txn.success.iter().chain(&txn.failure).for_each(|op| ranges(op, found));
        }
    }
}

/// Checks that a refused transaction is over Kinds of different modes.
pub fn refused(world: &World, op: &Op, refused: &MixedModes) {
    assert!(matches!(op, Op::Txn(_)));
    assert_ne!(refused.one_mode, refused.other_mode);
    let mut touched = Vec::new();
    ranges(op, &mut touched);
    for key in [&refused.one, &refused.other] {
        assert!(touched.iter().any(|range| range.start() == key), "{key} is of the transaction");
    }
    let single = |range: &KeyRange| matches!(range, KeyRange::Single(_));
    if touched.iter().all(single) {
        let modes: Vec<Durability> = touched.iter().map(|range| mode(world, range.start())).collect();
        assert!(modes.iter().any(|mode| *mode != modes[0]), "{op:?} is of one mode");
    }
    world.engine.validate();
}

/// Puts everything on disk, and checks that each log has exactly the changes of its Kinds, in order.
pub fn finish(world: &mut World) {
    publish(world);
    durable(world, usize::MAX);
    received(world, usize::MAX);
    let shipped: Vec<_> = world
        .logs
        .shipped
        .iter()
        .filter_map(|(log, logged)| match logged {
            Logged::Version(version) => Some((*log, version.key().to_vec(), version.mod_revision().get())),
            _ => None,
        })
        .collect();
    let to_ship = world.logs.to_ship.iter().map(|i| &world.reference.changes[*i]);
    let to_ship = to_ship.map(|change| (mode(world, &change.key), change.key.clone(), change.revision));
    assert_eq!(shipped, to_ship.collect::<Vec<_>>(), "what is shipped, in the order of the changes");
    for (log, logged) in
        [(Durability::Buffered, &world.logs.buffered), (Durability::Fsync, &world.logs.fsync)]
    {
        let versions = logged.iter().filter_map(|logged| match logged {
            Logged::Version(version) => {
                let (key, kv) = from_version(version);
                Some((key, kv.modified, (!version.is_tombstone()).then_some(kv)))
            }
            _ => None,
        });
        let changes = world.reference.changes.iter().filter(|change| mode(world, &change.key) == log);
        let changes = changes.map(|change| (change.key.clone(), change.revision, change.put.clone()));
        assert_eq!(versions.collect::<Vec<_>>(), changes.collect::<Vec<_>>(), "the log of {log}");
    }
    assert!(world.engine.modes().differ() || world.logs.buffered.is_empty());
}
