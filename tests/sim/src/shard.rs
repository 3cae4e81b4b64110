//! A shard's process: the product's loop, core and engine, taken through its turns by the world. What is simulated is
//! when a turn comes, how much it reads, and what carries requests and answers: the services of `shard/src/internal`
//! without their bytes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use kindred_engine::engine::{
    Engine, EngineConfig, PinId, RevisionMode, StreamId, WallMicros, WatchOut, WatchSpec,
};
use kindred_engine::ops::{Contents, RangeAnswer, RangeQuery, RevisionFilter};
use kindred_engine::trust::ClockTrust;
use kindred_partition_config::ids::{LeaseId, Revision, SLOT_BITS, Slot};
use kindred_partition_config::key::KeyRange;
use kindred_router_core::store::StoreIx;
use kindred_shard::apply_loop::call::{self, CoreCall as _};
use kindred_shard::apply_loop::{ApplyLoop, Raise, RaiseSince};
use kindred_shard::clock::{Clock, WallClock as ShardClock};
use kindred_shard::core::{Core, CoreSettings, Sizes};
use kindred_shard::durability::Logs;
use kindred_shard::etcd_status::KvError;
use kindred_shard::handle::{self, Handle};
use kindred_shard::read_hints::ReadHints;
use parking_lot::Mutex;

use crate::clocks::WallClock;
use crate::history::{History, LeaseStep, TruthEvent};
use crate::messages::{CallError, Reply, Request, StreamIn};
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::topology::{KINDS, Topology};
use crate::world::{Micros, NATURE, SECOND, World};

mod streams;

/// The maximum clock offset (R3).
pub const OFFSET_MAX: Micros = 10 * SECOND;
/// How often idle feeds are told the present.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Reads and messages are cut into many small parts, so that other things happen between them.
const SIZES: Sizes = Sizes { whole_keys: 4, chunk_keys: 2, chunk_bytes: usize::MAX, message_bytes: 400 };
/// Pins last their whole time here: every release is lost, which is harmless.
const UNRELEASED: PinId = PinId(1);

type Respond = Box<dyn FnOnce(Result<Reply, CallError>)>;

/// The time that the shard's clocks show.
#[derive(Default)]
struct Times {
    elapsed: AtomicU64,
    wall: AtomicU64,
}

/// What a turn did to leases, in order.
type LeaseNotes = Arc<Mutex<Vec<(LeaseId, LeaseStep)>>>;

/// One shard.
pub struct Shard {
    /// Its place among the stores.
    pub index: StoreIx,
    world: World,
    history: Rc<History>,
    /// Its wall clock.
    pub wall: WallClock,
    times: Arc<Times>,
    handle: Handle,
    apply_loop: RefCell<ApplyLoop>,
    leases: LeaseNotes,
    streams: RefCell<Vec<Rc<streams::Inbox>>>,
    /// Watches of all Kinds, which tell what is published.
    truth: Vec<StreamId>,
    /// What each Kind showed last, as recorded.
    shown: RefCell<Vec<Revision>>,
    /// When its next turn comes, if that is planned.
    planned: Cell<Option<Micros>>,
    /// It does nothing until then.
    stalled_until: Cell<Micros>,
    sabotage: Option<Sabotage>,
    kinds: Vec<KeyRange>,
}

