//! Who may call which method while callers must say who they are.

/// Who may call a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Everybody, also without a token.
    Anyone,
    /// Every user.
    User,
    /// Users with the role `root`.
    Root,
    /// It depends on what is asked, so the method checks each request itself.
    Checked,
}

/// All methods that clients can call, by service.
pub const METHODS: &[(&str, &[(&str, Who)])] = &[
    (
        "etcdserverpb.KV",
        &[
            ("Range", Who::Checked),
            ("RangeStream", Who::Checked),
            ("Put", Who::Checked),
            ("DeleteRange", Who::Checked),
            ("Txn", Who::Checked),
            ("Compact", Who::Root),
        ],
    ),
    // Each create is checked, and is refused on the stream, which goes on.
    ("etcdserverpb.Watch", &[("Watch", Who::Checked)]),
    (
        "etcdserverpb.Lease",
        &[
            ("LeaseGrant", Who::User),
            ("LeaseRevoke", Who::Checked),
            // Each renewal is checked.
            ("LeaseKeepAlive", Who::Checked),
            ("LeaseTimeToLive", Who::Checked),
            ("LeaseLeases", Who::Checked),
        ],
    ),
    (
        "etcdserverpb.Cluster",
        &[
            ("MemberAdd", Who::Root),
            ("MemberRemove", Who::Root),
            ("MemberUpdate", Who::Root),
            ("MemberList", Who::User),
            ("MemberPromote", Who::Root),
        ],
    ),
    (
        "etcdserverpb.Maintenance",
        &[
            // Every user may list alarms.
            ("Alarm", Who::Checked),
            ("Status", Who::User),
            ("Defragment", Who::Root),
            ("Hash", Who::Root),
            ("HashKV", Who::Root),
            ("Snapshot", Who::Root),
            ("MoveLeader", Who::Root),
            ("Downgrade", Who::Root),
        ],
    ),
    (
        "etcdserverpb.Auth",
        &[
            ("AuthEnable", Who::Root),
            ("AuthDisable", Who::Root),
            ("AuthStatus", Who::Anyone),
            ("Authenticate", Who::Anyone),
            ("UserAdd", Who::Root),
            // Users see themselves and their roles.
            ("UserGet", Who::Checked),
            ("UserList", Who::Root),
            ("UserDelete", Who::Root),
            ("UserChangePassword", Who::Root),
            ("UserGrantRole", Who::Root),
            ("UserRevokeRole", Who::Root),
            ("RoleAdd", Who::Root),
            ("RoleGet", Who::Checked),
            ("RoleList", Who::Root),
            ("RoleDelete", Who::Root),
            ("RoleGrantPermission", Who::Root),
            ("RoleRevokePermission", Who::Root),
        ],
    ),
    ("grpc.health.v1.Health", &[("Check", Who::Anyone), ("Watch", Who::Anyone)]),
    // Locks and elections call KV, Lease and Watch with the caller's token, and are checked there.
    ("v3lockpb.Lock", &[("Lock", Who::Checked), ("Unlock", Who::Checked)]),
    (
        "v3electionpb.Election",
        &[
            ("Campaign", Who::Checked),
            ("Proclaim", Who::Checked),
            ("Leader", Who::Checked),
            ("Observe", Who::Checked),
            ("Resign", Who::Checked),
        ],
    ),
];

/// Who may call the method of a path such as `/etcdserverpb.KV/Range`. A method that is not known is for `root` alone.
#[must_use]
pub fn who(path: &str) -> Who {
    let find = || {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let (_, methods) = METHODS.iter().find(|(name, _)| *name == service)?;
        methods.iter().find(|(name, _)| *name == method).map(|(_, who)| *who)
    };
    find().unwrap_or(Who::Root)
}
