//! Real shards, as a read over several of them needs them.

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::shard_v1 as shard;
use kindred_router_core::store::StoreIx;
use tonic::Status;

use super::ask::{Source, on_wire};
use super::cut::{Raised, Shards};
use crate::app::App;
use crate::execute::{Deadline, Effect, call};
use crate::stores::Stores;

/// The stores of a router, for one request.
#[derive(Debug)]
pub struct Live {
    stores: Stores,
    deadline: Deadline,
    generation: u64,
}

impl App {
    /// The stores, for one request that was planned by the map of this generation.
    pub(super) fn live(&self, generation: u64, deadline: Deadline) -> Live {
        Live { stores: self.stores.clone(), deadline, generation }
    }
}

impl Shards for Live {
    async fn range(&self, store: StoreIx, request: Bytes, at_least: Revision) -> Result<Bytes, Status> {
        let store = self.stores.get(store);
        let deadline = self.deadline.renewed(Effect::Read);
        call(store, Effect::Read, deadline, || async {
            store.kv().range(deadline.pinned(request.clone(), at_least, self.generation)).await
        })
        .await
    }

    async fn raise(&self, source: &Source, to: Revision, since: Option<Revision>) -> Result<Raised, Status> {
        let store = self.stores.get(source.store);
        let (key, range_end) = on_wire(&source.range);
        let request = shard::RaiseSinceRequest {
            ranges: vec![shard::KeyRange { key, range_end }],
            to: to.get(),
            since: since.map_or(0, Revision::get),
            pin: true,
            generation: self.generation,
        };
        let deadline = self.deadline.renewed(Effect::Read);
        let raised = call(store, Effect::Read, deadline, || async {
            store.shard().raise_since(deadline.request(request.clone())).await
        })
        .await?;
        Ok(Raised { current: Revision(raised.current), changed: raised.changed })
    }

    fn cannot_follow(&self, store: StoreIx, to: Revision) -> Status {
        let reason = format!("it refuses to follow to revision {to}: is its clock behind?");
        self.stores.get(store).unavailable(&reason)
    }
}
