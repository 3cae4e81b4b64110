//! **How moves end** (docs/design.md): once faults have stopped, every move that began comes to its end, whoever
//! coordinated it. A move that needs a store whose clock is an hour off waits for that clock (R3).

use crate::history::Record;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    match record.open_at_end.iter().find(|(_, bad)| !bad) {
        Some((what, _)) => Err(format!("a move has not ended: {what}")),
        None => Ok(()),
    }
}
