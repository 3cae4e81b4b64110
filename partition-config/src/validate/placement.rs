//! Who serves a range: one store, or a ring of several. A Kind on several stores has no stock etcd among them: an etcd
//! can neither be raised to another store's revision nor read at it.

use std::collections::{BTreeSet, HashMap};

use super::{Errors, Range, unknown_store};
use crate::{
    ids::StoreName,
    kind::{KindPrefix, KindScheme},
    map::{Placement, StoreIdx},
    model::{DataPartitionConfig, RingConfig, StoreConfig, StoreType},
    ring::fill::{self, Member},
};

/// The placement that a partition asks for; `None` after errors were added.
pub(super) fn of(
    config: &DataPartitionConfig,
    path: &str,
    names: &HashMap<StoreName, StoreIdx>,
    errors: &mut Errors,
) -> Option<Placement> {
    match (&config.service_group_id, &config.ring) {
        (Some(_), Some(_)) => {
            let message = "both serviceGroupId and ring are given";
            errors.add(format!("{path}.ring"), message, "keep the one that is meant");
            None
        }
        (None, None) => {
            let what_to_do = "name the store that serves the range, or give ring: {stores: [...]}";
            errors.add(format!("{path}.serviceGroupId"), "no store is named", what_to_do);
            None
        }
        (Some(name), None) => {
            let store = names.get(name).copied();
            if store.is_none() {
                unknown_store(format!("{path}.serviceGroupId"), name, errors);
            }
            store.map(Placement::Single)
        }
        (None, Some(ring)) => of_ring(ring, path, names, errors),
    }
}

fn of_ring(
    ring: &RingConfig,
    path: &str,
    names: &HashMap<StoreName, StoreIdx>,
    errors: &mut Errors,
) -> Option<Placement> {
    let before = errors.0.len();
    let path = format!("{path}.ring.stores");
    if ring.stores.is_empty() {
        errors.add(path.as_str(), "the ring has no store", "name two or more");
    }
    let mut stores = Vec::with_capacity(ring.stores.len());
    for (i, name) in ring.stores.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match names.get(name) {
            None => unknown_store(path, name, errors),
            Some(_) if ring.stores[..i].contains(name) => {
                errors.add(path, format!("store {:?} is named twice", name.0), "remove one of the two");
            }
            Some(store) => stores.push(Member { name: name.0.clone(), store: *store, weight: 1 }),
        }
    }
    if errors.0.len() > before {
        return None;
    }
    // A function of the names alone, so that every router has the same table, and even.
    match fill::hashed(&stores).and_then(|table| fill::levelled(&table, &stores)) {
        Ok(table) => Some(Placement::Ring(Box::new(table))),
        Err(error) => {
            errors.add(path, error.to_string(), "change the list of stores");
            None
        }
    }
}

/// Refuses a stock etcd in a ring, or beside another store of a Kind.
pub(super) fn joins_no_etcd(
    kind: &KindPrefix,
    ranges: &[Range<'_>],
    stores: &[StoreConfig],
    scheme: &KindScheme,
    errors: &mut Errors,
) {
    let of_kind: BTreeSet<_> = ranges.iter().flat_map(|range| range.placement.stores()).collect();
    for range in ranges {
        let ring = range.placement.single().is_none();
        if !ring && of_kind.len() < 2 {
            continue;
        }
        for store in range.placement.stores() {
            let Some(store) = stores.get(usize::from(store.0)) else { continue };
            if store.store_type != StoreType::Etcd {
                continue;
            }
            let field = if ring { "ring.stores" } else { "serviceGroupId" };
            let message = format!(
                "store {:?} is a stock etcd, which cannot share {} with another store",
                store.name.0,
                scheme.name_of(kind)
            );
            let what_to_do = "give the whole Kind to it, or every range of the Kind to shards";
            errors.add(format!("{}.{field}", range.path), message, what_to_do);
        }
    }
}
