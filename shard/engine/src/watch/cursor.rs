//! Reading the event logs from the position of a watch or feed.

use std::{cmp::Reverse, collections::BinaryHeap};

use kindred_partition_config::{ids::Revision, key::KeyRange, unit::Unit};

use crate::{
    engine::Event,
    keyspace::Keyspace,
    space::{KindId, Space},
    units::table::View,
    version::Version,
};

/// What is read.
pub(super) struct Want<'a> {
    /// Events of any of these.
    pub ranges: &'a [KeyRange],
    /// They are many, one behind the other: see [`are_in_order`].
    pub in_order: bool,
    /// From this revision on.
    pub from: Revision,
    /// With the version before.
    pub prev_kv: bool,
    /// Without puts.
    pub no_put: bool,
    /// Without deletions.
    pub no_delete: bool,
    /// Of these keyspaces.
    pub view: &'a View,
    /// Only keys of this unit.
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

/// Ranges that are looked at one by one: for few, that is the quickest.
const FEW: usize = 8;

/// Whether these are more than a few and no two of them hold one key; puts them in their order where they may be.
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

/// How far a read may go.
pub(super) struct Bounds {
    /// The last revision wanted now.
    pub last: Revision,
    /// Stop before a revision that brings the events above this; the first one is always whole.
    pub max_bytes: usize,
    /// Events that may still be looked at.
    pub scan: usize,
}

/// What was read.
pub(super) struct Batch {
    pub events: Vec<Event>,
    pub bytes: usize,
    /// Where to go on, when something published was not looked at.
    pub next: Option<Revision>,
    /// The event at which it stopped because that is not published. Events behind it may be, of another Kind.
    pub unpublished: Option<Revision>,
    /// What is left of the scan budget.
    pub scan: usize,
}

/// The events that are still to be given, whole revisions only.
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
    // Where the current revision's events begin in the batch.
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

/// Several logs as one, in the order of revisions.
struct Merge<'e, I: Iterator<Item = &'e Event>> {
    logs: Vec<I>,
    /// The next event of each log: its order, and which log.
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
