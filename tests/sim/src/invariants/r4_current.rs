//! **R4**: the current revision of a Kind at a shard never goes back, and is a promise: no event at or below it is
//! still to come.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use crate::history::Record;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    let mut shown = BTreeMap::new();
    let mut currents = record.currents.iter().peekable();
    for published in &record.events {
        while let Some(current) = currents.next_if(|current| current.order < published.order) {
            follow(&mut shown, current)?;
        }
        let (store, revision) = (published.store, published.event.revision);
        if let Some(promised) = shown.get(&(store, published.kind)).filter(|shown| **shown >= revision) {
            return Err(format!("store {} published {revision}, though it showed {promised}", store.0));
        }
    }
    currents.try_for_each(|current| follow(&mut shown, current))
}

type Shown = BTreeMap<(kindred_router_core::store::StoreIx, usize), Revision>;

fn follow(shown: &mut Shown, current: &crate::history::Current) -> Result<(), String> {
    let before = shown.insert((current.store, current.kind), current.current);
    match before.filter(|before| *before > current.current) {
        Some(before) => {
            Err(format!("store {} went back from {before} to {}", current.store.0, current.current))
        }
        None => Ok(()),
    }
}
