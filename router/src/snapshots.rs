//! Snapshots of the whole key space (R5), for backups. A snapshot is one revision T that every shard has reached. What was
//! current at T stays readable there as long as the snapshot is renewed. A stock etcd cannot be raised to T; it is read at a
//! revision of its own, which it keeps only until it compacts.
//!
//! A router keeps no state of a snapshot, so any router can renew or end a snapshot that another one took.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use kindred_database::reading::Interval;
use kindred_database::serve;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::Key;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::shard_v1 as shard;
use kindred_router_core::parts::store_ix;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::peek;
use prost::Message as _;
use tonic::{Code, Status};

use crate::execute::raise::{everything, raise};
use crate::execute::{Deadline, Effect, call};
use crate::routing::Routing;
use crate::stores::{Store, Stores};

/// How long a snapshot is retained if it is not renewed.
pub const RETAINED: Duration = Duration::from_secs(120);
/// The time limit of each round of calls to the stores.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a snapshot is tried. A try fails if its revision is compacted before it is retained, or if a shard does not show it
/// yet because writes below it are not on its disk.
const ATTEMPTS: usize = 40;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// The id of a snapshot at the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotName(pub u64);

#[derive(Debug)]
pub struct Snapshot {
    /// The id by which it is renewed and ended.
    pub name: SnapshotName,
    /// The revision T; zero if there are no shards.
    pub revision: Revision,
    /// The whole key space in key order, with the revision to read each range at.
    pub ranges: Vec<SnapshotRange>,
}

/// A range of keys that is read at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRange {
    pub start: Key,
    /// The first key behind the range; `None` if it is unbounded.
    pub end: Option<Key>,
    /// T, or the revision of the stock etcd that serves the range.
    pub revision: Revision,
    /// The name of that etcd; `None` for shards.
    pub etcd: Option<String>,
}

/// Takes snapshots, renews and ends them.
#[derive(Debug)]
pub struct Snapshots {
    stores: Stores,
    routing: Arc<Routing>,
}

impl Snapshots {
    #[must_use]
    pub fn new(stores: Stores, routing: Arc<Routing>) -> Arc<Self> {
        Arc::new(Self { stores, routing })
    }

    fn shards(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.stores.iter().filter(|store| store.is_shard() && !store.is_removed())
    }

    /// Takes a snapshot of the whole key space.
    ///
    /// # Errors
    /// `Unavailable` naming a store that serves keys and is away.
    pub async fn take(&self) -> Result<Snapshot, Status> {
        let name = SnapshotName(self.stores.pins().next());
        let mut attempts = 1;
        let revision = loop {
            match self.retain_everything(name).await {
                Err(status) if may_pass(&status) && attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(status) => {
                    self.end(name).await;
                    return Err(status);
                }
                Ok(revision) => break revision,
            }
        };
        match self.ranges(revision).await {
            Ok(ranges) => Ok(Snapshot { name, revision, ranges }),
            Err(status) => {
                self.end(name).await;
                Err(status)
            }
        }
    }

    /// Raises every shard to one revision and keeps it there. Shards that serve no keys may be away.
    async fn retain_everything(&self, name: SnapshotName) -> Result<Revision, Status> {
        let routes = self.routing.load_full();
        let serves = |store: &Store| {
            let mut of_any = routes.map().partitions().iter().flat_map(|part| part.placement.stores());
            of_any.any(|placed| store_ix(placed) == store.index)
        };
        let shards: Vec<_> =
            self.shards().filter(|store| store.state().is_up() || serves(store)).cloned().collect();
        let all_to = async |to: Revision| {
            let raised = shards
                .iter()
                .map(|store| raise(store, everything(), to, Epoch::NONE, Deadline::within(LIMIT)));
            try_join_all(raised).await
        };
        let top = all_to(Revision::ZERO).await?.into_iter().max().unwrap_or(Revision::ZERO);
        for (store, current) in shards.iter().zip(all_to(top).await?) {
            // A frozen unit shows less; its keys are read at the store that they move to.
            if current < top {
                tracing::debug!(store = store.name(), %current, %top, "a unit of it is frozen below the snapshot");
            }
        }
        try_join_all(shards.iter().map(|store| retain(store, name, top, RETAINED))).await?;
        Ok(top)
    }

