//! `KV/Compact` on every shard.
//!
//! A stock etcd counts its own revisions, so a compaction at a shard's revision means nothing there: an etcd beside
//! shards compacts itself (`--auto-compaction-mode`). If the default store is a stock etcd, the client's revision is
//! that etcd's. The compaction goes there, and shards are compacted at the revisions that they had when the etcd was
//! there (`meta/revision_pairs`).

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::compaction::{Owed, Refusal, Took, combine, decide};
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::peek;
use kindred_wire::refusal::KindredError;
use tonic::{Code, Status};

use super::raise::{everything, raise};
use super::{Deadline, Effect, call};
use crate::app::App;
use crate::stores::Store;

/// What a compaction uses of a router and its shards.
pub trait Compacting {
    /// All shards.
    fn shards(&self) -> Vec<StoreIx>;
    /// The store's name, for people.
    fn name(&self, store: StoreIx) -> String;
    /// The store whose answer the client gets, if it is there.
    fn default_store(&self) -> StoreIx;
    /// A store's current revision, raised to `to`.
    fn raise(&self, store: StoreIx, to: Revision) -> impl Future<Output = Result<Revision, Status>>;
    /// Compacts a store that has reached the revision.
    fn compact(&self, store: StoreIx, at: Revision) -> impl Future<Output = Result<Bytes, Status>>;
    /// The error when no shard is there.
    fn nobody(&self) -> Status;
    /// What stores owe.
    fn owed(&self) -> impl DerefMut<Target = Owed>;
    /// Notes that a client compacted this: no watch begins below it.
    fn compacted(&self, at: Revision);
}

/// Compacts all shards at a revision; the answer is the default store's, or another shard's if that is away.
///
/// # Errors
/// etcd's own errors, as the reference store gives them.
pub async fn compact_all(stores: &impl Compacting, at: Revision) -> Result<Bytes, Status> {
    let currents = stores.shards().into_iter();
    let currents = join_all(
        currents.map(|store| async move { (store, stores.raise(store, Revision::ZERO).await.ok()) }),
    );
    let steps = decide(at, &currents.await, stores.default_store()).map_err(|refusal| match refusal {
        Refusal::Future => grpc::status(EtcdError::FutureRevision),
        Refusal::NoStore => stores.nobody(),
    })?;
    for store in &steps.later {
        tracing::warn!(store = stores.name(*store), revision = %at, "away: will be compacted when it is back");
    }
    let took = join_all(
        steps.now.iter().map(|store| async move { (*store, compact_one_of(stores, *store, at).await) }),
    );
    let (answer, owing) = combine(steps.reference, took.await);
    {
        let mut owed = stores.owed();
        for store in steps.later.into_iter().chain(owing) {
            owed.note(store, at);
        }
    }
    if answer.is_ok() {
        stores.compacted(at);
    }
    answer
}

/// Compacts a store that owes a compaction.
///
/// # Errors
/// When it still owes it.
pub async fn settle(stores: &impl Compacting, store: StoreIx, at: Revision) -> Result<(), Status> {
    match compact_one_of(stores, store, at).await {
        Took::Done(_) | Took::Already(_) => {
            stores.owed().settle(store, at);
            Ok(())
        }
        Took::Refused(status) | Took::Lost(status) => Err(status),
    }
}

async fn compact_one_of(stores: &impl Compacting, store: StoreIx, at: Revision) -> Took<Bytes, Status> {
    let done = async {
        stores.raise(store, at).await?;
        stores.compact(store, at).await
    };
    match done.await {
        Ok(answer) => Took::Done(answer),
        Err(status) if grpc::etcd_error(&status) == Some(EtcdError::Compacted) => Took::Already(status),
        Err(status) if status.code() == Code::Unavailable => Took::Lost(status),
        Err(status) => Took::Refused(status),
    }
}

/// The stores of a router, for a compaction with this deadline.
struct Calls<'a> {
    app: &'a App,
    /// As the client sent it.
    request: Bytes,
    deadline: Deadline,
}

