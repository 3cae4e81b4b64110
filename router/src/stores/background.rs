//! The background tasks of one store. They run from when the store is added until it is removed.

use std::sync::Arc;

use kindred_transport::Drain;

use super::{Store, monitor, releases};
use crate::leases::{ended, heirs, orphans};
use crate::meta::take::StateKeeper;
use crate::outsiders::{bypass, direct};
use crate::standbys;

/// Starts the tasks.
pub fn start(keeper: &Arc<StateKeeper>, store: &Arc<Store>) {
    until_removed(&keeper.drain, store, monitor::run(keeper.clone(), store.clone()));
    if !store.is_shard() && keeper.cluster.meta.is_some() {
        until_removed(&keeper.drain, store, bypass::watch(store.clone()));
        until_removed(&keeper.drain, store, direct::follow(keeper.clone(), store.clone()));
    }
    if store.is_shard() {
        until_removed(&keeper.drain, store, ended::follow(keeper.leases.clone(), store.clone()));
        until_removed(&keeper.drain, store, releases::run(store.clone()));
        until_removed(&keeper.drain, store, standbys::run(keeper.clone(), store.clone()));
        until_removed(&keeper.drain, store, heirs::follow(keeper.leases.clone(), store.clone()));
        until_removed(&keeper.drain, store, orphans::follow(keeper.leases.clone(), store.clone()));
    }
}

fn until_removed(drain: &Drain, store: &Arc<Store>, task: impl Future<Output = ()> + Send + 'static) {
    let (killed, removed) = (drain.killed(), store.removed().clone());
    tokio::spawn(async move { killed.run_until_cancelled(removed.run_until_cancelled(task)).await });
}
