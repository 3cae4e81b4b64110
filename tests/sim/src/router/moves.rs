//! Moves: the product's coordinators, watchdogs and steps, over simulated calls and the simulated meta store.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use kindred_partition_config::ids::{Epoch, LeaseId};
use kindred_partition_config::state::{ClusterState, StoreState};
use kindred_proto::etcdserverpb as etcd;
use kindred_proto::shard_v1 as pb;
use kindred_router::leases::attach::{attach_again, attach_all};
use kindred_router::meta::client::{Entries, Expect, Stored, Write};
use kindred_router::meta::follow::{self, Following};
use kindred_router::meta::store::MetaStore;
use kindred_router::meta::{MetaError, MetaSettings, STATE};
use kindred_router::moves::claims::{Claims, LEASE_TTL, keep_alive};
use kindred_router::moves::desk::{self, Desk, Writing};
use kindred_router::moves::past;
use kindred_router::moves::rate::Rate;
use kindred_router::moves::steps::{carry_out, carry_out_beside};
use kindred_router::moves::units::{CALL_MAX, Each, Failed, LegSteps, UnitStores, on_wire};
use kindred_router::moves::watchdog::{Dogs, EVERY};
use kindred_router_core::moves::machine::{Settings, Status as Stands, TICK};
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::{Answer, Step, StepName};
use kindred_router_core::moves::watchdog::Settings as Beside;
use kindred_router_core::parts::store_ix;
use kindred_router_core::store::StoreIx;
use tonic::Status;

use super::Router;
use super::reads::refused;
use crate::clocks::WallClock;
use crate::messages::{Reply, Request, StreamIn, StreamOut, UnitReply, UnitRequest};
use crate::meta::Watch;
use crate::net::Stream;
use crate::sabotage::Sabotage;
use crate::world::{Bell, MS, Micros, SECOND};

/// The time limit of grants and renewals of leases.
const SOON: Micros = SECOND;
/// How often moves are looked for, and how often progress is reported.
const LOOK: Micros = SECOND;
const REPORT: Duration = Duration::from_secs(1);
/// How long a stream may be silent; the product's is longer.
const SILENCE_MAX: Micros = 3 * SECOND;

/// Shorter times than the product's, because a run is short.
fn settings() -> Settings {
    Settings {
        backoff: Duration::from_millis(200),
        backoff_max: Duration::from_secs(2),
        follow_every: Duration::from_millis(200),
        reverse_window: Duration::from_secs(2),
        ..Settings::default()
    }
}

fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}

/// The meta store as a router uses it.
#[derive(Clone)]
pub struct Meta(pub Rc<Router>, Rc<MetaSettings>);

impl Meta {
    pub fn of(router: &Rc<Router>) -> Self {
        let settings = MetaSettings {
            endpoints: Vec::new(),
            cache: None,
            addresses: Vec::new(),
            config: None,
            founding: kindred_router::meta::lineage::Founding::default(),
        };
        Self(router.clone(), Rc::new(settings))
    }
}

impl MetaStore for Meta {
    async fn get(&self, key: &str) -> Result<Option<Stored>, MetaError> {
        self.0.meta.get(self.0.at, key).await
    }

    async fn list(&self) -> Result<Entries, MetaError> {
        self.0.meta.list(self.0.at).await
    }

    async fn commit(&self, expects: &[Expect], mut writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
        if let Some(decided) = decided(&writes) {
            if self.0.is(Sabotage::LostMap) {
                writes.retain(|write| write.key != STATE);
            }
            if self.0.is(Sabotage::EarlyUnfreeze) {
                self.0.unfreeze(&decided).await;
            }
        }
        if self.0.is(Sabotage::KeepsState) && gives_back(&writes, &self.0.state()) {
            return Ok(None);
        }
        self.0.meta.commit(self.0.at, expects, writes).await
    }

    async fn commit_under(&self, lease: i64, write: Write) -> Result<bool, MetaError> {
        self.0.meta.commit_under(self.0.at, lease, write).await
    }

    async fn grant(&self, ttl: Duration) -> Result<i64, MetaError> {
        let granted = self.0.world.within(SOON, self.0.meta.grant(self.0.at, micros(ttl))).await;
        granted.unwrap_or_else(|| Err(MetaError::Unknown("too late".to_owned())))
    }

