//! Compares the reader of optimistic transactions with the general readers, over transactions of that form, over
//! similar ones, and over bytes that were damaged.

use std::ops::ControlFlow;

use bytes::Bytes;
use kindred_proto::{etcdserverpb as pb, nested};
use kindred_wire::{
    optimistic::{Change, Optimistic},
    peek::{self, TxnPart},
};
use pb::{compare::TargetUnion, request_op::Request};
use proptest::prelude::*;
use prost::Message;

const EQUAL: i32 = pb::compare::CompareResult::Equal as i32;
const MOD: i32 = pb::compare::CompareTarget::Mod as i32;

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1), Just(-1), 0..300i64, any::<i64>()]
}

/// Nearly always the same key.
fn key() -> impl Strategy<Value = Bytes> {
    prop_oneof![30 => Just("key"), 1 => Just("other"), 1 => Just("")].prop_map(Bytes::from)
}

/// Nearly always none.
fn range_end() -> impl Strategy<Value = Bytes> {
    prop_oneof![30 => Just(""), 1 => Just("kez")].prop_map(Bytes::from)
}

prop_compose! {
    fn compare()(
        result in prop_oneof![20 => Just(EQUAL), 1 => 0..5i32], target in prop_oneof![20 => Just(MOD), 1 => 0..6i32],
        key in key(), range_end in range_end(), revision in number(), other in prop::bool::weighted(0.05),
    ) -> pb::Compare {
        let union = if other { TargetUnion::Version(revision) } else { TargetUnion::ModRevision(revision) };
        pb::Compare { result, target, key, range_end, target_union: Some(union) }
    }
}

prop_compose! {
    fn range()(
        key in key(), range_end in range_end(), n in [number(), number(), number()], sort in 0..3i32,
        b in any::<[bool; 3]>(),
    ) -> Request {
        Request::RequestRange(pb::RangeRequest {
            key, range_end, limit: n[0], revision: n[1], max_mod_revision: n[2], sort_order: sort, sort_target: sort,
            serializable: b[0], keys_only: b[1], count_only: b[2], ..Default::default()
        })
    }
}

prop_compose! {
    fn put()(key in key(), value in prop::collection::vec(any::<u8>(), 0..9), lease in number(), b in any::<[bool; 3]>())
        -> Request
    {
        let value = Bytes::from(value);
        Request::RequestPut(pb::PutRequest { key, value, lease, prev_kv: b[0], ignore_value: b[1], ignore_lease: b[2] })
    }
}

prop_compose! {
    fn delete()(key in key(), range_end in range_end(), prev_kv: bool) -> Request {
        Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv })
    }
}

fn nested_txn() -> impl Strategy<Value = Request> {
    put().prop_map(|put| {
        let success = vec![pb::RequestOp { request: Some(put) }];
        Request::RequestTxn(pb::TxnRequest { success, ..Default::default() })
    })
}

/// Nearly always one of the wanted operations.
fn op(wanted: impl Strategy<Value = Request> + 'static) -> impl Strategy<Value = pb::RequestOp> {
    let other = prop_oneof![range(), put(), delete(), nested_txn()];
    let request = prop_oneof![20 => wanted.prop_map(Some).boxed(), 1 => other.prop_map(Some).boxed(), 1 => Just(None).boxed()];
    request.prop_map(|request| pb::RequestOp { request })
}

fn ops(
    wanted: impl Strategy<Value = Request> + 'static,
    usual: usize,
) -> impl Strategy<Value = Vec<pb::RequestOp>> {
    let op = op(wanted).boxed();
    prop_oneof![20 => usual..2, 1 => 0..3usize]
        .prop_flat_map(move |count| prop::collection::vec(op.clone(), count))
}

fn txn() -> impl Strategy<Value = pb::TxnRequest> {
    let compares = prop_oneof![20 => 1..2usize, 1 => 0..3usize]
        .prop_flat_map(|count| prop::collection::vec(compare(), count));
    (compares, ops(prop_oneof![put(), delete()], 1), ops(range(), 0))
        .prop_map(|(compare, success, failure)| pb::TxnRequest { compare, success, failure })
}

