//! A member: its disk, its process, and how that starts and ends.

use std::collections::VecDeque;
use std::time::Duration;

use kindred_engine::durability::Logged;
use kindred_engine::engine::{Engine, EngineConfig, MonoMillis, RevisionMode};
use kindred_engine::recover::Recovered;
use kindred_partition_config::ids::{MemberId, Revision, Slot, Term};
use kindred_partition_config::kind::KindScheme;
use kindred_shard::durability::ceiling;
use kindred_shard::standby::follower::Follower;
use kindred_shard::standby::member::{At, Doing, MemberMachine, Standby};
use kindred_shard::standby::role::{Does, Role};
use kindred_shard::standby::shipping::Shipping;
use rand::Rng;
use rand::rngs::SmallRng;

use super::Sabotage;
use super::calls::{Caller, Queued};
use super::client::Request;
use super::net::ConnId;
use super::serving::{Outgoing, Waiting};
use super::world::{Event, Sim, at_url, url};
use crate::world::{MS, Micros};

/// What a member's directory has.
#[derive(Debug, Clone)]
pub struct Disk {
    pub role: Option<Role>,
    pub id: MemberId,
    /// The store's, which a standby takes from its primary.
    pub uuid: u64,
    pub incarnation: u64,
    pub records: Vec<Logged>,
    pub ceiling: Revision,
}

/// A process that was started as a standby.
pub struct Following {
    pub primary: String,
    /// Its former life, if that was a standby that was never promoted.
    pub former: Option<MemberId>,
    /// Another member that is said to be the primary, to be asked next.
    pub told: Option<String>,
    pub follower: Follower,
    pub whole: bool,
    pub connected: bool,
    pub conn: Option<ConnId>,
    /// The copy, while it comes.
    pub copy: Option<Recovered>,
    /// Whether a copy was whole.
    pub copied: bool,
    pub run: u64,
    /// The term of the primary on the present connection.
    pub term: Term,
    /// A whole copy that is not open yet.
    pub opens: Option<Recovered>,
    pub incoming: VecDeque<(Vec<Logged>, Revision)>,
    /// Nothing is taken over any more.
    pub stopped: bool,
    /// Who the store is, from the welcome.
    pub uuid: u64,
    pub incarnation: u64,
    pub welcome_term: Term,
    /// When the loop takes over what waits.
    pub replicates: bool,
}

/// The store of a process that is open.
pub struct Open {
    pub machine: MemberMachine,
    pub run: u64,
    pub engine: Engine,
    pub shipping: Shipping,
    /// At a standby: the ceiling of its primary.
    pub replica: Option<Revision>,
    pub calls: VecDeque<Queued>,
    pub doing: Option<(Caller, Doing)>,
    pub streams: Vec<Outgoing>,
    pub requests: VecDeque<Request>,
    pub answers: VecDeque<Waiting>,
    pub keeps_ceiling: bool,
    /// Whether a turn is due at once.
    pub turns: bool,
    /// Whether one is due later.
    pub timer: bool,
    /// When it looked at its clock last.
    pub looked: Duration,
}

pub struct Member {
    pub disk: Disk,
    /// Its `--standby-of`.
    pub flag: Option<String>,
    pub id: MemberId,
    pub following: Option<Following>,
    pub open: Option<Box<Open>>,
}

/// # Panics
/// Never.
#[must_use]
pub fn engine_config() -> EngineConfig {
    let slot = Slot::new(3).expect("it is below 1024");
    EngineConfig {
        revisions: RevisionMode::Hlc(slot),
        kinds: KindScheme::default(),
        max_clock_offset_micros: 10_000_000,
        min_lease_ttl_s: 2,
    }
}

fn new_id(random: &mut SmallRng) -> MemberId {
    MemberId(format!("{:08x}", random.random::<u32>()))
}

impl Disk {
    fn empty(random: &mut SmallRng) -> Self {
        Self {
            role: None,
            id: new_id(random),
            uuid: random.random(),
            incarnation: 1,
            records: Vec::new(),
            ceiling: Revision::ZERO,
        }
    }
}

