//! Two routers, three stores, meta, clients, and a network that delays, repeats and loses; all driven by a seed.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, StoreName, Term},
    parse::parse_config,
    state::{Change, ClusterState, ConfigChange},
    unit::Unit,
};
use kindred_router_core::moves::{
    machine::{Machine, Request, Settings, Status, TICK},
    record::{MoveRecord, Phase},
    step::{Answer, Step, StepName, Ticket, UnitAt, UnitCall, What},
    watchdog::{self, Watchdog},
};

use crate::{
    Mutation,
    invariants::{Broken, Watcher},
    shard::{Export, Shard},
};

/// Until this time routers crash and stall, calls are lost, and operators change their minds.
const TROUBLE_MS: u64 = 15_000;
/// The caller gives up a call that is not answered within this time.
const DEADLINE_MS: u64 = 1_000;
/// The longest time that a call may take to arrive.
const LATEST_MS: u64 = 4_000;
/// Another router may take over after this time without a sign of the coordinator.
const LEASE_MS: u64 = 3_000;
/// The end of the run at the latest.
const HORIZON_MS: u64 = 120_000;
const CLIENTS: usize = 3;
/// How often a router looks at the moves of others.
const WATCH_MS: u64 = 40;
/// Tickets above this belong to watchdogs.
const WATCHDOGS: u64 = 1 << 40;
pub const KEYS: [&str; 6] = ["a", "c", "e", "m", "p", "x"];

/// A SplitMix64 generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A call of a step to one process.
#[derive(Debug, Clone)]
enum Call {
    Meta(What),
    Store { store: usize, name: StepName },
    Through,
    Export { after: Option<i64> },
    Import(Export),
    Verify(Export),
}

#[derive(Debug, Clone)]
enum Event {
    Tick(usize),
    Watch(usize),
    Elect,
    Arrive {
        from: Asker,
        sent: Box<(Step, Call)>,
        wanted: bool,
    },
    Reply {
        to: Asker,
        ticket: Ticket,
        reply: Reply,
    },
    Deadline {
        of: Asker,
        ticket: Ticket,
    },
    MapOf(usize),
    Crash,
    Restart,
    Operate,
    /// The operator of a held move asks for its switch until it is heard.
    Switch,
    Client(usize),
    Again {
        client: usize,
        op: Op,
    },
    AtStore {
        client: usize,
        op: Op,
        store: usize,
    },
    Back {
        client: usize,
        op: Op,
        outcome: Option<Option<i64>>,
    },
}

/// A router and its incarnation.
type Asker = (usize, u64);

#[derive(Debug, Clone)]
enum Reply {
    Answer(Answer),
    Through(Option<i64>),
    Exported(Option<Export>),
}

#[derive(Debug, Clone)]
struct Op {
    key: String,
    /// The value to write, and the mod revision that the key must have.
    write: Option<(u64, Option<i64>)>,
    router: usize,
    /// The highest revision acknowledged before the operation began.
    floor: i64,
    until: u64,
}

struct Router {
    incarnation: u64,
    state: ClusterState,
    machine: Option<Machine>,
    open: BTreeMap<Ticket, (Step, Option<i64>)>,
    stalled_until: u64,
    watchdog: Watchdog,
    /// The record and its version as this router knows them.
    known: (MoveRecord, i64),
    /// The number of the last takeover by this router among all takeovers.
    reign: u64,
}

struct Meta {
    record: MoveRecord,
    version: i64,
    state: ClusterState,
}

/// Counters of what happened in a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub events: u64,
    pub writes: u64,
    pub reads: u64,
    pub refusals: u64,
    pub switches: u64,
    pub cancelled: u64,
    pub takeovers: u64,
    pub fenced: u64,
    pub done: u64,
    pub aborted: u64,
    pub reversed: u64,
    pub copies_lost: u64,
    /// Freezes lost by restarts during an attempt.
    pub freezes_lost: u64,
    /// Attempts given up by a router that did not coordinate them.
    pub rescued: u64,
}

/// The watchdog of a router that has just started.
fn new_watchdog() -> Watchdog {
    Watchdog::new(watchdog::Settings::beside(&Settings::default()), WATCHDOGS)
}

