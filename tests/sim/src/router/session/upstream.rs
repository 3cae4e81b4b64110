//! Watches of one key, each on its store: as `router/src/watch/upstream.rs` and `deliver.rs`.

use std::rc::Rc;

use kindred_partition_config::ids::Revision;
use kindred_router_core::store::StoreIx;

use super::{
    Admit, CREATE_WAIT, Due, Got, Heard, MS, Origin, SECOND, Session, StreamIn, StreamOut, Upstream, WatchId,
    WatchOut, WatchSpec,
};

impl Session {
    fn spec(&self, uid: i64) -> Option<WatchSpec> {
        let state = self.state.borrow();
        let watch = state.watches.get(&uid)?;
        Some(WatchSpec {
            range: watch.wanted.range.clone(),
            start: Revision::from_wire(watch.next.get()),
            id: Some(WatchId(uid)),
            prev_kv: watch.wanted.prev_kv,
            no_put: false,
            no_delete: watch.wanted.no_delete,
            progress_notify: watch.wanted.notify,
            fragment: false,
        })
    }

    pub(super) fn send_create(self: &Rc<Self>, uid: i64, store: StoreIx) {
        let Some(spec) = self.spec(uid) else { return };
        let stream = self.state.borrow().upstreams.get(&store).map(|upstream| upstream.stream.clone());
        if let Some(stream) = stream {
            self.router.net.send_in(&stream, StreamIn::Watch(spec));
        }
    }

    /// Opens the store's upstream stream with all watches that belong there.
    pub(super) fn open(self: &Rc<Self>, store: StoreIx, failures: u32) {
        let (first, generation) = {
            let state = &mut *self.state.borrow_mut();
            let creates = &state.creates;
            let waiting = |uid: i64| {
                let mut creates = creates.iter();
                creates.any(|due| matches!(due, Due::Store { uid: due, sent: false, .. } if *due == uid))
            };
            let mut first = Vec::new();
            for (uid, watch) in &mut state.watches {
                if watch.on(store) && (watch.announced || !waiting(*uid)) {
                    watch.live = false;
                    first.push(*uid);
                }
            }
            state.generations += 1;
            (first, state.generations)
        };
        if let Some(old) = self.state.borrow_mut().upstreams.remove(&store) {
            self.router.net.close(&old.stream);
        }
        if first.is_empty() {
            return;
        }
        let (this, router) = (Rc::downgrade(self), self.router.clone());
        let hear = move |message| {
            if let Some(session) = this.upgrade() {
                session.on_inbound(store, generation, message);
            }
        };
        let stream = router.net.open(router.at, router.life, store, Box::new(hear));
        let upstream = Upstream { stream: stream.clone(), generation, failures };
        self.state.borrow_mut().upstreams.insert(store, upstream);
        for uid in first {
            if let Some(spec) = self.spec(uid) {
                router.net.send_in(&stream, StreamIn::Watch(spec));
            }
        }
    }

    fn on_inbound(self: &Rc<Self>, store: StoreIx, generation: u64, message: StreamOut) {
        let (failures, stream) = {
            let mut state = self.state.borrow_mut();
            let Some(upstream) =
                state.upstreams.get_mut(&store).filter(|upstream| upstream.generation == generation)
            else {
                return;
            };
            if matches!(message, StreamOut::Watch(_)) {
                upstream.failures = 0;
            }
            (upstream.failures, upstream.stream.clone())
        };
        match message {
            StreamOut::Watch(said) => {
                stream.read_one();
                for out in said {
                    self.on_message(store, out);
                }
            }
            StreamOut::Broken => {
                // Until it is opened again, its watches are not confirmed.
                for watch in self.state.borrow_mut().watches.values_mut().filter(|watch| watch.on(store)) {
                    watch.live = false;
                }
                self.watches_changed();
                let (this, router) = (Rc::downgrade(self), self.router.clone());
                let delay = ((20 * MS) << failures.min(6)).min(SECOND);
                self.router.world.spawn(self.router.life, async move {
                    router.world.sleep(delay).await;
                    while !router.net.is_up(router.at, store) {
                        router.world.sleep(50 * MS).await;
                    }
                    let Some(session) = this.upgrade() else { return };
                    let current = session.state.borrow().upstreams.get(&store).map(|up| up.generation);
                    if current == Some(generation) {
                        session.open(store, failures.saturating_add(1));
                        session.watches_changed();
                        session.bell.ring();
                    }
                });
            }
            StreamOut::Feed(_) => {}
        }
        self.bell.ring();
    }

