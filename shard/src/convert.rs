//! Converts etcd's requests to the engine's, after etcd's own checks ([`check`]).

pub mod optimistic;
pub mod units;

use bytes::Bytes;
use kindred_engine::ops::{
    Compare, CompareResult, CompareTarget, Contents, Delete, Op, Put, RangeQuery, RevisionFilter, Sort,
    SortTarget, Txn,
};
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};
use kindred_proto::{
    check,
    etcdserverpb::{self as pb, compare::TargetUnion, range_request::SortOrder, request_op::Request},
};
use kindred_wire::error::EtcdError;

/// Makes etcd's `checkRangeRequest`, then converts.
pub fn range(request: pb::RangeRequest) -> Result<RangeQuery, EtcdError> {
    check::range(&request)?;
    Ok(read(request))
}

/// Makes etcd's `checkRangeStreamRequest`, then converts.
pub fn range_stream(request: pb::RangeRequest) -> Result<RangeQuery, EtcdError> {
    check::range(&request)?;
    let natural = request.sort_order == SortOrder::None as i32
        || (request.sort_order == SortOrder::Ascend as i32 && request.sort_target == 0);
    if !natural {
        return Err(EtcdError::RangeStreamSortOrder);
    }
    if has_filter(&request) {
        return Err(EtcdError::RangeStreamRevisionFilter);
    }
    // With the order `NONE` a stream ignores the target.
    Ok(RangeQuery { sort: None, ..read(request) })
}

/// Makes etcd's `checkPutRequest`, then converts.
pub fn put(request: pb::PutRequest) -> Result<Put, EtcdError> {
    check::put(&request)?;
    Ok(put_op(request))
}

/// Makes etcd's `checkDeleteRequest`, then converts.
pub fn delete(request: pb::DeleteRangeRequest) -> Result<Delete, EtcdError> {
    check::delete(&request)?;
    Ok(delete_op(request))
}

/// Makes etcd's `checkTxnRequest` and `checkIntervals`, then converts.
pub fn txn(request: pb::TxnRequest, ops_max: usize) -> Result<Txn, EtcdError> {
    check::txn(&request, ops_max)?;
    Ok(txn_op(request))
}

/// Whether a txn is answered like a read (etcd's `IsTxnReadonly`); a nested txn counts as a write.
#[must_use]
pub fn is_read_only(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| matches!(op, Op::Range(_)))
}

