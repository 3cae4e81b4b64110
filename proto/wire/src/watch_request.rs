//! Requests on a watch stream that a router makes for a store, with the same bytes as prost and Go.

use crate::fence::begins_behind;
use crate::kv::{non_empty, non_zero};
use crate::peek::WatchCreateRequest;
use crate::scan::{put_bytes, put_len, put_varint};

/// etcd's numbers of the filters NOPUT and NODELETE.
const NO_PUT: u64 = 0;
const NO_DELETE: u64 = 1;

/// A `WatchRequest` that creates a watch.
#[must_use]
pub fn create(create: &WatchCreateRequest<'_>) -> Vec<u8> {
    let mut inner = Vec::with_capacity(create.key.len() + create.range_end.len() + 48);
    non_empty(&mut inner, 1, create.key);
    non_empty(&mut inner, 2, create.range_end);
    non_zero(&mut inner, 3, create.start_revision.cast_unsigned());
    non_zero(&mut inner, 4, u64::from(create.progress_notify));
    let mut filters = Vec::new();
    for (number, set) in [(NO_PUT, create.no_put), (NO_DELETE, create.no_delete)] {
        if set {
            put_varint(&mut filters, number);
        }
    }
    non_empty(&mut inner, 5, &filters);
    non_zero(&mut inner, 6, u64::from(create.prev_kv));
    non_zero(&mut inner, 7, create.watch_id.cast_unsigned());
    non_zero(&mut inner, 8, u64::from(create.fragment));
    request(1, &inner)
}

/// As [`create`], for a stock etcd: the range leaves out the first of all keys, which kindred uses for its fence.
#[must_use]
pub fn create_behind_fence(request: &WatchCreateRequest<'_>) -> Vec<u8> {
    let key = begins_behind(request.key, request.range_end).unwrap_or(request.key);
    create(&WatchCreateRequest { key, ..*request })
}

/// A `WatchRequest` that cancels a watch.
#[must_use]
pub fn cancel(watch_id: i64) -> Vec<u8> {
    let mut inner = Vec::with_capacity(11);
    non_zero(&mut inner, 1, watch_id.cast_unsigned());
    request(2, &inner)
}

/// A `WatchRequest` that asks for progress of the whole stream.
#[must_use]
pub fn progress() -> Vec<u8> {
    let mut request = Vec::with_capacity(2);
    put_len(&mut request, 3, 0);
    request
}

fn request(variant: u32, inner: &[u8]) -> Vec<u8> {
    let mut request = Vec::with_capacity(inner.len() + 11);
    put_bytes(&mut request, variant, inner);
    request
}
