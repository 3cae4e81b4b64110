//! The cases that pass at etcd and not at kindred, each with the reason.

use std::collections::BTreeMap;

use super::{Results, run::Outcome, side::Side};

/// Cases that differ for the same reason.
#[derive(Debug)]
pub struct Difference {
    pub reason: &'static str,
    pub at: &'static [Side],
    /// A client, and its cases.
    pub cases: &'static [(&'static str, &'static [&'static str])],
}

const KINDRED: &[Side] = &[Side::Shard, Side::Router];
const SHARD: &[Side] = &[Side::Shard];
const ROUTER: &[Side] = &[Side::Router];

/// The name of etcd's tests of its API.
pub const API: &str = "etcd's tests of its API";
/// The name of those that etcd runs in a process and over processes alike.
pub const COMMON: &str = "etcd's common tests";
const CLIENTV3: &str = "etcd's tests of clientv3";
const ETCD_CLIENT: &str = "etcd-client crate, client";
const EXAMPLES: &str = "etcd's tests of examples";
const LEASE: &str = "etcd's tests of lease";
const RECIPES: &str = "etcd's tests of recipes";
const WATCH: &str = "etcd's tests of watch";

pub const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "A shard has no users and roles; a router has.",
        at: SHARD,
        cases: &[
            (
                CLIENTV3,
                &[
                    "TestAddUserAfterDelete",
                    "TestGetTokenWithoutAuth",
                    "TestMirrorSync_Authenticated",
                    "TestUserError",
                    "TestUserErrorAuth",
                ],
            ),
            (EXAMPLES, &["ExampleAuth"]),
            (ETCD_CLIENT, &["test_role", "test_user"]),
            (
                API,
                &[
                    "TestElectionWithAuthEnabled",
                    "TestPutWithLeaseInTXN",
                    "TestReadWithPrevKvInTXN",
                    "TestV3AuthEmptyUserGet",
                    "TestV3AuthEmptyUserPut",
                    "TestV3AuthNestedTxnPermissionDenied",
                    "TestV3AuthNonAuthorizedRPCs",
                    "TestV3AuthOldRevConcurrent",
                    "TestV3AuthRevision",
                    "TestV3AuthTokenWithDisable",
                    "TestV3AuthWatchErrorAndWatchId0",
                    "TestV3AuthWithLeaseAttach",
                    "TestV3AuthWithLeaseRenew",
                    "TestV3AuthWithLeaseRevoke",
                    "TestV3AuthWithLeaseRevokeWithRoot",
                ],
            ),
            (
                COMMON,
                &[
                    "TestAuthAlarm",
                    "TestAuthCompact",
                    "TestAuthDisable",
                    "TestAuthEnable",
                    "TestAuthGracefulDisable",
                    "TestAuthLeaseGrantLeases",
                    "TestAuthLeaseKeepAlive",
                    "TestAuthLeaseLeases",
                    "TestAuthLeaseRevoke",
                    "TestAuthLeaseTimeToLiveExpired",
                    "TestAuthMemberList",
                    "TestAuthPrefixPerm",
                    "TestAuthRevokeWithDelete",
                    "TestAuthRoleGet",
                    "TestAuthRoleList",
                    "TestAuthRoleRevokeDuringOps",
                    "TestAuthRoleUpdate",
                    "TestAuthStatus",
                    "TestAuthTestInvalidMgmt",
                    "TestAuthTxn",
                    "TestAuthUserDeleteDuringOps",
                    "TestAuthUserGet",
                    "TestAuthWriteKey",
                    "TestDefragmentWithInvalidAuth",
                    "TestDefragmentWithNoAuth",
                    "TestDefragmentWithRootAuth",
                    "TestDefragmentWithUserAuth",
                    "TestHashKVWithInvalidAuth",
                    "TestHashKVWithNoAuth",
                    "TestHashKVWithRootAuth",
                    "TestHashKVWithUserAuth",
                    "TestRoleAdd_Error",
                    "TestRoleAdd_Simple",
                    "TestRoleDelete",
                    "TestRoleGrantRevokePermission",
                    "TestRootRole",
                    "TestStatusWithInvalidAuth",
                    "TestStatusWithNoAuth",
                    "TestStatusWithRootAuth",
                    "TestStatusWithUserAuth",
                    "TestUserAdd_DuplicateUserNotAllowed",
                    "TestUserAdd_Simple",
                    "TestUserChangePassword",
                    "TestUserDelete",
                    "TestUserList",
                ],
            ),
        ],
    },
    Difference {
        reason: "The case expects revisions to count from 1 and by 1. Those of a router are times.",
        at: ROUTER,
        cases: &[
            (
                CLIENTV3,
                &[
                    "TestKVCompact",
                    "TestKVCompactError",
                    "TestKVRange",
                    "TestMirrorSync",
                    "TestMirrorSync_Authenticated",
                    "TestNamespaceWatch",
                ],
            ),
            (LEASE, &["TestLeasingTxnOwnerIf"]),
            (
                WATCH,
                &[
                    "TestV3WatchCurrentPutOverlap",
                    "TestV3WatchEmptyKey",
                    "TestV3WatchFromCurrentRevision",
                    "TestV3WatchFutureRevision",
                    "TestV3WatchMultipleEventsTxnSynced",
                    "TestV3WatchMultipleStreamsSynced",
                    "TestV3WatchWithFilter",
                    "TestWatchRequestProgress",
                    "TestWatchResumeCompacted",
                ],
            ),
            (API, &["TestV3RangeRequest", "TestV3TxnRevision"]),
            ("Python etcd3", &["test_watch_key_with_revision_compacted"]),
            (COMMON, &["TestCompact", "TestKVGet", "TestKVGetStream"]),
        ],
    },
    Difference {
        reason: "The case watches from revision 1, which lies below the beginning of every store of a router, and so is compacted.",
        at: ROUTER,
        cases: &[
            (RECIPES, &["TestMutexWaitsOnCurrentHolder"]),
            (
                WATCH,
                &[
                    "TestV3WatchMultipleEventsPutUnsynced",
                    "TestV3WatchMultipleEventsTxnUnsynced",
                    "TestV3WatchMultipleStreamsUnsynced",
                    "TestV3WatchMultipleWatchersUnsynced",
                    "TestV3WatchProgressWaitsForSync",
                    "TestWatch",
                ],
            ),
            (API, &["TestV3AuthWatchErrorAndWatchId0", "TestV3LeaseExpire"]),
            (COMMON, &["TestAuthGracefulDisable", "TestWatch"]),
        ],
    },
    Difference {
        reason: "A transaction cannot span stores.",
        at: ROUTER,
        cases: &[(API, &["TestV3TxnRangeCompare"])],
    },
    Difference {
        reason: "History comes in messages of bounded size, where etcd sends one of 10 MiB.",
        at: SHARD,
        cases: &[(
            WATCH,
            &[
                "TestWatchFragmentDisable",
                "TestWatchFragmentDisableWithGRPCLimit",
                "TestWatchFragmentEnable",
                "TestWatchFragmentEnableWithGRPCLimit",
            ],
        )],
    },
    Difference {
        reason: "The least `--max-request-bytes` is 1024; the case sets 256.",
        at: SHARD,
        cases: &[(CLIENTV3, &["TestKVLargeRequests"]), (API, &["TestV3LargeRequests"])],
    },
    Difference {
        reason: "A snapshot is a database in the form of etcd 3.5, which has no version.",
        at: KINDRED,
        cases: &[(CLIENTV3, &["TestMaintenanceSnapshotWithVersionVersion"])],
    },
    Difference {
        reason: "Hashes are not kept over a compaction. etcd's members compare those with each other.",
        at: KINDRED,
        cases: &[(CLIENTV3, &["TestCompactionHash"]), (COMMON, &["TestVerifyHashKVAfterCompactAndDefrag"])],
    },
    Difference {
        reason: "Members have no peer URLs.",
        at: KINDRED,
        cases: &[("Python etcd3gw", &["test_client_members"])],
    },
    Difference {
        reason: "With the order `NONE` a `RangeStream` is in the order of keys, whatever the target. etcd sorts within each message.",
        at: SHARD,
        cases: &[(API, &["TestV3RangeRequest"]), (COMMON, &["TestKVGetStream"])],
    },
    Difference {
        reason: "A `RangeStream` sends few keys as one message.",
        at: KINDRED,
        cases: &[(API, &["TestV3RangeStreamCount"])],
    },
    Difference {
        reason: "A `RangeStream` that has begun is not ended by a compaction.",
        at: KINDRED,
        cases: &[(API, &["TestV3RangeStreamPartialThenCompacted"])],
    },
];