fn has_filter(request: &pb::RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

fn read(request: pb::RangeRequest) -> RangeQuery {
    let bound = |revision: i64| (revision != 0).then_some(Revision(revision));
    // A negative limit means none.
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let contents = match request.sort_target() {
        _ if !request.keys_only => Contents::Whole,
        // etcd then reads the stored values, and so has the leases.
        pb::range_request::SortTarget::Value => Contents::WithoutValue,
        _ => Contents::Index,
    };
    RangeQuery {
        sort: sort(&request, limit),
        range: KeyRange::from_wire(request.key, request.range_end),
        revision: Revision::from_wire(request.revision),
        limit,
        contents,
        count_only: request.count_only,
        filter: RevisionFilter {
            min_mod: bound(request.min_mod_revision),
            max_mod: bound(request.max_mod_revision),
            min_create: bound(request.min_create_revision),
            max_create: bound(request.max_create_revision),
        },
    }
}

/// `None` for the natural order. A target other than the key, without an order, sorts ascending, and with a limit only
/// the keys that it let through.
fn sort(request: &pb::RangeRequest, limit: usize) -> Option<Sort> {
    let descending = request.sort_order == SortOrder::Descend as i32;
    let target = match request.sort_target() {
        pb::range_request::SortTarget::Key if !descending => return None,
        pb::range_request::SortTarget::Key => SortTarget::Key,
        pb::range_request::SortTarget::Version => SortTarget::Version,
        pb::range_request::SortTarget::Create => SortTarget::Create,
        pb::range_request::SortTarget::Mod => SortTarget::Mod,
        pb::range_request::SortTarget::Value => SortTarget::Value,
    };
    let unordered = request.sort_order == SortOrder::None as i32;
    Some(Sort { target, descending, late: unordered && limit > 0 && !has_filter(request) })
}

fn put_op(request: pb::PutRequest) -> Put {
    Put {
        key: Key(request.key),
        value: request.value,
        lease: LeaseId::from_wire(request.lease),
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
        prev_kv: request.prev_kv,
    }
}

fn delete_op(request: pb::DeleteRangeRequest) -> Delete {
    let range = KeyRange::from_wire(request.key, request.range_end);
    Delete { range, buckets: None, prev_kv: request.prev_kv }
}

fn txn_op(request: pb::TxnRequest) -> Txn {
    Txn {
        compares: request.compare.into_iter().filter_map(compare).collect(),
        success: request.success.into_iter().filter_map(op).collect(),
        failure: request.failure.into_iter().filter_map(op).collect(),
    }
}

/// A read inside a txn. A negative revision means the current one for a plain read; here etcd checks it first, and it is
/// too old.
fn read_op(request: pb::RangeRequest) -> Op {
    let negative = (request.revision < 0).then_some(Revision(request.revision));
    let mut query = read(request);
    query.revision = query.revision.or(negative);
    Op::Range(query)
}

fn op(op: pb::RequestOp) -> Option<Op> {
    Some(match op.request? {
        Request::RequestRange(range) => read_op(range),
        Request::RequestPut(put) => Op::Put(put_op(put)),
        Request::RequestDeleteRange(delete) => Op::Delete(delete_op(delete)),
        Request::RequestTxn(txn) => Op::Txn(Box::new(txn_op(txn))),
    })
}

/// Converts a compare; `None` if it always holds.
fn compare(compare: pb::Compare) -> Option<Compare> {
    use pb::compare::CompareTarget as Wire;
    let Ok(target) = Wire::try_from(compare.target) else {
        return unknown_target(compare.result, compare.key, compare.range_end);
    };
    // As in etcd, the value of another target counts as zero, like an absent one.
    let target = match (target, compare.target_union) {
        (Wire::Version, Some(TargetUnion::Version(version))) => CompareTarget::Version(version),
        (Wire::Version, _) => CompareTarget::Version(0),
        (Wire::Create, Some(TargetUnion::CreateRevision(revision))) => CompareTarget::Create(revision),
        (Wire::Create, _) => CompareTarget::Create(0),
        (Wire::Mod, Some(TargetUnion::ModRevision(revision))) => CompareTarget::Mod(revision),
        (Wire::Mod, _) => CompareTarget::Mod(0),
        (Wire::Lease, Some(TargetUnion::Lease(lease))) => CompareTarget::Lease(lease),
        (Wire::Lease, _) => CompareTarget::Lease(0),
        (Wire::Value, Some(TargetUnion::Value(value))) => CompareTarget::Value(value),
        (Wire::Value, _) => CompareTarget::Value(Bytes::new()),
    };
    let result = match pb::compare::CompareResult::try_from(compare.result) {
        Ok(pb::compare::CompareResult::Equal) => CompareResult::Equal,
        Ok(pb::compare::CompareResult::Greater) => CompareResult::Greater,
        Ok(pb::compare::CompareResult::Less) => CompareResult::Less,
        Ok(pb::compare::CompareResult::NotEqual) => CompareResult::NotEqual,
        // An unknown result holds, except for the value of an absent key.
        Err(_) if matches!(target, CompareTarget::Value(_)) => {
            let range = KeyRange::from_wire(compare.key, compare.range_end);
            return Some(Compare {
                range,
                target: CompareTarget::Version(0),
                result: CompareResult::Greater,
            });
        }
        Err(_) => return None,
    };
    Some(Compare { range: KeyRange::from_wire(compare.key, compare.range_end), target, result })
}

/// A compare with an unknown target, for which etcd finds both sides equal; `None` if it always holds.
fn unknown_target(result: i32, key: Bytes, range_end: Bytes) -> Option<Compare> {
    use pb::compare::CompareResult as Wire;
    match Wire::try_from(result) {
        Ok(Wire::Greater | Wire::Less | Wire::NotEqual) => Some(Compare {
            range: KeyRange::from_wire(key, range_end),
            target: CompareTarget::Version(i64::MIN),
            result: CompareResult::Less,
        }),
        Ok(Wire::Equal) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
