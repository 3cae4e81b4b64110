//! Encodes answers as protobuf by hand around [`Version::encoded`], so that a value is copied only once.
//!
//! The layouts are those of `etcdserverpb`; the tests compare each with prost's encoding of the same message.

use bytes::Bytes;
use kindred_engine::{
    engine::{Event, WatchId, WatchOut},
    ops::{Contents, OpAnswer, RangeAnswer, TxnAnswer},
    version::{Encoded, Version},
};
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb::ResponseHeader;
use kindred_wire::{
    kv::{
        self, EventType, KeyValueRef, ResponseOp, StoredEvent, WatchHead, encode_key_value, field_len,
        part_len,
    },
    peek as wire,
    refusal::KindredError,
};
use prost::encoding::{WireType, encode_key, encode_varint};

pub mod feed;
pub mod long;

/// `WatchResponse.events`.
const WATCH_EVENTS_FIELD: u32 = 11;

/// The watch id of answers that concern no single watch.
pub const NO_WATCH: i64 = -1;

/// The ids of the server in every header.
#[derive(Debug, Clone, Copy)]
pub struct ServerIds {
    /// The cluster's id, not zero.
    pub cluster_id: u64,
    /// This member's id, not zero.
    pub member_id: u64,
    /// etcd's raft term: grows with every start, never zero.
    pub raft_term: u64,
}

impl ServerIds {
    #[must_use]
    pub fn header(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision: revision.get(),
            raft_term: self.raft_term,
        }
    }

    fn wire(&self, revision: Revision) -> wire::ResponseHeader {
        wire::ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision: revision.get(),
            raft_term: self.raft_term,
        }
    }

    fn put_header(&self, out: &mut Vec<u8>, revision: Revision) {
        self.wire(revision).put(out);
    }
}

/// Maximum bytes of a header with its tag and length.
const HEADER_BYTES_MAX: usize = 46;

/// The room for an answer that is not known to be long: most writes have a header and little else.
const SHORT_BYTES: usize = HEADER_BYTES_MAX + 64;

/// Maximum bytes of `more` and `count`.
const TAIL_BYTES_MAX: usize = 13;

/// A count as the protocol's signed type.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn without_value(version: &Version, lease: i64) -> Vec<u8> {
    encode_key_value(&KeyValueRef {
        key: version.key(),
        create_revision: version.create_revision().get(),
        mod_revision: version.mod_revision().get(),
        version: version.version(),
        value: &[],
        lease,
    })
}

fn put_kvs(out: &mut Vec<u8>, kvs: &[Version], contents: Contents) {
    for kv in kvs {
        match contents {
            Contents::Whole => kv::put_range_kv(out, &kv.encoded()),
            Contents::WithoutValue => kv::put_range_kv(out, &without_value(kv, kv.lease())[..]),
            Contents::Index => kv::put_range_kv(out, &without_value(kv, 0)[..]),
        }
    }
}

/// The length of the keys of an answer.
fn kvs_len(kvs: &[Version], contents: Contents) -> usize {
    match contents {
        Contents::Whole => kvs.iter().map(|kv| field_len(kv.encoded_len())).sum(),
        Contents::WithoutValue | Contents::Index => kvs_room(kvs, contents),
    }
}

/// Room for them.
fn kvs_room(kvs: &[Version], contents: Contents) -> usize {
    let one = |kv: &Version| match contents {
        // A tag, and a length of at most five bytes.
        Contents::Whole => kv.encoded_room() + 6,
        Contents::WithoutValue | Contents::Index => kv.key().len() + 56,
    };
    kvs.iter().map(one).sum()
}

/// The fields behind the keys of a range's answer.
#[derive(Debug, Clone, Copy)]
pub struct RangeTail {
    /// Whether the limit cut off keys.
    pub more: bool,
    /// The number of keys in the range.
    pub count: u64,
}

fn put_range(out: &mut Vec<u8>, kvs: &[Version], contents: Contents, tail: RangeTail) {
    put_kvs(out, kvs, contents);
    kv::put_range_end(out, tail.more, signed(tail.count));
}

