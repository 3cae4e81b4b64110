//! The calls about the record, at a member: one at a time, each act in its own time, as `StandbyService` does.

use std::time::Duration;

use kindred_partition_config::ids::MemberId;
use kindred_router_core::standbys::{self as core, Follower, Role, Step};
use kindred_shard::standby::WAIT;
use kindred_shard::standby::follower::NotDone;
use kindred_shard::standby::member::{Act, Call, Done};
use kindred_shard::standby::role::Does;
use kindred_shard::standby::shipping;
use tokio::sync::oneshot;

use super::Sabotage;
use super::net::ConnId;
use super::router::Back;
use super::stream;
use super::world::{Event, MEMBERS, Sim};
use crate::world::MS;

/// The router that waits for a call.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    pub router: usize,
    pub life: u64,
    pub call: u64,
}

/// What waits for its turn at a member.
#[derive(Debug)]
pub enum Queued {
    Show(Caller),
    Step(Caller, Step),
    /// A standby begins to follow.
    Follow(ConnId, stream::Begin),
}

impl Sim {
    fn answer_router(&mut self, m: usize, caller: Caller, back: Back) {
        let to = MEMBERS + caller.router;
        if self.processes[to].life == caller.life {
            self.throw(m, to, Some(to), Event::Back(caller.call, back));
        }
    }

    pub fn member_called(&mut self, m: usize, queued: Queued) {
        let Some(open) = &mut self.members[m].open else {
            // It waits for a copy, and does not answer yet.
            match queued {
                Queued::Show(caller) | Queued::Step(caller, _) => {
                    self.answer_router(m, caller, Back::Refused("it starts".to_owned()));
                }
                Queued::Follow(conn, _) => {
                    self.send(conn, super::net::Side::Standby, stream::Said::Lost(None))
                }
            }
            return;
        };
        open.calls.push_back(queued);
        self.next_call(m);
    }

    /// Begins what waits, while no call is under way.
    fn next_call(&mut self, m: usize) {
        loop {
            let Some(open) = &mut self.members[m].open else { return };
            if open.doing.is_some() {
                return;
            }
            let Some(queued) = open.calls.pop_front() else { return };
            match queued {
                Queued::Show(caller) => {
                    let said = self.shows(m);
                    let back = said
                        .map_or_else(|| Back::Refused("gone".to_owned()), |said| Back::Said(Box::new(said)));
                    self.answer_router(m, caller, back);
                }
                Queued::Follow(conn, begin) => self.follows(m, conn, begin),
                Queued::Step(caller, step) => self.begin_call(m, caller, step),
            }
        }
    }

    /// What a standby's clock says in calls.
    fn standby_now(&self, m: usize) -> Duration {
        let now = self.mono(m);
        if self.sabotage == Some(Sabotage::NoWait) { now + 2 * WAIT } else { now }
    }

    fn begin_call(&mut self, m: usize, caller: Caller, step: Step) {
        let (wall, now) = (self.wall(m).0, self.standby_now(m));
        let call = match step {
            Step::Count { term, members, recorded, .. } => Call::Count { term, members, recorded },
            Step::Yield { term, .. } => Call::Yield { term },
            Step::Prepare { term, member, .. } => Call::Prepare { term, member: Some(member) },
            Step::Promote { term, incarnation_above, yielded, forced, .. } => {
                Call::Promote { term, incarnation_above, yielded, forced_opens_at_micros: forced }
            }
            Step::Supersede { term, primary, .. } => {
                Call::Supersede { term, primary, started_as: self.members[m].flag.clone() }
            }
            Step::Write { .. } => return,
        };
        let begun = self.members[m].decide(wall, now, |machine, at| machine.begin(call, at));
        match begun {
            None => {}
            Some(Err(why)) => self.answer_router(m, caller, Back::Refused(why.to_string())),
            Some(Ok(doing)) => {
                if let Some(open) = &mut self.members[m].open {
                    open.doing = Some((caller, doing));
                }
                self.next_act(m);
            }
        }
    }

    /// Begins the next act of the call under way.
    fn next_act(&mut self, m: usize) {
        let act = self.members[m].open.as_ref().and_then(|open| open.doing.as_ref()?.1.act().cloned());
        let after = match &act {
            None => {
                if let Some(open) = &mut self.members[m].open
                    && let Some((caller, _)) = open.doing.take()
                {
                    self.answer_router(m, caller, Back::Told);
                }
                return;
            }
            Some(Act::Keep(_) | Act::KeepIncarnation(_)) => self.disk(),
            Some(Act::Reopen { .. }) => self.disk(),
            Some(Act::TakeOver { .. }) => {
                self.stops_following(m);
                self.disk() + self.delay()
            }
            Some(_) => self.between(10, 300),
        };
        self.after(after, Some(m), Event::Acted);
    }

