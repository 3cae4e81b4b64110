//! Applies random steps to the engine and the reference.

use std::collections::BTreeMap;

use bytes::Bytes;
use kindred_engine::{
    durability::KindModes,
    engine::{Engine, EngineConfig, MonoMillis, OpenRange, PinId, RevisionMode, WallMicros},
    error::EngineError,
    ops::*,
    version::Version,
};
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    kind::KindScheme,
};
use proptest::{prelude::*, sample::Index};

use crate::model::{
    feeds::Feeds,
    modes::Logs,
    reference::{Kv, Reference, State, Write},
    watches::Clients,
};

pub const KEYS: [&[u8]; 13] = [
    b"/registry/pods/a/1",
    b"/registry/pods/a/2",
    b"/registry/pods/b/1",
    b"/registry/minions/n1",
    b"/registry/services/specs/a/x",
    b"/registry/podtemplates/a/x",
    b"/registry/example.com/foos/a/x",
    b"/registry/pods",
    b"/registry/health",
    b"compact_rev_key",
    b"\xff\xff",
    b"\x00",
    b"/registry/pods0",
];

/// Kinds that are compacted alone.
const KINDS: [&str; 3] = ["/registry/pods/", "/registry/minions/", "/registry/services/specs/"];

fn span(start: &[u8], end: Option<&[u8]>) -> KeyRange {
    KeyRange::Span { start: Key::copy_from(start), end: end.map(Key::copy_from) }
}

pub fn ranges() -> Vec<KeyRange> {
    let mut ranges: Vec<KeyRange> = KEYS.iter().map(|key| KeyRange::Single(Key::copy_from(key))).collect();
    for prefix in [
        "/registry/pods/",
        "/registry/pods/a/",
        "/registry/minions/",
        "/registry/",
        "/registry/nothing/",
        "c",
    ] {
        ranges.push(KeyRange::prefix(Key::from(prefix)));
    }
    ranges.push(KeyRange::everything());
    ranges.push(span(b"/registry/minions/n1", Some(b"/registry/pods/a/2")));
    ranges.push(span(b"/registry/pods/a/2", None));
    ranges.push(span(b"/registry/pods/a/1\0", Some(b"/registry/pods0")));
    ranges.push(span(b"b", Some(b"a")));
    ranges
}

/// A random range, preferring those with keys.
pub fn pick(index: &Index) -> KeyRange {
    index.get(&ranges()).clone()
}

#[derive(Debug, Clone)]
pub enum Step {
    Put(Index, u8),
    Delete(Index),
    Txn(Index, CompareTarget, CompareResult, Vec<TxnOp>, Vec<TxnOp>),
    Publish,
    Durable,
    Received,
    Ship(bool),
    Compact(Index),
    CompactKind(Index, Index),
    Gc(usize),
    Range(Index, Index, usize),
    OpenRange(Index, Index),
    Chunk(Index, usize, usize),
    CloseRange(Index),
    Raise(Index, i64),
    Tick,
    WatchCreate {
        stream: Index,
        range: Index,
        start: Option<Index>,
        no_put: bool,
        no_delete: bool,
        prev_kv: bool,
    },
    WatchCancel(Index),
    Pull(Index, usize),
    Progress(Index),
    Time(u64),
    Hold(Index),
    Release(Index),
    FeedOpen(Vec<Index>, Option<Index>),
    FeedAdvance(Index, i64),
    FeedPull(Index, usize),
    FeedClose(Index),
    Changed(Index, Index),
}

#[derive(Debug, Clone)]
pub enum TxnOp {
    Put(Index, u8),
    Delete(Index),
    Range(Index),
    Nested(Index, CompareTarget, CompareResult, Vec<TxnOp>, Vec<TxnOp>),
}