#[must_use]
pub fn range(ids: &ServerIds, answer: &RangeAnswer) -> Bytes {
    let room = HEADER_BYTES_MAX + kvs_room(&answer.kvs, answer.contents) + TAIL_BYTES_MAX;
    let mut out = Vec::with_capacity(room);
    ids.put_header(&mut out, answer.header);
    let tail = RangeTail { more: answer.more, count: answer.count };
    put_range(&mut out, &answer.kvs, answer.contents, tail);
    out.into()
}

/// A `RangeStreamResponse` with some keys; the last one (`end`) also has header, `more` and `count`.
#[must_use]
pub fn range_chunk(
    ids: &ServerIds,
    kvs: &[Version],
    contents: Contents,
    end: Option<(Revision, RangeTail)>,
) -> Bytes {
    let mut inner = Vec::with_capacity(HEADER_BYTES_MAX + 16 + kvs_room(kvs, contents));
    let tail = end.map_or(RangeTail { more: false, count: 0 }, |(_, tail)| tail);
    if let Some((header, _)) = end {
        ids.put_header(&mut inner, header);
    }
    put_range(&mut inner, kvs, contents, tail);
    let mut out = Vec::with_capacity(part_len(&inner[..]));
    kv::put_range_stream(&mut out, &inner);
    out.into()
}

/// The answer to a Put, DeleteRange or Txn (or Range) as a message of its own.
#[must_use]
pub fn answer(ids: &ServerIds, answer: &OpAnswer) -> Bytes {
    let mut out = Vec::with_capacity(SHORT_BYTES);
    put_answer(&mut out, ids, answer);
    out.into()
}

/// Appends such an answer to a message.
pub fn put_answer(out: &mut Vec<u8>, ids: &ServerIds, answer: &OpAnswer) {
    match answer {
        OpAnswer::Range(range) => {
            ids.put_header(out, range.header);
            let tail = RangeTail { more: range.more, count: range.count };
            put_range(out, &range.kvs, range.contents, tail);
        }
        OpAnswer::Put { header, prev } => {
            ids.put_header(out, *header);
            if let Some(prev) = prev {
                kv::put_put_prev_kv(out, &prev.encoded());
            }
        }
        OpAnswer::Delete { header, deleted, prev } => {
            ids.put_header(out, *header);
            kv::put_deleted(out, signed(*deleted));
            for prev in prev {
                kv::put_deleted_prev_kv(out, &prev.encoded());
            }
        }
        OpAnswer::Txn(txn) => {
            ids.put_header(out, txn.header);
            put_txn(out, txn);
        }
    }
}

fn put_txn(out: &mut Vec<u8>, txn: &TxnAnswer) {
    kv::put_txn_succeeded(out, txn.succeeded);
    for response in &txn.responses {
        let (op, message) = nested(response);
        kv::put_txn_response(out, op, &message);
    }
}

/// An answer inside a txn. etcd fills only the revision of these headers, and leaves a nested txn's header empty.
fn nested(response: &OpAnswer) -> (ResponseOp, Vec<u8>) {
    let bare = ServerIds { cluster_id: 0, member_id: 0, raft_term: 0 };
    let mut out = Vec::with_capacity(SHORT_BYTES);
    let op = match response {
        OpAnswer::Range(_) => ResponseOp::Range,
        OpAnswer::Put { .. } => ResponseOp::Put,
        OpAnswer::Delete { .. } => ResponseOp::DeleteRange,
        OpAnswer::Txn(txn) => {
            bare.put_header(&mut out, Revision::ZERO);
            put_txn(&mut out, txn);
            return (ResponseOp::Txn, out);
        }
    };
    put_answer(&mut out, &bare, response);
    (op, out)
}

/// A message with only a header (`CompactionResponse`).
#[must_use]
pub fn header_only(ids: &ServerIds, revision: Revision) -> Bytes {
    let mut out = Vec::with_capacity(HEADER_BYTES_MAX);
    ids.put_header(&mut out, revision);
    out.into()
}

