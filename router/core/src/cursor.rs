//! The position of a client's watch, and what it reads next.
//!
//! A watch is only a position: the first revision that its client has not been given. It reads the *live* ring of its
//! feed if that reaches back far enough. Otherwise it reads a *catch-up*, the same merge begun further back, and
//! changes over to the live ring as soon as that holds its position. Both have the same events in the same order, so a
//! position means the same in either, and the change neither loses nor repeats anything. A watch whose client is slow
//! may fall behind again, and then repeats this from its position.

use kindred_partition_config::ids::Revision;

use crate::feed_ring::{FeedRing, Read, Start};
use crate::watch_merge::Entry;

/// The limits of a read.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Read no revision above this, because a promise at it is under way (R7).
    pub last: Option<Revision>,
    /// The approximate number of bytes to read; the first revision is read however large it is.
    pub bytes: usize,
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look<T> {
    /// Whole revisions in order, possibly none.
    Taken(Taken<T>),
    /// The ring has dropped what comes next.
    Behind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken<T> {
    pub entries: Vec<Entry<T>>,
    /// The position behind the entries, or behind the ring's watermark if that is further.
    pub next: Revision,
    /// Whether a limit left entries unread.
    pub more: bool,
}

/// Reads a ring at a position.
#[must_use]
pub fn look<T: Clone>(ring: &FeedRing<T>, position: Revision, limit: Limit) -> Look<T> {
    let Start::Here(mut cursor) = ring.start(position) else { return Look::Behind };
    let Read::Entries { entries: [front, back], watermark } = ring.read_from(&mut cursor, limit.bytes) else {
        return Look::Behind;
    };
    let within = |revision: Revision| limit.last.is_none_or(|last| revision <= last);
    let read = front.len() + back.len();
    let entries: Vec<_> =
        front.iter().chain(back).take_while(|entry| within(entry.revision)).cloned().collect();
    let all = entries.len() == read;
    let next = match limit.last {
        None => cursor.next(),
        // Entries that the limit cut off lie above it, so everything up to it was read. A position never goes back.
        Some(last) => cursor.next().min(last.next()).max(position),
    };
    Look::Taken(Taken { entries, next, more: watermark.is_none() && all })
}

#[cfg(test)]
#[path = "cursor_test.rs"]
mod tests;
