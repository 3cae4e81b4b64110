//! `etcdserverpb.Auth`: users, roles, and logins. Who may call what is in `kindred_router_core::auth::methods`.

use std::sync::Arc;
use std::time::Duration;

use kindred_proto::authpb::{Permission as WirePermission, permission::Type};
use kindred_proto::etcdserverpb::{self as pb, auth_server};
use kindred_proto::raw::kv::k_v_server::KV as _;
use kindred_router_core::auth::token::Token;
use kindred_router_core::auth::{Access, AuthState, Caller, Permission, Rules};
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::peek::revision_shown;
use kindred_wire::refusal::KindredError;
use prost::Message as _;
use tonic::{Request, Response, Status};

use crate::auth::passwords::Passwords;
use crate::auth::{Credentials, gate, signer};
use crate::endpoint::kv::Kv;
use crate::identity::Identity;
use crate::meta::auth::Users;
use crate::meta::{ChangeError, MetaError};

/// How long an answer waits for the revision in its header.
const HEADER_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Auth {
    identity: Arc<Identity>,
    users: Arc<Users>,
    /// For the revision in headers.
    kv: Kv,
    passwords: Passwords,
}

impl Auth {
    #[must_use]
    pub fn new(identity: Arc<Identity>, users: Arc<Users>, kv: &Kv) -> Self {
        Self { identity, users, kv: kv.for_router(), passwords: Passwords::default() }
    }

    /// With the revision of keys, as in etcd: that of the store that has the first key. 0 if it is away, which stops nobody.
    async fn header(&self) -> Option<pb::ResponseHeader> {
        let first = pb::RangeRequest { key: vec![0].into(), count_only: true, ..Default::default() };
        let mut request = Request::new(first.encode_to_vec().into());
        request.set_timeout(HEADER_MAX);
        let revision = match tokio::time::timeout(HEADER_MAX, self.kv.range(request)).await {
            Ok(Ok(answer)) => revision_shown(answer.get_ref()),
            _ => 0,
        };
        self.identity.typed_header(revision)
    }

    /// Who calls, by the newest rules; nobody while clients need not say who they are.
    async fn caller<T: Sync>(&self, request: &Request<T>) -> Result<(Arc<Rules>, Option<Caller>), Status> {
        let rules = self.users.newest().await?;
        let entered = self.users.gate.enter(|| Credentials::of(request)).await?;
        Ok(match entered {
            Some(entered) => (entered.rules, entered.caller),
            None => (rules, None),
        })
    }

    /// Changes users and roles for `root`. Whether the caller is `root` counts at the moment of the change.
    async fn change(
        &self,
        caller: Option<&Caller>,
        mut change: impl FnMut(&AuthState) -> Result<AuthState, EtcdError>,
    ) -> Result<(), Status> {
        let changed = self.users.change(|state| {
            Rules::of(state.clone()).is_root(caller)?;
            change(state)
        });
        changed.await.map_err(refused)
    }

    /// As [`Auth::change`], of a request that says all that is needed.
    async fn changed<T: Send + Sync>(
        &self,
        request: Request<T>,
        change: impl Fn(&AuthState, &T) -> Result<AuthState, EtcdError>,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let (_, caller) = self.root(&request).await?;
        let request = request.into_inner();
        self.change(caller.as_ref(), |state| change(state, &request)).await?;
        Ok(self.header().await)
    }

    /// The caller, who must be `root`.
    async fn root<T: Sync>(&self, request: &Request<T>) -> Result<(Arc<Rules>, Option<Caller>), Status> {
        let (rules, caller) = self.caller(request).await?;
        rules.is_root(caller.as_ref()).map_err(grpc::status)?;
        Ok((rules, caller))
    }
}

fn refused(error: ChangeError<EtcdError>) -> Status {
    match error {
        ChangeError::Refused(error) => grpc::status(error),
        ChangeError::Meta(MetaError::None) => grpc::refusal(&KindredError::Unsupported {
            what: "a change of users and roles at a router without a meta store",
            instead: "start the router with --meta, which keeps them",
        }),
        ChangeError::Meta(error @ MetaError::Unknown(_)) => {
            Status::unknown(format!("kindred: users and roles: {error}"))
        }
        ChangeError::Meta(error) => grpc::refusal(&KindredError::StoreUnavailable {
            store: "meta".to_owned(),
            reason: format!("users and roles were not changed: {error}"),
        }),
    }
}

