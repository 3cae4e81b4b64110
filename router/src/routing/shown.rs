//! Takes a newer map into use, and notes what is shown by it; the text of [`routing`](super) says why so. [`Showing`] is
//! what this uses of a router: [`Routing`](super::Routing), or a simulated one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::shown::ShownRevisions;
use kindred_router_core::standing::Standing;
use kindred_router_core::store::StoreIx;

/// How far the present map has been taken over; each field is a generation.
#[derive(Debug)]
pub struct Taken {
    /// Requests may use this map.
    begun: AtomicU64,
    /// New requests use this map.
    swapped: AtomicU64,
    /// What was shown under earlier maps has been noted.
    settled: AtomicU64,
}

impl Taken {
    /// All of a map of this generation is taken over.
    #[must_use]
    pub fn new(generation: Epoch) -> Self {
        let at = || AtomicU64::new(generation.0);
        Self { begun: at(), swapped: at(), settled: at() }
    }
}

/// What this uses of a router.
pub trait Showing {
    /// The map that requests see.
    fn routes(&self) -> Arc<Routes>;
    /// Replaces it.
    fn set_routes(&self, routes: Arc<Routes>);
    /// How far the present map has been taken over.
    fn taken(&self) -> &Taken;
    /// What was shown of spread Kinds.
    fn shown(&self) -> &ShownRevisions;
    /// What their stores have promised.
    fn standing(&self) -> &Standing;
    /// All shards.
    fn shards(&self) -> Vec<StoreIx>;
    /// Whether the store is a shard.
    fn is_shard(&self, store: StoreIx) -> bool;
    /// Where the store began.
    fn begun(&self, store: StoreIx) -> Revision;
    /// The highest revision that the store has shown.
    fn highest_shown(&self, store: StoreIx) -> Revision;
    /// Notes that the store shows this revision.
    fn shows(&self, store: StoreIx, revision: Revision);
}

/// Replaces the map; calls must not overlap.
pub fn replace(router: &impl Showing, routes: Routes) {
    let generation = routes.generation();
    let old = router.routes();
    let new = Arc::new(routes);
    router.taken().begun.store(generation.0, Ordering::SeqCst);
    router.set_routes(new.clone());
    router.taken().swapped.store(generation.0, Ordering::SeqCst);
    for kind in new.spread_in(&KeyRange::everything()) {
        let range = KeyRange::prefix(kind.as_key().clone());
        let stores = new.parts_of(&range).into_iter().flat_map(|part| part.stores);
        let begun = stores.map(|store| router.begun(store)).max();
        router.shown().show(std::slice::from_ref(&kind), begun.unwrap_or(Revision::ZERO));
        if old.spread_in(&range).contains(&kind) {
            continue;
        }
        let stores = old.parts_of(&range).into_iter().flat_map(|part| part.stores);
        let shown = stores.filter(|store| router.is_shard(*store));
        let highest = shown.map(|store| router.highest_shown(store)).max().unwrap_or(Revision::ZERO);
        router.shown().show(&[kind], highest);
    }
    router.taken().settled.store(generation.0, Ordering::SeqCst);
}

/// The revision that answers of a read of these spread Kinds must have at least; zero for none. By the present map.
pub fn min_revision(router: &impl Showing, spread: &[KindPrefix]) -> Revision {
    let shown = router.shown().of(spread);
    let settled = router.taken().settled.load(Ordering::SeqCst);
    if spread.is_empty() || router.taken().begun.load(Ordering::SeqCst) <= settled {
        return shown;
    }
    // The map has just changed, and what was shown before is still being noted, so any store may have shown it.
    router.shards().into_iter().map(|store| router.highest_shown(store)).fold(shown, Revision::max)
}

/// Notes that a header of a store goes to a client; call it before the bytes leave. The answer was made by the map of
/// this generation, under which `spread` are its Kinds on several stores; `now` computes them for another map.
pub fn show(
    router: &impl Showing,
    store: StoreIx,
    spread: &[KindPrefix],
    revision: Revision,
    generation: Epoch,
    now: impl FnOnce(&Routes) -> Vec<KindPrefix>,
) {
    if !router.is_shard(store) {
        return;
    }
    router.shows(store, revision);
    router.shown().show(spread, revision);
    if router.taken().swapped.load(Ordering::SeqCst) > generation.0 {
        router.shown().show(&now(&router.routes()), revision);
    }
}
