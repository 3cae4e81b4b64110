//! Random sequences of operations from a seed.

use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, HashKvRequest, LeaseGrantRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, PutRequest, RangeRequest, WatchCreateRequest,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::differential::{
    confine::Stores,
    generate_txn,
    keys::{self, KINDS},
    operation::{Action, Operation},
    revision::{Mode, Scope, Symbol},
};

pub const STREAMS: usize = 5;
/// The last streams get the watches that wait for a revision that is not written yet. Until it is written, such a
/// stream answers no progress request, so a watch that starts in the past could not be drained there.
const WAITING_STREAMS: usize = 2;
/// Leases are granted with explicit ids, so that both sides use the same ones.
const LEASES: i64 = 6;
/// More than etcd's limit of a request, 1.5 MiB.
const TOO_LARGE_BYTES: usize = 1_600_000;

pub fn sequence(seed: u64, length: usize, mode: Mode, stores: &Stores) -> Vec<Operation> {
    let mut generator = Generator { rng: StdRng::seed_from_u64(seed), mode, stores };
    let mut operations: Vec<Operation> = (1..length).map(|_| generator.operation()).collect();
    operations.push(Operation { scope: Scope::All, action: Action::Drain });
    operations
}

pub struct Generator<'a> {
    pub rng: StdRng,
    pub mode: Mode,
    stores: &'a Stores,
}

