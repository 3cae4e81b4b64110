//! Moves leases whose home goes away (R12). A store that is drained hands its leases to its heir. The leases of a lost
//! store are rebuilt from what other stores adopted of them. An etcd that has all keys gets all leases.
//!
//! Every router does this for every shard, without state of its own: any router may repeat any step. Until a lease is
//! handed over, requests for it are refused as *moving* and so are retried; no store reports it as over meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use kindred_partition_config::ids::LeaseId;
use kindred_partition_config::state::{ClusterState, StoreState};
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use tonic::{Code, Status};

use super::LeaseRouter;
use crate::execute::{Deadline, Effect, call};
use crate::stores::Store;

/// The most leases in one call.
const BATCH: u32 = 256;
/// How many stores are told at a time of a lease's new home.
const AT_ONCE: usize = 32;
/// How often a drained store is checked, because routers with an older state may still grant leases there.
const AGAIN: Duration = Duration::from_secs(1);
/// How often any other store is checked.
const NOW_AND_THEN: Duration = Duration::from_secs(30);
/// The time limit of a call.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Looks after the leases at one shard, for ever.
pub async fn follow(homes: Arc<LeaseRouter>, store: Arc<Store>) {
    let mut states = homes.cluster.states();
    loop {
        store.state().wait_up().await;
        let state = states.borrow_and_update().clone();
        let again = match settle(&homes, &store, &state).await {
            Ok(true) => NOW_AND_THEN,
            Ok(false) => AGAIN,
            Err(status) => {
                tracing::debug!(
                    store = store.name(),
                    error = status.message(),
                    "leases wait for their new home"
                );
                AGAIN
            }
        };
        tokio::select! {
            () = homes.stores.ticks().sleep(again) => {}
            // The sender lives as long as the router.
            Ok(()) = states.changed() => {}
        }
    }
}

/// Hands over and rebuilds what is due at a store. Returns whether nothing is left to do until the state changes.
async fn settle(homes: &LeaseRouter, store: &Store, state: &ClusterState) -> Result<bool, Status> {
    let Some(slot) = store.slot().map(|slot| slot.get()) else { return Ok(true) };
    let Some(object) = state.stores.iter().find(|object| object.slot == Some(slot)) else { return Ok(true) };
    let drains = object.state == StoreState::Draining;
    if let Some(heir) = state.lease_heir(slot) {
        hand_over(homes, store, heir, drains).await?;
    }
    rebuild(homes, store, state).await?;
    if let Some(etcd) = homes.only_etcd() {
        show(homes, store, etcd).await?;
    }
    Ok(!drains)
}

/// Makes all leases of a shard known to the etcd that has all keys: its clients may be about to leave kindred.
async fn show(homes: &LeaseRouter, store: &Store, etcd: &Store) -> Result<(), Status> {
    let deadline = Deadline::within(CALL_MAX);
    let listed = call(store, Effect::Read, deadline, || async {
        store.lease().lease_leases(deadline.request(pb::LeaseLeasesRequest {})).await
    });
    let leases: Vec<LeaseId> =
        listed.await?.leases.into_iter().filter_map(|of| LeaseId::from_wire(of.id)).collect();
    for some in leases.chunks(AT_ONCE) {
        homes.attach_all(some, etcd, Deadline::within(CALL_MAX)).await?;
    }
    Ok(())
}

/// Hands all leases of a store to its heir. Without `begin`, only those whose transfer has begun.
async fn hand_over(homes: &LeaseRouter, store: &Store, heir: u16, begin: bool) -> Result<(), Status> {
    let Some(slot) = store.slot().map(|slot| u32::from(slot.get())) else { return Ok(()) };
    loop {
        let request = shard::HandOverRequest { max: BATCH, begin };
        let deadline = Deadline::within(CALL_MAX);
        let answer = call(store, Effect::Read, deadline, || async {
            store.leases().hand_over(deadline.request(request)).await
        });
        let leases = answer.await?.leases;
        if leases.is_empty() {
            return Ok(());
        }
        tracing::info!(store = store.name(), heir, leases = leases.len(), "leases go to another home");
        let ids = leases.iter().map(|lease| lease.id).collect();
        let with_old_home = |lease: shard::KnownLease| {
            let mut attached_slots = lease.attached_slots;
            attached_slots.push(slot);
            shard::KnownLease { attached_slots, ..lease }
        };
        take_over(homes, heir, leases.into_iter().map(with_old_home).collect(), slot).await?;
        let request = shard::HandedRequest { ids, heir_slot: heir.into() };
        let deadline = Deadline::within(CALL_MAX);
        call(store, Effect::Read, deadline, || async {
            store.leases().handed(deadline.request(request.clone())).await
        })
        .await?;
    }
}