fn watch_message(head: &WatchHead<'_>, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES_MAX + 40 + head.cancel_reason.len() + room);
    head.put(&mut out);
    out
}

/// The refusal of a watch at its creation: without an id as in etcd, or under the requested id, so that a client that
/// creates several watches can tell which one was refused.
#[must_use]
pub fn watch_refused(ids: &ServerIds, header: Revision, id: Option<WatchId>, reason: &str) -> Bytes {
    let head = WatchHead {
        header: ids.wire(header),
        watch_id: id.map_or(NO_WATCH, |id| id.0),
        created: true,
        canceled: true,
        cancel_reason: reason,
        ..WatchHead::default()
    };
    watch_message(&head, 0).into()
}

/// The `WatchResponse` messages for an output of a watch stream. There are several only for a watch that asked for
/// fragments; these stay below `fragment_bytes`, unless a single event is larger.
pub fn watch(ids: &ServerIds, item: &WatchOut, fragment_bytes: usize, mut send: impl FnMut(Bytes)) {
    let head = |header: Revision, watch_id: i64| WatchHead {
        header: ids.wire(header),
        watch_id,
        ..WatchHead::default()
    };
    match item {
        WatchOut::Created { id, header } => {
            send(watch_message(&WatchHead { created: true, ..head(*header, id.0) }, 0).into());
        }
        WatchOut::Canceled { id, header } => {
            send(watch_message(&WatchHead { canceled: true, ..head(*header, id.0) }, 0).into());
        }
        WatchOut::Compacted { id, floor } => {
            // As in etcd, the header has no revision: it would read as a promise.
            let compact_revision = floor.get();
            let head = WatchHead { canceled: true, compact_revision, ..head(Revision::ZERO, id.0) };
            send(watch_message(&head, 0).into());
        }
        WatchOut::Moved { id, header } => {
            let reason = KindredError::NotOwned { key: Vec::new(), epoch: 0 }.message();
            let head = WatchHead { canceled: true, cancel_reason: &reason, ..head(*header, id.0) };
            send(watch_message(&head, 0).into());
        }
        WatchOut::Progress { id, header } => {
            let id = id.map_or(NO_WATCH, |id| id.0);
            send(watch_message(&head(*header, id), 0).into());
        }
        WatchOut::Events { id, header, events, prev_kv, fragment } => {
            let fragment_bytes = if *fragment { fragment_bytes } else { usize::MAX };
            put_events(head(*header, id.0), events, *prev_kv, fragment_bytes, send);
        }
    }
}

/// An event, with its previous version if that is wanted.
fn stored(event: &Event, prev_kv: bool) -> StoredEvent<Encoded<'_>> {
    StoredEvent {
        event_type: if event.is_delete() { EventType::Delete } else { EventType::Put },
        kv: event.kv.encoded(),
        prev_kv: event.prev.as_ref().filter(|_| prev_kv).map(Version::encoded),
    }
}

fn put_events(
    mut head: WatchHead<'_>,
    events: &[Event],
    prev_kv: bool,
    fragment_bytes: usize,
    mut send: impl FnMut(Bytes),
) {
    let events = events.iter().map(|event| stored(event, prev_kv));
    let mut events = events.peekable();
    while events.peek().is_some() {
        let (mut bytes, mut taken) = (HEADER_BYTES_MAX + 40, Vec::new());
        while let Some(event) = events.peek() {
            // A tag, and a length of at most five bytes.
            let event_bytes = event.encoded_len() + 6;
            if !taken.is_empty() && bytes + event_bytes >= fragment_bytes {
                break;
            }
            bytes += event_bytes;
            taken.extend(events.next());
        }
        head.fragment = events.peek().is_some();
        let mut out = watch_message(&head, bytes);
        for event in taken {
            encode_key(WATCH_EVENTS_FIELD, WireType::LengthDelimited, &mut out);
            encode_varint(event.encoded_len() as u64, &mut out);
            event.encode_into(&mut out);
        }
        send(out.into());
    }
}

#[cfg(test)]
mod tests;
