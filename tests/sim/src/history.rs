//! What happened in a run: what the shards made true, and what clients were told, each with its place in the one order
//! of everything. Invariants read it when the run is over.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kindred_engine::engine::Event;
use kindred_partition_config::ids::{LeaseId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_router_core::store::StoreIx;

use crate::shard::files::{End, Modes};
use crate::topology::KINDS;
use crate::world::{Life, Micros, World};

/// A place in the order of everything.
pub type Order = u64;

/// A change as its shard published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruthEvent {
    /// When, in the order of revisions.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// A deletion.
    pub is_delete: bool,
    /// When the key was created.
    pub create: Revision,
    /// Writes since.
    pub version: i64,
    /// The value.
    pub value: Vec<u8>,
    /// The version before, if there was one.
    pub prev: Option<Revision>,
}

impl TruthEvent {
    /// Of the engine's.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self {
            revision: event.kv.mod_revision(),
            key: event.kv.key().to_vec(),
            is_delete: event.is_delete(),
            create: event.kv.create_revision(),
            version: event.kv.version(),
            value: event.kv.value().to_vec(),
            prev: event.prev.as_ref().map(|prev| prev.mod_revision()),
        }
    }
}

/// An event with where and when.
#[derive(Debug, Clone)]
pub struct Published {
    /// When.
    pub order: Order,
    /// By which store.
    pub store: StoreIx,
    /// Of which Kind.
    pub kind: usize,
    /// The event.
    pub event: TruthEvent,
    /// When its store restarted without it.
    pub lost: Option<Order>,
}

impl Published {
    /// Whether its store did not have it any more by then.
    #[must_use]
    pub fn is_lost_by(&self, order: Order) -> bool {
        self.lost.is_some_and(|lost| lost < order)
    }
}

/// The start of a store's process after the first.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// When.
    pub order: Order,
    /// The same in virtual time.
    pub at: Micros,
    /// Of which store.
    pub store: StoreIx,
    /// How the process before it ended.
    pub end: End,
    /// What the store says that it has of each Kind: every event up to there.
    pub kept: [Revision; KINDS],
    /// The first revision of the new process.
    pub start: Revision,
}

/// A store's current revision of a Kind, when it changed.
#[derive(Debug, Clone, Copy)]
pub struct Current {
    /// When.
    pub order: Order,
    /// Of which store.
    pub store: StoreIx,
    /// Of which Kind.
    pub kind: usize,
    /// Its current revision.
    pub current: Revision,
    /// The highest reading of its wall clock.
    pub held_micros: u64,
}

/// When a request was where.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The client sent it.
    pub started: Order,
    /// The router began with it, and which one; none when it never came there.
    pub router: Option<(Life, Order)>,
    /// The router had its answer.
    pub left: Option<Order>,
    /// The client had its answer.
    pub finished: Order,
    /// The same in virtual time.
    pub started_at: Micros,
    /// As above.
    pub finished_at: Micros,
}

/// A key of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// When it was written.
    pub modified: Revision,
    /// When it was created.
    pub create: Revision,
    /// Writes since.
    pub version: i64,
    /// The value.
    pub value: Vec<u8>,
}

/// What a read was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadAnswer {
    /// Data.
    Data {
        /// The header's revision.
        header: Revision,
        /// The keys, in order.
        items: Vec<Item>,
        /// All keys of the range.
        count: u64,
        /// Keys behind the last one.
        more: bool,
    },
    /// etcd's `ErrCompacted`.
    Compacted,
    /// etcd's `ErrFutureRev`.
    Future,
    /// It failed; nobody was told anything.
    Failed,
}

