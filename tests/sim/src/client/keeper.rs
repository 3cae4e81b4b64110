//! Clients that grant, use, keep and end leases, and one that compacts, as kube-apiserver does.

use std::rc::Rc;

use kindred_partition_config::ids::{LeaseId, Revision};

use super::Clients;
use super::writer::What;
use crate::history::{Compaction, WriteAnswer};

/// Grants, uses, renews and ends leases, so many of them.
pub async fn leases(clients: Rc<Clients>, steps: usize) {
    let world = clients.world.clone();
    let mut held: Vec<LeaseId> = Vec::new();
    for step in 0..steps {
        clients.pause().await;
        if clients.over.get() {
            return;
        }
        let router = clients.any_router();
        if held.is_empty() || world.chance(15) {
            let ttl_s = *world.pick(&[1, 2, 5, 60]);
            let (granted, _) =
                clients.ask(router, move |router| async move { router.lease_grant(ttl_s).await }).await;
            world.note(format_args!("grant for {ttl_s} s: {granted:?}"));
            let order = world.order();
            clients.history.write().granted.extend(granted.ok().map(|id| (order, id)));
            held.extend(granted.ok());
            continue;
        }
        let id = *world.pick(&held);
        match world.below(10) {
            0 => {
                let (kept, _) =
                    clients.ask(router, move |router| async move { router.lease_keep_alive(id).await }).await;
                world.note(format_args!("keep alive {id}: {kept:?}"));
            }
            1..=2 => {
                let (ended, _) =
                    clients.ask(router, move |router| async move { router.lease_revoke(id).await }).await;
                world.note(format_args!("revoke {id}: {ended:?}"));
            }
            _ => {
                let kind = clients.any_kind();
                let key = clients.any_key(kind);
                let value = format!("lease.{step}");
                let wrote = clients.write(router, kind, key, value, What::Put(Some(id))).await;
                if wrote == WriteAnswer::NoLease && world.chance(50) {
                    held.retain(|held| *held != id);
                }
            }
        }
    }
}

/// Asks for so many compactions.
pub async fn compactions(clients: Rc<Clients>, amount: usize) {
    for _ in 0..amount {
        clients.pause().await;
        clients.pause().await;
        if clients.over.get() {
            return;
        }
        let seen: Vec<Revision> = clients.seen.borrow().iter().flatten().copied().collect();
        if seen.is_empty() {
            continue;
        }
        let at = *clients.world.pick(&seen);
        let router = clients.any_router();
        let (result, times) =
            clients.ask(router, move |router| async move { router.compact(at).await }).await;
        clients.world.note(format_args!("compact {at}: {result:?}"));
        clients.history.write().compactions.push(Compaction { times, at, done: result.is_ok() });
    }
}
