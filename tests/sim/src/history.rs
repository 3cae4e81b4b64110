//! The record of a run: the events that shards published and the answers that clients got. Each entry has its place in
//! one total order. The invariants read the record when the run is over.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use kindred_engine::engine::Event;
use kindred_partition_config::ids::{Epoch, LeaseId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::unit::Unit;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;

use crate::shard::files::{End, Modes};
use crate::topology::KINDS;
use crate::world::{Life, Micros, World};

/// A place in the order of everything.
pub type Order = u64;

/// A change as its shard published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruthEvent {
    /// Its revision and its number within that.
    pub revision: Revision,
    pub key: Vec<u8>,
    pub is_delete: bool,
    /// The revision of its creation.
    pub create: Revision,
    /// The version, from 1.
    pub version: i64,
    pub value: Vec<u8>,
    /// The version before, if there was one.
    pub prev: Option<Revision>,
}

impl TruthEvent {
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

/// An event, with the store that published it and the time.
#[derive(Debug, Clone)]
pub struct Published {
    pub order: Order,
    pub store: StoreIx,
    pub kind: usize,
    pub event: TruthEvent,
    /// When its store restarted and did not have it any more.
    pub lost: Option<Order>,
    /// The store that lost it, and how the process had ended.
    pub lost_in: Option<(StoreIx, End)>,
}

impl Published {
    /// Whether its store had lost it before this moment.
    #[must_use]
    pub fn is_lost_by(&self, order: Order) -> bool {
        self.lost.is_some_and(|lost| lost < order)
    }
}

/// The start of a store's process after the first.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    pub order: Order,
    /// The same in virtual time.
    pub at: Micros,
    pub store: StoreIx,
    /// How the process before it ended.
    pub end: End,
    /// The revision up to which the store says that it has every event of each Kind.
    pub kept: [Revision; KINDS],
    /// The first revision of the new process.
    pub start: Revision,
}

/// A store's current revision of a Kind, when it changed.
#[derive(Debug, Clone, Copy)]
pub struct Current {
    pub order: Order,
    pub store: StoreIx,
    pub kind: usize,
    /// Its current revision.
    pub current: Revision,
    /// What clients are shown of it at least: while a unit of the Kind is frozen, the final revision at most (R15a).
    pub shown: Revision,
    /// The highest reading of its wall clock.
    pub held_micros: u64,
}

/// A unit that a store froze. The store shows nothing of it above the final revision until the unit is unfrozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freeze {
    pub order: Order,
    pub store: StoreIx,
    pub unit: Unit,
    pub last: Revision,
}

/// The way of a request.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub started: Order,
    /// When a router received it, and which one; none if no router did.
    pub router: Option<(Life, Order)>,
    /// The router had its answer.
    pub left: Option<Order>,
    /// The client had its answer.
    pub finished: Order,
    /// The same in virtual time.
    pub started_at: Micros,
    pub finished_at: Micros,
}

