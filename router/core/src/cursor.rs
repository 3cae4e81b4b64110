//! Where a client's watch stands, and what it reads next.
//!
//! A watch is nothing but a position: the first revision that its client has not been given. It reads the *live* ring of
//! its feed where that reaches back far enough. Otherwise it reads a *catch-up*, the same merge begun further back, and
//! goes over to the live ring as soon as that holds its position: both are the same order of the same events, so a
//! position means the same in either, and the change neither loses nor repeats anything. A watch that falls behind again,
//! because its client is slow, does the same again from where it stands.

use kindred_partition_config::ids::Revision;

use crate::feed_ring::{FeedRing, Read, Start};
use crate::watch_merge::Entry;

/// How far, and how much.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// No revision above this: a promise is under way (R7).
    pub last: Option<Revision>,
    /// About how many bytes; one revision is read however large.
    pub bytes: usize,
}

/// What lies at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look<T> {
    /// Whole revisions in order, maybe none.
    Taken(Taken<T>),
    /// The ring has dropped what comes next.
    Behind,
}

/// What was read, and where that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken<T> {
    /// The revisions.
    pub entries: Vec<Entry<T>>,
    /// The position behind them, or behind the ring's watermark when that is further.
    pub next: Revision,
    /// Whether the limit left something unread that is there.
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
        // What the limit cut off lies above it, so all up to it was read. A position never goes back.
        Some(last) => cursor.next().min(last.next()).max(position),
    };
    Look::Taken(Taken { entries, next, more: watermark.is_none() && all })
}

#[cfg(test)]
#[path = "cursor_test.rs"]
mod tests;
