//! Who this router is to its clients: the ids in every header, and the only member that they see.

use bytes::Bytes;
use kindred_proto::etcdserverpb::ResponseHeader;
use kindred_router_core::header_ids::{HeaderIds, RAFT_TERM};
use kindred_wire::rope::Rope;

/// The ids in every header, and how members list this router.
#[derive(Debug)]
pub struct Identity {
    /// Equal in all routers of a cluster.
    pub cluster_id: u64,
    /// The id of this router.
    pub member_id: u64,
    pub name: String,
    /// The URLs that MemberList shows for this router.
    pub client_urls: Vec<String>,
    /// [`HeaderIds::patch`] in its encoded form.
    header_tail: Bytes,
}

impl Identity {
    #[must_use]
    pub fn new(cluster_id: u64, member_id: u64, name: String, client_urls: Vec<String>) -> Self {
        let mut header_tail = Vec::new();
        HeaderIds { cluster_id, member_id }.patch().append_to(&mut header_tail);
        Self { cluster_id, member_id, name, client_urls, header_tail: header_tail.into() }
    }

    /// The ids in headers.
    #[must_use]
    pub fn ids(&self) -> HeaderIds {
        HeaderIds { cluster_id: self.cluster_id, member_id: self.member_id }
    }

    /// [`HeaderIds::header`], for decoded messages.
    #[must_use]
    pub fn typed_header(&self, revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: RAFT_TERM,
        })
    }

    /// The answer with the ids of this router in its header.
    #[must_use]
    pub fn patched(&self, mut answer: Rope) -> Rope {
        answer.append(&self.header_tail);
        answer
    }
}
