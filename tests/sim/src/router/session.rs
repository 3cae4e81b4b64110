//! A client's watch stream. The product's machine takes its events one at a time; the seed chooses the order of events
//! of different kinds.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_router_core::header_ids::HeaderIds;
use kindred_router_core::store::StoreIx;
use kindred_router_core::watch_session::{Ask, Event, Present, Said, Session as Machine, Settings};

use super::Router;
use crate::net::Stream;
use crate::world::{Bell, Micros};
use around::Around;

pub mod around;

/// The most messages that a client has not read.
const UNREAD_MAX: usize = 4;
/// Few bytes, so that reads end in the middle, and a time that passes in a run.
const SETTINGS: Settings = Settings {
    take_bytes: 600,
    look_bytes: 600,
    notify: Duration::from_millis(2_500),
    fragment_bytes: FRAGMENT_BYTES,
};
/// Less than two events. A shard has the same limit.
const FRAGMENT_BYTES: usize = 150;
const STEP: Micros = 10;

/// Events that the machine has not taken yet.
#[derive(Default)]
struct Inbox {
    requests: VecDeque<Bytes>,
    /// Messages of stores, each with the stream that learns when it is taken.
    upstream: VecDeque<(StoreIx, u64, Said, Option<Rc<Stream>>)>,
    asked: VecDeque<(Ask, Option<Revision>)>,
    present: VecDeque<(i64, Present)>,
    rung: bool,
    new_map: bool,
    compacted: bool,
    timer: bool,
}

/// The queue that an event comes from.
#[derive(Clone, Copy)]
enum From {
    Requests,
    Upstream,
    Asked,
    Present,
    Rung,
    NewMap,
    Compacted,
    Timer,
}

/// An event that is taken from its queue.
enum Taken {
    Request(Bytes),
    /// A store's message, and the stream on which it came.
    Event(Event<'static>, Option<Rc<Stream>>),
}

pub struct Session {
    router: Rc<Router>,
    /// None when the client has gone.
    machine: RefCell<Option<Machine<Around>>>,
    inbox: RefCell<Inbox>,
    bell: Bell,
    /// The number of messages that the client has not read.
    unread: Cell<usize>,
    /// The time for which [`Event::Timer`] is planned.
    timer: Cell<Option<Instant>>,
    /// Sends the client a message; none at the end of the stream.
    to_client: Box<dyn Fn(Option<Bytes>)>,
}

impl Session {
    /// Serves a stream until its router's life ends, or the client hangs up.
    #[must_use]
    pub fn serve(router: &Rc<Router>, to_client: Box<dyn Fn(Option<Bytes>)>) -> Rc<Self> {
        let ids = HeaderIds { cluster_id: 1, member_id: router.at as u64 + 1 };
        let session = Rc::new_cyclic(|this| {
            let around = Around::new(router, this.clone());
            let machine = Machine::new(around, ids, SETTINGS, router.instant());
            Self {
                router: router.clone(),
                machine: RefCell::new(Some(machine)),
                inbox: RefCell::default(),
                bell: Bell::default(),
                unread: Cell::new(0),
                timer: Cell::new(None),
                to_client,
            }
        });
        router.tell(&session);
        let (this, world) = (Rc::downgrade(&session), router.world.clone());
        router.world.spawn(router.life, async move {
            loop {
                let Some(session) = this.upgrade() else { return };
                if session.step().is_none() {
                    return session.hang_up();
                }
                let waits = !session.may_step();
                if waits {
                    session.bell.rung().await;
                }
                drop(session);
                world.sleep(STEP).await;
            }
        });
        session
    }

    // ---- from the client

    /// The client sends a request.
    pub fn request(&self, request: Bytes) {
        self.post(|inbox| inbox.requests.push_back(request));
    }

    /// Notes that the router has a newer map.
    pub(super) fn new_map(&self) {
        self.post(|inbox| inbox.new_map = true);
    }

    /// Notes that a client has compacted.
    pub(super) fn compacted(&self) {
        self.post(|inbox| inbox.compacted = true);
    }

    /// Notes that the client has read a message.
    pub fn read_one(&self) {
        self.unread.set(self.unread.get().saturating_sub(1));
        self.bell.ring();
    }

    pub fn hang_up(&self) {
        if let Some(mut machine) = self.machine.borrow_mut().take() {
            machine.outside.close_all();
        }
        self.bell.ring();
    }

    // ---- its steps

    fn post(&self, note: impl FnOnce(&mut Inbox)) {
        note(&mut self.inbox.borrow_mut());
        self.bell.ring();
    }