/// A key of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub key: Vec<u8>,
    /// Its mod revision.
    pub modified: Revision,
    /// Its create revision.
    pub create: Revision,
    /// The version, from 1.
    pub version: i64,
    pub value: Vec<u8>,
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadAnswer {
    Data {
        header: Revision,
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
    /// The read failed.
    Failed,
}

#[derive(Debug, Clone)]
pub struct Read {
    pub times: Times,
    pub kind: usize,
    pub range: KeyRange,
    /// The revision that the client asked for.
    pub asked: Option<Revision>,
    /// At most this many keys; zero for all.
    pub limit: usize,
    /// From the last key down.
    pub descending: bool,
    /// For a later page of a list over several stores without a revision: the time since the first page.
    pub page_after: Option<Micros>,
    /// The highest reading of any shard's wall clock by the end.
    pub held_micros: u64,
    pub answer: ReadAnswer,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAnswer {
    Done(Revision),
    /// Nothing was written, as of this revision: the compare failed, or there was nothing to delete.
    Nothing(Revision),
    /// The lease is not known.
    NoLease,
    /// The write was certainly not executed.
    Refused,
    /// The write may have been executed.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Write {
    pub times: Times,
    pub kind: usize,
    pub range: KeyRange,
    pub lease: Option<LeaseId>,
    pub answer: WriteAnswer,
}

/// A compaction that a client asked for.
#[derive(Debug, Clone)]
pub struct Compaction {
    pub times: Times,
    pub at: Revision,
    /// Whether it was answered as done.
    pub done: bool,
}

/// An output of a feed's merge.
#[derive(Debug, Clone)]
pub enum Told {
    /// The ring dropped the events above the first and up to the second revision before anybody could look.
    Dropped(Revision, Revision),
    /// The events of a revision, by their keys.
    Emit(Revision, Vec<Vec<u8>>),
    /// No event at or below it is still to come.
    Watermark(Revision),
}

/// One incarnation of a feed in a router.
#[derive(Debug, Clone)]
pub struct FeedRecord {
    /// Events at or below it do not belong to it.
    pub after: Revision,
    pub generation: Epoch,
    /// The ranges that each store is asked for.
    pub parts: Vec<(StoreIx, Vec<KeyRange>)>,
    /// The outputs of the merge, in order.
    pub told: Vec<(Order, Told)>,
}

/// An event as a client got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub revision: Revision,
    pub key: Vec<u8>,
    pub is_delete: bool,
    /// The previous version, if the watch asked for it.
    pub prev: Option<Revision>,
}

/// A message on a client's stream.
#[derive(Debug, Clone)]
pub enum Heard {
    Created {
        watch: i64,
        header: Revision,
    },
    Events {
        watch: i64,
        header: Revision,
        events: Vec<Got>,
    },
    /// A progress notification for one watch, or for all.
    Progress {
        /// The watch; none for all.
        watch: Option<i64>,
        at: Revision,
    },
    /// The watch is over, because its next revision is compacted.
    Compacted {
        watch: i64,
        /// The first revision that can be watched.
        floor: Revision,
    },
    /// The watch is over for another reason.
    Cancelled {
        watch: i64,
    },
}

/// A create that a client sent.
#[derive(Debug, Clone)]
pub struct Create {
    pub order: Order,
    /// Its id on the stream.
    pub watch: i64,
    /// The client's watch that it resumes.
    pub logical: usize,
    /// The first revision wanted.
    pub start: Option<Revision>,
}

/// One connection of a client's watch stream.
#[derive(Debug, Clone)]
pub struct StreamRecord {
    /// The process of the router that serves it.
    pub router: Life,
    /// The creates that the client sent.
    pub creates: Vec<Create>,
    /// When it asked for progress.
    pub asked: Vec<Order>,
    pub heard: Vec<(Order, Micros, Heard)>,
}

/// A watch of a client over all its connections.
#[derive(Debug, Clone)]
pub struct Logical {
    pub kind: usize,
    pub range: KeyRange,
    /// Whether events carry the previous version.
    pub prev_kv: bool,
    /// Whether deletions are left out.
    pub no_delete: bool,
    /// The first revision that its client does not have; none while it is not known.
    pub next: Option<Revision>,
}

/// A lease at its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStep {
    Granted,
    /// It ended. The end may not be on disk yet.
    Ended,
    /// The home told a client that it is over.
    Told,
    /// The home was killed before the end was on disk, so it has the lease again.
    Back,
    /// A request to renew it or to attach a store, and whether the home did that.
    Asked(bool),
}

#[derive(Debug, Default)]
pub struct Record {
    pub starts: Vec<(StoreIx, Revision)>,
    pub restarts: Vec<Restart>,
    /// The stores whose process has ended, and how it ended.
    pub ended: BTreeMap<StoreIx, End>,
    /// The revision up to which each starting store says that it has every event of a Kind.
    pub durable: BTreeMap<(StoreIx, usize), Revision>,
    /// Starts at which a store says otherwise than it found.
    pub contradictions: Vec<String>,
    /// Leases that a restart lost, and how the process ended.
    pub leases_lost: Vec<(Order, LeaseId, End)>,
    /// Grants that were acknowledged.
    pub granted: Vec<(Order, LeaseId)>,
    /// The mode of each Kind; none when stores keep nothing.
    pub modes: Option<Modes>,
    pub events: Vec<Published>,
    pub currents: Vec<Current>,
    pub reads: Vec<Read>,
    pub writes: Vec<Write>,
    pub compactions: Vec<Compaction>,
    pub feeds: Vec<FeedRecord>,
    pub streams: Vec<StreamRecord>,
    pub logicals: Vec<Logical>,
    /// Every step of a lease, with its home.
    pub leases: Vec<(Order, LeaseId, StoreIx, LeaseStep)>,
    /// When all is quiet: keys with leases, by store.
    pub leased_at_end: Vec<(StoreIx, Vec<u8>, LeaseId)>,
    /// When all is quiet: leases that live.
    pub leases_at_end: Vec<LeaseId>,
    /// When all is quiet: leases that are over and wait for stores.
    pub waiting_at_end: Vec<LeaseId>,
    pub calm_at: Micros,
    /// Stores whose clock is out of bounds.
    pub bad_stores: Vec<StoreIx>,
    /// The keys of each Kind.
    pub kinds: Vec<KeyRange>,
    /// Every map that was decided, with the time, in the order of their generations.
    pub maps: Vec<(Order, Arc<Routes>)>,
    /// Whether the meta store has lost writes.
    pub meta_lost: bool,
    /// Every freeze of a unit.
    pub freezes: Vec<Freeze>,
    pub moves: u64,
    /// The Kind and the revision of answers that did not wait for a store that was away (R22).
    pub unordered: BTreeSet<(usize, Revision)>,
    /// When all is quiet: moves that are not over, in words, and whether a store of theirs has a bad clock.
    pub open_at_end: Vec<(String, bool)>,
    /// When all is quiet: the differences between the map and the owners.
    pub elsewhere_at_end: Vec<String>,
}

