//! Reads the event logs from the position of a watch or feed.

use std::{cmp::Reverse, collections::BinaryHeap};

use kindred_partition_config::{ids::Revision, key::KeyRange, unit::Unit};

use crate::{
    keyspace::Keyspace,
    space::{KindId, Space},
    types::Event,
    units::table::View,
    version::Version,
};

/// Selects the events to read.
pub(super) struct Want<'a> {
    /// Ranges of the keys.
    pub ranges: &'a [KeyRange],
    /// Whether `ranges` are sorted and disjoint, see [`are_in_order`].
    pub in_order: bool,
    /// The first revision.
    pub from: Revision,
    /// Whether to add the previous version.
    pub prev_kv: bool,
    pub no_put: bool,
    pub no_delete: bool,
    /// The units that the reader sees.
    pub view: &'a View,
    /// If set, only keys of this unit.
    pub unit: Option<&'a Unit>,
}

impl Want<'_> {
    pub(super) fn takes(&self, version: &Version) -> bool {
        let filtered = if version.is_tombstone() { self.no_delete } else { self.no_put };
        !filtered
            && version.mod_revision() >= self.from
            && self.holds(version.key())
            && self.unit.is_none_or(|unit| unit.contains(version.key()))
            && !self.view.leaves_out(version.key())
    }
}

impl Want<'_> {
    fn holds(&self, key: &[u8]) -> bool {
        if !self.in_order {
            return self.ranges.iter().any(|range| range.contains(key));
        }
        let behind = self.ranges.partition_point(|range| first(range) <= key);
        behind.checked_sub(1).is_some_and(|at| self.ranges[at].contains(key))
    }
}

/// Up to this many ranges, a linear search is the fastest.
const FEW: usize = 8;

/// Sorts the ranges if there are more than a few. Returns whether they were, and are pairwise disjoint.
pub(super) fn are_in_order(ranges: &mut [KeyRange]) -> bool {
    if ranges.len() <= FEW {
        return false;
    }
    ranges.sort_by(|a, b| first(a).cmp(first(b)));
    ranges.windows(2).all(|pair| match &pair[0] {
        KeyRange::Single(key) => key.0.as_ref() < first(&pair[1]),
        KeyRange::Span { end, .. } => end.as_ref().is_some_and(|end| end.0.as_ref() <= first(&pair[1])),
    })
}

fn first(range: &KeyRange) -> &[u8] {
    range.start().0.as_ref()
}

/// The limits of one read.
pub(super) struct Bounds {
    /// The last revision to read.
    pub last: Revision,
    /// A revision that would bring the events above this size is left for later; the first revision is always read
    /// whole.
    pub max_bytes: usize,
    /// Events that may still be examined.
    pub scan: usize,
}

/// The result of one read.
pub(super) struct Batch {
    pub events: Vec<Event>,
    pub bytes: usize,
    /// The revision to continue at, if published events were left.
    pub next: Option<Revision>,
    /// The unpublished event at which the read stopped. Later events of another Kind may be published.
    pub unpublished: Option<Revision>,
    /// The rest of the scan budget.
    pub scan: usize,
}

/// Reads the next wanted events in revision order; a revision is never split.
pub(super) fn read(space: &Space, want: &Want<'_>, bounds: &Bounds) -> Batch {
    let mut homes: Vec<KindId> = want.ranges.iter().flat_map(|range| space.homes(range)).collect();
    homes.sort_unstable();
    homes.dedup();
    let unpublished = space.first_unpublished_in(want.ranges);
    if let ([KeyRange::Single(key)], [home]) = (want.ranges, homes.as_slice()) {
        return consume(want, bounds, unpublished, space.events_of(*home, key, want.from, want.view));
    }
    let spaces: Vec<&Keyspace> = homes.iter().flat_map(|home| space.spaces(*home, want.view)).collect();
    if let [keys] = spaces.as_slice()
        && keys.early_from(want.from).is_none()
    {
        return consume(want, bounds, unpublished, keys.events_from(want.from));
    }
    let mut logs: Vec<Box<dyn Iterator<Item = &Event>>> = Vec::new();
    for keys in spaces {
        logs.push(Box::new(keys.events_from(want.from)));
        if let Some(early) = keys.early_from(want.from) {
            logs.push(Box::new(early));
        }
    }
    consume(want, bounds, unpublished, Merge::new(logs))
}

fn consume<'e>(
    want: &Want<'_>,
    bounds: &Bounds,
    unpublished: Option<Revision>,
    events: impl Iterator<Item = &'e Event>,
) -> Batch {
    let mut batch = Batch { events: Vec::new(), bytes: 0, next: None, unpublished: None, scan: bounds.scan };
    let mut current = None;
    // Where the events of the current revision begin in the batch.
    let (mut whole, mut whole_bytes) = (0, 0);
    for event in events {
        let revision = event.kv.mod_revision();
        if unpublished.is_some_and(|first| revision >= first) {
            batch.unpublished = unpublished;
            break;
        }
        if current != Some(revision) {
            if revision > bounds.last || batch.scan == 0 || (whole_or_full(&batch, bounds)) {
                batch.next = Some(revision);
                break;
            }
            current = Some(revision);
            (whole, whole_bytes) = (batch.events.len(), batch.bytes);
        }
        batch.scan = batch.scan.saturating_sub(1);
        if !want.takes(&event.kv) {
            continue;
        }
        let prev = event.prev.as_ref().filter(|_| want.prev_kv).cloned();
        batch.bytes += event.kv.encoded_len() + prev.as_ref().map_or(0, Version::encoded_len) + 16;
        batch.events.push(Event { kv: event.kv.clone(), prev });
        if batch.bytes > bounds.max_bytes && whole > 0 {
            batch.events.truncate(whole);
            batch.bytes = whole_bytes;
            batch.next = Some(revision);
            break;
        }
    }
    batch
}

fn whole_or_full(batch: &Batch, bounds: &Bounds) -> bool {
    !batch.events.is_empty() && batch.bytes >= bounds.max_bytes
}

/// Merges several logs in revision order.
struct Merge<'e, I: Iterator<Item = &'e Event>> {
    logs: Vec<I>,
    /// The order of each log's next event, and the log's index.
    heads: BinaryHeap<Reverse<(Revision, u32, usize)>>,
    events: Vec<Option<&'e Event>>,
}

impl<'e, I: Iterator<Item = &'e Event>> Merge<'e, I> {
    fn new(logs: Vec<I>) -> Self {
        let events = vec![None; logs.len()];
        let mut merge = Self { logs, heads: BinaryHeap::new(), events };
        for which in 0..merge.logs.len() {
            merge.advance(which);
        }
        merge
    }

    fn advance(&mut self, which: usize) {
        let next = self.logs.get_mut(which).and_then(Iterator::next);
        if let Some(event) = next {
            let (revision, sub) = event.kv.order();
            self.heads.push(Reverse((revision, sub, which)));
        }
        if let Some(slot) = self.events.get_mut(which) {
            *slot = next;
        }
    }
}

impl<'e, I: Iterator<Item = &'e Event>> Iterator for Merge<'e, I> {
    type Item = &'e Event;

    fn next(&mut self) -> Option<&'e Event> {
        let Reverse((_, _, which)) = self.heads.pop()?;
        let event = self.events.get(which).copied().flatten();
        self.advance(which);
        event
    }
}
