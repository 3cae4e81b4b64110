//! `etcdserverpb.Cluster`: this router is the only member that clients see.

use std::sync::Arc;

use kindred_proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse, cluster_server};
use tonic::{Request, Response, Status};

use crate::identity::Identity;

#[derive(Debug, Clone)]
pub struct Cluster {
    identity: Arc<Identity>,
}

impl Cluster {
    #[must_use]
    pub fn new(identity: Arc<Identity>) -> Self {
        Self { identity }
    }
}

#[tonic::async_trait]
impl cluster_server::Cluster for Cluster {
    async fn member_list(
        &self,
        _: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let identity = &*self.identity;
        let member = Member {
            id: identity.member_id,
            name: identity.name.clone(),
            peer_ur_ls: Vec::new(),
            client_ur_ls: identity.client_urls.clone(),
            is_learner: false,
        };
        Ok(Response::new(MemberListResponse { header: identity.typed_header(0), members: vec![member] }))
    }
}
