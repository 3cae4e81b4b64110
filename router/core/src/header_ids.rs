//! The ids that a router writes into every header.

use bytes::{Bytes, BytesMut};
use kindred_wire::patch::HeaderPatch;
use kindred_wire::peek::ResponseHeader;

/// The term in every header. Stores have terms of their own or none; clients see a constant.
pub const RAFT_TERM: u64 = 1;

/// The ids of a router in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderIds {
    /// Equal in all routers of a cluster.
    pub cluster_id: u64,
    /// The id of the router.
    pub member_id: u64,
}

impl HeaderIds {
    /// The patch that, appended to an answer, sets its header's ids to these. It repeats the revision: decoders that
    /// replace an earlier message where others merge, such as protobuf.js, see this header alone.
    #[must_use]
    pub const fn patch(self, revision: i64) -> HeaderPatch {
        HeaderPatch::all(self.header(revision))
    }

    /// A header with these ids and the given revision.
    #[must_use]
    pub const fn header(self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: RAFT_TERM,
        }
    }
}

/// Appends `tail` to the message; copies only if the buffer is shared.
#[must_use]
pub fn append(message: Bytes, tail: &[u8]) -> Bytes {
    let mut buffer = message.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len() + tail.len());
        copy.extend_from_slice(&shared);
        copy
    });
    buffer.extend_from_slice(tail);
    buffer.freeze()
}