fn target() -> impl Strategy<Value = CompareTarget> {
    prop_oneof![
        (0..3_i64).prop_map(CompareTarget::Version),
        (0..6_i64).prop_map(CompareTarget::Mod),
        (0..6_i64).prop_map(CompareTarget::Create),
        (0..3_u8).prop_map(|v| CompareTarget::Value(value(v).into())),
        (0..2_i64).prop_map(CompareTarget::Lease),
    ]
}

fn result() -> impl Strategy<Value = CompareResult> {
    prop_oneof![
        Just(CompareResult::Equal),
        Just(CompareResult::Greater),
        Just(CompareResult::Less),
        Just(CompareResult::NotEqual),
    ]
}

fn txn_ops() -> impl Strategy<Value = Vec<TxnOp>> {
    let leaf = prop_oneof![
        (any::<Index>(), 0..3_u8).prop_map(|(k, v)| TxnOp::Put(k, v)),
        any::<Index>().prop_map(TxnOp::Delete),
        any::<Index>().prop_map(TxnOp::Range),
    ];
    let op = leaf.prop_recursive(2, 8, 3, |inner| {
        let ops = prop::collection::vec(inner, 0..3);
        (any::<Index>(), target(), result(), ops.clone(), ops)
            .prop_map(|(k, t, r, yes, no)| TxnOp::Nested(k, t, r, yes, no))
    });
    prop::collection::vec(op, 0..4)
}

pub fn step() -> impl Strategy<Value = Step> {
    let start = prop::option::weighted(0.7, any::<Index>());
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), any::<bool>());
    prop_oneof![
        8 => (any::<Index>(), 0..3_u8).prop_map(|(k, v)| Step::Put(k, v)),
        3 => any::<Index>().prop_map(Step::Delete),
        4 => (any::<Index>(), target(), result(), txn_ops(), txn_ops())
            .prop_map(|(k, t, r, yes, no)| Step::Txn(k, t, r, yes, no)),
        7 => Just(Step::Publish),
        4 => Just(Step::Durable),
        4 => Just(Step::Received),
        1 => any::<bool>().prop_map(Step::Ship),
        2 => any::<Index>().prop_map(Step::Compact),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(kind, at)| Step::CompactKind(kind, at)),
        2 => (1..8_usize).prop_map(Step::Gc),
        3 => (any::<Index>(), any::<Index>(), 0..4_usize).prop_map(|(r, at, limit)| Step::Range(r, at, limit)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(r, at)| Step::OpenRange(r, at)),
        2 => (any::<Index>(), 1..4_usize, 1..100_usize).prop_map(|(i, keys, bytes)| Step::Chunk(i, keys, bytes)),
        1 => any::<Index>().prop_map(Step::CloseRange),
        1 => (any::<Index>(), 0..5000_i64).prop_map(|(r, by)| Step::Raise(r, by)),
        1 => Just(Step::Tick),
        4 => (any::<Index>(), any::<Index>(), start, flags).prop_map(
            |(stream, range, start, (no_put, no_delete, prev_kv))| Step::WatchCreate {
                stream, range, start, no_put, no_delete, prev_kv,
            }
        ),
        1 => any::<Index>().prop_map(Step::WatchCancel),
        5 => (any::<Index>(), prop_oneof![Just(1_usize), 1..200_usize, Just(1 << 20)])
            .prop_map(|(s, bytes)| Step::Pull(s, bytes)),
        2 => any::<Index>().prop_map(Step::Progress),
        2 => (0..3_u64).prop_map(Step::Time),
        1 => any::<Index>().prop_map(Step::Hold),
        1 => any::<Index>().prop_map(Step::Release),
        3 => (prop::collection::vec(any::<Index>(), 1..4), prop::option::weighted(0.6, any::<Index>()))
            .prop_map(|(ranges, start)| Step::FeedOpen(ranges, start)),
        2 => (any::<Index>(), prop_oneof![4 => -2000..5000_i64, 1 => Just(1_i64 << 40)])
            .prop_map(|(feed, by)| Step::FeedAdvance(feed, by)),
        5 => (any::<Index>(), prop_oneof![Just(1_usize), 1..200_usize, Just(1 << 20)])
            .prop_map(|(feed, bytes)| Step::FeedPull(feed, bytes)),
        1 => any::<Index>().prop_map(Step::FeedClose),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(r, since)| Step::Changed(r, since)),
    ]
}