impl Shard {
    /// An empty shard.
    #[must_use]
    pub fn new(
        world: &World,
        history: &Rc<History>,
        topology: &Topology,
        index: StoreIx,
        wall: WallClock,
        sabotage: Option<Sabotage>,
    ) -> Rc<Self> {
        let mut slot = topology.slots[index.0];
        if sabotage == Some(Sabotage::SharedSlot) {
            slot = topology.slots[0];
        }
        let times = Arc::new(Times::default());
        times.wall.store(wall.at(world.now()), Ordering::Relaxed);
        times.elapsed.store(world.now(), Ordering::Relaxed);
        let mut core = core(topology, slot, sabotage, &times);
        let kinds: Vec<KeyRange> = (0..KINDS).map(|kind| topology.kind_range(kind)).collect();
        let truth = kinds.iter().map(|kind| watch_all(&mut core.engine, kind)).collect();
        history.started(index, core.engine.current_all());
        let (handle, apply_loop) = handle::unspawned(core, Logs::memory(), PROGRESS_INTERVAL);
        let shard = Rc::new(Self {
            index,
            world: world.clone(),
            history: history.clone(),
            wall,
            times,
            handle,
            apply_loop: RefCell::new(apply_loop),
            leases: LeaseNotes::default(),
            streams: RefCell::default(),
            truth,
            shown: RefCell::new(vec![Revision::ZERO; KINDS]),
            planned: Cell::new(None),
            stalled_until: Cell::new(0),
            sabotage,
            kinds,
        });
        shard.plan(0);
        shard
    }

    // ---- from outside

    /// A call has arrived.
    pub fn receive(self: &Rc<Self>, request: Request, respond: Respond) {
        let shard = self.clone();
        self.world.spawn(NATURE, async move {
            let answered = shard.driving(shard.answer(request)).await;
            respond(answered.map_err(refused));
        });
    }

    /// A message on a stream has arrived.
    pub fn receive_in(self: &Rc<Self>, stream: &Rc<Stream>, message: StreamIn) {
        let known = self.streams.borrow().iter().find(|inbox| inbox.is_of(stream)).cloned();
        let inbox = known.unwrap_or_else(|| {
            let inbox = streams::Inbox::new(stream);
            let (shard, served) = (self.clone(), inbox.clone());
            self.streams.borrow_mut().push(inbox.clone());
            self.world.spawn(NATURE, async move {
                shard.driving(streams::serve(&shard.world, &shard.handle, &served)).await;
                shard.streams.borrow_mut().retain(|other| !Rc::ptr_eq(other, &served));
                shard.plan_soon();
            });
            inbox
        });
        inbox.push(message);
    }

    /// The router has read a message of the stream.
    pub fn may_pull(&self, stream: &Rc<Stream>) {
        if let Some(inbox) = self.streams.borrow().iter().find(|inbox| inbox.is_of(stream)) {
            inbox.has_room();
        }
    }

    /// The process stands still for a while.
    pub fn stall(&self, how_long: Micros) {
        self.stalled_until.set(self.world.now() + how_long);
    }

    // ---- turns

