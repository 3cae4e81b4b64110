//! One view of all kinds of requests: what an operation changed, what it may have changed, and what it read.

use crate::bytes::{Key, Value};
use crate::history::{
    Current, KeyRange, KeyValue, LeaseId, List, Operation, Outcome, ReadResult, Request, Revision, TxnOp,
    TxnResult,
};

/// A change that an operation made, or may have made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Put { key: Key, value: Value, lease: LeaseId },
    Delete { range: KeyRange, deleted: Option<i64>, previous: Vec<KeyValue> },
}

impl Effect {
    fn put(key: &Key, value: &Value, lease: LeaseId) -> Self {
        Self::Put { key: key.clone(), value: value.clone(), lease }
    }

    fn delete(range: KeyRange, deleted: Option<i64>) -> Self {
        Self::Delete { range, deleted, previous: Vec::new() }
    }

    fn of(op: &TxnOp, result: Option<&TxnResult>) -> Option<Self> {
        match op {
            TxnOp::Put { key, value, lease } => Some(Self::put(key, value, *lease)),
            TxnOp::Delete(range) => {
                let deleted = match result {
                    Some(TxnResult::Delete(deleted)) => Some(*deleted),
                    _ => None,
                };
                Some(Self::delete(range.clone(), deleted))
            }
            TxnOp::Range(_) => None,
        }
    }

    pub(crate) fn touches(&self, key: &Key) -> bool {
        match self {
            Self::Put { key: own, .. } => own == key,
            Self::Delete { range, .. } => range.contains(key),
        }
    }
}

/// The changes of an acknowledged operation. They have the revision of its header.
pub(crate) fn acknowledged(operation: &Operation) -> Vec<Effect> {
    match (&operation.request, &operation.outcome) {
        (Request::Put { key, value, lease }, Outcome::Written { .. })
        | (Request::Create { key, value, lease }, Outcome::Written { .. })
        | (Request::Update { key, value, lease, .. }, Outcome::Written { .. }) => {
            vec![Effect::put(key, value, *lease)]
        }
        (
            Request::Delete { key } | Request::DeleteIf { key, .. },
            Outcome::Deleted { deleted, previous, .. },
        ) => {
            let range = KeyRange::one(key.clone());
            vec![Effect::Delete { range, deleted: Some(*deleted), previous: previous.clone() }]
        }
        (Request::DeleteRange { range }, Outcome::Deleted { deleted, previous, .. }) => {
            let (range, previous) = (range.clone(), previous.clone());
            vec![Effect::Delete { range, deleted: Some(*deleted), previous }]
        }
        (Request::Txn { success, failure, .. }, Outcome::Txn { succeeded, results, .. }) => {
            let branch = if *succeeded { success } else { failure };
            branch.iter().enumerate().filter_map(|(i, op)| Effect::of(op, results.get(i))).collect()
        }
        _ => Vec::new(),
    }
}

/// The changes that an operation with an unknown outcome may have made.
pub(crate) fn possible(request: &Request) -> Vec<Effect> {
    match request {
        Request::Put { key, value, lease }
        | Request::Create { key, value, lease }
        | Request::Update { key, value, lease, .. } => vec![Effect::put(key, value, *lease)],
        Request::Delete { key } | Request::DeleteIf { key, .. } => {
            vec![Effect::delete(KeyRange::one(key.clone()), None)]
        }
        Request::DeleteRange { range } => vec![Effect::delete(range.clone(), None)],
        Request::Txn { success, failure, .. } => {
            success.iter().chain(failure).filter_map(|op| Effect::of(op, None)).collect()
        }
        Request::List(_) | Request::Compact { .. } => Vec::new(),
    }
}

/// One read inside an operation, with the revision whose state it must show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadView<'a> {
    pub(crate) range: KeyRange,
    pub(crate) at: Revision,
    pub(crate) limit: u64,
    pub(crate) count_only: bool,
    pub(crate) kvs: &'a [KeyValue],
    /// `count` and `more`, if the answer has them.
    pub(crate) totals: Option<(i64, bool)>,
}

impl<'a> ReadView<'a> {
    fn of(list: &List, at: Revision, result: &'a ReadResult) -> Self {
        ReadView {
            range: list.range.clone(),
            at,
            limit: list.limit,
            count_only: list.count_only,
            kvs: &result.kvs,
            totals: Some((result.count, result.more)),
        }
    }
}

