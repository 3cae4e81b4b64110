//! Compares everything that this crate reads or writes by hand with prost's decoder and encoder.

use std::ops::ControlFlow;

use bytes::Bytes;
use kindred_proto::{etcdserverpb as pb, mvccpb};
use kindred_wire::{answer, kv, patch, peek, watch_request};
use proptest::prelude::*;
use prost::Message;

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1), Just(-1), 0..300i64, any::<i64>()]
}

fn text() -> impl Strategy<Value = Bytes> {
    prop_oneof![Just(Vec::new()), Just(vec![0]), prop::collection::vec(any::<u8>(), 0..20)]
        .prop_map(Bytes::from)
}

fn header() -> impl Strategy<Value = Option<pb::ResponseHeader>> {
    prop::option::of((any::<u64>(), 0..3u64, number(), 0..3u64)).prop_map(|header| {
        header.map(|(cluster_id, member_id, revision, raft_term)| pb::ResponseHeader {
            cluster_id,
            member_id,
            revision,
            raft_term,
        })
    })
}

prop_compose! {
    fn key_value()(key in text(), numbers in [number(), number(), number(), number()], value in text())
        -> mvccpb::KeyValue
    {
        let [create_revision, mod_revision, version, lease] = numbers;
        mvccpb::KeyValue { key, create_revision, mod_revision, version, value, lease }
    }
}

prop_compose! {
    fn event()(r#type in 0..2i32, kv in key_value(), prev_kv in prop::option::of(key_value())) -> mvccpb::Event {
        mvccpb::Event { r#type, kv: Some(kv), prev_kv }
    }
}

prop_compose! {
    fn range_request()(
        key in text(), range_end in text(), n in [number(), number(), number(), number(), number(), number()],
        sort_order in 0..3i32, sort_target in 0..5i32, b in any::<[bool; 3]>(),
    ) -> pb::RangeRequest {
        pb::RangeRequest {
            key, range_end, limit: n[0], revision: n[1], sort_order, sort_target,
            serializable: b[0], keys_only: b[1], count_only: b[2],
            min_mod_revision: n[2], max_mod_revision: n[3], min_create_revision: n[4], max_create_revision: n[5],
        }
    }
}

prop_compose! {
    fn put_request()(key in text(), value in text(), lease in number(), b in any::<[bool; 3]>()) -> pb::PutRequest {
        pb::PutRequest { key, value, lease, prev_kv: b[0], ignore_value: b[1], ignore_lease: b[2] }
    }
}

prop_compose! {
    fn delete_request()(key in text(), range_end in text(), prev_kv: bool) -> pb::DeleteRangeRequest {
        pb::DeleteRangeRequest { key, range_end, prev_kv }
    }
}

prop_compose! {
    fn compare()(result in 0..4i32, target in 0..5i32, key in text(), range_end in text(), revision in number())
        -> pb::Compare
    {
        let target_union = Some(pb::compare::TargetUnion::ModRevision(revision));
        pb::Compare { result, target, key, range_end, target_union }
    }
}

fn txn_request() -> impl Strategy<Value = pb::TxnRequest> {
    use pb::request_op::Request;
    let op = prop_oneof![
        1 => Just(None),
        3 => range_request().prop_map(|r| Some(Request::RequestRange(r))),
        3 => put_request().prop_map(|r| Some(Request::RequestPut(r))),
        3 => delete_request().prop_map(|r| Some(Request::RequestDeleteRange(r))),
    ]
    .prop_map(|request| pb::RequestOp { request });
    let txn = |op: BoxedStrategy<pb::RequestOp>| {
        let ops = prop::collection::vec(op, 0..3);
        (prop::collection::vec(compare(), 0..3), ops.clone(), ops)
            .prop_map(|(compare, success, failure)| pb::TxnRequest { compare, success, failure })
    };
    op.boxed()
        .prop_recursive(3, 12, 3, move |op| {
            txn(op).prop_map(|txn| pb::RequestOp { request: Some(Request::RequestTxn(txn)) })
        })
        .boxed()
        .prop_flat_map(move |op| txn(Just(op).boxed()))
}

fn watch_request() -> impl Strategy<Value = pb::WatchRequest> {
    use pb::watch_request::RequestUnion;
    let create =
        (text(), text(), number(), number(), prop::collection::vec(-1..3i32, 0..3), any::<[bool; 3]>())
            .prop_map(|(key, range_end, start_revision, watch_id, filters, b)| {
                RequestUnion::CreateRequest(pb::WatchCreateRequest {
                    key,
                    range_end,
                    start_revision,
                    watch_id,
                    filters,
                    progress_notify: b[0],
                    prev_kv: b[1],
                    fragment: b[2],
                })
            });
    let cancel =
        number().prop_map(|watch_id| RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id }));
    let progress = Just(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    prop::option::weighted(0.9, prop_oneof![create, cancel, progress])
        .prop_map(|request_union| pb::WatchRequest { request_union })
}

