//! The errors that an etcd 3.7 client can meet: code and text of each, in one table.
//!
//! Clients compare texts: the Go client turns the text, not the code, back into its typed error. So a text here is
//! etcd's to the byte (source: `rpctypes` of etcd's API module, 3.7.3), and nothing of our own begins with
//! `etcdserver: `. What kindred itself refuses is in [`crate::refusal`].

use std::fmt;

/// The status codes of gRPC with their numbers on the wire.
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

/// Writes the enum, its list, its codes, its texts and the way back from the text out of one table.
macro_rules! etcd_errors {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal;)*) => {
        /// An error of etcd's, as a client sees it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EtcdError {
            $($(#[$doc])* $name,)*
        }

        impl EtcdError {
            /// Every error of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The gRPC status code.
            #[must_use]
            pub const fn grpc_code(self) -> Code {
                match self {
                    $(Self::$name => Code::$code,)*
                }
            }

            /// The gRPC status message, to the byte as etcd sends it.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The error with exactly this status message; `None` for a text that is not etcd's.
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
    /// A request without a key.
    EmptyKey = InvalidArgument, "etcdserver: key is not provided";
    /// An empty operation in a txn, or `ignore_value`/`ignore_lease` on a key that does not exist.
    KeyNotFound = InvalidArgument, "etcdserver: key not found";
    /// `ignore_value` together with a value.
    ValueProvided = InvalidArgument, "etcdserver: value is provided";
    /// `ignore_lease` together with a lease.
    LeaseProvided = InvalidArgument, "etcdserver: lease is provided";
    /// More compares or operations than `--max-txn-ops`.
    TooManyOps = InvalidArgument, "etcdserver: too many operations in txn request";
    /// A txn that changes one key twice.
    DuplicateKey = InvalidArgument, "etcdserver: duplicate key given in txn request";
    /// Metadata `client-api-version` that does not parse.
    InvalidClientApiVersion = InvalidArgument, "etcdserver: invalid client api version";
    /// An unknown sort order or target.
    InvalidSortOption = InvalidArgument, "etcdserver: invalid sort option";
    /// A read or watch start below the compacted revision, or a compaction at or below it.
    Compacted = OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    /// A read or compaction above the current revision.
    FutureRevision = OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    /// The NOSPACE alarm is raised.
    NoSpace = ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    /// A lease that was never granted, is revoked or has expired.
    LeaseNotFound = NotFound, "etcdserver: requested lease not found";
    /// A grant with an id that is in use.
    LeaseExists = FailedPrecondition, "etcdserver: lease already exists";
    /// A TTL above 9,000,000,000 s.
    LeaseTtlTooLarge = OutOfRange, "etcdserver: too large lease TTL";
    /// The watch was cancelled.
    WatchCanceled = Canceled, "etcdserver: watch canceled";
    /// Member ids must be new.
    MemberExists = FailedPrecondition, "etcdserver: member ID already exist";
    /// Peer URLs must be new.
    PeerUrlExists = FailedPrecondition, "etcdserver: Peer URLs already exists";
    /// A change of members that would lose quorum.
    MemberNotEnoughStarted = FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members";
    /// URLs that do not parse.
    MemberBadUrls = InvalidArgument, "etcdserver: given member URLs are invalid";
    /// No such member.
    MemberNotFound = NotFound, "etcdserver: member not found";
    /// Promotion of a voter.
    MemberNotLearner = FailedPrecondition, "etcdserver: can only promote a learner member";
    /// Promotion of a learner that is behind.
    LearnerNotReady = FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader";
    /// More learners than allowed.
    TooManyLearners = FailedPrecondition, "etcdserver: too many learner members in cluster";
    /// A peer of another cluster.
    ClusterIdMismatch = FailedPrecondition, "etcdserver: cluster ID mismatch";
    /// More bytes than `--max-request-bytes` (1.5 MiB).
    RequestTooLarge = InvalidArgument, "etcdserver: request is too large";
    /// Too many requests are waiting. A stock etcd sends code Unknown with this text; its Go client restores ResourceExhausted.
    TooManyRequests = ResourceExhausted, "etcdserver: too many requests";
    /// Auth needs a root user.
    RootUserNotExist = FailedPrecondition, "etcdserver: root user does not exist";
    /// Auth needs a root role.
    RootRoleNotExist = FailedPrecondition, "etcdserver: root user does not have root role";
    /// User names must be new.
    UserAlreadyExists = FailedPrecondition, "etcdserver: user name already exists";
    /// A user name is needed; also a request without a user while auth is on.
    UserEmpty = InvalidArgument, "etcdserver: user name is empty";
    /// No such user.
    UserNotFound = FailedPrecondition, "etcdserver: user name not found";
    /// Role names must be new.
    RoleAlreadyExists = FailedPrecondition, "etcdserver: role name already exists";
    /// No such role.
    RoleNotFound = FailedPrecondition, "etcdserver: role name not found";
    /// A role name is needed.
    RoleEmpty = InvalidArgument, "etcdserver: role name is empty";
    /// Wrong user or password.
    AuthFailed = InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    /// A permission is needed.
    PermissionNotGiven = InvalidArgument, "etcdserver: permission not given";
    /// The user may not do this.
    PermissionDenied = PermissionDenied, "etcdserver: permission denied";
    /// The user does not have the role.
    RoleNotGranted = FailedPrecondition, "etcdserver: role is not granted to the user";
    /// The role does not have the permission.
    PermissionNotGranted = FailedPrecondition, "etcdserver: permission is not granted to the role";
    /// Auth is off; what a server without users answers to Authenticate.
    AuthNotEnabled = FailedPrecondition, "etcdserver: authentication is not enabled";
    /// The token is unknown or has expired.
    InvalidAuthToken = Unauthenticated, "etcdserver: invalid auth token";
    /// For instance revoking the role of root.
    InvalidAuthMgmt = InvalidArgument, "etcdserver: invalid auth management";
    /// The token is older than the last change of auth.
    AuthOldRevision = InvalidArgument, "etcdserver: revision of auth store is old";
    /// There is no leader (asked for with metadata `hasleader`).
    NoLeader = Unavailable, "etcdserver: no leader";
    /// Only the leader does this.
    NotLeader = FailedPrecondition, "etcdserver: not leader";
    /// The leader changed while the request waited.
    LeaderChanged = Unavailable, "etcdserver: leader changed";
    /// The cluster is too old for this call.
    NotCapable = FailedPrecondition, "etcdserver: not capable";
    /// The server is stopping.
    Stopped = Unavailable, "etcdserver: server stopped";
    /// The request may or may not have been executed.
    Timeout = Unavailable, "etcdserver: request timed out";
    /// The request may or may not have been executed.
    TimeoutDueToLeaderFail = Unavailable, "etcdserver: request timed out, possibly due to previous leader failure";
    /// The request may or may not have been executed: the answer when an executed write may hide behind a failure (R11).
    TimeoutDueToConnectionLost = Unavailable, "etcdserver: request timed out, possibly due to connection lost";
    /// A linearizable read waited too long.
    TimeoutWaitAppliedIndex = Unavailable, "etcdserver: request timed out, waiting for the applied index took too long";
    /// A change of members on an unhealthy cluster.
    Unhealthy = Unavailable, "etcdserver: unhealthy cluster";
    /// The CORRUPT alarm is raised.
    Corrupt = DataLoss, "etcdserver: corrupt cluster";
    /// A learner serves only a few calls.
    NotSupportedForLearner = FailedPrecondition, "etcdserver: rpc not supported for learner";
    /// MoveLeader to a member that cannot lead.
    BadLeaderTransferee = FailedPrecondition, "etcdserver: bad leader transferee";
    /// A downgrade target that does not parse.
    WrongDowngradeVersionFormat = InvalidArgument, "etcdserver: wrong downgrade target version format";
    /// Downgrades go down by one minor.
    InvalidDowngradeTargetVersion = InvalidArgument, "etcdserver: invalid downgrade target version";
    /// The version of the cluster is not known yet.
    ClusterVersionUnavailable = FailedPrecondition, "etcdserver: cluster version not found during downgrade";
    /// One downgrade at a time.
    DowngradeInProcess = FailedPrecondition, "etcdserver: cluster has a downgrade job in progress";
    /// No downgrade to cancel.
    NoInflightDowngrade = FailedPrecondition, "etcdserver: no inflight downgrade job";
    /// The server gave the request up.
    Canceled = Canceled, "etcdserver: request canceled";
    /// The deadline passed on the server.
    DeadlineExceeded = DeadlineExceeded, "etcdserver: context deadline exceeded";
    /// RangeStream with a sort order other than the key's; the client falls back to Range.
    RangeStreamSortOrder = Unimplemented, "RangeStream does not support custom sort orders";
    /// RangeStream with a minimal or maximal revision; the client falls back to Range.
    RangeStreamRevisionFilter = Unimplemented, "RangeStream does not support revision filters";
}

impl EtcdError {
    /// Whether an error with this text may hide an executed write (R11): the client cannot know, nor can we.
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

    /// The text that a cancelled watch carries in `cancel_reason`. The Go server prints the status there for errors of
    /// auth (`rpc error: code = … desc = …`), and the bare text for all others.
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

/// Why etcd refuses a watch at its creation: the text of `cancel_reason` beside `created` and `canceled`, watch id -1.
/// These never are the status of a call. (An unknown id in a cancel request is ignored without an answer.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchRefusal {
    /// `range_end` is at or below `key`.
    EmptyRange,
    /// The client chose a watch id that is in use on this stream.
    DuplicateId,
    /// A negative start revision.
    NegativeStart,
}

impl WatchRefusal {
    /// The text, to the byte as etcd sends it.
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
