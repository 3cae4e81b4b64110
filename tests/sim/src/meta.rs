//! The meta store: keys with compare-and-swap, leases and watches. It can be away, lose the answer to a transaction,
//! and come back with older data or none.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use kindred_partition_config::state::ClusterState;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::mvccpb::{self, event::EventType};
use kindred_router::meta::client::{Entries, Expect, Stored, Write};
use kindred_router::meta::{MetaError, STATE, order, take};
use kindred_router::moves::records;

use crate::history::History;
use crate::world::{Bell, MS, Micros, NATURE, SECOND, World};

/// How long a router waits for an answer.
const DEADLINE: Micros = 3 * SECOND;

#[derive(Debug)]
struct Kept {
    value: Bytes,
    mod_revision: i64,
    lease: i64,
}

#[derive(Debug, Default)]
struct Data {
    revision: i64,
    keys: BTreeMap<String, Kept>,
    leases: BTreeMap<i64, Micros>,
    /// Every event, with its revision.
    log: Vec<(i64, mvccpb::Event)>,
}

/// A router's watch of all keys.
pub struct Watch {
    router: usize,
    queue: RefCell<VecDeque<pb::WatchResponse>>,
    /// When the last message arrives.
    last: Cell<Micros>,
    broken: Cell<bool>,
    bell: Bell,
}

/// The store, and the cache file of each router.
pub struct MetaStore {
    world: World,
    history: Rc<History>,
    data: RefCell<Data>,
    away: Cell<bool>,
    /// Routers that cannot reach it.
    cut: RefCell<Vec<bool>>,
    breaks: Cell<u64>,
    watches: RefCell<Vec<Rc<Watch>>>,
    leases: Cell<i64>,
    /// The last state of each router: `--meta-cache`.
    caches: RefCell<Vec<Arc<ClusterState>>>,
}

/// Whether the transaction may be made.
fn holds(data: &Data, expect: &Expect) -> bool {
    data.keys.get(&expect.key).map_or(0, |kept| kept.mod_revision) == expect.mod_revision
}

impl MetaStore {
    /// A meta store with this state, for so many routers.
    #[must_use]
    pub fn new(world: &World, history: &Rc<History>, state: &Arc<ClusterState>, routers: usize) -> Rc<Self> {
        let store = Rc::new(Self {
            world: world.clone(),
            history: history.clone(),
            data: RefCell::default(),
            away: Cell::new(false),
            cut: RefCell::new(vec![false; routers]),
            breaks: Cell::new(0),
            watches: RefCell::default(),
            leases: Cell::new(0),
            caches: RefCell::new(vec![state.clone(); routers]),
        });
        store.write(vec![Write::put(STATE, state.to_json())]);
        let (this, of) = (store.clone(), world.clone());
        world.spawn(NATURE, async move {
            loop {
                of.sleep(SECOND / 2).await;
                this.expire();
            }
        });
        store
    }

    /// The state in a router's cache file.
    #[must_use]
    pub fn cached(&self, router: usize) -> Arc<ClusterState> {
        self.caches.borrow()[router].clone()
    }

    /// Writes the state to a router's cache file.
    pub fn cache(&self, router: usize, state: Arc<ClusterState>) {
        self.caches.borrow_mut()[router] = state;
    }

    // ---- faults

    /// Makes it unreachable for a while, for one router or for all.
    pub fn lose(self: &Rc<Self>, router: Option<usize>, how_long: Micros) {
        self.world.note(format_args!("meta is away from {router:?} for {how_long}"));
        let set = move |store: &Self, gone: bool| match router {
            Some(router) => store.cut.borrow_mut()[router] = gone,
            None => store.away.set(gone),
        };
        set(self, true);
        self.break_all(router);
        let store = self.clone();
        self.world.after(how_long, NATURE, move || set(&store, false));
    }

