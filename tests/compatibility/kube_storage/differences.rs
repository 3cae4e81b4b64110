//! The cases that pass at etcd and not at kindred, each with the reason.

use kindred_tests::layouts::{Layout, Place};

use super::{Results, run::is_part};
use crate::compatibility::clients::run::Outcome;

/// Cases that differ for the same reason.
#[derive(Debug)]
pub struct Difference {
    pub reason: &'static str,
    pub at: &'static [Layout],
    /// A package, and its cases. The name of a test stands for all its parts, too.
    pub cases: &'static [(&'static str, &'static [&'static str])],
}

const SHARDS: &[Layout] = &[Layout::Whole, Layout::Ranges, Layout::Ring, Layout::Together, Layout::Standbys];
const ROUTERS: &[Layout] =
    &[Layout::Whole, Layout::Ranges, Layout::Ring, Layout::Stock, Layout::Together, Layout::Standbys];
const STOCK: &[Layout] = &[Layout::Stock];
const SHARD: &[Layout] = &[Layout::Dense];

pub const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "The case expects revisions to count from 1 and by 1. Those of a router are times.",
        at: SHARDS,
        cases: &[
            (
                "etcd3",
                &[
                    "TestList/rangeStream=false/test_List_with_continue,_resource_version_after_writes",
                    "TestList/rangeStream=false/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
                    "TestList/rangeStream=false/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
                    "TestList/rangeStream=false/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
                    "TestList/rangeStream=false/test_List_with_limit",
                    "TestList/rangeStream=false/test_List_with_limit,_resource_version_after_writes,_match=Exact",
                    "TestList/rangeStream=false/test_List_with_resource_version_after_writes,_match=Exact",
                    "TestList/rangeStream=false/test_consistent_List",
                    "TestList/rangeStream=true/test_List_with_continue,_resource_version_after_writes",
                    "TestList/rangeStream=true/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
                    "TestList/rangeStream=true/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
                    "TestList/rangeStream=true/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
                    "TestList/rangeStream=true/test_List_with_limit",
                    "TestList/rangeStream=true/test_List_with_limit,_resource_version_after_writes,_match=Exact",
                    "TestList/rangeStream=true/test_List_with_resource_version_after_writes,_match=Exact",
                    "TestList/rangeStream=true/test_consistent_List",
                    "TestTooLargeResourceVersionErrorForWatchList",
                ],
            ),
            (
                "cacher",
                &[
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue,_resource_version_after_writes",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_limit",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_limit,_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_fifth_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_first_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_fourth_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_second_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_seventh_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_six_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_of_third_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_consistent_List",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue,_resource_version_after_writes",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_limit",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_limit,_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=true/List/test_consistent_List",
                ],
            ),
            ("registry", &["TestDryRunDeleteReturnsObject", "TestDryRunUpdateReturnsObject"]),
        ],
    },
    Difference {
        reason: "The case expects a write of another key to raise the revision of the pods. Each Kind has its own.",
        at: ROUTERS,
        cases: &[
            (
                "etcd3",
                &[
                    "TestCompact",
                    "TestCompactConflict",
                    "TestConsistentList/rangeStream=false/LIST_without_RV_returns_consistent_RV",
                    "TestConsistentList/rangeStream=false/List_with_negative_continue_RV_returns_consistent_RV",
                    "TestConsistentList/rangeStream=false/Non-consistent_list_before_consistent_read",
                    "TestConsistentList/rangeStream=false/Non-consistent_request_after_consistent_read",
                    "TestConsistentList/rangeStream=true/LIST_without_RV_returns_consistent_RV",
                    "TestConsistentList/rangeStream=true/List_with_negative_continue_RV_returns_consistent_RV",
                    "TestConsistentList/rangeStream=true/Non-consistent_list_before_consistent_read",
                    "TestConsistentList/rangeStream=true/Non-consistent_request_after_consistent_read",
                    "TestGetCurrentResourceVersion",
                ],
            ),
            (
                "cacher",
                &[
                    "TestLists/ListFromCacheSnapshot=false/ConsistentList/LIST_without_RV_returns_consistent_RV",
                    "TestLists/ListFromCacheSnapshot=false/ConsistentList/List_with_negative_continue_RV_returns_consistent_RV",
                    "TestLists/ListFromCacheSnapshot=true/ConsistentList/LIST_without_RV_returns_consistent_RV",
                    "TestLists/ListFromCacheSnapshot=true/ConsistentList/List_with_negative_continue_RV_returns_consistent_RV",
                ],
            ),
        ],
    },
    Difference {
        reason: "The case expects a write of another key to raise the revision of the pods. Each Kind has its own.",
        at: STOCK,
        cases: &[
            ("etcd3", &["TestWatch/ProgressNotify"]),
            (
                "cacher",
                &[
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue,_resource_version_after_writes",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_limit",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_limit,_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_consistent_List",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue,_resource_version_after_writes",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_limit",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_limit,_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_resource_version_after_writes,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=true/List/test_consistent_List",
                ],
            ),
        ],
    },
    Difference {
        reason: "The case watches from revision 1, which lies below the beginning of every store of a router, and so is compacted.",
        at: SHARDS,
        cases: &[
            (
                "etcd3",
                &[
                    "TestWatch/RangeStream=false/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=false/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=false/WatchSemanticsWithConcurrentDecode/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=false/WatchSemanticsWithConcurrentDecode/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=true/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=true/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=true/WatchSemanticsWithConcurrentDecode/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
                    "TestWatch/RangeStream=true/WatchSemanticsWithConcurrentDecode/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
                ],
            ),
            (
                "cacher",
                &[
                    "TestWatch/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
                    "TestWatch/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
                ],
            ),
        ],
    },
    Difference {
        reason: "A compaction is at a revision of the default store. The case's is one of a stock etcd, which counts writes, and lies long before all times.",
        at: STOCK,
        cases: &[
            (
                "etcd3",
                &[
                    "TestCompactRevision",
                    "TestList/rangeStream=false",
                    "TestList/rangeStream=true",
                    "TestListInconsistentContinuation",
                    "TestWatch/WatchFromZero",
                    "TestWatchChanSyncStreamCompactionError",
                ],
            ),
            (
                "cacher",
                &[
                    "TestCompactRevision",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_on_existing_key_with_resource_version_set_before_first_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_continue,_resource_version_before_first_write",
                    "TestLists/ListFromCacheSnapshot=false/List/test_List_with_resource_version_set_before_first_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_on_existing_key_with_resource_version_set_before_first_write,_match=Exact",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_continue,_resource_version_before_first_write",
                    "TestLists/ListFromCacheSnapshot=true/List/test_List_with_resource_version_set_before_first_write,_match=Exact",
                ],
            ),
        ],
    },
    Difference {
        reason: "A watch that begins at the revision of a compaction gets the former values, too. etcd has dropped them, which the case expects.",
        at: SHARD,
        cases: &[("etcd3", &["TestWatch/WatchFromZero"])],
    },
];

