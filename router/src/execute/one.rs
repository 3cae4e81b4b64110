//! Requests to one store, which may be one of several stores of a Kind (R8).

use std::sync::Arc;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_router_core::plan::Call;
use kindred_wire::batch::Method;
use kindred_wire::peek;
use kindred_wire::rope::Rope;
use tonic::{Status, Streaming};

use super::fan_out::live::ReadPath;
use super::fan_out::read::at_future;
use super::raise::raise;
use super::{Deadline, Effect, attempt, by_map, call, fenced, over_batches};
use crate::feeds::place::wire;
use crate::stores::Store;
use crate::stores::batch_stream::Op;
use crate::stores::failure::Failure;

/// The destination of a request: the store, the map that chose it, and the revision that the answer should at least
/// have (zero for none).
#[derive(Debug, Clone, Copy)]
pub struct To<'s> {
    pub store: &'s Store,
    /// The store should answer at or above this revision; zero for any.
    pub min_revision: Revision,
    /// The generation of the map; 0 for a map that never changes.
    pub generation: Epoch,
    /// A small request ([`is_small`](kindred_router_core::small::is_small)) may go in a batch.
    pub small: bool,
}

impl To<'_> {
    /// Sends the request and returns the store's answer.
    ///
    /// # Errors
    /// As [`call`].
    pub async fn send(
        self,
        method: Call,
        effect: Effect,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Rope, Status> {
        // A map that never changes takes no keys away from an etcd, so there is no fence to check.
        if !self.store.is_shard() && self.generation > Epoch::NONE {
            return fenced::send(self.store, method, effect, &body, deadline).await.map(Rope::from);
        }
        // A stock etcd counts its own revisions and knows no maps. A put has one key, so its shard knows whether it
        // owns it.
        let (min_revision, generation) = match (self.store.is_shard(), method) {
            (false, _) => (Revision::ZERO, Epoch::NONE),
            (true, Call::Put) => (self.min_revision, Epoch::NONE),
            (true, _) => (self.min_revision, self.generation),
        };
        let small = self.small;
        attempt(self.store, effect, deadline, || async {
            if small && let Some(stream) = self.store.batches() {
                let (request, until) = (body.clone(), deadline.at());
                let op = Op { method: in_batch(method), request, min_revision, generation, pin: 0, until };
                if let Some(answered) = over_batches(self.store, &stream, op).await {
                    return answered.map(Rope::from);
                }
            }
            let request = by_map(deadline.min_revision(body.clone(), min_revision), generation);
            self.store.ask(method, !small, request).await.map_err(Failure::of)
        })
        .await
    }

    /// Opens a `RangeStream` at the store.
    async fn open(self, body: Bytes, deadline: Deadline) -> Result<Opened, Status> {
        if !self.store.is_shard() && self.generation > Epoch::NONE {
            let (chunks, revision) = fenced::open(self.store, &body, deadline).await?;
            return Ok(Opened { chunks, revision: Some(revision) });
        }
        let generation = if self.store.is_shard() { self.generation } else { Epoch::NONE };
        call(self.store, Effect::Read, deadline, || async {
            let request = deadline.min_revision(body.clone(), self.min_revision);
            self.store.range_streams().range_stream(by_map(request, generation)).await
        })
        .await
        .map(|chunks| Opened { chunks, revision: None })
    }
}

/// A `RangeStream` that a store has begun to answer.
#[derive(Debug)]
pub struct Opened {
    pub chunks: Streaming<Bytes>,
    /// The revision to show in the header, if it differs from the one that the store sends.
    pub revision: Option<i64>,
}

fn in_batch(method: Call) -> Method {
    match method {
        Call::Range | Call::RangeStream => Method::Range,
        Call::Put => Method::Put,
        Call::DeleteRange => Method::DeleteRange,
        Call::Txn => Method::Txn,
    }
}

impl ReadPath {
    /// A `Range` on one store, which follows to a revision that another router may have shown: [`at_future`].
    ///
    /// # Errors
    /// As there.
    pub async fn range_of_one(
        self: &Arc<Self>,
        to: To<'_>,
        spread: &[KindPrefix],
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Rope, Status> {
        let ask = || to.send(Call::Range, Effect::Read, body.clone(), deadline);
        self.of_one(to, spread, &body, deadline, ask).await
    }

    /// A `RangeStream` on one store; raises the store as [`ReadPath::range_of_one`] does.
    ///
    /// # Errors
    /// As there.
    pub async fn range_stream_of_one(
        self: &Arc<Self>,
        to: To<'_>,
        spread: &[KindPrefix],
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Opened, Status> {
        self.of_one(to, spread, &body, deadline, || to.open(body.clone(), deadline)).await
    }

    async fn of_one<T, A: Future<Output = Result<T, Status>>>(
        self: &Arc<Self>,
        to: To<'_>,
        spread: &[KindPrefix],
        body: &Bytes,
        deadline: Deadline,
        ask: impl Fn() -> A,
    ) -> Result<T, Status> {
        let wanted = || Some(Revision(peek::RangeRequest::parse(body).ok()?.revision));
        let stores = || self.live(to.generation, deadline);
        let raise = async |kind: KeyRange, wanted| {
            raise(to.store, vec![wire(&kind)], wanted, to.generation, deadline).await.map(drop)
        };
        at_future(stores, spread, wanted, ask, raise).await
    }
}
