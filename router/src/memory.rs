//! How much memory answers may take in a router. A router has no data of its own: lists that it reads from stores, and
//! answers that clients are slow to read, are what may grow.

use kindred_router_core::admission::Limits;
use kindred_transport::unread;

/// The part of the memory for the answers of long lists that are being read from stores.
const LISTS_PART: u64 = 8;
/// The part for answers that clients have not read yet.
const UNREAD_PART: u64 = 4;
/// A bound that is smaller would refuse what every cluster needs.
const LEAST: u64 = 16 << 20;

/// The bounds of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Predicted bytes of the answers of all long lists that run.
    pub lists: u64,
    /// Bytes of all answers that are not read yet.
    pub unread: usize,
}

/// The bounds for so much memory: never more than the usual ones, which hold too where the memory is unknown.
#[must_use]
pub fn bounds(memory: Option<u64>) -> Bounds {
    let usual = Bounds { lists: Limits::default().bytes, unread: unread::Limits::default().bytes };
    let Some(memory) = memory else { return usual };
    let part = |of: u64| (memory / of).max(LEAST);
    let unread = usize::try_from(part(UNREAD_PART)).unwrap_or(usual.unread);
    Bounds { lists: part(LISTS_PART).min(usual.lists), unread: unread.min(usual.unread) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f41_answers_take_less_where_there_is_little_memory() {
        assert_eq!(bounds(Some(512 << 20)), Bounds { lists: 64 << 20, unread: 128 << 20 });
        assert_eq!(bounds(Some(1)), Bounds { lists: 16 << 20, unread: 16 << 20 });
        assert_eq!(bounds(Some(64 << 30)), bounds(None));
        assert_eq!(bounds(None), Bounds { lists: 256 << 20, unread: 1 << 30 });
    }
}