/// A read.
#[derive(Debug, Clone)]
pub struct Read {
    /// When.
    pub times: Times,
    /// Of which Kind.
    pub kind: usize,
    /// The keys.
    pub range: KeyRange,
    /// The client's revision.
    pub asked: Option<Revision>,
    /// At most this many keys; zero for all.
    pub limit: usize,
    /// From the last key down.
    pub descending: bool,
    /// A page of a list over several stores that had no revision of its own and began this long before.
    pub page_after: Option<Micros>,
    /// The highest reading of any shard's wall clock by the end.
    pub held_micros: u64,
    /// The answer.
    pub answer: ReadAnswer,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAnswer {
    /// Done, at this revision.
    Done(Revision),
    /// Nothing was written, as of this revision: the compare failed, or there was nothing to delete.
    Nothing(Revision),
    /// The lease is not known.
    NoLease,
    /// Certainly not executed.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// A write.
#[derive(Debug, Clone)]
pub struct Write {
    /// When.
    pub times: Times,
    /// Of which Kind.
    pub kind: usize,
    /// What it concerns.
    pub range: KeyRange,
    /// With which lease.
    pub lease: Option<LeaseId>,
    /// The answer.
    pub answer: WriteAnswer,
}

/// A compaction that a client asked for.
#[derive(Debug, Clone)]
pub struct Compaction {
    /// When.
    pub times: Times,
    /// Where to.
    pub at: Revision,
    /// Whether it was answered as done.
    pub done: bool,
}

/// What a feed was told by its merge.
#[derive(Debug, Clone)]
pub enum Told {
    /// The ring dropped what lies above the first and up to the second before anybody could look.
    Dropped(Revision, Revision),
    /// The events of a revision, by their keys.
    Emit(Revision, Vec<Vec<u8>>),
    /// Nothing at or below is still to come.
    Watermark(Revision),
}

/// One life of a feed in a router.
#[derive(Debug, Clone)]
pub struct FeedRecord {
    /// Nothing at or below belongs to it.
    pub after: Revision,
    /// What each store is asked for.
    pub parts: Vec<(StoreIx, Vec<KeyRange>)>,
    /// What it was told, in order.
    pub told: Vec<(Order, Told)>,
}

/// An event as a client got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// Its revision.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// A deletion.
    pub is_delete: bool,
    /// The version before, where the watch wanted it.
    pub prev: Option<Revision>,
}

/// What came on a client's stream, as the client read it.
#[derive(Debug, Clone)]
pub enum Heard {
    /// A watch exists.
    Created {
        /// Which.
        watch: i64,
        /// The header.
        header: Revision,
    },
    /// Events of a watch.
    Events {
        /// Which.
        watch: i64,
        /// The header.
        header: Revision,
        /// The events.
        events: Vec<Got>,
    },
    /// A promise for one watch, or for all.
    Progress {
        /// Which; none for all.
        watch: Option<i64>,
        /// The promise.
        at: Revision,
    },
    /// The watch is over, because its next revision is compacted.
    Compacted {
        /// Which.
        watch: i64,
        /// The first revision to be had.
        floor: Revision,
    },
    /// The watch is over for another reason.
    Cancelled {
        /// Which.
        watch: i64,
    },
}

/// A create that a client sent.
#[derive(Debug, Clone)]
pub struct Create {
    /// When.
    pub order: Order,
    /// Its id on the stream.
    pub watch: i64,
    /// The client's watch that it goes on with.
    pub logical: usize,
    /// The first revision wanted.
    pub start: Option<Revision>,
}

/// One connection of a client's watch stream.
#[derive(Debug, Clone)]
pub struct StreamRecord {
    /// Which life of which router serves it.
    pub router: Life,
    /// What the client asked for.
    pub creates: Vec<Create>,
    /// When it asked for progress.
    pub asked: Vec<Order>,
    /// What it heard.
    pub heard: Vec<(Order, Micros, Heard)>,
}

/// A watch as its client means it: over all its connections.
#[derive(Debug, Clone)]
pub struct Logical {
    /// Of which Kind.
    pub kind: usize,
    /// The keys.
    pub range: KeyRange,
    /// Events carry the version before.
    pub prev_kv: bool,
    /// Leaves out deletions.
    pub no_delete: bool,
    /// The first revision that its client has not been given; none before it knows.
    pub next: Option<Revision>,
}

/// A lease at its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStep {
    /// Granted.
    Granted,
    /// It ended, which need not be on disk yet.
    Ended,
    /// The home said to somebody that it is over.
    Told,
    /// The home was killed before the end was on disk, and has the lease again.
    Back,
    /// Asked to keep it, or to attach a store; whether it did.
    Asked(bool),
}

