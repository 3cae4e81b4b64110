//! Reads and writes watch messages without decoding their events.

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::fence::begins_behind;
use kindred_wire::kv::{EventRef, KeyValueRef, WatchHead, part_len, put_watch_event};
use kindred_wire::patch::WatchPatch;
use kindred_wire::peek::ResponseHeader;
use kindred_wire::scan::WireError;
use prost::Message;

use crate::app::{Identity, append};

/// The watch id of a refused create, and of progress that covers the whole stream.
pub const NO_WATCH: i64 = -1;

/// The mod revisions of the first and the last event in a message; `None` without events.
///
/// # Errors
/// When the bytes are not a valid watch response.
pub fn span(message: &[u8]) -> Result<Option<(i64, i64)>, WireError> {
    let mut events = watch_events(message);
    let Some(first) = events.next().transpose()? else { return Ok(None) };
    let mut last = first;
    for event in events {
        last = event?;
    }
    Ok(Some((mod_revision(first)?, mod_revision(last)?)))
}

fn mod_revision(event: &[u8]) -> Result<i64, WireError> {
    Ok(KeyValueRef::parse(EventRef::parse(event)?.kv)?.mod_revision)
}

/// The store's message with the client's watch id and the router's header.
#[must_use]
pub fn for_client(message: Bytes, identity: &Identity, watch_id: i64) -> Bytes {
    let mut tail = Vec::with_capacity(32);
    WatchPatch { header: identity.patch(), watch_id: Some(watch_id) }.append_to(&mut tail);
    append(message, &tail)
}

/// A message that the router makes itself, without events.
#[must_use]
pub fn own(header: ResponseHeader, watch_id: i64, head: WatchHead<'_>) -> Bytes {
    let mut message = Vec::with_capacity(64 + head.cancel_reason.len());
    WatchHead { header, watch_id, ..head }.put(&mut message);
    message.into()
}

/// Sends events as one message. With `fragment_bytes`, splits them into fragments of at most that size; a larger single
/// event is a fragment of its own.
pub fn with_events(
    head: WatchHead<'_>,
    events: &[&[u8]],
    fragment_bytes: Option<usize>,
    mut send: impl FnMut(Bytes),
) {
    let limit = fragment_bytes.unwrap_or(usize::MAX);
    let mut rest = events;
    loop {
        let mut bytes = 0usize;
        let fits = |event: &&&[u8]| {
            let first = bytes == 0;
            bytes += part_len(event);
            first || bytes <= limit
        };
        let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
        let mut message = Vec::with_capacity(64 + now.iter().map(|event| part_len(event)).sum::<usize>());
        WatchHead { fragment: !later.is_empty(), ..head }.put(&mut message);
        now.iter().for_each(|event| put_watch_event(&mut message, event));
        send(message.into());
        if later.is_empty() {
            return;
        }
        rest = later;
    }
}

/// The answer to a refused create, as etcd sends it: created and cancelled at once, with the id -1.
#[must_use]
pub fn refused(header: ResponseHeader, reason: &str) -> Bytes {
    own(
        header,
        NO_WATCH,
        WatchHead { created: true, canceled: true, cancel_reason: reason, ..WatchHead::default() },
    )
}

/// The cancel reason of a message, with invalid UTF-8 replaced.
#[must_use]
pub fn reason(response: &WatchResponse<'_>) -> String {
    String::from_utf8_lossy(response.cancel_reason).into_owned()
}

fn request(union: pb::watch_request::RequestUnion) -> Bytes {
    pb::WatchRequest { request_union: Some(union) }.encode_to_vec().into()
}

/// A create request for a store, with the watch's id there and its position. On a stock etcd (`fenced`) the range
/// leaves out the first of all keys, `\0`, which kindred uses for its fence.
#[must_use]
pub fn create(create: &pb::WatchCreateRequest, uid: i64, start_revision: i64, fenced: bool) -> Bytes {
    let mut create = pb::WatchCreateRequest { watch_id: uid, start_revision, ..create.clone() };
    if let Some(key) = begins_behind(&create.key, &create.range_end).filter(|_| fenced) {
        create.key = Bytes::from_static(key);
    }
    request(pb::watch_request::RequestUnion::CreateRequest(create))
}

#[must_use]
pub fn cancel(uid: i64) -> Bytes {
    request(pb::watch_request::RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: uid }))
}

#[must_use]
pub fn progress() -> Bytes {
    request(pb::watch_request::RequestUnion::ProgressRequest(pb::WatchProgressRequest {}))
}
