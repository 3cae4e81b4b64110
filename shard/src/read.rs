//! Finishes a long read when its keys are there: filters, sorts and cuts them.

use std::cmp::Ordering;

use kindred_engine::{
    ops::{RangeQuery, RevisionFilter, Sort, SortTarget},
    version::Version,
};

#[must_use]
pub fn passes(filter: &RevisionFilter, kv: &Version) -> bool {
    let (modified, created) = (kv.mod_revision(), kv.create_revision());
    filter.min_mod.is_none_or(|min| modified >= min)
        && filter.max_mod.is_none_or(|max| modified <= max)
        && filter.min_create.is_none_or(|min| created >= min)
        && filter.max_create.is_none_or(|max| created <= max)
}

/// Sorts keys that are in key order; the sort is stable.
fn sort(kvs: &mut [Version], sort: Sort) {
    let compare = |a: &Version, b: &Version| -> Ordering {
        match sort.target {
            SortTarget::Key => a.key().cmp(b.key()),
            SortTarget::Version => a.version().cmp(&b.version()),
            SortTarget::Create => a.create_revision().cmp(&b.create_revision()),
            SortTarget::Mod => a.mod_revision().cmp(&b.mod_revision()),
            SortTarget::Value => a.cmp_values(b),
        }
    };
    if sort.descending {
        kvs.sort_by(|a, b| compare(b, a));
    } else {
        kvs.sort_by(compare);
    }
}

/// How many filtered keys in key order suffice for the answer; all, if they are sorted before they are cut.
#[must_use]
pub fn enough(query: &RangeQuery) -> usize {
    if query.limit == 0 || query.sort.is_some_and(|sort| !sort.late) {
        usize::MAX
    } else {
        query.limit.saturating_add(1)
    }
}

/// Sorts and cuts the filtered keys of a range. Returns them, and whether the limit cut off any.
#[must_use]
pub fn finish(query: &RangeQuery, mut kvs: Vec<Version>) -> (Vec<Version>, bool) {
    kvs.truncate(enough(query));
    if let Some(by) = query.sort {
        sort(&mut kvs, by);
    }
    let more = query.limit > 0 && kvs.len() > query.limit;
    if more {
        kvs.truncate(query.limit);
    }
    (kvs, more)
}
