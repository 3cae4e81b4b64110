//! A router: looks at the members, and does what `decide` says. What it knows of the record may be old.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use kindred_partition_config::state::{ClusterState, StoreObject};
use kindred_router_core::standbys::{Decision, Look, Said, Step, Wish, addresses, decide, has_members};

use super::Sabotage;
use super::calls::{Caller, Queued};
use super::meta::Write;
use super::world::{Event, MEMBERS, META, Sim, at_url};
use crate::world::{MS, Micros, SECOND};

/// As in `router/src/standbys.rs`.
const EVERY: Micros = 200 * MS;
const HURRY: Micros = 25 * MS;
const ASK_MAX: Micros = 400 * MS;
const TELL_MAX: Micros = 2 * SECOND;

/// What comes back to a router.
#[derive(Debug)]
pub enum Back {
    Said(Box<Said>),
    Told,
    Refused(String),
    Written(Option<(u64, Rc<ClusterState>)>),
}

/// What a router waits for.
#[derive(Debug)]
enum Waits {
    /// A member's answer.
    Look(String),
    /// A step, with the promotion that follows it if the record is left out.
    Step(Option<Step>),
}

pub struct Router {
    pub state: Rc<ClusterState>,
    pub version: u64,
    looks: BTreeMap<String, Look>,
    waits: BTreeMap<u64, Waits>,
    next_call: u64,
    round: u64,
    asked: Duration,
    /// The record as of the beginning of the round.
    object: Option<StoreObject>,
    /// Members of this round.
    asks: BTreeSet<String>,
    failed: bool,
    decision: Decision,
    round_began: Duration,
    pub wish: Option<(u64, Wish)>,
    pub trouble: Option<String>,
    busy: bool,
}

impl Router {
    #[must_use]
    pub fn new(state: Rc<ClusterState>) -> Self {
        Self {
            state,
            version: 1,
            looks: BTreeMap::new(),
            waits: BTreeMap::new(),
            next_call: 0,
            round: 0,
            asked: Duration::ZERO,
            object: None,
            asks: BTreeSet::new(),
            failed: false,
            decision: Decision::default(),
            round_began: Duration::ZERO,
            wish: None,
            trouble: None,
            busy: false,
        }
    }

    /// What the member at an address said last, if the last look was answered.
    #[must_use]
    pub fn last(&self, url: &str) -> Option<&Said> {
        let look = self.looks.get(url).filter(|look| look.failed.is_none())?;
        look.said.as_ref().map(|(_, said)| said)
    }

    #[must_use]
    pub fn store(&self) -> &StoreObject {
        &self.state.stores[0]
    }

    fn call(&mut self, waits: Waits) -> u64 {
        self.next_call += 1;
        self.waits.insert(self.next_call, waits);
        self.next_call
    }
}

impl Sim {
    pub fn router_starts(&mut self, r: usize) {
        let calls = self.routers[r].next_call;
        self.routers[r] = Router::new(self.meta.state.clone());
        // Answers to calls of its former life are for nobody.
        (self.routers[r].version, self.routers[r].next_call) = (self.meta.version, calls);
        self.after(MS, Some(MEMBERS + r), Event::Round(1));
        self.routers[r].round = 1;
    }

    pub fn router_event(&mut self, r: usize, event: Event) {
        match event {
            Event::Round(round) if self.routers[r].round == round => self.round(r),
            Event::State(version, state) => self.router_learns(r, version, state),
            Event::Back(call, back) => self.comes_back(r, call, back),
            Event::GivenUp(call) => self.comes_back(r, call, Back::Refused("no answer".to_owned())),
            _ => {}
        }
    }

    fn router_learns(&mut self, r: usize, version: u64, state: Rc<ClusterState>) {
        let router = &mut self.routers[r];
        if version <= router.version {
            return;
        }
        (router.version, router.state) = (version, state);
        if !router.busy {
            self.schedule_round(r, 1);
        }
    }

    /// An operator wishes something.
    pub fn router_wished(&mut self, r: usize) {
        if !self.routers[r].busy {
            self.schedule_round(r, 1);
        }
    }

    fn schedule_round(&mut self, r: usize, after: Micros) {
        self.routers[r].round += 1;
        let round = self.routers[r].round;
        self.after_local(after, MEMBERS + r, Event::Round(round));
    }

    fn round(&mut self, r: usize) {
        if !has_members(self.routers[r].store()) {
            self.routers[r].looks.clear();
            return self.schedule_round(r, EVERY);
        }
        let now = self.mono(MEMBERS + r);
        let urls = addresses(self.routers[r].store());
        let router = &mut self.routers[r];
        router.busy = true;
        router.round += 1;
        router.object = Some(router.store().clone());
        router.looks.retain(|url, _| urls.contains(url));
        (router.asked, router.round_began) = (now, now);
        router.asks = urls.iter().cloned().collect();
        for url in urls {
            let call = self.routers[r].call(Waits::Look(url.clone()));
            self.after_local(ASK_MAX, MEMBERS + r, Event::GivenUp(call));
            self.tell_member(r, &url, call, None);
        }
    }

