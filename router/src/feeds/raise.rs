//! Finds one revision that all stores of a feed promise (R5, R8).

use std::time::Duration;

use futures_util::future::try_join_all;
use kindred_partition_config::ids::Revision;
use tonic::Status;

use crate::execute::Deadline;
use crate::execute::compact::raise;
use crate::stores::Stores;
use kindred_router_core::place::FeedKey;

/// How long the stores have to answer both questions.
const RAISE_MAX: Duration = Duration::from_secs(3);

/// The highest current revision of the feed's stores. When this returns, all of them have promised it.
///
/// # Errors
/// When a store cannot be asked, or does not follow to that revision (R3).
pub async fn snapshot_revision(stores: &Stores, key: &FeedKey, generation: u64) -> Result<Revision, Status> {
    let deadline = Deadline::within(RAISE_MAX);
    let one = |(at, store), to| async move {
        raise(stores.get(store), super::place::wire_ranges(key, at), to, generation, deadline).await
    };
    let currents = try_join_all(key.stores().enumerate().map(|part| one(part, Revision::ZERO))).await?;
    let revision = currents.iter().copied().max().unwrap_or(Revision::ZERO);
    let below = key.stores().enumerate().zip(&currents).filter(|(_, current)| **current < revision);
    let raised = try_join_all(below.map(|(part, _)| one(part, revision))).await?;
    // A store that cannot follow answers with the revision that it reached; then nothing may be shown there.
    if raised.iter().any(|current| *current < revision) {
        return Err(Status::unavailable("a store did not follow to the revision of another"));
    }
    Ok(revision)
}