pub struct World {
    now: u64,
    sequence: u64,
    random: Random,
    queue: BTreeMap<(u64, u64), Event>,
    meta: Meta,
    shards: Vec<Shard>,
    routers: Vec<Router>,
    heard_at: u64,
    seen: BTreeMap<String, i64>,
    values: u64,
    over_at: Option<u64>,
    mutation: Option<Mutation>,
    watcher: Watcher,
    pub counts: Counts,
}

fn store(name: &str) -> StoreName {
    StoreName(name.to_owned())
}

/// A random configuration, and the change that is the move.
pub fn scenario(random: &mut Random) -> (ClusterState, Change) {
    let partitions = match random.below(3) {
        0 => "- {metadata: {name: p}, resource: pods, serviceGroupId: a}",
        1 => {
            "- {metadata: {name: p}, resource: pods, serviceGroupId: a, rangeEnd: d, isRangeEndValid: true}\n\
             - {metadata: {name: q}, resource: pods, serviceGroupId: b, rangeStart: d, isRangeStartValid: true}"
        }
        _ => "- {metadata: {name: p}, resource: pods, ring: {stores: [a, b]}}",
    };
    let text = format!(
        "default: a\nstores: [{{name: a, slot: 1}}, {{name: b, slot: 2}}, {{name: c, slot: 3}}]\npartitions:\n{partitions}\n"
    );
    let state = ClusterState::bootstrap(&parse_config(&text).unwrap()).unwrap();
    let mut wider = state.configs[0].clone();
    wider.ring = Some(kindred_partition_config::model::RingConfig {
        stores: vec![store("a"), store("b"), store("c")],
    });
    wider.service_group_id = None;
    let change = match random.below(4) {
        0 => state.split("pods", "n", &store("c")),
        1 => state.apply_configs(&[ConfigChange::Update(wider)]),
        _ => state.move_kind("pods", &store("c")),
    };
    let change = change.unwrap();
    (state, change)
}

