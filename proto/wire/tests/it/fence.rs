//! Compares nested requests and their answers with prost's decoder and encoder.

use bytes::Bytes;
use kindred_proto::{etcdserverpb as pb, mvccpb};
use kindred_wire::{
    fence::{self, BEHIND_FENCE, FENCE_KEY, Fence, Nested, Unnested},
    peek::ResponseHeader,
};
use pb::{request_op::Request, response_op::Response};
use proptest::prelude::*;
use prost::Message;

fn text() -> impl Strategy<Value = Bytes> {
    prop_oneof![Just(Vec::new()), Just(vec![0]), prop::collection::vec(any::<u8>(), 0..200)]
        .prop_map(Bytes::from)
}

prop_compose! {
    fn range()(key in text(), range_end in text(), limit in 0..9i64, revision in -1..99i64, b in any::<[bool; 3]>())
        -> pb::RangeRequest
    {
        pb::RangeRequest {
            key, range_end, limit, revision, serializable: b[0], keys_only: b[1], count_only: b[2], ..Default::default()
        }
    }
}

fn request() -> impl Strategy<Value = Request> {
    let put = (text(), text(), any::<bool>()).prop_map(|(key, value, prev_kv)| pb::PutRequest {
        key,
        value,
        prev_kv,
        ..Default::default()
    });
    let delete = (text(), text(), any::<bool>())
        .prop_map(|(key, range_end, prev_kv)| pb::DeleteRangeRequest { key, range_end, prev_kv });
    let txn = prop::collection::vec(range(), 0..3).prop_map(|ranges| {
        let op = |range| pb::RequestOp { request: Some(Request::RequestRange(range)) };
        pb::TxnRequest { success: ranges.into_iter().map(op).collect(), ..Default::default() }
    });
    prop_oneof![
        range().prop_map(Request::RequestRange),
        put.prop_map(Request::RequestPut),
        delete.prop_map(Request::RequestDeleteRange),
        txn.prop_map(Request::RequestTxn),
    ]
}

fn encoded(request: &Request) -> (Nested, Vec<u8>) {
    match request {
        Request::RequestRange(range) => (Nested::Range, range.encode_to_vec()),
        Request::RequestPut(put) => (Nested::Put, put.encode_to_vec()),
        Request::RequestDeleteRange(delete) => (Nested::DeleteRange, delete.encode_to_vec()),
        Request::RequestTxn(txn) => (Nested::Txn, txn.encode_to_vec()),
    }
}

/// The request that etcd should see: a range never begins with the fence key, and a read is never serializable,
/// because a member may not know of the fence.
fn expected(mut request: Request) -> Request {
    let behind = |key: &mut Bytes, range_end: &Bytes| {
        if *key == FENCE_KEY && !range_end.is_empty() {
            *key = Bytes::from_static(BEHIND_FENCE);
        }
    };
    match &mut request {
        Request::RequestRange(range) => {
            behind(&mut range.key, &range.range_end);
            range.serializable = false;
        }
        Request::RequestDeleteRange(delete) => behind(&mut delete.key, &delete.range_end),
        Request::RequestPut(_) | Request::RequestTxn(_) => {}
    }
    request
}

fn header(revision: i64) -> ResponseHeader {
    ResponseHeader { cluster_id: 1, member_id: 2, revision, raft_term: 3 }
}

fn answer(succeeded: bool, response: Response) -> Vec<u8> {
    let header = pb::ResponseHeader { cluster_id: 1, member_id: 2, revision: 40, raft_term: 3 };
    let responses = vec![pb::ResponseOp { response: Some(response) }];
    pb::TxnResponse { header: Some(header), succeeded, responses }.encode_to_vec()
}

