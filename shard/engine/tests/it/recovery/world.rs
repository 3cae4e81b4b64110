//! Random requests to an engine with logs, and crashes that leave some of its batches.

use std::collections::BTreeMap;

use bytes::Bytes;
use kindred_engine::{
    checkpoint::Walk,
    durability::{Durability, KindModes, Logged, ModesTaken},
    engine::{Engine, EngineConfig, MonoMillis, RevisionMode, WallMicros},
    ops::*,
    recover::{Lost, Recovered},
};
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
    kind::{KindScheme, Located},
};
use proptest::{prelude::*, sample::Index};

use crate::recovery::check;

pub const KEYS: [&str; 9] = [
    "/registry/pods/a/1",
    "/registry/pods/a/2",
    "/registry/pods/b/1",
    "/registry/minions/n1",
    "/registry/minions/n2",
    "/registry/services/specs/a/x",
    "/registry/example.com/foos/a/x",
    "compact_rev_key",
    "z",
];

/// Uses all three modes; keys that belong to no Kind are buffered.
pub fn mixed() -> KindModes {
    let modes = [
        ("/registry/pods/", Durability::Fsync),
        ("/registry/minions/", Durability::Buffered),
        ("/registry/services/specs/", Durability::None),
    ];
    let kinds: BTreeMap<Key, Durability> = modes.map(|(kind, mode)| (Key::from(kind), mode)).into();
    KindModes { generation: 1, default: Durability::Buffered, kinds }
}

#[derive(Debug, Clone)]
pub enum Step {
    Put(Index, Option<u8>),
    Delete(Index),
    Pair(Index, Index),
    Grant(u8),
    Revoke(u8),
    Compact(Index),
    CompactKind(Index, bool),
    Gc(usize),
    /// Writes everything that was applied to the logs.
    Log,
    /// Begins, continues or ends a checkpoint.
    Walk(usize),
    Tick(u64),
}

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<Index>(), prop::option::weighted(0.3, 0..4_u8)).prop_map(|(key, lease)| Step::Put(key, lease)),
        3 => any::<Index>().prop_map(Step::Delete),
        3 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Step::Pair(a, b)),
        2 => (0..4_u8).prop_map(Step::Grant),
        1 => (0..4_u8).prop_map(Step::Revoke),
        1 => any::<Index>().prop_map(Step::Compact),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(at, pods)| Step::CompactKind(at, pods)),
        1 => (1..8_usize).prop_map(Step::Gc),
        6 => Just(Step::Log),
        3 => (1..3_usize).prop_map(Step::Walk),
        1 => (1..2_000_u64).prop_map(Step::Tick),
    ]
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    pub sub: u32,
    pub key: Vec<u8>,
    /// `None` for a deletion.
    pub encoded: Option<Vec<u8>>,
    pub lease: i64,
}

/// What one call of `take_applied` returned.
struct Batch {
    buffered: Vec<Logged>,
    fsync: Vec<Logged>,
    promise: Revision,
}

/// A checkpoint that is complete.
struct Checkpoint {
    records: Vec<Logged>,
    /// The number of batches before its beginning, and before its end.
    from: usize,
    until: usize,
}

pub struct World {
    pub engine: Engine,
    revisions: RevisionMode,
    pub modes: KindModes,
    batches: Vec<Batch>,
    walk: Option<(Walk, Vec<Logged>, usize)>,
    checkpoint: Option<Checkpoint>,
    now: WallMicros,
    /// Whether a Kind of mode `none` was written.
    wrote_unkept: bool,
    /// All that was shipped to standbys, and what they have not been given yet.
    pub shipped: Vec<Logged>,
    pub unsent: Vec<Logged>,
}

fn written(op: &Op, keys: &mut Vec<Key>) {
    match op {
        Op::Put(put) => keys.push(put.key.clone()),
        Op::Delete(delete) => keys.push(delete.range.start().clone()),
        Op::Range(_) => {}
        Op::Txn(txn) => txn.success.iter().for_each(|op| written(op, keys)),
    }
}

pub fn config(revisions: RevisionMode) -> EngineConfig {
    let kinds = KindScheme::default();
    EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 }
}

pub fn mode_of(modes: &KindModes, key: &[u8]) -> Durability {
    match KindScheme::default().locate(key) {
        Located::Object { kind } => modes.of(kind),
        _ => modes.default,
    }
}

pub const MONO: MonoMillis = MonoMillis(1_000);

impl World {
    pub fn new(revisions: RevisionMode, modes: KindModes) -> Self {
        let now = WallMicros(1_000_000);
        let mut engine = Engine::new(config(revisions), now);
        engine.log_changes();
        engine.set_modes(modes.clone()).expect("nothing is written");
        let (batches, walk, checkpoint, wrote_unkept) = (Vec::new(), None, None, false);
        let (shipped, unsent) = (Vec::new(), Vec::new());
        let mut world =
            Self { engine, revisions, modes, batches, walk, checkpoint, now, wrote_unkept, shipped, unsent };
        // The first records are on disk before anything is served.
        world.log();
        world
    }