    fn on_message(self: &Rc<Self>, store: StoreIx, out: WatchOut) {
        match out {
            WatchOut::Created { id, header } => self.on_created(store, id.0, header),
            WatchOut::Progress { id: None, header } => self.on_progressed(Origin::Store(store), header),
            WatchOut::Compacted { id, floor } => self.on_end(id.0, Some(floor)),
            WatchOut::Canceled { id, .. } | WatchOut::Moved { id, .. } => self.on_end(id.0, None),
            WatchOut::Progress { id: Some(id), header } => {
                let uid = id.0;
                self.show(uid, header);
                let said =
                    self.moved(uid, header, |watch| Heard::Progress { watch: Some(watch), at: header });
                self.admit(uid, header, header, said);
            }
            WatchOut::Events { id, header, events, prev_kv, .. } => {
                let uid = id.0;
                self.show(uid, header);
                let (Some(first), Some(last)) = (events.first(), events.last()) else { return };
                let (first, last) = (first.kv.mod_revision(), last.kv.mod_revision());
                let got = |event: &kindred_engine::engine::Event| Got {
                    revision: event.kv.mod_revision(),
                    key: event.kv.key().to_vec(),
                    is_delete: event.is_delete(),
                    prev: event.prev.as_ref().filter(|_| prev_kv).map(|prev| prev.mod_revision()),
                };
                let events = events.iter().map(got).collect();
                let said = self.moved(uid, last, |watch| Heard::Events { watch, header, events });
                self.admit(uid, first, last, said);
            }
        }
    }

    /// Moves a watch's position behind `to`; what is said of it, under the client's id.
    fn moved(&self, uid: i64, to: Revision, say: impl FnOnce(i64) -> Heard) -> Option<Heard> {
        let mut state = self.state.borrow_mut();
        let watch = state.watches.get_mut(&uid)?;
        watch.next = watch.next.max(to.next());
        Some(say(watch.wanted.id))
    }

    fn admit(self: &Rc<Self>, uid: i64, first: Revision, last: Revision, said: Option<Heard>) {
        let Some(said) = said else { return };
        let (admit, commands) = self.state.borrow_mut().progress.admit(uid, first, last);
        match admit {
            Admit::Forward => self.say(said),
            Admit::Hold => self.state.borrow_mut().held.push_back((uid, said)),
        }
        self.follow(commands);
    }

    fn on_created(self: &Rc<Self>, store: StoreIx, uid: i64, header: Revision) {
        self.show(uid, header);
        let (watch, announced, cancel) = {
            let mut state = self.state.borrow_mut();
            let Some(watch) = state.watches.get_mut(&uid).filter(|watch| watch.on(store)) else { return };
            watch.live = true;
            if watch.next == Revision::ZERO {
                watch.next = header.next();
                watch.floor = header;
            }
            let announced = std::mem::replace(&mut watch.announced, true);
            (watch.wanted.id, announced, watch.cancel)
        };
        if announced {
            return self.watches_changed();
        }
        self.say(Heard::Created { watch, header });
        self.settle(uid);
        if cancel {
            self.cancel_uid(uid);
        }
        self.watches_changed();
        self.advance_creates();
    }

    fn on_end(self: &Rc<Self>, uid: i64, compacted: Option<Revision>) {
        let Some(watch) = self.state.borrow().watches.get(&uid).map(|watch| watch.wanted.id) else { return };
        let end = compacted.map_or(Heard::Cancelled { watch }, |floor| Heard::Compacted { watch, floor });
        self.emit_behind(uid, end);
        self.settle(uid);
        self.remove(uid);
        self.advance_creates();
    }

    fn settle(&self, uid: i64) {
        let mut state = self.state.borrow_mut();
        state.creates.retain(|due| !matches!(due, Due::Store { uid: due, .. } if *due == uid));
    }

    pub(super) fn emit_behind(&self, uid: i64, message: Heard) {
        let mut state = self.state.borrow_mut();
        if state.held.iter().any(|(held, _)| *held == uid) {
            state.held.push_back((uid, message));
        } else {
            state.outgoing.push_back(message);
        }
    }

    /// A create that waits for a store that is away is refused in the end.
    pub(super) fn refuse_late_create(self: &Rc<Self>) {
        let now = self.router.world.now();
        let late = {
            let state = &mut *self.state.borrow_mut();
            let watches = state.watches.iter().map(|(uid, watch)| (*uid, (watch.wanted.id, watch.origin)));
            let watches: std::collections::BTreeMap<_, _> = watches.collect();
            let Some(Due::Store { uid, since, .. }) = state.creates.front_mut() else { return };
            if now - *since < CREATE_WAIT {
                return;
            }
            *since = now;
            let uid = *uid;
            match watches.get(&uid) {
                Some((watch, Origin::Store(store))) if !self.router.net.is_up(self.router.at, *store) => {
                    state.creates.pop_front();
                    state.outgoing.push_back(Heard::Cancelled { watch: *watch });
                    Some(uid)
                }
                _ => None,
            }
        };
        if let Some(uid) = late {
            self.remove(uid);
            self.advance_creates();
        }
    }
}
