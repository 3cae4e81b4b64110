//! One run: the world of a seed, its clients, its faults, and the result.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use kindred_partition_config::model::Durability;
use kindred_router_core::store::StoreIx;

use crate::client::{self, Clients};
use crate::clocks::{WallClock, Weather};
use crate::history::{Heard, History, Record};
use crate::invariants::{self, Violation};
use crate::meta::MetaStore;
use crate::net::Net;
use crate::router::Router;
use crate::sabotage::Sabotage;
use crate::shard::Shard;
use crate::shard::files::{End, Files};
use crate::topology::{KEYS_MAX, KINDS, Topology};
use crate::world::{MS, Micros, NATURE, SECOND, STEPS_MAX, World};

mod end;

/// The longest time that the run waits for clients.
const BUSY_MAX: Micros = 40 * SECOND;
/// The time in which everything settles after the faults: the sum of the longest deadlines and periods, and some more.
pub const SETTLE: Micros = 35 * SECOND;

/// The modes that a Kind may have where stores have files.
const MODES: [Durability; 4] = [Durability::Fsync, Durability::Fsync, Durability::Buffered, Durability::None];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub seeds: u64,
    pub steps: u64,
    pub events: u64,
    pub lists: u64,
    /// Watches created, counted per connection.
    pub watches: u64,
    /// Events that watches delivered.
    pub delivered: u64,
    pub progress: u64,
    pub moves: u64,
    pub maps: u64,
    /// Links cut, shards stalled or restarted, routers killed, clocks set.
    pub faults: u64,
    pub violations: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.events += other.events;
        self.lists += other.lists;
        self.watches += other.watches;
        self.delivered += other.delivered;
        self.progress += other.progress;
        self.moves += other.moves;
        self.maps += other.maps;
        self.faults += other.faults;
        self.violations += other.violations;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            seeds,
            steps,
            events,
            lists,
            watches,
            delivered,
            progress,
            moves,
            maps,
            faults,
            violations,
        } = self;
        write!(
            f,
            "sim: seeds={seeds} steps={steps} events={events} lists={lists} watches={watches} delivered={delivered} \
             progress={progress} moves={moves} maps={maps} faults={faults} violations={violations}"
        )
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub counts: Counts,
    /// What happened, line by line.
    pub log: Vec<String>,
    pub violations: Vec<Violation>,
}

impl Outcome {
    /// A hash of the whole log.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.log.hash(&mut hasher);
        hasher.finish()
    }

    /// The report of a run that broke something.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = format!("seed {} broke:\n", self.seed);
        for violation in &self.violations {
            text += &format!("  {violation}\n");
        }
        let from = self.log.len().saturating_sub(40);
        text += "the last of what happened (microseconds):\n";
        for line in &self.log[from..] {
            text += &format!("  {line}\n");
        }
        text + &format!("all of it: make sim SEED={}\n", self.seed)
    }
}