    pub fn apply(&mut self, op: Op) {
        let mut keys = Vec::new();
        written(&op, &mut keys);
        let unkept = keys.iter().any(|key| mode_of(&self.modes, key) == Durability::None);
        // A request is refused for an unknown lease, or for Kinds of different modes.
        self.wrote_unkept |= self.engine.apply(self.now, op).is_ok() && unkept;
    }

    pub fn step(&mut self, step: &Step) {
        let key = |index: &Index| KEYS[index.index(KEYS.len())];
        match step {
            Step::Put(at, lease) => self.apply(put(key(at), *lease)),
            Step::Delete(at) => {
                self.apply(delete(key(at)));
            }
            Step::Pair(a, b) => {
                let (a, b) = (key(a), key(b));
                if a != b {
                    let success = vec![put(a, None), put(b, None)];
                    self.apply(Op::Txn(Box::new(Txn { compares: vec![], success, failure: vec![] })));
                }
            }
            Step::Grant(lease) => drop(self.engine.lease_grant(MONO, id(*lease), 60 + i64::from(*lease))),
            Step::Revoke(lease) => drop(self.engine.lease_revoke(self.now, id(*lease))),
            Step::Compact(at) => {
                let known = check::changes(&self.all());
                let revisions: Vec<Revision> = known.iter().map(|change| change.revision).collect();
                if !revisions.is_empty() {
                    drop(self.engine.compact(MONO, *at.get(&revisions)));
                }
            }
            Step::CompactKind(at, pods) => {
                let known = check::changes(&self.all());
                let revisions: Vec<Revision> = known.iter().map(|change| change.revision).collect();
                let kind = if *pods { "/registry/pods/" } else { "/registry/minions/" };
                if !revisions.is_empty() {
                    let _ = self.engine.compact_kind(MONO, kind.as_bytes(), *at.get(&revisions));
                }
            }
            Step::Gc(budget) => drop(self.engine.gc(*budget)),
            Step::Log => self.log(),
            Step::Walk(keys) => self.walk(*keys),
            Step::Tick(by) => {
                self.now.0 += by;
                self.engine.progress_tick(self.now);
            }
        }
        self.engine.validate();
    }

    /// Logs as the apply loop does. Here both logs are on disk at once, and a crash cuts them.
    pub fn log(&mut self) {
        let applied = self.engine.take_applied();
        self.batches.push(Batch {
            buffered: applied.buffered,
            fsync: applied.fsync,
            promise: applied.promise,
        });
        self.engine.publish();
        self.engine.publish_fsync(applied.mark);
        self.engine.publish_received(applied.mark);
        for (_, logged) in applied.shipped {
            self.shipped.push(logged.clone());
            self.unsent.push(logged);
        }
    }

    fn walk(&mut self, keys: usize) {
        self.log();
        let (mut walk, mut records, from) = match self.walk.take() {
            Some(walk) => walk,
            None => (self.engine.checkpoint_begin(), Vec::new(), self.batches.len()),
        };
        if self.engine.checkpoint_next(&mut walk, keys, 1 << 20, |logged| records.push(logged)) {
            self.walk = Some((walk, records, from));
        } else {
            self.log();
            self.checkpoint = Some(Checkpoint { records, from, until: self.batches.len() });
        }
    }

    /// Sets other modes as the apply loop does; `taken` is false when the shard stops in between.
    pub fn set_modes(&mut self, modes: KindModes, taken: bool) {
        self.log();
        if self.engine.set_modes(modes.clone()) == Ok(ModesTaken::AfterLog) {
            self.log();
            if taken {
                self.engine.set_modes(modes.clone()).expect("what it takes is logged");
            }
        }
        self.modes = modes;
        self.log();
        self.engine.validate();
    }

    /// Makes a whole checkpoint, and puts the modes in force that waited for it.
    pub fn settle(&mut self) {
        self.walk = None;
        let generation = self.engine.modes().generation;
        self.walk(usize::MAX);
        while self.walk.is_some() {
            self.walk(usize::MAX);
        }
        self.engine.modes_settled(generation);
        self.log();
    }