prop_compose! {
    fn range_response()(header in header(), kvs in prop::collection::vec(key_value(), 0..4), more: bool, count in number())
        -> pb::RangeResponse
    {
        pb::RangeResponse { header, kvs, more, count }
    }
}

prop_compose! {
    fn watch_response()(
        header in header(), n in [number(), number()], b in any::<[bool; 3]>(), cancel_reason in "[a-z ]{0,9}",
        events in prop::collection::vec(event(), 0..4),
    ) -> pb::WatchResponse {
        pb::WatchResponse {
            header, watch_id: n[0], created: b[0], canceled: b[1], compact_revision: n[1], cancel_reason,
            fragment: b[2], events,
        }
    }
}

/// Several encoded messages in a row, which protobuf reads as one merged message; sometimes damaged or truncated.
fn bytes_of<T: Message>(message: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<u8>> {
    let damage = prop_oneof![3 => Just(None), 1 => any::<(prop::sample::Index, u8, bool)>().prop_map(Some)];
    (prop::collection::vec(message, 1..4), damage).prop_map(|(messages, damage)| {
        let mut bytes: Vec<u8> = messages.iter().flat_map(Message::encode_to_vec).collect();
        match damage {
            Some((at, _, true)) if !bytes.is_empty() => bytes.truncate(at.index(bytes.len())),
            Some((at, byte, false)) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            _ => {}
        }
        bytes
    })
}

fn peeked_header(header: Option<&pb::ResponseHeader>) -> Option<peek::ResponseHeader> {
    header.map(|header| peek::ResponseHeader {
        cluster_id: header.cluster_id,
        member_id: header.member_id,
        revision: header.revision,
        raft_term: header.raft_term,
    })
}

fn peeked_range(r: &pb::RangeRequest) -> peek::RangeRequest<'_> {
    peek::RangeRequest {
        key: &r.key,
        range_end: &r.range_end,
        limit: r.limit,
        revision: r.revision,
        sort_order: r.sort_order,
        sort_target: r.sort_target,
        serializable: r.serializable,
        keys_only: r.keys_only,
        count_only: r.count_only,
        min_mod_revision: r.min_mod_revision,
        max_mod_revision: r.max_mod_revision,
        min_create_revision: r.min_create_revision,
        max_create_revision: r.max_create_revision,
    }
}

fn peeked_put(r: &pb::PutRequest) -> peek::PutRequest<'_> {
    peek::PutRequest {
        key: &r.key,
        value: &r.value,
        lease: r.lease,
        prev_kv: r.prev_kv,
        ignore_value: r.ignore_value,
        ignore_lease: r.ignore_lease,
    }
}

/// The parts of a txn as debug texts, which callers sort, because merging pieces changes only their order.
fn txn_parts(txn: &pb::TxnRequest, parts: &mut Vec<String>) {
    use pb::request_op::Request;
    for c in &txn.compare {
        let compare = peek::Compare {
            result: c.result,
            target: c.target,
            key: &c.key,
            mod_revision: match c.target_union {
                Some(pb::compare::TargetUnion::ModRevision(revision)) => revision,
                _ => 0,
            },
            range_end: &c.range_end,
        };
        parts.push(format!("{:?}", peek::TxnPart::Compare(compare)));
    }
    for op in txn.success.iter().chain(&txn.failure) {
        let part = match &op.request {
            Some(Request::RequestTxn(txn)) => {
                txn_parts(txn, parts);
                continue;
            }
            Some(Request::RequestRange(r)) => peek::TxnPart::Range(peeked_range(r)),
            Some(Request::RequestPut(r)) => peek::TxnPart::Put(peeked_put(r)),
            Some(Request::RequestDeleteRange(r)) => peek::TxnPart::DeleteRange(peek::DeleteRangeRequest {
                key: &r.key,
                range_end: &r.range_end,
                prev_kv: r.prev_kv,
            }),
            None => peek::TxnPart::Empty,
        };
        parts.push(format!("{part:?}"));
    }
}

