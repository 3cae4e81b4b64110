//! Time, clocks, processes, and what is under way.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use kindred_engine::engine::WallMicros;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::state::ClusterState;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::calls::Queued;
use super::client::{Client, Reply, Request};
use super::faults::Plan;
use super::invariants::Truth;
use super::member::Member;
use super::meta::{Meta, Write};
use super::net::{Conn, ConnId, Side};
use super::router::{Back, Router};
use super::{Counts, Sabotage, Violation};
use crate::world::{MS, Micros, SECOND};

/// The processes: members, then routers. Meta store and clients do not end.
pub const MEMBERS: usize = 3;
pub const ROUTERS: usize = 2;
pub const PROCESSES: usize = MEMBERS + ROUTERS;
/// The process of the meta store, for cuts.
pub const META: usize = PROCESSES;
pub const CLIENTS: usize = 3;
/// 2026-01-01 in microseconds.
const EPOCH: u64 = 1_767_225_600_000_000;
/// The most events of a run.
const EVENTS_MAX: u64 = 400_000;

/// Something that happens to a process, or in the world.
#[derive(Debug)]
pub enum Event {
    /// A process is started by its supervisor.
    Start(usize),
    /// The loop of a member takes a turn.
    Turn,
    /// The same, because something is to be sent.
    Beat,
    /// The act of a call is done.
    Acted,
    /// A standby's directory and engine are there.
    Opened,
    /// The copy is on disk.
    Whole,
    CeilingKept(Revision),
    Reconnect,
    /// The loop of a standby takes over what waits.
    Replicate,
    /// Something may arrive on a connection, at this end.
    Pump(ConnId, Side),
    /// A connection has ended, at this end.
    Ended(ConnId, Side),
    /// A call about the record arrives.
    Call(Queued),
    Request(Request),
    /// A router looks at the members.
    Round(u64),
    Back(u64, Back),
    GivenUp(u64),
    State(u64, Rc<ClusterState>),
    MetaWrite(Write),
    /// A client begins something.
    Begin(usize),
    Reply(usize, u64, Reply),
    ClientGivesUp(usize, u64),
    Fault,
    Resume(usize),
    HealCut(usize, usize),
    MetaBack,
    WishOver(usize, u64),
    /// An operator looks.
    Operate,
    Calm,
    Judge,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    pub life: u64,
    pub up: bool,
    pub paused: bool,
    pub held: Vec<Event>,
    /// Its clock's error, in millionths.
    ppm: i64,
    wall_offset: i64,
    pub began: Micros,
    /// When it was paused last.
    pub paused_at: Option<Micros>,
}

/// A process, and which of its lives.
type Life = (usize, u64);

pub struct Sim {
    pub seed: u64,
    pub random: SmallRng,
    pub sabotage: Option<Sabotage>,
    pub now: Micros,
    order: u64,
    events: BTreeMap<(Micros, u64), (Option<Life>, Event)>,
    pub processes: Vec<Process>,
    pub members: Vec<Member>,
    pub routers: Vec<Router>,
    pub meta: Meta,
    pub clients: Vec<Client>,
    pub conns: BTreeMap<ConnId, Conn>,
    pub next_conn: ConnId,
    pub cuts: BTreeMap<(usize, usize), ()>,
    pub plan: Plan,
    pub truth: Truth,
    pub counts: Counts,
    pub violation: Option<Violation>,
    over: bool,
    wants_log: bool,
    pub log: Vec<String>,
}

