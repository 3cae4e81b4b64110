//! `KV/Compact` on every shard.
//!
//! A stock etcd counts its own revisions, so a compaction at a shard's revision means nothing there: an etcd beside
//! shards compacts itself (`--auto-compaction-mode`). If the default store is a stock etcd, the client's revision is
//! that etcd's. The compaction goes there, and shards are compacted at the revisions that they had when the etcd was
//! there (`meta/revision_pairs`).

use std::ops::DerefMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::compaction::{Owed, Refusal, Took, combine, decide};
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::peek;
use kindred_wire::refusal::KindredError;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::raise::{everything, raise};
use super::{Deadline, Effect, call};
use crate::meta::revision_pairs::Observed;
use crate::stores::{Store, Stores};

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
    compactor: &'a Compactor,
    /// As the client sent it.
    request: Bytes,
    deadline: Deadline,
}

impl Compacting for Calls<'_> {
    fn shards(&self) -> Vec<StoreIx> {
        self.compactor.stores.iter().filter(|store| store.is_shard()).map(|store| store.index).collect()
    }

    fn name(&self, store: StoreIx) -> String {
        self.compactor.stores.get(store).name().to_owned()
    }

    fn default_store(&self) -> StoreIx {
        self.compactor.stores.default_store()
    }

    async fn raise(&self, store: StoreIx, to: Revision) -> Result<Revision, Status> {
        raise(self.compactor.stores.get(store), everything(), to, Epoch::NONE, self.deadline).await
    }

    async fn compact(&self, store: StoreIx, _: Revision) -> Result<Bytes, Status> {
        compact_one(self.compactor.stores.get(store), self.request.clone(), self.deadline).await
    }

    fn nobody(&self) -> Status {
        let default = self.compactor.stores.get(self.default_store());
        default.unavailable(&default.state().reason())
    }

    fn owed(&self) -> impl DerefMut<Target = Owed> {
        self.compactor.lock_owed()
    }

    fn compacted(&self, at: Revision) {
        self.compactor.note_compacted(at);
    }
}

/// The compactions of clients, and what stores missed of them.
#[derive(Debug)]
pub struct Compactor {
    stores: Stores,
    /// Compactions that stores missed while they were away. Never locked across an await.
    owed: Mutex<Owed>,
    /// The highest revision that a client compacted through this router. Watches must not begin below it, although a
    /// feed may still hold older events.
    compacted: watch::Sender<Revision>,
    /// What the revisions of a default store that is a stock etcd mean to the shards.
    pub observed: Arc<Observed>,
}

impl Compactor {
    #[must_use]
    pub fn new(stores: Stores) -> Arc<Self> {
        let observed = Observed::new(stores.clone());
        Arc::new(Self {
            stores,
            owed: Mutex::default(),
            compacted: watch::Sender::new(Revision::ZERO),
            observed,
        })
    }

    /// The highest revision that a client compacted, as far as this router knows.
    #[must_use]
    pub fn compacted(&self) -> Revision {
        *self.compacted.borrow()
    }

    /// Changes when [`Self::compacted`] does.
    #[must_use]
    pub fn compactions(&self) -> watch::Receiver<Revision> {
        self.compacted.subscribe()
    }

    fn note_compacted(&self, at: Revision) {
        self.compacted.send_if_modified(|compacted| std::mem::replace(compacted, at.max(*compacted)) < at);
    }

    /// Takes over a compaction that was made elsewhere: every shard owes it, as far as this router knows.
    pub fn owe_all(&self, at: Revision) {
        {
            let mut owed = self.lock_owed();
            for store in self.stores.iter().filter(|store| store.is_shard()) {
                owed.note(store.index, at);
            }
        }
        self.note_compacted(at);
    }

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
        compact_all(&Calls { compactor: self, request, deadline }, Revision(parsed.revision)).await
    }

    fn lock_owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compacts the shards in the background at the revision that corresponds to a compaction of the default store, a
    /// stock etcd.
    fn compact_beside(&self, etcd: &str, revision: i64) {
        match self.observed.clock_of(etcd, revision) {
            Some(clock) => {
                tracing::debug!(etcd, revision, %clock, "shards are compacted with the default store");
                self.owe_all(clock);
            }
            None => tracing::info!(
                etcd,
                revision,
                "the default store is compacted at a revision that it had before this was looked at; shards are not"
            ),
        }
    }

    /// Runs for ever: compacts stores that are back and owe a compaction.
    pub async fn settle_owed(self: Arc<Self>) {
        loop {
            self.stores.ticks().sleep(Duration::from_secs(1)).await;
            for store in self.stores.up() {
                let Some(revision) = self.lock_owed().of(store.index) else { continue };
                let request = kindred_proto::etcdserverpb::CompactionRequest {
                    revision: revision.get(),
                    physical: false,
                };
                let request = Bytes::from(prost::Message::encode_to_vec(&request));
                let deadline = Deadline::within(Duration::from_secs(10));
                let calls = Calls { compactor: &self, request, deadline };
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
