//! The paths of etcd's gateway (`api/etcdserverpb/rpc.proto`, `google.api.http`).

/// Which sides of a call are streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    No,
    Server,
    Both,
}

/// A method of the gRPC API.
#[derive(Debug)]
pub struct Method {
    pub service: &'static str,
    pub name: &'static str,
    pub paths: &'static [&'static str],
    pub streams: Streams,
    /// Whether the stream goes on when the client has said everything.
    pub stays: bool,
}

const fn unary(service: &'static str, name: &'static str, paths: &'static [&'static str]) -> Method {
    Method { service, name, paths, streams: Streams::No, stays: false }
}

const KV: &str = "etcdserverpb.KV";
const LEASE: &str = "etcdserverpb.Lease";
const CLUSTER: &str = "etcdserverpb.Cluster";
const MAINTENANCE: &str = "etcdserverpb.Maintenance";
const AUTH: &str = "etcdserverpb.Auth";

const LOCK: &str = "v3lockpb.Lock";
const ELECTION: &str = "v3electionpb.Election";

/// All methods that etcd's gateway has.
pub const METHODS: &[Method] = &[
    unary(KV, "Range", &["/v3/kv/range"]),
    unary(KV, "Put", &["/v3/kv/put"]),
    unary(KV, "DeleteRange", &["/v3/kv/deleterange"]),
    unary(KV, "Txn", &["/v3/kv/txn"]),
    unary(KV, "Compact", &["/v3/kv/compaction"]),
    Method {
        service: "etcdserverpb.Watch",
        name: "Watch",
        paths: &["/v3/watch"],
        streams: Streams::Both,
        stays: true,
    },
    unary(LEASE, "LeaseGrant", &["/v3/lease/grant"]),
    unary(LEASE, "LeaseRevoke", &["/v3/lease/revoke", "/v3/kv/lease/revoke"]),
    Method {
        service: LEASE,
        name: "LeaseKeepAlive",
        paths: &["/v3/lease/keepalive"],
        streams: Streams::Both,
        stays: false,
    },
    unary(LEASE, "LeaseTimeToLive", &["/v3/lease/timetolive", "/v3/kv/lease/timetolive"]),
    unary(LEASE, "LeaseLeases", &["/v3/lease/leases", "/v3/kv/lease/leases"]),
    unary(CLUSTER, "MemberAdd", &["/v3/cluster/member/add"]),
    unary(CLUSTER, "MemberRemove", &["/v3/cluster/member/remove"]),
    unary(CLUSTER, "MemberUpdate", &["/v3/cluster/member/update"]),
    unary(CLUSTER, "MemberList", &["/v3/cluster/member/list"]),
    unary(CLUSTER, "MemberPromote", &["/v3/cluster/member/promote"]),
    unary(MAINTENANCE, "Alarm", &["/v3/maintenance/alarm"]),
    unary(MAINTENANCE, "Status", &["/v3/maintenance/status"]),
    unary(MAINTENANCE, "Defragment", &["/v3/maintenance/defragment"]),
    unary(MAINTENANCE, "Hash", &["/v3/maintenance/hash"]),
    unary(MAINTENANCE, "HashKV", &["/v3/maintenance/hashkv"]),
    Method {
        service: MAINTENANCE,
        name: "Snapshot",
        paths: &["/v3/maintenance/snapshot"],
        streams: Streams::Server,
        stays: false,
    },
    unary(MAINTENANCE, "MoveLeader", &["/v3/maintenance/transfer-leadership"]),
    unary(MAINTENANCE, "Downgrade", &["/v3/maintenance/downgrade"]),
    unary(AUTH, "AuthEnable", &["/v3/auth/enable"]),
    unary(AUTH, "AuthDisable", &["/v3/auth/disable"]),
    unary(AUTH, "AuthStatus", &["/v3/auth/status"]),
    unary(AUTH, "Authenticate", &["/v3/auth/authenticate"]),
    unary(AUTH, "UserAdd", &["/v3/auth/user/add"]),
    unary(AUTH, "UserGet", &["/v3/auth/user/get"]),
    unary(AUTH, "UserList", &["/v3/auth/user/list"]),
    unary(AUTH, "UserDelete", &["/v3/auth/user/delete"]),
    unary(AUTH, "UserChangePassword", &["/v3/auth/user/changepw"]),
    unary(AUTH, "UserGrantRole", &["/v3/auth/user/grant"]),
    unary(AUTH, "UserRevokeRole", &["/v3/auth/user/revoke"]),
    unary(AUTH, "RoleAdd", &["/v3/auth/role/add"]),
    unary(AUTH, "RoleGet", &["/v3/auth/role/get"]),
    unary(AUTH, "RoleList", &["/v3/auth/role/list"]),
    unary(AUTH, "RoleDelete", &["/v3/auth/role/delete"]),
    unary(AUTH, "RoleGrantPermission", &["/v3/auth/role/grant"]),
    unary(AUTH, "RoleRevokePermission", &["/v3/auth/role/revoke"]),
    unary(LOCK, "Lock", &["/v3/lock/lock"]),
    unary(LOCK, "Unlock", &["/v3/lock/unlock"]),
    unary(ELECTION, "Campaign", &["/v3/election/campaign"]),
    unary(ELECTION, "Proclaim", &["/v3/election/proclaim"]),
    unary(ELECTION, "Leader", &["/v3/election/leader"]),
    Method {
        service: ELECTION,
        name: "Observe",
        paths: &["/v3/election/observe"],
        streams: Streams::Server,
        stays: false,
    },
    unary(ELECTION, "Resign", &["/v3/election/resign"]),
];
