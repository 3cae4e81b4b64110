//! Observes a default store that is a stock etcd together with the shards beside it, so that a client's compaction of
//! the etcd reaches the shards (`kindred_router_core::revision_pairs`). Every router observes. The pairs are kept in
//! meta for routers that start later.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::revision_pairs::{Pair, RevisionPairs};

use super::client::{Expect, Write};
use super::{Meta, MetaError, REVISION_PAIRS};
use crate::app::App;
use crate::execute::Deadline;
use crate::execute::raise::{everything, raise};
use crate::snapshots::etcd_revision;

/// The interval of observations.
const EVERY: Duration = Duration::from_secs(1);
/// How many observations pass between two writes to meta.
const KEPT_EVERY: u64 = 10;
/// The time limit of an observation.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// Runs for ever.
pub async fn run(app: Arc<App>) {
    for turn in 0_u64.. {
        tokio::time::sleep(EVERY).await;
        if !look(&app).await {
            continue;
        }
        if let Some(meta) = app.cluster.meta.as_ref()
            && turn.is_multiple_of(KEPT_EVERY)
            && let Err(error) = keep(&app, meta).await
        {
            tracing::debug!(%error, "what a stock etcd's revisions mean is not kept yet");
        }
    }
}

/// Observes once; false if the default store is no stock etcd, or cannot be asked.
async fn look(app: &App) -> bool {
    let etcd = app.stores.get(app.stores.default_store());
    if etcd.is_shard() || !etcd.state().is_up() {
        return false;
    }
    let deadline = Deadline::within(LOOK_MAX);
    let shards = app.stores.up().filter(|store| store.is_shard());
    let clocks =
        join_all(shards.map(|store| raise(store, everything(), Revision::ZERO, Epoch::NONE, deadline))).await;
    let Some(clock) = clocks.into_iter().filter_map(Result::ok).min() else { return false };
    // The etcd is read after the shards: whatever is written to it from here on has a higher revision.
    let Ok(revision) = etcd_revision(etcd).await else { return false };
    let time = app.stores.clocks().reference().unwrap_or_default();
    let pair = Pair { time, etcd: revision.get(), clock };
    app.with_revision_pairs(etcd.name(), |pairs| pairs.note(pair));
    true
}

/// Merges what other routers have written to meta, and writes the result if meta's is old.
async fn keep(app: &App, meta: &Meta) -> Result<(), MetaError> {
    if meta.problem().is_some() {
        return Ok(());
    }
    let etcd = app.stores.get(app.stores.default_store()).name().to_owned();
    let stored = meta.client.get(REVISION_PAIRS).await?;
    let known =
        stored.as_ref().and_then(|stored| serde_json::from_slice::<RevisionPairs>(&stored.value).ok());
    let last = known.as_ref().filter(|known| known.store == etcd).and_then(RevisionPairs::last);
    let pairs = app.with_revision_pairs(&etcd, |pairs| {
        known.iter().for_each(|known| pairs.merge(known));
        pairs.clone()
    });
    let due = u64::try_from(EVERY.as_micros()).unwrap_or(u64::MAX).saturating_mul(KEPT_EVERY);
    let recent = |last: Pair| pairs.last().is_some_and(|ours| ours.time < last.time.saturating_add(due));
    if last.is_some_and(recent) {
        return Ok(());
    }
    let mod_revision = stored.map_or(0, |stored| stored.mod_revision);
    let expect = Expect { key: REVISION_PAIRS.to_owned(), mod_revision };
    let Ok(text) = serde_json::to_string(&pairs) else { return Ok(()) };
    // If another router was faster, its observations are as good.
    meta.client.commit(&[expect], vec![Write::put(REVISION_PAIRS, text)]).await.map(drop)
}

impl App {
    fn with_revision_pairs<T>(&self, etcd: &str, with: impl FnOnce(&mut RevisionPairs) -> T) -> T {
        let mut pairs = self.revision_pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.store != etcd {
            *pairs = RevisionPairs::of(etcd);
        }
        with(&mut pairs)
    }

    /// Compacts the shards in the background at the revision that corresponds to a compaction of the default store, a
    /// stock etcd.
    pub(crate) fn compact_beside(&self, etcd: &str, revision: i64) {
        match self.with_revision_pairs(etcd, |pairs| pairs.clock_of(revision)) {
            Some(clock) => {
                tracing::debug!(etcd, revision, %clock, "shards are compacted with the default store");
                self.owe_all(clock);
                self.compacted.fetch_max(clock.get(), std::sync::atomic::Ordering::AcqRel);
            }
            None => tracing::info!(
                etcd,
                revision,
                "the default store is compacted at a revision that it had before this was looked at; shards are not"
            ),
        }
    }
}
