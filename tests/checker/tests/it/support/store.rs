//! A store that never forgets a version.

use std::collections::BTreeMap;

use kindred_checker::Key;
use kindred_checker::history::*;

use super::{Flavour, NODES};

pub struct Store {
    flavour: Flavour,
    /// A delete is a version with number 0.
    versions: BTreeMap<Key, Vec<KeyValue>>,
    current: BTreeMap<bool, Revision>,
    /// The next revision to deliver, for each watch.
    pub cursors: Vec<Revision>,
}

impl Store {
    pub fn new(flavour: Flavour) -> Self {
        let current = [(false, Revision(1)), (true, Revision(1))].into();
        Self { flavour, versions: BTreeMap::new(), current, cursors: Vec::new() }
    }

    fn domain(&self, key: &Key) -> bool {
        self.flavour == Flavour::Kindred && key.as_bytes().starts_with(NODES.as_bytes())
    }

    /// The current revision of the key's domain.
    pub fn current(&self, key: &Key) -> Revision {
        self.current[&self.domain(key)]
    }

    fn assign(&self, key: &Key) -> Revision {
        let current = self.current(key);
        match self.flavour {
            Flavour::Etcd => current.next(),
            Flavour::Kindred => Revision(current.0 + 3 + current.0 % 5),
        }
    }

