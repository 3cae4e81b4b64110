//! Reads and writes watch messages without decoding their events.

use bytes::Bytes;
use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::kv::{EventRef, KeyValueRef, WatchHead, part_len};
use kindred_wire::patch::WatchPatch;
use kindred_wire::peek::{ResponseHeader, WatchCreateRequest, revision_shown};
use kindred_wire::rope::Rope;
use kindred_wire::scan::WireError;
use kindred_wire::watch_request;

use crate::header_ids::{HeaderIds, append};

/// The watch id of a refused create, and of progress that covers the whole stream.
pub const NO_WATCH: i64 = -1;

/// A client's create. An empty key has become `\0`, as in etcd: the range begins at the first key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Create {
    pub key: Bytes,
    pub range_end: Bytes,
    pub start_revision: i64,
    pub watch_id: i64,
    pub progress_notify: bool,
    pub no_put: bool,
    pub no_delete: bool,
    pub prev_kv: bool,
    pub fragment: bool,
}

impl Create {
    pub(super) fn of(request: &WatchCreateRequest<'_>) -> Self {
        let key = if request.key.is_empty() { &[0] } else { request.key };
        Self {
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(request.range_end),
            start_revision: request.start_revision,
            watch_id: request.watch_id,
            progress_notify: request.progress_notify,
            no_put: request.no_put,
            no_delete: request.no_delete,
            prev_kv: request.prev_kv,
            fragment: request.fragment,
        }
    }

    /// The create, as the client asked for it.
    pub(super) fn asked(&self) -> WatchCreateRequest<'_> {
        WatchCreateRequest {
            key: &self.key,
            range_end: &self.range_end,
            start_revision: self.start_revision,
            progress_notify: self.progress_notify,
            no_put: self.no_put,
            no_delete: self.no_delete,
            prev_kv: self.prev_kv,
            watch_id: self.watch_id,
            fragment: self.fragment,
        }
    }

    /// The create request for a store, with the watch's id there and its position; `fenced` for a stock etcd. A watch on a
    /// shard gets its periodic progress from the session, at the router's interval.
    pub(super) fn for_store(&self, watch_id: i64, start_revision: i64, fenced: bool) -> Bytes {
        let progress_notify = self.progress_notify && fenced;
        let create = WatchCreateRequest { start_revision, watch_id, progress_notify, ..self.asked() };
        match fenced {
            true => watch_request::create_behind_fence(&create).into(),
            false => watch_request::create(&create).into(),
        }
    }
}

/// The mod revisions of the first and the last event in a message; `None` without events.
///
/// # Errors
/// When the bytes are not a valid watch response.
pub(super) fn span(message: &[u8]) -> Result<Option<(i64, i64)>, WireError> {
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
pub(super) fn for_client(message: Bytes, ids: HeaderIds, watch_id: i64) -> Bytes {
    let mut tail = Vec::with_capacity(48);
    WatchPatch { header: ids.patch(revision_shown(&message)), watch_id: Some(watch_id) }.append_to(&mut tail);
    append(message, &tail)
}

/// A message that the router makes itself, without events.
pub(super) fn own(header: ResponseHeader, watch_id: i64, head: WatchHead<'_>) -> Bytes {
    let mut message = Vec::with_capacity(64 + head.cancel_reason.len());
    WatchHead { header, watch_id, ..head }.put(&mut message);
    message.into()
}

/// Sends encoded events as one message. With `fragment_bytes`, splits them into fragments of at most that size; a larger
/// single event is a fragment of its own.
pub(super) fn with_events(
    head: WatchHead<'_>,
    events: Bytes,
    fragment_bytes: Option<usize>,
    mut send: impl FnMut(Rope),
) {
    let limit = fragment_bytes.unwrap_or(usize::MAX);
    let mut rest = events;
    loop {
        let now = if rest.len() <= limit { rest.len() } else { fragment(&rest, limit) };
        let now = rest.split_to(now);
        let mut message = Vec::with_capacity(64);
        WatchHead { fragment: !rest.is_empty(), ..head }.put(&mut message);
        let mut message = Rope::from(Bytes::from(message));
        message.push(now);
        send(message);
        if rest.is_empty() {
            return;
        }
    }
}

/// The length of the first events that fit into so many bytes, or of the first one.
fn fragment(events: &[u8], limit: usize) -> usize {
    let mut length = 0;
    // The session encoded them itself, so all of them parse.
    for event in watch_events(events).flatten() {
        let with = length + part_len(event);
        if length > 0 && with > limit {
            break;
        }
        length = with;
    }
    if length == 0 { events.len() } else { length }
}

/// The answer to a refused create, as etcd sends it: created and cancelled at once, with the id -1.
pub(super) fn refused(header: ResponseHeader, reason: &str) -> Bytes {
    own(
        header,
        NO_WATCH,
        WatchHead { created: true, canceled: true, cancel_reason: reason, ..WatchHead::default() },
    )
}

/// The cancel reason of a message, with invalid UTF-8 replaced.
pub(super) fn reason(response: &WatchResponse<'_>) -> String {
    String::from_utf8_lossy(response.cancel_reason).into_owned()
}

pub(super) fn cancel(watch_id: i64) -> Bytes {
    watch_request::cancel(watch_id).into()
}

pub(super) fn progress() -> Bytes {
    watch_request::progress().into()
}

#[cfg(test)]
mod tests {
    use kindred_wire::peek;

    use super::*;

    #[test]
    fn the_last_header_of_a_message_is_whole() {
        let stores = ResponseHeader { cluster_id: 9, member_id: 9, revision: 7, raft_term: 9 };
        let sent = own(stores, 4, WatchHead { created: true, ..WatchHead::default() });
        let ids = HeaderIds { cluster_id: 1, member_id: 2 };
        let got = for_client(sent.clone(), ids, 3);
        assert_eq!(peek::response_header(&got[sent.len()..]), Ok(Some(ids.header(7))));
    }
}
