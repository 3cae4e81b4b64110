//! Who this router is to its clients: the ids in every header, and the only member that they see.

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb::ResponseHeader;
use kindred_router_core::header_ids::{HeaderIds, RAFT_TERM};
use kindred_wire::{peek, rope::Rope};

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
}

impl Identity {
    #[must_use]
    pub const fn new(cluster_id: u64, member_id: u64, name: String, client_urls: Vec<String>) -> Self {
        Self { cluster_id, member_id, name, client_urls }
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

    /// The answer with the ids of this router in its header. `shown` is the revision there, if it was read already.
    #[must_use]
    pub fn patched(&self, mut answer: Rope, shown: Option<Revision>) -> Rope {
        let revision = shown.unwrap_or_else(|| shown_by(&answer));
        let mut tail = Vec::with_capacity(48);
        self.ids().patch(revision.get()).append_to(&mut tail);
        answer.append(&Bytes::from(tail));
        answer
    }
}

/// The revision in an answer's header. Every store writes the header first.
#[must_use]
pub fn shown_by(answer: &Rope) -> Revision {
    let leading = peek::leading_revision(answer.front());
    Revision(leading.unwrap_or_else(|| peek::revision_shown(&answer.clone().into_bytes())))
}

#[cfg(test)]
mod tests {
    use kindred_proto::etcdserverpb::PutResponse;
    use prost::Message as _;

    use super::*;

    #[test]
    fn the_last_header_of_an_answer_is_whole() {
        let identity = Identity::new(1, 2, "router".to_owned(), Vec::new());
        let header = Some(ResponseHeader { cluster_id: 9, member_id: 9, revision: 7, raft_term: 9 });
        let answer = Bytes::from(PutResponse { header, prev_kv: None }.encode_to_vec());
        for shown in [None, Some(Revision(7))] {
            let patched = identity.patched(answer.clone().into(), shown).into_bytes();
            let last = PutResponse::decode(patched.slice(answer.len()..)).unwrap();
            assert_eq!(last.header, identity.typed_header(7));
        }
    }
}
