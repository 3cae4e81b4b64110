//! Checks of what a recovered engine answers.

use std::collections::{BTreeMap, BTreeSet};

use kindred_engine::{
    durability::{Durability, KindModes, LeaseState, Logged},
    engine::{Engine, MonoMillis, WallMicros, WatchOut},
    error::EngineError,
    ops::RangeQuery,
};
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

use crate::{
    common::{query, watch},
    recovery::world::{Change, KEYS, mode_of},
};

/// What is known about the crash.
pub struct Want {
    /// The records of the logs that are of Kinds with logs, in the order of the logs.
    pub changes: Vec<Change>,
    /// All records that the logs keep.
    pub records: Vec<Logged>,
    pub modes: KindModes,
    /// Up to this revision the log of mode buffered is whole; `None` when nothing is missing.
    pub after: Option<Revision>,
    /// Nothing was shown above this one: the ceiling on disk.
    pub found: Revision,
    /// The revision at which the engine began again.
    pub start: Revision,
    pub dense: bool,
}

/// The versions of some records, in the order of their revisions.
pub fn changes(records: &[Logged]) -> Vec<Change> {
    let versions = records.iter().filter_map(|logged| match logged {
        Logged::Version(version) => Some(version),
        _ => None,
    });
    let mut changes: Vec<Change> = versions
        .map(|version| Change {
            revision: version.mod_revision(),
            sub: version.sub(),
            key: version.key().to_vec(),
            encoded: (!version.is_tombstone()).then(|| version.encoded().to_vec()),
            lease: version.lease(),
        })
        .collect();
    changes.sort_by_key(|change| (change.revision, change.sub));
    changes
}

type State<'w> = BTreeMap<&'w [u8], &'w Change>;

impl Want {
    fn state(&self, range: &KeyRange, at: Revision) -> State<'_> {
        let mut state = State::new();
        for change in
            self.changes.iter().filter(|change| change.revision <= at && range.contains(&change.key))
        {
            match change.encoded {
                Some(_) => state.insert(&change.key, change),
                None => state.remove(&change.key[..]),
            };
        }
        state
    }

    fn floor(&self) -> Revision {
        let floors = self.records.iter().filter_map(|logged| match logged {
            Logged::Compaction(at) => Some(*at),
            Logged::Gap(gap) if gap.kind.is_empty() => Some(gap.gap.until),
            _ => None,
        });
        floors.max().unwrap_or(if self.dense { Revision(-1) } else { Revision::ZERO })
    }

    /// The floor of the Kind of a key or prefix.
    fn floor_of(&self, key: &[u8]) -> Revision {
        let kinds = self.records.iter().filter_map(|logged| match logged {
            Logged::Gap(gap) if !gap.kind.is_empty() && key.starts_with(&gap.kind) => Some(gap.gap.until),
            _ => None,
        });
        kinds.fold(self.floor(), Revision::max)
    }

    /// The gap of a Kind, given as the last revision before it. What is above all that was shown may have been shown by a
    /// process of which the disk is lost.
    fn gap(&self, key: &[u8]) -> Revision {
        let gap = match mode_of(&self.modes, key) {
            Durability::None => Some(Revision::ZERO),
            Durability::Fsync => None,
            Durability::Buffered => {
                let buffered = |change: &&Change| mode_of(&self.modes, &change.key) == Durability::Buffered;
                let last = self.changes.iter().filter(buffered).map(|change| change.revision).max();
                self.after.map(|after| after.max(last.unwrap_or(after)))
            }
        };
        gap.unwrap_or(self.found)
    }

    fn leases(&self) -> BTreeMap<LeaseId, &LeaseState> {
        let mut leases = BTreeMap::new();
        for logged in &self.records {
            if let Logged::Lease(lease) = logged {
                leases.insert(lease.id, &lease.state);
            }
        }
        leases.retain(|_, state| !matches!(state, LeaseState::Gone));
        leases
    }

    /// The revisions that are worth asking for.
    fn revisions(&self) -> BTreeSet<Revision> {
        let mut some: Vec<Revision> = self.changes.iter().map(|change| change.revision).collect();
        some.extend([self.floor(), self.found, self.start]);
        some.extend(KEYS.map(|key| self.floor_of(key.as_bytes())));
        some.extend(self.after);
        let near = some.iter().flat_map(|at| [at.prev(), *at, at.next()]);
        near.filter(|at| *at > Revision::ZERO).collect()
    }
}

fn ranges() -> Vec<(KeyRange, &'static [u8])> {
    let mut ranges: Vec<(KeyRange, &[u8])> =
        KEYS.iter().map(|key| (KeyRange::Single((*key).into()), key.as_bytes())).collect();
    for kind in ["/registry/pods/", "/registry/minions/", "/registry/services/specs/", "/registry/nothing/"] {
        ranges.push((KeyRange::prefix(Key::from(kind)), kind.as_bytes()));
    }
    ranges
}

pub fn all(engine: &mut Engine, want: &Want) {
    assert_eq!(engine.floor(), want.floor().max(Revision::ZERO));
    leases(engine, want);
    for (range, key) in ranges() {
        for at in want.revisions().into_iter().map(Some).chain([None]) {
            reads(engine, want, &range, key, at);
        }
        for start in want.revisions() {
            watches(engine, want, &range, key, start);
        }
    }
    everything(engine, want);
    goes_on(engine, want);
}

/// Whether a Kind reports that something may be missing at a revision.
fn hidden(want: &Want, key: &[u8], at: Revision) -> bool {
    want.gap(key) < at && at < want.start
}

