//! The map that a simulated router uses, how it takes a newer one, and how requests wait for that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::state::ClusterState;
use kindred_router::execute::order::{ORDER_MAX, Ordered};
use kindred_router::execute::routed::Waits;
use kindred_router::meta::client::Entries;
use kindred_router::meta::take;
use kindred_router::move_buffer::Patience;
use kindred_router::routing::shown::{self, Showing, Taken};
use kindred_router_core::routes::Routes;
use kindred_router_core::shown::ShownRevisions;
use kindred_router_core::standing::Standing;
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::refusal::KindredError;
use tokio::sync::Notify;
use tonic::Status;

use super::reads::refused;
use super::{Router, Session};
use crate::messages::{Reply, Request};
use crate::sabotage::Sabotage;
use crate::world::{Answer, Micros, answer};

/// How long an answer waits for a store.
#[expect(clippy::cast_possible_truncation, reason = "it is seconds")]
const ORDER_LIMIT: Micros = ORDER_MAX.as_micros() as Micros;

/// The map and the state in use, and the tasks that wait for newer ones.
pub struct Known {
    routes: RefCell<Arc<Routes>>,
    state: RefCell<Arc<ClusterState>>,
    entries: RefCell<Arc<Entries>>,
    taken: Taken,
    standing: Standing,
    /// Told when a question to any store has ended.
    stood: Notify,
    highest_shown: RefCell<BTreeMap<StoreIx, Revision>>,
    /// Tasks that wait for a newer map, or for changes in meta.
    waiting: RefCell<Vec<Answer<()>>>,
    hearing: RefCell<Vec<Answer<()>>>,
    sessions: RefCell<Vec<std::rc::Weak<Session>>>,
}

impl Known {
    /// Begins with this state.
    pub fn new(state: Arc<ClusterState>) -> Self {
        let routes = take::routes(&state);
        Self {
            taken: Taken::new(routes.generation()),
            routes: RefCell::new(Arc::new(routes)),
            standing: Standing::default(),
            stood: Notify::new(),
            highest_shown: RefCell::default(),
            state: RefCell::new(state),
            entries: RefCell::default(),
            waiting: RefCell::default(),
            hearing: RefCell::default(),
            sessions: RefCell::default(),
        }
    }
}

fn wake(waiting: &RefCell<Vec<Answer<()>>>) {
    let all = std::mem::take(&mut *waiting.borrow_mut());
    all.into_iter().for_each(|waiting| waiting.send(()));
}

impl Router {
    /// The map that requests see.
    #[must_use]
    pub fn routes(&self) -> Arc<Routes> {
        self.known.routes.borrow().clone()
    }

    #[must_use]
    pub fn generation(&self) -> Epoch {
        self.known.routes.borrow().generation()
    }

    pub(super) fn state(&self) -> Arc<ClusterState> {
        self.known.state.borrow().clone()
    }

    pub(super) fn entries(&self) -> Arc<Entries> {
        self.known.entries.borrow().clone()
    }

    pub(super) fn publish(&self, entries: Arc<Entries>) {
        *self.known.entries.borrow_mut() = entries;
        wake(&self.known.hearing);
    }

    /// Takes a state into use, as [`MetaStore::take`](kindred_router::meta::store::MetaStore::take) does.
    pub(super) fn take(&self, state: Arc<ClusterState>) {
        if !take::replaces(&state, &self.known.state.borrow()) {
            return;
        }
        let routes = take::routes(&state);
        self.meta.cache(self.at, state.clone());
        *self.known.state.borrow_mut() = state;
        if routes.generation() <= self.generation() {
            return;
        }
        self.world.note(format_args!("r{} takes map {:?}", self.at, routes.generation()));
        shown::replace(self, routes);
        wake(&self.known.waiting);
        self.tell_sessions(Session::new_map);
    }

    /// Tells all sessions.
    pub(super) fn tell_sessions(&self, news: impl Fn(&Session)) {
        self.known.sessions.borrow_mut().retain(|session| match session.upgrade() {
            Some(session) => {
                news(&session);
                true
            }
            None => false,
        });
    }

    /// Registers a session, which then hears of newer maps and of compactions.
    pub(super) fn tell(&self, session: &Rc<Session>) {
        self.known.sessions.borrow_mut().push(Rc::downgrade(session));
    }