    /// Runs what uses the handle; whenever it waits, the loop may have something to do.
    async fn driving<T>(self: &Rc<Self>, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            self.plan_soon();
            polled
        })
        .await
    }

    fn plan_soon(self: &Rc<Self>) {
        self.plan(self.world.now() + self.world.between(1, 60));
    }

    fn plan(self: &Rc<Self>, at: Micros) {
        let at = at.max(self.world.now()).max(self.stalled_until.get());
        if self.planned.get().is_some_and(|planned| planned <= at) {
            return;
        }
        self.planned.set(Some(at));
        let shard = self.clone();
        self.world.after(at - self.world.now(), NATURE, move || {
            // A turn planned for earlier has taken its place.
            if shard.planned.get() == Some(at) {
                shard.planned.set(None);
                if shard.stalled_until.get() > at {
                    return shard.plan(at);
                }
                shard.turn();
            }
        });
    }

    fn turn(self: &Rc<Self>) {
        let now = self.world.now();
        self.times.elapsed.store(now, Ordering::Relaxed);
        self.times.wall.store(self.wall.at(now), Ordering::Relaxed);
        let requests = usize::try_from(self.world.between(1, 12)).unwrap_or(1);
        let apply_loop = &mut *self.apply_loop.borrow_mut();
        let before = apply_loop.core().engine.leases();
        let may_have_more = apply_loop.turn(requests);
        let core = apply_loop.core();
        self.note_published(core);
        self.note_currents(core);
        self.note_leases(core, &before);
        let next = apply_loop.next_timer().saturating_duration_since(apply_loop.core().clock.now());
        let next = Micros::try_from(next.as_micros()).unwrap_or(SECOND);
        if may_have_more || next == 0 { self.plan_soon() } else { self.plan(now + next) }
    }

    fn note_published(&self, core: &mut Core) {
        for (kind, truth) in self.truth.iter().enumerate() {
            loop {
                let said = core.engine.watch_pull(*truth, usize::MAX);
                if said.is_empty() {
                    break;
                }
                for out in said {
                    if let WatchOut::Events { events, .. } = out {
                        self.history.published(self.index, kind, events.iter().map(TruthEvent::of));
                    }
                }
            }
        }
    }

    fn note_currents(&self, core: &mut Core) {
        for (kind, shown) in self.shown.borrow_mut().iter_mut().enumerate() {
            let mut current = core.engine.current(std::slice::from_ref(&self.kinds[kind]));
            if self.sabotage == Some(Sabotage::ShowsAhead) {
                current = Revision(current.get() + (5_000 << SLOT_BITS));
            }
            if std::mem::replace(shown, current) != current {
                let held = self.wall.highest(self.world.now());
                self.history.current(self.index, kind, current, held);
            }
        }
    }

    /// Writes down what became of leases: what was asked for, and which are new or over.
    fn note_leases(&self, core: &Core, before: &[LeaseId]) {
        let after = core.engine.leases();
        let of = |leases: &[LeaseId], others: &[LeaseId], step: LeaseStep| -> Vec<_> {
            leases.iter().filter(|id| !others.contains(id)).map(|id| (*id, step)).collect()
        };
        let (granted, ended) = (of(&after, before, LeaseStep::Granted), of(before, &after, LeaseStep::Ended));
        let asked = std::mem::take(&mut *self.leases.lock());
        for (id, step) in granted.into_iter().chain(asked).chain(ended) {
            self.history.lease(id, self.index, step);
        }
    }

    // ---- what the services do

    async fn answer(&self, request: Request) -> Result<Reply, KvError> {
        let pins = self.sabotage != Some(Sabotage::NoPins);
        let hints = |min_revision| ReadHints { min_revision, ..ReadHints::default() };
        match request {
            Request::Apply { op, min_revision } => {
                Ok(Reply::Applied(self.handle.apply(op, hints(min_revision)).await?))
            }
            Request::Read { query, min_revision, pin } => {
                let hints = ReadHints { pin: (pin && pins).then_some(UNRELEASED), ..hints(min_revision) };
                Ok(Reply::Read(self.handle.range(query, hints).await?))
            }
            Request::Compact { at } => Ok(Reply::Compacted(self.handle.compact(at, false).await?)),
            Request::Raise { ranges, to } => {
                let raise = Raise { ranges: ranges.clone(), to, generation: None };
                let call = call::Raised { ranges, to, generation: None };
                let current = self.handle.call_raised(raise, call).await??;
                Ok(Reply::Raised { current, changed: true })
            }
            Request::RaiseSince { ranges, to, since } => {
                let pin = pins.then_some(UNRELEASED);
                let asked = RaiseSince { ranges, to, since, pin, generation: None };
                let first = asked.first();
                let (current, changed) =
                    self.handle.call_raised(first, call::RaisedSince { asked }).await??;
                let changed = changed && self.sabotage != Some(Sabotage::NothingChanges);
                Ok(Reply::Raised { current, changed })
            }
            request => self.answer_of_leases(request).await,
        }
    }

    async fn answer_of_leases(&self, request: Request) -> Result<Reply, KvError> {
        let (handle, notes) = (&self.handle, self.leases.clone());
        match request {
            Request::LeaseGrant { ttl_s } => {
                let ((id, ttl_s), _) = handle.call(call::GrantLease { id: None, ttl_s }).await??;
                Ok(Reply::Granted { id, ttl_s })
            }
            // What the home says is noted in the turn in which it says so, before what ends in it.
            Request::LeaseKeepAlive { id } => {
                let keep = move |core: &mut Core| {
                    let (alive, _) = call::KeepLeaseAlive { id }.run(core);
                    notes.lock().push((id, LeaseStep::Asked(alive.is_ok())));
                    alive
                };
                Ok(Reply::Ttl(handle.inspect(keep).await??))
            }
            Request::LeaseAttach { id, store } => {
                let attach = move |core: &mut Core| {
                    let attached = call::AttachLease { id, store }.run(core);
                    notes.lock().push((id, LeaseStep::Asked(attached.is_ok())));
                    attached
                };
                Ok(Reply::Ttl(handle.inspect(attach).await??))
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
            _ => Ok(Reply::Ended(handle.call(call::ListEnded {}).await?)),
        }
    }

    // ---- for the end of a run

    /// The keys that carry leases, with those.
    #[must_use]
    pub fn leased_keys(&self) -> Vec<(Vec<u8>, LeaseId)> {
        let apply_loop = &mut *self.apply_loop.borrow_mut();
        let engine = &mut apply_loop.core().engine;
        let mut leased = Vec::new();
        for kind in &self.kinds {
            let query = RangeQuery {
                range: kind.clone(),
                revision: None,
                limit: 0,
                sort: None,
                contents: Contents::Whole,
                count_only: false,
                filter: RevisionFilter::default(),
            };
            if let Ok(RangeAnswer { kvs, .. }) = engine.range(&query) {
                let with =
                    kvs.iter().filter_map(|kv| Some((kv.key().to_vec(), LeaseId::from_wire(kv.lease())?)));
                leased.extend(with);
            }
        }
        leased
    }

    /// Leases at home here, and those over that still wait.
    #[must_use]
    pub fn home_leases(&self) -> (Vec<LeaseId>, Vec<LeaseId>) {
        let apply_loop = &mut *self.apply_loop.borrow_mut();
        let engine = &apply_loop.core().engine;
        let ended = engine.leases_ended().into_iter().map(|lease| lease.id).collect();
        (engine.leases(), ended)
    }

    /// Panics when the engine is not as it must be.
    pub fn validate(&self) {
        self.apply_loop.borrow_mut().core().engine.validate();
    }

    /// Leaves nothing behind that holds the world.
    pub fn end(&self) {
        self.streams.borrow_mut().clear();
    }
}

