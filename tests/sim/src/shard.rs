//! A shard's process. The loop, the core and the engine are the product's. The world decides when a turn of the loop
//! comes and how many requests it reads, and carries requests and answers in place of the services of
//! `shard/src/internal`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use kindred_engine::engine::{EndedLease, Engine, EngineConfig, PinId, RevisionMode};
use kindred_engine::error::EngineError;
use kindred_engine::ops::{Contents, RangeQuery, RevisionFilter};
use kindred_engine::trust::ClockTrust;
use kindred_engine::units::UnitState;
use kindred_partition_config::ids::{Epoch, LeaseId, Revision, SLOT_BITS, Slot};
use kindred_partition_config::key::{Key, KeyRange};
use kindred_router_core::store::StoreIx;
use kindred_shard::apply_loop::call::{self, CoreCall as _};
use kindred_shard::apply_loop::{ApplyLoop, Raise, RaiseSince};
use kindred_shard::clock::{Clock, WallClock as ShardClock};
use kindred_shard::core::{Core, CoreSettings, Sizes};
use kindred_shard::durability::Logs;
use kindred_shard::etcd_status::KvError;
use kindred_shard::handle::{self, Handle};
use kindred_shard::internal::units::UnitService;
use kindred_shard::read_hints::{ReadHints, checked};
use kindred_wal::{Driven, Stepped};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clocks::WallClock;
use crate::history::{History, LeaseStep, TruthEvent};
use crate::messages::{CallError, Reply, Request, StreamIn};
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::topology::{KINDS, Topology};
use crate::world::{Life, Micros, SECOND, World};

pub mod files;
mod streams;
mod truth;
mod units;

use self::files::{End, Files, Modes};

/// The maximum clock offset (R3).
pub const OFFSET_MAX: Micros = 10 * SECOND;
/// How often idle feeds get a watermark.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Small limits, so that reads and messages have many parts and other things happen between them.
const SIZES: Sizes = Sizes { whole_keys: 4, chunk_keys: 2, chunk_bytes: usize::MAX, message_bytes: 400 };
/// Pins last for their whole time here, as if every release were lost.
const UNRELEASED: PinId = PinId(1);

type Respond = Box<dyn FnOnce(Result<Reply, CallError>)>;

/// The time that the shard's clocks show.
#[derive(Default)]
struct Times {
    elapsed: AtomicU64,
    wall: AtomicU64,
}

/// The changes of leases in a turn, in order.
type LeaseNotes = Arc<Mutex<Vec<(LeaseId, LeaseStep)>>>;

/// A shard over all its incarnations.
pub struct Shard {
    /// Its place among the stores.
    pub index: StoreIx,
    world: World,
    history: Rc<History>,
    topology: Rc<Topology>,
    pub wall: WallClock,
    times: Arc<Times>,
    /// Its files; none for a shard without a disk.
    pub files: Option<Files>,
    process: RefCell<Option<Rc<Process>>>,
    /// Frozen keys, of which it is not decided what restarts have lost, because the other store of their move has them,
    /// too: the Kind, and the worst end since they were frozen.
    undecided: RefCell<BTreeMap<Key, (usize, End)>>,
    /// The time until which the process stands still.
    stalled_until: Cell<Micros>,
    sabotage: Option<Sabotage>,
    kinds: Vec<KeyRange>,
}

/// One incarnation of a shard.
struct Process {
    life: Life,
    handle: Handle,
    apply_loop: RefCell<Option<ApplyLoop>>,
    /// The jobs of its logs.
    jobs: Option<Driven>,
    leases: LeaseNotes,
    streams: RefCell<Vec<Rc<streams::Inbox>>>,
    /// Watches of all keys, which report what is published.
    truth: truth::Watches,
    /// The service for moves.
    units: UnitService,
    /// The current revision of each Kind that was noted last, and what is shown of it.
    noted: RefCell<Vec<(Revision, Revision)>>,
    /// When its next turn comes, if that is planned.
    planned: Cell<Option<Micros>>,
    /// When its files are worked on next, if that is planned.
    working: Cell<Option<Micros>>,
}