/// A change of encoded bytes.
#[derive(Debug, Clone)]
enum Damage {
    None,
    Truncated(prop::sample::Index),
    Replaced(prop::sample::Index, u8),
    Inserted(prop::sample::Index, Vec<u8>),
    /// A part occurs again somewhere else.
    Repeated([prop::sample::Index; 3]),
    /// Another whole message follows, which merges into the first.
    Followed(pb::TxnRequest),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Fields with small numbers and little in them, unknown ones and groups among them.
    let field = prop::collection::vec(prop_oneof![0..0x40u8, any::<u8>()], 1..4);
    prop_oneof![
        4 => Just(Damage::None),
        1 => any::<prop::sample::Index>().prop_map(Damage::Truncated),
        3 => any::<(prop::sample::Index, u8)>().prop_map(|(at, byte)| Damage::Replaced(at, byte)),
        3 => (any::<prop::sample::Index>(), field).prop_map(|(at, bytes)| Damage::Inserted(at, bytes)),
        2 => any::<[prop::sample::Index; 3]>().prop_map(Damage::Repeated),
        1 => txn().prop_map(Damage::Followed),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: Damage) -> Vec<u8> {
    match damage {
        Damage::Truncated(at) if !bytes.is_empty() => bytes.truncate(at.index(bytes.len())),
        Damage::Replaced(at, byte) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        Damage::Inserted(at, inserted) => {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, inserted);
        }
        Damage::Repeated([from, to, at]) => {
            let [from, to, at] = [from, to, at].map(|index| index.index(bytes.len() + 1));
            let part = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(at..at, part);
        }
        Damage::Followed(txn) => bytes.extend(txn.encode_to_vec()),
        Damage::None | Damage::Truncated(_) | Damage::Replaced(..) => {}
    }
    bytes
}

/// The transaction as prost would have it.
fn as_txn(read: &Optimistic<'_>) -> pb::TxnRequest {
    let bytes = Bytes::copy_from_slice;
    let compare = pb::Compare {
        result: EQUAL,
        target: MOD,
        key: bytes(read.key),
        range_end: Bytes::new(),
        target_union: Some(TargetUnion::ModRevision(read.mod_revision)),
    };
    let change = match read.change {
        Change::Put(put) => Request::RequestPut(pb::PutRequest {
            key: bytes(put.key),
            value: bytes(put.value),
            lease: put.lease,
            prev_kv: put.prev_kv,
            ignore_value: put.ignore_value,
            ignore_lease: put.ignore_lease,
        }),
        Change::Delete(delete) => Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key: bytes(delete.key),
            range_end: bytes(delete.range_end),
            prev_kv: delete.prev_kv,
        }),
    };
    let read = read.read.map(|range| {
        Request::RequestRange(pb::RangeRequest {
            key: bytes(range.key),
            range_end: bytes(range.range_end),
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
        })
    });
    let op = |request| pb::RequestOp { request: Some(request) };
    pb::TxnRequest {
        compare: vec![compare],
        success: vec![op(change)],
        failure: read.map(op).into_iter().collect(),
    }
}

/// Tells whether the parser must read the usual encoding of this transaction.
fn is_optimistic(txn: &pb::TxnRequest) -> bool {
    let [compare] = txn.compare.as_slice() else { return false };
    let on_revision = compare.result == EQUAL
        && compare.target == MOD
        && compare.range_end.is_empty()
        && matches!(compare.target_union, None | Some(TargetUnion::ModRevision(_)));
    let alone = |key: &Bytes, range_end: &[u8]| *key == compare.key && range_end.is_empty();
    let changes = match txn.success.as_slice() {
        [pb::RequestOp { request: Some(Request::RequestPut(put)) }] => alone(&put.key, b""),
        [pb::RequestOp { request: Some(Request::RequestDeleteRange(delete)) }] => {
            alone(&delete.key, &delete.range_end)
        }
        _ => false,
    };
    let reads = match txn.failure.as_slice() {
        [] => true,
        [pb::RequestOp { request: Some(Request::RequestRange(range)) }] => {
            alone(&range.key, &range.range_end)
        }
        _ => false,
    };
    on_revision && changes && reads
}

/// The parts that the visitor finds.
fn visited(txn: &[u8]) -> Vec<TxnPart<'_>> {
    let mut parts = Vec::new();
    let flow = peek::visit_txn::<()>(txn, &mut |part| {
        parts.push(part);
        ControlFlow::Continue(())
    });
    assert_eq!(flow, Ok(ControlFlow::Continue(())));
    parts
}

/// The parts that the visitor should find.
fn parts<'a>(read: &Optimistic<'a>) -> Vec<TxnPart<'a>> {
    let compare = peek::Compare {
        result: EQUAL,
        target: MOD,
        key: read.key,
        mod_revision: read.mod_revision,
        range_end: b"",
    };
    let change = match read.change {
        Change::Put(put) => TxnPart::Put(put),
        Change::Delete(delete) => TxnPart::DeleteRange(delete),
    };
    [TxnPart::Compare(compare), change].into_iter().chain(read.read.map(TxnPart::Range)).collect()
}