    /// The act of the call under way is done, at this moment.
    pub fn acted(&mut self, m: usize) {
        let act = self.members[m].open.as_ref().and_then(|open| open.doing.as_ref()?.1.act().cloned());
        let Some(act) = act else { return };
        self.note(|| format!("m{m}: {act:?}"));
        let mut done = Done::Done;
        match act {
            Act::Keep(role) => {
                if self.plan.failing_disk > 0 && self.percent(self.plan.failing_disk) {
                    return self.call_fails(m);
                }
                self.members[m].disk.role = Some(role);
            }
            Act::KeepIncarnation(incarnation) => self.members[m].disk.incarnation = incarnation,
            Act::Count { ids, recorded } => {
                let (answer, mut counted) = oneshot::channel();
                self.hear(m, shipping::Said::Count { ids, recorded, answer });
                if let Ok(Err(why)) = counted.try_recv() {
                    done = Done::NotCounted(why);
                }
            }
            Act::Yield => {
                let (answer, _yielded) = oneshot::channel();
                self.hear(m, shipping::Said::Yield { answer });
            }
            Act::TakeOver { behind } => self.takes_over(m, behind),
            Act::Reopen { behind, in_doubt } => self.reopens(m, behind, in_doubt),
            Act::Refuse => self.hear(m, shipping::Said::Superseded),
            Act::End => {}
        }
        let (wall, now) = (self.wall(m).0, self.standby_now(m));
        let ends = matches!(
            self.members[m].open.as_ref().and_then(|open| open.doing.as_ref()?.1.act()),
            Some(Act::End)
        );
        let decided = {
            let member = &mut self.members[m];
            let Some((caller, mut doing)) = member.open.as_mut().and_then(|open| open.doing.take()) else {
                return;
            };
            let decided = member.decide(wall, now, |machine, at| machine.done(&mut doing, done, at));
            if let Some(open) = &mut member.open {
                open.doing = Some((caller, doing));
            }
            (caller, decided)
        };
        match decided {
            (caller, Some(Err(why))) => {
                if let Some(open) = &mut self.members[m].open {
                    open.doing = None;
                }
                self.answer_router(m, caller, Back::Refused(why.to_string()));
            }
            (_, _) => self.next_act(m),
        }
        if ends {
            let again = self.between(20 * MS, 500 * MS);
            self.note(|| format!("m{m} ends: another one is the primary"));
            return self.member_ends(m, again);
        }
        self.next_call(m);
        self.turn_soon(m);
    }

    /// The disk refuses.
    fn call_fails(&mut self, m: usize) {
        if let Some((caller, _)) = self.members[m].open.as_mut().and_then(|open| open.doing.take()) {
            self.answer_router(m, caller, Back::Refused("the disk refuses".to_owned()));
        }
        self.next_call(m);
    }

    /// The loop of a primary hears something.
    pub fn hear(&mut self, m: usize, said: shipping::Said) {
        let now = self.mono(m);
        if let Some(open) = &mut self.members[m].open {
            open.shipping.hear(&mut open.engine, said, now);
        }
        self.turn_soon(m);
    }

    /// What a member says of itself, as `StandbyService::member` and `calls::said` do.
    pub fn shows(&mut self, m: usize) -> Option<core::Said> {
        let (now, clock) = (self.mono(m), self.standby_now(m));
        let member = &mut self.members[m];
        let open = member.open.as_mut()?;
        let (answer, mut shown) = oneshot::channel();
        open.shipping.hear(&mut open.engine, shipping::Said::Show { answer }, now);
        let followers = shown.try_recv().unwrap_or_default().into_iter().map(|shown| Follower {
            id: shown.id,
            follows: shown.follows,
            whole: shown.whole,
            has_shown: shown.has_shown,
            behind: shown.behind,
            silent: whole_millis(shown.silent),
        });
        let role = open.machine.role().clone();
        let following = member.following.as_ref().filter(|_| role.does == Does::Standby);
        let waits = |follower: &kindred_shard::standby::follower::Follower| match follower
            .may_be_promoted(follower.term(), clock)
        {
            Err(NotDone::Waits { left }) => whole_millis(left) + Duration::from_millis(1),
            _ => Duration::ZERO,
        };
        let counted: Vec<MemberId> = open.machine.counted().to_vec();
        Some(core::Said {
            id: open.machine.id().clone(),
            role: match role.does {
                Does::Primary => Role::Primary,
                Does::Standby => Role::Standby,
                Does::Superseded => Role::Superseded,
            },
            term: role.term.max(following.map_or(role.term, |following| following.follower.term())),
            named: role.named,
            incarnation: open.machine.incarnation(),
            in_doubt: open.machine.in_doubt(),
            yielded: open.machine.yielded(),
            counted,
            never_promoted: open.machine.never_promoted().cloned().collect(),
            followers: followers.collect(),
            bound: true,
            whole: following.is_some_and(|following| following.whole),
            connected: following.is_some_and(|following| following.connected),
            prepared: following
                .filter(|following| following.follower.is_prepared())
                .map(|following| waits(&following.follower)),
            silent: following
                .map_or(Duration::ZERO, |following| whole_millis(following.follower.silent(now))),
            follows: role.primary.unwrap_or_default(),
            trouble: String::new(),
        })
    }
}

fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