impl Compacting for Calls<'_> {
    fn shards(&self) -> Vec<StoreIx> {
        self.app.stores.iter().filter(|store| store.is_shard()).map(|store| store.index).collect()
    }

    fn name(&self, store: StoreIx) -> String {
        self.app.stores.get(store).name().to_owned()
    }

    fn default_store(&self) -> StoreIx {
        self.app.stores.default_store()
    }

    async fn raise(&self, store: StoreIx, to: Revision) -> Result<Revision, Status> {
        raise(self.app.stores.get(store), everything(), to, Epoch::NONE, self.deadline).await
    }

    async fn compact(&self, store: StoreIx, _: Revision) -> Result<Bytes, Status> {
        compact_one(self.app.stores.get(store), self.request.clone(), self.deadline).await
    }

    fn nobody(&self) -> Status {
        let default = self.app.stores.get(self.default_store());
        default.unavailable(&default.state().reason())
    }

    fn owed(&self) -> impl DerefMut<Target = Owed> {
        self.app.lock_owed()
    }

    fn compacted(&self, at: Revision) {
        self.app.compacted.fetch_max(at.get(), Ordering::AcqRel);
    }
}

impl App {
    /// Compacts all shards ([`compact_all`]), or only the default store if that is a stock etcd.
    ///
    /// # Errors
    /// etcd's own errors, as the reference store gives them.
    pub async fn compact(&self, request: Bytes, deadline: Deadline) -> Result<Bytes, Status> {
        let parsed = peek::CompactionRequest::parse(&request)
            .map_err(|error| grpc::refusal(&KindredError::Malformed { reason: error.to_string() }))?;
        let default = self.stores.get(self.stores.default_store());
        if !default.is_shard() || parsed.revision <= 0 {
            let compacted = compact_one(default, request, deadline).await;
            if !default.is_shard() && compacted.is_ok() {
                self.compact_beside(default.name(), parsed.revision);
            }
            return compacted;
        }
        compact_all(&Calls { app: self, request, deadline }, Revision(parsed.revision)).await
    }

    /// Raises every shard to a revision that a client has named.
    ///
    /// # Errors
    /// etcd's future revision if it is above all shards' current ones, and then no shard is raised; `Unavailable`
    /// naming a shard that is away.
    pub async fn raise_shards(&self, revision: Revision, deadline: Deadline) -> Result<(), Status> {
        let shards: Vec<&Arc<Store>> = self.stores.iter().filter(|store| store.is_shard()).collect();
        let to = async |revision| {
            let raised =
                shards.iter().map(|store| raise(store, everything(), revision, Epoch::NONE, deadline));
            try_join_all(raised).await
        };
        let top = to(Revision::ZERO).await?.into_iter().max();
        if top.is_some_and(|top| revision > top) {
            return Err(grpc::status(EtcdError::FutureRevision));
        }
        to(revision).await.map(drop)
    }

    fn lock_owed(&self) -> std::sync::MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records that every shard owes this compaction, as far as this router knows.
    pub fn owe_all(&self, revision: Revision) {
        let mut owed = self.lock_owed();
        for store in self.stores.iter().filter(|store| store.is_shard()) {
            owed.note(store.index, revision);
        }
    }

    /// Runs for ever: compacts stores that are back and owe a compaction.
    pub async fn settle_compactions(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for store in self.stores.up() {
                let Some(revision) = self.lock_owed().of(store.index) else { continue };
                let request = kindred_proto::etcdserverpb::CompactionRequest {
                    revision: revision.get(),
                    physical: false,
                };
                let request = Bytes::from(prost::Message::encode_to_vec(&request));
                let deadline = Deadline::within(Duration::from_secs(10));
                let calls = Calls { app: &self, request, deadline };
                if let Err(status) = settle(&calls, store.index, revision).await {
                    tracing::warn!(store = store.name(), %revision, error = status.message(), "still owes a compaction");
                }
            }
        }
    }
}

async fn compact_one(store: &Store, request: Bytes, deadline: Deadline) -> Result<Bytes, Status> {
    call(store, Effect::Write, deadline, || async {
        store.kv().compact(deadline.request(request.clone())).await
    })
    .await
}
