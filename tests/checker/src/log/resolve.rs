//! Derives which operation wrote each entry, the versions of the entries, and where something unseen may have happened.

use std::collections::BTreeMap;

use super::collect::delete;
use super::{Chain, Entry, Log, Source};
use crate::bytes::{Key, Value};
use crate::config::{Config, Domain};
use crate::effects::{self, Effect};
use crate::history::{EventKind, History, KeyRange, Operation, OperationId, Outcome, Revision};
use crate::report::{Check, Report};

pub(super) fn resolve(log: &mut Log, history: &History, config: &Config, report: &mut Report) {
    for operation in &history.operations {
        if config.split_delete_ranges {
            split_range_deletes(log, operation, report);
        } else {
            acknowledged_range_deletes(log, operation, report);
        }
    }
    Attribution::new(history, config).run(log, report);
    for operation in history.operations.iter().filter(|o| o.outcome == Outcome::Unknown) {
        // If the write of an operation was seen on one key, the operation ran on all its keys. On the others it may
        // have been overwritten before any client saw it.
        let ran = log.visible.get(&operation.id).copied();
        for effect in effects::possible(&operation.request) {
            for (_, chain) in log.chains.iter_mut().filter(|(key, _)| effect.touches(key)) {
                let seen = ran.is_some_and(|ran| chain.entries.iter().any(|entry| entry.revision == ran));
                chain.unseen += usize::from(!seen);
            }
        }
    }
    let keys: Vec<Key> = log.chains.keys().cloned().collect();
    for key in keys {
        versions(log, &key, report);
    }
}

/// If the number of deleted keys agrees, a DeleteRange that did not return the old keys deleted all that existed.
fn acknowledged_range_deletes(log: &mut Log, operation: &Operation, report: &mut Report) {
    let Some(header) = operation.outcome.header() else { return };
    let source = Source::Acknowledged(operation.id);
    for effect in effects::acknowledged(operation) {
        let Effect::Delete { range, deleted: Some(deleted), .. } = effect else { continue };
        if range.is_one() || deleted == 0 {
            continue;
        }
        let (known, present) = deleted_keys(log, &range, header);
        let known_count = more_deleted_than_said(operation, deleted, &known, report);
        let present_count = i64::try_from(present.len()).unwrap_or(i64::MAX);
        let exact = known_count + present_count == deleted;
        for key in known {
            with_entry(log, &key, header, |entry| entry.sources.insert(0, source));
        }
        for key in present {
            let Some(chain) = log.chains.get_mut(&key) else { continue };
            if exact {
                let at = chain.entries.partition_point(|entry| entry.revision < header);
                chain.entries.insert(at, delete(header, source));
            } else if known_count < deleted {
                chain.unseen += 1;
            }
        }
    }
}

/// Reports a violation if more keys are known to be deleted than the answer says. Returns the number of known ones.
fn more_deleted_than_said(operation: &Operation, deleted: i64, known: &[Key], report: &mut Report) -> i64 {
    let known_count = i64::try_from(known.len()).unwrap_or(i64::MAX);
    if known_count > deleted {
        let message = format!("{} says {deleted} keys, {known_count} seen deleted", operation.id);
        report.add(Check::Log, message, vec![format!("{operation:?}")]);
    }
    known_count
}

/// A DeleteRange over several stores deleted each key at some revision at or below its header. If no event shows at
/// which one, something unseen happened to the key.
fn split_range_deletes(log: &mut Log, operation: &Operation, report: &mut Report) {
    let Some(header) = operation.outcome.header() else { return };
    for effect in effects::acknowledged(operation) {
        let Effect::Delete { range, deleted, previous } = effect else { continue };
        let Some(deleted) = deleted.filter(|deleted| *deleted > 0 && !range.is_one()) else { continue };
        let (known, _) = deleted_keys(log, &range, header);
        more_deleted_than_said(operation, deleted, &known, report);
        for (key, chain) in log.chains.iter_mut().filter(|(key, _)| range.contains(key)) {
            let was = previous.iter().find(|kv| kv.key == *key).map(|kv| kv.modified);
            // If the answer has old keys at all, it has all of them, so a key that is not among them was untouched.
            let untouched = was.is_none() && !previous.is_empty();
            let seen = was.is_some_and(|was| {
                let next = chain.entries.iter().find(|entry| entry.revision > was);
                next.is_some_and(|next| next.kind == EventKind::Delete && next.revision <= header)
            });
            chain.unseen += usize::from(!untouched && !seen);
        }
    }
}

