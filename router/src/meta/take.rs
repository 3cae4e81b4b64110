//! Takes a state into use: adds, changes and removes stores, then swaps the map in.

use std::collections::BTreeMap;
use std::sync::Arc;

use kindred_partition_config::ids::Slot;
use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::model::{LimitsConfig, StoreType};
use kindred_partition_config::state::{ClusterState, StoreObject, StoreState};
use kindred_router_core::parts::store_ix;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::{StoreIx, StoreKind};
use kindred_transport::{Drain, Endpoint};

use super::lineage::foreign;
use super::{Cluster, order};
use crate::identity::Identity;
use crate::leases::LeaseRouter;
use crate::routing::Routing;
use crate::stores::modes::Modes;
use crate::stores::{StoreSpec, Stores, background};
use crate::traffic::Traffic;

/// The configuration of a store, with those of its endpoints that are valid; errors of the others are added to `wrong`.
pub fn spec(store: &StoreObject, wrong: &mut Vec<String>) -> StoreSpec {
    let field = format!("servicegroups/{}.endpoints", store.name);
    let mut endpoints = Vec::new();
    for url in &store.endpoints {
        match Endpoint::parse_field(&field, url) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => wrong.push(error.to_string()),
        }
    }
    StoreSpec {
        name: store.name.clone(),
        kind: match store.store_type {
            StoreType::Shard => StoreKind::Shard,
            StoreType::Etcd => StoreKind::Etcd,
        },
        slot: store.slot.and_then(Slot::new),
        uuid: store.uuid.clone(),
        opens_at: store.opens_at,
        endpoints,
        primary: store.members.as_ref().map(|members| members.primary.clone()),
        has_standbys: store.members.is_some() && store.standby.is_some(),
    }
}

/// The map of a state, as far as the state is valid.
#[must_use]
pub fn routes(state: &ClusterState) -> Routes {
    let (used, _) = state.salvaged();
    let named = state.stores.iter().map(|store| {
        let kind = match store.store_type {
            StoreType::Shard => StoreKind::Shard,
            StoreType::Etcd => StoreKind::Etcd,
        };
        (store.name.0.clone(), kind)
    });
    let routes = Routes::new(used.map, used.scheme, named.collect(), store_ix(used.default));
    routes.of_generation(state.generation)
}

/// The durability modes that the state sets.
#[must_use]
pub fn modes(state: &ClusterState) -> Modes {
    Modes::new(state.revision, &state.salvaged().0.kinds)
}

/// The limits of Kinds.
#[must_use]
pub fn limits(state: &ClusterState) -> BTreeMap<KindPrefix, LimitsConfig> {
    let limited = state.salvaged().0.kinds.into_iter().filter(|kind| kind.limits != LimitsConfig::default());
    limited.map(|kind| (kind.kind, kind.limits)).collect()
}

/// Whether a state is to be used instead of the one in use: it is not older, and of the same cluster.
#[must_use]
pub fn replaces(state: &ClusterState, known: &ClusterState) -> bool {
    if order(state) < order(known) {
        return false;
    }
    if let Some(why) = foreign(known, state) {
        tracing::error!(why, "a state of another cluster is not used");
        return false;
    }
    true
}

/// Logs the fields of a state that have no effect, except those that were in the state before.
pub fn tell_without_effect(state: &ClusterState, before: Option<&ClusterState>) {
    let told = before.map(ClusterState::without_effect).unwrap_or_default();
    for field in state.without_effect().iter().filter(|field| !told.contains(field)) {
        tracing::warn!(
            field,
            "nothing is done with this field of an earlier version; remove it, and give the shards --history-max-bytes or --history-max-age"
        );
    }
}

/// Takes states into use and changes them. A state says which stores there are, so their tasks begin here.
#[derive(Debug)]
pub struct StateKeeper {
    /// The state, and the meta store that it comes from.
    pub cluster: Arc<Cluster>,
    pub(crate) stores: Stores,
    pub(crate) routing: Arc<Routing>,
    pub(crate) leases: Arc<LeaseRouter>,
    pub(crate) identity: Arc<Identity>,
    /// What is told the limits of Kinds.
    pub(crate) traffic: Arc<Traffic>,
    /// Ends the tasks of stores.
    pub(crate) drain: Drain,
}

impl StateKeeper {
    /// Takes a state into use unless it is older than the present one. Of an invalid state, which no router writes, the
    /// valid part is used: requests for the rest fail, and the next state is taken as usual.
    pub fn take(self: &Arc<Self>, state: Arc<ClusterState>) {
        self.cluster.known.send_if_modified(|known| {
            if !replaces(&state, known) {
                return false;
            }
            // Under the channel's lock, so that states are taken one at a time and in order.
            let wrong = self.take_sound(&state);
            self.note_unsound(&state, wrong);
            let changed = *known != state;
            tell_without_effect(&state, Some(known));
            *known = state;
            changed
        });
    }

    fn note_unsound(&self, state: &ClusterState, wrong: Vec<String>) {
        let before = self.cluster.unsound();
        for problem in wrong.iter().filter(|problem| !before.contains(problem)) {
            tracing::error!(
                generation = state.generation.0,
                revision = state.revision,
                problem,
                "the cluster state is not sound: this part of it is not gone by"
            );
        }
        if wrong.is_empty() && !before.is_empty() {
            tracing::info!(revision = state.revision, "the cluster state is sound again");
        }
        self.cluster.unsound.send_replace(wrong.into());
    }

    /// Takes the valid part of the state into use; returns what is wrong with the rest.
    fn take_sound(self: &Arc<Self>, state: &ClusterState) -> Vec<String> {
        let (_, errors) = state.salvaged();
        let mut wrong: Vec<_> = errors.iter().map(ToString::to_string).collect();
        // Before the stores, because an added store is told the modes in its first handshake.
        self.stores.set_modes(modes(state));
        self.traffic.kinds.set_limits(&state.scheme(), &limits(state));
        for (at, object) in state.stores.iter().enumerate() {
            let spec = spec(object, &mut wrong);
            let gone = object.state == StoreState::Removed;
            let known = at < self.stores.len();
            let taken = match known {
                false => self.stores.add(spec).map(|store| {
                    if !gone {
                        background::start(self, &store.clone());
                    }
                }),
                true if !gone => self.stores.replace(StoreIx(at), spec),
                true => Ok(()),
            };
            if let Err(error) = taken {
                wrong.push(error.to_string());
                if !known {
                    // The map names stores by their places, so without this store it cannot be used at all.
                    return wrong;
                }
            }
            if gone && !self.stores.get(StoreIx(at)).is_removed() {
                self.stores.remove(StoreIx(at));
            }
        }
        if let Some((default, _)) = state.store(&state.default) {
            self.stores.set_default(store_ix(default));
        }
        self.routing.swap(routes(state));
        wrong
    }
}