    /// The ranges of the snapshot with their revisions, by the present map.
    async fn ranges(&self, revision: Revision) -> Result<Vec<SnapshotRange>, Status> {
        let mut ranges: Vec<SnapshotRange> = Vec::new();
        for mut range in self.runs() {
            range.revision = revision;
            if let Some(name) = &range.etcd {
                let known =
                    ranges.iter().find(|known| known.etcd.as_ref() == Some(name)).map(|known| known.revision);
                let store = self.stores.iter().find(|store| store.name() == name);
                range.revision = match (known, store) {
                    (Some(revision), _) => revision,
                    (None, Some(store)) => etcd_revision(store).await?,
                    (None, None) => return Err(Status::internal(format!("kindred: no store {name}"))),
                };
            }
            ranges.push(range);
        }
        Ok(ranges)
    }

    /// The longest ranges that one read can cross: those served by shards, and those of each stock etcd. Their
    /// revisions are zero.
    #[must_use]
    pub fn runs(&self) -> Vec<SnapshotRange> {
        let routes = self.routing.load_full();
        let mut runs: Vec<SnapshotRange> = Vec::new();
        for partition in routes.map().partitions() {
            let stores =
                partition.placement.stores().into_iter().map(|store| self.stores.get(store_ix(store)));
            let etcd = { stores }.find(|store| !store.is_shard()).map(|store| store.name().to_owned());
            match runs.last_mut() {
                Some(last) if last.etcd == etcd => last.end = partition.end().cloned(),
                _ => runs.push(SnapshotRange {
                    start: partition.start().clone(),
                    end: partition.end().cloned(),
                    revision: Revision::ZERO,
                    etcd,
                }),
            }
        }
        runs
    }

    /// Renews a snapshot; returns the shards that failed, with reasons. A shard that started after the snapshot was taken, or
    /// that has lost it, cannot renew it; reads of the snapshot fail there.
    pub async fn renew(&self, name: SnapshotName, revision: Revision) -> Vec<String> {
        let kept = self.shards().map(|store| async move {
            let kept = retain(store, name, revision, RETAINED).await;
            kept.err().map(|status| format!("{}: {}", store.name(), status.message()))
        });
        join_all(kept).await.into_iter().flatten().collect()
    }

    /// Ends a snapshot. Shards that cannot be reached drop it when its time is over.
    pub async fn end(&self, name: SnapshotName) {
        let ended = self.shards().filter(|store| store.state().is_up());
        let ended = ended.map(|store| retain(store, name, Revision::ZERO, Duration::ZERO));
        // A lost end is made up for by the snapshot's expiry.
        let _ = join_all(ended).await;
    }
}

/// For the snapshots that etcd's clients ask for.
#[tonic::async_trait]
impl serve::TakesSnapshots for Snapshots {
    async fn take(&self) -> Result<serve::Snapshot, Status> {
        let Snapshot { name, revision, ranges } = Self::take(self).await?;
        let ranges = ranges
            .into_iter()
            .map(|range| (Interval { start: range.start, end: range.end }, range.revision))
            .collect();
        Ok(serve::Snapshot { name: name.0, revision, ranges, retained: RETAINED })
    }

    async fn renew(&self, snapshot: &serve::Snapshot) {
        // Reads fail if it is lost.
        Self::renew(self, SnapshotName(snapshot.name), snapshot.revision).await;
    }

    async fn end(&self, snapshot: &serve::Snapshot) {
        Self::end(self, SnapshotName(snapshot.name)).await;
    }
}

async fn retain(store: &Store, name: SnapshotName, revision: Revision, time: Duration) -> Result<(), Status> {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let request = shard::RetainRequest { pin: name.0, revision: revision.get(), millis };
    let deadline = Deadline::within(LIMIT);
    let kept = call(store, Effect::Read, deadline, || async {
        store.shard().retain(deadline.request(request)).await
    });
    match kept.await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::Unimplemented => Err(Status::unimplemented(format!(
            "kindred: store {} is of a version that keeps no revision for a backup: update it",
            store.name()
        ))),
        Err(status) => Err(status),
    }
}

pub(crate) async fn etcd_revision(store: &Store) -> Result<Revision, Status> {
    let request = pb::RangeRequest { key: Bytes::from_static(&[0]), count_only: true, ..Default::default() };
    let body = Bytes::from(request.encode_to_vec());
    let deadline = Deadline::within(LIMIT);
    let answer = call(store, Effect::Read, deadline, || async {
        store.kv().range(deadline.request(body.clone())).await
    });
    Ok(Revision(peek::header_revision(&answer.await?).unwrap_or_default()))
}

fn may_pass(status: &Status) -> bool {
    matches!(grpc::etcd_error(status), Some(EtcdError::Compacted | EtcdError::FutureRevision))
}
