//! The Cluster service, with one member. [`super::front`] refuses changes of membership.

use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb::{self as pb, cluster_server::Cluster};
use tonic::{Request, Response, Status};

use super::Member;

#[derive(Clone)]
pub struct ClusterService(pub Member);

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_list(
        &self,
        _request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let member = pb::Member {
            id: self.0.ids.member_id,
            name: self.0.name.clone(),
            client_ur_ls: self.0.client_urls.clone(),
            ..pb::Member::default()
        };
        // etcd leaves the revision out here.
        let header = Some(self.0.ids.header(Revision::ZERO));
        Ok(Response::new(pb::MemberListResponse { header, members: vec![member] }))
    }
}
