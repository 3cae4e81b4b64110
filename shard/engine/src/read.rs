//! Executes a read of a range as etcd does: revision check, filters, order and limit.

use kindred_partition_config::ids::Revision;

use crate::{
    error::EngineError,
    ops::{RangeAnswer, RangeQuery, RevisionFilter, Sort, SortTarget},
    space::Space,
    units::table::View,
    version::Version,
};

/// Refuses a revision above `current` or below `floor`; both bounds are readable.
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

/// Reads at `at` what `view` sees, with `header` as the answer's header. `known` is the count of a page, if remembered.
pub(crate) fn execute(
    space: &Space,
    query: &RangeQuery,
    at: Revision,
    header: Revision,
    view: &View,
    known: Option<u64>,
) -> RangeAnswer {
    let answer = |kvs, more, count| RangeAnswer { header, kvs, more, count, contents: query.contents };
    if query.count_only {
        return answer(Vec::new(), false, space.count(&query.range, at, view));
    }
    let sort = query.sort.filter(|sort| sort.target != SortTarget::Key || sort.descending);
    let bounded = is_bounded(query);
    // One key more than requested tells whether there is more.
    let fetch = if bounded { query.limit.saturating_add(1) } else { 0 };
    let mut kvs = space.collect(&query.range, at, fetch, view);
    let complete = !bounded || kvs.len() <= query.limit;
    let count = || space.count(&query.range, at, view);
    let count = if complete {
        kvs.len() as u64
    } else {
        debug_assert!(known.is_none_or(|known| known == count()), "the count of a page");
        known.unwrap_or_else(count)
    };
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

/// Whether the read can stop at the limit, because neither order nor filter needs the other keys.
fn is_bounded(query: &RangeQuery) -> bool {
    let sort = query.sort.filter(|sort| sort.target != SortTarget::Key || sort.descending);
    query.limit > 0 && sort.is_none_or(|sort| sort.late) && query.filter == RevisionFilter::default()
}

/// Whether the answer is a page of a list in key order.
pub(crate) fn is_page(query: &RangeQuery) -> bool {
    let in_order = |sort: &Sort| sort.target == SortTarget::Key && !sort.descending;
    is_bounded(query) && !query.count_only && query.sort.as_ref().is_none_or(in_order)
}

fn passes(filter: &RevisionFilter, kv: &Version) -> bool {
    filter.max_mod.is_none_or(|max| kv.mod_revision() <= max)
        && filter.min_mod.is_none_or(|min| kv.mod_revision() >= min)
        && filter.max_create.is_none_or(|max| kv.create_revision() <= max)
        && filter.min_create.is_none_or(|min| kv.create_revision() >= min)
}

/// Sorts stably in both directions: equal keys stay in key order. etcd does so for answers of up to a dozen keys;
/// beyond that its order of equal keys is accidental.
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
