//! Compactions over all stores, by the product's functions over simulated calls.

use std::ops::DerefMut;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_router::execute::compact::{Compacting, compact_all, settle};
use kindred_router_core::compaction::Owed;
use kindred_router_core::store::StoreIx;
use tonic::Status;

use super::reads::{failed, refused};
use super::{Fail, Router, Session};
use crate::messages::{Reply, Request};
use crate::world::SECOND;

impl Compacting for Router {
    fn shards(&self) -> Vec<StoreIx> {
        self.stores().collect()
    }

    fn name(&self, store: StoreIx) -> String {
        format!("s{}", store.0)
    }

    fn default_store(&self) -> StoreIx {
        StoreIx(0)
    }

    async fn raise(&self, store: StoreIx, to: Revision) -> Result<Revision, Status> {
        let ranges = vec![KeyRange::everything()];
        match self
            .call(store, Request::Raise { ranges, to, generation: Epoch::NONE })
            .await
            .map_err(refused)?
        {
            Reply::Raised { current, .. } => Ok(current),
            _ => Err(Status::internal("another answer")),
        }
    }

    async fn compact(&self, store: StoreIx, at: Revision) -> Result<Bytes, Status> {
        self.call(store, Request::Compact { at }).await.map(|_| Bytes::new()).map_err(refused)
    }

    fn nobody(&self) -> Status {
        Status::unavailable("no store is there")
    }

    fn owed(&self) -> impl DerefMut<Target = Owed> {
        self.owed.borrow_mut()
    }

    fn compacted(&self, at: Revision) {
        self.compacted.set(self.compacted.get().max(at));
        self.tell_sessions(Session::compacted);
    }
}

impl Router {
    /// Compacts all stores.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn compact(&self, at: Revision) -> Result<(), Fail> {
        compact_all(self, at).await.map(drop).map_err(|status| failed(&status))
    }

    /// Runs for ever: compacts stores that were away when it was their turn.
    pub(super) async fn settle_compactions(&self) {
        loop {
            self.world.sleep(SECOND).await;
            for store in self.stores().filter(|store| self.net.is_up(self.at, *store)) {
                let owed = self.owed.borrow().of(store);
                // A store that fails still owes the compaction.
                if let Some(at) = owed {
                    let _ = settle(self, store, at).await;
                }
            }
        }
    }
}