fn value(v: u8) -> Vec<u8> {
    // Zero is the empty value (A8).
    vec![b'v'; usize::from(v) * 3]
}

/// A long read in progress, with the keys that it must still return.
struct Open {
    open: OpenRange,
    rest: Vec<(Vec<u8>, Kv)>,
}

pub struct World {
    pub engine: Engine,
    pub reference: Reference,
    pub clients: Clients,
    pub feeds: Feeds,
    now: WallMicros,
    mono: MonoMillis,
    /// Pinned revisions, and until when.
    holds: Vec<(Revision, MonoMillis, PinId, KeyRange)>,
    opens: Vec<Open>,
    compacted: Revision,
    /// Floors of Kinds that were compacted alone.
    kind_floors: BTreeMap<&'static str, Revision>,
    pub dense: bool,
    pub logs: Logs,
}

impl World {
    pub fn new(revisions: RevisionMode, modes: KindModes) -> Self {
        let config = EngineConfig {
            revisions,
            kinds: KindScheme::default(),
            max_clock_offset_micros: 10_000_000,
            min_lease_ttl_s: 2,
        };
        let now = WallMicros(1_000_000);
        let mut engine = Engine::new(config, now);
        engine.log_changes();
        engine.set_modes(modes).expect("nothing is written");
        let logs = Logs::new(engine.take_applied());
        let clients = Clients::new(&mut engine);
        let dense = revisions == RevisionMode::Dense;
        Self {
            engine,
            reference: Reference::default(),
            clients,
            feeds: Feeds::default(),
            now,
            mono: MonoMillis(0),
            compacted: Revision::ZERO,
            kind_floors: BTreeMap::new(),
            holds: Vec::new(),
            opens: Vec::new(),
            dense,
            logs,
        }
    }

    /// A revision near an event, the floor or the current one.
    pub fn revision(&mut self, index: &Index) -> Revision {
        let mut interesting = vec![self.engine.floor().get(), self.engine.current_all().get()];
        interesting.extend(self.kind_floors.values().map(|floor| floor.get()));
        interesting.extend(self.reference.changes.iter().map(|c| c.revision));
        let near: Vec<i64> = interesting.iter().flat_map(|r| [r - 1, *r, r + 1]).collect();
        Revision((*index.get(&near)).max(1))
    }

    fn query(range: KeyRange) -> RangeQuery {
        RangeQuery {
            range,
            revision: None,
            limit: 0,
            sort: None,
            contents: Contents::Whole,
            count_only: false,
            filter: RevisionFilter::default(),
        }
    }

    fn op(&self, op: &TxnOp) -> Op {
        match op {
            TxnOp::Put(key, v) => put(KEYS[key.index(KEYS.len())], *v),
            TxnOp::Delete(range) => Op::Delete(Delete { range: pick(range), buckets: None, prev_kv: true }),
            TxnOp::Range(range) => Op::Range(Self::query(pick(range))),
            TxnOp::Nested(key, target, result, yes, no) => {
                Op::Txn(Box::new(self.txn(key, target.clone(), *result, yes, no)))
            }
        }
    }