    fn tell_member(&mut self, r: usize, url: &str, call: u64, step: Option<Step>) {
        let Some(member) = at_url(url) else { return };
        let from = MEMBERS + r;
        let caller = Caller { router: r, life: self.processes[from].life, call };
        let event = match step {
            None => Event::Call(Queued::Show(caller)),
            Some(step) => Event::Call(Queued::Step(caller, step)),
        };
        if self.processes[member].up {
            self.throw(from, member, Some(member), event);
        } else {
            self.throw(member, from, Some(from), Event::Back(call, Back::Refused("refused".to_owned())));
        }
    }

    fn comes_back(&mut self, r: usize, call: u64, back: Back) {
        let Some(waits) = self.routers[r].waits.remove(&call) else { return };
        match (waits, back) {
            (Waits::Look(url), back) => {
                let router = &mut self.routers[r];
                router.asks.remove(&url);
                let asked = router.asked;
                let look = router.looks.entry(url).or_default();
                match back {
                    Back::Said(said) => look.answered(asked, *said),
                    Back::Refused(why) => look.failed(why),
                    Back::Told | Back::Written(_) => {}
                }
                if self.routers[r].asks.is_empty() {
                    self.decides(r);
                }
            }
            (Waits::Step(then), back) => {
                match back {
                    Back::Refused(why) => {
                        self.note(|| format!("r{r}: refused: {why}"));
                        self.routers[r].failed = true;
                    }
                    Back::Written(Some((version, state))) => {
                        let router = &mut self.routers[r];
                        if version > router.version {
                            (router.version, router.state) = (version, state);
                        }
                    }
                    _ => {
                        if let Some(Step::Prepare { url, term, .. }) = then {
                            let (incarnation_above, yielded, forced) = (0, true, None);
                            self.step(r, Step::Promote { url, term, incarnation_above, yielded, forced });
                        }
                    }
                }
                if !self.routers[r].waits.values().any(|waits| matches!(waits, Waits::Step(_))) {
                    self.round_ends(r);
                }
            }
        }
    }

    fn decides(&mut self, r: usize) {
        let now = self.mono(MEMBERS + r);
        let router = &self.routers[r];
        let wish = router.wish.as_ref().map(|(_, wish)| wish);
        let Some(object) = &router.object else { return };
        let decision = decide(object, &router.looks, now, wish);
        if !decision.steps.is_empty() || router.trouble != decision.trouble {
            let (steps, trouble) = (decision.steps.clone(), decision.trouble.clone());
            self.note(|| format!("r{r}: {steps:?} {}", trouble.unwrap_or_default()));
        }
        self.routers[r].trouble = decision.trouble.clone();
        self.routers[r].failed = false;
        let steps = decision.steps.clone();
        self.routers[r].decision = decision;
        if steps.is_empty() {
            return self.round_ends(r);
        }
        for step in steps {
            self.step(r, step);
        }
    }

    fn step(&mut self, r: usize, step: Step) {
        let from = MEMBERS + r;
        let then = (self.sabotage == Some(Sabotage::NoRecord)).then(|| step.clone());
        let then = then.filter(|step| matches!(step, Step::Prepare { .. }));
        let call = self.routers[r].call(Waits::Step(then));
        self.after_local(TELL_MAX, from, Event::GivenUp(call));
        match step {
            Step::Write { read, term, change } => {
                let life = self.processes[from].life;
                let write = Write { router: r, life, call, read, term, change };
                self.throw(from, META, None, Event::MetaWrite(write));
            }
            Step::Count { ref url, .. }
            | Step::Yield { ref url, .. }
            | Step::Prepare { ref url, .. }
            | Step::Promote { ref url, .. }
            | Step::Supersede { ref url, .. } => {
                let url = url.clone();
                self.tell_member(r, &url, call, Some(step));
            }
        }
    }

    fn round_ends(&mut self, r: usize) {
        let now = self.mono(MEMBERS + r);
        let router = &mut self.routers[r];
        router.busy = false;
        let pause = match (router.decision.steps.is_empty(), router.failed, router.decision.hurry) {
            (false, false, _) => 0,
            (_, _, true) | (false, true, _) => HURRY,
            _ => EVERY,
        };
        let took = now.saturating_sub(router.round_began);
        let left = pause.saturating_sub(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.schedule_round(r, left + 50);
    }
}
