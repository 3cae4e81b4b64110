//! Leases over several stores (R12), as `router/src/leases.rs`, `leases/ended.rs` and `endpoint/lease.rs`.

use kindred_engine::error::EngineError;
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_router_core::lease_attach::{Attaching, Command, Next, Reply as Said};
use kindred_router_core::lease_fanout::{grant_home, home_candidates, slot_of};
use kindred_router_core::store::StoreIx;

use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use crate::sabotage::Sabotage;
use crate::world::{MS, SECOND};

const DEFAULT: StoreIx = StoreIx(0);

impl Router {
    fn homes(&self, lease: LeaseId) -> Vec<StoreIx> {
        home_candidates(lease, &self.members(), DEFAULT)
    }

    pub(super) async fn attach_all(&self, lease: LeaseId, store: StoreIx) -> Result<(), Fail> {
        let likely_home = slot_of(lease) == Some(self.topology.slots[store.0]);
        let knows = self.attached.borrow().contains(&(lease, store));
        if !likely_home && !knows {
            self.attach(lease, store, false).await?;
        }
        Ok(())
    }

    pub(super) async fn attach_again(&self, lease: LeaseId, store: StoreIx) -> Result<bool, Fail> {
        self.attached.borrow_mut().remove(&(lease, store));
        self.attach(lease, store, true).await
    }

    async fn attach(&self, lease: LeaseId, store: StoreIx, not_at_home: bool) -> Result<bool, Fail> {
        for candidate in self.homes(lease) {
            if candidate == store {
                if not_at_home {
                    continue;
                }
                self.attached.borrow_mut().insert((lease, store));
                return Ok(false);
            }
            if !self.attach_at(lease, candidate, store).await? {
                continue;
            }
            self.attached.borrow_mut().insert((lease, store));
            return Ok(true);
        }
        self.call(store, Request::LeaseEnd { id: lease }).await?;
        Ok(false)
    }

    async fn attach_at(&self, id: LeaseId, home: StoreIx, store: StoreIx) -> Result<bool, Fail> {
        let slot = self.topology.slots[store.0];
        let (mut at, mut command) = Attaching::begin();
        loop {
            let said = match command {
                Command::AttachAtHome => {
                    match self.call(home, Request::LeaseAttach { id, store: slot }).await {
                        Ok(Reply::Ttl(granted_ttl)) => Said::Attached { granted_ttl },
                        Err(CallError::Refused(EngineError::LeaseNotFound(_))) => Said::Unknown,
                        Err(error) => return Err(error.into()),
                        Ok(_) => return Err(Fail::Unavailable),
                    }
                }
                Command::AdoptAtStore { granted_ttl } => {
                    let home = self.topology.slots[home.0];
                    self.call(store, Request::LeaseAdopt { id, ttl_s: granted_ttl, home }).await?;
                    Said::Done
                }
                Command::EndAtStore => {
                    self.call(store, Request::LeaseEnd { id }).await?;
                    Said::Done
                }
            };
            match at.step(said) {
                Next::Do(then, next) => (at, command) = (then, next),
                Next::Attached => return Ok(true),
                Next::Unknown => return Ok(false),
            }
        }
    }

    /// Ends a lease at the stores that hold keys of it, then forgets it.
    async fn finish_lease(&self, id: LeaseId, home: StoreIx, attached: &[Slot]) -> bool {
        let mut finished = true;
        for slot in attached {
            let Some(store) = self.topology.slots.iter().position(|of| of == slot).map(StoreIx) else {
                finished = false;
                continue;
            };
            self.attached.borrow_mut().remove(&(id, store));
            if store == home || self.is(Sabotage::NoLeaseEnd) {
                continue;
            }
            let ended = self.world.within(5 * SECOND, self.call(store, Request::LeaseEnd { id })).await;
            finished &= matches!(ended, Some(Ok(_)));
        }
        finished && matches!(self.call(home, Request::LeaseForget { id }).await, Ok(Reply::Done))
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

    /// Keeps a lease alive; whether its home has it.
    ///
    /// # Errors
    /// When a home that may have it cannot be asked.
    pub async fn lease_keep_alive(&self, id: LeaseId) -> Result<bool, Fail> {
        let mut failed = None;
        for home in self.homes(id) {
            match self.call(home, Request::LeaseKeepAlive { id }).await {
                Ok(_) => return Ok(true),
                Err(CallError::Refused(EngineError::LeaseNotFound(_))) => {}
                Err(error) => failed = failed.or(Some(error.into())),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn lease_revoke(&self, id: LeaseId) -> Result<(), Fail> {
        let mut failed = None;
        for home in self.homes(id) {
            match self.call(home, Request::LeaseRevoke { id }).await {
                Ok(Reply::Revoked(attached)) => {
                    self.finish_lease(id, home, &attached).await;
                    return Ok(());
                }
                Err(CallError::Refused(EngineError::LeaseNotFound(_))) => {}
                Err(error) => failed = failed.or(Some(error.into())),
                Ok(_) => {}
            }
        }
        Err(failed.unwrap_or(Fail::NoLease))
    }

    /// Completes what ended at a home, for ever.
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