    fn txn(
        &self,
        key: &Index,
        target: CompareTarget,
        result: CompareResult,
        yes: &[TxnOp],
        no: &[TxnOp],
    ) -> Txn {
        // Small numbers stand for past revisions, the latest first.
        let revisions: Vec<i64> = self.reference.changes.iter().rev().map(|c| c.revision).collect();
        let real = |n: i64| revisions.get((n as usize).wrapping_sub(1)).copied().unwrap_or(0);
        let target = match target {
            CompareTarget::Mod(n) => CompareTarget::Mod(real(n)),
            CompareTarget::Create(n) => CompareTarget::Create(real(n)),
            other => other,
        };
        Txn {
            compares: vec![Compare { range: pick(key), target, result }],
            success: yes.iter().map(|op| self.op(op)).collect(),
            failure: no.iter().map(|op| self.op(op)).collect(),
        }
    }

    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Put(key, v) => self.apply(put(KEYS[key.index(KEYS.len())], *v)),
            Step::Delete(range) => {
                self.apply(Op::Delete(Delete { range: pick(range), buckets: None, prev_kv: true }))
            }
            Step::Txn(key, target, result, yes, no) => {
                let txn = self.txn(key, target.clone(), *result, yes, no);
                if !touches_twice(&Op::Txn(Box::new(txn.clone()))) {
                    self.apply(Op::Txn(Box::new(txn)));
                }
            }
            Step::Publish => crate::model::modes::publish(self),
            Step::Durable => crate::model::modes::durable(self, 1),
            Step::Received => crate::model::modes::received(self, 1),
            Step::Ship(on) => crate::model::modes::ship(self, *on),
            Step::Compact(at) => self.compact(at),
            Step::CompactKind(kind, at) => self.compact_kind(KINDS[kind.index(KINDS.len())], at),
            Step::Gc(budget) => {
                self.engine.gc(*budget);
            }
            Step::Range(range, at, limit) => {
                let at = self.revision(at);
                self.check_range(&pick(range), Some(at), *limit);
                self.check_range(&pick(range), None, *limit);
            }
            Step::OpenRange(range, at) => self.open(&pick(range), at),
            Step::Chunk(which, keys, bytes) => self.chunk(which, *keys, *bytes),
            Step::CloseRange(which) => {
                if !self.opens.is_empty() {
                    let open = self.opens.swap_remove(which.index(self.opens.len()));
                    self.engine.close_range(open.open);
                }
            }
            Step::Raise(range, by) => self.raise(&pick(range), *by),
            Step::Tick => {
                self.engine.progress_tick(self.now);
            }
            Step::Time(by) => {
                self.now.0 += by;
                self.mono.0 += by * 1_500;
            }
            Step::Hold(range) => self.hold(&pick(range)),
            Step::Release(which) => self.release(which),
            Step::Changed(range, since) => self.changed(&pick(range), since),
            step @ (Step::FeedOpen(..) | Step::FeedAdvance(..) | Step::FeedPull(..) | Step::FeedClose(_)) => {
                crate::model::feeds::step(self, step);
            }
            other => crate::model::watches::step(self, other),
        }
        self.engine.validate();
        let held = |(at, until, _, range): &(Revision, MonoMillis, PinId, KeyRange)| {
            *until <= self.mono || *at >= self.floor_of(range)
        };
        assert!(self.holds.iter().all(held), "R5: a floor passed one of {:?}", self.holds);
    }

    fn hold(&mut self, range: &KeyRange) {
        let current = self.engine.current(std::slice::from_ref(range));
        // Few names, as when one read pins several times.
        let pin = PinId(self.holds.len() as u64 % 7);
        self.engine.hold(self.mono, current, pin);
        self.holds.push((current, MonoMillis(self.mono.0 + 5_000), pin, range.clone()));
    }

    fn release(&mut self, which: &Index) {
        let pin = PinId(which.index(7) as u64);
        let live = |(_, until, held, _): &(Revision, MonoMillis, PinId, KeyRange)| {
            *held == pin && *until > self.mono
        };
        let held = self.holds.iter().any(live);
        assert!(self.engine.release(&[pin]) || !held, "{pin:?} was held");
        for hold in &mut self.holds {
            if hold.2 == pin {
                hold.1 = MonoMillis(0);
            }
        }
    }

    fn changed(&mut self, range: &KeyRange, since: &Index) {
        let since = self.revision(since);
        let changed = self.engine.changed(std::slice::from_ref(range), since);
        let certain = self.reference.history(range, since.next()).next().is_some();
        assert_eq!(changed, certain || since < self.floor_of(range), "{range:?} since {since}");
    }

    pub fn now(&self) -> WallMicros {
        self.now
    }

    /// Advances the time and ticks.
    pub fn tick(&mut self) {
        self.now.0 += 1_000_000_000;
        self.engine.progress_tick(self.now);
    }

    fn raise(&mut self, range: &KeyRange, by: i64) {
        let to = Revision(self.engine.current_all().get() + by);
        match self.engine.raise(self.now, std::slice::from_ref(range), to) {
            Ok(shown) => {
                let waits = self.reference.waits(i64::MAX);
                assert!(shown >= to || waits, "raised to {to}, shows {shown}");
                assert_eq!(self.engine.current(std::slice::from_ref(range)), shown);
            }
            Err(EngineError::ClockOffset { .. }) => assert!(self.dense || by > 0),
            Err(other) => panic!("{other}"),
        }
    }

    /// The lowest readable revision of a range.
    pub fn floor_of(&self, range: &KeyRange) -> Revision {
        let reads = |kind: &str| {
            let pseudo = kind.trim_end_matches('/').as_bytes();
            range.overlaps(&KeyRange::prefix(Key::from(kind)))
                || *range == KeyRange::Single(Key::copy_from(pseudo))
        };
        let kinds = self.kind_floors.iter().filter(|(kind, _)| reads(kind));
        kinds.map(|(_, floor)| *floor).fold(self.engine.floor(), Revision::max)
    }

    fn compact_kind(&mut self, kind: &'static str, index: &Index) {
        let (at, current) = (self.revision(index), self.engine.current_all());
        let known = |engine: &Engine| engine.floor_of_kind(kind.as_bytes());
        let (before, of_all) = (known(&self.engine), self.engine.floor());
        let waits = self.engine.compact_kind(self.mono, kind.as_bytes(), at);
        let after = known(&self.engine);
        assert_eq!(self.engine.floor(), of_all, "other Kinds keep theirs");
        let range = KeyRange::prefix(Key::from(kind));
        let has_keys = self.reference.history(&range, Revision::ZERO).next().is_some();
        match waits {
            Some(until) => {
                assert_eq!(after, before, "it waits");
                assert!(until > self.mono && until.0 <= self.mono.0 + 5_050);
            }
            None if !self.dense && has_keys => assert_eq!(after, before.max(at.min(current))),
            None => assert!(after == before || !self.dense && after == before.max(at.min(current))),
        }
        if after > before {
            self.kind_floors.insert(kind, after);
        }
    }

    fn compact(&mut self, index: &Index) {
        let at = self.revision(index);
        let (floor, current) = (self.engine.floor(), self.engine.current_all());
        match self.engine.compact(self.mono, at) {
            Ok(wait) if self.reference.waits(at.get()) => {
                assert_eq!(self.engine.floor(), floor, "it waits");
                assert!(wait > Some(self.mono) && wait.is_some_and(|until| until.0 < self.mono.0 + 10));
            }
            Ok(None) => {
                // The floor at the store's beginning is not a compaction.
                assert!(at > self.compacted && at <= current);
                assert_eq!(self.engine.floor(), floor.max(at));
                self.compacted = at;
            }
            Ok(Some(until)) => {
                assert_eq!(self.engine.floor(), floor, "it waits");
                assert!(until > self.mono && until.0 <= self.mono.0 + 5_050, "for some seconds");
                let grain = 50;
                let held = |(held, end, ..): &(Revision, MonoMillis, PinId, KeyRange)| {
                    *held < at && end.0 + grain > self.mono.0
                };
                assert!(self.holds.iter().any(held), "for something that is not released");
                // Later pins do not delay the compaction.
                self.hold(&KeyRange::everything());
                self.hold(&pick(index));
                assert_eq!(self.engine.compact(self.mono, at), Ok(Some(until)));
            }
            Err(EngineError::Compacted { .. }) => assert!(at <= self.compacted),
            Err(EngineError::Future { .. }) => assert!(at > current),
            Err(other) => panic!("{other}"),
        }
    }

    /// Applies a request to both and compares the answers.
    fn apply(&mut self, op: Op) {
        let before = self.reference.latest();
        let answer = match self.engine.apply(self.now, op.clone()) {
            Ok(answer) => answer,
            Err(EngineError::MixedModes(refused)) => {
                return crate::model::modes::refused(self, &op, &refused);
            }
            Err(other) => panic!("nothing else here can be refused: {other}"),
        };
        let mut path = Vec::new();
        let writes = flatten(&before, &op, &mut path);
        let mut state = before.clone();
        let revision = answered_revision(&answer).get();
        let changes = Reference::changes_of(&mut state, &writes, revision);
        if !changes.is_empty() {
            assert!(revision > self.reference.last_revision(), "revisions grow");
            assert!(revision > self.engine.current_all().get(), "above all that is shown");
        }
        crate::model::modes::answered(self, &op, changes.as_slice());
        self.reference.add(changes);
        let mut running = before;
        check_answer(&mut running, &op, &answer, revision, &mut path.iter());
    }

    pub fn check_range(&mut self, range: &KeyRange, at: Option<Revision>, limit: usize) {
        let current = self.engine.current(std::slice::from_ref(range));
        let floor = self.floor_of(range);
        let query = RangeQuery { revision: at, limit, ..Self::query(range.clone()) };
        let answer = match self.engine.range(&query) {
            Ok(answer) => answer,
            Err(EngineError::Future { .. }) => return assert!(at > Some(current)),
            Err(EngineError::Compacted { .. }) => return assert!(at < Some(floor)),
            Err(other) => panic!("{other}"),
        };
        // C1: the header has the current revision, whichever one was read.
        assert_eq!(answer.header, current);
        let want = self.state_in(range, at.unwrap_or(current));
        assert_eq!(answer.count, want.len() as u64, "count of {range:?} at {at:?}");
        assert_eq!(answer.more, limit > 0 && want.len() > limit);
        let cut = if limit == 0 { want.len() } else { limit.min(want.len()) };
        assert_eq!(
            answer.kvs.iter().map(from_version).collect::<Vec<_>>(),
            want[..cut],
            "{range:?} at {at:?}"
        );
        let count = self.engine.range(&RangeQuery { count_only: true, ..query }).expect("as before");
        assert_eq!((count.count, count.kvs.len()), (want.len() as u64, 0));
        self.check_pages(range, at.unwrap_or(current), limit, &want);
    }

    /// Reads the next pages of a list as an apiserver does: at its revision, behind the last key.
    fn check_pages(&mut self, range: &KeyRange, at: Revision, limit: usize, want: &[(Vec<u8>, Kv)]) {
        let KeyRange::Span { end, .. } = range else { return };
        let mut pages = want.chunks(limit.max(1));
        let mut left = want.len();
        while let Some(last) = pages.next().and_then(<[_]>::last)
            && limit > 0
        {
            left -= limit.min(left);
            let start = Key::copy_from(&[last.0.as_slice(), b"\0"].concat());
            let range = KeyRange::Span { start, end: end.clone() };
            let page = self.engine.range(&RangeQuery { revision: Some(at), limit, ..Self::query(range) });
            let page = page.expect("as before");
            assert_eq!((page.count, page.more), (left as u64, left > limit));
        }
    }

    /// The answer of a read of published state at `at`.
    fn state_in(&self, range: &KeyRange, at: Revision) -> Vec<(Vec<u8>, Kv)> {
        let state = self.reference.published_state(at.get());
        state.into_iter().filter(|(key, _)| range.contains(key)).collect()
    }

    fn open(&mut self, range: &KeyRange, at: &Index) {
        let at = self.revision(at);
        if let Ok(open) = self.engine.open_range(range, Some(at)) {
            let rest = self.state_in(range, at);
            assert_eq!((open.at, open.count), (at, rest.len() as u64));
            self.opens.push(Open { open, rest });
        }
    }

    fn chunk(&mut self, which: &Index, keys: usize, bytes: usize) {
        if self.opens.is_empty() {
            return;
        }
        let which = which.index(self.opens.len());
        let Open { open, rest } = &mut self.opens[which];
        let chunk = self.engine.next_chunk(open, keys, bytes).expect("nothing is dropped");
        assert!(chunk.len() <= keys && chunk.is_empty() == rest.is_empty());
        let got: Vec<(Vec<u8>, Kv)> = chunk.iter().map(from_version).collect();
        assert_eq!(got, rest[..got.len()], "a pin holds what was current");
        rest.drain(..got.len());
    }

    /// Compares every range at every revision, then finishes every watch.
    pub fn finish(&mut self) {
        for which in 0..self.opens.len() {
            while !self.opens[which].rest.is_empty() {
                let index = which;
                let Open { open, rest } = &mut self.opens[index];
                let chunk = self.engine.next_chunk(open, 2, 1 << 20).expect("nothing is dropped");
                let got: Vec<(Vec<u8>, Kv)> = chunk.iter().map(from_version).collect();
                assert_eq!(got, rest[..got.len()]);
                rest.drain(..got.len());
            }
        }
        for open in std::mem::take(&mut self.opens) {
            self.engine.close_range(open.open);
        }
        crate::model::modes::finish(self);
        let mut revisions: Vec<i64> = self.reference.changes.iter().map(|c| c.revision).collect();
        revisions.extend([self.engine.floor().get(), self.engine.current_all().get()]);
        revisions.extend(self.kind_floors.values().map(|floor| floor.get()));
        for collected in [false, true] {
            while collected && self.engine.gc(100) {}
            self.engine.validate();
            for range in ranges() {
                self.check_range(&range, None, 2);
                for at in &revisions {
                    self.check_range(&range, Revision::from_wire(*at), 0);
                }
            }
        }
        crate::model::watches::finish(self);
        crate::model::feeds::finish(self);
    }
}

