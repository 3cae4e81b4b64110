//! Changes a few fields of encoded messages and leaves all other bytes alone.
//!
//! A header that is sent to clients is patched as a whole, for decoders which replace where others merge.
//!
//! A field at the end of a message overrides an earlier one. The last scalar wins, and a repeated occurrence of a
//! message outside a oneof merges, in prost and in both Go implementations (including gogo, which etcd used up to 3.6).
//! So a patch of the header, `more`, `count` or `watch_id` is a few bytes after the answer, which need not be parsed,
//! moved or copied. Inside a oneof, as in requests on a watch stream, this does not work: gogo *replaces* the earlier
//! message. Those requests are written anew ([`crate::watch_request`]).

use crate::{
    peek::ResponseHeader,
    scan::{put_bytes, put_len, put_number, varint_len},
};

/// New values for fields of a response header; `None` keeps a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "etcd's own names")]
pub struct HeaderPatch {
    pub cluster_id: Option<u64>,
    pub member_id: Option<u64>,
    pub revision: Option<i64>,
    pub raft_term: Option<u64>,
}

impl HeaderPatch {
    /// Sets every field, so that any old header is replaced.
    #[must_use]
    pub const fn all(header: ResponseHeader) -> Self {
        Self {
            cluster_id: Some(header.cluster_id),
            member_id: Some(header.member_id),
            revision: Some(header.revision),
            raft_term: Some(header.raft_term),
        }
    }

    #[must_use]
    pub const fn revision(revision: i64) -> Self {
        Self { cluster_id: None, member_id: None, revision: Some(revision), raft_term: None }
    }

    /// Appends the patch to any response except a `RangeStreamResponse`.
    pub fn append_to(&self, response: &mut Vec<u8>) {
        let numbers =
            [self.cluster_id, self.member_id, self.revision.map(i64::cast_unsigned), self.raft_term];
        let len: usize = numbers.iter().flatten().map(|number| 1 + varint_len(*number)).sum();
        if len == 0 {
            return;
        }
        put_len(response, 1, len);
        for (field, number) in (1..).zip(numbers) {
            // Zeros must be written as well, to override the old value.
            if let Some(number) = number {
                put_number(response, field, number);
            }
        }
    }
}

/// New values for fields of a `RangeResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "etcd's own names")]
pub struct RangePatch {
    pub header: HeaderPatch,
    pub more: Option<bool>,
    pub count: Option<i64>,
}

impl RangePatch {
    pub fn append_to(&self, response: &mut Vec<u8>) {
        self.header.append_to(response);
        if let Some(more) = self.more {
            put_number(response, 3, u64::from(more));
        }
        if let Some(count) = self.count {
            put_number(response, 4, count.cast_unsigned());
        }
    }

    pub fn append_to_stream(&self, message: &mut Vec<u8>) {
        let mut inner = Vec::new();
        self.append_to(&mut inner);
        if !inner.is_empty() {
            put_bytes(message, 1, &inner);
        }
    }
}

/// New values for fields of a `WatchResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "etcd's own names")]
pub struct WatchPatch {
    pub header: HeaderPatch,
    pub watch_id: Option<i64>,
}

impl WatchPatch {
    pub fn append_to(&self, response: &mut Vec<u8>) {
        self.header.append_to(response);
        if let Some(watch_id) = self.watch_id {
            put_number(response, 2, watch_id.cast_unsigned());
        }
    }
}
