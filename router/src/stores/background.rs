//! The background tasks of one store. They run from when the store is added until it is removed.

use std::sync::Arc;

use super::{Store, monitor, releases};
use crate::app::App;
use crate::leases::{ended, heirs};

/// Starts the tasks.
pub fn start(app: &Arc<App>, store: &Arc<Store>) {
    until_removed(app, store, monitor::run(app.clone(), store.clone()));
    if store.is_shard() {
        until_removed(app, store, ended::follow(app.leases.clone(), store.clone()));
        until_removed(app, store, releases::run(store.clone()));
        until_removed(app, store, heirs::follow(app.leases.clone(), store.clone()));
    }
}

fn until_removed(app: &App, store: &Arc<Store>, task: impl Future<Output = ()> + Send + 'static) {
    let (killed, removed) = (app.drain.killed(), store.removed().clone());
    tokio::spawn(async move { killed.run_until_cancelled(removed.run_until_cancelled(task)).await });
}
