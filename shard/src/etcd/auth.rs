//! The Auth service, by path: there are no users, so every method except AuthStatus answers as etcd does with auth off.

use std::future::{Ready, ready};

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::{etcdserverpb as pb, raw::RawCodec};
use kindred_wire::error::EtcdError;
use prost::Message;
use tonic::{Request, Response, Status, body::Body, codegen::http, server::UnaryService};

use crate::encode::ServerIds;

const METHODS: [&str; 17] = [
    "AuthEnable",
    "AuthDisable",
    "AuthStatus",
    "Authenticate",
    "UserAdd",
    "UserGet",
    "UserList",
    "UserDelete",
    "UserChangePassword",
    "UserGrantRole",
    "UserRevokeRole",
    "RoleAdd",
    "RoleGet",
    "RoleList",
    "RoleDelete",
    "RoleGrantPermission",
    "RoleRevokePermission",
];

/// Answers every request with the same bytes.
pub struct Fixed(pub Bytes);

impl UnaryService<Bytes> for Fixed {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, _request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(self.0.clone())))
    }
}

/// Answers a call with a fixed message.
pub async fn fixed(request: http::Request<Body>, message: Bytes) -> http::Response<Body> {
    tonic::server::Grpc::new(RawCodec).unary(Fixed(message), request).await
}

/// Answers a method of Auth; `None` for one that etcd does not have.
pub async fn serve(
    ids: ServerIds,
    method: &str,
    revision: Revision,
    request: http::Request<Body>,
) -> Option<http::Response<Body>> {
    if !METHODS.contains(&method) {
        return None;
    }
    if method == "AuthStatus" {
        let header = Some(ids.header(revision));
        let answer = pb::AuthStatusResponse { header, enabled: false, auth_revision: 1 };
        return Some(fixed(request, answer.encode_to_vec().into()).await);
    }
    Some(kindred_transport::grpc::status(EtcdError::AuthNotEnabled).into_http())
}