    /// Makes a clean stop and a start: everything is there.
    pub fn stop(&mut self) {
        self.log();
        let (mut walk, mut unkept) = (self.engine.unkept_begin(), Vec::new());
        let mut keep = |logged| match logged {
            Logged::Version(version) => unkept.push((0, version)),
            other => panic!("{other:?}"),
        };
        while self.engine.checkpoint_next(&mut walk, 2, 1 << 20, &mut keep) {}
        let from = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.from);
        let lost = Lost { none_is_whole: true, ..Lost::default() };
        let last = self.batches.last().map_or(Revision::ZERO, |batch| batch.promise);
        let mut recovered = Recovered { lost, unkept, start: last, ..Recovered::default() };
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.records.iter().for_each(|logged| recovered.push(logged.clone()));
        }
        let fsync = self.batches[from..].iter().flat_map(|batch| &batch.fsync);
        let buffered = self.batches[from..].iter().flat_map(|batch| &batch.buffered);
        fsync.chain(buffered).for_each(|logged| recovered.push(logged.clone()));
        let engine = Engine::recover(config(self.revisions), self.now, MONO, recovered);
        let mut before = std::mem::replace(&mut self.engine, engine.expect("no clock is off"));
        self.engine.validate();
        self.walk = None;
        self.log();
        let hash = |engine: &mut Engine| engine.hash_kv(None).map(|(hash, _, _)| hash);
        assert_eq!(hash(&mut self.engine), hash(&mut before));
    }

    pub fn all(&self) -> Vec<Logged> {
        self.batches.iter().flat_map(|batch| batch.buffered.iter().chain(&batch.fsync)).cloned().collect()
    }

    /// The process dies with this much of its logs on disk, and starts again.
    pub fn crash(&mut self, (fsync, buffered): (f64, f64), with_checkpoint: bool) {
        let checkpoint = self.checkpoint.take().filter(|_| with_checkpoint);
        let least = checkpoint.as_ref().map_or(1, |checkpoint| checkpoint.until);
        let cut =
            |part: f64| (((self.batches.len() as f64) * part) as usize).clamp(least, self.batches.len());
        let (fsync, buffered) = (cut(fsync), cut(buffered));
        let from = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.from);
        let mut recovered = Recovered::default();
        if let Some(checkpoint) = &checkpoint {
            checkpoint.records.iter().for_each(|logged| recovered.push(logged.clone()));
        }
        let kept = self.batches[from.min(fsync)..fsync].iter().flat_map(|batch| &batch.fsync);
        let tail = self.batches[from.min(buffered)..buffered].iter().flat_map(|batch| &batch.buffered);
        kept.chain(tail).for_each(|logged| recovered.push(logged.clone()));
        let whole = fsync == self.batches.len() && buffered == fsync;
        let promise = self.batches[buffered - 1].promise;
        let lost = Lost { buffered: Some(promise).filter(|_| !whole), fsync: None, ..Lost::default() };
        let last = self.batches.last().map_or(Revision::ZERO, |batch| batch.promise);
        // The ceiling is a little above the last promise. A dense shard has none.
        let dense = self.revisions == RevisionMode::Dense;
        let start = if dense { Revision::ZERO } else { Revision(last.get() + 5_000) };
        (recovered.lost, recovered.start) = (lost, start);
        // Some machines are away for long, and some come back before the ceiling.
        let away = self.batches.len().is_multiple_of(2);
        let wakes = WallMicros(if away { 1_500_000_000 } else { 10 });
        let mut engine =
            Engine::recover(config(self.revisions), wakes, MONO, recovered).expect("no clock is off");
        engine.validate();

        let of = |batch: &Batch, log: Durability| match log {
            Durability::Fsync => batch.fsync.clone(),
            _ => batch.buffered.clone(),
        };
        let mut records: Vec<Logged> = Vec::new();
        records.extend(self.batches[..fsync].iter().flat_map(|batch| of(batch, Durability::Fsync)));
        records.extend(self.batches[..buffered].iter().flat_map(|batch| of(batch, Durability::Buffered)));
        let want = check::Want {
            changes: check::changes(&records),
            records,
            modes: self.modes.clone(),
            after: Some(promise).filter(|_| !whole),
            found: if dense || !away { engine.current_all() } else { start },
            start: engine.current_all(),
            dense,
        };
        let here = engine.hash_kv(None).expect("current");
        check::all(&mut engine, &want);
        // The logs alone give the same state as the checkpoint and the logs after it.
        let mut alone = Recovered { lost, start, ..Recovered::default() };
        want.records.iter().for_each(|logged| alone.push(logged.clone()));
        let mut alone = Engine::recover(config(self.revisions), wakes, MONO, alone).expect("no clock is off");
        assert_eq!(alone.hash_kv(None).expect("current"), here);
        // If the crash lost no record, everything that the engine had before it is here.
        if whole && !self.wrote_unkept {
            assert_eq!(self.engine.hash_kv(None).map(|(hash, _, _)| hash), Ok(here.0));
        }
    }
}

fn id(lease: u8) -> LeaseId {
    LeaseId(i64::from(lease) + 1)
}

pub fn delete(key: &str) -> Op {
    Op::Delete(Delete { range: KeyRange::Single(key.into()), prev_kv: false, buckets: None })
}

pub fn put(key: &str, lease: Option<u8>) -> Op {
    Op::Put(Put {
        key: key.into(),
        value: Bytes::from_static(b"value"),
        lease: lease.map(id),
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}
