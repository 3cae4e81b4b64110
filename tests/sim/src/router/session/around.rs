//! The interface of a session's machine to its simulated router.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_engine::engine::{WatchId, WatchSpec};
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_router::routing::shown;
use kindred_router_core::cursor::{Limit, Taken};
use kindred_router_core::feed_event::{Encoded, Events, Filter};
use kindred_router_core::feed_state::{Stand, Take};
use kindred_router_core::gaps::Passed;
use kindred_router_core::place::{FeedKey, place};
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;
use kindred_router_core::watch_merge::Entry;
use kindred_router_core::watch_session::{
    Ask, CREATE_WAIT, Count, FeedNo, FeedReader, Outside, Present, ROUND_MAX, Rung, Said,
};
use kindred_shard::encode;
use kindred_shard::etcd_status::not_owned;
use kindred_wire::peek::{WatchCreateRequest, WatchRequest};

use super::{FRAGMENT_BYTES, Router, Session, micros};
use crate::messages::{Reply, Request, StreamIn, StreamOut};
use crate::net::Stream;
use crate::router::feed::Reader as Hold;
use crate::router::reads::SHARD_IDS;
use crate::sabotage::Sabotage;
use crate::world::{MS, Micros};

const ASK_AGAIN: Micros = 200 * MS;

/// The bells of a session that have rung.
#[derive(Default)]
pub struct Bells {
    session: RefCell<Weak<Session>>,
    rung: RefCell<BTreeSet<Rung>>,
}

impl Bells {
    pub fn ring(&self, who: Rung) {
        self.rung.borrow_mut().insert(who);
        let session = self.session.borrow().upgrade();
        if let Some(session) = session {
            session.post(|inbox| inbox.rung = true);
        }
    }
}

/// The session's stream at a store.
struct Upstream {
    number: u64,
    /// None while it is being opened. Requests wait meanwhile.
    stream: Option<Rc<Stream>>,
    waiting: Vec<StreamIn>,
}

pub struct Around {
    router: Rc<Router>,
    session: Weak<Session>,
    upstreams: Rc<RefCell<BTreeMap<StoreIx, Upstream>>>,
    bells: Rc<Bells>,
}

impl std::fmt::Debug for Around {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Around").finish_non_exhaustive()
    }
}

impl Around {
    pub(super) fn new(router: &Rc<Router>, session: Weak<Session>) -> Self {
        let bells = Rc::<Bells>::default();
        *bells.session.borrow_mut() = session.clone();
        Self { router: router.clone(), session, upstreams: Rc::default(), bells }
    }

    pub(super) fn close_all(&mut self) {
        let stores: Vec<StoreIx> = self.upstreams.borrow().keys().copied().collect();
        stores.into_iter().for_each(|store| self.close(store));
    }

    fn reader(&self, hold: Hold) -> Reader {
        let eager = self.router.is(Sabotage::EagerProgress);
        Reader { hold, eager, wanted: Cell::new(Revision::ZERO) }
    }
}

impl Outside for Around {
    type Reader = Reader;

