//! Compactions over all stores, as `router/src/execute/compact.rs`.

use futures_util::future::join_all;
use kindred_engine::error::EngineError;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_router_core::compaction::{Refusal, Took, combine, decide};
use kindred_router_core::store::StoreIx;

use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use crate::world::SECOND;

impl Router {
    async fn raise_all(&self, store: StoreIx, to: Revision) -> Result<Revision, CallError> {
        let ranges = vec![KeyRange::everything()];
        match self.call(store, Request::Raise { ranges, to }).await? {
            Reply::Raised { current, .. } => Ok(current),
            _ => Err(CallError::Down),
        }
    }

    async fn compact_at(&self, store: StoreIx, at: Revision) -> Took<(), Fail> {
        let done = async {
            self.raise_all(store, at).await?;
            self.call(store, Request::Compact { at }).await
        };
        match done.await {
            Ok(_) => Took::Done(()),
            Err(CallError::Refused(EngineError::Compacted { .. })) => Took::Already(Fail::Compacted),
            Err(error @ CallError::Refused(_)) => Took::Refused(error.into()),
            Err(error) => Took::Lost(error.into()),
        }
    }

    /// Compacts all stores.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn compact(&self, at: Revision) -> Result<(), Fail> {
        let currents = join_all(
            self.stores()
                .map(|store| async move { (store, self.raise_all(store, Revision::ZERO).await.ok()) }),
        );
        let steps = decide(at, &currents.await, StoreIx(0)).map_err(|refusal| match refusal {
            Refusal::Future => Fail::Future,
            Refusal::NoStore => Fail::Unavailable,
        })?;
        let took = join_all(
            steps.now.iter().map(|store| async move { (*store, self.compact_at(*store, at).await) }),
        );
        let (answer, owing) = combine(steps.reference, took.await);
        for store in steps.later.into_iter().chain(owing) {
            self.owed.borrow_mut().note(store, at);
        }
        if answer.is_ok() {
            self.compacted.set(self.compacted.get().max(at));
        }
        answer
    }

    /// Lets stores that come back catch up with what they owe, for ever.
    pub(super) async fn settle_compactions(&self) {
        loop {
            self.world.sleep(SECOND).await;
            for store in self.stores().filter(|store| self.net.is_up(self.at, *store)) {
                let owed = self.owed.borrow().of(store);
                let Some(at) = owed else { continue };
                match self.compact_at(store, at).await {
                    Took::Done(()) | Took::Already(_) => self.owed.borrow_mut().settle(store, at),
                    Took::Refused(_) | Took::Lost(_) => {}
                }
            }
        }
    }
}
