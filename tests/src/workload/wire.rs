//! Converts between the checker's types and etcd's protobuf messages.

use bytes::Bytes;
use kindred_checker::{
    Blob, Key, Value,
    history::{
        Compare, Event, EventKind, KeyRange, KeyValue, LeaseId, List, ReadResult, Revision, TxnOp, TxnResult,
    },
};
use kindred_proto::{
    etcdserverpb::{
        self as pb,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op, response_op,
    },
    mvccpb,
};

pub fn bytes(blob: &Blob) -> Bytes {
    Bytes::copy_from_slice(blob.as_bytes())
}

fn blob(bytes: &Bytes) -> Blob {
    Blob::from(bytes.as_ref())
}

/// The revision of a header; 0 without one.
pub fn revision(header: Option<&pb::ResponseHeader>) -> Revision {
    Revision(header.map_or(0, |header| header.revision))
}

pub fn key_value(kv: &mvccpb::KeyValue) -> KeyValue {
    KeyValue {
        key: blob(&kv.key),
        value: blob(&kv.value),
        create: Revision(kv.create_revision),
        modified: Revision(kv.mod_revision),
        version: kv.version,
        lease: LeaseId(kv.lease),
    }
}

pub fn event(event: &mvccpb::Event) -> Option<Event> {
    let kind =
        if event.r#type() == mvccpb::event::EventType::Put { EventKind::Put } else { EventKind::Delete };
    Some(Event { kind, kv: key_value(event.kv.as_ref()?), prev_kv: event.prev_kv.as_ref().map(key_value) })
}

pub fn range_request(list: &List) -> pb::RangeRequest {
    pb::RangeRequest {
        key: bytes(&list.range.key),
        range_end: bytes(&list.range.end),
        limit: i64::try_from(list.limit).unwrap_or(i64::MAX),
        revision: list.revision.map_or(0, |revision| revision.0),
        serializable: list.serializable,
        count_only: list.count_only,
        ..Default::default()
    }
}

pub fn read_result(answer: &pb::RangeResponse) -> ReadResult {
    let kvs = answer.kvs.iter().map(key_value).collect();
    ReadResult { kvs, more: answer.more, count: answer.count }
}

pub fn put_request(key: &Key, value: &Value, lease: LeaseId) -> pb::PutRequest {
    pb::PutRequest { key: bytes(key), value: bytes(value), lease: lease.0, ..Default::default() }
}

pub fn delete_request(range: &KeyRange, prev_kv: bool) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: bytes(&range.key), range_end: bytes(&range.end), prev_kv }
}

fn equal(key: &Key, target: CompareTarget, wanted: TargetUnion) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: bytes(key),
        range_end: Bytes::new(),
        target_union: Some(wanted),
    }
}

/// `None` for `Compare::Other`, of which the history does not have enough.
pub fn compare(compare: &Compare) -> Option<pb::Compare> {
    Some(match compare {
        Compare::Modified(key, at) => equal(key, CompareTarget::Mod, TargetUnion::ModRevision(at.0)),
        Compare::Create(key, at) => equal(key, CompareTarget::Create, TargetUnion::CreateRevision(at.0)),
        Compare::Version(key, version) => equal(key, CompareTarget::Version, TargetUnion::Version(*version)),
        Compare::Value(key, value) => equal(key, CompareTarget::Value, TargetUnion::Value(bytes(value))),
        Compare::Other(_) => return None,
    })
}

pub fn txn_op(op: &TxnOp) -> pb::RequestOp {
    let request = match op {
        TxnOp::Put { key, value, lease } => request_op::Request::RequestPut(put_request(key, value, *lease)),
        TxnOp::Delete(range) => request_op::Request::RequestDeleteRange(delete_request(range, false)),
        TxnOp::Range(list) => request_op::Request::RequestRange(range_request(list)),
    };
    pb::RequestOp { request: Some(request) }
}

/// `None` for a nested txn, as no client sends one.
pub fn txn_result(answer: &pb::ResponseOp) -> Option<TxnResult> {
    Some(match answer.response.as_ref()? {
        response_op::Response::ResponsePut(_) => TxnResult::Put,
        response_op::Response::ResponseDeleteRange(deleted) => TxnResult::Delete(deleted.deleted),
        response_op::Response::ResponseRange(range) => TxnResult::Range(read_result(range)),
        response_op::Response::ResponseTxn(_) => return None,
    })
}
