//! Leases over several stores (R12). The home owns a lease; another store adopts it at the first write that carries it.
//!
//! Everything durable is at the home and at the adopting stores. The router remembers only which (lease, store) pairs
//! it has seen attached, to save two round trips per write. Losing a pair costs one repeated attach, which is
//! idempotent.

pub mod attach;
pub mod ended;
pub mod heirs;

use std::time::Duration;

use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_partition_config::state::{StoreObject, StoreState};
use kindred_proto::shard_v1 as shard;
use kindred_router_core::lease_fanout::home_candidates;
use kindred_router_core::store::{Member, StoreIx, StoreKind};
use kindred_transport::grpc;
use kindred_wire::refusal::KindredError;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::app::App;
use crate::execute::{Deadline, Effect, call};
use crate::not_owned::NotOwned;
use crate::stores::Store;
use crate::waiting::Waiting;
use attach::{Holder, LeaseStores, attach_once};
pub use attach::{Homes, Leases, at_home};

/// How long a store has to end a lease.
const END_MAX: Duration = Duration::from_secs(5);
/// How long the end of a lease waits for a move of its keys; after that, the follower of the home's list tries again.
const MOVING_MAX: Duration = Duration::from_secs(1);

impl App {
    /// Sends a write that carries leases ([`attach::with_leases`]).
    ///
    /// # Errors
    /// As there.
    pub async fn with_leases<T, Fut: Future<Output = Result<T, Status>>>(
        &self,
        leases: &[LeaseId],
        store: &Store,
        deadline: Deadline,
        send: impl Fn() -> Fut,
    ) -> Result<T, Status> {
        attach::with_leases(&Calls { app: self, deadline }, leases, store.index, send).await
    }

    /// Attaches these leases to the store ([`attach::attach_all`]).
    ///
    /// # Errors
    /// As there.
    pub async fn attach_all(
        &self,
        leases: &[LeaseId],
        store: &Store,
        deadline: Deadline,
    ) -> Result<(), Status> {
        attach::attach_all(&Calls { app: self, deadline }, leases, store.index).await
    }

    /// Completes the end of a lease ([`attach::finish`]).
    pub async fn finish_lease(&self, lease: LeaseId, home: &Store, attached: &[u32]) -> bool {
        let calls = Calls { app: self, deadline: Deadline::within(END_MAX) };
        attach::finish(&calls, lease, home.index, attached).await
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
}

/// The stores of a router, for calls about leases that end by a deadline.
struct Calls<'a> {
    app: &'a App,
    deadline: Deadline,
}

impl LeaseStores for Calls<'_> {
    fn pairs(&self) -> &Leases {
        &self.app.leases
    }

    fn homes(&self, lease: LeaseId) -> Result<Homes, Status> {
        self.app.lease_homes(lease)
    }

    fn holder(&self, slot: u32) -> Holder {
        match self.app.stores.by_slot(slot) {
            Some(store) => Holder::Store(store.index),
            None if self.app.was_removed(slot) => Holder::Removed,
            None => Holder::Unknown,
        }
    }

    fn slot(&self, store: StoreIx) -> Option<Slot> {
        self.app.stores.get(store).slot()
    }

    fn slot_for(&self, home: StoreIx, store: StoreIx) -> Result<Slot, Status> {
        let (home, store) = (self.app.stores.get(home), self.app.stores.get(store));
        let slot = store.slot().filter(|_| home.is_shard() && store.is_shard());
        slot.ok_or_else(lease_across_etcd)
    }

    async fn attach_at_home(
        &self,
        lease: LeaseId,
        home: StoreIx,
        store: Slot,
    ) -> Result<Option<i64>, Status> {
        let home = self.app.stores.get(home);
        let request = shard::LeaseAttachRequest { id: lease.get(), store_slot: store.get().into() };
        let attached = call(home, Effect::Read, self.deadline, || async {
            home.shard().lease_attach(self.deadline.request(request)).await
        });
        match attached.await {
            Ok(answer) => Ok(Some(answer.granted_ttl)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn adopt(
        &self,
        lease: LeaseId,
        store: StoreIx,
        granted_ttl: i64,
        home: StoreIx,
    ) -> Result<(), Status> {
        let (store, home) = (self.app.stores.get(store), self.app.stores.get(home));
        let home_slot = home.slot().map_or(0, |slot| u32::from(slot.get()));
        let slots_before = self.app.lease_slots_before(home);
        let request = shard::LeaseAdoptRequest { id: lease.get(), granted_ttl, home_slot, slots_before };
        let adopted = call(store, Effect::Read, self.deadline, || async {
            store.shard().lease_adopt(self.deadline.request(request.clone())).await
        });
        adopted.await.map(drop)
    }

    async fn end(&self, lease: LeaseId, store: StoreIx, denied_slots: Vec<u32>) -> Result<(), Status> {
        let store = self.app.stores.get(store);
        let request = shard::LeaseEndRequest { id: lease.get(), denied_slots };
        let ended = call(store, Effect::Read, self.deadline, || async {
            store.shard().lease_end(self.deadline.request(request.clone())).await
        });
        ended.await.map(drop)
    }

    /// Retries while the store refuses because keys are moving.
    async fn end_settled(&self, lease: LeaseId, store: StoreIx) -> Result<(), Status> {
        let mut waiting = Waiting::new(&self.app.routing, Effect::Write, Instant::now() + MOVING_MAX);
        loop {
            let known = *self.app.routing.generations().borrow();
            match self.end(lease, store, Vec::new()).await {
                Err(status) if NotOwned::of(&status).is_some() => {
                    if waiting.wait(known, &[]).await.is_err() {
                        return Err(status);
                    }
                }
                ended => return ended,
            }
        }
    }

    async fn forget(&self, lease: LeaseId, home: StoreIx) -> Result<(), Status> {
        let home = self.app.stores.get(home);
        let deadline = Deadline::within(END_MAX);
        let request = shard::LeaseForgetRequest { id: lease.get() };
        let forgotten = call(home, Effect::Read, deadline, || async {
            home.shard().lease_forget(deadline.request(request)).await
        });
        forgotten.await.map(drop)
    }

    /// Asks again while the home is changing.
    async fn attach(&self, lease: LeaseId, store: StoreIx, not_at_home: bool) -> Result<bool, Status> {
        let until = self.deadline.at().min(Instant::now() + MOVING_MAX);
        let mut waiting = Waiting::new(&self.app.routing, Effect::Write, until);
        loop {
            let known = *self.app.routing.generations().borrow();
            match attach_once(self, lease, store, not_at_home).await {
                Err(status) if NotOwned::of(&status).is_some() => {
                    if waiting.wait(known, &[]).await.is_err() {
                        return Err(status);
                    }
                }
                attached => return attached,
            }
        }
    }
}

fn lease_across_etcd() -> Status {
    grpc::refusal(&KindredError::Unsupported {
        what: "a lease with keys on a stock etcd and on another store",
        instead: "put the Kinds that use leases on shards",
    })
}