    /// Makes it unreachable for a while, and drops its last writes.
    pub fn roll_back(self: &Rc<Self>, writes: usize, how_long: Micros) {
        self.lose(None, how_long);
        let data = &mut *self.data.borrow_mut();
        let upto = data.revision.saturating_sub(i64::try_from(writes).unwrap_or(i64::MAX)).max(0);
        self.world.note(format_args!("meta goes back from {} to {upto}", data.revision));
        data.log.retain(|(revision, _)| *revision <= upto);
        data.revision = upto;
        data.keys.clear();
        for (revision, event) in &data.log {
            let Some(kv) = &event.kv else { continue };
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            if event.r#type == i32::from(EventType::Delete) {
                data.keys.remove(&key);
            } else {
                data.keys
                    .insert(key, Kept { value: kv.value.clone(), mod_revision: *revision, lease: kv.lease });
            }
        }
    }

    pub fn calm_down(&self) {
        self.away.set(false);
        self.cut.borrow_mut().fill(false);
    }

    fn break_all(&self, router: Option<usize>) {
        self.breaks.set(self.breaks.get() + 1);
        self.watches.borrow_mut().retain(|watch| {
            let broken = router.is_none_or(|router| router == watch.router);
            if broken {
                watch.broken.set(true);
                watch.bell.ring();
            }
            !broken
        });
    }

    fn is_up(&self, router: usize) -> bool {
        !self.away.get() && !self.cut.borrow()[router]
    }

    fn delay(&self) -> Micros {
        self.world.between(50, 2 * MS)
    }

    // ---- calls

    /// Executes something at the store. Only the error `Unavailable` says that it was not executed.
    async fn call<T>(&self, router: usize, does: impl FnOnce(&Self) -> T) -> Result<T, MetaError> {
        let before = self.breaks.get();
        self.world.sleep(self.delay()).await;
        if !self.is_up(router) {
            let silent = if self.world.chance(20) { DEADLINE } else { MS };
            self.world.sleep(silent).await;
            return Err(MetaError::Unavailable("away".to_owned()));
        }
        self.expire();
        let done = does(self);
        self.world.sleep(self.delay()).await;
        if self.breaks.get() != before && !self.is_up(router) {
            return Err(MetaError::Unknown("the connection broke".to_owned()));
        }
        Ok(done)
    }

    /// Reads one key.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn get(&self, router: usize, key: &str) -> Result<Option<Stored>, MetaError> {
        let stored = |kept: &Kept| Stored { value: kept.value.clone(), mod_revision: kept.mod_revision };
        self.call(router, |store| store.data.borrow().keys.get(key).map(stored)).await.map_err(unread)
    }

    /// Reads all keys.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn list(&self, router: usize) -> Result<Entries, MetaError> {
        self.call(router, Self::entries).await.map_err(unread)
    }

    #[must_use]
    pub fn entries(&self) -> Entries {
        let data = self.data.borrow();
        let stored = |kept: &Kept| Stored { value: kept.value.clone(), mod_revision: kept.mod_revision };
        let keys = data.keys.iter().map(|(key, kept)| (key.clone(), stored(kept))).collect();
        Entries { revision: data.revision, keys }
    }

    /// Makes all writes if all conditions hold.
    ///
    /// # Errors
    /// When it cannot be asked, or its answer is lost.
    pub async fn commit(
        &self,
        router: usize,
        expects: &[Expect],
        writes: Vec<Write>,
    ) -> Result<Option<i64>, MetaError> {
        self.call(router, |store| {
            let holds = expects.iter().all(|expect| holds(&store.data.borrow(), expect));
            let lives = writes.iter().all(|write| store.lives(write.lease));
            (holds && lives).then(|| store.write(writes))
        })
        .await
    }

    /// Writes a key if it is attached to this lease.
    ///
    /// # Errors
    /// As above.
    pub async fn commit_under(&self, router: usize, lease: i64, write: Write) -> Result<bool, MetaError> {
        self.call(router, |store| {
            let ours = store.data.borrow().keys.get(&write.key).is_some_and(|kept| kept.lease == lease);
            ours && store.write(vec![write]) > 0
        })
        .await
    }

    /// Grants a lease of so long.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn grant(&self, router: usize, ttl: Micros) -> Result<i64, MetaError> {
        self.call(router, |store| {
            store.leases.set(store.leases.get() + 1);
            let id = store.leases.get();
            store.data.borrow_mut().leases.insert(id, store.world.now() + ttl);
            id
        })
        .await
    }

    /// Renews a lease; `false` if it is over.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn renew(&self, router: usize, lease: i64, ttl: Micros) -> Result<bool, MetaError> {
        let until = self.world.now() + ttl;
        let renew = |store: &Self| store.data.borrow_mut().leases.get_mut(&lease).map(|end| *end = until);
        self.call(router, renew).await.map(|renewed| renewed.is_some())
    }

    /// Watches all keys from a revision on.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn watch(&self, router: usize, from: i64) -> Result<Rc<Watch>, MetaError> {
        let watch = |store: &Self| {
            let watch = Rc::new(Watch {
                router,
                queue: RefCell::default(),
                last: Cell::new(0),
                broken: Cell::new(false),
                bell: Bell::default(),
            });
            let data = store.data.borrow();
            let missed = data.log.iter().filter(|(revision, _)| *revision >= from).cloned();
            let missed: Vec<_> = missed.map(|(_, event)| event).collect();
            if !missed.is_empty() {
                store.tell(&watch, data.revision, missed);
            }
            store.watches.borrow_mut().push(watch.clone());
            watch
        };
        self.call(router, watch).await.map_err(unread)
    }

    // ---- what it does

    fn lives(&self, lease: i64) -> bool {
        lease == 0 || self.data.borrow().leases.contains_key(&lease)
    }

    /// Ends the leases that are due, and deletes their keys.
    pub fn expire(&self) {
        let now = self.world.now();
        let gone: Vec<Write> = {
            let mut data = self.data.borrow_mut();
            data.leases.retain(|_, end| *end > now);
            let over = data
                .keys
                .iter()
                .filter(|(_, kept)| kept.lease != 0 && !data.leases.contains_key(&kept.lease));
            over.map(|(key, _)| Write { value: None, ..Write::put(key.clone(), "") }).collect()
        };
        if !gone.is_empty() {
            self.write(gone);
        }
    }

    fn write(&self, writes: Vec<Write>) -> i64 {
        let (revision, events) = {
            let data = &mut *self.data.borrow_mut();
            data.revision += 1;
            let revision = data.revision;
            let mut events = Vec::new();
            for Write { key, value, lease } in writes {
                let mut kv = mvccpb::KeyValue {
                    key: key.clone().into(),
                    mod_revision: revision,
                    lease,
                    ..mvccpb::KeyValue::default()
                };
                let kind = match value {
                    Some(value) => {
                        kv.value = value.clone();
                        data.keys.insert(key, Kept { value, mod_revision: revision, lease });
                        EventType::Put
                    }
                    None => {
                        data.keys.remove(&key);
                        EventType::Delete
                    }
                };
                events.push(mvccpb::Event { r#type: kind.into(), kv: Some(kv), prev_kv: None });
            }
            data.log.extend(events.iter().map(|event| (revision, event.clone())));
            (revision, events)
        };
        self.note(revision, &events);
        for watch in self.watches.borrow().iter() {
            self.tell(watch, revision, events.clone());
        }
        revision
    }

    /// Records decisions of moves and maps.
    fn note(&self, revision: i64, events: &[mvccpb::Event]) {
        let changed = |prefix: &str| {
            let mut keys = events.iter().filter_map(|event| event.kv.as_ref());
            keys.any(|kv| kv.key.starts_with(prefix.as_bytes()))
        };
        let entries = self.entries();
        if changed(STATE)
            && let Some(stored) = entries.keys.get(STATE)
            && let Ok(state) = ClusterState::from_json(&stored.value)
        {
            self.world.note(format_args!("meta {revision}: state {:?}", order(&state)));
            self.history.decided(Arc::new(take::routes(&state)));
        }
        for (record, at) in records(&entries).into_values().filter(|(_, at)| *at == revision) {
            let (phase, term, goal) = (record.phase, record.term, record.goal);
            self.world.note(format_args!(
                "meta {at}: move {} {phase:?} {goal:?} term {} of {} {:?}",
                record.id.0, term.0, record.coordinator, record.reason
            ));
        }
    }

    fn tell(&self, watch: &Rc<Watch>, revision: i64, events: Vec<mvccpb::Event>) {
        let header = Some(pb::ResponseHeader { revision, ..pb::ResponseHeader::default() });
        let message = pb::WatchResponse { header, events, ..pb::WatchResponse::default() };
        let late = if self.world.chance(5) { self.world.between(MS, 200 * MS) } else { self.delay() };
        let at = (self.world.now() + late).max(watch.last.get());
        watch.last.set(at);
        let to = watch.clone();
        self.world.after(at - self.world.now(), NATURE, move || {
            to.queue.borrow_mut().push_back(message);
            to.bell.ring();
        });
    }
}

impl Watch {
    /// The next message.
    ///
    /// # Errors
    /// When it has broken.
    pub async fn next(&self) -> Result<pb::WatchResponse, MetaError> {
        loop {
            if self.broken.get() {
                return Err(MetaError::Unavailable("the watch broke".to_owned()));
            }
            if let Some(message) = self.queue.borrow_mut().pop_front() {
                return Ok(message);
            }
            self.bell.rung().await;
        }
    }
}

/// A read changes nothing, so its result is never unknown.
fn unread(error: MetaError) -> MetaError {
    match error {
        MetaError::Unknown(why) => MetaError::Unavailable(why),
        error => error,
    }
}