fn core(topology: &Topology, slot: Slot, sabotage: Option<Sabotage>, times: &Arc<Times>) -> Core {
    let max_clock_offset_micros =
        if sabotage == Some(Sabotage::UnboundedClock) { u64::MAX / 2 } else { OFFSET_MAX };
    let config = EngineConfig {
        revisions: RevisionMode::Hlc(slot),
        kinds: topology.scheme.clone(),
        max_clock_offset_micros,
        min_lease_ttl_s: 1,
    };
    let engine = Engine::new(config, WallMicros(times.wall.load(Ordering::Relaxed)));
    let (wall, elapsed) = (times.clone(), times.clone());
    let wall = move || UNIX_EPOCH + Duration::from_micros(wall.wall.load(Ordering::Relaxed));
    let elapsed = move || Duration::from_micros(elapsed.elapsed.load(Ordering::Relaxed));
    let clock = Clock::simulated(ShardClock::Other(Arc::new(wall)), Arc::new(elapsed), ClockTrust::alone());
    let settings = CoreSettings {
        member_id: 1,
        slot,
        quota_bytes: 0,
        quotas: BTreeMap::new(),
        kinds: topology.scheme.clone(),
        sizes: SIZES,
    };
    Core::new(engine, clock, settings)
}

fn watch_all(engine: &mut Engine, range: &KeyRange) -> StreamId {
    let stream = engine.watch_open();
    let spec = WatchSpec {
        range: range.clone(),
        start: None,
        id: None,
        prev_kv: true,
        no_put: false,
        no_delete: false,
        progress_notify: false,
        fragment: false,
    };
    let created = engine.watch_create(stream, spec);
    debug_assert!(created.is_ok(), "a new stream has no watch");
    stream
}

fn refused(error: KvError) -> CallError {
    match error {
        KvError::Engine(error) => CallError::Refused(error),
        error => CallError::Other(error.to_string()),
    }
}