    async fn renew(&self, lease: i64) -> Result<bool, MetaError> {
        let renewed = self.0.world.within(SOON, self.0.meta.renew(self.0.at, lease, micros(LEASE_TTL))).await;
        renewed.unwrap_or_else(|| Err(MetaError::Unknown("too late".to_owned())))
    }

    fn entries(&self) -> Arc<Entries> {
        self.0.entries()
    }

    async fn heard(&self, revision: i64) -> bool {
        let end = self.0.world.now() + 2 * SECOND;
        while self.0.entries().revision < revision && self.0.world.now() < end {
            self.0.news(end - self.0.world.now()).await;
        }
        self.0.entries().revision >= revision
    }

    fn state(&self) -> Arc<ClusterState> {
        self.0.state()
    }

    fn take(&self, state: Arc<ClusterState>) {
        self.0.take(state);
    }
}

impl Following for Meta {
    type Watch = Rc<Watch>;

    fn settings(&self) -> &MetaSettings {
        &self.1
    }

    async fn watch(&self, from: i64) -> Result<Rc<Watch>, MetaError> {
        self.0.meta.watch(self.0.at, from).await
    }

    async fn next(&self, watch: &mut Rc<Watch>) -> Result<etcd::WatchResponse, MetaError> {
        watch.next().await
    }

    fn publish(&self, entries: Arc<Entries>) {
        self.0.publish(entries);
    }

    fn confirm(&self) {}

    fn doubt(&self, why: &str) {
        self.0.world.note(format_args!("r{} doubts meta: {why}", self.0.at));
    }

    fn note(&self, problem: Option<String>) {
        if let Some(problem) = problem {
            self.0.world.note(format_args!("r{} does not follow meta: {problem}", self.0.at));
        }
    }

    async fn pause(&self, time: Duration) {
        self.0.world.sleep(micros(time)).await;
    }
}

/// A stream of a unit's data.
pub struct UnitStream {
    router: Rc<Router>,
    stream: Rc<Stream>,
    mail: Rc<(RefCell<VecDeque<StreamOut>>, Bell)>,
}

impl Drop for UnitStream {
    fn drop(&mut self) {
        self.router.net.close(&self.stream);
    }
}

impl UnitStream {
    fn open(router: &Rc<Router>, store: StoreIx, first: StreamIn) -> Result<Self, Status> {
        if !router.net.is_up(router.at, store) {
            return Err(Status::unavailable("down"));
        }
        let mail = Rc::<(RefCell<VecDeque<StreamOut>>, Bell)>::default();
        let to = mail.clone();
        let hear = move |message| {
            to.0.borrow_mut().push_back(message);
            to.1.ring();
        };
        let stream = router.net.open(router.at, router.life, store, Box::new(hear));
        router.net.send_in(&stream, first);
        Ok(Self { router: router.clone(), stream, mail })
    }

    async fn next(&self) -> Result<StreamOut, Status> {
        let next = async {
            loop {
                if let Some(message) = self.mail.0.borrow_mut().pop_front() {
                    return message;
                }
                self.mail.1.rung().await;
            }
        };
        match self.router.world.within(SILENCE_MAX, next).await {
            Some(StreamOut::Refused(status)) => Err(status),
            Some(StreamOut::Broken) => Err(Status::unavailable("broken")),
            Some(message) => {
                self.stream.read_one();
                Ok(message)
            }
            None => Err(Status::unavailable("it says nothing")),
        }
    }
}

/// Whether these writes give the meta store a state that the router has already.
fn gives_back(writes: &[Write], own: &ClusterState) -> bool {
    let state = writes.iter().find(|write| write.key == STATE).and_then(|write| write.value.as_ref());
    state.is_some_and(|state| ClusterState::from_json(state).is_ok_and(|state| state == *own))
}

/// The record of a move that these writes decide.
fn decided(writes: &[Write]) -> Option<MoveRecord> {
    writes.iter().find(|write| write.key == STATE)?;
    let records = writes.iter().filter_map(|write| MoveRecord::from_json(write.value.as_ref()?).ok());
    records.into_iter().find(|record| record.legs.iter().any(|leg| leg.moved))
}

fn another() -> Status {
    Status::internal("another answer")
}

