//! Keeps the revisions shown of spread Kinds, those on several stores, correct across changes of the map (R4).
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
use std::sync::atomic::Ordering;

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;

use crate::app::App;
use crate::stores::Store;

impl App {
    /// Replaces the map; calls must not overlap.
    pub(crate) fn replace(&self, routes: Routes) {
        let generation = routes.generation();
        let old = self.routes.load_full();
        let new = Arc::new(routes);
        self.taken.begun.store(generation.0, Ordering::SeqCst);
        self.routes.store(new.clone());
        self.taken.swapped.store(generation.0, Ordering::SeqCst);
        for kind in new.spread_in(&KeyRange::everything()) {
            let range = KeyRange::prefix(kind.as_key().clone());
            let stores = new.parts_of(&range).into_iter().flat_map(|part| part.stores);
            let begun = stores.map(|store| self.stores.get(store).begun()).max();
            self.shown.show(std::slice::from_ref(&kind), begun.unwrap_or(Revision::ZERO));
            if old.spread_in(&range).contains(&kind) {
                continue;
            }
            let stores = old.parts_of(&range).into_iter().flat_map(|part| part.stores);
            let shown = stores.map(|store| self.stores.get(store)).filter(|store| store.is_shard());
            let highest = shown.map(|store| store.highest_shown()).max().unwrap_or(Revision::ZERO);
            self.shown.show(&[kind], highest);
        }
        self.taken.settled.store(generation.0, Ordering::SeqCst);
    }

    /// Notes that a shard, which is about to be up, began at or below this revision.
    pub(crate) fn store_begun(&self, store: &Store, at: Revision) {
        store.has_begun(at);
        let routes = self.routes.load();
        let has_part = |kind: &KindPrefix| {
            let range = KeyRange::prefix(kind.as_key().clone());
            routes.parts_of(&range).iter().any(|part| part.stores.contains(&store.index))
        };
        let kinds: Vec<KindPrefix> =
            routes.spread_in(&KeyRange::everything()).into_iter().filter(has_part).collect();
        // With an empty list this shows nothing, unless one revision stands for all Kinds.
        self.shown.show(&kinds, at);
    }

    /// The revision that answers of a read of these spread Kinds must have at least; zero for none. By the present map.
    pub(crate) fn min_revision(&self, spread: &[KindPrefix]) -> Revision {
        let shown = self.shown.of(spread);
        let settled = self.taken.settled.load(Ordering::SeqCst);
        if spread.is_empty() || self.taken.begun.load(Ordering::SeqCst) <= settled {
            return shown;
        }
        // The map has just changed, and what was shown before is still being noted, so any store may have shown it.
        let shards = self.stores.iter().filter(|store| store.is_shard());
        shards.map(|store| store.highest_shown()).fold(shown, Revision::max)
    }

    /// Notes that a header of a store goes to a client; call it before the bytes leave. The answer was made by the map
    /// of this generation, under which `spread` are its Kinds on several stores; `now` computes them for another map.
    pub(crate) fn show(
        &self,
        store: &Store,
        spread: &[KindPrefix],
        revision: Revision,
        generation: Epoch,
        now: impl FnOnce(&Routes) -> Vec<KindPrefix>,
    ) {
        if !store.is_shard() {
            return;
        }
        store.shows(revision);
        self.shown.show(spread, revision);
        if self.taken.swapped.load(Ordering::SeqCst) > generation.0 {
            self.shown.show(&now(&self.routes.load()), revision);
        }
    }
}