/// All of it.
#[derive(Debug, Default)]
pub struct Record {
    /// Where each store began.
    pub starts: Vec<(StoreIx, Revision)>,
    /// Every restart.
    pub restarts: Vec<Restart>,
    /// Stores whose process has ended, and how.
    pub ended: BTreeMap<StoreIx, End>,
    /// Up to where each store said at its last restart that it has every event of a Kind.
    pub durable: BTreeMap<(StoreIx, usize), Revision>,
    /// Where what a store found contradicts what it says of it.
    pub contradictions: Vec<String>,
    /// Leases that a restart lost, and how the process ended.
    pub leases_lost: Vec<(Order, LeaseId, End)>,
    /// Grants that a client was told of.
    pub granted: Vec<(Order, LeaseId)>,
    /// The mode of each Kind; none when stores keep nothing.
    pub modes: Option<Modes>,
    /// Every event.
    pub events: Vec<Published>,
    /// Every current revision.
    pub currents: Vec<Current>,
    /// Every read.
    pub reads: Vec<Read>,
    /// Every write.
    pub writes: Vec<Write>,
    /// Every compaction.
    pub compactions: Vec<Compaction>,
    /// Every feed.
    pub feeds: Vec<FeedRecord>,
    /// Every connection.
    pub streams: Vec<StreamRecord>,
    /// Every watch.
    pub logicals: Vec<Logical>,
    /// Every step of a lease, with its home.
    pub leases: Vec<(Order, LeaseId, StoreIx, LeaseStep)>,
    /// When all is quiet: keys with leases, by store.
    pub leased_at_end: Vec<(StoreIx, Vec<u8>, LeaseId)>,
    /// When all is quiet: leases that live.
    pub leases_at_end: Vec<LeaseId>,
    /// When all is quiet: leases that are over and wait for stores.
    pub waiting_at_end: Vec<LeaseId>,
    /// When the faults ended.
    pub calm_at: Micros,
    /// Stores whose clock is out of bounds, and the stores of each Kind.
    pub bad_stores: Vec<StoreIx>,
    /// The stores of each Kind.
    pub kind_stores: Vec<Vec<StoreIx>>,
}

impl Record {
    /// The highest revision that a store has shown or assigned.
    #[must_use]
    pub fn highest(&self, store: StoreIx) -> Revision {
        let events =
            self.events.iter().filter(|event| event.store == store).map(|event| event.event.revision);
        let currents = self.currents.iter().filter(|current| current.store == store);
        events.chain(currents.map(|current| current.current)).max().unwrap_or(Revision::ZERO)
    }
}

/// Where it is written.
pub struct History {
    world: World,
    record: RefCell<Record>,
}

impl History {
    /// Nothing happened yet.
    #[must_use]
    pub fn new(world: &World) -> Rc<Self> {
        Rc::new(Self { world: world.clone(), record: RefCell::default() })
    }