fn visited(txn: &[u8]) -> Result<Vec<String>, peek::WireError> {
    let mut parts = Vec::new();
    let flow = peek::visit_txn::<()>(txn, &mut |part| {
        parts.push(format!("{part:?}"));
        ControlFlow::Continue(())
    })?;
    assert!(flow.is_continue());
    parts.sort();
    Ok(parts)
}

/// A message in two pieces.
struct Cut<'a>([&'a [u8]; 2]);

impl kv::Part for Cut<'_> {
    fn bytes(&self) -> usize {
        self.0.concat().len()
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|piece| out.extend_from_slice(piece));
    }
}

fn pieces(bytes: &[u8], cut: usize) -> Cut<'_> {
    Cut(bytes.split_at(cut % (bytes.len() + 1)).into())
}

proptest! {
    #[test]
    fn range_requests(bytes in bytes_of(range_request())) {
        match pb::RangeRequest::decode(bytes.as_slice()) {
            Ok(r) => prop_assert_eq!(peek::RangeRequest::parse(&bytes), Ok(peeked_range(&r))),
            Err(_) => prop_assert!(peek::RangeRequest::parse(&bytes).is_err()),
        }
    }

    #[test]
    fn put_requests(bytes in bytes_of(put_request())) {
        match pb::PutRequest::decode(bytes.as_slice()) {
            Ok(r) => prop_assert_eq!(peek::PutRequest::parse(&bytes), Ok(peeked_put(&r))),
            Err(_) => prop_assert!(peek::PutRequest::parse(&bytes).is_err()),
        }
    }

    #[test]
    fn watch_requests(bytes in bytes_of(watch_request())) {
        use pb::watch_request::RequestUnion;
        if let Ok(r) = pb::WatchRequest::decode(bytes.as_slice()) {
            let want = match &r.request_union {
                None => peek::WatchRequest::Nothing,
                Some(RequestUnion::ProgressRequest(_)) => peek::WatchRequest::Progress,
                Some(RequestUnion::CancelRequest(r)) => {
                    peek::WatchRequest::Cancel(peek::WatchCancelRequest { watch_id: r.watch_id })
                }
                Some(RequestUnion::CreateRequest(r)) => peek::WatchRequest::Create(peek::WatchCreateRequest {
                    key: &r.key,
                    range_end: &r.range_end,
                    start_revision: r.start_revision,
                    progress_notify: r.progress_notify,
                    no_put: r.filters.contains(&0),
                    no_delete: r.filters.contains(&1),
                    prev_kv: r.prev_kv,
                    watch_id: r.watch_id,
                    fragment: r.fragment,
                }),
            };
            prop_assert_eq!(peek::WatchRequest::parse(&bytes), Ok(want));
        }
    }

    #[test]
    fn txns(bytes in bytes_of(txn_request())) {
        if let Ok(txn) = pb::TxnRequest::decode(bytes.as_slice()) {
            let mut want = Vec::new();
            txn_parts(&txn, &mut want);
            want.sort();
            prop_assert_eq!(visited(&bytes), Ok(want));
        }
    }

    #[test]
    fn range_responses(bytes in bytes_of(range_response())) {
        if let Ok(r) = pb::RangeResponse::decode(bytes.as_slice()) {
            let header = peeked_header(r.header.as_ref());
            let want = answer::RangeResponse { header, more: r.more, count: r.count, kvs: r.kvs.len() };
            prop_assert_eq!(answer::RangeResponse::parse(&bytes), Ok(want));
            prop_assert_eq!(peek::response_header(&bytes), Ok(header));
            for (kv, want) in answer::range_kvs(&bytes).zip(&r.kvs) {
                let decoded = mvccpb::KeyValue::decode(kv.unwrap());
                prop_assert_eq!(decoded.as_ref(), Ok(want));
            }
        }
    }

    #[test]
    fn watch_responses(bytes in bytes_of(watch_response())) {
        if let Ok(r) = pb::WatchResponse::decode(bytes.as_slice()) {
            let read = answer::WatchResponse::parse(&bytes).unwrap();
            prop_assert_eq!(read, answer::WatchResponse {
                header: peeked_header(r.header.as_ref()),
                watch_id: r.watch_id,
                created: r.created,
                canceled: r.canceled,
                compact_revision: r.compact_revision,
                cancel_reason: r.cancel_reason.as_bytes(),
                fragment: r.fragment,
                events: r.events.len(),
            });
            prop_assert_eq!(answer::watch_events(&bytes).count(), r.events.len());
        }
    }

    #[test]
    fn key_values_and_events(event in event(), cut: usize) {
        let encoded = event.encode_to_vec();
        let read = kv::EventRef::parse(&encoded).unwrap();
        let pieces = |kv| pieces(kv, cut);
        let stored = kv::StoredEvent {
            event_type: read.event_type, kv: pieces(read.kv), prev_kv: read.prev_kv.map(pieces),
        };
        let mut again = Vec::new();
        stored.encode_into(&mut again);
        prop_assert_eq!(&again, &encoded);
        prop_assert_eq!(stored.encoded_len(), encoded.len());
        let want = event.kv.unwrap();
        let encoded = want.encode_to_vec();
        prop_assert_eq!(read.kv, &encoded);
        let read = kv::KeyValueRef::parse(&encoded).unwrap();
        prop_assert_eq!((read.key, read.mod_revision), (&*want.key, want.mod_revision));
        prop_assert_eq!(&kv::encode_key_value(&read), &encoded);
        prop_assert_eq!(read.encoded_len(), want.encoded_len());
    }

    #[test]
    fn answers_by_hand(mut range in range_response(), mut watch in watch_response(), succeeded: bool) {
        let header = *range.header.get_or_insert_default();
        let by_hand = peeked_header(Some(&header)).unwrap();
        let mut out = Vec::new();
        by_hand.put(&mut out);
        range.kvs.iter().for_each(|kv| kv::put_range_kv(&mut out, &kv.encode_to_vec()[..]));
        kv::put_range_end(&mut out, range.more, range.count);
        prop_assert_eq!(&out, &range.encode_to_vec());

        let mut txn = Vec::new();
        by_hand.put(&mut txn);
        kv::put_txn_succeeded(&mut txn, succeeded);
        kv::put_txn_response(&mut txn, kv::ResponseOp::Range, &out);
        let op = pb::ResponseOp { response: Some(pb::response_op::Response::ResponseRange(range)) };
        let want = pb::TxnResponse { header: Some(header), succeeded, responses: vec![op] };
        prop_assert_eq!(txn, want.encode_to_vec());

        watch.header = Some(header);
        let mut out = Vec::new();
        kv::WatchHead {
            header: by_hand,
            watch_id: watch.watch_id,
            created: watch.created,
            canceled: watch.canceled,
            compact_revision: watch.compact_revision,
            cancel_reason: &watch.cancel_reason,
            fragment: watch.fragment,
        }
        .put(&mut out);
        watch.events.iter().for_each(|event| kv::put_watch_event(&mut out, &event.encode_to_vec()));
        prop_assert_eq!(out, watch.encode_to_vec());
    }

    #[test]
    fn patches_of_responses(
        range in range_response(), watch in watch_response(), revision in prop::option::of(number()),
        cluster_id in prop::option::of(0..3u64), more in prop::option::of(any::<bool>()),
        count in prop::option::of(number()), watch_id in prop::option::of(number()),
    ) {
        let header = patch::HeaderPatch { cluster_id, revision, ..Default::default() };
        let patched = |old: &Option<pb::ResponseHeader>| {
            let mut new = *old;
            if let Some(revision) = revision {
                new.get_or_insert_default().revision = revision;
            }
            if let Some(cluster_id) = cluster_id {
                new.get_or_insert_default().cluster_id = cluster_id;
            }
            new
        };
        let mut want = range.clone();
        want.header = patched(&range.header);
        want.more = more.unwrap_or(range.more);
        want.count = count.unwrap_or(range.count);
        let patch = patch::RangePatch { header, more, count };
        let mut bytes = range.encode_to_vec();
        patch.append_to(&mut bytes);
        prop_assert_eq!(pb::RangeResponse::decode(bytes.as_slice()), Ok(want.clone()));
        prop_assert_eq!(peek::header_revision(&bytes), Ok(want.header.as_ref().map_or(0, |h| h.revision)));

        let mut bytes = pb::RangeStreamResponse { range_response: Some(range) }.encode_to_vec();
        patch.append_to_stream(&mut bytes);
        let want = pb::RangeStreamResponse { range_response: Some(want) };
        prop_assert_eq!(pb::RangeStreamResponse::decode(bytes.as_slice()), Ok(want));

        let mut want = watch.clone();
        want.header = patched(&watch.header);
        want.watch_id = watch_id.unwrap_or(watch.watch_id);
        let mut bytes = watch.encode_to_vec();
        patch::WatchPatch { header, watch_id }.append_to(&mut bytes);
        prop_assert_eq!(pb::WatchResponse::decode(bytes.as_slice()), Ok(want));
    }

    #[test]
    fn watch_requests_are_written_as_by_prost(request in watch_request()) {
        use pb::watch_request::RequestUnion;
        let mut want = request.clone();
        if let Some(RequestUnion::CreateRequest(create)) = &mut want.request_union {
            // Each known filter once, in order.
            create.filters = (0..2).filter(|filter| create.filters.contains(filter)).collect();
        }
        let bytes = request.encode_to_vec();
        let written = match peek::WatchRequest::parse(&bytes).unwrap() {
            peek::WatchRequest::Create(create) => watch_request::create(&create),
            peek::WatchRequest::Cancel(cancel) => watch_request::cancel(cancel.watch_id),
            peek::WatchRequest::Progress => watch_request::progress(),
            peek::WatchRequest::Nothing => Vec::new(),
        };
        prop_assert_eq!(written, want.encode_to_vec());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..32u8], 0..64)) {
        prop_assert_eq!(
            peek::DeleteRangeRequest::parse(&bytes).is_ok(),
            pb::DeleteRangeRequest::decode(bytes.as_slice()).is_ok()
        );
        prop_assert_eq!(
            kv::KeyValueRef::parse(&bytes).is_ok(),
            mvccpb::KeyValue::decode(bytes.as_slice()).is_ok()
        );
        if let Ok(want) = pb::LeaseTimeToLiveRequest::decode(bytes.as_slice()) {
            let read = peek::LeaseTimeToLiveRequest::parse(&bytes).unwrap();
            prop_assert_eq!((read.id, read.keys), (want.id, want.keys));
        }
        let _ = visited(&bytes);
        let _ = peek::WatchRequest::parse(&bytes);
        let _ = peek::response_header(&bytes);
        let _ = answer::RangeResponse::parse(&bytes);
        let _ = answer::WatchResponse::parse(&bytes);
        let _ = answer::range_of_stream(&bytes);
        let _ = kv::EventRef::parse(&bytes);
    }
}

