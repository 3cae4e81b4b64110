//! How leases get to stores and end there, over any stores: a router's, or those of a simulation.

use std::collections::HashSet;
use std::sync::Mutex;

use futures_util::future::{join_all, try_join_all};
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_router_core::lease_attach::{Attaching, Command, Next, Reply};
use kindred_router_core::lease_fanout::{Said, combine, slot_of};
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tonic::Status;

use crate::not_owned::NotOwned;

/// The most pairs that are remembered; at that number all are forgotten.
const ATTACHED_MAX: usize = 1 << 16;

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

    pub(super) fn knows(&self, lease: LeaseId, store: StoreIx) -> bool {
        self.lock().contains(&(lease, store))
    }

    pub(super) fn remember(&self, lease: LeaseId, store: StoreIx) {
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

/// The possible homes of a lease, the likeliest first.
#[derive(Debug)]
pub struct Homes {
    /// The slots of all of them, removed stores included.
    pub slots: Vec<u32>,
    /// Those that can be asked.
    pub stores: Vec<StoreIx>,
}

/// The store that holds keys of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Store(StoreIx),
    /// It was removed, and its keys with it: they moved away or were lost (R14).
    Removed,
    /// No configuration that this router knows has it.
    Unknown,
}

/// What leases use of a router's stores.
pub trait LeaseStores {
    /// The pairs seen attached.
    fn pairs(&self) -> &Leases;
    /// The possible homes of a lease.
    ///
    /// # Errors
    /// When one of them is not known yet.
    fn homes(&self, lease: LeaseId) -> Result<Homes, Status>;
    /// The store that has a slot.
    fn holder(&self, slot: u32) -> Holder;
    /// The slot of a store; a stock etcd that an earlier version knew has none.
    fn slot(&self, store: StoreIx) -> Option<Slot>;
    /// The slot by which the home knows a store.
    ///
    /// # Errors
    /// When it has none.
    fn slot_for(&self, home: StoreIx, store: StoreIx) -> Result<Slot, Status>;
    /// Whether a store is a stock etcd, which tells nobody of its leases.
    fn is_etcd(&self, _store: StoreIx) -> bool {
        false
    }
    /// Makes a shard the home of a lease that a stock etcd granted. Returns that shard; `None` if the etcd has no lease
    /// of its own with this id.
    fn take_over(
        &self,
        _lease: LeaseId,
        _etcd: StoreIx,
    ) -> impl Future<Output = Result<Option<StoreIx>, Status>> {
        std::future::ready(Ok(None))
    }

    /// Tells the home that a store will hold keys of the lease. Returns the granted TTL; `None` if it does not have the
    /// lease.
    fn attach_at_home(
        &self,
        lease: LeaseId,
        home: StoreIx,
        store: Slot,
    ) -> impl Future<Output = Result<Option<i64>, Status>>;
    /// Tells a store of a lease and its home.
    fn adopt(
        &self,
        lease: LeaseId,
        store: StoreIx,
        granted_ttl: i64,
        home: StoreIx,
    ) -> impl Future<Output = Result<(), Status>>;
    /// Ends a lease at a store, which deletes the lease's keys. Idempotent. With `denied_slots` the lease is not known
    /// to be over; only the stores with these slots have said that they do not know it.
    fn end(
        &self,
        lease: LeaseId,
        store: StoreIx,
        denied_slots: Vec<u32>,
    ) -> impl Future<Output = Result<(), Status>>;
    /// Ends a lease that is over at a store of whose keys some may be moving.
    fn end_settled(&self, lease: LeaseId, store: StoreIx) -> impl Future<Output = Result<(), Status>>;
    /// Drops the record of a lease that is over at its home.
    fn forget(&self, lease: LeaseId, home: StoreIx) -> impl Future<Output = Result<(), Status>>;
    /// As [`attach_once`], until the home does not change any more.
    fn attach(
        &self,
        lease: LeaseId,
        store: StoreIx,
        not_at_home: bool,
    ) -> impl Future<Output = Result<bool, Status>>;
}

/// Sends a write that carries leases, which its store must know first. A write that was refused because of an unknown
/// lease was not executed, so it is sent once more after a new attach.
///
/// # Errors
/// As [`attach_all`], and those of the write.
pub async fn with_leases<T, Fut: Future<Output = Result<T, Status>>>(
    stores: &impl LeaseStores,
    leases: &[LeaseId],
    store: StoreIx,
    send: impl Fn() -> Fut,
) -> Result<T, Status> {
    attach_all(stores, leases, store).await?;
    match send().await {
        Err(status) if is_unknown_lease(&status) => match attach_again(stores, leases, store).await? {
            true => send().await,
            false => Err(status),
        },
        answered => answered,
    }
}

/// Whether a write failed because the store does not know the lease; nothing of it was executed then.
fn is_unknown_lease(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::LeaseNotFound)
}