proptest! {
    #[test]
    fn r13_a_request_is_executed_only_behind_the_compare(request in request(), mod_revision in 0..i64::MAX) {
        let (nested, body) = encoded(&request);
        let txn = pb::TxnRequest::decode(&fence::nest(nested, &body, mod_revision)[..]).unwrap();
        let compare = pb::Compare {
            result: pb::compare::CompareResult::Equal.into(),
            target: pb::compare::CompareTarget::Mod.into(),
            key: Bytes::from_static(FENCE_KEY),
            target_union: Some(pb::compare::TargetUnion::ModRevision(mod_revision)),
            ..Default::default()
        };
        prop_assert_eq!(txn.compare, vec![compare]);
        prop_assert_eq!(txn.success, vec![pb::RequestOp { request: Some(expected(request)) }]);
        let fence = pb::RangeRequest { key: Bytes::from_static(FENCE_KEY), ..Default::default() };
        prop_assert_eq!(txn.failure, vec![pb::RequestOp { request: Some(Request::RequestRange(fence)) }]);
    }

    #[test]
    fn a_stream_reads_what_was_there_at_the_revision(range in range(), revision in 1..i64::MAX) {
        let streamed = fence::streamed_at(&range.encode_to_vec(), revision);
        let Request::RequestRange(expected) = expected(Request::RequestRange(range)) else { unreachable!() };
        let streamed = pb::RangeRequest::decode(&streamed[..]).unwrap();
        prop_assert_eq!(streamed, pb::RangeRequest { revision, ..expected });
    }

    #[test]
    fn the_fence_key_alone_is_nobodys(request in request()) {
        let alone = |key: &Bytes, end: &Bytes| *key == FENCE_KEY && end.is_empty();
        let expected = match &request {
            Request::RequestRange(range) => alone(&range.key, &range.range_end),
            Request::RequestPut(put) => put.key == FENCE_KEY,
            Request::RequestDeleteRange(delete) => alone(&delete.key, &delete.range_end),
            Request::RequestTxn(txn) => txn.success.iter().any(|op| match &op.request {
                Some(Request::RequestRange(range)) => range.key == FENCE_KEY,
                _ => false,
            }),
        };
        let (nested, body) = encoded(&request);
        prop_assert_eq!(fence::touches_fence(nested, &body), Ok(expected));
    }
}

#[test]
fn the_nested_answer_is_the_clients_under_the_header_of_the_whole() {
    let kv = mvccpb::KeyValue { key: "k".into(), mod_revision: 7, ..Default::default() };
    // etcd leaves nested headers empty except for the revision.
    let inner = Some(pb::ResponseHeader { revision: 39, ..Default::default() });
    let range = pb::RangeResponse { header: inner, kvs: vec![kv], more: true, count: 9 };
    let said = answer(true, Response::ResponseRange(range.clone()));
    let Ok(Unnested::Executed { answer: own, header: found }) = fence::unnest(Nested::Range, &said) else {
        panic!("{said:?}")
    };
    assert_eq!(found, header(40));
    let own = pb::RangeResponse::decode(&fence::with_header(own, found)[..]).unwrap();
    let whole = pb::ResponseHeader { cluster_id: 1, member_id: 2, revision: 40, raft_term: 3 };
    assert_eq!(own, pb::RangeResponse { header: Some(whole), ..range });

    let txn =
        pb::TxnResponse { header: Some(pb::ResponseHeader::default()), succeeded: false, responses: vec![] };
    let said = answer(true, Response::ResponseTxn(txn));
    let Ok(Unnested::Executed { answer: own, header: found }) = fence::unnest(Nested::Txn, &said) else {
        panic!("{said:?}")
    };
    let own = pb::TxnResponse::decode(&fence::with_header(own, found)[..]).unwrap();
    assert_eq!((own.header, own.succeeded), (Some(whole), false), "the client's own compares failed");
}

#[test]
fn what_was_not_executed_says_how_the_fence_is() {
    let kv = mvccpb::KeyValue {
        key: Bytes::from_static(FENCE_KEY),
        value: "v".into(),
        mod_revision: 31,
        ..Default::default()
    };
    let there = pb::RangeResponse { kvs: vec![kv], count: 1, ..Default::default() };
    for nested in [Nested::Range, Nested::Put, Nested::DeleteRange, Nested::Txn] {
        let said = answer(false, Response::ResponseRange(there.clone()));
        let fence = Fence { mod_revision: 31, value: b"v", revision: 40 };
        assert_eq!(fence::unnest(nested, &said), Ok(Unnested::Refused(fence)));
        let said = answer(false, Response::ResponseRange(pb::RangeResponse::default()));
        let none = Fence { mod_revision: 0, value: b"", revision: 40 };
        assert_eq!(fence::unnest(nested, &said), Ok(Unnested::Refused(none)));
        // The answer of another kind is an error, so that nothing counts as executed by mistake.
        let put = answer(true, Response::ResponsePut(pb::PutResponse::default()));
        assert_eq!(fence::unnest(nested, &put).is_ok(), nested == Nested::Put);
    }
    assert!(fence::unnest(Nested::Put, b"").is_err());
}