    /// There are no users here.
    fn may_watch(&self, _: &[u8], _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn routes(&self) -> Arc<Routes> {
        self.router.routes()
    }

    fn is_shard(&self, _: StoreIx) -> bool {
        true
    }

    fn away(&self, store: StoreIx) -> Option<String> {
        (!self.router.net.is_up(self.router.at, store)).then(|| format!("store s{} is away", store.0))
    }

    fn compacted(&self) -> Revision {
        self.router.compacted.get()
    }

    fn live(&mut self, key: &FeedKey, generation: Epoch, no: FeedNo) -> Reader {
        self.reader(self.router.live(key, generation, &self.bells, Rung::Feed(no)))
    }

    fn catch_up(&mut self, key: &FeedKey, generation: Epoch, position: Revision, uid: i64) -> Reader {
        self.reader(self.router.catch_up((key, generation), position, &self.bells, Rung::Watch(uid)))
    }

    fn rung(&mut self) -> Vec<Rung> {
        std::mem::take(&mut *self.bells.rung.borrow_mut()).into_iter().collect()
    }

    fn open(&mut self, store: StoreIx, number: u64, delay: Duration, first: Vec<Bytes>) {
        let waiting = first.iter().filter_map(to_store).collect();
        let (old, upstreams) = {
            let mut upstreams = self.upstreams.borrow_mut();
            (upstreams.insert(store, Upstream { number, stream: None, waiting }), self.upstreams.clone())
        };
        if let Some(old) = old.and_then(|old| old.stream) {
            self.router.net.close(&old);
        }
        let (router, session) = (self.router.clone(), self.session.clone());
        self.router.world.spawn(self.router.life, async move {
            router.world.sleep(micros(delay)).await;
            while !router.net.is_up(router.at, store) {
                router.world.sleep(50 * MS).await;
            }
            if upstreams.borrow().get(&store).is_none_or(|upstream| upstream.number != number) {
                return;
            }
            let own = Rc::new(RefCell::new(None));
            let of = own.clone();
            let hear = move |message| {
                if let Some(session) = session.upgrade() {
                    said(&session, store, number, message, of.borrow().clone());
                }
            };
            let stream = router.net.open(router.at, router.life, store, Box::new(hear));
            *own.borrow_mut() = Some(stream.clone());
            let mut upstreams = upstreams.borrow_mut();
            let Some(upstream) = upstreams.get_mut(&store) else { return };
            for message in upstream.waiting.drain(..) {
                router.net.send_in(&stream, message);
            }
            upstream.stream = Some(stream);
        });
    }

    fn send(&mut self, store: StoreIx, request: Bytes) -> bool {
        let mut upstreams = self.upstreams.borrow_mut();
        let (Some(upstream), Some(message)) = (upstreams.get_mut(&store), to_store(&request)) else {
            return false;
        };
        match &upstream.stream {
            None => upstream.waiting.push(message),
            Some(stream) if stream.is_open() => self.router.net.send_in(stream, message),
            Some(_) => return false,
        }
        true
    }

    fn close(&mut self, store: StoreIx) {
        let closed = self.upstreams.borrow_mut().remove(&store);
        if let Some(stream) = closed.and_then(|upstream| upstream.stream) {
            self.router.net.close(&stream);
        }
    }

    fn ask_store(&mut self, ask: Ask, store: StoreIx, ranges: Vec<(Bytes, Bytes)>) {
        let ranges = ranges.into_iter().map(|(key, end)| KeyRange::from_wire(key, end)).collect();
        let generation = self.router.generation();
        let request = Request::Raise { ranges, to: ask.to.unwrap_or(Revision::ZERO), generation };
        let (router, session) = (self.router.clone(), self.session.clone());
        self.router.world.spawn(self.router.life, async move {
            let raised = router.world.within(micros(ROUND_MAX), router.call(store, request)).await;
            let answer = match raised {
                Some(Ok(Reply::Raised { current, .. })) => Some(current),
                _ => None,
            };
            if let Some(session) = session.upgrade() {
                session.post(|inbox| inbox.asked.push_back((ask, answer)));
            }
        });
    }

    fn ask_feed(&mut self, ask: Ask, feed: &Reader) {
        let (current, session) = (feed.hold.feed.current(), self.session.clone());
        self.router.world.spawn(self.router.life, async move {
            let answer = current.await.and_then(Result::ok);
            if let Some(session) = session.upgrade() {
                session.post(|inbox| inbox.asked.push_back((ask, answer)));
            }
        });
    }

    fn give_up_asking(&mut self) {}

    fn ask_present(&mut self, uid: i64, feed: &Reader) {
        let (feed, session, world) =
            (feed.hold.feed.clone(), self.session.clone(), self.router.world.clone());
        self.router.world.spawn(self.router.life, async move {
            let asking = async {
                loop {
                    match feed.current().await {
                        Some(Ok(present)) => return Present::At(present),
                        _ if feed.has_ended() => return Present::Ended,
                        _ => world.sleep(ASK_AGAIN).await,
                    }
                }
            };
            let present = world.within(micros(CREATE_WAIT), asking).await.unwrap_or(Present::Away);
            if let Some(session) = session.upgrade() {
                session.post(|inbox| inbox.present.push_back((uid, present)));
            }
        });
    }

    fn show(&mut self, spread: &[KindPrefix], revision: Revision) {
        self.router.shown.show(spread, revision);
    }

    fn show_of_store(
        &mut self,
        store: StoreIx,
        spread: &[KindPrefix],
        revision: Revision,
        generation: Epoch,
        (key, range_end): (&[u8], &[u8]),
    ) {
        let now =
            |routes: &Routes| place(key, range_end, routes).map(|(_, spread)| spread).unwrap_or_default();
        shown::show(&*self.router, store, spread, revision, generation, now);
    }

    fn begun(&mut self, _: i64, _: &WatchCreateRequest<'_>) {}

    fn ended(&mut self, _: i64) {}

    fn delivered(&mut self, _: i64, _: usize, _: Option<Revision>) {}

    fn count(&mut self, _: Count) {}
}

/// A store's messages as the bytes that a shard sends.
fn said(session: &Session, store: StoreIx, number: u64, message: StreamOut, stream: Option<Rc<Stream>>) {
    let mut all = Vec::new();
    match message {
        StreamOut::Watch(items) => {
            for item in &items {
                encode::watch(&SHARD_IDS, item, FRAGMENT_BYTES, |bytes| all.push(Said::Message(bytes)));
            }
        }
        StreamOut::WatchRefused(id, header, refused) => {
            let reason = not_owned(&refused).message();
            all.push(Said::Message(encode::watch_refused(&SHARD_IDS, header, Some(id), &reason)));
        }
        StreamOut::Broken => all.push(Said::Broken),
        _ => {}
    }
    let last = all.len().saturating_sub(1);
    session.post(|inbox| {
        for (at, said) in all.into_iter().enumerate() {
            // The shard makes another message when all of this one is taken.
            let taken = stream.clone().filter(|_| at == last && matches!(said, Said::Message(_)));
            inbox.upstream.push_back((store, number, said, taken));
        }
    });
}

/// A request of the machine's as the simulated shard takes it.
fn to_store(request: &Bytes) -> Option<StreamIn> {
    match WatchRequest::parse(request).expect("the machine writes requests") {
        WatchRequest::Create(create) => Some(StreamIn::Watch(WatchSpec {
            range: KeyRange::from_wire(
                Bytes::copy_from_slice(create.key),
                Bytes::copy_from_slice(create.range_end),
            ),
            start: Revision::from_wire(create.start_revision),
            id: Some(WatchId(create.watch_id)),
            prev_kv: create.prev_kv,
            no_put: create.no_put,
            no_delete: create.no_delete,
            progress_notify: create.progress_notify,
            fragment: create.fragment,
        })),
        WatchRequest::Cancel(cancel) => Some(StreamIn::Cancel(cancel.watch_id)),
        WatchRequest::Progress => Some(StreamIn::Progress),
        WatchRequest::Nothing => None,
    }
}

/// A reader's hold on a feed, as the machine uses it.
pub struct Reader {
    hold: Hold,
    /// Whether the feed claims to be at every wanted revision (a sabotage of R7).
    eager: bool,
    wanted: Cell<Revision>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl FeedReader for Reader {
    fn take(&self, position: Revision, passed: &mut Passed, limit: Limit) -> Take {
        let mut take = self.hold.feed.take(position, passed, limit);
        if let Take::Taken(taken) = &mut take
            && self.eager
            && !taken.more
        {
            taken.next = taken.next.max(self.wanted.get().next());
        }
        take
    }

    fn look(&self, stand: Stand, limit: Limit) -> Option<Taken<Events>> {
        self.hold.feed.look(stand, limit)
    }

    fn encoded(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Encoded> {
        self.hold.feed.encoded(entries, filter)
    }

    fn present(&self) -> Option<Stand> {
        self.hold.feed.present()
    }

    fn covered(&self) -> Option<Revision> {
        self.hold.feed.covered()
    }

    fn want(&self, to: Revision) {
        self.wanted.set(to);
        self.hold.feed.want(to);
    }

    fn generation(&self) -> Epoch {
        self.hold.feed.generation()
    }

    fn is_placed_by(&self, generation: Epoch) {
        self.hold.feed.is_placed_by(generation);
    }

    fn has_ended(&self) -> bool {
        self.hold.feed.has_ended()
    }

    fn has_moved(&self) -> bool {
        self.hold.feed.has_moved()
    }
}