#[must_use]
pub fn run(seed: u64, sabotage: Option<Sabotage>) -> Outcome {
    let world = World::new(seed);
    let history = History::new(&world);
    let topology = Rc::new(Topology::new(2 + world.index(3)));
    let stores = topology.slots.len() - 1;
    let weather = *world.pick(&[Weather::Fair, Weather::Fair, Weather::Rough, Weather::Rough, Weather::Foul]);
    let modes = world.chance(60).then(|| std::array::from_fn(|_| *world.pick(&MODES)));
    let bad = (weather == Weather::Foul).then(|| world.index(stores));
    // The last one is there for the place of a store that is lost.
    let shards: Vec<_> = (0..=stores)
        .map(|store| {
            let clock = WallClock::new(&world, weather, bad == Some(store));
            Shard::new(&world, &history, &topology, StoreIx(store), clock, modes.as_ref(), sabotage)
        })
        .collect();
    shards[..stores].iter().for_each(|shard| shard.start());
    {
        let mut record = history.write();
        record.modes = modes;
        record.bad_stores = bad.into_iter().map(StoreIx).collect();
        record.kinds = (0..KINDS).map(|kind| topology.kind_range(kind)).collect();
    }
    let net = Rc::new(Net::new(world.clone(), 2, shards.clone()));
    let meta = MetaStore::new(&world, &history, &topology.state, 2);
    let routers =
        (0..2).map(|at| Some(Router::start(&world, &net, at, (&topology, &meta), &history, sabotage)));
    let routers = RefCell::new(routers.collect());
    let moving = world.chance(50);
    let clients = Rc::new(Clients {
        world: world.clone(),
        net: net.clone(),
        history: history.clone(),
        topology: topology.clone(),
        meta: meta.clone(),
        routers,
        moving,
        restarting: !moving || (modes.is_some() && world.chance(50)),
        forgetful: world.chance(40),
        replacing: moving && weather == Weather::Fair && world.chance(50),
        lost: Cell::new(None),
        busy: Cell::new(0),
        over: Cell::new(false),
        seen: RefCell::new(vec![Vec::new(); KINDS]),
        keys: *world.pick(&[4, 12, KEYS_MAX]),
    });
    start_clients(&clients);
    let faults = Rc::new(Cell::new(0));
    if world.chance(80) {
        let run = make_trouble(clients.clone(), shards.clone(), weather, faults.clone(), sabotage);
        world.spawn(NATURE, run);
    }

    while clients.busy.get() > 0 && world.now() < BUSY_MAX {
        world.run_until(world.now() + 100 * MS);
    }
    clients.over.set(true);
    // Stores that are down come back by tasks of their own.
    while !clients.all_run() && world.steps() < STEPS_MAX {
        world.run_until(world.now() + 100 * MS);
    }
    net.calm_down();
    meta.calm_down();
    for at in 0..2 {
        let stopped = clients.routers.borrow()[at].is_none();
        if stopped {
            clients.routers.borrow_mut()[at] =
                Some(Router::start(&world, &net, at, (&topology, &meta), &history, sabotage));
        }
    }
    world.note(format_args!("calm"));
    history.write().calm_at = world.now();
    if history.read().meta_lost || clients.lost.get().is_some() {
        world.spawn(NATURE, client::admin::repair(clients.clone()));
    }
    world.run_until(world.now() + SETTLE);
    note_end(&history, &shards);
    end::note(&history, &meta, &shards);

    let mut violations = invariants::check(&history.read());
    if world.steps() >= STEPS_MAX {
        let what = format!("the run was in circles at {} microseconds", world.now());
        violations.push(Violation { invariant: "liveness", what });
    }
    violations.sort_by_key(|violation| violation.invariant);
    let counts = counts(&world, &history.read(), faults.get(), violations.len());
    for router in clients.routers.borrow_mut().iter_mut().filter_map(Option::take) {
        router.stop();
    }
    for shard in shards.iter().filter(|shard| shard.runs()) {
        shard.validate();
        shard.end();
    }
    world.end();
    Outcome { seed, counts, log: world.take_log(), violations }
}

fn start_clients(clients: &Rc<Clients>) {
    let world = &clients.world;
    let amount = *world.pick(&[4, 10, 20]);
    for name in 0..world.between(1, 3) {
        let name = usize::try_from(name).unwrap_or(0);
        clients.start(client::writer::run(clients.clone(), name, amount));
    }
    for _ in 0..world.between(1, 2) {
        clients.start(client::lister::run(clients.clone(), amount));
    }
    for _ in 0..world.between(1, 3) {
        // They watch until the end of the run, which does not wait for them.
        world.spawn(NATURE, client::watcher::run(clients.clone()));
    }
    // Leases whose home is lost have tests of their own.
    if world.chance(60) && !clients.replacing {
        clients.start(client::keeper::leases(clients.clone(), amount));
    }
    if world.chance(50) {
        clients.start(client::keeper::compactions(clients.clone(), amount / 2));
    }
    if clients.moving {
        clients.start(client::admin::run(clients.clone(), amount / 2));
    }
}