fn with_entry(log: &mut Log, key: &Key, revision: Revision, change: impl FnOnce(&mut Entry)) {
    let Some(chain) = log.chains.get_mut(key) else { return };
    if let Ok(index) = chain.entries.binary_search_by_key(&revision, |entry| entry.revision) {
        change(&mut chain.entries[index]);
    }
}

/// The keys of the range that were seen deleted at this revision, and those that existed just before it and have no
/// entry at it.
fn deleted_keys(log: &Log, range: &KeyRange, at: Revision) -> (Vec<Key>, Vec<Key>) {
    let (mut known, mut present) = (Vec::new(), Vec::new());
    for (key, chain) in log.range(range) {
        let next = chain.entries.partition_point(|entry| entry.revision < at);
        match (chain.entries.get(next), next.checked_sub(1).map(|last| &chain.entries[last])) {
            (Some(entry), _) if entry.revision == at && entry.kind == EventKind::Delete => {
                known.push(key.clone());
            }
            (Some(entry), _) if entry.revision == at => {}
            (_, Some(last)) if last.kind == EventKind::Put => present.push(key.clone()),
            _ => {}
        }
    }
    (known, present)
}

/// Finds, for every entry that was not acknowledged to a client, an operation with unknown outcome that explains it.
struct Attribution<'h> {
    puts: BTreeMap<(Key, Value), Vec<OperationId>>,
    deletes: Vec<(OperationId, KeyRange)>,
    range_deletes: Vec<(OperationId, KeyRange, Revision)>,
    history: &'h History,
    config: &'h Config,
}

impl<'h> Attribution<'h> {
    fn new(history: &'h History, config: &'h Config) -> Self {
        let mut this =
            Self { puts: BTreeMap::new(), deletes: Vec::new(), range_deletes: Vec::new(), history, config };
        for operation in &history.operations {
            if operation.outcome == Outcome::Unknown {
                for effect in effects::possible(&operation.request) {
                    match effect {
                        Effect::Put { key, value, .. } => {
                            this.puts.entry((key, value)).or_default().push(operation.id);
                        }
                        Effect::Delete { range, .. } => this.deletes.push((operation.id, range)),
                    }
                }
            } else if let Some(header) = operation.outcome.header().filter(|_| config.split_delete_ranges) {
                for effect in effects::acknowledged(operation) {
                    if let Effect::Delete { range, .. } = effect
                        && !range.is_one()
                    {
                        this.range_deletes.push((operation.id, range, header));
                    }
                }
            }
        }
        this
    }

    fn run(&self, log: &mut Log, report: &mut Report) {
        let visible = &mut log.visible;
        for (key, chain) in &mut log.chains {
            for index in 0..chain.entries.len() {
                if chain.entries[index].is_acknowledged() {
                    continue;
                }
                let leased = index.checked_sub(1).is_some_and(|last| chain.entries[last].lease.0 != 0);
                let entry = &mut chain.entries[index];
                match self.explain(key, entry, leased && entry.kind == EventKind::Delete, visible) {
                    Some(source) => entry.sources.push(source),
                    None if entry.kind == EventKind::Delete && leased => {}
                    None if index == 0 && !self.config.starts_empty => {}
                    None if self.config.closed_world => self.ghost(key, entry, report),
                    None => {}
                }
            }
        }
    }

    fn explain(
        &self,
        key: &Key,
        entry: &Entry,
        leased: bool,
        visible: &mut BTreeMap<OperationId, Revision>,
    ) -> Option<Source> {
        let free = |id: &OperationId, visible: &BTreeMap<OperationId, Revision>| {
            visible.get(id).is_none_or(|at| *at == entry.revision)
        };
        let candidates: Vec<OperationId> = match entry.kind {
            EventKind::Put => self.puts.get(&(key.clone(), entry.value.clone())).cloned().unwrap_or_default(),
            EventKind::Delete => {
                let acknowledged = |(_, range, header): &&(OperationId, KeyRange, Revision)| {
                    *header >= entry.revision && range.contains(key)
                };
                if let Some((id, ..)) = self.range_deletes.iter().find(acknowledged) {
                    return Some(Source::Acknowledged(*id));
                }
                let covering = self.deletes.iter().filter(|(_, range)| range.contains(key));
                covering.map(|(id, _)| *id).collect()
            }
        };
        let split = |id: &OperationId| {
            let several = self.deletes.iter().any(|(own, range)| own == id && !range.is_one());
            self.config.split_delete_ranges && several
        };
        let found = candidates.iter().copied().find(|id| free(id, visible) || split(id))?;
        // It is certain that this operation wrote the entry only if no other operation and no lease can explain it.
        if candidates.len() == 1 && !leased && !split(&found) {
            visible.insert(found, entry.revision);
        }
        Some(Source::Unknown(found))
    }