#[test]
fn nested_txns_are_bounded() {
    use pb::request_op::Request;
    let mut txn = pb::TxnRequest::default();
    let mut deepest = 0;
    for depth in 0..peek::TXN_DEPTH_MAX + 10 {
        let bytes = txn.encode_to_vec();
        let peeked = visited(&bytes);
        if depth <= peek::TXN_DEPTH_MAX {
            assert_eq!(peeked, Ok(Vec::new()), "{depth}");
            deepest = depth;
        } else {
            assert_eq!(peeked, Err(peek::WireError::TooDeep), "{depth}");
        }
        let op = pb::RequestOp { request: Some(Request::RequestTxn(txn)) };
        txn = pb::TxnRequest { success: vec![op], ..Default::default() };
    }
    assert_eq!(deepest, peek::TXN_DEPTH_MAX);
}

#[test]
fn a_visit_ends_where_it_breaks() {
    let put = |key: &'static str| pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
            key: Bytes::from_static(key.as_bytes()),
            ..Default::default()
        })),
    };
    let txn = pb::TxnRequest { success: vec![put("a"), put("b"), put("c")], ..Default::default() };
    let bytes = txn.encode_to_vec();
    let mut seen = 0;
    let flow = peek::visit_txn(&bytes, &mut |part| {
        seen += 1;
        if part.span().is_some_and(|(key, _)| key == b"b") {
            ControlFlow::Break("b")
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!((flow, seen), (Ok(ControlFlow::Break("b")), 2));
}
