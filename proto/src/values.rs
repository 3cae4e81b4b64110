//! The values in a request, which traces leave out: a request without them, and their lengths, make one like it again.

use bytes::Bytes;

use crate::etcdserverpb::compare::TargetUnion;
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::{RequestOp, TxnRequest};

/// Passes every value of a transaction to `visit`: those of its compares, of its success branch and of its failure branch,
/// each in their order. A transaction within it has its turn where it stands. The caller bounds the depth
/// ([`crate::nested`]).
pub fn each(txn: &mut TxnRequest, visit: &mut impl FnMut(&mut Bytes)) {
    for compare in &mut txn.compare {
        if let Some(TargetUnion::Value(value)) = &mut compare.target_union {
            visit(value);
        }
    }
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        each_of(op, visit);
    }
}

fn each_of(op: &mut RequestOp, visit: &mut impl FnMut(&mut Bytes)) {
    match &mut op.request {
        Some(Request::RequestPut(put)) => visit(&mut put.value),
        Some(Request::RequestTxn(txn)) => each(txn, visit),
        Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{Compare, PutRequest, RangeRequest};

    #[test]
    fn every_value_is_visited_once_in_order() {
        let op = |request| RequestOp { request: Some(request) };
        let put = |value: &'static str| {
            op(Request::RequestPut(PutRequest { key: "k".into(), value: value.into(), ..Default::default() }))
        };
        let compare = |target| Compare { key: "k".into(), target_union: Some(target), ..Default::default() };
        let inner = TxnRequest { compare: vec![], success: vec![put("three")], failure: vec![put("four")] };
        let mut txn = TxnRequest {
            compare: vec![compare(TargetUnion::Value("one".into())), compare(TargetUnion::ModRevision(7))],
            success: vec![put("two"), op(Request::RequestTxn(inner)), RequestOp::default()],
            failure: vec![op(Request::RequestRange(RangeRequest::default())), put("five")],
        };
        let mut seen = Vec::new();
        each(&mut txn, &mut |value| seen.push(std::mem::take(value)));
        assert_eq!(seen, ["one", "two", "three", "four", "five"]);
        each(&mut txn, &mut |value| assert!(value.is_empty()));
    }
}