impl Shard {
    /// An empty shard, which does not run yet.
    #[must_use]
    pub fn new(
        world: &World,
        history: &Rc<History>,
        topology: &Rc<Topology>,
        index: StoreIx,
        wall: WallClock,
        modes: Option<&Modes>,
        sabotage: Option<Sabotage>,
    ) -> Rc<Self> {
        Rc::new(Self {
            index,
            world: world.clone(),
            history: history.clone(),
            topology: topology.clone(),
            wall,
            times: Arc::new(Times::default()),
            files: modes.map(|modes| Files::new(world, *modes)),
            process: RefCell::default(),
            undecided: RefCell::default(),
            stalled_until: Cell::new(0),
            sabotage,
            kinds: (0..KINDS).map(|kind| topology.kind_range(kind)).collect(),
        })
    }

    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.borrow().is_some()
    }

    /// The incarnation that runs, by which it differs from others.
    #[must_use]
    pub fn life(&self) -> Option<Life> {
        self.process().map(|process| process.life)
    }

    /// The revision of its wall clock's reading.
    #[must_use]
    pub fn wall_revision(&self) -> Revision {
        let micros = i64::try_from(self.wall.at(self.world.now())).unwrap_or(i64::MAX >> SLOT_BITS);
        Revision(micros << SLOT_BITS)
    }

    fn process(&self) -> Option<Rc<Process>> {
        self.process.borrow().clone()
    }

    /// Starts a process from the files.
    pub fn start(self: &Rc<Self>) {
        self.now();
        let (mut core, logs, jobs) = self.open();
        let restarted = self.history.read().starts.iter().any(|(store, _)| *store == self.index);
        if restarted {
            self.note_losses(&mut core);
        } else if self.world.now() > 0 {
            self.note_inherited();
        }
        let published =
            |kind, key: &Key| self.history.last_published(self.index, kind, key).map(Revision::next);
        let truth = truth::Watches::new(&mut core.engine, self.topology.keys(), published);
        self.history.started(self.index, core.engine.current_all());
        let (handle, apply_loop) = handle::unspawned(core, logs, PROGRESS_INTERVAL);
        let starts = self.history.read().starts.iter().filter(|(store, _)| *store == self.index).count();
        let incarnation = u64::try_from(starts).unwrap_or(u64::MAX);
        let units = UnitService::over(handle.clone(), CancellationToken::new(), incarnation);
        let process = Rc::new(Process {
            life: self.world.born(),
            handle,
            apply_loop: RefCell::new(Some(apply_loop)),
            jobs,
            leases: LeaseNotes::default(),
            streams: RefCell::default(),
            truth,
            units,
            noted: RefCell::new(vec![(Revision::ZERO, Revision::ZERO); KINDS]),
            planned: Cell::new(None),
            working: Cell::new(None),
        });
        self.process.replace(Some(process.clone()));
        self.plan(&process, 0);
        self.plan_work(&process, self.world.now());
    }

    /// Ends the process, and with it the machine or the disk.
    pub fn stop(&self, how: End) {
        let Some(process) = self.process.take() else { return };
        // No end is clean on a disk that fails.
        let sick = self.files.as_ref().is_some_and(|files| files.is_sick(self.world.now()));
        let how = if how == End::Clean && sick { End::Killed } else { how };
        self.world.note(format_args!("s{} ends: {how:?}", self.index.0));
        self.history.ended(self.index, how);
        self.now();
        let apply_loop = process.apply_loop.take();
        if how == End::Clean
            && let Some(mut apply_loop) = apply_loop
        {
            apply_loop.core().engine.validate();
            apply_loop.end_driven();
        } else {
            drop(apply_loop);
        }
        // They hold each other until then.
        if let Some(jobs) = &process.jobs {
            jobs.kill();
        }
        self.world.kill(process.life);
        if let Some(files) = &self.files {
            files.end(&self.world, how);
        }
    }

    fn now(&self) {
        let now = self.world.now();
        self.times.elapsed.store(now, Ordering::Relaxed);
        self.times.wall.store(self.wall.at(now), Ordering::Relaxed);
    }

    /// The core that a start makes from the files.
    fn open(&self) -> (Core, Logs, Option<Driven>) {
        let mut slot = self.topology.slots[self.index.0];
        if self.sabotage == Some(Sabotage::SharedSlot) {
            slot = self.topology.slots[0];
        }
        let clock = clock(&self.times);
        let config = config(&self.topology, slot, self.sabotage);
        let settings = core_settings(&self.topology, slot);
        match &self.files {
            None => {
                let engine = Engine::new(config, clock.wall());
                (Core::new(engine, clock, settings), Logs::memory(), None)
            }
            Some(files) => {
                let times = self.times.clone();
                let elapsed = move || Duration::from_micros(times.elapsed.load(Ordering::Relaxed));
                let jobs = Driven::new(Arc::new(elapsed));
                let (core, logs) = files.open(&self.topology, &jobs, config, clock, settings, self.sabotage);
                (core, logs, Some(jobs))
            }
        }
    }

    /// Records which published events of this store's keys the start did not find.
    fn note_losses(&self, core: &mut Core) {
        let engine = &mut core.engine;
        let end = self.history.end(self.index).expect("a process has ended before the next one starts");
        let mut before = self.undecided.take();
        for (kind, key) in self.topology.keys() {
            // It speaks of keys that it does not own as well, as it cannot know whether it lost some: a list of its Kind is
            // told so without need.
            let durable = self.durable(engine, kind, &key);
            self.history.keeps(self.index, kind, durable);
            if self.history.owner(&key) != Some(self.index) {
                continue;
            }
            let end = before.remove(&key).map_or(end, |(_, before)| end.max(before));
            if engine.owns_to_write(&KeyRange::Single(key.clone()), None).is_ok() {
                self.history.lost((self.index, end), kind, &key, durable, found(engine, &key));
            } else {
                self.undecided.borrow_mut().insert(key, (kind, end));
            }
        }
        self.history.leases_found(self.index, &engine.leases());
    }

    /// Records that all published events of the keys are lost that this store has in place of a lost one.
    fn note_inherited(&self) {
        for (kind, key) in self.topology.keys() {
            if self.history.owner(&key) == Some(self.index) {
                self.history.lost((self.index, End::DiskLost), kind, &key, Revision::ZERO, None);
            }
        }
    }

    /// Records the same of the keys that were undecided at the start, once this store serves them again. If another
    /// store serves them, that one has all of them.
    fn note_late_losses(&self, engine: &mut Engine) {
        self.undecided.borrow_mut().retain(|key, (kind, end)| {
            if self.history.owner(key) != Some(self.index) {
                return false;
            }
            let serves = engine.owns_to_write(&KeyRange::Single(key.clone()), None).is_ok();
            if serves {
                let durable = self.durable(engine, *kind, key);
                self.history.lost((self.index, *end), *kind, key, durable, found(engine, key));
            }
            !serves
        });
    }

    /// The revision up to which the process says that it has every event of a key.
    fn durable(&self, engine: &mut Engine, kind: usize, key: &Key) -> Revision {
        if self.history.end(self.index) == Some(End::DiskLost) {
            return Revision::ZERO;
        }
        let start = self.history.last_published(self.index, kind, key).map(Revision::next);
        let feed = engine.feed_open(vec![KeyRange::Single(key.clone())], start);
        let gaps = engine.feed_pull(feed, usize::MAX).map(|out| out.gaps).unwrap_or_default();
        engine.feed_close(feed);
        let new = gaps.iter().filter(|gap| start.is_none_or(|start| gap.until > start));
        new.map(|gap| gap.after).min().unwrap_or(Revision(i64::MAX))
    }

    // ---- from outside

    /// Takes a call, for the incarnation that its connection leads to.
    pub fn receive(self: &Rc<Self>, to: Option<Life>, request: Request, respond: Respond) {
        let Some(process) = self.process().filter(|process| Some(process.life) == to) else { return };
        let shard = self.clone();
        self.world.spawn(process.life, async move {
            let revoked = if let Request::LeaseRevoke { id } = &request { Some(*id) } else { None };
            let answered = shard.driving(&process, shard.answer(&process, request)).await;
            shard.note_told(revoked, &answered);
            respond(answered.map_err(refused));
        });
    }

    /// Takes a message on a stream.
    pub fn receive_in(self: &Rc<Self>, stream: &Rc<Stream>, message: StreamIn) {
        let Some(process) = self.process().filter(|process| Some(process.life) == stream.to_life) else {
            return;
        };
        let known = process.streams.borrow().iter().find(|inbox| inbox.is_of(stream)).cloned();
        let inbox = known.unwrap_or_else(|| {
            let inbox = streams::Inbox::new(stream);
            let (shard, process, served) = (self.clone(), process.clone(), inbox.clone());
            process.streams.borrow_mut().push(inbox.clone());
            self.world.spawn(process.life, async move {
                let of = (&process.handle, &process.units);
                shard.driving(&process, streams::serve(&shard.world, of, &served)).await;
                process.streams.borrow_mut().retain(|other| !Rc::ptr_eq(other, &served));
                shard.plan_soon(&process);
            });
            inbox
        });
        inbox.push(message);
    }

    /// Notes that the router has read a message of the stream.
    pub fn may_pull(&self, stream: &Rc<Stream>) {
        let Some(process) = self.process() else { return };
        let known = process.streams.borrow().iter().find(|inbox| inbox.is_of(stream)).cloned();
        if let Some(inbox) = known {
            inbox.has_room();
        }
    }

    /// Makes the process stand still for a while.
    pub fn stall(&self, how_long: Micros) {
        self.stalled_until.set(self.world.now() + how_long);
    }

    // ---- turns

    /// Polls a future that uses the handle. Whenever it waits, the loop may have something to do.
    async fn driving<T>(self: &Rc<Self>, process: &Rc<Process>, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            self.plan_soon(process);
            polled
        })
        .await
    }

    fn plan_soon(self: &Rc<Self>, process: &Rc<Process>) {
        self.plan(process, self.world.now() + self.world.between(1, 60));
    }

    fn plan(self: &Rc<Self>, process: &Rc<Process>, at: Micros) {
        let at = at.max(self.world.now()).max(self.stalled_until.get());
        if process.planned.get().is_some_and(|planned| planned <= at) {
            return;
        }
        process.planned.set(Some(at));
        let (shard, process) = (self.clone(), process.clone());
        self.world.after(at - self.world.now(), process.life, move || {
            // A turn planned for earlier has taken its place.
            if process.planned.get() == Some(at) {
                process.planned.set(None);
                if shard.stalled_until.get() > at {
                    return shard.plan(&process, at);
                }
                shard.turn(&process);
            }
        });
    }

    fn turn(self: &Rc<Self>, process: &Rc<Process>) {
        self.now();
        let now = self.world.now();
        let requests = usize::try_from(self.world.between(1, 12)).unwrap_or(1);
        let mut running = process.apply_loop.borrow_mut();
        let Some(apply_loop) = &mut *running else { return };
        let before = apply_loop.core().engine.leases();
        let may_have_more = apply_loop.turn(requests);
        let core = apply_loop.core();
        self.note_published(process, core);
        self.note_currents(process, core);
        self.note_freezes(core);
        self.note_leases(process, core, &before);
        let next = apply_loop.next_timer().saturating_duration_since(apply_loop.core().clock.now());
        let next = Micros::try_from(next.as_micros()).unwrap_or(SECOND);
        drop(running);
        if may_have_more || next == 0 {
            self.plan_soon(process);
        } else {
            self.plan(process, now + next);
        }
        self.work_soon(process);
    }

    // ---- the files

    /// Plans the work of the disk on what a turn appended.
    fn work_soon(self: &Rc<Self>, process: &Rc<Process>) {
        if let Some(files) = &self.files {
            self.plan_work(process, self.world.now() + files.delay(&self.world));
        }
    }

    fn plan_work(self: &Rc<Self>, process: &Rc<Process>, at: Micros) {
        let earlier = process.working.get().is_some_and(|planned| planned <= at);
        if process.jobs.is_none() || earlier {
            return;
        }
        process.working.set(Some(at));
        let (shard, process) = (self.clone(), process.clone());
        self.world.after(at - self.world.now(), process.life, move || {
            if process.working.get() == Some(at) {
                process.working.set(None);
                shard.work(&process);
            }
        });
    }

    /// Lets a random job with work take one step.
    fn work(self: &Rc<Self>, process: &Rc<Process>) {
        let Some(jobs) = &process.jobs else { return };
        self.now();
        let count = jobs.count();
        let first = self.world.index(count.max(1));
        let mut wake = None;
        for at in 0..count {
            match jobs.step((first + at) % count) {
                Some(Stepped::Idle(until)) => wake = [wake, until].into_iter().flatten().min(),
                // Another job takes the place of one that has ended.
                Some(Stepped::Over | Stepped::Worked) | None => {
                    self.plan_soon(process);
                    return self.work_soon(process);
                }
            }
        }
        if let Some(wake) = wake {
            let wake = Micros::try_from(wake.as_micros()).unwrap_or(Micros::MAX);
            self.plan_work(process, wake.max(self.world.now() + 1));
        }
    }

    fn note_published(&self, process: &Process, core: &mut Core) {
        self.note_late_losses(&mut core.engine);
        process.truth.pull(&mut core.engine, |kind, event| {
            let event = TruthEvent::of(event);
            // Imported events were published by their former store.
            if !self.history.knows(&event) {
                self.history.published(self.index, kind, event);
            }
        });
    }

    fn note_currents(&self, process: &Process, core: &mut Core) {
        let units = core.engine.unit_records();
        let frozen = |kind: usize| {
            let of_kind = units.iter().filter(move |record| record.by.unit.overlaps(&self.kinds[kind]));
            of_kind.filter_map(|record| match record.state {
                UnitState::Frozen { last } => Some(last),
                _ => None,
            })
        };
        for (kind, noted) in process.noted.borrow_mut().iter_mut().enumerate() {
            let mut current = core.engine.current(std::slice::from_ref(&self.kinds[kind]));
            if self.sabotage == Some(Sabotage::ShowsAhead) {
                current = Revision(current.get() + (5_000 << SLOT_BITS));
            }
            let shown = frozen(kind).fold(current, Revision::min);
            if std::mem::replace(noted, (current, shown)) != (current, shown) {
                let held = self.wall.highest(self.world.now());
                self.history.current(self.index, kind, (current, shown), held);
            }
        }
    }

    fn note_freezes(&self, core: &Core) {
        for record in core.engine.unit_records() {
            if let UnitState::Frozen { last } = record.state {
                self.history.frozen(self.index, &record.by.unit, last);
            }
        }
    }

    /// Records the requests for leases, and which leases are new or over.
    fn note_leases(&self, process: &Process, core: &Core, before: &[LeaseId]) {
        let after = core.engine.leases();
        let of = |leases: &[LeaseId], others: &[LeaseId], step: LeaseStep| -> Vec<_> {
            leases.iter().filter(|id| !others.contains(id)).map(|id| (*id, step)).collect()
        };
        let (granted, ended) = (of(&after, before, LeaseStep::Granted), of(before, &after, LeaseStep::Ended));
        let asked = std::mem::take(&mut *process.leases.lock());
        for (id, step) in granted.into_iter().chain(asked).chain(ended) {
            self.history.lease(id, self.index, step);
            if step == LeaseStep::Ended && self.sabotage == Some(Sabotage::TellsEarly) {
                self.history.lease(id, self.index, LeaseStep::Told);
            }
        }
    }

    // ---- what the services do

    async fn answer(&self, process: &Process, request: Request) -> Result<Reply, KvError> {
        let (handle, pins) = (&process.handle, self.sabotage != Some(Sabotage::NoPins));
        let hints = |min_revision, generation: Epoch| {
            let generation = checked(generation.0);
            ReadHints { min_revision, generation, ..ReadHints::default() }
        };
        match request {
            Request::Apply { op, min_revision, generation } => {
                Ok(Reply::Applied(handle.apply(op, hints(min_revision, generation)).await?))
            }
            Request::Read { query, min_revision, pin, generation } => {
                let pin = (pin && pins).then_some(UNRELEASED);
                let hints = ReadHints { pin, ..hints(min_revision, generation) };
                Ok(Reply::Read(handle.range(query, hints).await?))
            }
            Request::Compact { at } => Ok(Reply::Compacted(handle.compact(at, false).await?)),
            Request::Raise { ranges, to, generation } => {
                let generation = checked(generation.0);
                let raise = Raise { ranges: ranges.clone(), to, generation };
                let call = call::Raised { ranges, to, generation };
                let current = handle.call_raised(raise, call).await??;
                Ok(Reply::Raised { current, changed: true })
            }
            Request::RaiseSince { ranges, to, since, generation } => {
                let pin = pins.then_some(UNRELEASED);
                let generation = checked(generation.0);
                let asked = RaiseSince { ranges, to, since, pin, generation };
                let first = asked.first();
                let (current, changed) = handle.call_raised(first, call::RaisedSince { asked }).await??;
                let changed = changed && self.sabotage != Some(Sabotage::NothingChanges);
                Ok(Reply::Raised { current, changed })
            }
            Request::Unit(request) => Ok(Reply::Unit(units::answer(&process.units, request).await)),
            request => answer_of_leases(process, request).await,
        }
    }

    /// Records the leases of this home that an answer says are over.
    fn note_told(&self, revoked: Option<LeaseId>, answered: &Result<Reply, KvError>) {
        let over = match answered {
            Ok(Reply::Revoked(_)) => Vec::from_iter(revoked),
            Ok(Reply::Ended(ended)) => ended.iter().map(|lease| lease.id).collect(),
            Err(KvError::Engine(EngineError::LeaseNotFound(id))) => vec![*id],
            _ => Vec::new(),
        };
        for id in over.into_iter().filter(|id| self.history.was_at(*id, self.index)) {
            self.history.lease(id, self.index, LeaseStep::Told);
        }
    }

    // ---- for the end of a run

    /// The engine.
    ///
    /// # Panics
    /// When no process runs.
    pub fn engine<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> T {
        let process = self.process().expect("the run brings every store back");
        let mut running = process.apply_loop.borrow_mut();
        look(&mut running.as_mut().expect("it runs").core().engine)
    }

    /// The leases of this home, and those that are over and wait for other stores.
    #[must_use]
    pub fn home_leases(&self) -> (Vec<LeaseId>, Vec<LeaseId>) {
        let of = |engine: &mut Engine| {
            (engine.leases(), engine.leases_ended().into_iter().map(|lease| lease.id).collect())
        };
        self.engine(of)
    }

    /// Panics when an invariant of the engine does not hold.
    pub fn validate(&self) {
        self.engine(|engine| engine.validate());
    }

    /// Drops everything that holds the world.
    pub fn end(&self) {
        if let Some(process) = self.process.take() {
            process.streams.borrow_mut().clear();
            if let Some(jobs) = &process.jobs {
                jobs.kill();
            }
        }
    }
}