impl Member {
    #[must_use]
    pub fn new(at: usize, random: &mut SmallRng) -> Self {
        let disk = Disk::empty(random);
        let flag = (at > 0).then(|| url(0));
        Self { id: disk.id.clone(), disk, flag, following: None, open: None }
    }

    /// What a call is decided with.
    pub fn decide<T>(
        &mut self,
        wall_micros: u64,
        now: Duration,
        decide: impl FnOnce(&mut MemberMachine, &mut At<'_>) -> T,
    ) -> Option<T> {
        let open = self.open.as_mut()?;
        let standby = self.following.as_mut().map(|following| Standby {
            follower: &mut following.follower,
            whole: following.whole,
            now,
        });
        Some(decide(&mut open.machine, &mut At { wall_micros, standby }))
    }
}

impl Sim {
    /// The store that routers send requests to: the first that was there.
    pub fn is_the_store(&self, m: usize) -> bool {
        self.members[m].disk.uuid == self.truth.uuid
    }

    pub fn member_starts(&mut self, m: usize) {
        if m == 0 && self.truth.uuid == 0 {
            self.truth.uuid = self.members[0].disk.uuid;
        }
        let role = self.members[m].disk.role.clone();
        let flag = self.members[m].flag.clone();
        let primary = match &role {
            Some(Role { does: Does::Primary, .. }) => None,
            Some(role) => role.follows(flag.as_deref()),
            None => flag,
        };
        let role = role.unwrap_or_else(Role::alone);
        match primary {
            Some(primary) => self.standby_starts(m, primary),
            None => self.primary_starts(m, role),
        }
    }

    fn primary_starts(&mut self, m: usize, role: Role) {
        let (wall, mono) = (self.wall(m), self.mono_millis(m));
        let run = self.random.random::<u64>().max(1);
        let member = &mut self.members[m];
        let disk = &mut member.disk;
        member.id = disk.id.clone();
        let is_new = disk.records.is_empty();
        let mut engine = if is_new {
            Engine::new(engine_config(), wall)
        } else {
            let mut recovered = Recovered { copied: true, start: disk.ceiling, ..Recovered::default() };
            disk.records.iter().cloned().for_each(|logged| recovered.push(logged));
            match Engine::recover(engine_config(), wall, mono, recovered) {
                Ok(engine) => engine,
                Err(error) => return self.broke("panic", format!("m{m}: {error}")),
            }
        };
        disk.ceiling = ceiling::first(wall, engine.last_revision(), disk.ceiling);
        engine.log_changes();
        engine.publish();
        engine.ship(true);
        let shipping = Shipping::counting(role.counted.iter().cloned());
        let machine = MemberMachine::start(member.id.clone(), role, disk.incarnation);
        member.following = None;
        member.open = Some(Box::new(Open::new(machine, run, engine, shipping, None)));
        self.turn_soon(m);
    }

    fn standby_starts(&mut self, m: usize, primary: String) {
        let term = Term(0);
        let id = new_id(&mut self.random);
        let member = &mut self.members[m];
        let was_standby = member.disk.role.as_ref().is_some_and(|role| role.does == Does::Standby);
        let former = was_standby.then(|| member.disk.id.clone());
        member.id = id;
        member.open = None;
        member.following = Some(Following {
            primary,
            former,
            told: None,
            follower: Follower::new(term, Duration::ZERO),
            whole: false,
            connected: false,
            conn: None,
            copy: None,
            copied: false,
            opens: None,
            run: 0,
            term,
            incoming: VecDeque::new(),
            stopped: false,
            uuid: 0,
            incarnation: 0,
            welcome_term: Term(0),
            replicates: false,
        });
        self.after(MS, Some(m), Event::Reconnect);
    }

