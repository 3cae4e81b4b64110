//! Snapshots of a shard that serves clients itself: everything at one revision, which the shard retains while it is read.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use kindred_database::reading::Interval;
use kindred_database::serve::{Sender, Snapshot, TakesSnapshots};
use kindred_engine::engine::PinId;
use kindred_partition_config::ids::Revision;
use tonic::{Status, service::Routes};

use super::Member;
use crate::{
    apply_loop::call,
    etcd_status::{KvError, status},
};

/// The time until a snapshot that is not renewed ends.
const RETAINED: Duration = Duration::from_secs(120);
/// How often a snapshot is tried, as its revision may be compacted before it is retained.
const ATTEMPTS: usize = 40;

struct OfMember {
    member: Member,
    names: AtomicU64,
}

/// Sends snapshots of a member, whose KV and Lease these are.
#[must_use]
pub fn sender(member: &Member, services: Routes) -> Sender<Routes> {
    Sender::new(services, Arc::new(OfMember { member: member.clone(), names: AtomicU64::new(1) }))
}

impl OfMember {
    async fn retain(&self, name: u64, at: Revision, time: Duration) -> Result<(), KvError> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let retain = call::Retain { at, name: PinId(name), millis };
        self.member.handle.call_visible(retain).await?
    }
}

#[tonic::async_trait]
impl TakesSnapshots for OfMember {
    async fn take(&self) -> Result<Snapshot, Status> {
        let name = self.names.fetch_add(1, Ordering::Relaxed);
        let mut attempts = 1;
        loop {
            let revision = self.member.handle.current().await?;
            match self.retain(name, revision, RETAINED).await {
                Ok(()) => {
                    let ranges = vec![(Interval::everything(), revision)];
                    return Ok(Snapshot { name, revision, ranges, retained: RETAINED });
                }
                Err(error) if attempts == ATTEMPTS => return Err(status(&error)),
                Err(_) => attempts += 1,
            }
        }
    }

    async fn renew(&self, snapshot: &Snapshot) {
        // Reads fail if it is lost.
        let _ = self.retain(snapshot.name, snapshot.revision, snapshot.retained).await;
    }

    async fn end(&self, snapshot: &Snapshot) {
        // It ends by itself, later.
        let _ = self.retain(snapshot.name, Revision::ZERO, Duration::ZERO).await;
    }
}
