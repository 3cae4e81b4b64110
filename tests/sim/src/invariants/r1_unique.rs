//! **R1**: no two shards ever assign the same revision, and each shard's grow: a revision is one atomic change of one
//! shard.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;
use kindred_router_core::store::StoreIx;

use crate::history::Record;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    let mut owners: BTreeMap<Revision, StoreIx> = BTreeMap::new();
    let mut last: BTreeMap<(StoreIx, usize), Revision> = BTreeMap::new();
    for published in &record.events {
        let (store, revision) = (published.store, published.event.revision);
        if let Some(other) = owners.insert(revision, store).filter(|other| *other != store) {
            return Err(format!("stores {} and {} both assigned {revision}", other.0, store.0));
        }
        let last = last.entry((store, published.kind)).or_insert(Revision::ZERO);
        if revision < *last {
            return Err(format!("store {} published {revision} after {last}", store.0));
        }
        *last = revision;
    }
    Ok(())
}
