//! The event log of every key, reconstructed from all evidence: acknowledged writes, reads and events.
//!
//! Invariants: a chain is sorted by revision and has one entry for each. An entry is a write that was acknowledged to
//! *some* client, or that some client saw. Between two entries something unseen may have happened: a write with
//! unknown outcome, an expired lease, or a write that was not recorded. There the state is `Uncertain` and no check
//! relies on it, unless a watch that covers the interval proves that nothing happened.

mod collect;
mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::bytes::{Key, Value};
use crate::config::{Config, Domain};
use crate::history::{EventKind, History, KeyRange, KeyValue, LeaseId, OperationId, Revision, WatchId};
use crate::report::Report;
use crate::watch::WatchView;

/// The evidence for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Acknowledged(OperationId),
    Read(OperationId),
    Event(WatchId),
    /// The outcome of the operation is unknown, but the operation would have written this entry.
    Unknown(OperationId),
}

/// One write of one key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) revision: Revision,
    pub(crate) kind: EventKind,
    pub(crate) value: Value,
    pub(crate) lease: LeaseId,
    pub(crate) create: Option<Revision>,
    pub(crate) version: Option<i64>,
    pub(crate) sources: Vec<Source>,
    /// Something unseen happened, or may have, between the entry before and this one.
    pub(crate) hole_before: bool,
    /// The revision lies in a gap (R10): a client saw it before a restart lost it.
    pub(crate) lost: bool,
}

impl Entry {
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, Source::Acknowledged(_)))
    }

    /// Whether a key-value that a client received is this version. Fields of the entry that are not known are not
    /// compared.
    pub(crate) fn shows(&self, kv: &KeyValue) -> bool {
        self.kind == EventKind::Put
            && self.revision == kv.modified
            && self.value == kv.value
            && self.lease == kv.lease
            && self.create.is_none_or(|create| create == kv.create)
            && self.version.is_none_or(|version| version == kv.version)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EventKind::Put => write!(f, "PUT ={}@{}", self.value, self.revision)?,
            EventKind::Delete => write!(f, "DELETE @{}", self.revision)?,
        }
        if let (Some(create), Some(version)) = (self.create, self.version) {
            write!(f, "(create {create}, version {version})")?;
        }
        write!(f, " known from {:?}", self.sources.iter().take(3).collect::<Vec<_>>())
    }
}

/// All known writes of one key.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) domain: Domain,
    pub(crate) entries: Vec<Entry>,
    /// The number of writes to this key that may have run without leaving evidence, or may still run.
    unseen: usize,
}

/// The state of a key at a revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State<'a> {
    Absent,
    Present(&'a Entry),
    Uncertain,
}

/// An interval of revisions of which a watch without filters delivered every event.
#[derive(Debug)]
struct Covered {
    range: KeyRange,
    from: Revision,
    to: Revision,
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) chains: BTreeMap<Key, Chain>,
    covered: Vec<Covered>,
    /// The operations with unknown outcome whose write was seen, and the revision of that write.
    pub(crate) visible: BTreeMap<OperationId, Revision>,
    starts_empty: bool,
    closed_world: bool,
    gaps: Vec<crate::config::Gap>,
}

