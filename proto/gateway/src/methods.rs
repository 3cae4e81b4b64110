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
    /// Behind the version.
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
    unary(KV, "Range", &["/kv/range"]),
    unary(KV, "Put", &["/kv/put"]),
    unary(KV, "DeleteRange", &["/kv/deleterange"]),
    unary(KV, "Txn", &["/kv/txn"]),
    unary(KV, "Compact", &["/kv/compaction"]),
    Method {
        service: "etcdserverpb.Watch",
        name: "Watch",
        paths: &["/watch"],
        streams: Streams::Both,
        stays: true,
    },
    unary(LEASE, "LeaseGrant", &["/lease/grant"]),
    unary(LEASE, "LeaseRevoke", &["/lease/revoke", "/kv/lease/revoke"]),
    Method {
        service: LEASE,
        name: "LeaseKeepAlive",
        paths: &["/lease/keepalive"],
        streams: Streams::Both,
        stays: false,
    },
    unary(LEASE, "LeaseTimeToLive", &["/lease/timetolive", "/kv/lease/timetolive"]),
    unary(LEASE, "LeaseLeases", &["/lease/leases", "/kv/lease/leases"]),
    unary(CLUSTER, "MemberAdd", &["/cluster/member/add"]),
    unary(CLUSTER, "MemberRemove", &["/cluster/member/remove"]),
    unary(CLUSTER, "MemberUpdate", &["/cluster/member/update"]),
    unary(CLUSTER, "MemberList", &["/cluster/member/list"]),
    unary(CLUSTER, "MemberPromote", &["/cluster/member/promote"]),
    unary(MAINTENANCE, "Alarm", &["/maintenance/alarm"]),
    unary(MAINTENANCE, "Status", &["/maintenance/status"]),
    unary(MAINTENANCE, "Defragment", &["/maintenance/defragment"]),
    unary(MAINTENANCE, "Hash", &["/maintenance/hash"]),
    unary(MAINTENANCE, "HashKV", &["/maintenance/hashkv"]),
    Method {
        service: MAINTENANCE,
        name: "Snapshot",
        paths: &["/maintenance/snapshot"],
        streams: Streams::Server,
        stays: false,
    },
    unary(MAINTENANCE, "MoveLeader", &["/maintenance/transfer-leadership"]),
    unary(MAINTENANCE, "Downgrade", &["/maintenance/downgrade"]),
    unary(AUTH, "AuthEnable", &["/auth/enable"]),
    unary(AUTH, "AuthDisable", &["/auth/disable"]),
    unary(AUTH, "AuthStatus", &["/auth/status"]),
    unary(AUTH, "Authenticate", &["/auth/authenticate"]),
    unary(AUTH, "UserAdd", &["/auth/user/add"]),
    unary(AUTH, "UserGet", &["/auth/user/get"]),
    unary(AUTH, "UserList", &["/auth/user/list"]),
    unary(AUTH, "UserDelete", &["/auth/user/delete"]),
    unary(AUTH, "UserChangePassword", &["/auth/user/changepw"]),
    unary(AUTH, "UserGrantRole", &["/auth/user/grant"]),
    unary(AUTH, "UserRevokeRole", &["/auth/user/revoke"]),
    unary(AUTH, "RoleAdd", &["/auth/role/add"]),
    unary(AUTH, "RoleGet", &["/auth/role/get"]),
    unary(AUTH, "RoleList", &["/auth/role/list"]),
    unary(AUTH, "RoleDelete", &["/auth/role/delete"]),
    unary(AUTH, "RoleGrantPermission", &["/auth/role/grant"]),
    unary(AUTH, "RoleRevokePermission", &["/auth/role/revoke"]),
    unary(LOCK, "Lock", &["/lock/lock"]),
    unary(LOCK, "Unlock", &["/lock/unlock"]),
    unary(ELECTION, "Campaign", &["/election/campaign"]),
    unary(ELECTION, "Proclaim", &["/election/proclaim"]),
    unary(ELECTION, "Leader", &["/election/leader"]),
    Method {
        service: ELECTION,
        name: "Observe",
        paths: &["/election/observe"],
        streams: Streams::Server,
        stays: false,
    },
    unary(ELECTION, "Resign", &["/election/resign"]),
];
