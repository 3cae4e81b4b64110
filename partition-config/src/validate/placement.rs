//! Finds the placement of a range: one store or a ring. A Kind on several stores must not include a stock etcd,
//! because an etcd can neither be raised to another store's revision nor read at it.

use std::collections::BTreeSet;

use super::{FieldErrors, Input, KindRange, Range, unknown_store};
use crate::{
    key::KeyRange,
    kind::{KindPrefix, KindScheme},
    map::{PartitionMap, Placement},
    model::{DataPartitionConfig, RingConfig, StoreConfig, StoreType},
    ring::{
        BUCKETS, BucketTable,
        fill::{self, Member},
    },
};

/// The placement that a partition asks for; `None` after an error. Without a valid range, a ring's table would be
/// useless, so only its stores are checked.
pub(super) fn of(
    config: &DataPartitionConfig,
    path: &str,
    input: &Input<'_>,
    range: Option<&KindRange>,
    errors: &mut FieldErrors,
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
            let store = input.names.get(name).copied();
            if store.is_none() {
                unknown_store(format!("{path}.serviceGroupId"), name, input.draining, errors);
            }
            store.map(Placement::Single)
        }
        (None, Some(ring)) => of_ring(ring, path, input, range, errors),
    }
}

fn of_ring(
    ring: &RingConfig,
    path: &str,
    input: &Input<'_>,
    range: Option<&KindRange>,
    errors: &mut FieldErrors,
) -> Option<Placement> {
    let before = errors.len();
    let path = format!("{path}.ring.stores");
    if ring.stores.is_empty() {
        errors.add(path.as_str(), "the ring has no store", "name two or more");
    }
    let mut stores = Vec::with_capacity(ring.stores.len());
    for (i, name) in ring.stores.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match input.names.get(name) {
            None => unknown_store(path, name, input.draining, errors),
            Some(_) if ring.stores[..i].contains(name) => {
                errors.add(path, format!("store {:?} is named twice", name.0), "remove one of the two");
            }
            Some(store) => stores.push(Member { name: name.0.clone(), store: *store, weight: 1 }),
        }
    }
    if errors.len() > before {
        return None;
    }
    // The table is even and depends only on what all routers know: the stores' names, and the map in use if there
    // is one.
    let from = match input.in_use.zip(range).and_then(|(map, range)| table_in_use(map, range)) {
        Some(table) => Ok(table),
        None => fill::hashed(&stores),
    };
    match from.and_then(|table| fill::levelled(&table, &stores)) {
        Ok(table) => Some(Placement::Ring(Box::new(table))),
        Err(error) => {
            errors.add(path, error.to_string(), "change the list of stores");
            None
        }
    }
}

/// The current owners of a range's buckets, so that a ring moves no more than it must. If the range spans several
/// partitions, a ring among them counts, else the first one. Any table is a correct start; this one saves moves.
fn table_in_use(map: &PartitionMap, (kind, start, end): &KindRange) -> Option<BucketTable> {
    let end = end.clone().unwrap_or_else(|| kind.end());
    let span = &KeyRange::Span { start: start.clone(), end: Some(end) };
    let rings = map.overlapping(span).find_map(|partition| match &partition.placement {
        Placement::Ring(table) if partition.kind.is_some() => Some((**table).clone()),
        _ => None,
    });
    rings.or_else(|| {
        let first = map.overlapping(span).next()?.placement.single()?;
        Some(BucketTable::new([first; BUCKETS]))
    })
}

/// Refuses a stock etcd in a ring or beside another store of the same Kind.
pub(super) fn joins_no_etcd(
    kind: &KindPrefix,
    ranges: &[Range<'_>],
    stores: &[StoreConfig],
    scheme: &KindScheme,
    errors: &mut FieldErrors,
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
