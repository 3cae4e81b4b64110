//! The errors that a client of etcd 3.7 can meet, with code and text, in one table.
//!
//! Clients compare texts: the Go client maps the text, not the code, back to its typed error. So each text here
//! equals etcd's byte for byte (source: `rpctypes` of etcd's API module, 3.7.3), and no text of kindred's own
//! begins with `etcdserver: `. [`crate::refusal`] has kindred's own errors.

use std::fmt;

/// The gRPC status codes, with their numbers on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "gRPC's own names")]
pub enum Code {
    Ok = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The number in `grpc-status`.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Generates the enum, the list of its variants, their codes and texts, and the lookup by text from one table.
macro_rules! etcd_errors {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal;)*) => {
        /// An error as an etcd client sees it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EtcdError {
            $($(#[$doc])* $name,)*
        }

        impl EtcdError {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The gRPC status code.
            #[must_use]
            pub const fn grpc_code(self) -> Code {
                match self {
                    $(Self::$name => Code::$code,)*
                }
            }

            /// The gRPC status message, byte for byte as etcd sends it.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The error with exactly this status message; `None` if it is not one of etcd's.
            #[must_use]
            pub fn from_message(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

etcd_errors! {
    /// The request has no key.
    EmptyKey = InvalidArgument, "etcdserver: key is not provided";
    /// A txn has an empty operation, or `ignore_value` or `ignore_lease` names a key that does not exist.
    KeyNotFound = InvalidArgument, "etcdserver: key not found";
    /// `ignore_value` is set and a value is given.
    ValueProvided = InvalidArgument, "etcdserver: value is provided";
    /// `ignore_lease` is set and a lease is given.
    LeaseProvided = InvalidArgument, "etcdserver: lease is provided";
    /// A txn has more compares or operations than `--max-txn-ops`.
    TooManyOps = InvalidArgument, "etcdserver: too many operations in txn request";
    /// A txn changes one key twice.
    DuplicateKey = InvalidArgument, "etcdserver: duplicate key given in txn request";
    /// The metadata `client-api-version` does not parse.
    InvalidClientApiVersion = InvalidArgument, "etcdserver: invalid client api version";
    /// The sort order or target is unknown.
    InvalidSortOption = InvalidArgument, "etcdserver: invalid sort option";
    /// A read or a watch starts below the compacted revision, or a compaction is at or below it.
    Compacted = OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    /// A read or a compaction is above the current revision.
    FutureRevision = OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    /// The NOSPACE alarm is raised.
    NoSpace = ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    /// The lease was never granted, was revoked or has expired.
    LeaseNotFound = NotFound, "etcdserver: requested lease not found";
    /// A grant uses an id that is taken.
    LeaseExists = FailedPrecondition, "etcdserver: lease already exists";
    /// The TTL is above 9,000,000,000 s.
    LeaseTtlTooLarge = OutOfRange, "etcdserver: too large lease TTL";
    WatchCanceled = Canceled, "etcdserver: watch canceled";
    /// A new member has the id of another one.
    MemberExists = FailedPrecondition, "etcdserver: member ID already exist";
    /// A new member has the peer URLs of another one.
    PeerUrlExists = FailedPrecondition, "etcdserver: Peer URLs already exists";
    /// The change of members would lose quorum.
    MemberNotEnoughStarted = FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members";
    /// A member's URLs do not parse.
    MemberBadUrls = InvalidArgument, "etcdserver: given member URLs are invalid";
    /// No member has this id.
    MemberNotFound = NotFound, "etcdserver: member not found";
    /// The member to promote is not a learner.
    MemberNotLearner = FailedPrecondition, "etcdserver: can only promote a learner member";
    /// The learner to promote is behind the leader.
    LearnerNotReady = FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader";
    /// There are as many learners as allowed.
    TooManyLearners = FailedPrecondition, "etcdserver: too many learner members in cluster";
    /// The peer belongs to another cluster.
    ClusterIdMismatch = FailedPrecondition, "etcdserver: cluster ID mismatch";
    /// The request is longer than `--max-request-bytes` (1.5 MiB).
    RequestTooLarge = InvalidArgument, "etcdserver: request is too large";
    /// Too many requests are waiting. A stock etcd sends this text with code Unknown; its Go client maps it to
    /// ResourceExhausted.
    TooManyRequests = ResourceExhausted, "etcdserver: too many requests";
    /// Auth requires a root user.
    RootUserNotExist = FailedPrecondition, "etcdserver: root user does not exist";
    /// Auth requires the root user to have the root role.
    RootRoleNotExist = FailedPrecondition, "etcdserver: root user does not have root role";
    /// Another user has this name.
    UserAlreadyExists = FailedPrecondition, "etcdserver: user name already exists";
    /// A user name is required; also sent for a request without a user while auth is on.
    UserEmpty = InvalidArgument, "etcdserver: user name is empty";
    /// No user has this name.
    UserNotFound = FailedPrecondition, "etcdserver: user name not found";
    /// Another role has this name.
    RoleAlreadyExists = FailedPrecondition, "etcdserver: role name already exists";
    /// No role has this name.
    RoleNotFound = FailedPrecondition, "etcdserver: role name not found";
    /// A role name is required.
    RoleEmpty = InvalidArgument, "etcdserver: role name is empty";
    /// The user name or the password is wrong.
    AuthFailed = InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    /// The user has no password. The text is that of etcd's library, as etcd has no status for it.
    NoPasswordUser = Unknown, "auth: authentication failed, password was given for no password user";
    /// A permission is required.
    PermissionNotGiven = InvalidArgument, "etcdserver: permission not given";
    /// The user lacks the permission.
    PermissionDenied = PermissionDenied, "etcdserver: permission denied";
    /// The user does not have the role.
    RoleNotGranted = FailedPrecondition, "etcdserver: role is not granted to the user";
    /// The role does not have the permission.
    PermissionNotGranted = FailedPrecondition, "etcdserver: permission is not granted to the role";
    /// Auth is off. A server without users answers so to Authenticate.
    AuthNotEnabled = FailedPrecondition, "etcdserver: authentication is not enabled";
    /// The token is unknown or has expired.
    InvalidAuthToken = Unauthenticated, "etcdserver: invalid auth token";
    /// The change is not allowed, such as revoking the role of root.
    InvalidAuthMgmt = InvalidArgument, "etcdserver: invalid auth management";
    /// The token is older than the last change of the auth settings.
    AuthOldRevision = InvalidArgument, "etcdserver: revision of auth store is old";
    /// There is no leader, and the request's metadata `hasleader` requires one.
    NoLeader = Unavailable, "etcdserver: no leader";
    /// Only the leader serves this call.
    NotLeader = FailedPrecondition, "etcdserver: not leader";
    /// The leader changed while the request waited.
    LeaderChanged = Unavailable, "etcdserver: leader changed";
    /// The cluster's version is too old for this call.
    NotCapable = FailedPrecondition, "etcdserver: not capable";
    Stopped = Unavailable, "etcdserver: server stopped";
    /// The request may or may not have been executed.
    Timeout = Unavailable, "etcdserver: request timed out";
    /// The request may or may not have been executed.
    TimeoutDueToLeaderFail = Unavailable, "etcdserver: request timed out, possibly due to previous leader failure";
    /// The request may or may not have been executed: the answer when an executed write may hide behind a failure (R11).
    TimeoutDueToConnectionLost = Unavailable, "etcdserver: request timed out, possibly due to connection lost";
    /// A linearizable read timed out.
    TimeoutWaitAppliedIndex = Unavailable, "etcdserver: request timed out, waiting for the applied index took too long";
    /// The members of an unhealthy cluster cannot be changed.
    Unhealthy = Unavailable, "etcdserver: unhealthy cluster";
    /// The CORRUPT alarm is raised.
    Corrupt = DataLoss, "etcdserver: corrupt cluster";
    /// A learner does not serve this call.
    NotSupportedForLearner = FailedPrecondition, "etcdserver: rpc not supported for learner";
    /// MoveLeader names a member that cannot lead.
    BadLeaderTransferee = FailedPrecondition, "etcdserver: bad leader transferee";
    /// The target version of a downgrade does not parse.
    WrongDowngradeVersionFormat = InvalidArgument, "etcdserver: wrong downgrade target version format";
    /// The target version is not one minor version below the current one.
    InvalidDowngradeTargetVersion = InvalidArgument, "etcdserver: invalid downgrade target version";
    /// The cluster's version is not known yet.
    ClusterVersionUnavailable = FailedPrecondition, "etcdserver: cluster version not found during downgrade";
    /// Another downgrade is in progress.
    DowngradeInProcess = FailedPrecondition, "etcdserver: cluster has a downgrade job in progress";
    /// There is no downgrade to cancel.
    NoInflightDowngrade = FailedPrecondition, "etcdserver: no inflight downgrade job";
    /// The server gave up the request.
    Canceled = Canceled, "etcdserver: request canceled";
    /// The deadline passed on the server.
    DeadlineExceeded = DeadlineExceeded, "etcdserver: context deadline exceeded";
    /// RangeStream with a sort order other than by key; the client falls back to Range.
    RangeStreamSortOrder = Unimplemented, "RangeStream does not support custom sort orders";
    /// RangeStream with a minimum or maximum revision; the client falls back to Range.
    RangeStreamRevisionFilter = Unimplemented, "RangeStream does not support revision filters";
}

impl EtcdError {
    /// Whether an error with this text may hide an executed write (R11). Neither the client nor kindred can tell.
    #[must_use]
    pub const fn may_hide_a_write(self) -> bool {
        matches!(
            self,
            Self::Timeout
                | Self::TimeoutDueToLeaderFail
                | Self::TimeoutDueToConnectionLost
                | Self::LeaderChanged
                | Self::Stopped
                | Self::Canceled
                | Self::DeadlineExceeded
        )
    }

    /// The text of this error in a cancelled watch's `cancel_reason`. The Go server writes the whole status for
    /// auth errors (`rpc error: code = … desc = …`) and the plain text for all others.
    #[must_use]
    pub fn cancel_reason(self) -> String {
        match self {
            Self::InvalidAuthToken | Self::AuthOldRevision | Self::UserEmpty | Self::PermissionDenied => {
                format!("rpc error: code = {:?} desc = {}", self.grpc_code(), self.message())
            }
            _ => self.message().to_owned(),
        }
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for EtcdError {}

/// Why etcd refuses to create a watch. The text is the `cancel_reason` of an answer with `created`, `canceled` and
/// watch id -1, and never the status of a call. (A cancel request with an unknown id gets no answer.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchRefusal {
    /// `range_end` is not above `key`.
    EmptyRange,
    /// The client chose a watch id that this stream already uses.
    DuplicateId,
    /// The start revision is negative.
    NegativeStart,
}

impl WatchRefusal {
    /// The text, byte for byte as etcd sends it.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::EmptyRange => "mvcc: watcher range is empty",
            Self::DuplicateId => "mvcc: duplicate watch ID provided on the WatchStream",
            Self::NegativeStart => EtcdError::Compacted.message(),
        }
    }
}

#[cfg(test)]
mod tests;
