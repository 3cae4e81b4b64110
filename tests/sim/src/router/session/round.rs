//! Rounds of progress (R7), as `router/src/watch/round.rs`.

use std::rc::Rc;

use kindred_partition_config::ids::Revision;
use kindred_router_core::progress::Command;
use kindred_router_core::store::StoreIx;

use super::{Heard, MS, Micros, Origin, Reply, Request, SECOND, Sabotage, Session, StreamIn, Watch};

/// How long a round may take; the client asks again.
const ROUND_MAX: Micros = SECOND;
/// How often watches that asked for it are told that nothing happened; the product's is longer.
pub const PERIOD: Micros = 2_500 * MS;

enum Raised {
    Current(Origin, Revision),
    To(Origin, Revision),
    Failed,
}

impl Session {
    fn members(&self) -> Vec<Origin> {
        let state = self.state.borrow();
        let mut members: Vec<_> =
            state.watches.values().filter(|watch| watch.announced).map(|watch| watch.origin).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    fn can_promise(&self) -> bool {
        let caught_up = |watch: &Watch| watch.feed.as_ref().is_none_or(|side| side.catch_up.is_none());
        let state = self.state.borrow();
        state.watches.values().all(|watch| !watch.announced || (watch.live && caught_up(watch)))
    }

    /// The client asks for progress.
    pub fn request_progress(self: &Rc<Self>) {
        let members = self.members();
        if self.can_promise() {
            let commands = {
                let state = &mut *self.state.borrow_mut();
                state.only_periodic &= state.progress.in_round();
                state.progress.request(&members)
            };
            self.follow(commands);
        }
        self.bell.ring();
    }

    fn on_period(self: &Rc<Self>) {
        let now = self.router.world.now();
        let begins = {
            let state = &mut *self.state.borrow_mut();
            if state.next_periodic.is_none_or(|at| at > now) {
                return;
            }
            state.next_periodic = Some(now + PERIOD);
            for (uid, watch) in &mut state.watches {
                if let Some(side) = watch.feed.as_mut().filter(|_| watch.announced)
                    && std::mem::replace(&mut side.quiet, true)
                    && watch.wanted.notify
                {
                    state.periodic.insert(*uid);
                }
            }
            !state.periodic.is_empty() && !state.progress.in_round()
        };
        let members = self.members();
        if begins && self.can_promise() {
            let commands = {
                let mut state = self.state.borrow_mut();
                state.only_periodic = true;
                state.progress.begin(&members)
            };
            self.follow(commands);
        }
    }

    pub(super) fn on_progressed(self: &Rc<Self>, member: Origin, at: Revision) {
        if !self.can_promise() {
            return;
        }
        let commands = {
            let state = &mut *self.state.borrow_mut();
            let announced = state.watches.values().filter(|watch| watch.announced);
            let floor = announced.map(|watch| watch.floor).max().unwrap_or(Revision::ZERO);
            state.progress.progressed(member, at, |at| floor > at)
        };
        self.follow(commands);
    }

    fn on_raised(self: &Rc<Self>, calls: u64, raised: Raised) {
        if self.state.borrow().calls != calls {
            return;
        }
        let commands = match raised {
            Raised::Current(member, revision) => self.state.borrow_mut().progress.current(member, revision),
            Raised::To(member, to) => self.state.borrow_mut().progress.raised(member, to),
            Raised::Failed => return self.abort_round(),
        };
        self.follow(commands);
        self.bell.ring();
    }

    pub(super) fn watches_changed(self: &Rc<Self>) {
        let members = self.members();
        let in_round = self.state.borrow().progress.in_round();
        if in_round && !self.can_promise() {
            return self.abort_round();
        }
        let commands = {
            let mut state = self.state.borrow_mut();
            if in_round {
                state.calls += 1;
            }
            state.progress.changed(&members)
        };
        self.follow(commands);
    }

    fn abort_round(self: &Rc<Self>) {
        let commands = {
            let mut state = self.state.borrow_mut();
            state.calls += 1;
            state.only_periodic = false;
            state.progress.abort()
        };
        self.follow(commands);
    }

    pub(super) fn on_timer(self: &Rc<Self>) {
        let now = self.router.world.now();
        let expired = self.state.borrow().round_since.is_some_and(|since| now - since >= ROUND_MAX);
        if expired {
            self.abort_round();
        }
        self.on_period();
        self.refuse_late_create();
        self.bell.ring();
    }

    pub(super) fn follow(self: &Rc<Self>, commands: Vec<Command<Origin>>) {
        if commands.is_empty() {
            return;
        }
        for command in commands {
            match command {
                Command::Ask(member) => {
                    self.state.borrow_mut().round_since = Some(self.router.world.now());
                    match member {
                        Origin::Store(store) => self.call(store, Revision::ZERO, false),
                        Origin::Feed(no) => self.call_feed(no),
                    }
                }
                Command::Raise(Origin::Store(store), to) => self.call(store, to, true),
                Command::Raise(feed @ Origin::Feed(_), to) => {
                    let commands = self.state.borrow_mut().progress.raised(feed, to);
                    self.follow(commands);
                }
                Command::Forward(member @ Origin::Store(store)) => {
                    if self.is_eager() {
                        let target = self.state.borrow().progress.target();
                        if let Some(target) = target {
                            self.on_progressed(member, target);
                        }
                        continue;
                    }
                    let stream =
                        self.state.borrow().upstreams.get(&store).map(|upstream| upstream.stream.clone());
                    if let Some(stream) = stream {
                        self.router.net.send_in(&stream, StreamIn::Progress);
                    }
                }
                Command::Forward(Origin::Feed(no)) => {
                    let (feed, to) = {
                        let state = self.state.borrow();
                        let feed = state.feeds.get(&no).map(|followed| followed.live.feed.clone());
                        (feed, state.progress.target())
                    };
                    if let (Some(feed), Some(to)) = (feed, to) {
                        feed.want(to);
                        if self.is_eager() {
                            self.on_progressed(Origin::Feed(no), to);
                        }
                    }
                }
                Command::Answer(at) => self.answer(at),
                Command::Release => {
                    let state = &mut *self.state.borrow_mut();
                    state.outgoing.extend(state.held.drain(..).map(|(_, message)| message));
                }
            }
        }
        let state = &mut *self.state.borrow_mut();
        if !state.progress.in_round() {
            state.round_since = None;
        }
        state.dirty |= !state.feeds.is_empty();
    }

    fn is_eager(&self) -> bool {
        self.router.is(Sabotage::EagerProgress)
    }

    fn answer(&self, at: Revision) {
        let kinds: Vec<usize> = {
            let state = &mut *self.state.borrow_mut();
            for watch in state.watches.values_mut().filter(|watch| watch.announced) {
                watch.next = watch.next.max(at.next());
            }
            for uid in std::mem::take(&mut state.periodic) {
                if let Some(watch) = state.watches.get(&uid) {
                    state.outgoing.push_back(Heard::Progress { watch: Some(watch.wanted.id), at });
                }
            }
            if !std::mem::take(&mut state.only_periodic) {
                state.outgoing.push_back(Heard::Progress { watch: None, at });
            }
            state.watches.values().map(|watch| watch.wanted.kind).collect()
        };
        kinds.into_iter().for_each(|kind| self.router.show(kind, at));
    }

    fn call_feed(self: &Rc<Self>, no: usize) {
        let (feed, calls) = {
            let state = self.state.borrow();
            let Some(followed) = state.feeds.get(&no) else { return };
            (followed.live.feed.clone(), state.calls)
        };
        let (this, current) = (Rc::downgrade(self), feed.current());
        self.router.world.spawn(self.router.life, async move {
            let raised = match current.await {
                Some(Ok(current)) => Raised::Current(Origin::Feed(no), current),
                _ => Raised::Failed,
            };
            if let Some(session) = this.upgrade() {
                session.on_raised(calls, raised);
            }
        });
    }

    fn call(self: &Rc<Self>, store: StoreIx, to: Revision, raising: bool) {
        let (ranges, calls) = {
            let state = self.state.borrow();
            let watches = state.watches.values().filter(|watch| watch.on(store));
            (watches.map(|watch| watch.wanted.range.clone()).collect::<Vec<_>>(), state.calls)
        };
        let (this, router) = (Rc::downgrade(self), self.router.clone());
        self.router.world.spawn(self.router.life, async move {
            let raise = router.call(store, Request::Raise { ranges, to });
            let raised = match router.world.within(ROUND_MAX, raise).await {
                Some(Ok(Reply::Raised { .. })) if raising => Raised::To(Origin::Store(store), to),
                Some(Ok(Reply::Raised { current, .. })) => Raised::Current(Origin::Store(store), current),
                _ => Raised::Failed,
            };
            if let Some(session) = this.upgrade() {
                session.on_raised(calls, raised);
            }
        });
    }

    /// Tells the round which feeds have given all that the target covers.
    pub(super) fn conclude_round(self: &Rc<Self>) {
        let numbers: Vec<usize> = self.state.borrow().feeds.keys().copied().collect();
        for no in numbers {
            let (target, reached) = {
                let state = self.state.borrow();
                let Some(target) = state.progress.target() else { return };
                let origin = Origin::Feed(no);
                let mut watches =
                    state.watches.values().filter(|watch| watch.announced && watch.origin == origin);
                (target, watches.all(|watch| watch.next > target))
            };
            if reached {
                self.on_progressed(Origin::Feed(no), target);
            }
        }
    }
}
