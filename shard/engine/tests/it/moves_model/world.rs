//! The engines, the owners by the map, and the requests of clients.

use std::collections::{BTreeMap, BTreeSet};

use kindred_engine::{engine::*, error::EngineError, ops::*, units::*};
use kindred_partition_config::{
    ids::{Epoch, LeaseId, Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
    ring::{Bucket, BucketSet, RingHash},
    unit::{Unit, UnitBuckets},
};

use crate::{
    common,
    moves_model::{
        check::SlowWatch,
        client::Client,
        moving::Move,
        random::Random,
        reference::{Reference, Wrote},
        standby::Standby,
    },
};

/// The keys at which the map may cut.
const CUTS: [&str; 7] = [
    "/registry/minions/",
    "/registry/minions/n5",
    "/registry/minions0",
    "/registry/pods/",
    "/registry/pods/c",
    "/registry/pods0",
    "/registrz",
];
pub const PIECES: usize = CUTS.len() - 1;
/// The number of groups in which buckets are owned.
pub const GROUPS: usize = 4;
/// The home of all leases.
const HOME: usize = 0;

/// Keys that have one owner at any time.
#[derive(Clone)]
pub struct Cell {
    /// `None` between release and open.
    pub owner: Option<usize>,
    /// Nothing of the cell below this revision is readable,
    pub low: Revision,
    /// and everything from this revision on is.
    pub floor: Revision,
    /// The engines that owned it by an earlier map.
    pub past: BTreeSet<usize>,
}

pub struct Lease {
    pub id: LeaseId,
    /// The engines that know it.
    pub known: BTreeSet<usize>,
    /// Whether it was revoked at its home.
    pub ending: bool,
}

pub struct World {
    pub random: Random,
    pub at: usize,
    pub engines: Vec<Engine>,
    /// The revision at which each engine was created.
    pub births: Vec<Revision>,
    /// For each engine the Kinds (by prefix) of which it owned something by a map, other than by an import.
    pub began: Vec<BTreeSet<usize>>,
    pub cells: Vec<[Cell; GROUPS]>,
    pub reference: Reference,
    pub now: WallMicros,
    pub generation: Epoch,
    pub moves: Vec<Move>,
    pub next_move: u64,
    pub leases: Vec<Lease>,
    next_lease: i64,
    pub compacted: Revision,
    /// The highest compaction of a Kind alone, by engine and first piece of the Kind.
    pub kinds_compacted: BTreeMap<(usize, usize), Revision>,
    pub clients: Vec<Client>,
    pub watches: Vec<SlowWatch>,
    pub reads: Vec<crate::moves_model::check::SlowRead>,
    pub rests: Vec<crate::moves_model::check::Rest>,
    pub keys: Vec<String>,
    pub standbys: Vec<Standby>,
    values: u64,
    young_at: usize,
}

fn engine(slot: usize, now: WallMicros) -> Engine {
    let slot = Slot::new(3 + u16::try_from(slot).expect("few")).expect("below 1024");
    let revisions = RevisionMode::Hlc(slot);
    let kinds = KindScheme::default();
    let config = EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
    let mut engine = Engine::new(config, now);
    // All changes are shipped to a standby.
    engine.log_changes();
    engine.ship(true);
    engine
}

fn all_keys() -> Vec<String> {
    let mut keys: Vec<String> = (1..=8).map(|i| format!("/registry/minions/n{i}")).collect();
    keys.extend(["namespaces/n", "other/x1", "other/x2", "zz/1"].map(|key| format!("/registry/{key}")));
    keys.extend(["/registryodd/1".to_owned()]);
    keys.extend(
        ["a", "b", "c", "d"].iter().flat_map(|n| (0..4).map(move |i| format!("/registry/pods/{n}/{i}"))),
    );
    keys
}

/// The prefix length of the Kind that contains a piece, if one does.
fn prefix_len(piece: usize) -> Option<usize> {
    match piece {
        0 | 1 => Some(CUTS[0].len()),
        3 | 4 => Some(CUTS[3].len()),
        _ => None,
    }
}

pub fn cell_of(key: &str) -> (usize, usize) {
    let piece = CUTS.iter().rposition(|cut| *cut <= key).expect("in a piece");
    let Some(len) = prefix_len(piece) else { return (piece, 0) };
    (piece, usize::from(RingHash::V1.bucket(&key.as_bytes()[len..]).0) % GROUPS)
}

pub fn span_of(first: usize, last: usize) -> KeyRange {
    KeyRange::Span { start: Key::from(CUTS[first]), end: Some(Key::from(CUTS[last + 1])) }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let engines: Vec<Engine> = (0..2).map(|i| engine(i, WallMicros(1_000))).collect();
        let births: Vec<Revision> = engines.iter().map(Engine::floor).collect();
        let ring = random.one_in(2);
        let mut began = vec![BTreeSet::new(); 3];
        let cells = (0..PIECES)
            .map(|piece| {
                let single = random.below(2);
                [0; GROUPS].map(|_| {
                    let owner = if ring && prefix_len(piece).is_some() { random.below(2) } else { single };
                    began[owner].insert(piece);
                    Cell {
                        owner: Some(owner),
                        low: Revision::ZERO,
                        floor: births[owner],
                        past: BTreeSet::new(),
                    }
                })
            })
            .collect();
        let young_at = random.below(80);
        Self {
            random,
            at: 0,
            engines,
            births,
            began,
            cells,
            reference: Reference::default(),
            now: WallMicros(2_000),
            generation: Epoch(1),
            moves: Vec::new(),
            next_move: 1,
            leases: Vec::new(),
            next_lease: 1,
            compacted: Revision::ZERO,
            kinds_compacted: BTreeMap::new(),
            clients: Vec::new(),
            watches: Vec::new(),
            reads: Vec::new(),
            rests: Vec::new(),
            keys: all_keys(),
            standbys: Vec::new(),
            values: 0,
            young_at,
        }
    }

    // ---- the map

    pub fn cell(&self, key: &str) -> &Cell {
        let (piece, group) = cell_of(key);
        &self.cells[piece][group]
    }

    pub fn owner(&self, key: &str) -> Option<usize> {
        self.cell(key).owner
    }

    pub fn cells_in(&self, range: &KeyRange) -> impl Iterator<Item = (usize, &Cell)> {
        let pieces = (0..PIECES).filter(|piece| span_of(*piece, *piece).overlaps(range));
        pieces.flat_map(|piece| self.cells[piece].iter().map(move |cell| (piece, cell)))
    }

    pub fn owns_some(&self, e: usize, range: &KeyRange) -> bool {
        self.cells_in(range).any(|(_, cell)| cell.owner == Some(e))
    }

    /// The floor of what an engine shows of a range: nothing below the first answer is readable, and everything from
    /// the second on is.
    pub fn floors(&self, e: usize, range: &KeyRange) -> (Revision, Revision) {
        let owned = || self.cells_in(range).filter(|(_, cell)| cell.owner == Some(e));
        let low = owned().map(|(_, cell)| cell.low).max().unwrap_or(Revision::ZERO);
        let high = owned().map(|(_, cell)| cell.floor).max().unwrap_or(self.compacted).max(self.compacted);
        // The history of a Kind that the engine owned without an import, or of which it owns nothing, begins with the
        // engine.
        let kind = |piece: usize| [0, 0, 2, 3, 3, 5][piece];
        let alone = |piece: usize| self.kinds_compacted.get(&(e, kind(piece))).copied();
        let high = self.cells_in(range).filter_map(|(piece, _)| alone(piece)).fold(high, Revision::max);
        let touched: BTreeSet<_> = self.cells_in(range).map(|(piece, _)| kind(piece)).collect();
        let ours: BTreeSet<_> = owned().map(|(piece, _)| kind(piece)).collect();
        let began = self.began[e].iter().any(|piece| touched.contains(&kind(*piece)));
        let all = *range == KeyRange::everything();
        (low, if began || all || touched != ours { high.max(self.births[e]) } else { high })
    }

    /// Whether requests for a range wait at an engine because of a move.
    pub fn waits(&self, e: usize, range: &KeyRange) -> bool {
        self.moves.iter().any(|m| m.makes_wait(e) && m.by.unit.overlaps(range))
    }

    /// The cells of a unit.
    pub fn cells_of(unit: &Unit) -> Vec<(usize, usize)> {
        let pieces = (0..PIECES).filter(|piece| span_of(*piece, *piece).overlaps(&unit.range));
        let group = |group: usize| {
            let bucket = Bucket(u8::try_from(group).expect("few"));
            unit.buckets.is_none_or(|buckets| buckets.set.contains(bucket))
        };
        pieces.flat_map(|piece| (0..GROUPS).filter(|g| group(*g)).map(move |g| (piece, g))).collect()
    }

    /// A unit that one engine owns and that is not moving, and that engine.
    pub fn pick_unit(&mut self) -> Option<(Unit, usize)> {
        let first = self.random.below(PIECES);
        let last = if self.random.one_in(4) { first + self.random.below(PIECES - first) } else { first };
        let kind = if self.random.one_in(3) && prefix_len(first).is_some() { first / 3 * 3 } else { first };
        let (first, last) = if kind == first { (first, last) } else { (kind, kind + 1) };
        let both = first == last && last + 1 < PIECES && prefix_len(first) == prefix_len(first + 1);
        let last = if both && prefix_len(first).is_some() && self.random.one_in(2) { last + 1 } else { last };
        let one_kind = prefix_len(first).filter(|len| prefix_len(last) == Some(*len) && last - first < 2);
        let buckets = one_kind.filter(|_| !self.random.one_in(3)).map(|prefix_len| {
            let mask = 1 + self.random.below(15);
            let set: BucketSet =
                Bucket::all().filter(|b| mask >> (usize::from(b.0) % GROUPS) & 1 == 1).collect();
            UnitBuckets { prefix_len, set }
        });
        let unit = Unit { range: span_of(first, last), buckets };
        let cells = Self::cells_of(&unit);
        let from = self.cells[cells[0].0][cells[0].1].owner?;
        let whole = cells.iter().all(|(piece, group)| self.cells[*piece][*group].owner == Some(from));
        let busy = self.moves.iter().any(|m| m.by.unit.range.overlaps(&unit.range));
        (whole && !busy).then_some((unit, from))
    }

    pub fn random_range(&mut self) -> KeyRange {
        if self.random.one_in(6) {
            return KeyRange::everything();
        }
        if self.random.one_in(3) {
            let (a, b) = (self.random.of(&self.keys).clone(), self.random.of(&self.keys).clone());
            let (start, end) = if a <= b { (a, b) } else { (b, a) };
            return KeyRange::Span {
                start: Key::from(start.as_str()),
                end: Some(Key::from(end.as_str()).successor()),
            };
        }
        match self.random.below(3) {
            0 => KeyRange::prefix(Key::from(CUTS[0])),
            _ => KeyRange::prefix(Key::from(CUTS[3])),
        }
    }

    // ---- steps

    pub fn step(&mut self) {
        self.now = WallMicros(self.now.0 + self.random.below(20) as u64);
        if self.at == self.young_at {
            self.engines.push(engine(2, self.now));
            self.births.push(self.engines[2].floor());
        }
        match self.random.below(20) {
            0..=6 => self.writes(),
            7 if self.random.one_in(3) => self.revoke(),
            7 => self.grant(),
            8 if self.random.one_in(4) => self.compact(),
            9 if self.random.one_in(3) => self.compact_kind(),
            8 | 9 => self.gc(),
            10 => self.client_steps(),
            11 => self.tick(),
            12 => self.slow(),
            13 => self.standby_steps(),
            _ => self.move_steps(),
        }
        if self.at.is_multiple_of(4) {
            self.check();
        }
    }

    fn writes(&mut self) {
        let mut engines = BTreeSet::new();
        for _ in 0..1 + self.random.below(3) {
            engines.extend(self.write());
        }
        for e in engines {
            self.publish(e);
        }
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    fn put(&mut self, e: usize, key: &str) -> (Op, (String, Option<(String, i64)>)) {
        let value = self.value();
        let known = self.leases.iter().filter(|lease| !lease.ending && lease.known.contains(&e));
        let known: Vec<LeaseId> = known.map(|lease| lease.id).collect();
        let lease = (!known.is_empty() && self.random.one_in(3)).then(|| *self.random.of(&known));
        let Op::Put(put) = common::put(key, &value) else { unreachable!("a put") };
        (Op::Put(Put { lease, ..put }), (key.to_owned(), Some((value, lease.map_or(0, LeaseId::get)))))
    }

    /// Applies a request at some engine; answers the engine that has something to publish.
    fn write(&mut self) -> Option<usize> {
        let key = self.random.of(&self.keys).clone();
        let single = KeyRange::Single(Key::from(key.as_str()));
        for e in 0..self.engines.len() {
            let cell = self.cell(&key);
            if cell.owner != Some(e) && (cell.past.contains(&e) || self.follows(e, &key)) {
                let refused =
                    self.engines[e].apply(self.now, common::put(&key, "stray")).expect_err("not owned");
                assert!(matches!(refused, EngineError::NotOwned(_)), "{refused}");
            }
        }
        let e = self.owner(&key)?;
        if self.moves.iter().any(|m| m.makes_wait(e) && m.by.unit.contains(key.as_bytes())) {
            let refused = self.engines[e].apply(self.now, common::put(&key, "early")).expect_err("frozen");
            assert!(
                matches!(refused, EngineError::NotOwned(NotOwned { epoch: Epoch::NONE, .. })),
                "{refused}"
            );
            assert!(self.engines[e].owns(&[single], None).is_err());
            return None;
        }
        let (op, changes) = match self.random.below(8) {
            0 | 1 => {
                let exists = self.reference.now(&key).is_some();
                (common::delete(&key), if exists { vec![(key, None)] } else { vec![] })
            }
            2 => {
                let range = self.random_range();
                if !self.owns_some(e, &range) || self.waits(e, &range) || !self.random.one_in(3) {
                    return None;
                }
                let doomed =
                    self.reference.list(&range, Revision(i64::MAX), |key| self.owner(key) == Some(e));
                let changes = doomed.into_iter().map(|kv| (kv.key, None)).collect();
                (Op::Delete(Delete { range, buckets: None, prev_kv: false }), changes)
            }
            3 => {
                let others: BTreeSet<String> = (0..3).map(|_| self.random.of(&self.keys).clone()).collect();
                let ours = |other: &String| {
                    self.owner(other) == Some(e)
                        && !self.waits(e, &KeyRange::Single(Key::from(other.as_str())))
                };
                let others: Vec<String> = others.into_iter().filter(ours).collect();
                let (ops, changes) = others.iter().map(|other| self.put(e, other)).unzip();
                (common::txn(vec![], ops, vec![]), changes)
            }
            _ => {
                let (op, change) = self.put(e, &key);
                (op, vec![change])
            }
        };
        let answer = self.engines[e].apply(self.now, op).expect("owned");
        if !changes.is_empty() {
            self.reference.wrote(common::header(&answer), changes);
        }
        Some(e)
    }

    fn follows(&self, e: usize, key: &str) -> bool {
        self.moves.iter().any(|m| m.hides_at(e) && m.by.unit.contains(key.as_bytes()))
    }

    fn grant(&mut self) {
        let id = LeaseId::from_wire(self.next_lease).expect("not 0");
        if self.leases.len() < 3 {
            self.next_lease += 1;
            self.engines[HOME].lease_grant(MonoMillis(0), id, 1_000_000).expect("granted");
            self.leases.push(Lease { id, known: BTreeSet::from([HOME]), ending: false });
        }
        let (lease, e) = (self.random.below(self.leases.len()), self.random.below(self.engines.len()));
        self.adopt(self.leases[lease].id, e);
    }

    /// Makes a lease known to an engine; answers false when the lease has ended.
    pub fn adopt(&mut self, id: LeaseId, e: usize) -> bool {
        let Some(lease) = self.leases.iter_mut().find(|lease| lease.id == id) else { return false };
        if lease.ending {
            return false;
        }
        if lease.known.insert(e) {
            let slot = Slot::new(3 + u16::try_from(e).expect("few")).expect("below 1024");
            let ttl = self.engines[HOME].lease_attach(id, slot).expect("known");
            self.engines[e].lease_adopt(id, ttl, Slot::new(3).expect("below 1024")).expect("adopted");
        }
        true
    }

    fn revoke(&mut self) {
        for i in 0..self.leases.len() {
            if !self.leases[i].ending && !self.random.one_in(3) {
                continue;
            }
            let id = self.leases[i].id;
            let known: Vec<usize> = self.leases[i].known.iter().copied().collect();
            for e in known {
                // It is refused where the end of the lease is refused too.
                let keys = self.engines[e].lease_keys(id, None).map(|keys| keys.expect("known"));
                let keys = keys.unwrap_or_default();
                let engine = &mut self.engines[e];
                let ended = match e {
                    HOME => engine.lease_revoke(self.now, id).map(|(at, _)| at),
                    _ => engine.lease_end(self.now, id),
                };
                let at = match ended {
                    Ok(at) => at,
                    // The lease does not end at the others before its home.
                    Err(EngineError::NotOwned(NotOwned { epoch: Epoch::NONE, .. })) if e == HOME => break,
                    Err(EngineError::NotOwned(NotOwned { epoch: Epoch::NONE, .. })) => continue,
                    Err(other) => panic!("{other}"),
                };
                self.publish(e);
                let text = |key: &Key| String::from_utf8(key.to_vec()).expect("text");
                let keys: Vec<_> = keys.iter().map(|key| (text(key), None)).collect();
                if !keys.is_empty() {
                    self.reference.wrote(at, keys);
                }
                self.leases[i].ending = true;
                self.leases[i].known.remove(&e);
            }
        }
        for lease in self.leases.iter().filter(|lease| lease.known.is_empty()) {
            self.engines[HOME].lease_forget(lease.id);
        }
        self.leases.retain(|lease| !lease.known.is_empty());
    }

    fn compact(&mut self) {
        let current = self.engines.iter_mut().map(Engine::current_all).min().expect("some");
        let possible = |e: &&Wrote| e.at <= current && e.at > self.compacted;
        let possible: Vec<Revision> = self.reference.events.iter().filter(possible).map(|e| e.at).collect();
        if possible.is_empty() {
            return;
        }
        let at = *self.random.of(&possible[..possible.len().div_ceil(2)]);
        for engine in &mut self.engines {
            match engine.compact(MonoMillis(0), at) {
                Ok(None) | Err(EngineError::Compacted { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        self.compacted = at;
        for cell in self.cells.iter_mut().flatten() {
            cell.floor = cell.floor.max(at);
            cell.low = cell.low.max(at);
        }
    }

    /// Compacts one Kind at one engine, which may own all, some or nothing of it.
    fn compact_kind(&mut self) {
        let e = self.random.below(self.engines.len());
        let first = *self.random.of(&[0, 3]);
        let current = self.engines[e].current_all();
        let possible = self.reference.events.iter().map(|event| event.at).filter(|at| *at <= current);
        let possible: Vec<Revision> = possible.collect();
        if possible.is_empty() {
            return;
        }
        let at = *self.random.of(&possible[..possible.len().div_ceil(2)]);
        let kind = CUTS[first].as_bytes();
        let before = self.engines[e].floor_of_kind(kind);
        assert_eq!(self.engines[e].compact_kind(MonoMillis(0), kind, at), None);
        if self.engines[e].floor_of_kind(kind) == before {
            return;
        }
        let floor = self.kinds_compacted.entry((e, first)).or_insert(at);
        *floor = at.max(*floor);
        for cell in self.cells[first..first + 2].iter_mut().flatten().filter(|cell| cell.owner == Some(e)) {
            cell.floor = cell.floor.max(at);
        }
    }

    fn gc(&mut self) {
        let e = self.random.below(self.engines.len());
        let budget = 1 + self.random.below(12);
        self.engines[e].gc(budget);
    }

    fn tick(&mut self) {
        let e = self.random.below(self.engines.len());
        self.engines[e].progress_tick(self.now);
    }

    /// Ends all moves, and checks everything once more.
    pub fn finish(&mut self) {
        for _ in 0..400 {
            if self.moves.is_empty() {
                break;
            }
            self.conclude_moves();
        }
        assert!(
            self.moves.is_empty(),
            "moves come to an end: {:?}",
            self.moves.iter().map(|m| m.phase).collect::<Vec<_>>()
        );
        for e in 0..self.engines.len() {
            while self.engines[e].gc(5) {}
        }
        self.client_steps();
        self.check();
        self.standbys_take_over();
    }
}
