//! Converts the transactions of a kube-apiserver from their bytes, without decoding them to messages in between.

use bytes::Bytes;
use kindred_engine::ops::{Compare, CompareResult, CompareTarget, Op, Txn};
use kindred_partition_config::key::{Key, KeyRange};
use kindred_proto::{check, etcdserverpb as pb};
use kindred_wire::{
    optimistic::{Change, Optimistic},
    peek,
};

use super::{delete_op, put_op, read_op};

/// Converts a transaction of the form that [`Optimistic`] reads. `None` if it has another one, or if etcd would refuse
/// it: [`super::txn`] converts the first, and says why of the second.
#[must_use]
pub fn optimistic(request: &Bytes, ops_max: usize) -> Option<Txn> {
    let read = Optimistic::parse(request)?;
    // It has one compare and one operation on either side, and so nothing that overlaps.
    if ops_max == 0 || read.key.is_empty() {
        return None;
    }
    let key = request.slice_ref(read.key);
    let change = match read.change {
        Change::Put(put) => {
            let put = pb::PutRequest {
                key: key.clone(),
                value: request.slice_ref(put.value),
                lease: put.lease,
                prev_kv: put.prev_kv,
                ignore_value: put.ignore_value,
                ignore_lease: put.ignore_lease,
            };
            check::put(&put).ok()?;
            Op::Put(put_op(put))
        }
        Change::Delete(delete) => Op::Delete(delete_op(pb::DeleteRangeRequest {
            key: key.clone(),
            range_end: Bytes::new(),
            prev_kv: delete.prev_kv,
        })),
    };
    let failure = match &read.read {
        None => Vec::new(),
        Some(range) => {
            let range = range_of(key.clone(), range);
            check::range(&range).ok()?;
            vec![read_op(range)]
        }
    };
    let target = CompareTarget::Mod(read.mod_revision);
    let compare = Compare { range: KeyRange::Single(Key(key)), target, result: CompareResult::Equal };
    Some(Txn { compares: vec![compare], success: vec![change], failure })
}

/// The message that a read of one key stands for.
fn range_of(key: Bytes, range: &peek::RangeRequest<'_>) -> pb::RangeRequest {
    pb::RangeRequest {
        key,
        range_end: Bytes::new(),
        limit: range.limit,
        revision: range.revision,
        sort_order: range.sort_order,
        sort_target: range.sort_target,
        serializable: range.serializable,
        keys_only: range.keys_only,
        count_only: range.count_only,
        min_mod_revision: range.min_mod_revision,
        max_mod_revision: range.max_mod_revision,
        min_create_revision: range.min_create_revision,
        max_create_revision: range.max_create_revision,
    }
}

#[cfg(test)]
mod tests {
    use kindred_proto::nested;
    use pb::{compare::TargetUnion, request_op::Request};
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![4 => Just(0), 1 => Just(1), 1 => any::<i64>()]
    }

    prop_compose! {
        /// A transaction of the form, valid or not, in one of ten with a key that is none.
        fn txn()(
            key in prop_oneof![9 => Just("key"), 1 => Just("")], value in prop_oneof![Just(""), Just("value")],
            lease in number(), revision in number(), n in [number(), number(), number()],
            sort_order in prop_oneof![3 => Just(0), 1 => 0..4i32], sort_target in prop_oneof![3 => Just(0), 1 => 0..6i32],
            b in any::<[bool; 6]>(), deletes: bool, reads in prop::bool::weighted(0.8),
        ) -> pb::TxnRequest {
            let op = |request| vec![pb::RequestOp { request: Some(request) }];
            let key = Bytes::from(key);
            let compare = pb::Compare {
                target: pb::compare::CompareTarget::Mod.into(),
                key: key.clone(),
                target_union: Some(TargetUnion::ModRevision(revision)),
                ..Default::default()
            };
            let put = pb::PutRequest {
                key: key.clone(), value: value.into(), lease, prev_kv: b[0], ignore_value: b[1], ignore_lease: b[2],
            };
            let delete = pb::DeleteRangeRequest { key: key.clone(), range_end: Bytes::new(), prev_kv: b[0] };
            let read = pb::RangeRequest {
                key, limit: n[0], revision: n[1], max_mod_revision: n[2], sort_order, sort_target,
                serializable: b[3], keys_only: b[4], count_only: b[5], ..Default::default()
            };
            let change = if deletes { Request::RequestDeleteRange(delete) } else { Request::RequestPut(put) };
            let failure = if reads { op(Request::RequestRange(read)) } else { Vec::new() };
            pb::TxnRequest { compare: vec![compare], success: op(change), failure }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn a_txn_is_converted_as_by_its_message(
            txn in txn(), ops_max in 0..3usize, changed in prop::option::weighted(0.4, any::<(prop::sample::Index, u8)>()),
        ) {
            let mut bytes = txn.encode_to_vec();
            if let Some((at, byte)) = changed {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let bytes = Bytes::from(bytes);
            let general = nested::txn(bytes.clone()).ok().map(|txn| super::super::txn(txn, ops_max));
            let direct = optimistic(&bytes, ops_max);
            match (direct, general) {
                (Some(direct), general) => prop_assert_eq!(Some(Ok(direct)), general),
                // What is valid and in the usual encoding goes no other way.
                (None, general) => prop_assert!(changed.is_some() || general.is_none_or(|general| general.is_err())),
            }
        }
    }
}
