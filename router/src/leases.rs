//! Leases over several stores (R12). The home owns a lease; another store adopts it at the first write that carries it.
//!
//! Everything durable is at the home and at the adopting stores. The router remembers only which (lease, store) pairs
//! it has seen attached, to save two round trips per write. Losing a pair costs one repeated attach, which is
//! idempotent.

pub mod attach;
pub mod ended;
mod etcd;
pub mod heirs;
pub mod orphans;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_partition_config::state::{StoreObject, StoreState};
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use kindred_router_core::lease_fanout::{home_candidates, union};
use kindred_router_core::store::{Member, StoreIx, StoreKind};
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::refusal::KindredError;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::auth::Entered;
use crate::execute::routed::settled;
use crate::execute::{Deadline, Effect, call};
use crate::meta::Cluster;
use crate::not_owned::NotOwned;
use crate::routing::Routing;
use crate::stores::{Store, Stores};
use crate::waiting::Waiting;
use attach::{Holder, LeaseStores, attach_once};
pub use attach::{Homes, Leases, at_home};

/// How long a store has to end a lease.
const END_MAX: Duration = Duration::from_secs(5);
/// How long the end of a lease waits for a move of its keys; after that, the follower of the home's list tries again.
const MOVING_MAX: Duration = Duration::from_secs(1);

/// The leases of all stores.
#[derive(Debug)]
pub struct LeaseRouter {
    /// Which leases are attached to stores other than their homes, as far as this router has seen.
    pairs: Leases,
    stores: Stores,
    cluster: Arc<Cluster>,
    routing: Arc<Routing>,
}