impl Generator<'_> {
    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// A key of this kind. In dense mode it is sometimes a key of another kind, or of none.
    pub fn key(&mut self, kind: usize) -> Bytes {
        if self.mode == Mode::Dense {
            match self.rng.random_range(0..20) {
                0 => return keys::odd(&mut self.rng),
                1 | 2 => {
                    let other = self.rng.random_range(0..KINDS.len());
                    return keys::key(&mut self.rng, other);
                }
                _ => {}
            }
        }
        keys::key(&mut self.rng, kind)
    }

    /// A pair (key, range_end) for one key, for a part of a kind, or for a whole kind. In dense mode the range may also
    /// ignore the borders of kinds.
    pub fn span(&mut self, kind: usize) -> (Bytes, Bytes) {
        match self.rng.random_range(0..20) {
            0..6 => (self.key(kind), Bytes::new()),
            6..11 => keys::part(&mut self.rng, kind),
            11..17 => keys::whole(kind),
            _ if self.mode == Mode::Mapped => keys::whole(kind),
            17 => (self.key(kind), self.key(kind)),
            18 => (self.key(kind), Bytes::from_static(b"\0")),
            _ => (Bytes::from_static(b"\0"), Bytes::from_static(b"\0")),
        }
    }

    /// A revision for a read. Most are 0, the current revision.
    pub fn revision(&mut self) -> i64 {
        match self.rng.random_range(0..100) {
            0..60 => 0,
            60..80 => Symbol::Recent(self.rng.random_range(0..1001)).code(),
            80..86 => Symbol::Past(self.rng.random_range(0..1001)).code(),
            86..91 => Symbol::Compacted(self.rng.random_range(-1..2)).code(),
            91..95 => Symbol::Current.code(),
            95..98 => Symbol::Future(self.rng.random_range(1..3)).code(),
            _ => -1,
        }
    }

    pub fn range(&mut self, kind: usize) -> RangeRequest {
        let (key, range_end) = self.span(kind);
        let mut request = RangeRequest { key, range_end, revision: self.revision(), ..Default::default() };
        if self.chance(35) {
            request.limit = self.rng.random_range(-1..6);
        }
        if self.chance(25) {
            request.sort_order = if self.chance(3) { 7 } else { self.rng.random_range(0..3) };
            request.sort_target = if self.chance(3) { 9 } else { self.rng.random_range(0..5) };
            // etcd's sort is not stable on more than 12 keys: equal ones may then come in any order. A whole kind
            // has fewer keys.
            if !(0..=0).contains(&request.sort_target) && !request.range_end.is_empty() {
                (request.key, request.range_end) = keys::whole(kind);
            }
        }
        request.serializable = self.chance(15);
        request.keys_only = self.chance(12);
        request.count_only = self.chance(12);
        if self.chance(12) {
            for field in [&mut request.min_mod_revision, &mut request.max_mod_revision] {
                if self.rng.random_bool(0.6) {
                    *field = Symbol::Recent(self.rng.random_range(0..1001)).code();
                }
            }
        }
        if self.chance(8) {
            for field in [&mut request.min_create_revision, &mut request.max_create_revision] {
                if self.rng.random_bool(0.6) {
                    *field = Symbol::Past(self.rng.random_range(0..1001)).code();
                }
            }
        }
        if self.chance(1) {
            request.key = Bytes::new();
        }
        request
    }

    pub fn put(&mut self, kind: usize) -> PutRequest {
        let mut request = PutRequest {
            key: self.key(kind),
            value: keys::value(&mut self.rng),
            prev_kv: self.chance(30),
            ..Default::default()
        };
        if self.chance(20) {
            request.lease = self.lease();
        }
        if self.chance(6) {
            request.ignore_value = true;
            if self.chance(80) {
                request.value = Bytes::new();
            }
        }
        if self.chance(6) {
            request.ignore_lease = true;
            if self.chance(80) {
                request.lease = 0;
            }
        }
        if self.chance(1) {
            request.key = Bytes::new();
        }
        request
    }

    pub fn delete_range(&mut self, kind: usize) -> DeleteRangeRequest {
        let (key, range_end) = match self.rng.random_range(0..10) {
            0..6 => (self.key(kind), Bytes::new()),
            6..9 => keys::part(&mut self.rng, kind),
            _ => self.span(kind),
        };
        DeleteRangeRequest { key, range_end, prev_kv: self.chance(40) }
    }

    fn lease(&mut self) -> i64 {
        self.rng.random_range(1..=LEASES)
    }

    fn operation(&mut self) -> Operation {
        let kind = self.rng.random_range(0..KINDS.len());
        let scope = Scope::Kind(kind);
        let action = match self.rng.random_range(0..1000) {
            0..290 => Action::Put(self.put(kind)),
            290..480 => Action::Range(self.range(kind)),
            480..510 => Action::RangeStream(self.range_stream(kind)),
            510..580 => Action::DeleteRange(self.delete_range(kind)),
            580..780 => {
                let mut txn = generate_txn::txn(self, kind);
                self.stores.confine(&mut txn, kind);
                Action::Txn(txn)
            }
            780..800 => return self.compact(),
            800..870 => return self.lease_operation(),
            870..880 => return self.hash(),
            880..925 => return self.watch_create(kind),
            925..945 => Action::WatchCancel {
                stream: self.rng.random_range(0..STREAMS),
                position: self.rng.random_range(0..8),
            },
            945..975 => Action::Drain,
            975..976 => Action::Put(PutRequest {
                key: self.key(kind),
                value: Bytes::from(vec![b'x'; TOO_LARGE_BYTES]),
                ..Default::default()
            }),
            _ => return self.across_kinds(),
        };
        Operation { scope, action }
    }

    fn range_stream(&mut self, kind: usize) -> RangeRequest {
        let mut request = self.range(kind);
        if self.chance(80) {
            request.sort_order = 0;
        }
        if request.sort_order == 0 {
            request.sort_target = 0;
        }
        request
    }

    fn compact(&mut self) -> Operation {
        let revision = match self.rng.random_range(0..10) {
            0..6 => Symbol::Recent(self.rng.random_range(0..700)).code(),
            6 => Symbol::Compacted(self.rng.random_range(-1..2)).code(),
            7 => Symbol::Current.code(),
            8 => Symbol::Future(1).code(),
            _ => Symbol::Past(self.rng.random_range(0..1001)).code(),
        };
        let request = CompactionRequest { revision, physical: self.chance(30) };
        Operation { scope: Scope::All, action: Action::Compact(request) }
    }

    fn lease_operation(&mut self) -> Operation {
        let id = self.lease();
        let action = match self.rng.random_range(0..20) {
            // The TTLs differ by more than a run takes, so the order by remaining time is certain.
            0..8 => Action::LeaseGrant(LeaseGrantRequest { id, ttl: 1000 + 1000 * id }),
            8 => Action::LeaseGrant(LeaseGrantRequest { id: id + 100, ttl: 9_000_000_001 }),
            9..12 => Action::LeaseRevoke(LeaseRevokeRequest { id }),
            12..15 => Action::LeaseKeepAlive(id),
            15..18 => Action::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys: self.chance(70) }),
            _ => Action::LeaseLeases,
        };
        Operation { scope: Scope::All, action }
    }

    fn hash(&mut self) -> Operation {
        if self.mode == Mode::Mapped {
            return Operation { scope: Scope::All, action: Action::Drain };
        }
        let action = Action::HashKv(HashKvRequest { revision: self.revision() });
        Operation { scope: Scope::All, action }
    }

    /// A read, a delete or a watch over several kinds. A router merges the answers of several stores; a shard reads one
    /// range.
    fn across_kinds(&mut self) -> Operation {
        let (key, range_end, kinds) = keys::several(&mut self.rng);
        let action = match self.rng.random_range(0..10) {
            0..6 => {
                let mut request = RangeRequest { key, range_end, ..self.range(0) };
                if request.sort_target != 0 {
                    // `range` says why: etcd's sort is not stable.
                    (request.sort_order, request.sort_target) = (0, 0);
                }
                if self.chance(30) && (request.sort_order, request.sort_target) == (0, 0) {
                    Action::RangeStream(request)
                } else {
                    Action::Range(request)
                }
            }
            6 => Action::DeleteRange(DeleteRangeRequest { key, range_end, prev_kv: self.chance(40) }),
            _ => {
                let Action::WatchCreate { stream, request } = self.watch_create(0).action else {
                    return self.compact();
                };
                Action::WatchCreate { stream, request: WatchCreateRequest { key, range_end, ..request } }
            }
        };
        Operation { scope: Scope::Several(kinds), action }
    }

    fn watch_create(&mut self, kind: usize) -> Operation {
        let (key, range_end) = self.span(kind);
        let start_revision = match self.rng.random_range(0..20) {
            0..7 => 0,
            7..13 => Symbol::Recent(self.rng.random_range(0..1001)).code(),
            13..15 => Symbol::Past(self.rng.random_range(0..1001)).code(),
            15..17 => Symbol::Compacted(self.rng.random_range(-1..2)).code(),
            17 => Symbol::Current.code(),
            _ => Symbol::Next(self.rng.random_range(1..6)).code(),
        };
        let waits = start_revision == 0 || matches!(Symbol::of(start_revision), Some(Symbol::Next(_)));
        let filters = match self.rng.random_range(0..10) {
            0 => vec![0],
            1 => vec![1],
            2 if self.chance(30) => vec![0, 1],
            _ => Vec::new(),
        };
        let request = WatchCreateRequest {
            key,
            range_end,
            start_revision,
            progress_notify: self.chance(20),
            filters,
            prev_kv: self.chance(60),
            watch_id: if self.chance(30) { self.rng.random_range(1..12) } else { 0 },
            fragment: self.chance(20),
        };
        let past = STREAMS - WAITING_STREAMS;
        let stream = self.rng.random_range(if waits { past..STREAMS } else { 0..past });
        Operation { scope: Scope::Kind(kind), action: Action::WatchCreate { stream, request } }
    }
}
