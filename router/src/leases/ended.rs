//! Completes ended leases: follows each shard's list of the leases that expired or were revoked and still have keys at
//! other stores.
//!
//! The list is durable at the home, and each stream repeats it from the beginning, so a router keeps nothing. When a
//! store cannot be reached, the stream is opened again a little later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kindred_partition_config::ids::LeaseId;
use kindred_proto::shard_v1::LeaseEndedRequest;
use tonic::Status;

use super::LeaseRouter;
use crate::stores::Store;

/// How many leases are ended at a time, per home.
const AT_ONCE: usize = 32;
/// The pause after a store could not be reached or the stream broke.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Follows the list of one shard, for ever.
pub async fn follow(leases: Arc<LeaseRouter>, home: Arc<Store>) {
    loop {
        home.state().wait_up().await;
        if let Err(status) = follow_once(&leases, &home).await {
            tracing::debug!(store = home.name(), error = status.message(), "stream of ended leases broke");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Follows the list until the stream ends or a lease could not be finished.
async fn follow_once(leases: &LeaseRouter, home: &Arc<Store>) -> Result<(), Status> {
    let ended = home.shard().lease_ended(LeaseEndedRequest {}).await?.into_inner();
    let finished = ended.map(|lease| async {
        let mut lease = lease?;
        // Where all keys are, the client may have renewed the lease without kindred. That etcd ends it by its own time, as
        // it ends any lease.
        if let Some(only) = leases.only_etcd().and_then(|etcd| etcd.slot()) {
            lease.attached_slots.retain(|slot| *slot != u32::from(only.get()));
        }
        Ok::<_, Status>(leases.finish(LeaseId(lease.id), home, &lease.attached_slots).await)
    });
    let mut finished = std::pin::pin!(finished.buffer_unordered(AT_ONCE));
    while let Some(result) = finished.next().await {
        if !result? {
            return Ok(());
        }
    }
    Ok(())
}