impl World {
    pub fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut random = Random(seed);
        let (_, change) = scenario(&mut random);
        let record = MoveRecord::new(MoveId(1), &change.transfers).unwrap().held(seed % 4 == 3);
        let state = change.state;
        let shards = (1..=3)
            .map(|slot| Shard::new(slot, i64::try_from(random.below(8_000)).unwrap() - 4_000, mutation));
        let router = || Router {
            incarnation: 0,
            state: state.clone(),
            machine: None,
            open: BTreeMap::new(),
            stalled_until: 0,
            watchdog: new_watchdog(),
            known: (record.clone(), 1),
            reign: 0,
        };
        let mut world = Self {
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            routers: vec![router(), router()],
            shards: shards.collect(),
            meta: Meta { record, version: 1, state },
            heard_at: 0,
            seen: BTreeMap::new(),
            values: 0,
            over_at: None,
            mutation,
            watcher: Watcher::default(),
            counts: Counts::default(),
            random,
        };
        world.after(0, Event::Elect);
        for router in 0..2 {
            world.after(0, Event::Watch(router));
        }
        for client in 0..CLIENTS {
            world.after(client as u64, Event::Client(client));
        }
        for _ in 0..world.random.below(4) {
            let at = world.random.below(TROUBLE_MS);
            world.after(at, Event::Crash);
        }
        for _ in 0..world.random.below(3) {
            let at = world.random.below(TROUBLE_MS);
            world.after(at, Event::Restart);
        }
        for _ in 0..world.random.below(3) {
            let at = world.random.below(TROUBLE_MS);
            world.after(at, Event::Operate);
        }
        if world.meta.record.hold {
            let at = world.random.below(TROUBLE_MS);
            world.after(at, Event::Switch);
        }
        world
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), event);
    }

    fn is_trouble(&self) -> bool {
        self.now < TROUBLE_MS
    }

    /// A random delay of a message; mostly short.
    fn delay(&mut self) -> u64 {
        match self.is_trouble() && self.random.one_in(25) {
            true => 1 + self.random.below(LATEST_MS),
            false => 1 + self.random.below(12),
        }
    }

    /// Runs the simulation to its end.
    pub fn run(&mut self) -> Result<(), Broken> {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.counts.events += 1;
            self.step(event)?;
            self.watcher.no_lock_is_left(&self.shards, self.now)?;
            // All delayed messages have arrived by then.
            if self.over_at.is_some_and(|over| self.now > over.max(TROUBLE_MS) + 2 * LATEST_MS)
                || self.now > HORIZON_MS
            {
                break;
            }
        }
        self.watcher.at_the_end(&self.shards, &self.meta.record, &self.meta.state)
    }

    fn step(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Tick(router) => self.tick(router),
            Event::Watch(router) => self.watch(router),
            Event::Elect => self.elect(),
            Event::Arrive { from, sent, wanted } => self.arrive(from, &sent.0, sent.1, wanted),
            Event::Reply { to, ticket, reply } => self.reply(to, ticket, reply),
            Event::Deadline { of, ticket } => {
                let failed = Answer::Failed { reason: "deadline".to_owned() };
                self.reply(of, ticket, Reply::Answer(failed));
            }
            Event::MapOf(router) => self.routers[router].state = self.meta.state.clone(),
            Event::Crash => {
                let router = self.random.below(2) as usize;
                match self.random.one_in(2) {
                    true => self.crash(router),
                    false => self.routers[router].stalled_until = self.now + self.random.below(2 * LEASE_MS),
                }
            }
            Event::Restart => self.restart(),
            Event::Switch => {
                for router in &mut self.routers {
                    if let Some(machine) = &mut router.machine {
                        // May be refused in this phase.
                        let _ = machine.request(Request::Switch, 0);
                    }
                }
                if self.meta.record.hold && !self.meta.record.phase.is_over() {
                    self.after(LEASE_MS, Event::Switch);
                }
            }
            Event::Operate => {
                let request = [Request::Abort, Request::Reverse, Request::Complete, Request::Switch]
                    [self.random.below(4) as usize];
                for router in &mut self.routers {
                    if let Some(machine) = &mut router.machine {
                        // May be refused in this phase.
                        let _ = machine.request(request, 0);
                    }
                }
            }
            Event::Client(client) => self.begin(client),
            // Sent by the map that the router has by then.
            Event::Again { client, op } => self.send_op(client, op),
            Event::AtStore { client, op, store } => self.at_store(client, op, store)?,
            Event::Back { client, op, outcome } => self.back(client, op, outcome)?,
        }
        Ok(())
    }

    fn crash(&mut self, router: usize) {
        let router = &mut self.routers[router];
        router.incarnation += 1;
        router.machine = None;
        router.open.clear();
        router.watchdog = new_watchdog();
        // It restarts with the map that it has on disk.
    }

    /// Restarts a store that keeps nothing of moves on disk: its copies are gone, and so is the freeze of an undecided
    /// attempt. Not after it has confirmed the attempt, because the decision relies on that.
    fn restart(&mut self) {
        let store = self.random.below(3) as usize;
        let record = &self.meta.record;
        let switching = matches!(record.phase, Phase::Switching { .. });
        if switching && self.shards[store].has_confirmed(record.term) {
            return;
        }
        if switching && self.random.one_in(2) {
            self.counts.freezes_lost += self.shards[store].lose_freezes();
            return;
        }
        let legs = record.legs.iter().filter(|leg| usize::from(leg.owner().0) == store);
        let owned: Vec<_> = legs.flat_map(|leg| &leg.transfers).map(|transfer| &transfer.unit).collect();
        let owns = |unit: &Unit| owned.contains(&unit);
        self.counts.copies_lost += self.shards[store].lose_copies(owns);
    }

    /// Lets a router coordinate if there was no sign of a coordinator for the time of a lease.
    fn elect(&mut self) {
        if self.over_at.is_none() {
            let idle = self.routers.iter().all(|router| router.machine.is_none());
            let router = self.random.below(2) as usize;
            let free = self.counts.takeovers == 0 || self.now >= self.heard_at + LEASE_MS;
            if (free || idle && self.random.one_in(4)) && self.routers[router].stalled_until <= self.now {
                self.counts.takeovers += 1;
                self.heard_at = self.now;
                self.routers[router].reign = self.counts.takeovers;
                self.routers[router].incarnation += 1;
                self.routers[router].open.clear();
                self.routers[router].watchdog = new_watchdog();
                let me = format!("{router}.{}", self.routers[router].incarnation);
                let settings = Settings {
                    follow_every: Duration::from_millis(300),
                    reverse_window: Duration::from_millis(1 + self.random.below(6_000)),
                    ..Settings::default()
                };
                let meta = &self.meta;
                self.routers[router].machine =
                    Some(Machine::new(me, settings, meta.record.clone(), meta.version));
                self.after(0, Event::Tick(router));
            }
            self.after(500, Event::Elect);
        }
    }

    /// Runs a router's watchdog for the move, by a possibly outdated record.
    fn watch(&mut self, at: usize) {
        if self.over_at.is_some() {
            return;
        }
        self.after(WATCH_MS, Event::Watch(at));
        if self.routers[at].stalled_until > self.now {
            return;
        }
        if !self.random.one_in(4) {
            self.routers[at].known = (self.meta.record.clone(), self.meta.version);
        }
        let router = &mut self.routers[at];
        let me = router.machine.as_ref().map(|_| format!("{at}.{}", router.incarnation)).unwrap_or_default();
        let (record, version) = &router.known;
        let steps = router.watchdog.poll(Duration::from_millis(self.now), &me, record, *version);
        for step in steps {
            self.counts.rescued += u64::from(step.name == StepName::CancelAttempt);
            self.begin_step(at, step);
        }
    }

    fn tick(&mut self, router: usize) {
        self.poll(router);
        if self.routers[router].machine.is_some() {
            self.after(2 * TICK.as_millis() as u64, Event::Tick(router));
        }
    }

    fn poll(&mut self, at: usize) {
        let now = Duration::from_millis(self.now);
        let router = &mut self.routers[at];
        if router.stalled_until > self.now {
            return;
        }
        let Some(machine) = &mut router.machine else { return };
        let steps = machine.poll(now);
        match machine.status() {
            Status::Running => self.heard_at = self.now,
            Status::Fenced => {
                self.counts.fenced += 1;
                router.machine = None;
            }
            Status::Over => {
                router.machine = None;
                if self.over_at.is_none() && self.meta.record.phase.is_over() {
                    self.over_at = Some(self.now);
                }
            }
        }
        for mut step in steps {
            if let (Some(Mutation::AttemptsShareATerm), What::Unit(call)) = (self.mutation, &mut step.what) {
                call.term = Term(self.routers[at].reign);
            }
            self.begin_step(at, step);
        }
    }

    /// Sends the first call of a step.
    fn begin_step(&mut self, at: usize, step: Step) {
        let asker = (at, self.routers[at].incarnation);
        self.routers[at].open.insert(step.ticket, (step.clone(), None));
        self.after(DEADLINE_MS, Event::Deadline { of: asker, ticket: step.ticket });
        if self.mutation == Some(Mutation::UnfreezeFirst) && step.name == StepName::CancelAttempt {
            self.unfreeze_all();
        }
        let call = match (&step.what, step.name) {
            (
                What::Unit(_),
                StepName::Copy | StepName::Tail | StepName::ReverseTail | StepName::ImportLast,
            ) => Call::Through,
            (What::Unit(_), StepName::Verify) => Call::Export { after: None },
            (What::Unit(call), name) => {
                let at_follower =
                    matches!(name, StepName::Seal | StepName::Unseal | StepName::Release | StepName::Drop);
                let store = if at_follower { call.follower } else { call.owner };
                Call::Store { store: usize::from(store.0), name }
            }
            (what, _) => Call::Meta(what.clone()),
        };
        self.send(asker, step, call);
    }

    fn unfreeze_all(&mut self) {
        let record = self.meta.record.clone();
        for leg in &record.legs {
            for transfer in &leg.transfers {
                let call = UnitCall {
                    at: UnitAt { leg: 0, transfer: 0 },
                    unit: transfer.unit.clone(),
                    term: record.term,
                    owner: leg.owner(),
                    follower: leg.follower(),
                    final_revision: Revision::ZERO,
                    incarnations: (0, 0),
                    epoch: Epoch(0),
                };
                let _ = self.shards[usize::from(leg.owner().0)].call(StepName::Unfreeze, &call, self.now);
            }
        }
    }

    fn send(&mut self, from: Asker, step: Step, call: Call) {
        let sent = Box::new((step, call));
        let lost = self.is_trouble() && self.random.one_in(40);
        if !lost {
            let delay = self.delay();
            self.after(delay, Event::Arrive { from, sent: sent.clone(), wanted: true });
        }
        if self.is_trouble() && self.random.one_in(20) {
            let delay = 1 + self.random.below(LATEST_MS);
            self.after(delay, Event::Arrive { from, sent, wanted: false });
        }
    }

    fn arrive(&mut self, from: Asker, step: &Step, call: Call, wanted: bool) {
        let reply = match (call, &step.what) {
            (Call::Meta(what), _) => Reply::Answer(self.at_meta(what)),
            (Call::Store { store, name }, What::Unit(unit)) => {
                Reply::Answer(self.shards[store].call(name, unit, self.now))
            }
            (call, What::Unit(unit)) => {
                let (owner, follower) = (usize::from(unit.owner.0), usize::from(unit.follower.0));
                let at = if matches!(call, Call::Export { .. }) { owner } else { follower };
                match (self.shards[at].admits(unit.term), call) {
                    (false, _) => Reply::Answer(Answer::Stale { seen: self.shards[at].highest_term() }),
                    (true, Call::Through) => Reply::Through(self.shards[at].through(&unit.unit)),
                    (true, Call::Export { after }) => {
                        Reply::Exported(self.shards[at].export(&unit.unit, after))
                    }
                    (true, Call::Import(export)) => {
                        Reply::Answer(self.shards[at].import(&unit.unit, &export))
                    }
                    (true, Call::Verify(export)) => {
                        Reply::Answer(self.shards[at].verify(&unit.unit, &export))
                    }
                    (true, Call::Meta(_) | Call::Store { .. }) => return,
                }
            }
            _ => return,
        };
        if wanted && !(self.is_trouble() && self.random.one_in(40)) {
            let delay = self.delay();
            self.after(delay, Event::Reply { to: from, ticket: step.ticket, reply });
        }
    }

    /// Sends the next call of the step, or passes its answer on.
    fn reply(&mut self, to: Asker, ticket: Ticket, reply: Reply) {
        let router = &mut self.routers[to.0];
        if router.incarnation != to.1 {
            return;
        }
        let Some((step, through)) = router.open.get_mut(&ticket) else { return };
        let What::Unit(unit) = &step.what else {
            let Reply::Answer(answer) = reply else { return };
            return self.answer(to, ticket, answer);
        };
        let call = match (reply, step.name) {
            // The owner's freeze stands; check the follower's seal.
            (Reply::Answer(Answer::Done), StepName::Confirm) if through.is_none() => {
                *through = Some(0);
                Call::Store { store: usize::from(unit.follower.0), name: StepName::Confirm }
            }
            (Reply::Answer(answer), name) => {
                let followed =
                    matches!(name, StepName::Tail | StepName::ReverseTail) && answer == Answer::Done;
                let answer =
                    if followed { Answer::Followed { lag: Duration::from_millis(10) } } else { answer };
                return self.answer(to, ticket, answer);
            }
            (Reply::Through(Some(_)), StepName::Copy) => return self.answer(to, ticket, Answer::Done),
            (Reply::Through(None), StepName::Copy) => Call::Export { after: None },
            (Reply::Through(None), _) => {
                return self.answer(to, ticket, Answer::Lost { reason: "no copy".to_owned() });
            }
            (Reply::Through(Some(at)), StepName::ImportLast) if at >= unit.final_revision.get() => {
                return self.answer(to, ticket, Answer::Done);
            }
            (Reply::Through(Some(at)), _) => {
                *through = Some(at);
                Call::Export { after: Some(at) }
            }
            (Reply::Exported(None), _) => {
                return self.answer(to, ticket, Answer::Failed { reason: "not the owner".to_owned() });
            }
            (Reply::Exported(Some(export)), StepName::Verify) => Call::Verify(export),
            (Reply::Exported(Some(export)), _) => Call::Import(export),
        };
        let step = step.clone();
        self.send(to, step, call);
    }

    fn answer(&mut self, to: Asker, ticket: Ticket, answer: Answer) {
        let router = &mut self.routers[to.0];
        if router.open.remove(&ticket).is_none() {
            return;
        }
        let now = Duration::from_millis(self.now);
        if ticket.0 > WATCHDOGS {
            router.watchdog.answer(ticket, &answer, now);
            return;
        }
        if let Some(machine) = &mut router.machine {
            machine.answer(ticket, answer, now);
        }
        self.poll(to.0);
    }

    fn at_meta(&mut self, what: What) -> Answer {
        let meta = &mut self.meta;
        let unguarded = self.mutation == Some(Mutation::DecideUnguarded);
        match what {
            What::Read => {
                return Answer::Record { record: Box::new(meta.record.clone()), version: meta.version };
            }
            What::Swap { version, .. } if version != meta.version => return Answer::Conflict,
            What::Decide { version, .. } if version != meta.version && !unguarded => return Answer::Conflict,
            What::Swap { record, .. } => {
                self.counts.cancelled +=
                    u64::from(record.attempts > 0 && record.reason != meta.record.reason);
                self.counts.reversed += u64::from(record.goal != meta.record.goal);
                meta.record = *record;
                // A store may restart during the attempt.
                let begins = matches!(meta.record.phase, Phase::Switching { .. });
                if begins && self.now < TROUBLE_MS && self.random.one_in(4) {
                    let delay = 1 + self.random.below(60);
                    self.after(delay, Event::Restart);
                }
            }
            What::Decide { record, leg, .. } => {
                match meta.state.with_transfers(&record.legs[leg].next_transfers()) {
                    Err(error) => return Answer::Refused { reason: error.to_string() },
                    Ok(state) => {
                        meta.record = record.decided(leg, state.generation);
                        meta.state = state;
                        self.counts.switches += 1;
                        for router in 0..2 {
                            let slow = self.random.one_in(4);
                            let delay = 1 + self.random.below(if slow { 5_000 } else { 30 });
                            self.after(delay, Event::MapOf(router));
                        }
                    }
                }
            }
            What::Unit(_) => return Answer::Conflict,
        }
        self.meta.version += 1;
        if self.meta.record.phase.is_over() && self.over_at.is_none() {
            self.over_at = Some(self.now);
            let done = self.meta.record.phase == Phase::Done;
            self.counts.done += u64::from(done);
            self.counts.aborted += u64::from(!done);
        }
        Answer::Swapped { record: Box::new(self.meta.record.clone()), version: self.meta.version }
    }

    fn begin(&mut self, client: usize) {
        if self.over_at.is_some_and(|over| self.now > over.max(TROUBLE_MS) + LATEST_MS) {
            return;
        }
        let name = KEYS[self.random.below(KEYS.len() as u64) as usize];
        let key = format!("/registry/pods/{name}");
        let write = self.random.below(10) < 6;
        self.values += 1;
        let guarded = self.random.one_in(2);
        let expected = if guarded { Some(self.seen.get(&key).copied().unwrap_or(0)) } else { None };
        let op = Op {
            floor: self.watcher.acknowledged(&key),
            write: write.then_some((self.values, expected)),
            router: self.random.below(2) as usize,
            until: self.now + 5_000,
            key,
        };
        self.send_op(client, op);
    }

    fn send_op(&mut self, client: usize, op: Op) {
        let store = usize::from(self.routers[op.router].state.map.store_of(op.key.as_bytes()).0);
        let delay = self.delay();
        self.after(delay, Event::AtStore { client, op, store });
    }

    fn at_store(&mut self, client: usize, op: Op, store: usize) -> Result<(), Broken> {
        let shard = &mut self.shards[store];
        let outcome = if shard.serves(&op.key, op.write.is_some()) {
            let current = shard.current(&op.key).map_or(0, |(at, _)| at);
            Some(match op.write {
                Some((value, expected)) if expected.is_none_or(|expected| expected == current) => {
                    let at = shard.write(&op.key, value, self.now);
                    self.watcher.accepted(&op.key, store, at, value, &self.meta.state)?;
                    self.counts.writes += 1;
                    Some(at)
                }
                Some(_) => None,
                None => Some(current),
            })
        } else {
            None
        };
        let delay = self.delay();
        self.after(delay, Event::Back { client, op, outcome });
        Ok(())
    }

    fn back(&mut self, client: usize, op: Op, outcome: Option<Option<i64>>) -> Result<(), Broken> {
        match outcome {
            None => {
                self.counts.refusals += 1;
                if self.now < op.until {
                    let wait = 5 + self.random.below(40);
                    self.after(wait, Event::Again { client, op });
                    return Ok(());
                }
            }
            Some(at) => {
                if let Some(at) = at {
                    self.seen.insert(op.key.clone(), at);
                }
                match op.write {
                    Some(_) => at.into_iter().for_each(|at| self.watcher.acknowledge(&op.key, at)),
                    None => {
                        self.counts.reads += 1;
                        self.watcher.a_read_sees_what_was_acknowledged(&op.key, op.floor, at.unwrap_or(0))?;
                    }
                }
            }
        }
        let think = 40 + self.random.below(300);
        self.after(think, Event::Client(client));
        Ok(())
    }
}
