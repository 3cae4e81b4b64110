//! One read of a range: revision check, filters, order, limit, as etcd does them.

use kindred_partition_config::ids::Revision;

use crate::{
    error::EngineError,
    ops::{RangeAnswer, RangeQuery, RevisionFilter, Sort, SortTarget},
    space::Space,
    units::table::View,
    version::Version,
};

/// Above every revision: what the apply loop reads, its own writes included.
pub(crate) const LATEST: Revision = Revision(i64::MAX);

/// Whether a revision that a request names can be read. `floor` itself can.
pub(crate) fn check_revision(
    asked: Option<Revision>,
    floor: Revision,
    current: Revision,
) -> Result<(), EngineError> {
    match asked {
        Some(asked) if asked > current => Err(EngineError::Future { current }),
        Some(asked) if asked < floor => Err(EngineError::Compacted { floor }),
        _ => Ok(()),
    }
}

/// Reads at `at` what a view sees; the answer's header is `header`.
pub(crate) fn execute(
    space: &Space,
    query: &RangeQuery,
    at: Revision,
    header: Revision,
    view: &View,
) -> RangeAnswer {
    let answer = |kvs, more, count| RangeAnswer { header, kvs, more, count, contents: query.contents };
    if query.count_only {
        return answer(Vec::new(), false, space.count(&query.range, at, view));
    }
    let sort = query.sort.filter(|sort| sort.target != SortTarget::Key || sort.descending);
    let late = sort.is_none_or(|sort| sort.late);
    let bounded = query.limit > 0 && late && query.filter == RevisionFilter::default();
    // One more than asked for tells whether there is more.
    let fetch = if bounded { query.limit.saturating_add(1) } else { 0 };
    let mut kvs = space.collect(&query.range, at, fetch, view);
    let complete = !bounded || kvs.len() <= query.limit;
    let count = if complete { kvs.len() as u64 } else { space.count(&query.range, at, view) };
    kvs.retain(|kv| passes(&query.filter, kv));
    if let Some(sort) = sort {
        order(&mut kvs, sort);
    }
    let more = query.limit > 0 && kvs.len() > query.limit;
    if more {
        kvs.truncate(query.limit);
    }
    answer(kvs, more, count)
}

fn passes(filter: &RevisionFilter, kv: &Version) -> bool {
    filter.max_mod.is_none_or(|max| kv.mod_revision() <= max)
        && filter.min_mod.is_none_or(|min| kv.mod_revision() >= min)
        && filter.max_create.is_none_or(|max| kv.create_revision() <= max)
        && filter.min_create.is_none_or(|min| kv.create_revision() >= min)
}

/// Stable in both directions: equal ones stay in key order, as in etcd for answers of up to a dozen keys (beyond that
/// etcd's order of equal ones is accidental).
fn order(kvs: &mut [Version], sort: Sort) {
    kvs.sort_by(|a, b| {
        let (a, b) = if sort.descending { (b, a) } else { (a, b) };
        match sort.target {
            SortTarget::Key => a.key().cmp(b.key()),
            SortTarget::Version => a.version().cmp(&b.version()),
            SortTarget::Create => a.create_revision().cmp(&b.create_revision()),
            SortTarget::Mod => a.mod_revision().cmp(&b.mod_revision()),
            SortTarget::Value => a.cmp_values(b),
        }
    });
}
