//! What reads use of a router, and the real stores behind [`Shards`] for one of them.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::kind::KindPrefix;
use kindred_proto::shard_v1 as shard;
use kindred_router_core::header_ids::HeaderIds;
use kindred_router_core::parsed::Parsed;
use kindred_router_core::plan::{Call, FanOut};
use kindred_router_core::routes::Routes;
use kindred_router_core::small::is_small;
use kindred_router_core::store::StoreIx;
use kindred_transport::Drain;
use kindred_wire::batch::Method;
use kindred_wire::rope::Rope;
use tonic::Status;

use super::ask::Source;
use super::read::{Reading, range_over};
use super::snapshot::{Raised, Shards};
use crate::execute::raise::raise_since;
use crate::execute::{Deadline, Effect, attempt, by_map, order, over_batches};
use crate::routing::Routing;
use crate::stores::Stores;
use crate::stores::batch_stream::Op;
use crate::stores::failure::Failure;

/// What reads use of a router.
#[derive(Debug)]
pub struct ReadPath {
    stores: Stores,
    pub(super) routing: Arc<Routing>,
    /// In the headers of streams.
    pub(super) ids: HeaderIds,
    /// Waits for streams under way.
    pub(super) drain: Drain,
}

impl ReadPath {
    #[must_use]
    pub fn new(stores: Stores, routing: Arc<Routing>, ids: HeaderIds, drain: Drain) -> Arc<Self> {
        Arc::new(Self { stores, routing, ids, drain })
    }

    /// The stores for one request that was planned by the map of this generation.
    pub(in crate::execute) fn live(self: &Arc<Self>, generation: Epoch, deadline: Deadline) -> Live {
        let (pin, pinned) = (self.stores.pins().next(), Mutex::default());
        Live { path: self.clone(), deadline, generation, pin, pinned }
    }

    /// As [`range_over`], by the map of this generation.
    ///
    /// # Errors
    /// As [`range_over`].
    pub async fn range_over(
        self: &Arc<Self>,
        fan_out: &FanOut,
        generation: Epoch,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Rope, Status> {
        range_over(&self.live(generation, deadline), fan_out, body).await
    }
}

/// The stores of a router, for one request.
#[derive(Debug)]
pub struct Live {
    path: Arc<ReadPath>,
    deadline: Deadline,
    generation: Epoch,
    /// The id of this request's pins.
    pin: u64,
    /// The stores that may hold a pin of this request.
    pinned: Mutex<Vec<StoreIx>>,
}

impl Live {
    fn pinning(&self, store: StoreIx) {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if !pinned.contains(&store) {
            pinned.push(store);
        }
    }
}

/// Releases the pins however the request ends, so that they do not delay a compaction (R5).
impl Drop for Live {
    fn drop(&mut self) {
        let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        pinned.iter().for_each(|store| self.path.stores.get(*store).releases().push(self.pin));
    }
}

impl Shards for Live {
    async fn range(
        &self,
        store: StoreIx,
        request: Bytes,
        min_revision: Revision,
        pin: bool,
    ) -> Result<Rope, Status> {
        if pin {
            self.pinning(store);
        }
        let store = self.path.stores.get(store);
        let deadline = self.deadline.renewed(Effect::Read);
        let pin = if pin { self.pin } else { 0 };
        // A page may be long and would delay other operations in a batch, so it gets a call of its own.
        let small = is_small(&Parsed::new(Call::Range, &request));
        attempt(store, Effect::Read, deadline, || async {
            if small && let Some(stream) = store.snapshot_batches() {
                let (request, generation, until) = (request.clone(), self.generation, deadline.at());
                let op = Op { method: Method::Range, request, min_revision, generation, pin, until };
                if let Some(answered) = over_batches(store, &stream, op).await {
                    return answered.map(Rope::from);
                }
            }
            let request = deadline.pinned(request.clone(), min_revision, pin);
            store.ask(Call::Range, !small, by_map(request, self.generation)).await.map_err(Failure::of)
        })
        .await
    }

    async fn raise(&self, source: &Source, to: Revision, since: Option<Revision>) -> Result<Raised, Status> {
        // Without data to compare with, nothing will be read again, so no pin is needed.
        let pin = since.is_some();
        if pin {
            self.pinning(source.store);
        }
        let store = self.path.stores.get(source.store);
        let (key, range_end) = source.range.to_wire();
        let request = shard::RaiseSinceRequest {
            ranges: vec![shard::KeyRange { key, range_end }],
            to: to.get(),
            since: since.map_or(0, Revision::get),
            pin: if pin { self.pin } else { 0 },
            generation: self.generation.0,
        };
        let raised = raise_since(store, request, self.deadline.renewed(Effect::Read)).await?;
        Ok(Raised { current: Revision(raised.current), changed: raised.changed })
    }

    fn cannot_follow(&self, store: StoreIx, to: Revision) -> Status {
        let reason = format!("it refuses to follow to revision {to}: is its clock behind?");
        self.path.stores.get(store).unavailable(&reason)
    }
}

impl Reading for Live {
    fn routes(&self) -> Arc<Routes> {
        self.path.routing.load_full()
    }

    fn min_revision(&self, spread: &[KindPrefix]) -> Revision {
        self.path.routing.min_revision(spread)
    }

    async fn show(&self, read: &FanOut, revision: Revision) {
        self.path.routing.show(&read.spread, revision);
        order::keep_of_read(&*self.path.routing, read, revision).await;
    }
}
