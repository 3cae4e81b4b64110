use super::{Code, EtcdError, WatchRefusal};

/// Deliberately repeats the table, so that every change must be made twice.
fn expected() -> Vec<(EtcdError, u8, &'static str)> {
    vec![
        (EtcdError::EmptyKey, 3, "etcdserver: key is not provided"),
        (EtcdError::KeyNotFound, 3, "etcdserver: key not found"),
        (EtcdError::ValueProvided, 3, "etcdserver: value is provided"),
        (EtcdError::LeaseProvided, 3, "etcdserver: lease is provided"),
        (EtcdError::TooManyOps, 3, "etcdserver: too many operations in txn request"),
        (EtcdError::DuplicateKey, 3, "etcdserver: duplicate key given in txn request"),
        (EtcdError::InvalidClientApiVersion, 3, "etcdserver: invalid client api version"),
        (EtcdError::InvalidSortOption, 3, "etcdserver: invalid sort option"),
        (EtcdError::Compacted, 11, "etcdserver: mvcc: required revision has been compacted"),
        (EtcdError::FutureRevision, 11, "etcdserver: mvcc: required revision is a future revision"),
        (EtcdError::NoSpace, 8, "etcdserver: mvcc: database space exceeded"),
        (EtcdError::LeaseNotFound, 5, "etcdserver: requested lease not found"),
        (EtcdError::LeaseExists, 9, "etcdserver: lease already exists"),
        (EtcdError::LeaseTtlTooLarge, 11, "etcdserver: too large lease TTL"),
        (EtcdError::WatchCanceled, 1, "etcdserver: watch canceled"),
        (EtcdError::MemberExists, 9, "etcdserver: member ID already exist"),
        (EtcdError::PeerUrlExists, 9, "etcdserver: Peer URLs already exists"),
        (
            EtcdError::MemberNotEnoughStarted,
            9,
            "etcdserver: re-configuration failed due to not enough started members",
        ),
        (EtcdError::MemberBadUrls, 3, "etcdserver: given member URLs are invalid"),
        (EtcdError::MemberNotFound, 5, "etcdserver: member not found"),
        (EtcdError::MemberNotLearner, 9, "etcdserver: can only promote a learner member"),
        (
            EtcdError::LearnerNotReady,
            9,
            "etcdserver: can only promote a learner member which is in sync with leader",
        ),
        (EtcdError::TooManyLearners, 9, "etcdserver: too many learner members in cluster"),
        (EtcdError::ClusterIdMismatch, 9, "etcdserver: cluster ID mismatch"),
        (EtcdError::RequestTooLarge, 3, "etcdserver: request is too large"),
        (EtcdError::TooManyRequests, 8, "etcdserver: too many requests"),
        (EtcdError::RootUserNotExist, 9, "etcdserver: root user does not exist"),
        (EtcdError::RootRoleNotExist, 9, "etcdserver: root user does not have root role"),
        (EtcdError::UserAlreadyExists, 9, "etcdserver: user name already exists"),
        (EtcdError::UserEmpty, 3, "etcdserver: user name is empty"),
        (EtcdError::UserNotFound, 9, "etcdserver: user name not found"),
        (EtcdError::RoleAlreadyExists, 9, "etcdserver: role name already exists"),
        (EtcdError::RoleNotFound, 9, "etcdserver: role name not found"),
        (EtcdError::RoleEmpty, 3, "etcdserver: role name is empty"),
        (EtcdError::AuthFailed, 3, "etcdserver: authentication failed, invalid user ID or password"),
        (
            EtcdError::NoPasswordUser,
            2,
            "auth: authentication failed, password was given for no password user",
        ),
        (EtcdError::PermissionNotGiven, 3, "etcdserver: permission not given"),
        (EtcdError::PermissionDenied, 7, "etcdserver: permission denied"),
        (EtcdError::RoleNotGranted, 9, "etcdserver: role is not granted to the user"),
        (EtcdError::PermissionNotGranted, 9, "etcdserver: permission is not granted to the role"),
        (EtcdError::AuthNotEnabled, 9, "etcdserver: authentication is not enabled"),
        (EtcdError::InvalidAuthToken, 16, "etcdserver: invalid auth token"),
        (EtcdError::InvalidAuthMgmt, 3, "etcdserver: invalid auth management"),
        (EtcdError::AuthOldRevision, 3, "etcdserver: revision of auth store is old"),
        (EtcdError::NoLeader, 14, "etcdserver: no leader"),
        (EtcdError::NotLeader, 9, "etcdserver: not leader"),
        (EtcdError::LeaderChanged, 14, "etcdserver: leader changed"),
        (EtcdError::NotCapable, 9, "etcdserver: not capable"),
        (EtcdError::Stopped, 14, "etcdserver: server stopped"),
        (EtcdError::Timeout, 14, "etcdserver: request timed out"),
        (
            EtcdError::TimeoutDueToLeaderFail,
            14,
            "etcdserver: request timed out, possibly due to previous leader failure",
        ),
        (
            EtcdError::TimeoutDueToConnectionLost,
            14,
            "etcdserver: request timed out, possibly due to connection lost",
        ),
        (
            EtcdError::TimeoutWaitAppliedIndex,
            14,
            "etcdserver: request timed out, waiting for the applied index took too long",
        ),
        (EtcdError::Unhealthy, 14, "etcdserver: unhealthy cluster"),
        (EtcdError::Corrupt, 15, "etcdserver: corrupt cluster"),
        (EtcdError::NotSupportedForLearner, 9, "etcdserver: rpc not supported for learner"),
        (EtcdError::BadLeaderTransferee, 9, "etcdserver: bad leader transferee"),
        (EtcdError::WrongDowngradeVersionFormat, 3, "etcdserver: wrong downgrade target version format"),
        (EtcdError::InvalidDowngradeTargetVersion, 3, "etcdserver: invalid downgrade target version"),
        (EtcdError::ClusterVersionUnavailable, 9, "etcdserver: cluster version not found during downgrade"),
        (EtcdError::DowngradeInProcess, 9, "etcdserver: cluster has a downgrade job in progress"),
        (EtcdError::NoInflightDowngrade, 9, "etcdserver: no inflight downgrade job"),
        (EtcdError::Canceled, 1, "etcdserver: request canceled"),
        (EtcdError::DeadlineExceeded, 4, "etcdserver: context deadline exceeded"),
        (EtcdError::RangeStreamSortOrder, 12, "RangeStream does not support custom sort orders"),
        (EtcdError::RangeStreamRevisionFilter, 12, "RangeStream does not support revision filters"),
    ]
}