impl Sim {
    #[must_use]
    pub fn new(seed: u64, sabotage: Option<Sabotage>, wants_log: bool) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let plan = Plan::new(&mut random);
        let processes = (0..PROCESSES).map(|_| Process {
            life: 0,
            up: false,
            paused: false,
            held: Vec::new(),
            ppm: random.random_range(-plan.ppm_max..=plan.ppm_max),
            wall_offset: random.random_range(-plan.wall_max..=plan.wall_max),
            began: 0,
            paused_at: None,
        });
        let processes = processes.collect();
        let meta = Meta::new(&plan);
        let routers = (0..ROUTERS).map(|_| Router::new(meta.state.clone())).collect();
        let members = (0..MEMBERS).map(|at| Member::new(at, &mut random)).collect();
        let clients = (0..CLIENTS).map(|_| Client::default()).collect();
        let mut sim = Self {
            seed,
            random,
            sabotage,
            now: 0,
            order: 0,
            events: BTreeMap::new(),
            processes,
            members,
            routers,
            meta,
            clients,
            conns: BTreeMap::new(),
            next_conn: 0,
            cuts: BTreeMap::new(),
            plan,
            truth: Truth::default(),
            counts: Counts::default(),
            violation: None,
            over: false,
            wants_log,
            log: Vec::new(),
        };
        for process in 0..PROCESSES {
            let after = sim.between(0, 300 * MS);
            sim.after(after, None, Event::Start(process));
        }
        for client in 0..CLIENTS {
            sim.after(SECOND, None, Event::Begin(client));
        }
        sim.after(2 * SECOND, None, Event::Fault);
        let calm = sim.plan.calm_at;
        sim.after(calm, None, Event::Calm);
        sim.after(3 * SECOND, None, Event::Operate);
        sim
    }

    pub fn run(&mut self) {
        while self.violation.is_none()
            && !self.over
            && let Some(((at, _), (to, event))) = self.events.pop_first()
        {
            self.now = at;
            self.counts.events += 1;
            if self.counts.events + 20 > EVENTS_MAX {
                self.note(|| format!("{to:?} {event:?}"));
            }
            if self.counts.events > EVENTS_MAX {
                return self.broke("liveness", "it does not come to an end".to_owned());
            }
            let Some((to, life)) = to else {
                self.nature(event);
                self.check();
                continue;
            };
            let Some(process) = self.processes.get_mut(to) else { continue };
            if process.life != life {
                continue;
            }
            if process.paused {
                process.held.push(event);
                continue;
            }
            self.handle(to, event);
            self.check();
        }
    }

    /// Something happens in a process.
    fn handle(&mut self, to: usize, event: Event) {
        match event {
            Event::Pump(conn, side) => self.pump(conn, side),
            Event::Ended(conn, side) => self.conn_ended(conn, side),
            event if to < MEMBERS => self.member_event(to, event),
            event => self.router_event(to - MEMBERS, event),
        }
    }

    /// Something happens outside of all processes that end.
    fn nature(&mut self, event: Event) {
        match event {
            Event::Start(process) => self.start(process),
            Event::Fault => self.fault(),
            Event::Resume(process) => self.resume(process),
            Event::HealCut(from, to) => {
                self.cuts.remove(&(from, to));
            }
            Event::MetaBack => self.meta.away = false,
            Event::MetaWrite(write) => self.meta_write(write),
            Event::Begin(client) => self.client_begins(client),
            Event::Reply(client, op, reply) => self.client_hears(client, op, reply),
            Event::ClientGivesUp(client, op) => self.client_gives_up(client, op),
            Event::WishOver(router, number) => self.wish_over(router, number),
            Event::Operate => self.operate(),
            Event::Calm => self.calm(),
            Event::Judge => self.judge(),
            _ => {}
        }
    }

    fn start(&mut self, process: usize) {
        let now = self.now;
        let Some(it) = self.processes.get_mut(process) else { return };
        if it.up {
            return;
        }
        (it.up, it.began, it.paused) = (true, now, false);
        it.life += 1;
        self.note(|| format!("{} starts", name(process)));
        if process < MEMBERS {
            self.member_starts(process);
        } else {
            self.router_starts(process - MEMBERS);
        }
    }

    fn resume(&mut self, process: usize) {
        let Some(it) = self.processes.get_mut(process) else { return };
        if !std::mem::replace(&mut it.paused, false) {
            return;
        }
        let held = std::mem::take(&mut it.held);
        let life = it.life;
        self.note(|| format!("{} goes on", name(process)));
        for event in held {
            // In their order, before anything that arrives later.
            if self.processes.get(process).is_some_and(|it| it.life == life) {
                self.handle(process, event);
                self.check();
            }
        }
    }

    /// The run ends well.
    pub fn ends(&mut self) {
        self.over = true;
    }

    // ---- time

    pub fn after(&mut self, delay: Micros, to: Option<usize>, event: Event) {
        self.order += 1;
        let to = to.and_then(|to| self.processes.get(to).map(|process| (to, process.life)));
        self.events.insert((self.now + delay, self.order), (to, event));
    }

    /// After a time by the process's own clock.
    pub fn after_local(&mut self, delay: Micros, to: usize, event: Event) {
        let ppm = self.processes.get(to).map_or(0, |process| process.ppm);
        let delay = i64::try_from(delay).unwrap_or(i64::MAX / 2_000_000);
        let global = delay * 1_000_000 / (1_000_000 + ppm);
        self.after(u64::try_from(global).unwrap_or(0) + 1, Some(to), event);
    }

    /// The monotonic clock of a process, since it began.
    #[must_use]
    pub fn mono(&self, process: usize) -> Duration {
        let Some(it) = self.processes.get(process) else { return Duration::ZERO };
        let elapsed = i64::try_from(self.now - it.began).unwrap_or(0);
        let local = elapsed + elapsed * it.ppm / 1_000_000;
        Duration::from_micros(u64::try_from(local).unwrap_or(0))
    }

    #[must_use]
    pub fn wall(&self, process: usize) -> WallMicros {
        let offset = self.processes.get(process).map_or(0, |process| process.wall_offset);
        WallMicros((EPOCH + self.now).saturating_add_signed(offset))
    }

    #[must_use]
    pub fn right_time(&self) -> u64 {
        EPOCH + self.now
    }

    // ---- chance

    pub fn between(&mut self, low: Micros, high: Micros) -> Micros {
        self.random.random_range(low..=high.max(low))
    }

    pub fn percent(&mut self, of: u32) -> bool {
        self.random.random_range(0..100) < of
    }

    pub fn below(&mut self, most: usize) -> usize {
        self.random.random_range(0..most.max(1))
    }

    /// How long a message takes.
    pub fn delay(&mut self) -> Micros {
        if self.plan.late > 0 && self.percent(self.plan.late) {
            self.between(MS, self.plan.late_max)
        } else {
            self.between(100, 900)
        }
    }

    /// How long a disk takes.
    pub fn disk(&mut self) -> Micros {
        if self.plan.slow_disk > 0 && self.percent(self.plan.slow_disk) {
            self.between(10 * MS, self.plan.disk_max)
        } else {
            self.between(500, 5 * MS)
        }
    }

    // ---- what is told

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if self.wants_log {
            self.log.push(format!("{:>10.3} {}", self.now as f64 / 1e6, what()));
        }
    }

    pub fn broke(&mut self, invariant: &'static str, what: String) {
        if self.violation.is_none() {
            for m in 0..MEMBERS {
                let (said, now) = (self.shows(m), self.mono(m));
                self.note(|| format!("m{m} at {now:?}: {said:?}"));
            }
        }
        self.note(|| format!("broke {invariant}: {what}"));
        self.violation.get_or_insert(Violation { invariant, what });
    }
}

/// The name of a process.
#[must_use]
pub fn name(process: usize) -> String {
    match process {
        META => "meta".to_owned(),
        at if at < MEMBERS => format!("m{at}"),
        at => format!("r{}", at - MEMBERS),
    }
}

/// The address of a member.
#[must_use]
pub fn url(member: usize) -> String {
    format!("http://m{member}:1")
}

/// The member at an address.
#[must_use]
pub fn at_url(address: &str) -> Option<usize> {
    (0..MEMBERS).find(|member| url(*member) == address)
}