impl Record {
    /// The stores of a Kind by the map that was in force then.
    #[must_use]
    pub fn stores_at(&self, kind: usize, order: Order) -> Vec<StoreIx> {
        let then = self.maps.iter().rev().find(|(decided, _)| *decided < order).or(self.maps.first());
        let Some((_, map)) = then else { return Vec::new() };
        map.parts_of(&self.kinds[kind]).into_iter().flat_map(|part| part.stores).collect()
    }

    /// The stores that a Kind was ever on.
    #[must_use]
    pub fn stores_of(&self, kind: usize) -> Vec<StoreIx> {
        let parts = self.maps.iter().flat_map(|(_, map)| map.parts_of(&self.kinds[kind]));
        parts.flat_map(|part| part.stores).collect()
    }

    /// Whether a former owner of keys of the read may have answered it. It also answers reads at a revision that was
    /// settled before the switch, and shows its final revision (R13, R15a).
    #[must_use]
    pub fn is_of_former_owner(&self, read: &Read, header: Revision) -> bool {
        let Some(asked) = read.asked else { return false };
        let mut freezes = self.freezes.iter().filter(|freeze| freeze.order < read.times.finished);
        freezes
            .any(|freeze| freeze.last == header && asked <= freeze.last && freeze.unit.overlaps(&read.range))
    }

    /// Whether the keys were on different stores at some time.
    #[must_use]
    pub fn were_apart(&self, one: &[u8], other: &[u8]) -> bool {
        self.maps.iter().any(|(_, map)| map.store_of(one) != map.store_of(other))
    }

    /// The highest revision that a store has published or promised.
    #[must_use]
    pub fn highest(&self, store: StoreIx) -> Revision {
        let events =
            self.events.iter().filter(|event| event.store == store).map(|event| event.event.revision);
        let currents = self.currents.iter().filter(|current| current.store == store);
        events.chain(currents.map(|current| current.current)).max().unwrap_or(Revision::ZERO)
    }
}

pub struct History {
    world: World,
    record: RefCell<Record>,
    /// The events that are known.
    known: RefCell<BTreeSet<(Revision, Vec<u8>)>>,
}

impl History {
    #[must_use]
    pub fn new(world: &World) -> Rc<Self> {
        Rc::new(Self { world: world.clone(), record: RefCell::default(), known: RefCell::default() })
    }

