//! Random changes of users and roles, and calls of all kinds in between, at a router and at a real etcd: the same outcomes,
//! with the same codes and texts.

use std::collections::BTreeMap;

use anyhow::ensure;
use kindred_proto::authpb::{Permission, UserAddOptions};
use kindred_proto::etcdserverpb::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest, AuthRoleRevokePermissionRequest,
    AuthStatusRequest, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGetRequest, AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest,
    AuthenticateRequest, Compare, DeleteRangeRequest, HashRequest, LeaseGrantRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberListRequest, PutRequest, RangeRequest, RequestOp,
    StatusRequest, TxnRequest, auth_client::AuthClient, request_op,
};
use kindred_tests::client::Channel;
use kindred_tests::{
    client::Client,
    scenario::{self, report},
    servers::Etcd,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tonic::{Request, Status};

use super::{LIMIT, World, address};

const USERS: [&str; 4] = ["root", "u", "v", ""];
const ROLES: [&str; 4] = ["root", "r", "s", ""];
/// No two have the same beginning: of those etcd looks only at the first when one is granted anew.
const RANGES: [(&str, &str); 6] = [("a", ""), ("b", "d"), ("c", "a"), ("d", "e"), ("k", "\0"), ("", "")];
const KEYS: [&str; 6] = ["a", "b", "c", "d", "k", "z"];
const SPANS: [(&str, &str); 7] =
    [("a", ""), ("b", "e"), ("b", "f"), ("k", "\0"), ("a", "\0"), ("", ""), ("\0", "\0")];
/// Those of one store, which a transaction may not leave.
const NEAR: [(&str, &str); 5] = [("a", ""), ("b", "e"), ("b", "f"), ("k", "l"), ("", "")];
const LEASES: [i64; 2] = [1001, 1002];
const STEPS: usize = 1200;

#[derive(Debug, Clone)]
enum Step {
    Enable,
    Disable,
    Status,
    Login(&'static str, bool),
    UserAdd(&'static str, bool),
    UserDelete(&'static str),
    UserGet(&'static str),
    UserList,
    Password(&'static str),
    GrantRole(&'static str, &'static str),
    RevokeRole(&'static str, &'static str),
    RoleAdd(&'static str),
    RoleDelete(&'static str),
    RoleGet(&'static str),
    RoleList,
    Grant(&'static str, i32, (&'static str, &'static str)),
    Revoke(&'static str, (&'static str, &'static str)),
    Range((&'static str, &'static str)),
    Put(&'static str, i64, bool),
    Delete((&'static str, &'static str), bool),
    Txn(&'static str, (&'static str, &'static str), &'static str, bool),
    LeaseGrant(i64),
    LeaseRevoke(i64),
    LeaseKeys(i64, bool),
    Leases,
    Alarms,
    Members,
    MaintenanceStatus,
    Hash,
}

fn step(rng: &mut StdRng) -> Step {
    macro_rules! one {
        ($of:expr) => {
            $of[rng.random_range(0..$of.len())]
        };
    }
    match rng.random_range(0..40) {
        0 | 1 => Step::Enable,
        2 => Step::Disable,
        3 => Step::Status,
        4..=7 => Step::Login(one!(USERS), rng.random_ratio(1, 5)),
        8 => Step::UserAdd(one!(USERS), rng.random_ratio(1, 8)),
        9 if rng.random_ratio(1, 2) => Step::UserDelete(one!(USERS)),
        10 => Step::UserGet(one!(USERS)),
        11 => Step::UserList,
        12 => Step::Password(one!(USERS)),
        13 | 14 => Step::GrantRole(one!(USERS), one!(ROLES)),
        15 => Step::RevokeRole(one!(USERS), one!(ROLES)),
        16 => Step::RoleAdd(one!(ROLES)),
        17 if rng.random_ratio(1, 2) => Step::RoleDelete(one!(ROLES)),
        18 => Step::RoleGet(one!(ROLES)),
        19 => Step::RoleList,
        20..=22 => Step::Grant(one!(ROLES), rng.random_range(0..3), one!(RANGES)),
        23 => Step::Revoke(one!(ROLES), one!(RANGES)),
        24..=26 => Step::Range(one!(SPANS)),
        27 | 28 => Step::Put(one!(KEYS), if rng.random() { 0 } else { one!(LEASES) }, rng.random()),
        29 => Step::Delete(one!(SPANS), rng.random()),
        30 | 31 => Step::Txn(one!(KEYS), one!(NEAR), one!(KEYS), rng.random()),
        32 => Step::LeaseGrant(one!(LEASES)),
        33 => Step::LeaseRevoke(one!(LEASES)),
        34 => Step::LeaseKeys(one!(LEASES), rng.random()),
        35 => Step::Leases,
        36 => Step::Alarms,
        37 => Step::Members,
        38 => Step::MaintenanceStatus,
        _ => Step::Hash,
    }
}

/// One of the two servers.
struct Side {
    client: Client,
    auth: AuthClient<Channel>,
    /// The tokens that logins have brought, by user. They are used for as long as the test runs.
    tokens: BTreeMap<&'static str, String>,
    /// The number of password that each user has.
    passwords: BTreeMap<&'static str, u32>,
}

impl Side {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        let client = Client::connect(address).await?;
        let auth = AuthClient::new(client.channel.clone());
        Ok(Self { client, auth, tokens: BTreeMap::new(), passwords: BTreeMap::new() })
    }

    fn password(&self, user: &'static str) -> String {
        format!("{user}-{}", self.passwords.get(user).copied().unwrap_or(0))
    }

    fn by<T>(&self, caller: Option<&'static str>, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(caller) = caller {
            let token = self.tokens.get(caller).cloned().unwrap_or_else(|| "forged.1".to_owned());
            request.metadata_mut().insert("token", token.parse().expect("tokens are text"));
        }
        request
    }

    /// What the server says, as far as both must say the same.
    async fn run(&mut self, step: &Step, caller: Option<&'static str>) -> Result<String, Status> {
        let nothing = String::new;
        macro_rules! auth {
            ($method:ident, $message:expr) => {
                self.auth.clone().$method(self.by(caller, $message)).await?.into_inner()
            };
        }
        let text = |key: &'static str| bytes::Bytes::from(key);
        Ok(match step.clone() {
            Step::Enable => {
                auth!(auth_enable, AuthEnableRequest {});
                nothing()
            }
            Step::Disable => {
                auth!(auth_disable, AuthDisableRequest {});
                nothing()
            }
            Step::Status => {
                let status = auth!(auth_status, AuthStatusRequest {});
                format!("{} {}", status.enabled, status.auth_revision)
            }
            Step::Login(name, wrong) => {
                let password = if wrong { "wrong".to_owned() } else { self.password(name) };
                let request = AuthenticateRequest { name: name.to_owned(), password };
                let token = self.auth.authenticate(request).await?.into_inner().token;
                self.tokens.insert(name, token);
                nothing()
            }
            Step::UserAdd(name, no_password) => {
                let request = AuthUserAddRequest {
                    name: name.to_owned(),
                    password: if no_password { nothing() } else { format!("{name}-0") },
                    options: Some(UserAddOptions { no_password }),
                    ..Default::default()
                };
                auth!(user_add, request);
                self.passwords.insert(name, 0);
                nothing()
            }
            Step::UserDelete(name) => {
                auth!(user_delete, AuthUserDeleteRequest { name: name.to_owned() });
                nothing()
            }
            Step::UserGet(name) => {
                format!("{:?}", auth!(user_get, AuthUserGetRequest { name: name.to_owned() }).roles)
            }
            Step::UserList => format!("{:?}", auth!(user_list, AuthUserListRequest {}).users),
            Step::Password(name) => {
                let number = self.passwords.get(name).copied().unwrap_or(0) + 1;
                let password = format!("{name}-{number}");
                let request =
                    AuthUserChangePasswordRequest { name: name.to_owned(), password, ..Default::default() };
                auth!(user_change_password, request);
                self.passwords.insert(name, number);
                nothing()
            }
            Step::GrantRole(user, role) => {
                auth!(
                    user_grant_role,
                    AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() }
                );
                nothing()
            }
            Step::RevokeRole(name, role) => {
                auth!(
                    user_revoke_role,
                    AuthUserRevokeRoleRequest { name: name.to_owned(), role: role.to_owned() }
                );
                nothing()
            }
            Step::RoleAdd(name) => {
                auth!(role_add, AuthRoleAddRequest { name: name.to_owned() });
                nothing()
            }
            Step::RoleDelete(role) => {
                auth!(role_delete, AuthRoleDeleteRequest { role: role.to_owned() });
                nothing()
            }
            Step::RoleGet(role) => {
                format!("{:?}", auth!(role_get, AuthRoleGetRequest { role: role.to_owned() }).perm)
            }
            Step::RoleList => format!("{:?}", auth!(role_list, AuthRoleListRequest {}).roles),
            Step::Grant(name, perm_type, (key, range_end)) => {
                let perm = Permission { perm_type, key: text(key), range_end: text(range_end) };
                let request = AuthRoleGrantPermissionRequest { name: name.to_owned(), perm: Some(perm) };
                auth!(role_grant_permission, request);
                nothing()
            }
            Step::Revoke(role, (key, range_end)) => {
                let request = AuthRoleRevokePermissionRequest {
                    role: role.to_owned(),
                    key: text(key),
                    range_end: text(range_end),
                };
                auth!(role_revoke_permission, request);
                nothing()
            }
            Step::Range((key, range_end)) => {
                let request =
                    RangeRequest { key: text(key), range_end: text(range_end), ..Default::default() };
                let request = self.by(caller, request);
                let kvs = self.client.kv.range(request).await?.into_inner().kvs;
                format!("{:?}", kvs.iter().map(|kv| &kv.key).collect::<Vec<_>>())
            }
            Step::Put(key, lease, prev_kv) => {
                let request = PutRequest { key: text(key), lease, prev_kv, ..Default::default() };
                let request = self.by(caller, request);
                format!("{}", self.client.kv.put(request).await?.into_inner().prev_kv.is_some())
            }
            Step::Delete((key, range_end), prev_kv) => {
                let request = DeleteRangeRequest { key: text(key), range_end: text(range_end), prev_kv };
                let request = self.by(caller, request);
                let deleted = self.client.kv.delete_range(request).await?.into_inner();
                format!("{} {}", deleted.deleted, deleted.prev_kvs.len())
            }
            Step::Txn(compared, (key, range_end), put, nested) => {
                let op = |request| RequestOp { request: Some(request) };
                let compare = Compare { key: text(compared), ..Default::default() };
                let range = RangeRequest { key: text(key), range_end: text(range_end), ..Default::default() };
                let put = PutRequest { key: text(put), ..Default::default() };
                let inner = TxnRequest {
                    compare: vec![compare],
                    success: vec![op(request_op::Request::RequestRange(range))],
                    failure: vec![op(request_op::Request::RequestPut(put))],
                };
                let request = match nested {
                    false => inner,
                    true => TxnRequest {
                        failure: vec![op(request_op::Request::RequestTxn(inner))],
                        ..Default::default()
                    },
                };
                let request = self.by(caller, request);
                format!("{}", self.client.kv.txn(request).await?.into_inner().succeeded)
            }
            Step::LeaseGrant(id) => {
                let request = self.by(caller, LeaseGrantRequest { id, ttl: 3600 });
                format!("{}", self.client.lease.lease_grant(request).await?.into_inner().id)
            }
            Step::LeaseRevoke(id) => {
                let request = self.by(caller, LeaseRevokeRequest { id });
                self.client.lease.lease_revoke(request).await?;
                nothing()
            }
            Step::LeaseKeys(id, keys) => {
                let request = self.by(caller, LeaseTimeToLiveRequest { id, keys });
                let mut keys = self.client.lease.lease_time_to_live(request).await?.into_inner().keys;
                keys.sort();
                format!("{keys:?}")
            }
            Step::Leases => {
                let request = self.by(caller, LeaseLeasesRequest {});
                let leases = self.client.lease.lease_leases(request).await?.into_inner().leases;
                let mut ids: Vec<i64> = leases.into_iter().map(|lease| lease.id).collect();
                ids.sort_unstable();
                format!("{ids:?}")
            }
            Step::Alarms => {
                let request = self.by(caller, AlarmRequest::default());
                self.client.maintenance.alarm(request).await?;
                nothing()
            }
            Step::Members => {
                let request = self.by(caller, MemberListRequest::default());
                self.client.cluster.member_list(request).await?;
                nothing()
            }
            Step::MaintenanceStatus => {
                let request = self.by(caller, StatusRequest {});
                self.client.maintenance.status(request).await?;
                nothing()
            }
            Step::Hash => {
                let request = self.by(caller, HashRequest {});
                self.client.maintenance.hash(request).await?;
                nothing()
            }
        })
    }
}

#[test]
fn random_changes_and_calls_have_etcds_outcomes() {
    scenario::run("auth-random", LIMIT, |dir| async move {
        let world = World::start(&dir).await?;
        let router = world.router("a", true).await?;
        let etcd = Etcd::start_with(&dir, "etcd", &["--bcrypt-cost=4"]).await?;
        let seed = scenario::env_number("KINDRED_AUTH_SEED", 1)?;
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut ours, mut theirs) =
            (Side::connect(&address(&router)?).await?, Side::connect(&etcd.address).await?);
        // Without this much, most steps would meet nothing.
        let mut steps = vec![
            Step::UserAdd("root", false),
            Step::UserAdd("u", false),
            Step::RoleAdd("root"),
            Step::RoleAdd("r"),
            Step::GrantRole("root", "root"),
            Step::GrantRole("u", "r"),
            Step::Grant("r", 2, ("b", "d")),
            Step::Enable,
            Step::Login("root", false),
            Step::Login("u", false),
        ];
        steps.reverse();
        let (mut refused, mut count) = (BTreeMap::<String, usize>::new(), 0);
        for at in 0..STEPS {
            let step = steps.pop().unwrap_or_else(|| step(&mut rng));
            let caller = match rng.random_range(0..8) {
                0..=3 => Some("root"),
                4 | 5 => Some("u"),
                6 => Some("v"),
                _ => None,
            };
            let caller = if at < 8 { None } else { caller };
            let (our, their) = (ours.run(&step, caller).await, theirs.run(&step, caller).await);
            let shown = |said: &Result<String, Status>| match said {
                Ok(said) => said.clone(),
                Err(status) => format!("{:?}: {}", status.code(), status.message()),
            };
            let (our, their) = (shown(&our), shown(&their));
            ensure!(
                our == their,
                "step {at} of seed {seed}, {step:?} by {caller:?}: {our:?}, and etcd {their:?}"
            );
            if our.contains(": ") {
                *refused.entry(our).or_default() += 1;
            }
            count += 1;
        }
        let denied = refused.get("PermissionDenied: etcdserver: permission denied").copied().unwrap_or(0);
        ensure!(denied >= 10 && refused.len() >= 8, "too little was refused to mean anything: {refused:?}");
        report(&format!("e2e auth_random steps={count} denied={denied} errors={}", refused.len()));
        Ok(())
    })
}
