//! Leases over several stores (R12), by the product's functions over simulated calls.

use kindred_engine::error::EngineError;
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_router::execute::routed::settled;
use kindred_router::leases::attach::{Holder, LeaseStores, attach_once, finish};
use kindred_router::leases::{Homes, Leases, at_home};
use kindred_router_core::lease_fanout::{grant_home, home_candidates};
use kindred_router_core::store::StoreIx;
use tonic::Status;

use super::reads::{failed, refused};
use super::routes::Waiting;
use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use crate::sabotage::Sabotage;
use crate::world::{MS, Micros, SECOND};

/// How long the end of a lease, or an attach, waits for a move.
const MOVING_MAX: Micros = SECOND;
const DEFAULT: StoreIx = StoreIx(0);

impl LeaseStores for Router {
    fn pairs(&self) -> &Leases {
        &self.leases
    }

    fn homes(&self, lease: LeaseId) -> Result<Homes, Status> {
        Ok(Homes { slots: Vec::new(), stores: home_candidates(lease, &self.members(), DEFAULT) })
    }

    fn holder(&self, slot: u32) -> Holder {
        let place = self.topology.slots[..self.state().stores.len()]
            .iter()
            .position(|of| u32::from(of.get()) == slot);
        place.map_or(Holder::Unknown, |place| Holder::Store(StoreIx(place)))
    }

    fn slot(&self, store: StoreIx) -> Option<Slot> {
        Some(self.topology.slots[store.0])
    }

    fn slot_for(&self, _: StoreIx, store: StoreIx) -> Result<Slot, Status> {
        Ok(self.topology.slots[store.0])
    }

    async fn attach_at_home(&self, id: LeaseId, home: StoreIx, store: Slot) -> Result<Option<i64>, Status> {
        match self.call(home, Request::LeaseAttach { id, store }).await {
            Ok(Reply::Ttl(granted_ttl)) => Ok(Some(granted_ttl)),
            Err(CallError::Refused(EngineError::LeaseNotFound(_))) => Ok(None),
            Err(error) => Err(refused(error)),
            Ok(_) => Err(Status::internal("another answer")),
        }
    }

    async fn adopt(&self, id: LeaseId, store: StoreIx, ttl_s: i64, home: StoreIx) -> Result<(), Status> {
        let home = self.topology.slots[home.0];
        self.call(store, Request::LeaseAdopt { id, ttl_s, home }).await.map(drop).map_err(refused)
    }

    async fn end(&self, id: LeaseId, store: StoreIx, _: Vec<u32>) -> Result<(), Status> {
        self.call(store, Request::LeaseEnd { id }).await.map(drop).map_err(refused)
    }

    async fn end_settled(&self, lease: LeaseId, store: StoreIx) -> Result<(), Status> {
        if self.is(Sabotage::NoLeaseEnd) {
            return Ok(());
        }
        let mut waiting = Waiting::new(self, MOVING_MAX);
        let ending = settled(&mut waiting, || self.end(lease, store, Vec::new()));
        let ended = self.world.within(5 * SECOND, ending).await;
        ended.unwrap_or_else(|| Err(Status::unavailable("too late")))
    }

    async fn forget(&self, id: LeaseId, home: StoreIx) -> Result<(), Status> {
        self.call(home, Request::LeaseForget { id }).await.map(drop).map_err(refused)
    }

    async fn attach(&self, lease: LeaseId, store: StoreIx, not_at_home: bool) -> Result<bool, Status> {
        let mut waiting = Waiting::new(self, MOVING_MAX);
        settled(&mut waiting, || attach_once(self, lease, store, not_at_home)).await
    }
}

/// The answer of a home; `None` if it does not have the lease.
fn known(answered: Result<Reply, CallError>) -> Result<Option<Reply>, Status> {
    match answered {
        Ok(reply) => Ok(Some(reply)),
        Err(CallError::Refused(EngineError::LeaseNotFound(_))) => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

impl Router {
    async fn ask_homes(&self, id: LeaseId, request: Request) -> Result<Option<(StoreIx, Reply)>, Fail> {
        let homes = home_candidates(id, &self.members(), DEFAULT);
        let asked = |home| {
            let request = request.clone();
            async move { known(self.call(home, request).await) }
        };
        at_home(homes, asked).await.map_err(|status| failed(&status))
    }

    /// Grants a lease with an id of the shard's.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn lease_grant(&self, ttl_s: i64) -> Result<LeaseId, Fail> {
        let home = grant_home(None, &self.members(), DEFAULT);
        match self.call(home, Request::LeaseGrant { ttl_s }).await? {
            Reply::Granted { id, .. } => Ok(id),
            _ => Err(Fail::Unknown),
        }
    }

    /// Renews a lease; `false` if its home does not have it.
    ///
    /// # Errors
    /// When a home that may have it cannot be asked.
    pub async fn lease_keep_alive(&self, id: LeaseId) -> Result<bool, Fail> {
        Ok(self.ask_homes(id, Request::LeaseKeepAlive { id }).await?.is_some())
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn lease_revoke(&self, id: LeaseId) -> Result<(), Fail> {
        let revoked = self.ask_homes(id, Request::LeaseRevoke { id }).await?;
        let Some((home, Reply::Revoked(attached))) = revoked else { return Err(Fail::NoLease) };
        self.finish_lease(id, home, &attached).await;
        Ok(())
    }

    async fn finish_lease(&self, id: LeaseId, home: StoreIx, attached: &[Slot]) {
        let attached: Vec<u32> = attached.iter().map(|slot| slot.get().into()).collect();
        // The task that follows the home's ended leases completes what fails here.
        finish(self, id, home, &attached).await;
    }

    /// Runs for ever: ends at other stores the leases that ended at this home.
    pub(super) async fn follow_ended(&self, home: StoreIx) {
        loop {
            self.world.sleep(self.world.between(300 * MS, 1_000 * MS)).await;
            let Ok(Reply::Ended(ended)) = self.call(home, Request::LeasesEnded).await else { continue };
            for lease in ended {
                self.finish_lease(lease.id, home, &lease.attached).await;
            }
        }
    }
}
