//! **Ownership** (docs/design.md): once all is quiet, the shards own what the newest map says, every key has an owner
//! that serves it, and nobody else does.

use crate::history::Record;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    match record.elsewhere_at_end.first() {
        Some(what) => Err(what.clone()),
        None => Ok(()),
    }
}
