//! `/api/v1`: the types of objects, `/api/v1/version`: what runs, and `/openapi/v3`: the description of this API.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use kindred_partition_config::model::StoreType;

use super::answers::{ResourceList, ResourceShown, RouterVersion, StoreVersion, Versions};
use super::openapi;
use crate::moves::mover::Mover;
use crate::stores::state::Phase;

/// The types of objects. `kindred get` without a type shows them.
pub const RESOURCES: [ResourceShown; 4] = [
    ResourceShown {
        name: "datapartitionconfigs",
        singular_name: "datapartitionconfig",
        namespaced: false,
        kind: "DataPartitionConfig",
        verbs: &["create", "delete", "get", "list", "update", "watch"],
        short_names: &["dpc", "configs"],
    },
    ResourceShown {
        name: "servicegroups",
        singular_name: "servicegroup",
        namespaced: false,
        kind: "ServiceGroup",
        verbs: &["create", "delete", "get", "list", "update", "watch"],
        short_names: &["sg", "stores"],
    },
    ResourceShown {
        name: "moves",
        singular_name: "move",
        namespaced: false,
        kind: "Move",
        verbs: &["get", "list"],
        short_names: &[],
    },
    ResourceShown {
        name: "partitions",
        singular_name: "partition",
        namespaced: false,
        kind: "Partition",
        verbs: &["list"],
        short_names: &["map"],
    },
];

pub fn routes(mover: &Arc<Mover>) -> Router {
    let of = mover.clone();
    Router::new()
        .route("/api/v1", get(|| std::future::ready(Json(index()))))
        .route("/api/v1/version", get(move || std::future::ready(Json(versions(&of)))))
        .route("/openapi/v3", get(|| std::future::ready(Json(openapi::document()))))
}

fn index() -> ResourceList {
    ResourceList {
        kind: "APIResourceList",
        api_version: "v1",
        group_version: "v1",
        resources: RESOURCES.to_vec(),
    }
}

fn versions(of: &Mover) -> Versions {
    let stores = of.stores.iter().filter(|store| !store.is_removed()).map(|store| {
        let phase = store.state().phase();
        let version = match &*phase {
            Phase::Up(identity) => Some(identity.version.clone()),
            _ => None,
        };
        let store_type = if store.is_shard() { StoreType::Shard } else { StoreType::Etcd };
        StoreVersion { name: store.name().to_owned(), store_type, version, state: phase.word().to_owned() }
    });
    Versions { router: RouterVersion::new(&of.identity.name), stores: stores.collect() }
}
