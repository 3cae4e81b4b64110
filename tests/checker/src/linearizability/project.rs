//! Projects the history onto the operations of each key.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::model::{Action, Guard, Known, Shown, State, Step, ValueId};
use super::search::{KeyHistory, KeyOp};
use crate::bytes::{Key, Value};
use crate::history::{
    Compare, Current, EventKind, KeyRange, KeyValue, Nanos, Operation, Outcome, ReadResult, Request,
    Revision, TxnOp, TxnResult,
};
use crate::log::Source;
use crate::watch::Context;

/// The operations on each key, sorted by call. Empty if some writers were not recorded.
pub(super) fn project(context: &Context<'_>) -> BTreeMap<Key, KeyHistory> {
    let empty = context.config.starts_empty;
    let initial = State { known: if empty { Known::Absent } else { Known::Any }, floor: Revision(0) };
    let compares = context.history.operations.iter().flat_map(|operation| match &operation.request {
        Request::Txn { compares, .. } => compares.as_slice(),
        _ => &[],
    });
    let compared = compares.filter_map(|compare| match compare {
        Compare::Value(_, value) => Some(value.clone()),
        _ => None,
    });
    let compared = compared.collect();
    let mut projector = Projector { context, values: HashMap::new(), keys: BTreeMap::new(), compared };
    for operation in &context.history.operations {
        projector.operation(operation);
    }
    projector.expiries();
    if !context.config.closed_world {
        return BTreeMap::new();
    }
    let with_ops = projector.keys.into_iter().map(|(key, mut ops)| {
        ops.sort_by_key(|op| op.call);
        (key, KeyHistory { initial, ops })
    });
    with_ops.collect()
}

struct Projector<'c, 'a> {
    context: &'c Context<'a>,
    values: HashMap<Value, u32>,
    keys: BTreeMap<Key, Vec<KeyOp>>,
    /// The values with which some Txn compares.
    compared: BTreeSet<Value>,
}

impl Projector<'_, '_> {
    fn value(&mut self, value: &Value) -> ValueId {
        let next = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        ValueId(*self.values.entry(value.clone()).or_insert(next))
    }

    /// The value of a write. `ValueId::UNSEEN` stands for the values of all unknown writes that no client has seen.
    fn written(&mut self, operation: &Operation, key: &Key, value: &Value) -> ValueId {
        let chain = self.context.log.chains.get(key);
        let in_log = chain.is_some_and(|chain| chain.entries.iter().any(|entry| entry.value == *value));
        let seen = in_log || self.compared.contains(value);
        if operation.outcome == Outcome::Unknown && !seen { ValueId::UNSEEN } else { self.value(value) }
    }

    fn shown(&mut self, kv: &KeyValue) -> Shown {
        let value = self.value(&kv.value);
        Shown { value, create: kv.create, modified: kv.modified, version: kv.version }
    }

    fn operation(&mut self, operation: &Operation) {
        if matches!(operation.outcome, Outcome::Failed(_)) {
            return;
        }
        match &operation.request {
            Request::List(list) => self.read(operation, list.revision.is_some() || list.serializable),
            Request::Put { key, value, .. } => {
                let steps = vec![Step::Put(self.written(operation, key, value))];
                self.add(operation, key, steps);
            }
            Request::Create { key, value, .. } => {
                let put = Step::Put(self.written(operation, key, value));
                self.guarded(operation, key, Revision(0), put);
            }
            Request::Update { key, expected, value, .. } => {
                let put = Step::Put(self.written(operation, key, value));
                self.guarded(operation, key, *expected, put);
            }
            Request::Delete { key } => {
                let steps = vec![Step::Delete(deleted(&operation.outcome))];
                self.add(operation, key, steps);
            }
            Request::DeleteIf { key, expected } => {
                self.guarded(operation, key, *expected, Step::Delete(deleted(&operation.outcome)));
            }
            Request::DeleteRange { range } => self.delete_range(operation, range),
            Request::Txn { compares, success, failure } => self.txn(operation, compares, success, failure),
            Request::Compact { .. } => {}
        }
    }

    fn read(&mut self, operation: &Operation, not_current: bool) {
        let (Request::List(list), Outcome::Read { result, .. }) = (&operation.request, &operation.outcome)
        else {
            return;
        };
        if not_current || !list.range.is_one() || list.count_only {
            return;
        }
        let shown = result.kvs.first().map(|kv| self.shown(kv));
        self.add(operation, &list.range.key, vec![Step::Read(shown)]);
    }

    fn guarded(&mut self, operation: &Operation, key: &Key, expected: Revision, write: Step) {
        let guard = Guard::Modified(expected);
        let steps = match &operation.outcome {
            Outcome::CompareFailed { current, .. } => {
                let mut steps = vec![Step::Fails(vec![guard])];
                match current {
                    Current::NotRead => {}
                    Current::Missing => steps.push(Step::Read(None)),
                    Current::Found(kv) => steps.push(Step::Read(Some(self.shown(kv)))),
                }
                steps
            }
            _ => vec![Step::Holds(guard), write],
        };
        self.add(operation, key, steps);
    }

