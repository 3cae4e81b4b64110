//! Converts encoded KV requests for the engine, after etcd's own checks.

use bytes::Bytes;
use kindred_engine::ops::{Delete, Op, RangeQuery};
use kindred_partition_config::unit::UnitBuckets;
use kindred_proto::{etcdserverpb as pb, nested};
use prost::Message;
use tonic::Status;

use super::Member;
use crate::{convert, etcd_status::KvError};

fn decode<M: Message + Default>(request: Bytes) -> Result<M, KvError> {
    Ok(M::decode(request)?)
}

/// Decodes a `RangeRequest`.
pub(crate) fn range(request: Bytes) -> Result<RangeQuery, Status> {
    Ok(convert::range(decode::<pb::RangeRequest>(request)?).map_err(KvError::from)?)
}

/// Decodes a `PutRequest`.
pub(crate) fn put(member: &Member, request: Bytes) -> Result<Op, Status> {
    let size = request.len();
    let put = convert::put(decode::<pb::PutRequest>(request)?).map_err(KvError::from)?;
    member.check_size(size)?;
    Ok(Op::Put(put))
}

/// Decodes a `DeleteRangeRequest`, restricted to these buckets.
pub(crate) fn delete(member: &Member, request: Bytes, buckets: Option<UnitBuckets>) -> Result<Op, Status> {
    let size = request.len();
    let delete = convert::delete(decode::<pb::DeleteRangeRequest>(request)?).map_err(KvError::from)?;
    member.check_size(size)?;
    Ok(Op::Delete(Delete { buckets, ..delete }))
}

/// Decodes a `TxnRequest`. Nearly all are a kube-apiserver's, which are converted without a message in between.
pub(crate) fn txn(member: &Member, request: Bytes) -> Result<Op, Status> {
    let size = request.len();
    let txn = match convert::optimistic::optimistic(&request, member.txn_ops_max) {
        Some(txn) => txn,
        None => convert::txn(nested::txn(request).map_err(KvError::from)?, member.txn_ops_max)
            .map_err(KvError::from)?,
    };
    if !convert::is_read_only(&txn) {
        member.check_size(size)?;
    }
    Ok(Op::Txn(Box::new(txn)))
}