fn reads(engine: &mut Engine, want: &Want, range: &KeyRange, key: &[u8], at: Option<Revision>) {
    let answer = engine.range(&RangeQuery { revision: at, ..query(range.clone()) });
    let shown = at.unwrap_or(want.start);
    if shown > want.start {
        return assert!(matches!(answer, Err(EngineError::Future { .. })), "{range:?} at {at:?}");
    }
    if shown < want.floor_of(key) || hidden(want, key, shown) {
        return assert!(matches!(answer, Err(EngineError::Compacted { .. })), "{range:?} at {at:?}");
    }
    let answer = answer.unwrap_or_else(|refused| panic!("{range:?} at {at:?}: {refused}"));
    let state = want.state(range, shown);
    let got: Vec<Vec<u8>> = answer.kvs.iter().map(|version| version.encoded().to_vec()).collect();
    let expected: Vec<&[u8]> = state.values().filter_map(|change| change.encoded.as_deref()).collect();
    assert_eq!(got, expected, "{range:?} at {at:?}");
    assert_eq!((answer.header, answer.count), (want.start, expected.len() as u64));
    let count = engine.range(&RangeQuery { revision: at, count_only: true, ..query(range.clone()) });
    assert_eq!(count.expect("as before").count, expected.len() as u64, "count of {range:?} at {at:?}");
}

/// A read of the whole key space shows everything that reads of the Kinds show.
fn everything(engine: &mut Engine, want: &Want) {
    let answer = engine.range(&query(KeyRange::everything())).expect("the present can be read");
    assert_eq!(answer.header, want.start);
    let state = want.state(&KeyRange::everything(), want.start);
    assert_eq!(answer.count, state.len() as u64);
}

fn watches(engine: &mut Engine, want: &Want, range: &KeyRange, key: &[u8], start: Revision) {
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(range.clone(), Some(start))).expect("a free id");
    let mut out = Vec::new();
    loop {
        let more = engine.watch_pull(stream, 1);
        if more.is_empty() {
            break;
        }
        out.extend(more);
    }
    engine.watch_close(stream);
    let compacted = out.iter().any(|said| matches!(said, WatchOut::Compacted { .. }));
    // A watcher that has seen everything up to the last kept revision has missed nothing; what it has seen after that
    // is lost.
    let lost = start < want.start && hidden(want, key, start.prev());
    assert_eq!(compacted, start < want.floor_of(key) || lost, "{range:?} from {start}");
    let events = out.into_iter().filter_map(|said| match said {
        WatchOut::Events { events, .. } => Some(events),
        _ => None,
    });
    let got: Vec<_> = events.flatten().collect();
    let due: Vec<&Change> = want
        .changes
        .iter()
        .filter(|change| !compacted && change.revision >= start && range.contains(&change.key))
        .collect();
    assert_eq!(got.len(), due.len(), "{range:?} from {start}");
    for (got, due) in got.iter().zip(due) {
        assert_eq!(
            (got.kv.mod_revision(), got.kv.sub(), got.kv.key()),
            (due.revision, due.sub, &due.key[..])
        );
        assert_eq!((!got.is_delete()).then(|| got.kv.encoded().to_vec()), due.encoded);
        let single = KeyRange::Single(Key::copy_from(&due.key));
        let before = want.state(&single, due.revision.prev());
        let before = before.values().next().and_then(|change| change.encoded.clone());
        assert_eq!(got.prev.as_ref().map(|prev| prev.encoded().to_vec()), before, "prev_kv of {:?}", got.kv);
    }
}

fn leases(engine: &Engine, want: &Want) {
    let known = want.leases();
    let live: Vec<LeaseId> = known
        .iter()
        .filter(|(_, state)| matches!(state, LeaseState::Home { .. }))
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(engine.leases(), live);
    for id in live {
        let view = engine.lease_view(MonoMillis(1_000), id, true).expect("live");
        assert_eq!(view.ttl_s, view.granted_ttl_s, "it has its whole time again");
        let Some(LeaseState::Home { ttl_s, .. }) = known.get(&id) else { continue };
        assert_eq!(view.granted_ttl_s, *ttl_s);
        let keys: Vec<&[u8]> = view.keys.iter().map(|key| &key[..]).collect();
        let state = want.state(&KeyRange::everything(), want.start);
        let carry = state.values().filter(|change| change.lease == id.get());
        assert_eq!(keys, carry.map(|change| &change.key[..]).collect::<Vec<_>>(), "keys of {id}");
    }
}

/// Keys of leases that had ended are deleted now, everything else stays, and new revisions are above all others.
fn goes_on(engine: &mut Engine, want: &Want) {
    let known = want.leases();
    let state = want.state(&KeyRange::everything(), want.start);
    let over = |change: &&&Change| {
        let lease = LeaseId::from_wire(change.lease);
        lease.is_some_and(|lease| !matches!(known.get(&lease), Some(LeaseState::Home { .. })))
    };
    let orphans = state.values().filter(over).count();
    let later = WallMicros(2_000_000_000);
    while engine.lease_expire(later, MonoMillis(1_000), 1) {}
    let applied = engine.take_applied();
    engine.publish();
    engine.publish_fsync(applied.mark);
    engine.validate();
    let answer = engine.range(&query(KeyRange::everything())).expect("the present can be read");
    assert_eq!(answer.count, (state.len() - orphans) as u64);
    let deleted = applied.buffered.iter().chain(&applied.fsync).filter_map(|logged| match logged {
        Logged::Version(version) => Some(version),
        _ => None,
    });
    let deleted: Vec<_> = deleted.collect();
    assert_eq!(deleted.len(), orphans);
    assert!(deleted.iter().all(|version| version.is_tombstone() && version.mod_revision() > want.start));
}