    /// What is written.
    #[must_use]
    pub fn read(&self) -> Ref<'_, Record> {
        self.record.borrow()
    }

    /// To write.
    pub fn write(&self) -> RefMut<'_, Record> {
        self.record.borrow_mut()
    }

    /// A store begins.
    pub fn started(&self, store: StoreIx, start: Revision) {
        self.world.note(format_args!("s{} starts at {start}", store.0));
        let order = self.world.order();
        let record = &mut *self.write();
        record.starts.push((store, start));
        let Some(end) = record.ended.remove(&store) else { return };
        let kept = |kind| record.durable.get(&(store, kind)).copied().unwrap_or(Revision(i64::MAX));
        let kept = std::array::from_fn(kept);
        record.restarts.push(Restart { order, at: self.world.now(), store, end, kept, start });
    }

    /// A store's process ends.
    pub fn ended(&self, store: StoreIx, how: End) {
        self.write().ended.insert(store, how);
    }

    /// The last event of a Kind that a store has published, or where it began; none before its first start.
    #[must_use]
    pub fn last_published(&self, store: StoreIx, kind: usize) -> Option<Revision> {
        let record = self.read();
        let of = record.events.iter().filter(|event| event.store == store && event.kind == kind);
        let first = record.starts.iter().find(|(of, _)| *of == store).map(|(_, start)| *start);
        of.map(|event| event.event.revision).max().or(first)
    }

    /// A store has restarted and says that it has every event of a Kind up to `durable`: published events behind that
    /// are lost. What it found, the last write of each key, must agree with that.
    pub fn lost(&self, store: StoreIx, kind: usize, durable: Revision, found: &BTreeMap<Vec<u8>, Revision>) {
        let order = self.world.order();
        let last = self.last_published(store, kind).unwrap_or(Revision::ZERO);
        let record = &mut *self.write();
        let mut there: BTreeMap<&[u8], Option<Revision>> = BTreeMap::new();
        let of = |event: &&mut Published| event.store == store && event.kind == kind && event.lost.is_none();
        for published in record.events.iter_mut().filter(of) {
            let event = &published.event;
            if event.revision > durable {
                self.world.note(format_args!(
                    "s{} lost {} at {}",
                    store.0,
                    event.key.escape_ascii(),
                    event.revision
                ));
                published.lost = Some(order);
            } else {
                there.insert(&published.event.key, Some(event.revision).filter(|_| !event.is_delete));
            }
        }
        // What is behind the last published event was not published before the end, and will be now.
        let published = |revision: &Revision| *revision <= last;
        let wrong = there.iter().find(|(key, known)| {
            let found = found.get(**key);
            match (found, known) {
                (Some(found), known) => published(found) && Some(*found) != **known,
                // A deletion that was not published may have ended it.
                (None, Some(_)) => durable <= last,
                (None, None) => false,
            }
        });
        let extra = found.iter().find(|(key, at)| published(at) && !there.contains_key(key.as_slice()));
        let keys =
            wrong.map(|(key, known)| (key.to_vec(), *known)).or(extra.map(|(key, _)| (key.clone(), None)));
        if let Some((key, known)) = keys {
            record.contradictions.push(format!(
                "store {} has all up to {durable}, but {} at {:?} instead of {known:?}",
                store.0,
                key.escape_ascii(),
                found.get(&key)
            ));
        }
        record.durable.insert((store, kind), durable);
    }

    /// A store has restarted with these leases of its own.
    pub fn leases_found(&self, store: StoreIx, found: &[LeaseId]) {
        let order = self.world.order();
        let record = &mut *self.write();
        let Some(end) = record.ended.get(&store).copied() else { return };
        let mut live: BTreeMap<LeaseId, bool> = BTreeMap::new();
        for (_, id, _, step) in record.leases.iter().filter(|(_, _, home, _)| *home == store) {
            match step {
                LeaseStep::Granted | LeaseStep::Back => drop(live.insert(*id, true)),
                LeaseStep::Ended => drop(live.insert(*id, false)),
                LeaseStep::Told | LeaseStep::Asked(_) => {}
            }
        }
        for (id, _) in live.iter().filter(|(id, live)| !**live && found.contains(id)) {
            self.world.note(format_args!("s{} lease {id}: {:?}", store.0, LeaseStep::Back));
            record.leases.push((order, *id, store, LeaseStep::Back));
        }
        let known: BTreeSet<LeaseId> = record.leases_lost.iter().map(|(_, id, _)| *id).collect();
        let lost = live.into_iter().filter(|(id, live)| *live && !found.contains(id) && !known.contains(id));
        for (id, _) in lost {
            self.world.note(format_args!("s{} lost lease {id}", store.0));
            record.leases_lost.push((order, id, end));
        }
    }

    /// A store made events visible.
    pub fn published(&self, store: StoreIx, kind: usize, events: impl Iterator<Item = TruthEvent>) {
        for event in events {
            let order = self.world.order();
            self.world.note(format_args!(
                "s{} {} {} at {}",
                store.0,
                if event.is_delete { "deletes" } else { "puts" },
                event.key.escape_ascii(),
                event.revision
            ));
            self.write().events.push(Published { order, store, kind, event, lost: None });
        }
    }

    /// A store's current revision changed.
    pub fn current(&self, store: StoreIx, kind: usize, current: Revision, held_micros: u64) {
        let order = self.world.order();
        self.write().currents.push(Current { order, store, kind, current, held_micros });
    }

    /// Whether a lease was granted by a store.
    #[must_use]
    pub fn was_at(&self, id: LeaseId, store: StoreIx) -> bool {
        let record = self.read();
        record.leases.iter().any(|(_, of, home, step)| (*of, *home, *step) == (id, store, LeaseStep::Granted))
    }

    /// A lease was granted, asked for or ended at its home.
    pub fn lease(&self, id: LeaseId, home: StoreIx, step: LeaseStep) {
        let order = self.world.order();
        self.world.note(format_args!("s{} lease {id}: {step:?}", home.0));
        self.write().leases.push((order, id, home, step));
    }
}
