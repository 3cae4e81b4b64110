//! What goes wrong, and what operators wish. At some time all faults end, and everybody comes back.

use kindred_partition_config::ids::MemberId;
use kindred_partition_config::model::{OnLoss, StandbyConfig, StandbyMode};
use kindred_partition_config::state::Members;
use kindred_router_core::standbys::{Role, Wish, addresses};
use kindred_shard::standby::member::MemberMachine;
use kindred_shard::standby::role::Does;
use rand::Rng;
use rand::rngs::SmallRng;

use super::meta::Meta;
use super::net::ConnId;
use super::world::{Event, MEMBERS, META, PROCESSES, ROUTERS, Sim, at_url, name, url};
use crate::world::{MS, Micros, SECOND};

/// What a run is like.
#[derive(Debug, Clone)]
pub struct Plan {
    pub standbys: usize,
    pub sync: bool,
    pub waits: bool,
    /// Errors of clocks, in millionths.
    pub ppm_max: i64,
    pub wall_max: i64,
    /// How many messages in a hundred are late, and how late.
    pub late: u32,
    pub late_max: Micros,
    pub slow_disk: u32,
    pub disk_max: Micros,
    pub failing_disk: u32,
    /// How many changes of the document in a hundred a router sees late.
    pub stale: u32,
    /// How many answers of the meta store in a hundred are lost.
    pub unknown: u32,
    pub client_pause: Micros,
    pub fault_every: Micros,
    /// How often each kind of fault is chosen.
    weights: [u32; 13],
    pub calm_at: Micros,
    /// A member that is killed no more: it alone has everything.
    pub spared: Option<usize>,
}

impl Plan {
    #[must_use]
    pub fn new(random: &mut SmallRng) -> Self {
        let mut pick = |of: &[u64]| of[random.random_range(0..of.len())];
        let small = |pick: &mut dyn FnMut(&[u64]) -> u64, of: &[u64]| u32::try_from(pick(of)).unwrap_or(0);
        let mut weights = [0; 13];
        for weight in &mut weights {
            *weight = small(&mut pick, &[0, 1, 1, 3, 10]);
        }
        weights[0] = weights[0].max(1);
        weights[12] = small(&mut pick, &[0, 0, 0, 1]);
        Self {
            standbys: if pick(&[0, 1, 1]) == 0 { 1 } else { 2 },
            sync: pick(&[0, 1, 1, 1, 1]) == 1,
            waits: pick(&[0, 1]) == 1,
            ppm_max: i64::try_from(pick(&[1, 1_000, 20_000])).unwrap_or(1),
            wall_max: i64::try_from(pick(&[1_000, 1_000_000, 4_000_000])).unwrap_or(1),
            late: small(&mut pick, &[0, 1, 5, 30]),
            late_max: pick(&[20 * MS, 300 * MS, 3 * SECOND]),
            slow_disk: small(&mut pick, &[0, 0, 5, 30]),
            disk_max: pick(&[50 * MS, 500 * MS, 3 * SECOND]),
            failing_disk: small(&mut pick, &[0, 0, 0, 10]),
            stale: small(&mut pick, &[0, 20, 60]),
            unknown: small(&mut pick, &[0, 0, 5, 30]),
            client_pause: pick(&[30 * MS, 150 * MS, 600 * MS]),
            fault_every: pick(&[300 * MS, SECOND, 3 * SECOND]),
            weights,
            calm_at: pick(&[10, 25, 45]) * SECOND,
            spared: None,
        }
    }
}

impl Sim {
    pub fn fault(&mut self) {
        if self.truth.calm_at.is_some() {
            return;
        }
        let every = self.plan.fault_every;
        let next = self.between(10 * MS, 2 * every);
        self.after(next, None, Event::Fault);
        let all: u32 = self.plan.weights.iter().sum();
        let mut at = self.random.random_range(0..all);
        let weights = self.plan.weights;
        let which = weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        match which.unwrap_or(0) {
            0 => self.kill_member(),
            1 => self.kill_router(),
            2 | 3 => self.pause(),
            4 | 5 => self.cut(),
            6 => self.break_some(),
            7 => self.meta_leaves(),
            8 | 9 => self.wish_handover(),
            10 => self.wish_force(),
            11 => self.configure(),
            _ => self.lose_record(),
        }
    }

    /// Whether everything that was shown is at others too, if this member's disk or a standby's process is lost.
    fn is_spare(&self, m: usize) -> bool {
        let Some(members) = self.meta.members() else { return false };
        let serves = |at: usize| {
            let disk = &self.members[at].disk;
            disk.id == members.primary && disk.role.as_ref().is_some_and(|role| role.does == Does::Primary)
        };
        (0..MEMBERS).any(|at| at != m && serves(at))
    }