/// Faults, one after another, until the clients are done.
async fn make_trouble(
    clients: Rc<Clients>,
    shards: Vec<Rc<Shard>>,
    weather: Weather,
    faults: Rc<Cell<u64>>,
    sabotage: Option<Sabotage>,
) {
    let world = &clients.world;
    let mean = *world.pick(&[5 * MS, 50 * MS, 500 * MS]);
    loop {
        world.sleep(world.between(MS, 2 * mean)).await;
        if clients.over.get() {
            return;
        }
        faults.set(faults.get() + 1);
        let (router, store) = (clients.any_router(), world.index(shards.len() - 1));
        if clients.lost.get() == Some(store) {
            continue;
        }
        let how_long = world.between(MS, *world.pick(&[5 * MS, 100 * MS, 2 * SECOND]));
        match world.below(16) {
            15 if clients.moving && clients.forgetful && world.chance(60) => {
                clients.history.write().meta_lost = true;
                clients.meta.roll_back(*world.pick(&[1, 2, 3, 5, usize::MAX]), how_long.max(5 * MS));
            }
            15 => clients.meta.lose(world.chance(50).then_some(router), how_long),
            0..=3 => {
                world.note(format_args!("r{router} loses s{store} for {how_long}"));
                clients.net.cut(router, store);
                let net = clients.net.clone();
                world.after(how_long, NATURE, move || net.heal(router, store));
            }
            4..=5 => {
                world.note(format_args!("s{store} stalls for {how_long}"));
                shards[store].stall(how_long);
            }
            6..=7 if weather != Weather::Fair => {
                shards[store].wall.step(world);
                world.note(format_args!("the clock of s{store} is set"));
            }
            10..=12 if clients.restarting => {
                let fair = weather == Weather::Fair;
                let end = match clients.history.read().modes {
                    Some(_) => *world.pick(&[End::Clean, End::Killed, End::PowerLoss, End::PowerLoss]),
                    None => End::DiskLost,
                };
                // A store that loses its disk does not know of moves any more. It is replaced instead (R14).
                let end = if fair && !clients.moving && world.chance(20) { End::DiskLost } else { end };
                if shards[store].runs() && (fair || end != End::DiskLost) {
                    restart(&clients, store, end, how_long);
                }
            }
            9 if clients.replacing && clients.lost.get().is_none() && shards[store].runs() => {
                clients.lost.set(Some(store));
                clients.net.end_store(store, End::DiskLost);
                world.spawn(NATURE, client::admin::replace(clients.clone(), store));
            }
            13..=14 if clients.restarting => {
                let Some(files) = shards[store].files.as_ref().filter(|_| shards[store].runs()) else {
                    continue;
                };
                let fault = files.some_fault(world, how_long);
                world.note(format_args!("the disk of s{store} for {how_long}: {fault:?}"));
                let shard = shards[store].clone();
                world.after(how_long, NATURE, move || shard.files.iter().for_each(Files::heal));
            }
            _ => {
                let stopped = clients.routers.borrow_mut()[router].take();
                let Some(stopped) = stopped else { continue };
                stopped.stop();
                world.sleep(how_long).await;
                if clients.over.get() {
                    return;
                }
                let around = (&clients.topology, &clients.meta);
                let again = Router::start(world, &clients.net, router, around, &clients.history, sabotage);
                clients.routers.borrow_mut()[router] = Some(again);
            }
        }
    }
}

/// Ends a store's process, and starts another one later.
fn restart(clients: &Rc<Clients>, store: usize, end: End, how_long: Micros) {
    let (net, history, world) = (clients.net.clone(), clients.history.clone(), clients.world.clone());
    clients.world.spawn(NATURE, async move {
        if let Some(files) =
            net.shards()[store].files.as_ref().filter(|_| end != End::Clean && world.chance(50))
        {
            files.stop_soon(&world);
            world.sleep(world.between(10, 20 * MS)).await;
        }
        // Another end may have come first.
        if !net.shards()[store].runs() {
            return;
        }
        net.end_store(store, end);
        world.sleep(how_long).await;
        // The lost disk also had the ceiling of the clock. The next process starts when the wall clock is above it.
        while end == End::DiskLost
            && net.shards()[store].wall_revision() <= history.read().highest(StoreIx(store))
        {
            world.sleep(100 * MS).await;
        }
        net.start_store(store);
    });
}

fn note_end(history: &History, shards: &[Rc<Shard>]) {
    for shard in shards.iter().filter(|shard| shard.runs()) {
        let (live, waiting) = shard.home_leases();
        let mut record = history.write();
        record.leases_at_end.extend(live);
        record.waiting_at_end.extend(waiting);
    }
}

fn counts(world: &World, record: &Record, faults: u64, violations: usize) -> Counts {
    let heard = || record.streams.iter().flat_map(|stream| &stream.heard).map(|(_, _, heard)| heard);
    let events = |heard: &Heard| match heard {
        Heard::Events { events, .. } => events.len() as u64,
        _ => 0,
    };
    Counts {
        seeds: 1,
        steps: world.steps(),
        events: record.events.len() as u64,
        lists: record.reads.len() as u64,
        watches: record.streams.iter().map(|stream| stream.creates.len() as u64).sum(),
        delivered: heard().map(events).sum(),
        progress: heard().filter(|heard| matches!(heard, Heard::Progress { .. })).count() as u64,
        moves: record.moves,
        maps: record.maps.len() as u64 - 1,
        faults,
        violations: violations as u64,
    }
}
