//! `etcdserverpb.Cluster`: the members that clients see are the cluster's routers.

use std::sync::Arc;

use kindred_proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse, cluster_server};
use tonic::{Request, Response, Status};

use crate::identity::Identity;
use crate::meta;
use crate::meta::routers::{self, members};

#[derive(Debug, Clone)]
pub struct Cluster {
    identity: Arc<Identity>,
    cluster: Arc<meta::Cluster>,
}

impl Cluster {
    #[must_use]
    pub fn new(identity: Arc<Identity>, cluster: Arc<meta::Cluster>) -> Self {
        Self { identity, cluster }
    }
}

fn shown(member: routers::Member) -> Member {
    Member {
        id: member.id,
        name: member.name,
        peer_ur_ls: Vec::new(),
        client_ur_ls: member.client_urls,
        is_learner: false,
    }
}

#[tonic::async_trait]
impl cluster_server::Cluster for Cluster {
    async fn member_list(
        &self,
        _: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let members = members(&self.cluster, &routers::Member::of(&self.identity));
        let members = members.into_iter().map(shown).collect();
        Ok(Response::new(MemberListResponse { header: self.identity.typed_header(0), members }))
    }
}