impl LeaseRouter {
    #[must_use]
    pub fn new(stores: Stores, cluster: Arc<Cluster>, routing: Arc<Routing>) -> Arc<Self> {
        Arc::new(Self { pairs: Leases::default(), stores, cluster, routing })
    }

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
        attach::with_leases(&Calls { leases: self, deadline }, leases, store.index, send).await
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
        attach::attach_all(&Calls { leases: self, deadline }, leases, store.index).await
    }

    /// Attaches leases that the store does not know ([`attach::attach_again`]).
    ///
    /// # Errors
    /// As there.
    pub async fn attach_again(
        &self,
        leases: &[LeaseId],
        store: &Store,
        deadline: Deadline,
    ) -> Result<bool, Status> {
        attach::attach_again(&Calls { leases: self, deadline }, leases, store.index).await
    }

    /// The stock etcd that has all keys, if one has. Clients may use it directly beside kindred, in the first and in the last
    /// step of a migration.
    pub fn only_etcd(&self) -> Option<&Arc<Store>> {
        self.stores.by_slot(self.cluster.state().only_etcd()?.into())
    }

    /// Completes the end of a lease ([`attach::finish`]).
    pub async fn finish(&self, lease: LeaseId, home: &Store, attached: &[u32]) -> bool {
        let calls = Calls { leases: self, deadline: Deadline::within(END_MAX) };
        attach::finish(&calls, lease, home.index, attached).await
    }

    /// As [`at_home`]; retries while the home changes or keys of the lease are moving.
    ///
    /// # Errors
    /// As there.
    pub async fn at_settled_home<T, F, Fut>(
        &self,
        lease: LeaseId,
        effect: Effect,
        deadline: Deadline,
        ask: F,
    ) -> Result<Option<(Arc<Store>, T)>, Status>
    where
        F: Fn(Arc<Store>) -> Fut,
        Fut: Future<Output = Result<Option<T>, Status>>,
    {
        let mut waiting = Waiting::new(&self.routing, effect, deadline.at());
        loop {
            let known = *self.routing.generations().borrow();
            let asked = |home| ask(self.stores.get(home).clone());
            match at_home(self.homes(lease)?.stores, asked).await {
                // Nothing was executed.
                Err(status) if NotOwned::of(&status).is_some() => waiting.wait(known, &[]).await?,
                Ok(found) => return Ok(found.map(|(home, value)| (self.stores.get(home).clone(), value))),
                Err(status) => return Err(status),
            }
        }
    }

    /// Refuses an id that a client chose if another store that may be the home of such ids has a lease with it.
    ///
    /// # Errors
    /// etcd's own.
    pub async fn is_free(&self, id: LeaseId, home: &Store, deadline: Deadline) -> Result<(), Status> {
        for other in self.homes(id)?.stores.into_iter().filter(|other| *other != home.index) {
            let other = self.stores.get(other);
            let request = pb::LeaseTimeToLiveRequest { id: id.get(), keys: false };
            let told = call(other, Effect::Read, deadline, || async {
                other.lease().lease_time_to_live(deadline.request(request)).await
            });
            // A store that is away does not stop grants; the home makes its own check.
            if told.await.is_ok_and(|told| told.ttl >= 0) {
                return Err(grpc::status(EtcdError::LeaseExists));
            }
        }
        Ok(())
    }

    /// The keys of a lease at all reachable stores. While some of them are moving a store may refuse to list them; then all
    /// are asked again.
    ///
    /// # Errors
    /// When the keys move for longer than the client waits.
    pub async fn keys(&self, id: i64, deadline: Deadline) -> Result<Vec<bytes::Bytes>, Status> {
        let is_up = |store: &&Arc<Store>| store.state().is_up();
        let parts = self.keys_at(self.stores.iter().filter(is_up), id, deadline).await?;
        Ok(union(parts.into_iter().filter_map(Result::ok)))
    }

    /// All keys of a lease, for who must not leave out one.
    ///
    /// # Errors
    /// When a store cannot be asked, which may have some.
    pub async fn all_keys(&self, lease: LeaseId, deadline: Deadline) -> Result<Vec<bytes::Bytes>, Status> {
        let is_there = |store: &&Arc<Store>| !store.is_removed();
        let parts = self.keys_at(self.stores.iter().filter(is_there), lease.get(), deadline).await?;
        Ok(union(parts.into_iter().collect::<Result<Vec<_>, _>>()?))
    }

    /// Checks that a client may write all keys of a lease, which end with it.
    ///
    /// # Errors
    /// etcd's, if it may not; or that of a store which cannot be asked.
    pub async fn may_write(
        &self,
        entered: &Entered,
        lease: LeaseId,
        deadline: Deadline,
    ) -> Result<(), Status> {
        if entered.is_root() {
            return Ok(());
        }
        let keys = self.all_keys(lease, deadline).await?;
        let may = |key: &bytes::Bytes| entered.rules.may_write(entered.caller.as_ref(), key, &[]);
        keys.iter().try_for_each(may).map_err(grpc::status)
    }

    /// Checks that a client may read all keys of a lease.
    ///
    /// # Errors
    /// As [`LeaseRouter::may_write`].
    pub async fn may_read(
        &self,
        entered: &Entered,
        lease: LeaseId,
        deadline: Deadline,
    ) -> Result<(), Status> {
        if entered.is_root() {
            return Ok(());
        }
        let keys = self.all_keys(lease, deadline).await?;
        let may = |key: &bytes::Bytes| entered.rules.may_read(entered.caller.as_ref(), key, &[]);
        keys.iter().try_for_each(may).map_err(grpc::status)
    }

    /// The keys of a lease at each of these stores.
    async fn keys_at<'a>(
        &self,
        stores: impl Iterator<Item = &'a Arc<Store>>,
        id: i64,
        deadline: Deadline,
    ) -> Result<Vec<Result<Vec<bytes::Bytes>, Status>>, Status> {
        let (shards, etcds): (Vec<_>, Vec<_>) = stores.partition(|store| store.is_shard());
        let mut waiting = Waiting::new(&self.routing, Effect::Read, deadline.at());
        loop {
            let generation = self.routing.load().generation();
            let parts = join_all(shards.iter().map(|store| async move {
                call(store, Effect::Read, deadline, || async {
                    let request = shard::LeaseKeysRequest { id, generation: generation.0 };
                    store.shard().lease_keys(deadline.request(request)).await
                })
                .await
            }));
            let parts = parts.await;
            let moving = |part: &Result<_, Status>| part.as_ref().is_err_and(|e| NotOwned::of(e).is_some());
            if parts.iter().any(moving) {
                waiting.wait(generation, &[]).await?;
                continue;
            }
            let parts = parts.into_iter().map(|part| part.map(|answer| answer.keys));
            let at_etcds = join_all(etcds.iter().map(|etcd| etcd::keys(self, etcd, id, deadline))).await;
            return Ok(parts.chain(at_etcds).collect());
        }
    }

    /// Renews a lease at the stock etcds, which may have keys of it. One that cannot be asked matters only if this router
    /// attached the lease there: most leases have no keys at an etcd, and are not to end because it is away.
    ///
    /// # Errors
    /// When an etcd that has the lease cannot be asked.
    pub async fn keep_alive_at_etcds(&self, lease: LeaseId, deadline: Deadline) -> Result<(), Status> {
        let has_it = |store: &Arc<Store>| self.pairs.knows(lease, store.index);
        let etcds = self.stores.iter().filter(|store| !store.is_shard() && !store.is_removed());
        let etcds = etcds.filter(|store| store.state().is_up() || has_it(store));
        let renewed = etcds.map(|etcd| async move {
            let kept = etcd::keep_alive(etcd, lease.get(), deadline).await;
            if has_it(etcd) { kept } else { Ok(()) }
        });
        try_join_all(renewed).await.map(drop)
    }

    /// Whether the slot belonged to a store that was removed from the configuration.
    fn was_removed(&self, slot: u32) -> bool {
        u16::try_from(slot).is_ok_and(|slot| self.cluster.state().is_removed_slot(slot))
    }

    /// The stores that may be the home of a lease.
    ///
    /// # Errors
    /// `Unavailable` when one of them is not in the list of stores yet.
    pub fn homes(&self, lease: LeaseId) -> Result<Homes, Status> {
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
            stores = home_candidates(lease, &self.members(), self.stores.default_store());
        }
        Ok(Homes { slots, stores })
    }

    /// The stores where new leases may live: without those that are drained, as long as a shard remains.
    pub fn members(&self) -> Vec<Member> {
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
    leases: &'a LeaseRouter,
    deadline: Deadline,
}

