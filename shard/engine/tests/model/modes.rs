//! Kinds of different modes: which answers wait for which log, what is logged, and which transactions are allowed.

use std::collections::{BTreeMap, VecDeque};

use kindred_engine::{
    durability::{Applied, Durability, FsyncMark, KindModes, Logged},
    error::MixedModes,
    ops::*,
};
use kindred_partition_config::{
    key::{Key, KeyRange},
    kind::{KindScheme, Located},
};

use crate::{
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
    marks: VecDeque<(FsyncMark, usize)>,
}

impl Logs {
    pub fn new(applied: Applied) -> Self {
        Self { buffered: applied.buffered, fsync: applied.fsync, marks: VecDeque::new() }
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
    world.logs.marks.push_back((applied.mark, world.reference.changes.len()));
    world.engine.publish();
    for i in 0..world.reference.changes.len() {
        let waits = mode(world, &world.reference.changes[i].key) == Durability::Fsync;
        world.reference.published[i] |= !waits;
    }
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

/// Checks that an answer waits exactly if it depends on something that waits for the fsync log.
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
    let waiting: Vec<&Change> =
        hidden.filter(|change| mode(world, &change.key) == Durability::Fsync).collect();
    let touches = waiting.iter().any(|change| touched.iter().any(|range| range.contains(&change.key)));
    assert!(world.engine.answer_waits() || !touches, "{op:?} tells of what is not on disk");
    assert!(!world.engine.answer_waits() || !waiting.is_empty(), "{op:?} waits for nothing");
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