fn put(key: &[u8], v: u8) -> Op {
    Op::Put(Put {
        key: Key::copy_from(key),
        value: Bytes::from(value(v)),
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: true,
    })
}

pub fn from_version(version: &Version) -> (Vec<u8>, Kv) {
    let kv = Kv {
        value: version.value().to_vec(),
        create: version.create_revision().get(),
        modified: version.mod_revision().get(),
        version: version.version(),
    };
    (version.key().to_vec(), kv)
}

fn answered_revision(answer: &OpAnswer) -> Revision {
    match answer {
        OpAnswer::Range(range) => range.header,
        OpAnswer::Put { header, .. } | OpAnswer::Delete { header, .. } => *header,
        OpAnswer::Txn(txn) => txn.header,
    }
}

/// Whether a transaction writes a key twice: etcd refuses it, and the shard does before the engine sees it.
fn touches_twice(op: &Op) -> bool {
    fn gather<'o>(op: &'o Op, puts: &mut Vec<&'o [u8]>, deletes: &mut Vec<&'o KeyRange>) {
        match op {
            Op::Put(put) => puts.push(&put.key),
            Op::Delete(delete) => deletes.push(&delete.range),
            Op::Range(_) => {}
            Op::Txn(txn) => txn.success.iter().chain(&txn.failure).for_each(|op| gather(op, puts, deletes)),
        }
    }
    let (mut puts, mut deletes) = (Vec::new(), Vec::new());
    gather(op, &mut puts, &mut deletes);
    let twice = (1..puts.len()).any(|i| puts[i..].contains(&puts[i - 1]));
    twice || puts.iter().any(|key| deletes.iter().any(|range| range.contains(key)))
}