    fn delete_range(&mut self, operation: &Operation, range: &KeyRange) {
        let keys: Vec<Key> = self.context.log.range(range).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.add(operation, &key, vec![Step::Delete(None)]);
        }
    }

    fn txn(&mut self, operation: &Operation, compares: &[Compare], success: &[TxnOp], failure: &[TxnOp]) {
        let mut keys: BTreeSet<Key> = compares.iter().map(|compare| compare.key().clone()).collect();
        for op in success.iter().chain(failure) {
            match op {
                TxnOp::Put { key, .. } => {
                    keys.insert(key.clone());
                }
                TxnOp::Delete(range) => {
                    keys.extend(self.context.log.range(range).map(|(key, _)| key.clone()));
                }
                TxnOp::Range(list) if list.range.is_one() => {
                    keys.insert(list.range.key.clone());
                }
                TxnOp::Range(_) => {}
            }
        }
        for key in keys {
            let own: Vec<&Compare> = compares.iter().filter(|compare| *compare.key() == key).collect();
            let only_this_key = own.len() == compares.len();
            let guards: Vec<Guard> = own.into_iter().map(|compare| self.guard(compare)).collect();
            let held: Vec<Step> = guards.iter().copied().map(Step::Holds).collect();
            let failed = if only_this_key { vec![Step::Fails(guards)] } else { Vec::new() };
            let alternatives = match &operation.outcome {
                Outcome::Txn { succeeded: true, results, .. } => {
                    vec![[held, self.branch(&key, success, results)].concat()]
                }
                Outcome::Txn { results, .. } => vec![[failed, self.branch(&key, failure, results)].concat()],
                _ => {
                    let then = [held, self.branch(&key, success, &[])].concat();
                    vec![then, [failed, self.branch(&key, failure, &[])].concat()]
                }
            };
            self.add_any(operation, &key, alternatives);
        }
    }

    fn guard(&mut self, compare: &Compare) -> Guard {
        match compare {
            Compare::Modified(_, revision) => Guard::Modified(*revision),
            Compare::Create(_, revision) => Guard::Create(*revision),
            Compare::Version(_, version) => Guard::Version(*version),
            Compare::Value(_, value) => Guard::Value(self.value(value)),
            Compare::Other(_) => Guard::Other,
        }
    }

    /// The steps of a branch that concern one key. A read after a write of the same Txn is not compared.
    fn branch(&mut self, key: &Key, ops: &[TxnOp], results: &[TxnResult]) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut wrote = false;
        for (index, op) in ops.iter().enumerate() {
            match (op, results.get(index)) {
                (TxnOp::Put { key: own, value, .. }, _) if own == key => {
                    steps.push(Step::Put(self.value(value)));
                    wrote = true;
                }
                (TxnOp::Delete(range), result) if range.contains(key) => {
                    let removed = match result {
                        Some(TxnResult::Delete(deleted)) if range.is_one() => Some(*deleted > 0),
                        _ => None,
                    };
                    steps.push(Step::Delete(removed));
                    wrote = true;
                }
                (TxnOp::Range(list), Some(TxnResult::Range(ReadResult { kvs, .. }))) => {
                    let of_key = list.range.is_one() && list.range.key == *key;
                    if !wrote && of_key && list.revision.is_none() && !list.count_only {
                        steps.push(Step::Read(kvs.first().map(|kv| self.shown(kv))));
                    }
                }
                _ => {}
            }
        }
        steps
    }

    fn add(&mut self, operation: &Operation, key: &Key, steps: Vec<Step>) {
        self.add_any(operation, key, vec![steps]);
    }

    fn add_any(&mut self, operation: &Operation, key: &Key, alternatives: Vec<Vec<Step>>) {
        let header = operation.outcome.header();
        let unknown = header.is_none();
        // The header of a DeleteRange over several stores is the highest of their revisions. It covers no single
        // key.
        let split = matches!(operation.request, Request::DeleteRange { .. })
            && self.context.config.split_delete_ranges;
        let header = header.filter(|_| !split);
        let seen = self.context.log.visible.get(&operation.id).copied();
        let seen = seen.filter(|revision| self.context.log.entry(key, *revision).is_some());
        let op = KeyOp {
            call: operation.call,
            returned: (!unknown).then_some(operation.returned),
            action: Action { alternatives, header, revision: header.or(seen) },
            line: line(operation),
        };
        self.keys.entry(key.clone()).or_default().push(op);
    }

    /// A key with a lease may be deleted at any time. If an event shows the expiry, the delete has the event's
    /// revision.
    fn expiries(&mut self) {
        for (key, chain) in &self.context.log.chains {
            for (index, entry) in chain.entries.iter().enumerate().filter(|(_, entry)| entry.lease.0 != 0) {
                let next = chain.entries.get(index + 1);
                let expired = next.filter(|next| {
                    let written =
                        |source: &Source| matches!(source, Source::Acknowledged(_) | Source::Unknown(_));
                    next.kind == EventKind::Delete && !next.sources.iter().any(written)
                });
                let revision = expired.map(|next| next.revision);
                let action = Action { alternatives: vec![vec![Step::Delete(None)]], header: None, revision };
                let line = format!("the lease of {entry:?} may expire");
                let op = KeyOp { call: Nanos(0), returned: None, action, line };
                self.keys.entry(key.clone()).or_default().push(op);
            }
        }
    }
}

fn deleted(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Deleted { deleted, .. } => Some(*deleted > 0),
        _ => None,
    }
}

fn line(operation: &Operation) -> String {
    let Operation { id, client, call, returned, request, outcome } = operation;
    format!("{id} {client} [{}..{}] {request:?} -> {outcome:?}", call.0, returned.0)
}