    /// Waits for changes in meta.
    pub(super) async fn news(&self, limit: Micros) {
        let (told, news) = answer();
        self.known.hearing.borrow_mut().push(told);
        self.world.within(limit, news).await;
    }

    /// Waits for a newer map.
    async fn newer(&self, known: Epoch, limit: Micros) {
        if self.generation() > known {
            return;
        }
        let (told, newer) = answer();
        self.known.waiting.borrow_mut().push(told);
        self.world.within(limit, newer).await;
    }

    /// The time since the world's beginning.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_micros(self.world.now())
    }

    /// The revision that answers of a read must have at least.
    pub(super) fn at_least(&self, spread: &[KindPrefix]) -> Revision {
        if self.is(Sabotage::ForgetfulRouter) { Revision::ZERO } else { shown::min_revision(self, spread) }
    }
}

impl Showing for Router {
    fn routes(&self) -> Arc<Routes> {
        Self::routes(self)
    }

    fn set_routes(&self, routes: Arc<Routes>) {
        *self.known.routes.borrow_mut() = routes;
    }

    fn taken(&self) -> &Taken {
        &self.known.taken
    }

    fn shown(&self) -> &ShownRevisions {
        &self.shown
    }

    fn standing(&self) -> &Standing {
        &self.known.standing
    }

    fn shards(&self) -> Vec<StoreIx> {
        self.stores().collect()
    }

    fn is_shard(&self, _: StoreIx) -> bool {
        true
    }

    fn begun(&self, _: StoreIx) -> Revision {
        // There are no handshakes here, so a router learns of a start from the first answer.
        Revision::ZERO
    }

    fn highest_shown(&self, store: StoreIx) -> Revision {
        self.known.highest_shown.borrow().get(&store).copied().unwrap_or(Revision::ZERO)
    }

    fn shows(&self, store: StoreIx, revision: Revision) {
        let shown = &mut *self.known.highest_shown.borrow_mut();
        let shown = shown.entry(store).or_insert(revision);
        *shown = revision.max(*shown);
    }
}

impl Ordered for Router {
    fn stood(&self, _: StoreIx) -> &Notify {
        &self.known.stood
    }

    fn is_away(&self, store: StoreIx) -> bool {
        // The product asks a store that did not answer anew when its next handshake has gone well.
        !self.net.is_up(self.at, store) || self.is(Sabotage::NoOrder)
    }

    async fn raise(&self, store: StoreIx, kind: &KindPrefix, to: Revision) -> Result<Revision, Status> {
        let request = Request::Raise { ranges: vec![kind.range()], to, generation: Epoch::NONE };
        let raised = self.net.once(self.at, store, request, ORDER_LIMIT).await;
        match raised.map_err(refused)? {
            Reply::Raised { current, .. } => Ok(current),
            _ => Err(Status::internal("another answer")),
        }
    }

    fn unordered(&self, store: StoreIx, kind: &KindPrefix, revision: Revision) {
        if !self.is(Sabotage::NoOrder) {
            self.world.note(format_args!("r{} shows {revision} of {kind} without s{}", self.at, store.0));
            let kind = self.topology.kind_of(kind.as_key());
            self.history.write().unordered.insert((kind, revision));
        }
    }
}

/// A request whose keys may be moving.
pub struct Waiting<'r> {
    router: &'r Router,
    limit: Duration,
    patience: Option<Patience>,
}

impl<'r> Waiting<'r> {
    /// A request whose client waits so long.
    pub fn new(router: &'r Router, limit: Micros) -> Self {
        let limit = router.elapsed() + Duration::from_micros(limit);
        Self { router, limit, patience: None }
    }
}

impl Waits for Waiting<'_> {
    fn known(&self) -> Epoch {
        self.router.generation()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        let now = self.router.elapsed();
        let patience = self.patience.get_or_insert_with(|| Patience::new(now, self.limit));
        let Some(pause) = patience.pause(now) else {
            return Err(grpc::refusal(&KindredError::UnitMoving { key: Vec::new() }));
        };
        let pause = Micros::try_from(pause.as_micros()).unwrap_or(0).max(1);
        self.router.newer(known, pause).await;
        if self.router.generation() > known {
            patience.map_came();
        }
        Ok(())
    }
}