/// Compares the parser with the general readers over these bytes. Returns whether the parser read them.
fn is_read_alike(bytes: &[u8]) -> bool {
    let decoded = nested::txn(Bytes::copy_from_slice(bytes));
    let Some(read) = Optimistic::parse(bytes) else {
        // An unusual encoding need not be read.
        let left = decoded.is_ok_and(|txn| is_optimistic(&txn) && txn.encode_to_vec() == bytes);
        assert!(!left, "it has the form, and is encoded as usual");
        return false;
    };
    let mut decoded = decoded.unwrap();
    // A revision that is not written is zero.
    decoded.compare[0].target_union.get_or_insert(TargetUnion::ModRevision(0));
    assert_eq!(decoded, as_txn(&read));
    assert_eq!(visited(bytes), parts(&read));
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn what_is_read_is_what_the_general_readers_read(txn in txn(), damage in damage()) {
        is_read_alike(&damaged(txn.encode_to_vec(), damage));
    }

    #[test]
    fn random_bytes_are_read_alike(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..32u8], 0..64)) {
        is_read_alike(&bytes);
    }
}

fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = u8::try_from(content.len()).unwrap();
    assert!(len < 0x80);
    [&[tag, len], content].concat()
}

/// Groups within each other, in an unknown field.
fn groups(depth: usize) -> Vec<u8> {
    [vec![0x7b; depth], vec![0x7c; depth]].concat()
}

#[test]
fn encodings_of_all_sorts() {
    let compare = [&[0x10, 2][..], &field(0x1a, b"k"), &[0x30, 7]].concat();
    let put = [field(0x0a, b"k"), field(0x12, b"v")].concat();
    let (delete, read) = (field(0x0a, b"k"), field(0x0a, b"k"));
    let (c, p) = (field(0x0a, &compare), field(0x12, &field(0x12, &put)));
    let (d, r) = (field(0x12, &field(0x1a, &delete)), field(0x1a, &field(0x0a, &read)));
    let put_with = |more: &[u8]| field(0x12, &field(0x12, &[&put, more].concat()));
    let compare_with = |more: &[u8]| field(0x0a, &[&compare, more].concat());
    for (what, is_read, pieces) in [
        ("a create or update", true, vec![&c, &p]),
        ("with a read", true, vec![&c, &p, &r]),
        ("a delete", true, vec![&c, &d, &r]),
        ("an unknown field of a put", true, vec![&c, &put_with(&[0x78, 1]), &r]),
        ("a value that is written twice", true, vec![&c, &put_with(&field(0x12, b"w")), &r]),
        ("another key at last", false, vec![&c, &put_with(&field(0x0a, b"l")), &r]),
        ("a number that is written twice", true, vec![&compare_with(&[0x30, 8]), &p]),
        ("another number behind it", false, vec![&compare_with(&[0x20, 8]), &p]),
        ("the end of a range", false, vec![&compare_with(&[0x82, 4, 1, b'z']), &p]),
        ("an unknown field of the compare", false, vec![&compare_with(&[0x78, 1]), &p]),
        ("an unknown field of the txn", false, vec![&c, &p, &r, &vec![0x78, 1]]),
        ("an unknown field of the operation", false, vec![&c, &field(0x12, &[&p[2..], &[0x78, 1]].concat())]),
        ("a put in two pieces", false, vec![&c, &field(0x12, &[&p[2..], &p[2..]].concat())]),
        ("two variants", false, vec![&c, &field(0x12, &[&p[2..], &d[2..]].concat())]),
        ("two puts", false, vec![&c, &p, &p]),
        ("two compares", false, vec![&c, &c, &p]),
        ("two reads", false, vec![&c, &p, &r, &r]),
        ("another order", false, vec![&p, &c]),
        ("no compare", false, vec![&p, &r]),
        ("no change", false, vec![&c, &r]),
        ("a compare alone", false, vec![&c]),
        ("nothing", false, vec![]),
        ("few groups", true, vec![&c, &put_with(&groups(20))]),
    ] {
        let bytes: Vec<u8> = pieces.into_iter().flatten().copied().collect();
        assert_eq!(is_read_alike(&bytes), is_read, "{what}");
    }
}

/// Groups within a put, so deep that the decoder refuses them at some depth.
#[test]
fn the_same_groups_are_too_deep() {
    for depth in 90..110 {
        let len = |content: &[u8]| {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(content.len() as u64, &mut bytes);
            [&bytes, content].concat()
        };
        let under = |tag: u8, content: Vec<u8>| [vec![tag], len(&content)].concat();
        let put = [field(0x0a, b"k"), groups(depth)].concat();
        let compare = under(0x0a, [&[0x10, 2][..], &field(0x1a, b"k")].concat());
        is_read_alike(&[compare, under(0x12, under(0x12, put))].concat());
    }
}