async fn answer_of_leases(process: &Process, request: Request) -> Result<Reply, KvError> {
    let (handle, notes) = (&process.handle, process.leases.clone());
    match request {
        Request::LeaseGrant { ttl_s } => {
            let ((id, ttl_s), _) = handle.call(call::GrantLease { id: None, ttl_s }).await??;
            Ok(Reply::Granted { id, ttl_s })
        }
        // An answer is recorded in the turn that gives it, before the leases that end in that turn.
        Request::LeaseKeepAlive { id } => {
            let keep = move |core: &mut Core| {
                let (alive, _) = call::KeepLeaseAlive { id }.run(core);
                notes.lock().push((id, LeaseStep::Asked(alive.is_ok())));
                alive
            };
            Ok(Reply::Ttl(handle.find_lease(handle.inspect(keep)).await?))
        }
        Request::LeaseAttach { id, store } => {
            let attach = move |core: &mut Core| {
                let attached = call::AttachLease { id, store }.run(core);
                notes.lock().push((id, LeaseStep::Asked(attached.is_ok())));
                attached
            };
            Ok(Reply::Ttl(handle.find_lease(handle.inspect(attach)).await?))
        }
        Request::LeaseRevoke { id } => {
            Ok(Reply::Revoked(handle.call_durable(call::RevokeLease { id }).await??.1))
        }
        Request::LeaseAdopt { id, ttl_s, home } => {
            handle.call(call::AdoptLease { id, ttl_s, home, before: Vec::new() }).await??;
            Ok(Reply::Done)
        }
        Request::LeaseEnd { id } => {
            handle.call_durable(call::EndLease { id, denied: Vec::new() }).await??;
            Ok(Reply::Done)
        }
        Request::LeaseForget { id } => {
            handle.call(call::ForgetLease { id }).await?;
            Ok(Reply::Done)
        }
        _ => {
            let mut told = handle.watch_ended().await?;
            handle.durable().await?;
            let ended = std::iter::from_fn(|| told.try_recv().ok());
            Ok(Reply::Ended(ended.map(|(id, attached)| EndedLease { id, attached }).collect()))
        }
    }
}

