//! A state into what requests use: stores are added, changed and removed, then the map is swapped in.

use std::sync::Arc;

use kindred_partition_config::ids::Slot;
use kindred_partition_config::model::StoreType;
use kindred_partition_config::state::{ClusterState, StoreObject, StoreState};
use kindred_partition_config::validate::{FieldError, Validated};
use kindred_router_core::parts::store_ix;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::{StoreIx, StoreKind};
use kindred_transport::Endpoint;

use super::order;
use crate::app::App;
use crate::stores::modes::Modes;
use crate::stores::{StoreSpec, background};

/// A store of the state as the router reaches it.
///
/// # Errors
/// When an endpoint is none; it names the store.
pub fn spec(store: &StoreObject) -> Result<StoreSpec, String> {
    let field = format!("servicegroups/{}.endpoints", store.name);
    let endpoints: Result<Vec<Endpoint>, _> =
        store.endpoints.iter().map(|url| Endpoint::parse_field(&field, url)).collect();
    Ok(StoreSpec {
        name: store.name.clone(),
        kind: match store.store_type {
            StoreType::Shard => StoreKind::Shard,
            StoreType::Etcd => StoreKind::Etcd,
        },
        slot: store.slot.and_then(Slot::new),
        uuid: store.uuid.clone(),
        opens_at: store.opens_at,
        endpoints: endpoints.map_err(|error| error.to_string())?,
    })
}

/// The map of a state.
///
/// # Errors
/// When the state is not valid; all that is wrong.
pub fn routes(state: &ClusterState) -> Result<Routes, String> {
    let validated = validated(state)?;
    let named = state.stores.iter().map(|store| {
        let kind = match store.store_type {
            StoreType::Shard => StoreKind::Shard,
            StoreType::Etcd => StoreKind::Etcd,
        };
        (store.name.0.clone(), kind)
    });
    let routes = Routes::new(validated.map, validated.scheme, named.collect(), store_ix(validated.default));
    Ok(routes.of_generation(state.generation.0))
}

/// How durable the state wants each Kind to be.
///
/// # Errors
/// When the state is not valid; all that is wrong.
pub fn modes(state: &ClusterState) -> Result<Modes, String> {
    Ok(Modes::new(state.revision, &validated(state)?.kinds))
}

fn validated(state: &ClusterState) -> Result<Validated, String> {
    let texts = |errors: Vec<FieldError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    state.validated().map_err(|errors| texts(errors).join("; "))
}

impl App {
    /// Goes by this state from now on, unless it is older than the one in use. A state that cannot be used leaves
    /// everything as it is, and the log says why.
    pub fn take(self: &Arc<Self>, state: Arc<ClusterState>) {
        self.cluster.known.send_if_modified(|known| {
            if order(&state) < order(known) {
                return false;
            }
            // Under the channel's lock: two states are never taken at once, nor in the wrong order.
            if let Err(error) = self.take_checked(&state) {
                tracing::error!(
                    generation = state.generation.0,
                    revision = state.revision,
                    error,
                    "the cluster state cannot be used; the last one stays"
                );
                return false;
            }
            let changed = *known != state;
            *known = state;
            changed
        });
    }

    fn take_checked(self: &Arc<Self>, state: &ClusterState) -> Result<(), String> {
        let (routes, modes) = (routes(state)?, modes(state)?);
        // First: a store that is added is told them with its first handshake.
        self.stores.set_modes(modes);
        let specs = state.stores.iter().map(spec).collect::<Result<Vec<_>, String>>()?;
        for (at, (spec, object)) in specs.into_iter().zip(&state.stores).enumerate() {
            let gone = object.state == StoreState::Removed;
            let said = |error: crate::stores::StoreListError| error.to_string();
            if at >= self.stores.len() {
                let store = self.stores.add(spec).map_err(said)?.clone();
                if !gone {
                    background::start(self, &store);
                }
            } else if !gone {
                self.stores.replace(StoreIx(at), spec).map_err(said)?;
            }
            if gone && !self.stores.get(StoreIx(at)).is_removed() {
                self.stores.remove(StoreIx(at));
            }
        }
        if let Some((default, _)) = state.store(&state.default) {
            self.stores.set_default(store_ix(default));
        }
        self.swap(routes);
        Ok(())
    }
}
