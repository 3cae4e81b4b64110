//! etcd's validation of requests, in its order, so that the same error wins. The shard checks every request before
//! it runs. The router checks the requests that it would refuse for another reason.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use kindred_wire::error::EtcdError;

use crate::etcdserverpb::{self as pb, range_request::SortOrder, request_op::Request};

/// etcd's `checkTxnRequest` and `checkIntervals`.
///
/// # Errors
/// The first error that etcd would report.
pub fn txn(request: &pb::TxnRequest, ops_max: usize) -> Result<(), EtcdError> {
    operations(request, ops_max)?;
    // After the count of operations, because this check is the expensive one.
    for ops in [&request.success, &request.failure] {
        if may_overlap(ops) {
            overlaps(ops)?;
        }
    }
    Ok(())
}

/// Tells whether the operations can overlap: there are several, or the only one has others in it.
fn may_overlap(ops: &[pb::RequestOp]) -> bool {
    ops.len() > 1 || matches!(ops, [pb::RequestOp { request: Some(Request::RequestTxn(_)) }])
}

/// etcd's `checkRangeRequest`.
///
/// # Errors
/// The first error that etcd would report.
pub fn range(request: &pb::RangeRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    let known = SortOrder::try_from(request.sort_order).is_ok()
        && pb::range_request::SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(EtcdError::InvalidSortOption) }
}

/// etcd's `checkPutRequest`.
///
/// # Errors
/// The first error that etcd would report.
pub fn put(request: &pb::PutRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(EtcdError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(EtcdError::LeaseProvided);
    }
    Ok(())
}

/// etcd's `checkDeleteRequest`.
///
/// # Errors
/// The first error that etcd would report.
pub fn delete(request: &pb::DeleteRangeRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() { Err(EtcdError::EmptyKey) } else { Ok(()) }
}

fn operations(request: &pb::TxnRequest, ops_max: usize) -> Result<(), EtcdError> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    // A nested txn may use only the operations that its parent left.
    let Some(left) = ops_max.checked_sub(ops) else { return Err(EtcdError::TooManyOps) };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EtcdError::EmptyKey);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(range)) => self::range(range)?,
            Some(Request::RequestPut(put)) => self::put(put)?,
            Some(Request::RequestDeleteRange(delete)) => self::delete(delete)?,
            Some(Request::RequestTxn(txn)) => operations(txn, left)?,
            None => return Err(EtcdError::KeyNotFound),
        }
    }
    Ok(())
}

/// The union of the deleted intervals of one level, as start -> end: half-open and disjoint.
#[derive(Default)]
struct Deletes(BTreeMap<Bytes, Bytes>);

impl Deletes {
    /// An empty `end` means the single key. Any other end is compared bytewise, even `"\0"`, as in etcd's interval
    /// tree. An interval whose end is not above its start is empty.
    fn insert(&mut self, mut start: Bytes, end: &Bytes) {
        let mut end = if end.is_empty() { [&start[..], &[0]].concat().into() } else { end.clone() };
        if end <= start {
            return;
        }
        if let Some((before, before_end)) = self.0.range(..=start.clone()).next_back()
            && *before_end >= start
        {
            start = before.clone();
        }
        let swallowed: Vec<Bytes> =
            self.0.range(start.clone()..=end.clone()).map(|(at, _)| at.clone()).collect();
        for at in swallowed {
            if let Some(other) = self.0.remove(&at)
                && other > end
            {
                end = other;
            }
        }
        self.0.insert(start, end);
    }

    fn contains(&self, key: &Bytes) -> bool {
        self.0.range(..=key.clone()).next_back().is_some_and(|(_, end)| end > key)
    }
}

/// etcd's `checkIntervals`: no txn puts a key twice or puts and deletes it, nested txns included. The two branches
/// of a nested txn exclude each other, so both may put the same key.
fn overlaps(ops: &[pb::RequestOp]) -> Result<(HashSet<Bytes>, Deletes), EtcdError> {
    let mut deletes = Deletes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            deletes.insert(delete.key.clone(), &delete.range_end);
        }
    }
    let mut puts = HashSet::new();
    for op in ops {
        let Some(Request::RequestTxn(txn)) = &op.request else { continue };
        let (then_puts, then_deletes) = overlaps(&txn.success)?;
        let (else_puts, else_deletes) = overlaps(&txn.failure)?;
        for key in &then_puts {
            if deletes.contains(key) || !puts.insert(key.clone()) {
                return Err(EtcdError::DuplicateKey);
            }
        }
        for key in else_puts {
            if deletes.contains(&key) || (puts.contains(&key) && !then_puts.contains(&key)) {
                return Err(EtcdError::DuplicateKey);
            }
            puts.insert(key);
        }
        for (start, end) in then_deletes.0.into_iter().chain(else_deletes.0) {
            deletes.insert(start, &end);
        }
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request
            && (deletes.contains(&put.key) || !puts.insert(put.key.clone()))
        {
            return Err(EtcdError::DuplicateKey);
        }
    }
    Ok((puts, deletes))
}