/// The reads of an operation that can be compared with the state at one revision.
pub(crate) fn reads(operation: &Operation) -> Vec<ReadView<'_>> {
    match (&operation.request, &operation.outcome) {
        (Request::List(list), Outcome::Read { header, result }) => {
            vec![ReadView::of(list, list.revision.unwrap_or(*header), result)]
        }
        (
            Request::Create { key, .. } | Request::Update { key, .. } | Request::DeleteIf { key, .. },
            Outcome::CompareFailed { header, current },
        ) => {
            let range = KeyRange::one(key.clone());
            let kvs = match current {
                Current::NotRead => return Vec::new(),
                Current::Missing => &[][..],
                Current::Found(kv) => std::slice::from_ref(kv),
            };
            vec![ReadView { range, at: *header, limit: 0, count_only: false, kvs, totals: None }]
        }
        (Request::Txn { success, failure, .. }, Outcome::Txn { header, succeeded, results }) => {
            txn_reads(if *succeeded { success } else { failure }, *header, results)
        }
        _ => Vec::new(),
    }
}

/// One key for each part of a request: the key itself, or the first key of a range. A compaction has none.
pub(crate) fn touched(request: &Request) -> impl Iterator<Item = &Key> {
    let (one, compares, branches) = match request {
        Request::List(list) => (Some(&list.range.key), None, None),
        Request::Put { key, .. }
        | Request::Create { key, .. }
        | Request::Update { key, .. }
        | Request::Delete { key }
        | Request::DeleteIf { key, .. } => (Some(key), None, None),
        Request::DeleteRange { range } => (Some(&range.key), None, None),
        Request::Compact { .. } => (None, None, None),
        Request::Txn { compares, success, failure } => {
            (None, Some(compares.iter()), Some(success.iter().chain(failure)))
        }
    };
    one.into_iter()
        .chain(compares.into_iter().flatten().map(crate::history::Compare::key))
        .chain(branches.into_iter().flatten().map(key_of))
}

fn key_of(op: &TxnOp) -> &Key {
    match op {
        TxnOp::Put { key, .. } => key,
        TxnOp::Delete(range) => &range.key,
        TxnOp::Range(list) => &list.range.key,
    }
}

/// The ranges of a request that name the revision at which they are read.
pub(crate) fn reads_at(request: &Request) -> impl Iterator<Item = (&KeyRange, Revision)> {
    let (list, branches) = match request {
        Request::List(list) => (Some(list), None),
        Request::Txn { success, failure, .. } => (None, Some(success.iter().chain(failure))),
        _ => (None, None),
    };
    let in_txn = branches.into_iter().flatten().filter_map(|op| match op {
        TxnOp::Range(list) => Some(list),
        TxnOp::Put { .. } | TxnOp::Delete(_) => None,
    });
    list.into_iter().chain(in_txn).filter_map(|list| Some((&list.range, list.revision?)))
}

/// The ranges of a Txn's branch that can be compared with the state at one revision.
///
/// A range without a revision sees the writes of its branch that come before it. It can be compared only if all of
/// those writes come before it, or none does. A range with a revision sees exactly that revision, whatever the Txn
/// writes (B11).
fn txn_reads<'a>(branch: &[TxnOp], header: Revision, results: &'a [TxnResult]) -> Vec<ReadView<'a>> {
    let wrote = |(op, result): (&TxnOp, &TxnResult)| match (op, result) {
        (TxnOp::Put { .. }, _) => true,
        (TxnOp::Delete(_), TxnResult::Delete(deleted)) => *deleted > 0,
        _ => false,
    };
    let writes: Vec<bool> = branch.iter().zip(results).map(wrote).collect();
    let mut views = Vec::new();
    for (index, (op, result)) in branch.iter().zip(results).enumerate() {
        let (TxnOp::Range(list), TxnResult::Range(result)) = (op, result) else { continue };
        let before = writes[..index].contains(&true);
        let after = writes[index..].contains(&true);
        let at = match (list.revision, before, after) {
            (Some(revision), ..) => revision,
            (None, _, false) => header,
            (None, false, true) => header.previous(),
            (None, true, true) => continue,
        };
        views.push(ReadView::of(list, at, result));
    }
    views
}
