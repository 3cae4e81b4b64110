//! The routing table, and the revisions shown by it: correct across changes of the map (R4).
//!
//! For a Kind on one store nothing is noted: the store's own order suffices. When a map spreads the Kind, the other
//! stores must not answer below what the first one has shown, and that one goes on showing until the last answer by the
//! old map has left. So the highest revision that each store has shown is kept: a map that spreads a Kind begins with
//! it, and an answer by an older map is noted under the present one. Both sides write first and read afterwards, in one
//! order of all threads (`SeqCst`): either the answer sees that the map has changed, or the change sees the answer.
//!
//! A spread Kind is never shown below the beginning of the youngest of its stores, because a watch may start at what
//! was shown, and a store has no history from before its beginning.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_router_core::consistent_read::RevisionScope;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::shown::ShownRevisions;
use kindred_router_core::standing::Standing;
use kindred_router_core::store::StoreIx;
use tokio::sync::{Notify, watch};
use tonic::Status;

use crate::execute::Deadline;
use crate::execute::order::{ORDER_MAX, Ordered};
use crate::execute::raise::raise;
use crate::feeds::place::wire;
use crate::move_buffer::{MoveBuffer, longest};
use crate::stores::{Store, Stores};
use shown::{Showing, Taken};

pub mod shown;

/// The map that requests go by.
#[derive(Debug)]
pub struct Routing {
    /// A request loads it once and so sees one whole map. Only [`Routing::swap`] replaces it.
    routes: ArcSwap<Routes>,
    /// The generation of `routes`, for tasks that wait for a newer one.
    generation: watch::Sender<Epoch>,
    taken: Taken,
    /// The highest revisions shown of Kinds that are on several stores.
    shown: ShownRevisions,
    /// What the stores of such Kinds have promised.
    standing: Standing,
    /// Limits the requests that wait while their keys move.
    pub(crate) move_buffer: MoveBuffer,
    stores: Stores,
}

impl Routing {
    /// Begins with this map, which places keys at these stores.
    #[must_use]
    pub fn new(routes: Routes, stores: Stores, scope: RevisionScope) -> Arc<Self> {
        Arc::new(Self {
            generation: watch::Sender::new(routes.generation()),
            taken: Taken::new(routes.generation()),
            routes: ArcSwap::from_pointee(routes),
            shown: ShownRevisions::new(scope),
            standing: Standing::default(),
            move_buffer: MoveBuffer::default(),
            stores,
        })
    }

    /// The map, for a short look: the guard must not be kept across an await.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// The map, to be kept.
    #[must_use]
    pub fn load_full(&self) -> Arc<Routes> {
        self.routes.load_full()
    }

    /// The writes that wait because their keys move.
    #[must_use]
    pub fn waiting_writes(&self) -> longest::Waits {
        self.move_buffer.waiting_writes()
    }

    /// Replaces the map if this one is newer. All its stores must have been added before. Requests that began by the
    /// old map finish by it.
    pub fn swap(&self, routes: Routes) {
        let generation = routes.generation();
        self.generation.send_if_modified(|known| {
            let newer = generation > *known;
            if newer {
                // Stored before the generation is announced, and under the channel's lock, so that two swaps cannot
                // overtake each other.
                shown::replace(self, routes);
                *known = generation;
            }
            newer
        });
    }

    /// A receiver of the map's generation, to wait for a newer one.
    #[must_use]
    pub fn generations(&self) -> watch::Receiver<Epoch> {
        self.generation.subscribe()
    }

    /// Notes that a shard, which is about to be up, began at or below this revision.
    pub(crate) fn store_begun(&self, store: &Store, at: Revision) {
        store.has_begun(at);
        self.standing.forget(store.index);
        let routes = self.load();
        let has_part = |kind: &KindPrefix| {
            let range = KeyRange::prefix(kind.as_key().clone());
            routes.parts_of(&range).iter().any(|part| part.stores.contains(&store.index))
        };
        let kinds: Vec<KindPrefix> =
            routes.spread_in(&KeyRange::everything()).into_iter().filter(has_part).collect();
        // With an empty list this shows nothing, unless one revision stands for all Kinds.
        self.shown.show(&kinds, at);
    }

    /// What was shown of the Kinds on several stores that the store has a part of.
    pub(crate) fn shown_of(&self, store: &Store) -> Vec<(KindPrefix, Revision)> {
        let routes = self.load();
        let kinds = routes.spread_in(&KeyRange::everything()).into_iter();
        let here = kinds.filter(|kind| routes.shards_of_spread(kind).any(|shard| shard == store.index));
        here.map(|kind| (kind.clone(), self.shown.of(&[kind]))).collect()
    }