    /// The copy is there: what was on the disk before goes.
    pub fn standby_opens(&mut self, m: usize, recovered: Recovered) {
        let (wall, mono) = (self.wall(m), self.mono_millis(m));
        let run = self.random.random::<u64>().max(1);
        let member = &mut self.members[m];
        let Some(following) = &member.following else { return };
        let before = member.disk.role.as_ref().map_or(Term(0), |role| role.term);
        let role = Role {
            does: Does::Standby,
            term: following.welcome_term.max(before),
            primary: Some(following.primary.clone()),
            started_as: member.flag.clone(),
            ..Role::alone()
        };
        let replica = recovered.start;
        let mut records: Vec<Logged> = recovered.versions.iter().cloned().map(Logged::Version).collect();
        records.extend(recovered.gaps.iter().cloned().map(|gap| Logged::Gap(Box::new(gap))));
        records.extend(recovered.compacted.map(Logged::Compaction));
        let id = member.id.clone();
        let (uuid, incarnation) = (following.uuid, following.incarnation);
        let role_kept = Some(role.clone());
        member.disk =
            Disk { role: role_kept, id: id.clone(), uuid, incarnation, records, ceiling: Revision::ZERO };
        let mut engine = match Engine::recover(engine_config(), wall, mono, recovered) {
            Ok(engine) => engine,
            Err(error) => return self.broke("panic", format!("m{m}: {error}")),
        };
        engine.log_changes();
        let machine = MemberMachine::start(id, role, incarnation);
        member.open = Some(Box::new(Open::new(machine, run, engine, Shipping::alone(), Some(replica))));
        self.counts.rebuilt += 1;
        self.note(|| format!("m{m} has a copy"));
        self.replicate_soon(m);
        let disk = self.disk();
        self.after(disk + 100 * MS, Some(m), Event::Whole);
    }

    pub fn mono_millis(&self, m: usize) -> MonoMillis {
        MonoMillis(u64::try_from(self.mono(m).as_millis()).unwrap_or(0))
    }

    /// The process of a member ends by itself, or is killed. It is started again after a time.
    pub fn member_ends(&mut self, m: usize, again: Micros) {
        let process = &mut self.processes[m];
        if !process.up {
            return;
        }
        (process.up, process.paused) = (false, false);
        process.life += 1;
        process.held.clear();
        self.members[m].open = None;
        self.members[m].following = None;
        self.break_all_of(m);
        self.after(again, None, Event::Start(m));
    }

    /// A standby can only begin anew.
    pub fn standby_fails(&mut self, m: usize, why: &str) {
        self.note(|| format!("m{m} begins anew: {why}"));
        let again = self.between(50 * MS, 1_000 * MS);
        let again = if self.sabotage == Some(Sabotage::NoRebuild) { 1_000_000_000_000 } else { again };
        self.member_ends(m, again);
    }

    pub fn lose_disk(&mut self, m: usize) {
        self.members[m].disk = Disk::empty(&mut self.random);
    }

    pub fn member_event(&mut self, m: usize, event: Event) {
        match event {
            Event::Turn => self.turn(m),
            Event::Beat => self.beat(m),
            Event::Acted => self.acted(m),
            Event::Opened => self.opened(m),
            Event::Whole => self.is_whole(m),
            Event::CeilingKept(ceiling) => self.ceiling_kept(m, ceiling),
            Event::Reconnect => self.reconnect(m),
            Event::Replicate => self.replicate(m),
            Event::Call(queued) => self.member_called(m, queued),
            Event::Request(request) => self.member_asked(m, request),
            _ => {}
        }
    }

    /// The member that a standby follows.
    pub fn primary_of(&self, m: usize) -> Option<usize> {
        at_url(&self.members[m].following.as_ref()?.primary)
    }
}

impl Open {
    fn new(
        machine: MemberMachine,
        run: u64,
        engine: Engine,
        shipping: Shipping,
        replica: Option<Revision>,
    ) -> Self {
        Self {
            machine,
            run,
            engine,
            shipping,
            replica,
            calls: VecDeque::new(),
            doing: None,
            streams: Vec::new(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            keeps_ceiling: false,
            turns: false,
            timer: false,
            looked: Duration::ZERO,
        }
    }
}