impl Log {
    /// Collects the evidence, reports contradictions in it, and derives versions and holes.
    pub(crate) fn build(
        history: &History,
        watches: &[WatchView<'_>],
        config: &Config,
        report: &mut Report,
    ) -> Self {
        let covered = watches
            .iter()
            .filter(|w| !w.watch.options.no_put && !w.watch.options.no_delete)
            .filter_map(|w| Some((w, w.start?, w.covered?)))
            .map(|(w, from, to)| Covered { range: w.watch.range.clone(), from, to })
            .collect();
        let mut log = Self {
            chains: BTreeMap::new(),
            covered,
            visible: BTreeMap::new(),
            starts_empty: config.starts_empty,
            closed_world: config.closed_world,
            gaps: config.gaps.clone(),
        };
        collect::collect(&mut log, history, watches, config, report);
        resolve::resolve(&mut log, history, config, report);
        log
    }

    /// The known keys in a range, with their chains.
    pub(crate) fn range<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a Key, &'a Chain)> {
        let upper = match range.end.as_bytes() {
            [] => std::ops::Bound::Included(range.key.clone()),
            [0] => std::ops::Bound::Unbounded,
            _ if range.end <= range.key => std::ops::Bound::Excluded(range.key.successor()),
            _ => std::ops::Bound::Excluded(range.end.clone()),
        };
        self.chains
            .range((std::ops::Bound::Included(range.key.clone()), upper))
            .filter(|(key, _)| range.contains(key))
    }

    /// The domain of the range's first key, and those of all known keys in the range.
    pub(crate) fn domains(&self, range: &KeyRange, config: &Config) -> BTreeSet<Domain> {
        let mut domains: BTreeSet<Domain> =
            self.range(range).map(|(_, chain)| chain.domain.clone()).collect();
        domains.insert(config.domain(&range.key));
        domains
    }

    /// The entry of a key at exactly this revision.
    pub(crate) fn entry(&self, key: &Key, revision: Revision) -> Option<&Entry> {
        let entries = &self.chains.get(key)?.entries;
        entries.binary_search_by_key(&revision, |entry| entry.revision).ok().map(|index| &entries[index])
    }

    /// The state of a key after everything at or below this revision.
    pub(crate) fn state(&self, key: &Key, at: Revision) -> State<'_> {
        let Some(chain) = self.chains.get(key) else {
            return if self.starts_empty && self.closed_world { State::Absent } else { State::Uncertain };
        };
        if self.gaps.iter().any(|g| g.domain == chain.domain && at > g.durable && at < g.restart) {
            return State::Uncertain;
        }
        let next = chain.entries.partition_point(|entry| entry.revision <= at);
        let last = chain.entries[..next].iter().rev().find(|entry| !entry.lost);
        if self.may_have_changed(key, chain, last, next, at) {
            return State::Uncertain;
        }
        match last {
            Some(entry) if entry.kind == EventKind::Put => State::Present(entry),
            _ => State::Absent,
        }
    }

    fn may_have_changed(
        &self,
        key: &Key,
        chain: &Chain,
        last: Option<&Entry>,
        next: usize,
        at: Revision,
    ) -> bool {
        let since = last.map_or(Revision(0), |entry| entry.revision);
        if since == at || self.is_covered(key, since, at) {
            return last.is_none() && !self.starts_empty;
        }
        if let Some(following) = chain.entries[next..].iter().find(|entry| !entry.lost) {
            return following.hole_before;
        }
        let leased = last.is_some_and(|entry| entry.lease.0 != 0);
        chain.unseen > 0 || leased || !self.closed_world || (last.is_none() && !self.starts_empty)
    }

    /// Whether one watch delivered every event of the key in `(since, to]`.
    pub(crate) fn is_covered(&self, key: &Key, since: Revision, to: Revision) -> bool {
        self.covered.iter().any(|c| c.from <= since.next() && c.to >= to && c.range.contains(key))
    }

    /// The events of a range in `[from, to]`, in order of revision, without lost ones.
    pub(crate) fn events<'a>(
        &'a self,
        range: &'a KeyRange,
        from: Revision,
        to: Revision,
    ) -> Vec<(&'a Key, &'a Entry)> {
        let mut events = Vec::new();
        for (key, chain) in self.range(range) {
            let first = chain.entries.partition_point(|entry| entry.revision < from);
            let within = chain.entries[first..].iter().take_while(|entry| entry.revision <= to);
            events.extend(within.filter(|entry| !entry.lost).map(|entry| (key, entry)));
        }
        events.sort_by_key(|(_, entry)| entry.revision);
        events
    }
}