    /// A standby that has everything, besides the primary.
    fn heir(&self) -> Option<usize> {
        let members = self.meta.members()?;
        (0..MEMBERS).find(|m| {
            let whole = self.members[*m].following.as_ref().is_some_and(|following| following.whole);
            whole && members.in_sync.contains(&self.members[*m].id)
        })
    }

    fn unspare(&mut self) {
        if let Some(m) = self.plan.spared
            && let Some(members) = self.meta.members()
            && let role = self.members[m].disk.role.as_ref()
            && self.members[m].disk.id == members.primary
            && role.is_some_and(|role| role.does == Does::Primary)
        {
            self.plan.spared = None;
        }
    }

    fn kill_member(&mut self) {
        self.unspare();
        let m = self.below(MEMBERS);
        if self.plan.spared == Some(m) || !self.processes[m].up {
            return;
        }
        let is_standby = self.members[m].following.is_some()
            && self.members[m].disk.role.as_ref().is_none_or(|role| role.does != Does::Primary);
        let named = self.meta.members().is_some_and(|members| members.primary == self.members[m].id);
        if is_standby && named {
            // The only process that has everything, and its disk does not say so yet.
            return;
        }
        let loses = self.percent(30);
        if (is_standby || loses) && !self.is_spare(m) {
            let heir = self.heir().filter(|heir| *heir != m && loses && self.plan.spared.is_none());
            let Some(heir) = heir else { return };
            self.plan.spared = Some(heir);
        }
        let again = if self.percent(70) {
            self.between(20 * MS, 2 * SECOND)
        } else {
            self.between(SECOND, 15 * SECOND)
        };
        self.counts.kills += 1;
        self.note(|| format!("m{m} is killed{}", if loses { ", and its disk is lost" } else { "" }));
        if loses {
            self.lose_disk(m);
            let other = self.meta.store().endpoints.first().cloned();
            if self.percent(50) && other.as_ref().is_some_and(|other| *other != url(m)) {
                self.members[m].flag = other;
            }
        }
        self.member_ends(m, again);
    }

    fn kill_router(&mut self) {
        let process = MEMBERS + self.below(ROUTERS);
        if !self.processes[process].up {
            return;
        }
        self.counts.kills += 1;
        self.note(|| format!("{} is killed", name(process)));
        self.end_router(process);
    }

    fn end_router(&mut self, process: usize) {
        let it = &mut self.processes[process];
        if !it.up {
            return;
        }
        (it.up, it.paused) = (false, false);
        it.life += 1;
        it.held.clear();
        let again = self.between(20 * MS, 5 * SECOND);
        self.after(again, None, Event::Start(process));
    }

    fn pause(&mut self) {
        let process = self.below(PROCESSES);
        let now = self.now;
        let it = &mut self.processes[process];
        if !it.up || it.paused {
            return;
        }
        (it.paused, it.paused_at) = (true, Some(now));
        self.counts.pauses += 1;
        let long = if self.percent(60) { 2_500 * MS } else { 9 * SECOND };
        let again = self.between(20 * MS, long);
        self.note(|| format!("{} is paused", name(process)));
        self.after(again, None, Event::Resume(process));
    }

    fn cut(&mut self) {
        let (from, to) = (self.below(PROCESSES + 1), self.below(PROCESSES + 1));
        if from == to {
            return;
        }
        self.counts.cuts += 1;
        let both = self.percent(60);
        let lasts = self.between(50 * MS, 6 * SECOND);
        self.note(|| {
            format!("cut from {} to {}{}", name(from), name(to), if both { " and back" } else { "" })
        });
        self.cuts.insert((from, to), ());
        self.after(lasts, None, Event::HealCut(from, to));
        if both {
            self.cuts.insert((to, from), ());
            self.after(lasts, None, Event::HealCut(to, from));
        }
        if from == META || to == META {
            return;
        }
        if self.percent(30) {
            let of = |conn: &super::net::Conn| {
                (conn.standby, conn.primary) == (from, to) || (conn.primary, conn.standby) == (from, to)
            };
            let ids: Vec<ConnId> =
                self.conns.iter().filter(|(_, conn)| of(conn)).map(|(id, _)| *id).collect();
            ids.into_iter().for_each(|id| self.break_conn(id));
        }
    }

