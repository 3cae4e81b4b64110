//! Leases over several stores (R12). The home owns a lease; another store adopts it at the first write that carries it.
//!
//! Everything durable is at the home and at the adopting stores. The router remembers only which (lease, store) pairs
//! it has seen attached, to save two round trips per write. Losing a pair costs one repeated attach, which is
//! idempotent.

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
use crate::move_buffer::{NotOwned, Waiting};
use crate::stores::Store;

/// The most pairs that are remembered; at that number all are forgotten.
const ATTACHED_MAX: usize = 1 << 16;

/// How long a store has to end a lease.
const END_MAX: Duration = Duration::from_secs(5);
/// How long the end of a lease waits for a move of its keys; after that, the follower of the home's list tries again.
const MOVING_MAX: Duration = Duration::from_secs(1);

/// The pairs seen attached: a leaf cache, never locked across an await.
#[derive(Debug, Default)]
pub struct Leases {
    attached: Mutex<HashSet<(LeaseId, StoreIx)>>,
}

impl Leases {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<(LeaseId, StoreIx)>> {
        // After a panic with the lock held, the set lacks its newest pair at worst.
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

    /// Forgets that the store has the lease.
    pub fn forget(&self, lease: LeaseId, store: StoreIx) {
        self.lock().remove(&(lease, store));
    }
}

/// Whether a write failed because the store does not know the lease; nothing of it was executed then.
#[must_use]
pub fn is_unknown_lease(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::LeaseNotFound)
}

impl App {
    /// Attaches these leases to the store, except those that this router knows to be attached. A lease that no home has
    /// is left to the store to refuse.
    ///
    /// # Errors
    /// When a home or the store cannot be asked.
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

    /// Attaches the leases again after a write was refused because of an unknown lease. Returns whether the write is
    /// worth sending again.
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

    /// Attaches the lease at its home and then at the store; asks again while the home is changing. `false` if the home
    /// seems to be the store itself, or if no home has the lease.
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
                // If the store does not have the lease, it refuses the write, and this pair is forgotten again.
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
                // This home gave the lease away; another one has it or is about to have it.
                Err(status) if NotOwned::of(&status).is_some() => moved = Some(status),
                Err(status) => return Err(status),
            }
        }
        if let Some(moved) = moved {
            return Err(moved);
        }
        // No home has the lease, so the store must not have it either, even if it adopted it before. The write is still
        // sent there: only the store can judge it, and a txn may not take the branch that names the lease. A store that
        // adopted the lease from a home that this router does not know refuses to end it (R12).
        self.end_at(lease, store, homes.slots, deadline).await?;
        Ok(false)
    }

    /// Attaches the lease at one home that may have it; `false` if that home does not.
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

    /// Ends a lease at a store, which deletes the lease's keys. Idempotent. With `denied_slots` the lease is not known
    /// to be over; only the stores with these slots have said that they do not know it.
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

    /// Ends a lease at a store of whose keys some may be moving; retries while the store refuses because of that.
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

    /// Whether the slot belonged to a store that was removed from the configuration.
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

    /// The stores where new leases may live: without those that are drained, as long as a shard remains.
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

    /// The slots of the homes from which this store may have got leases.
    fn lease_slots_before(&self, home: &Store) -> Vec<u32> {
        let before = home.slot().map(|slot| self.cluster.state().lease_slots_before(slot.get()));
        before.unwrap_or_default().into_iter().map(u32::from).collect()
    }

    /// Ends a lease at all stores that hold keys of it, then drops its record at the home. Idempotent: several routers
    /// may do it at once. `false` if a store could not be reached; then the home keeps the record and reports it again.
    pub async fn finish_lease(&self, lease: LeaseId, home: &Store, attached: &[u32]) -> bool {
        // All at once: a store whose keys move away is done only when the target has the lease ended too.
        let ends = attached.iter().map(|slot| async move {
            let Some(store) = self.stores.by_slot(*slot) else {
                if self.was_removed(*slot) {
                    // The store is gone with its keys, whether they moved away or were lost (R14).
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

/// The possible homes of a lease, the likeliest first.
#[derive(Debug)]
pub struct Homes {
    /// The slots of all of them, removed stores included.
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