impl LeaseStores for Calls<'_> {
    fn pairs(&self) -> &Leases {
        &self.leases.pairs
    }

    fn homes(&self, lease: LeaseId) -> Result<Homes, Status> {
        self.leases.homes(lease)
    }

    fn holder(&self, slot: u32) -> Holder {
        match self.leases.stores.by_slot(slot) {
            Some(store) => Holder::Store(store.index),
            None if self.leases.was_removed(slot) => Holder::Removed,
            None => Holder::Unknown,
        }
    }

    fn slot(&self, store: StoreIx) -> Option<Slot> {
        self.leases.stores.get(store).slot()
    }

    fn slot_for(&self, home: StoreIx, store: StoreIx) -> Result<Slot, Status> {
        let (home, store) = (self.leases.stores.get(home), self.leases.stores.get(store));
        store.slot().filter(|_| home.is_shard()).ok_or_else(|| lease_across_etcd(store))
    }

    fn is_etcd(&self, store: StoreIx) -> bool {
        !self.leases.stores.get(store).is_shard()
    }

    async fn take_over(&self, lease: LeaseId, etcd: StoreIx) -> Result<Option<StoreIx>, Status> {
        etcd::take_over(self.leases, lease, self.leases.stores.get(etcd), self.deadline).await
    }

    async fn attach_at_home(
        &self,
        lease: LeaseId,
        home: StoreIx,
        store: Slot,
    ) -> Result<Option<i64>, Status> {
        let home = self.leases.stores.get(home);
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
        let (store, home) = (self.leases.stores.get(store), self.leases.stores.get(home));
        if !store.is_shard() {
            return etcd::adopt(store, lease, granted_ttl, self.deadline).await;
        }
        let home_slot = home.slot().map_or(0, |slot| u32::from(slot.get()));
        let slots_before = self.leases.lease_slots_before(home);
        let request = shard::LeaseAdoptRequest { id: lease.get(), granted_ttl, home_slot, slots_before };
        let adopted = call(store, Effect::Read, self.deadline, || async {
            store.shard().lease_adopt(self.deadline.request(request.clone())).await
        });
        adopted.await.map(drop)
    }

    async fn end(&self, lease: LeaseId, store: StoreIx, denied_slots: Vec<u32>) -> Result<(), Status> {
        let store = self.leases.stores.get(store);
        if !store.is_shard() {
            // While its home is not known, the etcd's own time counts.
            return match denied_slots.is_empty() {
                true => etcd::end(store, lease, self.deadline).await,
                false => Ok(()),
            };
        }
        let request = shard::LeaseEndRequest { id: lease.get(), denied_slots };
        let ended = call(store, Effect::Read, self.deadline, || async {
            store.shard().lease_end(self.deadline.request(request.clone())).await
        });
        ended.await.map(drop)
    }

    /// Retries while the store refuses because keys are moving.
    async fn end_settled(&self, lease: LeaseId, store: StoreIx) -> Result<(), Status> {
        let mut waiting = Waiting::new(&self.leases.routing, Effect::Write, Instant::now() + MOVING_MAX);
        settled(&mut waiting, || self.end(lease, store, Vec::new())).await
    }

    async fn forget(&self, lease: LeaseId, home: StoreIx) -> Result<(), Status> {
        let home = self.leases.stores.get(home);
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
        let mut waiting = Waiting::new(&self.leases.routing, Effect::Write, until);
        settled(&mut waiting, || attach_once(self, lease, store, not_at_home)).await
    }
}

/// Refuses a lease with keys at a store that has no slot.
fn lease_across_etcd(store: &Store) -> Status {
    tracing::warn!(store = store.name(), "it has no slot, so no lease of another store can have keys there");
    grpc::refusal(&KindredError::Unsupported {
        what: "a lease with keys on a stock etcd and on another store",
        instead: "change anything in the configuration, so that this version gives the etcd a slot",
    })
}