/// The writes of the branches taken, with compares evaluated on the state before; notes the branches.
fn flatten(before: &State, op: &Op, path: &mut Vec<bool>) -> Vec<Write> {
    match op {
        Op::Range(_) => Vec::new(),
        Op::Put(put) => vec![Write::Put { key: put.key.to_vec(), value: put.value.to_vec() }],
        Op::Delete(delete) => vec![Write::Delete { range: delete.range.clone() }],
        Op::Txn(txn) => {
            let holds = txn.compares.iter().all(|compare| holds(before, compare));
            path.push(holds);
            let ops = if holds { &txn.success } else { &txn.failure };
            ops.iter().flat_map(|op| flatten(before, op, path)).collect()
        }
    }
}

fn holds(state: &State, compare: &Compare) -> bool {
    let mut found: Vec<Kv> =
        state.iter().filter(|(k, _)| compare.range.contains(k)).map(|(_, kv)| kv.clone()).collect();
    if found.is_empty() {
        if matches!(compare.target, CompareTarget::Value(_)) {
            return false;
        }
        found.push(Kv { value: Vec::new(), create: 0, modified: 0, version: 0 });
    }
    found.iter().all(|kv| {
        let order = match &compare.target {
            CompareTarget::Version(n) => kv.version.cmp(n),
            CompareTarget::Create(n) => kv.create.cmp(n),
            CompareTarget::Mod(n) => kv.modified.cmp(n),
            CompareTarget::Value(v) => kv.value.as_slice().cmp(v),
            CompareTarget::Lease(n) => 0.cmp(n),
        };
        match compare.result {
            CompareResult::Equal => order.is_eq(),
            CompareResult::NotEqual => order.is_ne(),
            CompareResult::Greater => order.is_gt(),
            CompareResult::Less => order.is_lt(),
        }
    })
}