/// Gives a home again to the leases that this store adopted from lost stores; each begins with its whole TTL.
async fn rebuild(homes: &LeaseRouter, store: &Store, state: &ClusterState) -> Result<(), Status> {
    let Some(slot) = store.slot().map(|slot| u32::from(slot.get())) else { return Ok(()) };
    for gone in state.removed_slots() {
        let Some(heir) = state.lease_heir(gone).or_else(|| state.lease_home()) else { continue };
        loop {
            let request = shard::AdoptedRequest { home_slots: vec![gone.into()], max: BATCH, above: None };
            let deadline = Deadline::within(CALL_MAX);
            let answer = call(store, Effect::Read, deadline, || async {
                store.leases().adopted(deadline.request(request.clone())).await
            });
            let leases = answer.await?.leases;
            if leases.is_empty() {
                break;
            }
            tracing::info!(
                store = store.name(),
                gone,
                heir,
                leases = leases.len(),
                "leases of a store that is gone"
            );
            let attached =
                |lease: shard::KnownLease| shard::KnownLease { attached_slots: vec![slot], ..lease };
            take_over(homes, heir, leases.into_iter().map(attached).collect(), gone.into()).await?;
        }
    }
    Ok(())
}

/// Makes the heir the home of these leases, and tells all stores that are attached to them.
pub(super) async fn take_over(
    homes: &LeaseRouter,
    heir: u16,
    leases: Vec<shard::KnownLease>,
    from: u32,
) -> Result<(), Status> {
    let heir_slot = u32::from(heir);
    let home =
        homes.stores.by_slot(heir_slot).ok_or_else(|| Status::unavailable("the heir is not known yet"))?;
    let others = |lease: &shard::KnownLease| {
        let slots = lease.attached_slots.iter().copied().filter(|slot| *slot != heir_slot);
        shard::KnownLease { attached_slots: slots.collect(), ..lease.clone() }
    };
    let leases: Vec<shard::KnownLease> = leases.iter().map(others).collect();
    let request = shard::InheritRequest { leases: leases.clone() };
    let deadline = Deadline::within(CALL_MAX);
    call(home, Effect::Read, deadline, || async {
        home.leases().inherit(deadline.request(request.clone())).await
    })
    .await?;
    let told = leases.iter().flat_map(|lease| lease.attached_slots.iter().map(move |at| (*at, lease)));
    let told: Vec<_> = told.map(|(at, lease)| tell(homes, at, lease, heir_slot, from)).collect();
    let mut told = stream::iter(told).buffer_unordered(AT_ONCE);
    let mut failed = None;
    while let Some(result) = told.next().await {
        failed = failed.or(result.err());
    }
    failed.map_or(Ok(()), Err)
}

/// Tells a store with keys of a lease where its home is. The former home learns that last, from the handover itself.
async fn tell(
    homes: &LeaseRouter,
    at: u32,
    lease: &shard::KnownLease,
    home_slot: u32,
    from: u32,
) -> Result<(), Status> {
    let Some(store) = homes.stores.by_slot(at) else {
        let removed = u16::try_from(at).is_ok_and(|slot| homes.cluster.state().is_removed_slot(slot));
        return if removed { Ok(()) } else { Err(Status::unavailable("a store is not known yet")) };
    };
    let mut slots_before: Vec<u32> = match u16::try_from(home_slot) {
        Ok(home) => homes.cluster.state().lease_slots_before(home).into_iter().map(u32::from).collect(),
        Err(_) => Vec::new(),
    };
    slots_before.push(from);
    let (id, granted_ttl) = (lease.id, lease.granted_ttl);
    let request = shard::LeaseAdoptRequest { id, granted_ttl, home_slot, slots_before };
    let deadline = Deadline::within(CALL_MAX);
    let adopted = call(store, Effect::Read, deadline, || async {
        store.shard().lease_adopt(deadline.request(request.clone())).await
    });
    match adopted.await {
        // The store has another lease with that id, so none of its keys are this lease's.
        Err(status) if status.code() == Code::FailedPrecondition || status.code() == Code::AlreadyExists => {
            let lease = LeaseId(id);
            tracing::warn!(store = store.name(), %lease, error = status.message(), "two leases of one id");
            Ok(())
        }
        adopted => adopted.map(drop),
    }
}

/// The number of leases whose home is a store. It must be zero before the store is removed (R12).
///
/// # Errors
/// The error of the store.
pub async fn left_at(store: &Store) -> Result<u64, Status> {
    let request = shard::HandOverRequest { max: 0, begin: false };
    let deadline = Deadline::within(CALL_MAX);
    let answer = call(store, Effect::Read, deadline, || async {
        store.leases().hand_over(deadline.request(request)).await
    });
    answer.await.map(|answer| answer.left)
}