    fn at(&self, key: &Key, revision: Revision) -> Option<&KeyValue> {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|kv| kv.modified <= revision).filter(|kv| kv.version > 0)
    }

    pub fn get(&self, key: &Key) -> Option<&KeyValue> {
        self.at(key, Revision(i64::MAX))
    }

    fn read(&self, list: &List, now: Revision) -> ReadResult {
        let at = list.revision.unwrap_or(now);
        let keys = self.versions.keys().filter(|key| list.range.contains(key));
        let mut kvs: Vec<KeyValue> = keys.filter_map(|key| self.at(key, at)).cloned().collect();
        let count = kvs.len() as i64;
        let more = list.limit > 0 && (list.limit as i64) < count && !list.count_only;
        if list.count_only {
            kvs.clear();
        } else if more {
            kvs.truncate(list.limit as usize);
        }
        ReadResult { kvs, more, count }
    }

    fn put(&mut self, key: &Key, value: &Key, lease: LeaseId, modified: Revision) {
        let (create, version) = self.get(key).map_or((modified, 1), |kv| (kv.create, kv.version + 1));
        let kv = KeyValue { key: key.clone(), value: value.clone(), create, modified, version, lease };
        self.versions.entry(key.clone()).or_default().push(kv);
        let domain = self.domain(key);
        self.current.insert(domain, modified);
    }

    fn delete(&mut self, range: &KeyRange, modified: Revision) -> Vec<KeyValue> {
        let keys: Vec<Key> = self.versions.keys().filter(|key| range.contains(key)).cloned().collect();
        let mut previous = Vec::new();
        for key in keys {
            let Some(kv) = self.get(&key).cloned() else { continue };
            previous.push(kv);
            let domain = self.domain(&key);
            let (value, create, lease) = (Key::default(), Revision(0), LeaseId(0));
            let gone = KeyValue { key: key.clone(), value, create, modified, version: 0, lease };
            self.versions.entry(key).or_default().push(gone);
            self.current.insert(domain, modified);
        }
        previous
    }

    /// Runs a request as a correct server would.
    pub fn run(&mut self, request: &Request) -> Outcome {
        match request {
            Request::List(list) => {
                let header = self.current(&list.range.key);
                Outcome::Read { header, result: self.read(list, header) }
            }
            Request::Put { key, value, lease } => {
                let header = self.assign(key);
                self.put(key, value, *lease, header);
                Outcome::Written { header }
            }
            Request::Create { key, value, lease } => self.guarded(key, Revision(0), |store, header| {
                store.put(key, value, *lease, header);
                Outcome::Written { header }
            }),
            Request::Update { key, expected, value, lease } => {
                self.guarded(key, *expected, |store, header| {
                    store.put(key, value, *lease, header);
                    Outcome::Written { header }
                })
            }
            Request::Delete { key } => self.delete_answer(&KeyRange::one(key.clone()), false),
            Request::DeleteIf { key, expected } => self
                .guarded(key, *expected, |store, _| store.delete_answer(&KeyRange::one(key.clone()), false)),
            Request::DeleteRange { range } => self.delete_answer(range, range.key.as_bytes().len() % 2 == 0),
            Request::Compact { .. } => Outcome::Compacted { header: self.current(&Key::default()) },
            Request::Txn { compares, success, failure } => self.txn(compares, success, failure),
        }
    }

    fn guarded(
        &mut self,
        key: &Key,
        expected: Revision,
        then: impl FnOnce(&mut Self, Revision) -> Outcome,
    ) -> Outcome {
        let current = self.get(key).cloned();
        if current.as_ref().map_or(Revision(0), |kv| kv.modified) == expected {
            let header = self.assign(key);
            return then(self, header);
        }
        Outcome::CompareFailed {
            header: self.current(key),
            current: current.map_or(Current::Missing, Current::Found),
        }
    }

    fn delete_answer(&mut self, range: &KeyRange, with_previous: bool) -> Outcome {
        let previous = self.delete(range, self.assign(&range.key));
        let deleted = previous.len() as i64;
        let previous = if with_previous { previous } else { Vec::new() };
        Outcome::Deleted { header: self.current(&range.key), deleted, previous }
    }

    fn txn(&mut self, compares: &[Compare], success: &[TxnOp], failure: &[TxnOp]) -> Outcome {
        let holds = |compare: &Compare| {
            let kv = self.get(compare.key());
            match compare {
                Compare::Modified(_, wanted) => kv.map_or(Revision(0), |kv| kv.modified) == *wanted,
                Compare::Create(_, wanted) => kv.map_or(Revision(0), |kv| kv.create) == *wanted,
                Compare::Version(_, wanted) => kv.map_or(0, |kv| kv.version) == *wanted,
                Compare::Value(_, wanted) => kv.is_some_and(|kv| kv.value == *wanted),
                Compare::Other(_) => true,
            }
        };
        let succeeded = compares.iter().all(holds);
        let first = compares[0].key().clone();
        let revision = self.assign(&first);
        let mut results = Vec::new();
        for op in if succeeded { success } else { failure } {
            results.push(match op {
                TxnOp::Put { key, value, lease } => {
                    self.put(key, value, *lease, revision);
                    TxnResult::Put
                }
                TxnOp::Delete(range) => TxnResult::Delete(self.delete(range, revision).len() as i64),
                TxnOp::Range(list) => TxnResult::Range(self.read(list, self.current(&first))),
            });
        }
        Outcome::Txn { header: self.current(&first), succeeded, results }
    }

    /// The events of a range from a revision on, grouped by revision.
    pub fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        options: &WatchOptions,
    ) -> Vec<(Revision, Vec<Event>)> {
        let mut events: BTreeMap<Revision, Vec<Event>> = BTreeMap::new();
        for versions in self.versions.range(range.key.clone()..).filter(|(key, _)| range.contains(key)) {
            for (index, kv) in versions.1.iter().enumerate().filter(|(_, kv)| kv.modified >= from) {
                let kind = if kv.version > 0 { EventKind::Put } else { EventKind::Delete };
                if (kind == EventKind::Put && options.no_put)
                    || (kind == EventKind::Delete && options.no_delete)
                {
                    continue;
                }
                let before = index.checked_sub(1).map(|last| versions.1[last].clone());
                let prev_kv = before.filter(|kv| options.prev_kv && kv.version > 0);
                events.entry(kv.modified).or_default().push(Event { kind, kv: kv.clone(), prev_kv });
            }
        }
        events.into_iter().collect()
    }
}
