//! Leases over several stores (R12): the home owns a lease, other stores adopt it at the first write that carries it.
//!
//! Everything durable is at the home and at the adopting stores. The router only remembers which (lease, store) pairs
//! it has seen attached, to save two round trips a write; losing that costs a repeated, idempotent attach.

pub mod ended;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_partition_config::state::StoreState;
use kindred_proto::shard_v1 as shard;
use kindred_router_core::lease_attach::{Attaching, Command, Next, Reply};
use kindred_router_core::lease_fanout::{home_candidates, slot_of};
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::refusal::KindredError;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::app::App;
use crate::execute::{Deadline, Effect, call};
use crate::hold::{NotOwned, Waiting};
use crate::stores::Store;

/// Most pairs remembered; beyond, all are forgotten and attached again as they come.
const ATTACHED_MAX: usize = 1 << 16;

/// How long a store has to end a lease.
const END_MAX: Duration = Duration::from_secs(5);
/// How long the end of a lease waits for a move of its keys; beyond, whoever follows the home's list goes on.
const MOVING_MAX: Duration = Duration::from_secs(1);

/// The pairs seen attached. A leaf cache, never locked across an await.
#[derive(Debug, Default)]
pub struct Leases {
    attached: Mutex<HashSet<(LeaseId, StoreIx)>>,
}

impl Leases {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<(LeaseId, StoreIx)>> {
        // A panic while it is held leaves a set, at worst one without its newest pair.
        self.attached.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn knows(&self, lease: LeaseId, store: StoreIx) -> bool {
        self.lock().contains(&(lease, store))
    }

    fn remember(&self, lease: LeaseId, store: StoreIx) {
        let mut attached = self.lock();
        if attached.len() >= ATTACHED_MAX {
            attached.clear();
        }
        attached.insert((lease, store));
    }

    /// The store no longer has the lease.
    pub fn forget(&self, lease: LeaseId, store: StoreIx) {
        self.lock().remove(&(lease, store));
    }
}

/// Whether a write failed because the store does not know the lease: nothing of it was executed.
#[must_use]
pub fn is_unknown_lease(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::LeaseNotFound)
}

impl App {
    /// Makes the store know these leases, as far as this router does not know that it does. One that no home has is
    /// left to the store to refuse.
    ///
    /// # Errors
    /// Why a home or the store cannot be asked.
    pub async fn attach_all(
        &self,
        leases: &[LeaseId],
        store: &Store,
        deadline: Deadline,
    ) -> Result<(), Status> {
        for lease in leases {
            if !self.likely_home(*lease, store) && !self.leases.knows(*lease, store.index) {
                self.attach(*lease, store, deadline, false).await?;
            }
        }
        Ok(())
    }

    /// After a write was refused for want of a lease: attaches anew. Whether there is any point in sending it again.
    ///
    /// # Errors
    /// As [`App::attach_all`].
    pub async fn attach_again(
        &self,
        leases: &[LeaseId],
        store: &Store,
        deadline: Deadline,
    ) -> Result<bool, Status> {
        let mut attached = false;
        for lease in leases {
            self.leases.forget(*lease, store.index);
            attached |= self.attach(*lease, store, deadline, true).await?;
        }
        Ok(attached)
    }

    fn likely_home(&self, lease: LeaseId, store: &Store) -> bool {
        store.slot().is_some_and(|slot| slot_of(lease) == Some(slot))
    }

    /// Attaches at the home, then at the store. `false` when the home seems to be the store itself, or there is none.
    async fn attach(
        &self,
        lease: LeaseId,
        store: &Store,
        deadline: Deadline,
        not_at_home: bool,
    ) -> Result<bool, Status> {
        let members = self.stores.members();
        let candidates = home_candidates(lease, &members, self.stores.default_store());
        for candidate in candidates {
            if candidate == store.index {
                if not_at_home {
                    continue;
                }
                // Its own answer to the write tells whether it has the lease; if not, this is forgotten again.
                self.leases.remember(lease, store.index);
                return Ok(false);
            }
            let home = self.stores.get(candidate);
            let (true, true, Some(slot)) = (home.is_shard(), store.is_shard(), store.slot()) else {
                return Err(lease_across_etcd());
            };
            if !self.attach_at(lease, home, store, slot, deadline).await? {
                continue;
            }
            self.leases.remember(lease, store.index);
            return Ok(true);
        }
        // No home has it, so the store must not either, whatever it adopted before. The write then goes there all the
        // same: only the store knows whether it is valid, and a txn may not take the branch that names the lease.
        self.end_at(lease, store, deadline).await?;
        Ok(false)
    }