impl Router {
    /// Lets the former owners of moved units serve them again (a sabotage).
    async fn unfreeze(&self, decided: &MoveRecord) {
        for leg in decided.legs.iter().filter(|leg| leg.moved) {
            for transfer in &leg.transfers {
                let by = pb::UnitMove {
                    r#move: decided.id.0,
                    term: decided.term.0,
                    unit: Some(on_wire(&transfer.unit)),
                };
                let call = pb::unit_call::Call::Unfreeze(pb::UnfreezeRequest { r#move: Some(by) });
                let calls = pb::UnitCalls { calls: vec![pb::UnitCall { call: Some(call) }] };
                let _ = self.unit_call(store_ix(leg.from), UnitRequest::Together(calls)).await;
            }
        }
    }

    async fn unit_call(&self, store: StoreIx, request: UnitRequest) -> Result<UnitReply, Status> {
        let called = self.net.once(self.at, store, Request::Unit(request), micros(CALL_MAX)).await;
        match called.map_err(refused)? {
            Reply::Unit(answered) => answered,
            _ => Err(another()),
        }
    }
}

/// A router's stores, for moves.
#[derive(Clone)]
pub struct Stores(pub Rc<Router>);

impl UnitStores for Stores {
    type Copying = UnitStream;
    type Verifying = UnitStream;

    fn knows(&self, store: StoreIx) -> bool {
        store.0 < self.0.state().stores.len()
    }

    fn name(&self, store: StoreIx) -> String {
        format!("s{}", store.0)
    }

    fn is_removed(&self, store: StoreIx) -> bool {
        self.knows(store) && self.0.state().stores[store.0].state == StoreState::Removed
    }

    fn is_shard(&self, _: StoreIx) -> bool {
        true
    }

    fn clock_offset(&self, store: StoreIx) -> Option<i64> {
        let (wall, now) = (&self.0.net.shards()[store.0].wall, self.0.world.now());
        let (at, right) = (wall.at(now), WallClock::right_time(now));
        Some(at.cast_signed() - right.cast_signed())
    }

    fn generation(&self) -> Epoch {
        self.0.generation()
    }

    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn since_1970(&self) -> Duration {
        Duration::from_micros(WallClock::right_time(self.0.world.now()))
    }

    async fn pause(&self, time: Duration) {
        self.0.world.sleep(micros(time)).await;
    }

    async fn list(&self, store: StoreIx) -> Result<pb::UnitsListResponse, Status> {
        match self.0.unit_call(store, UnitRequest::List).await? {
            UnitReply::Listed(listed) => Ok(listed),
            _ => Err(another()),
        }
    }

    async fn together(
        &self,
        store: StoreIx,
        calls: pb::UnitCalls,
        _: bool,
    ) -> Result<pb::UnitAnswers, Status> {
        match self.0.unit_call(store, UnitRequest::Together(calls)).await? {
            UnitReply::Together(answers) => Ok(answers),
            _ => Err(another()),
        }
    }

    async fn tails(&self, store: StoreIx, request: pb::TailsRequest) -> Result<pb::TailsResponse, Status> {
        match self.0.unit_call(store, UnitRequest::Tails(request)).await? {
            UnitReply::Tails(tails) => Ok(tails),
            _ => Err(another()),
        }
    }

    async fn import(&self, store: StoreIx, request: pb::ImportRequest) -> Result<pb::ImportResponse, Status> {
        match self.0.unit_call(store, UnitRequest::Import(request)).await? {
            UnitReply::Imported(imported) => Ok(imported),
            _ => Err(another()),
        }
    }

    async fn copy(&self, store: StoreIx, request: pb::CopyRequest) -> Result<UnitStream, Status> {
        UnitStream::open(&self.0, store, StreamIn::Copy(request))
    }

    async fn next_copied(
        &self,
        _: StoreIx,
        copying: &mut UnitStream,
    ) -> Result<Option<pb::CopyResponse>, Status> {
        match copying.next().await? {
            StreamOut::Copied(part) => Ok(part),
            _ => Err(another()),
        }
    }

    async fn verify(&self, store: StoreIx, request: pb::VerifyRequest) -> Result<UnitStream, Status> {
        UnitStream::open(&self.0, store, StreamIn::Verify(request))
    }

    async fn next_digest(
        &self,
        _: StoreIx,
        verifying: &mut UnitStream,
    ) -> Result<Option<pb::VerifyResponse>, Status> {
        match verifying.next().await? {
            StreamOut::Digest(digest) => Ok(digest),
            _ => Err(another()),
        }
    }

    async fn attach_all(&self, leases: &[LeaseId], store: StoreIx) -> Result<(), Status> {
        let attached = self.0.world.within(micros(CALL_MAX), attach_all(&*self.0, leases, store)).await;
        attached.unwrap_or_else(|| Err(Status::unavailable("too late")))
    }

    async fn attach_again(&self, leases: &[LeaseId], store: StoreIx) -> Result<bool, Status> {
        let attached = self.0.world.within(micros(CALL_MAX), attach_again(&*self.0, leases, store)).await;
        attached.unwrap_or_else(|| Err(Status::unavailable("too late")))
    }

    fn copied(&self, _: u64, _: Duration) {}

    async fn at_etcd(_: &LegSteps<Self>, _: StepName) -> Option<Result<Each<Answer>, Failed>> {
        None
    }
}

/// The lease of a router's claims, and what rings when it is given up.
#[derive(Default)]
struct Held(RefCell<Option<(i64, Rc<Bell>)>>);

impl Held {
    fn give_up(&self) {
        if let Some((_, given_up)) = self.0.take() {
            given_up.ring();
        }
    }
}

/// A move at this router.
struct Runner {
    router: Rc<Router>,
    meta: Meta,
    desk: RefCell<Desk>,
    rate: Arc<Rate>,
    lease: i64,
    bell: Bell,
    /// Writes that are under way.
    writes: Cell<usize>,
}

impl Router {
    /// Starts the tasks that follow meta, coordinate moves and watch over those of other routers.
    pub(super) fn start_moves(self: &Rc<Self>) {
        let meta = Meta::of(self);
        self.world.spawn(self.life, async move { follow::follow(&meta).await });
        let this = self.clone();
        self.world.spawn(self.life, async move { this.coordinate().await });
        let this = self.clone();
        self.world.spawn(self.life, async move { this.watch_over().await });
    }

    /// The name of its coordinators.
    fn me(&self) -> String {
        format!("r{}-{:?}", self.at, self.life)
    }

    /// The task of the product's [`Claims`].
    async fn coordinate(self: Rc<Self>) {
        let (meta, name) = (Meta::of(&self), format!("r{}", self.at));
        let claims = Rc::new(RefCell::new(Claims::new(name.clone())));
        let lease = Rc::new(Held::default());
        loop {
            let entries = self.entries();
            let due = claims.borrow().due(&entries);
            for due in due {
                if !due.record.coordinator.is_empty() && self.is(Sabotage::NoTakeover) {
                    continue;
                }
                let Some(granted) = self.lease(&lease).await else { break };
                match Claims::claim(&meta, &name, &due, granted).await {
                    Ok(true) => {
                        let id = due.record.id;
                        self.world.note(format_args!("r{} coordinates move {}", self.at, id.0));
                        claims.borrow_mut().began(id);
                        let (this, claims) = (self.clone(), claims.clone());
                        self.world.spawn(self.life, async move {
                            this.run(due.record, due.version, granted).await;
                            claims.borrow_mut().ended(id);
                        });
                    }
                    Ok(false) => {}
                    Err(_) => lease.give_up(),
                }
            }
            past::forget(&meta, &entries).await;
            self.news(LOOK).await;
        }
    }

    /// The lease of its claims.
    async fn lease(self: &Rc<Self>, held: &Rc<Held>) -> Option<i64> {
        if let Some((id, _)) = &*held.0.borrow() {
            return Some(*id);
        }
        let meta = Meta::of(self);
        let id = meta.grant(LEASE_TTL).await.ok()?;
        let given_up = Rc::new(Bell::default());
        held.0.replace(Some((id, given_up.clone())));
        let (this, held) = (self.clone(), held.clone());
        self.world.spawn(self.life, async move {
            let stores = Stores(this);
            let kept = pin!(keep_alive(&stores, &meta, id));
            // Once it is given up it must end, with claims of which no answer came.
            if let Either::Left(_) = select(kept, pin!(given_up.rung())).await {
                held.0.take();
            }
        });
        Some(id)
    }

    /// The task of the product's [`Desk`].
    async fn run(self: &Rc<Self>, record: MoveRecord, version: i64, lease: i64) {
        let desk = Desk::new(self.me(), format!("r{}", self.at), settings(), record, version);
        let runner = Rc::new(Runner {
            router: self.clone(),
            meta: Meta::of(self),
            desk: RefCell::new(desk),
            rate: Arc::new(Rate::new(0)),
            lease,
            bell: Bell::default(),
            writes: Cell::new(0),
        });
        let (stores, mut reported) = (Stores(self.clone()), self.elapsed());
        loop {
            let groups = {
                let mut desk = runner.desk.borrow_mut();
                let gone = desk.stores().filter(|store| stores.is_removed(store_ix(*store))).collect();
                desk.poll(self.elapsed(), gone)
            };
            groups.into_iter().for_each(|steps| runner.spawn(steps));
            let heard = runner.desk.borrow_mut().hear(&self.entries());
            runner.write(heard);
            let due = runner.desk.borrow_mut().reports_now() || self.elapsed() >= reported + REPORT;
            if due {
                reported = self.elapsed();
                let report = runner.desk.borrow_mut().report();
                runner.write(report);
            }
            let stands = runner.desk.borrow().status();
            match stands {
                Stands::Running => {}
                Stands::Fenced => return,
                Stands::Over => break,
            }
            self.world.within(micros(TICK), runner.bell.rung()).await;
        }
        let id = runner.desk.borrow().id();
        while runner.writes.get() > 0 {
            self.world.within(micros(TICK), runner.bell.rung()).await;
        }
        while desk::leave(&runner.meta, id, lease).await.is_err() {
            self.world.sleep(micros(REPORT)).await;
        }
    }

    /// The task of the product's [`Dogs`].
    async fn watch_over(self: Rc<Self>) {
        let dogs = Rc::new(RefCell::new(Dogs::new(self.me(), Beside::beside(&settings()))));
        let meta = Meta::of(&self);
        loop {
            dogs.borrow_mut().hear(&self.entries());
            let begun = dogs.borrow_mut().poll(self.elapsed());
            for (of, some) in begun {
                let (this, meta, dogs, id) = (self.clone(), meta.clone(), dogs.clone(), of.0);
                self.world.note(format_args!("r{} does {:?} for {of:?}", self.at, some[0].name));
                self.world.spawn(self.life, async move {
                    let answers = carry_out_beside(Stores(this.clone()), &meta, of, some).await;
                    dogs.borrow_mut().answer(id, answers, this.elapsed());
                });
            }
            let wait = if dogs.borrow().wait() { micros(EVERY) } else { SECOND };
            self.news(wait).await;
            self.world.sleep(MS / 10).await;
        }
    }
}

impl Runner {
    fn spawn(self: &Rc<Self>, steps: Vec<Step>) {
        let Some(name) = steps.first().map(|step| step.name) else { return };
        let this = self.clone();
        let router = self.router.clone();
        let (id, copied) = (self.desk.borrow().id(), self.desk.borrow().copied().clone());
        router.world.clone().spawn(router.life, async move {
            let answers =
                carry_out(Stores(router.clone()), &this.meta, id, (this.rate.clone(), copied), steps).await;
            for (_, _, answer) in &answers {
                if !matches!(answer, Answer::Done | Answer::Followed { .. } | Answer::Swapped { .. }) {
                    router.world.note(format_args!("r{} move {} {name:?}: {answer:?}", router.at, id.0));
                }
            }
            this.desk.borrow_mut().answer(name, answers, router.elapsed());
            this.bell.ring();
        });
    }

    fn write(self: &Rc<Self>, writing: Option<Writing>) {
        let Some(writing) = writing else { return };
        let this = self.clone();
        self.writes.set(self.writes.get() + 1);
        self.router.world.clone().spawn(self.router.life, async move {
            let id = this.desk.borrow().id();
            let written = desk::write(&this.meta, id, this.lease, writing).await;
            this.desk.borrow_mut().written(written);
            this.writes.set(this.writes.get() - 1);
            this.bell.ring();
        });
    }
}