impl Difference {
    /// Whether it is about a case at a place.
    fn has(&self, package: &str, case: &str, place: Place) -> bool {
        let listed = |name: &str| name == case || is_part(case, name);
        self.at.contains(&place.layout) && self.of(package).any(listed)
    }

    fn of(&self, package: &str) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(move |(name, _)| *name == package).flat_map(|(_, cases)| *cases).copied()
    }
}

/// Whether a case is to fail at a place.
pub fn is_known(package: &str, case: &str, place: Place) -> bool {
    DIFFERENCES.iter().any(|difference| difference.has(package, case, place))
}

/// What is not as this table says, one line for each case.
pub fn unexpected(results: &Results) -> Vec<String> {
    let mut wrong = Vec::new();
    for (package, places) in results {
        let Some(at_etcd) = places.get(&Place::ETCD) else { continue };
        for (place, cases) in places {
            let known = |case: &str| is_known(package, case, *place);
            for (case, outcome) in &cases.outcomes {
                match outcome {
                    Outcome::Failed(said) if !known(case) => {
                        wrong.push(format!("{package} {case} fails at {place}: {said}"));
                    }
                    Outcome::Passed if known(case) => {
                        wrong.push(format!("{package} {case} does not differ at {place}, as the table says"));
                    }
                    Outcome::Skipped(why) => {
                        wrong.push(format!("{package} {case} skips itself at {place}: {why}"));
                    }
                    _ => {}
                }
            }
            for difference in DIFFERENCES {
                let here = difference.of(package).filter(|name| difference.has(package, name, *place));
                let runs = |name: &str| cases.outcomes.keys().any(|case| case == name || is_part(case, name));
                for name in here.filter(|name| !runs(name)) {
                    wrong.push(format!("{package} {name}, which is in the table, does not run at {place}"));
                }
            }
            // A part does not run when what it is a part of fails before.
            for case in at_etcd.outcomes.keys().filter(|case| !cases.outcomes.contains_key(*case)) {
                if !cases.outcomes.keys().any(|whole| is_part(case, whole)) {
                    wrong.push(format!("{package} {case} does not run at {place}"));
                }
            }
        }
    }
    wrong
}