    /// Attaches at one home that may have the lease; `false` when it does not.
    async fn attach_at(
        &self,
        lease: LeaseId,
        home: &Store,
        store: &Store,
        slot: Slot,
        deadline: Deadline,
    ) -> Result<bool, Status> {
        let (mut at, mut command) = Attaching::begin();
        loop {
            let reply = match command {
                Command::AttachAtHome => {
                    let request =
                        shard::LeaseAttachRequest { id: lease.get(), store_slot: slot.get().into() };
                    let attached = call(home, Effect::Read, deadline, || async {
                        home.shard().lease_attach(deadline.request(request)).await
                    });
                    match attached.await {
                        Ok(answer) => Reply::Attached { granted_ttl: answer.granted_ttl },
                        Err(status) if status.code() == Code::NotFound => Reply::Unknown,
                        Err(status) => return Err(status),
                    }
                }
                Command::AdoptAtStore { granted_ttl } => {
                    let home_slot = home.slot().map_or(0, |slot| u32::from(slot.get()));
                    let request = shard::LeaseAdoptRequest { id: lease.get(), granted_ttl, home_slot };
                    call(store, Effect::Read, deadline, || async {
                        store.shard().lease_adopt(deadline.request(request)).await
                    })
                    .await?;
                    Reply::Done
                }
                Command::EndAtStore => {
                    self.end_at(lease, store, deadline).await?;
                    Reply::Done
                }
            };
            match at.step(reply) {
                Next::Do(then, next) => (at, command) = (then, next),
                Next::Attached => return Ok(true),
                Next::Unknown => return Ok(false),
            }
        }
    }

    /// The lease is over: the store deletes its keys. Idempotent.
    async fn end_at(&self, lease: LeaseId, store: &Store, deadline: Deadline) -> Result<(), Status> {
        let request = shard::LeaseEndRequest { id: lease.get() };
        call(store, Effect::Read, deadline, || async {
            store.shard().lease_end(deadline.request(request)).await
        })
        .await
        .map(|_| ())
    }

    /// The same at a store of whose keys some may be moving: it refuses as long as another store may come to own them.
    async fn end_moving_at(&self, lease: LeaseId, store: &Store) -> Result<(), Status> {
        let deadline = Deadline::within(END_MAX);
        let mut waiting = Waiting::new(self, Effect::Write, Instant::now() + MOVING_MAX);
        loop {
            let known = *self.generations().borrow();
            match self.end_at(lease, store, deadline).await {
                Err(status) if NotOwned::of(&status).is_some() => {
                    if waiting.wait(known, &[]).await.is_err() {
                        return Err(status);
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Whether the slot is that of a store that the configuration had.
    fn was_removed(&self, slot: u32) -> bool {
        let state = self.cluster.state();
        let mut removed = state.stores.iter().filter(|store| store.state == StoreState::Removed);
        removed.any(|store| store.slot.map(u32::from) == Some(slot))
    }

    /// Ends a lease at the stores that hold keys of it and drops its record at the home. Idempotent: several routers may
    /// do it at once. `false` when a store could not be reached; the home keeps the record and tells again.
    pub async fn finish_lease(&self, lease: LeaseId, home: &Store, attached: &[u32]) -> bool {
        // All at once: a store that moves keys away is done only when the one that takes them over is.
        let ends = attached.iter().map(|slot| async move {
            let Some(store) = self.stores.by_slot(*slot) else {
                if self.was_removed(*slot) {
                    // With all its keys, or lost with them (R14).
                    return true;
                }
                tracing::warn!(%lease, slot, "a lease has keys on a store that the configuration does not have");
                return false;
            };
            self.leases.forget(lease, store.index);
            if store.index == home.index {
                return true;
            }
            let ended = self.end_moving_at(lease, store).await;
            if let Err(status) = &ended {
                tracing::info!(%lease, store = store.name(), error = status.message(), "lease not ended there yet");
            }
            ended.is_ok()
        });
        if join_all(ends).await.contains(&false) {
            return false;
        }
        let deadline = Deadline::within(END_MAX);
        let request = shard::LeaseForgetRequest { id: lease.get() };
        let forgotten = call(home, Effect::Read, deadline, || async {
            home.shard().lease_forget(deadline.request(request)).await
        });
        forgotten.await.is_ok()
    }
}

fn lease_across_etcd() -> Status {
    grpc::refusal(&KindredError::Unsupported {
        what: "a lease with keys on a stock etcd and on another store",
        instead: "put the Kinds that use leases on shards",
    })
}