/// Attaches these leases to the store, except those that this router knows to be attached. A lease that no home has is
/// left to the store to refuse, as is one that seems to have its home there: whoever made it may have chosen its id. Where
/// nobody would be refused, [`attach_again`] comes behind.
///
/// # Errors
/// When a home or the store cannot be asked.
pub async fn attach_all(stores: &impl LeaseStores, leases: &[LeaseId], store: StoreIx) -> Result<(), Status> {
    let is_unknown = |lease: &LeaseId| {
        let likely_home =
            !stores.is_etcd(store) && stores.slot(store).is_some_and(|slot| slot_of(*lease) == Some(slot));
        !likely_home && !stores.pairs().knows(*lease, store)
    };
    // All at a time: those that are missing in the pause of a move may be many.
    let attached =
        leases.iter().filter(|lease| is_unknown(lease)).map(|lease| stores.attach(*lease, store, false));
    try_join_all(attached).await.map(drop)
}

/// Attaches leases of which the store has said that it does not know them. Returns whether it knows one now.
///
/// # Errors
/// As [`attach_all`].
pub async fn attach_again(
    stores: &impl LeaseStores,
    leases: &[LeaseId],
    store: StoreIx,
) -> Result<bool, Status> {
    let attached = leases.iter().map(|lease| {
        stores.pairs().forget(*lease, store);
        stores.attach(*lease, store, true)
    });
    Ok(try_join_all(attached).await?.contains(&true))
}

/// Attaches the lease at its home and then at the store. `false` if the home seems to be the store itself, or if no
/// home has the lease.
///
/// # Errors
/// When a home or the store cannot be asked, or a home gave the lease away.
pub async fn attach_once(
    stores: &impl LeaseStores,
    lease: LeaseId,
    store: StoreIx,
    not_at_home: bool,
) -> Result<bool, Status> {
    let homes = stores.homes(lease)?;
    let mut moved = None;
    for home in homes.stores {
        if home == store {
            if not_at_home {
                continue;
            }
            // If the store does not have the lease, it refuses the write, and this pair is forgotten again.
            stores.pairs().remember(lease, store);
            return Ok(false);
        }
        let home = match stores.is_etcd(home) {
            false => home,
            true => match stores.take_over(lease, home).await? {
                Some(shard) if shard == store => {
                    stores.pairs().remember(lease, store);
                    return Ok(true);
                }
                Some(shard) => shard,
                None => continue,
            },
        };
        match attach_at(stores, lease, home, store).await {
            Ok(false) => {}
            Ok(true) => {
                stores.pairs().remember(lease, store);
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
    stores.end(lease, store, homes.slots).await?;
    Ok(false)
}

/// Attaches the lease at one home that may have it; `false` if that home does not.
async fn attach_at(
    stores: &impl LeaseStores,
    lease: LeaseId,
    home: StoreIx,
    store: StoreIx,
) -> Result<bool, Status> {
    let slot = stores.slot_for(home, store)?;
    let (mut at, mut command) = Attaching::begin();
    loop {
        let reply = match command {
            Command::AttachAtHome => match stores.attach_at_home(lease, home, slot).await? {
                Some(granted_ttl) => Reply::Attached { granted_ttl },
                None => Reply::Unknown,
            },
            Command::AdoptAtStore { granted_ttl } => {
                stores.adopt(lease, store, granted_ttl, home).await?;
                Reply::Done
            }
            Command::EndAtStore => {
                stores.end(lease, store, Vec::new()).await?;
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

/// Ends a lease that is over at all stores that hold keys of it, then drops its record at the home. Idempotent: several
/// routers may do it at once. `false` if a store could not be reached; then the home keeps the record and reports it
/// again.
pub async fn finish(stores: &impl LeaseStores, lease: LeaseId, home: StoreIx, attached: &[u32]) -> bool {
    // All at once: a store whose keys move away is done only when the target has the lease ended too.
    let ends = attached.iter().map(|slot| async move {
        let store = match stores.holder(*slot) {
            Holder::Store(store) => store,
            Holder::Removed => return true,
            Holder::Unknown => {
                tracing::warn!(%lease, slot, "a lease has keys on a store that the configuration does not have");
                return false;
            }
        };
        stores.pairs().forget(lease, store);
        if store == home {
            return true;
        }
        let ended = stores.end_settled(lease, store).await;
        if let Err(status) = &ended {
            tracing::info!(%lease, slot, error = status.message(), "lease not ended there yet");
        }
        ended.is_ok()
    });
    !join_all(ends).await.contains(&false) && stores.forget(lease, home).await.is_ok()
}

/// Asks each possible home in turn until one has the lease; `None` if none has.
///
/// # Errors
/// The first failure, if the lease may be at the home that failed.
pub async fn at_home<T, Fut>(
    homes: Vec<StoreIx>,
    ask: impl Fn(StoreIx) -> Fut,
) -> Result<Option<(StoreIx, T)>, Status>
where
    Fut: Future<Output = Result<Option<T>, Status>>,
{
    let mut said = Vec::new();
    for home in homes {
        let answer = match ask(home).await {
            Ok(Some(value)) => Said::Home(value),
            Ok(None) => Said::Unknown,
            Err(status) => Said::Failed(status),
        };
        let found = matches!(answer, Said::Home(_));
        said.push((home, answer));
        if found {
            break;
        }
    }
    combine(said)
}