    /// Takes a turn, sends what is ready, and takes an event. None when the stream is over.
    fn step(self: &Rc<Self>) -> Option<()> {
        let from = self.machine.borrow().as_ref().map(|machine| self.choose(machine))?;
        let taken = from.and_then(|from| self.take(from));
        let mut machine = self.machine.borrow_mut();
        let machine = machine.as_mut()?;
        let now = self.router.instant();
        match taken {
            None => {}
            Some(Taken::Request(request)) => machine.step(now, Event::Request(&request)),
            Some(Taken::Event(event, stream)) => {
                machine.step(now, event);
                stream.into_iter().for_each(|stream| stream.read_one());
            }
        }
        let ended = machine.turn(now);
        while self.unread.get() < UNREAD_MAX
            && let Some(message) = machine.next_message()
        {
            self.unread.set(self.unread.get() + 1);
            (self.to_client)(Some(message.into_bytes()));
        }
        if let Some(end) = ended {
            self.router.world.note(format_args!("r{} a session ends: {end:?}", self.router.at));
            (self.to_client)(None);
            return None;
        }
        self.plan(machine, now);
        Some(())
    }

    fn take(&self, from: From) -> Option<Taken> {
        let mut inbox = self.inbox.borrow_mut();
        let event = |event| Taken::Event(event, None);
        match from {
            From::Requests => inbox.requests.pop_front().map(Taken::Request),
            From::Upstream => inbox.upstream.pop_front().map(|(store, number, said, stream)| {
                Taken::Event(Event::Upstream { store, number, said }, stream)
            }),
            From::Asked => inbox.asked.pop_front().map(|(ask, answer)| event(Event::Asked(ask, answer))),
            From::Present => {
                inbox.present.pop_front().map(|(uid, present)| event(Event::Present { uid, present }))
            }
            From::Rung => std::mem::take(&mut inbox.rung).then(|| event(Event::Rung)),
            From::NewMap => std::mem::take(&mut inbox.new_map).then(|| event(Event::NewMap)),
            From::Compacted => std::mem::take(&mut inbox.compacted).then(|| event(Event::Compacted)),
            From::Timer => std::mem::take(&mut inbox.timer).then(|| event(Event::Timer)),
        }
    }

    /// A random queue among those with events.
    fn choose(&self, machine: &Machine<Around>) -> Option<From> {
        let may = self.kinds(machine);
        if may.is_empty() { None } else { Some(*self.router.world.pick(&may)) }
    }

    fn kinds(&self, machine: &Machine<Around>) -> Vec<From> {
        let inbox = self.inbox.borrow();
        let kinds = [
            (From::Requests, !inbox.requests.is_empty() && machine.takes_requests()),
            (From::Upstream, !inbox.upstream.is_empty() && machine.takes_upstream()),
            (From::Asked, !inbox.asked.is_empty()),
            (From::Present, !inbox.present.is_empty()),
            (From::Rung, inbox.rung),
            (From::NewMap, inbox.new_map),
            (From::Compacted, inbox.compacted),
            (From::Timer, inbox.timer),
        ];
        kinds.into_iter().filter_map(|(kind, may)| may.then_some(kind)).collect()
    }

    fn may_step(&self) -> bool {
        let machine = self.machine.borrow();
        let Some(machine) = machine.as_ref() else { return true };
        let sends = machine.has_message() && self.unread.get() < UNREAD_MAX;
        sends || machine.has_work() || !self.kinds(machine).is_empty()
    }

    /// Plans the next [`Event::Timer`]. One for a later time stays: it finds nothing to do.
    fn plan(self: &Rc<Self>, machine: &Machine<Around>, now: Instant) {
        let Some(at) = machine.timer() else { return };
        if self.timer.get().is_some_and(|planned| planned <= at) {
            return;
        }
        self.timer.set(Some(at));
        let this = Rc::downgrade(self);
        let delay = micros(at.saturating_duration_since(now)).max(1);
        self.router.world.after(delay, self.router.life, move || {
            let Some(session) = this.upgrade() else { return };
            // An earlier one may have taken its place.
            if session.timer.get() == Some(at) {
                session.timer.set(None);
                session.post(|inbox| inbox.timer = true);
            }
        });
    }
}

/// A duration of the product's in the world's units.
fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

impl Router {
    /// The present, as the product's machines count time.
    pub(super) fn instant(&self) -> Instant {
        self.epoch + Duration::from_micros(self.world.now())
    }
}