    fn break_some(&mut self) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        if !ids.is_empty() {
            let at = self.below(ids.len());
            self.note(|| format!("connection {} breaks", ids[at]));
            self.break_conn(ids[at]);
        }
    }

    fn meta_leaves(&mut self) {
        self.meta.away = true;
        let back = self.between(100 * MS, 5 * SECOND);
        self.note(|| "the meta store is away".to_owned());
        self.after(back, None, Event::MetaBack);
    }

    /// The meta store and all that routers keep are lost. The store begins with its first configuration, or with that of now.
    fn lose_record(&mut self) {
        self.unspare();
        let is_known = self.meta.members().is_some_and(|members| !members.primary.is_unknown());
        if self.plan.spared.is_some() || !is_known || self.meta.store().standby.is_none() {
            return;
        }
        let (first, now) = (Meta::new(&self.plan).state, self.meta.state.clone());
        // An operator gives a configuration that has all members.
        let had = addresses(&first.stores[0]);
        let has_all = addresses(&now.stores[0]).iter().all(|url| had.contains(url));
        let mut state = if has_all && self.percent(50) { (*first).clone() } else { (*now).clone() };
        state.stores[0].members = Some(Members::lost());
        self.counts.lost += 1;
        self.note(|| "the record of the members is lost".to_owned());
        for process in MEMBERS..PROCESSES {
            self.end_router(process);
        }
        if self.percent(60) {
            for m in 0..MEMBERS {
                let again = self.between(20 * MS, 5 * SECOND);
                self.member_ends(m, again);
            }
        }
        self.meta_changes(state);
    }

    /// All members are there, and routers say that an operator is to choose: as they say.
    fn choose(&mut self) {
        if self.truth.calm_at.is_none_or(|calm| self.now < calm + 10 * SECOND) {
            return;
        }
        let r = self.below(ROUTERS);
        let trouble = self.routers[r].trouble.clone().unwrap_or_default();
        let to = (0..MEMBERS).find(|m| trouble.contains(&format!("--to {} --force", url(*m))));
        let Some(to) = to.filter(|to| self.is_the_store(*to) && self.routers[r].wish.is_none()) else {
            return;
        };
        let named = (0..MEMBERS).filter(|m| trouble.contains(&format!("--to {}", url(*m))));
        self.truth_chooses(&named.collect::<Vec<_>>());
        self.plan.spared = Some(to);
        let opens_at = self.right_time() + 20 * SECOND;
        self.wish(r, Wish::Force { to: url(to), dead: MemberId::unknown(), opens_at }, 45 * SECOND);
    }

    fn wish(&mut self, r: usize, wish: Wish, lasts: Micros) {
        self.note(|| format!("at r{r}: {wish:?}"));
        let number = self.now;
        self.routers[r].wish = Some((number, wish));
        self.after(lasts, None, Event::WishOver(r, number));
        self.router_wished(r);
    }

    pub fn wish_over(&mut self, r: usize, number: u64) {
        if self.routers[r].wish.as_ref().is_some_and(|(of, _)| *of == number) {
            self.routers[r].wish = None;
        }
    }

    fn wish_handover(&mut self) {
        let r = self.below(ROUTERS);
        let router = &self.routers[r];
        let in_sync = |url: &&String| {
            let said = router.last(url);
            said.is_some_and(|said| {
                router.store().members.as_ref().is_some_and(|members| members.in_sync.contains(&said.id))
            })
        };
        let standbys = router.store().standby.iter().flat_map(|standby| &standby.endpoints);
        let of: Vec<String> = standbys.filter(in_sync).cloned().collect();
        if of.is_empty() || router.wish.is_some() || !self.processes[MEMBERS + r].up {
            return;
        }
        self.counts.handovers += 1;
        let to = of[self.below(of.len())].clone();
        let lasts = self.between(50 * MS, 5 * SECOND);
        self.wish(r, Wish::Handover { to }, lasts);
    }

    /// The primary is dead for good, and an operator says so.
    fn wish_force(&mut self) {
        self.unspare();
        let whole: Vec<usize> = (0..MEMBERS)
            .filter(|m| {
                self.members[*m]
                    .following
                    .as_ref()
                    .is_some_and(|following| following.whole && !following.stopped)
            })
            .filter(|m| self.is_the_store(*m))
            .collect();
        let Some(members) = self.meta.members() else { return };
        let Some(dead) = (0..MEMBERS).find(|m| self.members[*m].disk.id == members.primary) else { return };
        let has_role = self.members[dead].disk.role.as_ref().is_none_or(|role| role.does == Does::Primary);
        if whole.is_empty() || self.plan.spared.is_some() || !self.processes[dead].up || !has_role {
            return;
        }
        let to = whole[self.below(whole.len())];
        self.plan.spared = Some(to);
        self.note(|| format!("m{dead} is dead for good"));
        self.counts.kills += 1;
        self.lose_disk(dead);
        let again = self.between(5 * SECOND, 40 * SECOND);
        self.member_ends(dead, again);
    }

    /// An operator sees that the primary is dead for good, and no standby in sync takes over.
    fn force(&mut self) {
        let Some(members) = self.meta.members().cloned() else { return };
        if members.primary.is_unknown() {
            return self.choose();
        }
        // A standby that starts again begins anew, as another member.
        let lives = |m: usize| {
            let member = &self.members[m];
            let serves = member.disk.role.as_ref().is_none_or(|role| role.does == Does::Primary);
            let runs = member.open.as_ref().is_some_and(|open| *open.machine.id() == members.primary);
            member.disk.id == members.primary && (serves || runs)
        };
        if (0..MEMBERS).any(lives) {
            return;
        }
        let waits = |m: usize| {
            let open = self.members[m].open.as_ref().map(|open| &open.machine);
            open.is_some_and(MemberMachine::serves)
        };
        let fits = |m: &usize| {
            let whole =
                self.members[*m].following.as_ref().is_some_and(|following| following.whole) || waits(*m);
            let wanted = addresses(self.meta.store()).contains(&url(*m));
            whole && wanted && self.is_the_store(*m)
        };
        let heir = self.plan.spared.filter(fits).or_else(|| (0..MEMBERS).find(fits));
        let Some(heir) = heir else {
            // Everything is lost.
            if self.truth.calm_at.is_some_and(|calm| self.now > calm + 20 * SECOND) {
                self.counts.hopeless += 1;
                self.ends();
            }
            return;
        };
        self.plan.spared = Some(heir);
        let r = self.below(ROUTERS);
        let lives = self.routers[r]
            .last(&self.routers[r].store().endpoints[0])
            .is_some_and(|said| said.role == Role::Primary && !said.in_doubt && said.id == members.primary);
        if self.routers[r].wish.is_none() && self.processes[MEMBERS + r].up && !lives {
            let opens_at = self.right_time() + 20 * SECOND;
            self.wish(r, Wish::Force { to: url(heir), dead: members.primary, opens_at }, 45 * SECOND);
        }
    }

    /// A standby waits for a copy from somebody who does not serve: an operator starts it with the right flag.
    fn redirect(&mut self) {
        let Some(primary) = self.meta.store().endpoints.first().cloned() else { return };
        let calm = self.truth.calm_at.is_some_and(|calm| self.now > calm + 20 * SECOND);
        let waits = (0..MEMBERS).find(|m| {
            let member = &self.members[*m];
            let wrong = member.following.as_ref().is_some_and(|following| following.primary != primary);
            member.open.is_none() && wrong && url(*m) != primary && self.processes[*m].up
        });
        // One that waits for a lost standby answers nothing, and may be followed.
        let serves = at_url(&primary).is_some_and(|at| {
            let open = self.members[at].open.as_ref();
            self.is_the_store(at) && open.is_some_and(|open| open.machine.may_be_followed().is_ok())
        });
        if let Some(m) = waits.filter(|_| calm && serves) {
            self.counts.redirected += 1;
            self.note(|| format!("m{m} is started with another flag"));
            self.lose_disk(m);
            self.members[m].flag = Some(primary);
            self.member_ends(m, 100 * MS);
        }
    }

    pub fn operate(&mut self) {
        self.after(3 * SECOND, None, Event::Operate);
        self.force();
        self.redirect();
    }

    fn configure(&mut self) {
        self.unspare();
        if self.plan.spared.is_some() {
            return;
        }
        let Some(primary) = self.meta.store().endpoints.first().cloned() else { return };
        let name = self.meta.store().name.clone();
        let mut endpoints: Vec<String> = (0..MEMBERS).map(url).filter(|url| *url != primary).collect();
        if self.percent(40) {
            let gone = self.below(endpoints.len());
            endpoints.remove(gone);
        }
        let mode = if self.percent(80) { StandbyMode::Sync } else { StandbyMode::Async };
        let on_loss = if self.percent(50) { OnLoss::Wait } else { OnLoss::Alone };
        let none = self.percent(10);
        let standby = (!none).then_some(StandbyConfig { endpoints, mode, on_loss });
        self.note(|| format!("configured: {standby:?}"));
        if let Ok(state) = self.meta.state.set_standby(&name, standby) {
            self.meta_changes(state);
        }
    }

    /// All faults end, and everybody comes back.
    pub fn calm(&mut self) {
        self.note(|| "all faults end".to_owned());
        self.truth.calm_at = Some(self.now);
        let plan = &mut self.plan;
        (plan.late, plan.slow_disk, plan.failing_disk, plan.stale, plan.unknown) = (0, 0, 0, 0, 0);
        plan.client_pause = 200 * MS;
        self.meta.away = false;
        self.cuts.clear();
        for process in 0..PROCESSES {
            self.after(MS, None, Event::Resume(process));
            let start = self.between(10 * MS, SECOND);
            self.after(start, None, Event::Start(process));
        }
        // What the routers last learnt may be old.
        for r in 0..ROUTERS {
            let told = Event::State(self.meta.version, self.meta.state.clone());
            self.after(2 * SECOND, Some(MEMBERS + r), told);
        }
        self.after(5 * SECOND, None, Event::Judge);
    }
}