/// What a change of a password has: the password, or else the hash of one in base64, as etcd takes it from older clients.
fn given_hash(hash: &str) -> Result<String, Status> {
    let bytes = base64(hash).ok_or_else(|| grpc::status(EtcdError::NoPasswordUser))?;
    // What is no text is no hash, and so no password has it.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

/// Reads base64 with padding; `None` if it is none.
fn base64(text: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => Some(u32::from(digit - b'A')),
        b'a'..=b'z' => Some(u32::from(digit - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(digit - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let groups = text.as_bytes().chunks(4);
    let last = groups.len().saturating_sub(1);
    for (at, group) in groups.enumerate() {
        let digits = group.iter().rposition(|digit| *digit != b'=').map_or(0, |at| at + 1);
        if group.len() != 4 || digits < 2 || (digits < 4 && at != last) {
            return None;
        }
        let mut bits = 0;
        for digit in &group[..digits] {
            bits = bits << 6 | value(*digit)?;
        }
        bits <<= 6 * (4 - digits);
        bytes.extend_from_slice(&bits.to_be_bytes()[1..digits]);
    }
    Some(bytes)
}

fn permission(of: WirePermission) -> Result<Permission, Status> {
    let access = match Type::try_from(of.perm_type) {
        Ok(Type::Read) => Access::Read,
        Ok(Type::Write) => Access::Write,
        Ok(Type::Readwrite) => Access::ReadWrite,
        Err(_) => return Err(grpc::status(EtcdError::InvalidAuthMgmt)),
    };
    Ok(Permission { access, key: of.key.into(), range_end: of.range_end.into() })
}

fn shown(of: Permission) -> WirePermission {
    let perm_type = match of.access {
        Access::Read => Type::Read,
        Access::Write => Type::Write,
        Access::ReadWrite => Type::Readwrite,
    };
    WirePermission { perm_type: perm_type.into(), key: of.key.into(), range_end: of.range_end.into() }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl auth_server::Auth for Auth {
    async fn auth_enable(&self, request: Request<pb::AuthEnableRequest>) -> Answer<pb::AuthEnableResponse> {
        let header = self.changed(request, |state, _| state.enable()).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Answer<pb::AuthDisableResponse> {
        let header = self.changed(request, |state, _| Ok(state.disable())).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(&self, request: Request<pb::AuthStatusRequest>) -> Answer<pb::AuthStatusResponse> {
        let (rules, _) = self.caller(&request).await?;
        let AuthState { enabled, revision, .. } = *rules.state();
        let header = self.header().await;
        Ok(Response::new(pb::AuthStatusResponse { header, enabled, auth_revision: revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Answer<pb::AuthenticateResponse> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let rules = self.users.newest().await?;
        if !rules.is_on() {
            return Err(grpc::status(EtcdError::AuthNotEnabled));
        }
        let state = rules.state();
        let failed = || grpc::status(EtcdError::AuthFailed);
        let user = state.user(&name).map_err(|_| failed())?;
        let hash = user.password.clone().ok_or_else(|| grpc::status(EtcdError::NoPasswordUser))?;
        if !self.passwords.is_right(password, hash).await? {
            tracing::info!(user = name, "a wrong password");
            return Err(failed());
        }
        // The token is of the revision that has the password. If that has been changed since, the token is not good.
        let token = Token::new(&name, state.revision, gate::now());
        let token = signer::sign(&state.key, &token);
        Ok(Response::new(pb::AuthenticateResponse { header: self.header().await, token }))
    }

    async fn user_add(&self, request: Request<pb::AuthUserAddRequest>) -> Answer<pb::AuthUserAddResponse> {
        let (_, caller) = self.root(&request).await?;
        let pb::AuthUserAddRequest { name, password, options, .. } = request.into_inner();
        let hash = match options.is_some_and(|options| options.no_password) {
            true => None,
            false => Some(self.passwords.hash(password).await?),
        };
        self.change(caller.as_ref(), |state| state.user_add(&name, hash.clone())).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header: self.header().await }))
    }

    async fn user_get(&self, request: Request<pb::AuthUserGetRequest>) -> Answer<pb::AuthUserGetResponse> {
        let (rules, caller) = self.caller(&request).await?;
        let name = request.into_inner().name;
        rules.may_see_user(caller.as_ref(), &name).map_err(grpc::status)?;
        let user = rules.state().user(&name).map_err(grpc::status)?;
        let roles = user.roles.iter().cloned().collect();
        Ok(Response::new(pb::AuthUserGetResponse { header: self.header().await, roles }))
    }

    async fn user_list(&self, request: Request<pb::AuthUserListRequest>) -> Answer<pb::AuthUserListResponse> {
        let (rules, _) = self.root(&request).await?;
        let users = rules.state().users.keys().cloned().collect();
        Ok(Response::new(pb::AuthUserListResponse { header: self.header().await, users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Answer<pb::AuthUserDeleteResponse> {
        let header = self.changed(request, |state, of| state.user_delete(&of.name)).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Answer<pb::AuthUserChangePasswordResponse> {
        let (_, caller) = self.root(&request).await?;
        let pb::AuthUserChangePasswordRequest { name, password, hashed_password } = request.into_inner();
        let hash = match password.is_empty() {
            true => given_hash(&hashed_password)?,
            false => self.passwords.hash(password).await?,
        };
        self.change(caller.as_ref(), |state| state.user_change_password(&name, &hash)).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header: self.header().await }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Answer<pb::AuthUserGrantRoleResponse> {
        let header = self.changed(request, |state, of| state.user_grant_role(&of.user, &of.role)).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Answer<pb::AuthUserRevokeRoleResponse> {
        let header = self.changed(request, |state, of| state.user_revoke_role(&of.name, &of.role)).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(&self, request: Request<pb::AuthRoleAddRequest>) -> Answer<pb::AuthRoleAddResponse> {
        let header = self.changed(request, |state, of| state.role_add(&of.name)).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(&self, request: Request<pb::AuthRoleGetRequest>) -> Answer<pb::AuthRoleGetResponse> {
        let (rules, caller) = self.caller(&request).await?;
        let role = request.into_inner().role;
        rules.may_see_role(caller.as_ref(), &role).map_err(grpc::status)?;
        let permissions = rules.state().permissions_shown(&role).map_err(grpc::status)?;
        let perm = permissions.into_iter().map(shown).collect();
        Ok(Response::new(pb::AuthRoleGetResponse { header: self.header().await, perm }))
    }

    async fn role_list(&self, request: Request<pb::AuthRoleListRequest>) -> Answer<pb::AuthRoleListResponse> {
        let (rules, _) = self.root(&request).await?;
        let roles = rules.state().roles.keys().cloned().collect();
        Ok(Response::new(pb::AuthRoleListResponse { header: self.header().await, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Answer<pb::AuthRoleDeleteResponse> {
        let header = self.changed(request, |state, of| state.role_delete(&of.role)).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Answer<pb::AuthRoleGrantPermissionResponse> {
        let (_, caller) = self.root(&request).await?;
        let pb::AuthRoleGrantPermissionRequest { name, perm } = request.into_inner();
        let granted = perm.map(permission).transpose()?;
        self.change(caller.as_ref(), |state| state.role_grant_permission(&name, granted.clone())).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header: self.header().await }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Answer<pb::AuthRoleRevokePermissionResponse> {
        let header = self
            .changed(request, |state, of| state.role_revoke_permission(&of.role, &of.key, &of.range_end))
            .await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_in_base64() {
        assert_eq!(base64("").as_deref(), Some(&b""[..]));
        for (text, bytes) in [("Zg==", &b"f"[..]), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("Zm9vYg==", b"foob")] {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(base64("+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
        for bad in ["Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9\n", "Zm-v"] {
            assert_eq!(base64(bad), None, "{bad}");
        }
    }
}