fn config(topology: &Topology, slot: Slot, sabotage: Option<Sabotage>) -> EngineConfig {
    let max_clock_offset_micros =
        if sabotage == Some(Sabotage::UnboundedClock) { u64::MAX / 2 } else { OFFSET_MAX };
    EngineConfig {
        revisions: RevisionMode::Hlc(slot),
        kinds: topology.scheme.clone(),
        max_clock_offset_micros,
        min_lease_ttl_s: 1,
    }
}

fn clock(times: &Arc<Times>) -> Clock {
    let (wall, elapsed) = (times.clone(), times.clone());
    let wall = move || UNIX_EPOCH + Duration::from_micros(wall.wall.load(Ordering::Relaxed));
    let elapsed = move || Duration::from_micros(elapsed.elapsed.load(Ordering::Relaxed));
    Clock::simulated(ShardClock::Other(Arc::new(wall)), Arc::new(elapsed), ClockTrust::alone())
}

fn core_settings(topology: &Topology, slot: Slot) -> CoreSettings {
    CoreSettings {
        member_id: 1,
        slot,
        quota_bytes: 0,
        quotas: BTreeMap::new(),
        history_bytes_max: 0,
        kinds: topology.scheme.clone(),
        sizes: SIZES,
        label: kindred_shard::metrics::Label::default(),
    }
}

/// The revision of the last write of a key.
fn found(engine: &mut Engine, key: &Key) -> Option<Revision> {
    let query = RangeQuery {
        range: KeyRange::Single(key.clone()),
        revision: None,
        limit: 0,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    };
    let answer = engine.range(&query).ok()?;
    answer.kvs.first().map(|kv| kv.mod_revision())
}

fn refused(error: KvError) -> CallError {
    match error {
        KvError::Engine(error) => CallError::Refused(error),
        error => CallError::Other(error.to_string()),
    }
}