    #[must_use]
    pub fn read(&self) -> Ref<'_, Record> {
        self.record.borrow()
    }

    pub fn write(&self) -> RefMut<'_, Record> {
        self.record.borrow_mut()
    }

    pub fn started(&self, store: StoreIx, start: Revision) {
        self.world.note(format_args!("s{} starts at {start}", store.0));
        let order = self.world.order();
        let record = &mut *self.write();
        record.starts.push((store, start));
        let Some(end) = record.ended.remove(&store) else { return };
        let mut kept = |kind| record.durable.remove(&(store, kind)).unwrap_or(Revision(i64::MAX));
        let kept = std::array::from_fn(&mut kept);
        record.restarts.push(Restart { order, at: self.world.now(), store, end, kept, start });
    }

    pub fn ended(&self, store: StoreIx, how: End) {
        self.write().ended.insert(store, how);
    }

    /// The revision up to which a store has published what it has of a key: that of the last event of the Kind there,
    /// or of the key anywhere, or the beginning of the store; none before its first start.
    #[must_use]
    pub fn last_published(&self, store: StoreIx, kind: usize, key: &[u8]) -> Option<Revision> {
        let record = self.read();
        let is_of = |of: &&Published| of.event.key == key || (of.store == store && of.kind == kind);
        let of = record.events.iter().filter(is_of);
        let first = record.starts.iter().find(|(of, _)| *of == store).map(|(_, start)| *start)?;
        Some(of.map(|event| event.event.revision).max().unwrap_or(first))
    }

    /// How a store's last process ended, if none runs.
    #[must_use]
    pub fn end(&self, store: StoreIx) -> Option<End> {
        self.read().ended.get(&store).copied()
    }

    /// The owner of a key by the newest map.
    #[must_use]
    pub fn owner(&self, key: &[u8]) -> Option<StoreIx> {
        self.read().maps.last().map(|(_, map)| map.store_of(key))
    }

    /// Notes that a restarted store says that it has every event of a key up to `kept`.
    pub fn keeps(&self, store: StoreIx, kind: usize, kept: Revision) {
        let record = &mut *self.write();
        let of = record.durable.entry((store, kind)).or_insert(Revision(i64::MAX));
        *of = kept.min(*of);
    }

    /// The owner of a key has restarted after this end and has every event of it up to `durable`: published events
    /// behind that are lost. The last write that it found must agree with that.
    pub fn lost(
        &self,
        (store, end): (StoreIx, End),
        kind: usize,
        key: &[u8],
        durable: Revision,
        found: Option<Revision>,
    ) {
        let order = self.world.order();
        let last = self.last_published(store, kind, key).unwrap_or(Revision::ZERO);
        let record = &mut *self.write();
        let mut known = None;
        for published in record.events.iter_mut().filter(|of| of.event.key == key && of.lost.is_none()) {
            let event = &published.event;
            if event.revision > durable {
                let key = event.key.escape_ascii();
                self.world.note(format_args!("s{} lost {key} at {}", store.0, event.revision));
                published.lost = Some(order);
                published.lost_in = Some((store, end));
            } else {
                known = Some(event.revision).filter(|_| !event.is_delete);
            }
        }
        // What is behind the last published event was not published before the end, and will be now.
        let wrong = match (found, known) {
            (Some(found), known) => found <= last && Some(found) != known,
            // A deletion that was not published may have ended it.
            (None, Some(_)) => durable <= last,
            (None, None) => false,
        };
        if wrong {
            record.contradictions.push(format!(
                "store {} has all up to {durable}, but {} at {found:?} instead of {known:?}",
                store.0,
                key.escape_ascii(),
            ));
        }
    }

    /// Notes that a store has restarted with these leases of its own.
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

    /// Whether some store made this event visible before.
    #[must_use]
    pub fn knows(&self, event: &TruthEvent) -> bool {
        self.known.borrow().contains(&(event.revision, event.key.clone()))
    }

    pub fn decided(&self, routes: Arc<Routes>) {
        let order = self.world.order();
        let maps = &mut self.write().maps;
        if maps.last().is_none_or(|(_, last)| last.generation() < routes.generation()) {
            self.world.note(format_args!("map {:?} is decided", routes.generation()));
            maps.push((order, routes));
        }
    }

    /// A store made an event visible.
    pub fn published(&self, store: StoreIx, kind: usize, event: TruthEvent) {
        let order = self.world.order();
        let verb = if event.is_delete { "deletes" } else { "puts" };
        let key = event.key.escape_ascii();
        self.world.note(format_args!("s{} {verb} {key} at {}", store.0, event.revision));
        self.known.borrow_mut().insert((event.revision, event.key.clone()));
        self.write().events.push(Published { order, store, kind, event, lost: None, lost_in: None });
    }

    /// A store's current revision changed.
    pub fn current(
        &self,
        store: StoreIx,
        kind: usize,
        (current, shown): (Revision, Revision),
        held_micros: u64,
    ) {
        let order = self.world.order();
        self.write().currents.push(Current { order, store, kind, current, shown, held_micros });
    }

    /// A store holds this unit frozen.
    pub fn frozen(&self, store: StoreIx, unit: &Unit, last: Revision) {
        let freezes = &mut self.write().freezes;
        if !freezes.iter().any(|known| (known.store, &known.unit, known.last) == (store, unit, last)) {
            let order = self.world.order();
            freezes.push(Freeze { order, store, unit: unit.clone(), last });
        }
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
