//! Restores what a shard has lost of its leases (R12): a standby that was promoted by force, or a shard that came back without its
//! newest records, does not know a lease of which other stores have keys, or not that they have. Nobody would end those.
//!
//! Whenever a shard is up again, every router tells it what other shards adopted from it. A lease that it does not have may be
//! on its way or about to end, so it is looked for twice; then the shard *inherits* it, with the whole TTL. Any router may
//! repeat that.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kindred_proto::{etcdserverpb as pb, shard_v1 as shard};
use tonic::{Code, Status};

use super::LeaseRouter;
use super::heirs::take_over;
use crate::execute::{Deadline, Effect, call};
use crate::not_owned::NotOwned;
use crate::stores::Store;
use crate::stores::state::Phase;

/// The most leases in one call.
const BATCH: u32 = 256;
/// How many calls run at a time.
const AT_ONCE: usize = 32;
/// The pause between the two looks.
const TWICE: Duration = Duration::from_secs(5);
/// The pause after a store could not be asked.
const AGAIN: Duration = Duration::from_secs(5);
/// The time limit of a call.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Leases by id, each with its granted TTL and the slots of the stores that adopted it.
type Adopted = BTreeMap<i64, (i64, BTreeSet<u32>)>;

/// Looks after the leases that a shard may have lost, for ever.
pub async fn follow(leases: Arc<LeaseRouter>, home: Arc<Store>) {
    loop {
        home.state().wait_up().await;
        let incarnation = match &*home.state().phase() {
            Phase::Up(identity) => identity.incarnation,
            _ => continue,
        };
        match restore(&leases, &home).await {
            Ok(()) => home.state().wait_other(incarnation).await,
            Err(status) => {
                tracing::debug!(
                    store = home.name(),
                    error = status.message(),
                    "lost leases are looked for later"
                );
                leases.stores.ticks().sleep(AGAIN).await;
            }
        }
    }
}

async fn restore(leases: &LeaseRouter, home: &Store) -> Result<(), Status> {
    let Some(slot) = home.slot().map(|slot| slot.get()) else { return Ok(()) };
    let (mut lost, known) = look(leases, home, slot).await?;
    let pairs = known.iter().flat_map(|lease| lease.attached_slots.iter().map(|at| (lease.id, *at)));
    let attached: Vec<_> = pairs.map(|(id, at)| attach(home, id, at)).collect();
    stream::iter(attached).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    if lost.is_empty() {
        return Ok(());
    }
    leases.stores.ticks().sleep(TWICE).await;
    let (still, _) = look(leases, home, slot).await?;
    lost.retain(|lease| still.iter().any(|other| other.id == lease.id));
    if !lost.is_empty() {
        let store = home.name();
        tracing::warn!(
            store,
            leases = lost.len(),
            "it has lost leases; they begin anew with their whole TTL"
        );
    }
    for some in lost.chunks(BATCH as usize) {
        take_over(leases, slot, some.to_vec(), slot.into()).await?;
    }
    Ok(())
}

/// Tells a home that a store has keys of a lease, unless the lease has ended since.
async fn attach(home: &Store, id: i64, store_slot: u32) -> Result<(), Status> {
    let request = shard::LeaseAttachRequest { id, store_slot };
    let deadline = Deadline::within(CALL_MAX);
    let attached = call(home, Effect::Read, deadline, || async {
        home.shard().lease_attach(deadline.request(request)).await
    });
    match attached.await {
        Err(status) if status.code() != Code::NotFound && NotOwned::of(&status).is_none() => Err(status),
        _ => Ok(()),
    }
}

/// The leases that other shards adopted from this one: those that it does not have, and those that it has.
async fn look(
    leases: &LeaseRouter,
    home: &Store,
    slot: u16,
) -> Result<(Vec<shard::KnownLease>, Vec<shard::KnownLease>), Status> {
    let mut adopted = Adopted::new();
    let is_other = |store: &&Arc<Store>| store.is_shard() && !store.is_removed() && store.index != home.index;
    for store in leases.stores.iter().filter(is_other) {
        adopted_at(store, slot, &mut adopted).await?;
    }
    if adopted.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let deadline = Deadline::within(CALL_MAX);
    let listed = call(home, Effect::Read, deadline, || async {
        home.lease().lease_leases(deadline.request(pb::LeaseLeasesRequest {})).await
    });
    let there: HashSet<i64> = listed.await?.leases.into_iter().map(|lease| lease.id).collect();
    let adopted = adopted.into_iter().map(|(id, (granted_ttl, slots))| shard::KnownLease {
        id,
        granted_ttl,
        attached_slots: slots.into_iter().collect(),
        home_slot: 0,
    });
    Ok(adopted.partition(|lease| !there.contains(&lease.id)))
}

/// Adds what a store adopted from the home with this slot.
async fn adopted_at(store: &Store, home: u16, adopted: &mut Adopted) -> Result<(), Status> {
    let Some(slot) = store.slot().map(|slot| u32::from(slot.get())) else { return Ok(()) };
    let mut above = None;
    loop {
        let request = shard::AdoptedRequest { home_slots: vec![home.into()], max: BATCH, above };
        let deadline = Deadline::within(CALL_MAX);
        let answer = call(store, Effect::Read, deadline, || async {
            store.leases().adopted(deadline.request(request.clone())).await
        });
        let page = answer.await?.leases;
        let highest = page.iter().map(|lease| lease.id).max();
        for lease in page {
            adopted.entry(lease.id).or_insert((lease.granted_ttl, BTreeSet::new())).1.insert(slot);
        }
        // A shard of an earlier version answers from the beginning each time.
        if highest.is_none() || highest <= above {
            return Ok(());
        }
        above = highest;
    }
}
