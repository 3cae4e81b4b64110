//! Random transactions, with every compare target and result, ranges in compares, and nesting. Some are illegal.

use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    Compare, RequestOp, TxnRequest, compare::TargetUnion, request_op::Request,
};
use rand::Rng;

use crate::differential::{generate::Generator, keys, revision::Symbol};

const DEPTH_MAX: u32 = 2;
/// One above etcd's limit, 128.
const TOO_MANY_OPS: usize = 129;

pub fn txn(generator: &mut Generator<'_>, kind: usize) -> TxnRequest {
    if generator.chance(40) {
        return kubernetes(generator, kind);
    }
    random(generator, kind, 0)
}

/// A txn as kube-apiserver sends it: one compare, one write and one read of the same key.
fn kubernetes(generator: &mut Generator<'_>, kind: usize) -> TxnRequest {
    let put = generator.put(kind);
    let key = put.key.clone();
    let expected = if generator.chance(25) { 0 } else { Symbol::KeyMod.code() };
    let compare = Compare {
        target: 2,
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(expected)),
        ..Default::default()
    };
    let write = if generator.chance(70) {
        Request::RequestPut(put)
    } else {
        let mut delete = generator.delete_range(kind);
        (delete.key, delete.range_end) = (key.clone(), Bytes::new());
        Request::RequestDeleteRange(delete)
    };
    let mut read = generator.range(kind);
    read = kindred_proto::etcdserverpb::RangeRequest { key, limit: read.limit.max(0), ..Default::default() };
    TxnRequest {
        compare: vec![compare],
        success: vec![RequestOp { request: Some(write) }],
        failure: if generator.chance(70) {
            vec![RequestOp { request: Some(Request::RequestRange(read)) }]
        } else {
            Vec::new()
        },
    }
}

fn random(generator: &mut Generator<'_>, kind: usize, depth: u32) -> TxnRequest {
    let compares = generator.rng.random_range(0..4);
    let compare = (0..compares).map(|_| compare(generator, kind)).collect();
    let success = branch(generator, kind, depth);
    let failure = branch(generator, kind, depth);
    TxnRequest { compare, success, failure }
}

fn branch(generator: &mut Generator<'_>, kind: usize, depth: u32) -> Vec<RequestOp> {
    if depth == 0 && generator.rng.random_range(0..200) == 0 {
        let range = generator.range(kind);
        return vec![RequestOp { request: Some(Request::RequestRange(range)) }; TOO_MANY_OPS];
    }
    let length = generator.rng.random_range(0..4);
    (0..length).map(|_| op(generator, kind, depth)).collect()
}

fn op(generator: &mut Generator<'_>, kind: usize, depth: u32) -> RequestOp {
    let request = match generator.rng.random_range(0..100) {
        0..45 => Some(Request::RequestPut(generator.put(kind))),
        45..70 => Some(Request::RequestRange(generator.range(kind))),
        70..88 => Some(Request::RequestDeleteRange(generator.delete_range(kind))),
        88..99 if depth < DEPTH_MAX => Some(Request::RequestTxn(random(generator, kind, depth + 1))),
        88..99 => Some(Request::RequestRange(generator.range(kind))),
        // An operation without content.
        _ if generator.chance(20) => None,
        _ => Some(Request::RequestPut(generator.put(kind))),
    };
    RequestOp { request }
}

fn compare(generator: &mut Generator<'_>, kind: usize) -> Compare {
    let (key, range_end) =
        if generator.chance(20) { generator.span(kind) } else { (generator.key(kind), Bytes::new()) };
    let target = generator.rng.random_range(0..5);
    let lucky = generator.chance(70);
    let union = match target {
        0 => TargetUnion::Version(generator.rng.random_range(0..4)),
        1 if lucky => TargetUnion::CreateRevision(Symbol::KeyCreate.code()),
        1 => TargetUnion::CreateRevision(Symbol::Recent(generator.rng.random_range(0..1001)).code()),
        2 if lucky => TargetUnion::ModRevision(Symbol::KeyMod.code()),
        2 => TargetUnion::ModRevision(Symbol::Recent(generator.rng.random_range(0..1001)).code()),
        3 => TargetUnion::Value(keys::value(&mut generator.rng)),
        _ => TargetUnion::Lease(generator.rng.random_range(0..7)),
    };
    Compare {
        result: if generator.chance(1) { 9 } else { generator.rng.random_range(0..4) },
        target,
        key: if generator.chance(1) { Bytes::new() } else { key },
        target_union: if generator.chance(1) { None } else { Some(union) },
        range_end,
    }
}
