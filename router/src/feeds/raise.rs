//! Finds one revision that all stores of a feed promise (R5, R8).

use std::time::Duration;

use futures_util::future::try_join_all;
use kindred_partition_config::ids::{Epoch, Revision};
use tonic::Status;

use crate::execute::Deadline;
use crate::execute::raise::raise;
use crate::stores::Stores;
use kindred_router_core::common_revision::Currents;
use kindred_router_core::place::FeedKey;

/// How long the stores have to answer both questions.
const RAISE_MAX: Duration = Duration::from_secs(3);

/// The highest current revision of the feed's stores. When this returns, all of them have promised it.
///
/// # Errors
/// When a store cannot be asked, or does not follow to that revision (R3).
pub async fn snapshot_revision(
    stores: &Stores,
    key: &FeedKey,
    generation: Epoch,
) -> Result<Revision, Status> {
    let deadline = Deadline::within(RAISE_MAX);
    let of_key: Vec<_> = key.stores().collect();
    let one = |at: usize, to| {
        let (store, ranges) = (stores.get(of_key[at]), super::place::wire_ranges(key, at));
        async move { raise(store, ranges, to, generation, deadline).await }
    };
    let unfollowed = || Status::unavailable("a store did not follow to the revision of another");
    common(of_key.len(), one).await?.ok_or_else(unfollowed)
}

/// The highest current revision of so many stores, to which all have been raised; `None` if one did not follow.
///
/// # Errors
/// That of the first store that cannot be asked.
pub async fn common<E, Fut: Future<Output = Result<Revision, E>>>(
    stores: usize,
    raise: impl Fn(usize, Revision) -> Fut,
) -> Result<Option<Revision>, E> {
    let currents = Currents(try_join_all((0..stores).map(|at| raise(at, Revision::ZERO))).await?);
    let raised = try_join_all(currents.below().map(|at| raise(at, currents.highest()))).await?;
    Ok(currents.common(&raised))
}