    /// Asks a store again what it has not answered, so that answers wait for it again when it does.
    pub(crate) fn ask_again(store: &Arc<Store>) {
        let Some((kind, to)) = store.stands().again() else { return };
        let store = store.clone();
        tokio::spawn(async move {
            let deadline = Deadline::within(2 * ORDER_MAX);
            let asked = raise(&store, vec![wire(&kind.range())], to, Epoch::NONE, deadline);
            store.stands().asked_again(tokio::time::timeout(ORDER_MAX, asked).await.is_ok());
        });
    }

    /// The revision that answers of a read of these spread Kinds must have at least; zero for none. By the present map.
    pub(crate) fn min_revision(&self, spread: &[KindPrefix]) -> Revision {
        shown::min_revision(self, spread)
    }

    /// Notes that a header, an event or a progress answer shows this revision of these Kinds.
    pub(crate) fn show(&self, spread: &[KindPrefix], revision: Revision) {
        self.shown.show(spread, revision);
    }

    /// Notes that a header of a store goes to a client; call it before the bytes leave. The answer was made by the map
    /// of this generation, under which `spread` are its Kinds on several stores; `now` computes them for another map.
    pub(crate) fn show_of_store(
        &self,
        store: &Store,
        spread: &[KindPrefix],
        revision: Revision,
        generation: Epoch,
        now: impl FnOnce(&Routes) -> Vec<KindPrefix>,
    ) {
        shown::show(self, store.index, spread, revision, generation, now);
    }
}

impl Showing for Routing {
    fn routes(&self) -> Arc<Routes> {
        self.load_full()
    }

    fn set_routes(&self, routes: Arc<Routes>) {
        self.routes.store(routes);
    }

    fn taken(&self) -> &Taken {
        &self.taken
    }

    fn shown(&self) -> &ShownRevisions {
        &self.shown
    }

    fn standing(&self) -> &Standing {
        &self.standing
    }

    fn shards(&self) -> Vec<StoreIx> {
        self.stores.iter().filter(|store| store.is_shard()).map(|store| store.index).collect()
    }

    fn is_shard(&self, store: StoreIx) -> bool {
        self.stores.get(store).is_shard()
    }

    fn begun(&self, store: StoreIx) -> Revision {
        self.stores.get(store).begun()
    }

    fn highest_shown(&self, store: StoreIx) -> Revision {
        self.stores.get(store).highest_shown()
    }

    fn shows(&self, store: StoreIx, revision: Revision) {
        self.stores.get(store).shows(revision);
    }
}

impl Ordered for Routing {
    fn stood(&self, store: StoreIx) -> &Notify {
        self.stores.get(store).stands().stood()
    }

    fn is_away(&self, store: StoreIx) -> bool {
        let store = self.stores.get(store);
        !store.state().is_up() || store.stands().is_silent()
    }

    async fn raise(&self, store: StoreIx, kind: &KindPrefix, to: Revision) -> Result<Revision, Status> {
        let store = self.stores.get(store);
        // Its own deadline is later, so that silence can be told from a refusal.
        let deadline = Deadline::within(2 * ORDER_MAX);
        let raised = raise(store, vec![wire(&kind.range())], to, Epoch::NONE, deadline);
        tokio::time::timeout(ORDER_MAX, raised).await.unwrap_or_else(|_| {
            store.stands().silent(kind, to);
            Err(deadline.passed())
        })
    }

    fn unordered(&self, store: StoreIx, _: &KindPrefix, _: Revision) {
        self.stores.get(store).stands().skipped();
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::kind::KindScheme;
    use kindred_partition_config::map::{PartitionMap, StoreIdx};
    use kindred_transport::{Connector, Workers};

    use super::*;

    fn routes(generation: u64) -> Routes {
        let map = PartitionMap::single(StoreIdx(0), Epoch(1));
        Routes::new(map, KindScheme::new("/registry"), Vec::new(), StoreIx(0))
            .of_generation(Epoch(generation))
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_newer_map_and_an_older_one_is_not_taken() {
        let stores = Stores::new(
            Connector::default(),
            Workers::default(),
            StoreIx(0),
            kindred_transport::clock::WallClock::System,
        );
        let routing = Routing::new(routes(1), stores, RevisionScope::Kind);
        let mut known = routing.generations();
        let waiting =
            tokio::spawn(async move { known.wait_for(|known| *known > Epoch(1)).await.map(|known| *known) });
        tokio::task::yield_now().await;
        routing.swap(routes(3));
        assert_eq!(waiting.await.unwrap().ok(), Some(Epoch(3)));
        routing.swap(routes(2));
        assert_eq!((routing.load().generation(), *routing.generations().borrow()), (Epoch(3), Epoch(3)));
    }
}