/// Checks an answer against its request, applying it to a state step by step.
fn check_answer(
    state: &mut State,
    op: &Op,
    answer: &OpAnswer,
    revision: i64,
    path: &mut dyn Iterator<Item = &bool>,
) {
    match (op, answer) {
        (Op::Range(query), OpAnswer::Range(got)) => {
            let want: Vec<(Vec<u8>, Kv)> = state
                .iter()
                .filter(|(k, _)| query.range.contains(k))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            assert_eq!(got.kvs.iter().map(from_version).collect::<Vec<_>>(), want);
            assert_eq!(got.count, want.len() as u64);
        }
        (Op::Put(put), OpAnswer::Put { header, prev }) => {
            assert_eq!(header.get(), revision);
            assert_eq!(prev.as_ref().map(|p| from_version(p).1), state.get(&put.key[..]).cloned());
            let write = Write::Put { key: put.key.to_vec(), value: put.value.to_vec() };
            Reference::changes_of(state, &[write], revision);
        }
        (Op::Delete(delete), OpAnswer::Delete { deleted, prev, .. }) => {
            let doomed =
                Reference::changes_of(state, &[Write::Delete { range: delete.range.clone() }], revision);
            assert_eq!(*deleted, doomed.len() as u64);
            let want: Vec<Kv> = doomed.into_iter().map(|c| c.prev.expect("it existed")).collect();
            assert_eq!(prev.iter().map(|p| from_version(p).1).collect::<Vec<_>>(), want);
        }
        (Op::Txn(txn), OpAnswer::Txn(got)) => {
            let holds = *path.next().expect("one a transaction");
            assert_eq!(got.succeeded, holds);
            let ops = if holds { &txn.success } else { &txn.failure };
            assert_eq!(ops.len(), got.responses.len());
            for (op, answer) in ops.iter().zip(&got.responses) {
                check_answer(state, op, answer, revision, path);
            }
        }
        other => panic!("{other:?}"),
    }
}