    fn ghost(&self, key: &Key, entry: &Entry, report: &mut Report) {
        let wrote = |operation: &&Operation| {
            effects::possible(&operation.request).iter().any(|effect| match effect {
                Effect::Put { key: own, value, .. } => {
                    entry.kind == EventKind::Put && own == key && *value == entry.value
                }
                Effect::Delete { .. } => entry.kind == EventKind::Delete && effect.touches(key),
            })
        };
        let mut evidence = vec![format!("{entry:?}")];
        let writers = self.history.operations.iter().filter(wrote);
        evidence.extend(writers.take(4).map(|operation| format!("{operation:?}")));
        let why = if evidence.len() > 1 {
            "no operation did this at this revision (it ran twice, or failed and yet ran?)"
        } else {
            "no recorded operation did this"
        };
        report.add(Check::Log, format!("{key}: {why}: {entry:?}"), evidence);
    }
}

fn versions(log: &mut Log, key: &Key, report: &mut Report) {
    let Some(mut chain) = log.chains.remove(key) else { return };
    let mut last: Option<usize> = None;
    for index in 0..chain.entries.len() {
        if chain.entries[index].lost {
            continue;
        }
        let before = last.map(|last| chain.entries[last].clone());
        let wrong = follow(log, key, &mut chain, before.as_ref(), index);
        if let Some(why) = wrong {
            let evidence =
                before.iter().chain([&chain.entries[index]]).map(|entry| format!("{entry:?}")).collect();
            report.add(Check::Log, format!("{key}: {why}"), evidence);
        }
        last = Some(index);
    }
    log.chains.insert(key.clone(), chain);
}

/// Derives version and create revision of an entry from the entry before it, and whether something unseen may lie
/// between them. Returns what contradicts the entry before.
fn follow(
    log: &Log,
    key: &Key,
    chain: &mut Chain,
    before: Option<&Entry>,
    index: usize,
) -> Option<&'static str> {
    let leased = before.is_some_and(|before| before.lease.0 != 0);
    let had_gap = had_gap(log, &chain.domain, before, chain.entries[index].revision);
    let anything = chain.unseen > 0 || leased || !log.closed_world || had_gap;
    let entry = &mut chain.entries[index];
    let since = before.map_or(Revision(0), |before| before.revision);
    let covered = log.is_covered(key, since, entry.revision.previous());
    let first_of_many = before.is_none() && !log.starts_empty;
    let may_hide = (anything && !covered) || first_of_many;
    let existed = before.is_some_and(|before| before.kind == EventKind::Put);
    if entry.kind == EventKind::Delete {
        entry.hole_before = may_hide;
        return (!existed && !may_hide).then_some("a key that did not exist was deleted");
    }
    let expected = match before.filter(|_| existed) {
        Some(before) => before.create.zip(before.version.map(|version| version + 1)),
        None => Some((entry.revision, 1)),
    };
    match (entry.create.zip(entry.version), expected) {
        (Some(known), Some(expected)) if known == expected => {
            entry.hole_before = !existed && may_hide;
            None
        }
        (Some(_), Some(_)) => {
            entry.hole_before = true;
            let explained = anything || first_of_many;
            (!explained).then_some("create revision or version does not follow from the write before")
        }
        (Some(_), None) => {
            entry.hole_before = may_hide;
            None
        }
        (None, _) if may_hide => {
            entry.hole_before = true;
            None
        }
        (None, expected) => {
            entry.create = entry.create.or(expected.map(|(create, _)| create));
            entry.version = entry.version.or(expected.map(|(_, version)| version));
            None
        }
    }
}

/// Whether a gap lies between the two entries. The writes that it lost are not known.
fn had_gap(log: &Log, domain: &Domain, before: Option<&Entry>, revision: Revision) -> bool {
    let since = before.map_or(Revision(0), |before| before.revision);
    log.gaps.iter().any(|gap| gap.domain == *domain && gap.restart <= revision && gap.restart > since)
}