/// Whether a case is expected to fail at a side.
pub fn is_known(client: &str, case: &str, side: Side) -> bool {
    let has = |difference: &&Difference| {
        let of_client = difference.cases.iter().filter(|(name, _)| *name == client);
        difference.at.contains(&side) && of_client.clone().any(|(_, cases)| cases.contains(&case))
    };
    DIFFERENCES.iter().any(|difference| has(&difference))
}

/// What is not as this table says, one line for each case.
pub fn unexpected(results: &BTreeMap<String, Results>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (client, cases) in results {
        for (case, at) in cases {
            if let Some(Outcome::Failed(said)) = at.get(&Side::Etcd) {
                wrong.push(format!("{client} {case} fails at etcd itself: {said}"));
                continue;
            }
            for side in [Side::Shard, Side::Router] {
                match (at.get(&side), is_known(client, case, side)) {
                    (Some(Outcome::Failed(said)), false) => {
                        wrong.push(format!("{client} {case} fails at {side:?}: {said}"));
                    }
                    (Some(Outcome::Skipped(why)), false)
                        if at.get(&Side::Etcd) == Some(&Outcome::Passed) && !at[&side].lacks_flag() =>
                    {
                        wrong.push(format!("{client} {case} skips itself at {side:?}: {why}"));
                    }
                    (Some(Outcome::Passed | Outcome::Skipped(_)), true) => {
                        wrong.push(format!("{client} {case} does not differ at {side:?}, as the table says"));
                    }
                    _ => {}
                }
            }
        }
    }
    wrong
}