#[test]
fn codes_and_texts_are_etcds() {
    let expected = expected();
    assert_eq!(expected.iter().map(|(error, ..)| *error).collect::<Vec<_>>(), EtcdError::ALL);
    for (error, code, text) in expected {
        assert_eq!((error.grpc_code().number(), error.message()), (code, text), "{error:?}");
        assert_eq!(error.to_string(), text);
        assert_eq!(EtcdError::from_message(text), Some(error));
    }
}

#[test]
fn no_text_invites_a_client_to_resend_a_write() {
    for error in EtcdError::ALL {
        assert!(!crate::refusal::clients_resend_writes_on(error.message()), "{error:?}");
    }
}

#[test]
fn other_texts_are_not_etcds() {
    for text in ["", "etcdserver: ", "kindred: x", "etcdserver: key is not provided "] {
        assert_eq!(EtcdError::from_message(text), None);
    }
}

#[test]
fn cancel_reasons_as_the_go_server_prints_them() {
    assert_eq!(
        EtcdError::PermissionDenied.cancel_reason(),
        "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
    );
    assert_eq!(
        EtcdError::Compacted.cancel_reason(),
        "etcdserver: mvcc: required revision has been compacted"
    );
    assert_eq!(WatchRefusal::NegativeStart.reason(), EtcdError::Compacted.message());
}

#[test]
fn codes_have_grpcs_numbers() {
    assert_eq!((Code::Ok.number(), Code::Unknown.number(), Code::Unauthenticated.number()), (0, 2, 16));
}
