//! Puts the evidence into chains: acknowledged writes first, then reads, then events.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use super::{Chain, Entry, Log, Source};
use crate::bytes::{Key, Value};
use crate::config::Config;
use crate::effects::{self, Effect};
use crate::history::{Event, EventKind, History, KeyValue, LeaseId, Operation, Revision};
use crate::report::{Check, Report};
use crate::watch::WatchView;

type Chains = BTreeMap<Key, BTreeMap<Revision, Entry>>;

pub(super) fn collect(
    log: &mut Log,
    history: &History,
    watches: &[WatchView<'_>],
    config: &Config,
    report: &mut Report,
) {
    let split = config.split_delete_ranges;
    let mut collector = Collector { chains: Chains::new(), split, report };
    for operation in &history.operations {
        collector.acknowledged(operation);
    }
    for operation in &history.operations {
        collector.keys_of(operation);
        for view in effects::reads(operation) {
            for kv in view.kvs.iter().filter(|_| !view.count_only) {
                collector.read(operation, kv);
            }
        }
    }
    for watch in watches {
        for item in &watch.events {
            collector.event(watch, item.event);
        }
    }
    for (key, entries) in collector.chains {
        let domain = config.domain(&key);
        let mut entries: Vec<Entry> = entries.into_values().collect();
        for entry in &mut entries {
            entry.lost = config.gap(&domain, entry.revision).is_some();
        }
        log.chains.insert(key, Chain { domain, entries, unseen: 0 });
    }
}

struct Collector<'r> {
    chains: Chains,
    /// The header of a DeleteRange is only an upper bound of the revisions at which it deleted keys.
    split: bool,
    report: &'r mut Report,
}

impl Collector<'_> {
    fn acknowledged(&mut self, operation: &Operation) {
        let Some(revision) = operation.outcome.header() else { return };
        let source = Source::Acknowledged(operation.id);
        for effect in effects::acknowledged(operation) {
            match effect {
                Effect::Put { key, value, lease } => {
                    self.add(key, put(revision, value, lease, None, source));
                }
                Effect::Delete { range, deleted, previous } => {
                    for kv in previous {
                        if range.is_one() || !self.split {
                            self.add(kv.key, delete(revision, source));
                        } else {
                            self.chains.entry(kv.key).or_default();
                        }
                    }
                    if range.is_one() && deleted.is_some_and(|deleted| deleted > 0) {
                        self.add(range.key, delete(revision, source));
                    }
                }
            }
        }
    }

    /// Gives a chain also to a key that clients only tried to write, so that its absence is known.
    fn keys_of(&mut self, operation: &Operation) {
        for effect in effects::possible(&operation.request) {
            if let Effect::Put { key, .. } = effect {
                self.chains.entry(key).or_default();
            }
        }
    }

    fn read(&mut self, operation: &Operation, kv: &KeyValue) {
        let known = Some((kv.create, kv.version));
        let entry = put(kv.modified, kv.value.clone(), kv.lease, known, Source::Read(operation.id));
        self.add(kv.key.clone(), entry);
    }

    fn event(&mut self, watch: &WatchView<'_>, event: &Event) {
        let (kv, source) = (&event.kv, Source::Event(watch.watch.id));
        let entry = match event.kind {
            EventKind::Put => {
                put(kv.modified, kv.value.clone(), kv.lease, Some((kv.create, kv.version)), source)
            }
            EventKind::Delete => delete(kv.modified, source),
        };
        self.add(kv.key.clone(), entry);
    }

    fn add(&mut self, key: Key, entry: Entry) {
        match self.chains.entry(key.clone()).or_default().entry(entry.revision) {
            Slot::Vacant(slot) => {
                slot.insert(entry);
            }
            Slot::Occupied(mut slot) => {
                let known = slot.get_mut();
                if let Some(why) = contradiction(known, &entry) {
                    let message = format!("{key}: {why} at revision {}", entry.revision);
                    self.report.add(Check::Log, message, vec![format!("{known:?}"), format!("{entry:?}")]);
                    return;
                }
                known.create = known.create.or(entry.create);
                known.version = known.version.or(entry.version);
                for source in entry.sources {
                    if !known.sources.contains(&source) {
                        known.sources.push(source);
                    }
                }
            }
        }
    }
}

fn contradiction(known: &Entry, new: &Entry) -> Option<&'static str> {
    let differ = |a: Option<i64>, b: Option<i64>| matches!((a, b), (Some(a), Some(b)) if a != b);
    if known.kind != new.kind {
        return Some("both a PUT and a DELETE");
    }
    if known.value != new.value || known.lease != new.lease {
        return Some("two contents");
    }
    if differ(known.create.map(|r| r.0), new.create.map(|r| r.0)) || differ(known.version, new.version) {
        return Some("two create revisions or versions");
    }
    let two_writers = known.is_acknowledged() && new.is_acknowledged() && known.sources[0] != new.sources[0];
    two_writers.then_some("two acknowledged writes")
}

fn put(
    revision: Revision,
    value: Value,
    lease: LeaseId,
    known: Option<(Revision, i64)>,
    source: Source,
) -> Entry {
    Entry {
        revision,
        kind: EventKind::Put,
        value,
        lease,
        create: known.map(|(create, _)| create),
        version: known.map(|(_, version)| version),
        sources: vec![source],
        hole_before: false,
        lost: false,
    }
}

pub(super) fn delete(revision: Revision, source: Source) -> Entry {
    Entry {
        kind: EventKind::Delete,
        create: Some(Revision(0)),
        version: Some(0),
        ..put(revision, Value::default(), LeaseId(0), None, source)
    }
}
