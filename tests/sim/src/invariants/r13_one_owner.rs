//! **R13**, **R15**: at most one store serves a key at any time. Every event of a key is published by the store that
//! owns it by the newest map that was decided by then.

use kindred_router_core::plan::Placement as _;

use crate::history::Record;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    for published in &record.events {
        let decided = record.maps.iter().rev().find(|(order, _)| *order < published.order);
        let Some((_, routes)) = decided else { continue };
        let owner = routes.store_of(&published.event.key);
        if owner != published.store {
            return Err(format!(
                "store {} published {} at {}, though map {:?} gave the key to store {}",
                published.store.0,
                published.event.key.escape_ascii(),
                published.event.revision,
                routes.generation(),
                owner.0
            ));
        }
    }
    Ok(())
}
