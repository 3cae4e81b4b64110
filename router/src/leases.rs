//! Leases over several stores (R12): the home owns a lease, other stores adopt it at the first write that carries it.
//!
//! Everything durable is at the home and at the adopting stores. The router only remembers which (lease, store) pairs
//! it has seen attached, to save two round trips a write; losing that costs a repeated, idempotent attach.

pub mod ended;
pub mod heirs;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_partition_config::state::{StoreObject, StoreState};
use kindred_proto::shard_v1 as shard;
use kindred_router_core::lease_attach::{Attaching, Command, Next, Reply};
use kindred_router_core::lease_fanout::{home_candidates, slot_of};
use kindred_router_core::store::{Member, StoreIx, StoreKind};
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

    /// Attaches at the home, then at the store. `false` when the home seems to be the store itself, or there is none. While
    /// the home is changing it is asked for again.
    async fn attach(
        &self,
        lease: LeaseId,
        store: &Store,
        deadline: Deadline,
        not_at_home: bool,
    ) -> Result<bool, Status> {
        let until = deadline.at().min(Instant::now() + MOVING_MAX);
        let mut waiting = Waiting::new(self, Effect::Write, until);
        loop {
            let known = *self.generations().borrow();
            match self.attach_once(lease, store, deadline, not_at_home).await {
                Err(status) if NotOwned::of(&status).is_some() => {
                    if waiting.wait(known, &[]).await.is_err() {
                        return Err(status);
                    }
                }
                attached => return attached,
            }
        }
    }

    async fn attach_once(
        &self,
        lease: LeaseId,
        store: &Store,
        deadline: Deadline,
        not_at_home: bool,
    ) -> Result<bool, Status> {
        let homes = self.lease_homes(lease)?;
        let mut moved = None;
        for candidate in homes.stores {
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
            match self.attach_at(lease, home, store, slot, deadline).await {
                Ok(false) => {}
                Ok(true) => {
                    self.leases.remember(lease, store.index);
                    return Ok(true);
                }
                // It was there; another one has it, or is about to.
                Err(status) if NotOwned::of(&status).is_some() => moved = Some(status),
                Err(status) => return Err(status),
            }
        }
        if let Some(moved) = moved {
            return Err(moved);
        }
        // No home has it, so the store must not either, whatever it adopted before. The write then goes there all the
        // same: only the store knows whether it is valid, and a txn may not take the branch that names the lease. A store
        // that has it from a home of which this router does not know refuses (R12).
        self.end_at(lease, store, homes.slots, deadline).await?;
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
                    let slots_before = self.lease_slots_before(home);
                    let id = lease.get();
                    let request = shard::LeaseAdoptRequest { id, granted_ttl, home_slot, slots_before };
                    call(store, Effect::Read, deadline, || async {
                        store.shard().lease_adopt(deadline.request(request.clone())).await
                    })
                    .await?;
                    Reply::Done
                }
                Command::EndAtStore => {
                    self.end_at(lease, store, Vec::new(), deadline).await?;
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

    /// The lease is over: the store deletes its keys. Idempotent. With `denied_slots` that is only what these stores say,
    /// which do not know it.
    async fn end_at(
        &self,
        lease: LeaseId,
        store: &Store,
        denied_slots: Vec<u32>,
        deadline: Deadline,
    ) -> Result<(), Status> {
        let request = shard::LeaseEndRequest { id: lease.get(), denied_slots };
        call(store, Effect::Read, deadline, || async {
            store.shard().lease_end(deadline.request(request.clone())).await
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
            match self.end_at(lease, store, Vec::new(), deadline).await {
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
        u16::try_from(slot).is_ok_and(|slot| self.cluster.state().is_removed_slot(slot))
    }

    /// The stores that may be the home of a lease.
    ///
    /// # Errors
    /// `Unavailable` when one of them is not in the list of stores yet.
    pub fn lease_homes(&self, lease: LeaseId) -> Result<Homes, Status> {
        let state = self.cluster.state();
        let slots: Vec<u32> = state.lease_candidates(lease).into_iter().map(u32::from).collect();
        let mut stores = Vec::with_capacity(slots.len());
        for slot in &slots {
            match self.stores.by_slot(*slot) {
                Some(store) => stores.push(store.index),
                None if self.was_removed(*slot) => {}
                None => {
                    let what = format!(
                        "kindred: the home of lease {lease} may be the store with slot {slot}, which is not known yet"
                    );
                    return Err(Status::unavailable(what));
                }
            }
        }
        if stores.is_empty() {
            stores = home_candidates(lease, &self.lease_members(), self.stores.default_store());
        }
        Ok(Homes { slots, stores })
    }

    /// The stores as places for leases to come: without those that are being drained, while there are others.
    pub fn lease_members(&self) -> Vec<Member> {
        let state = self.cluster.state();
        let members = self.stores.members();
        let stays = |member: &&Member| {
            let name = self.stores.get(member.index).name();
            let of_name = |store: &&StoreObject| store.name.0 == name && store.state == StoreState::Draining;
            state.stores.iter().find(of_name).is_none()
        };
        let staying: Vec<Member> = members.iter().filter(stays).copied().collect();
        if staying.iter().any(|member| member.kind == StoreKind::Shard) { staying } else { members }
    }

    /// The slots of homes whose leases this store may have now.
    fn lease_slots_before(&self, home: &Store) -> Vec<u32> {
        let before = home.slot().map(|slot| self.cluster.state().lease_slots_before(slot.get()));
        before.unwrap_or_default().into_iter().map(u32::from).collect()
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

/// The stores that may be the home of a lease, the likeliest first.
#[derive(Debug)]
pub struct Homes {
    /// Their slots, those of removed ones, too.
    pub slots: Vec<u32>,
    /// Those that can be asked.
    pub stores: Vec<StoreIx>,
}

fn lease_across_etcd() -> Status {
    grpc::refusal(&KindredError::Unsupported {
        what: "a lease with keys on a stock etcd and on another store",
        instead: "put the Kinds that use leases on shards",
    })
}
