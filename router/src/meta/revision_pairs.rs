//! Observes a default store that is a stock etcd together with the shards beside it, so that a client's compaction of
//! the etcd reaches the shards (`kindred_router_core::revision_pairs`). Every router observes. The pairs are kept in
//! meta for routers that start later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_router_core::revision_pairs::{Pair, RevisionPairs};

use super::client::{Expect, Write};
use super::{Meta, MetaError, REVISION_PAIRS};
use crate::execute::Deadline;
use crate::execute::raise::{everything, raise};
use crate::snapshots::etcd_revision;
use crate::stores::Stores;

/// The interval of observations.
const EVERY: Duration = Duration::from_secs(1);
/// How many observations pass between two writes to meta.
const KEPT_EVERY: u64 = 10;
/// The time limit of an observation.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// What this router has observed of the default store while that is a stock etcd.
#[derive(Debug)]
pub struct Observed {
    stores: Stores,
    /// Which shard revisions correspond to the etcd's. Never locked across an await.
    pairs: Mutex<RevisionPairs>,
}

impl Observed {
    #[must_use]
    pub fn new(stores: Stores) -> Arc<Self> {
        Arc::new(Self { stores, pairs: Mutex::default() })
    }

    /// Observes for ever.
    pub async fn run(self: Arc<Self>, meta: Option<Arc<Meta>>) {
        for turn in 0_u64.. {
            self.stores.ticks().sleep(EVERY).await;
            if !self.look().await {
                continue;
            }
            if let Some(meta) = &meta
                && turn.is_multiple_of(KEPT_EVERY)
                && let Err(error) = self.keep(meta).await
            {
                tracing::debug!(%error, "what a stock etcd's revisions mean is not kept yet");
            }
        }
    }

    /// The shards' revision when the etcd was at this one; `None` if that was before the observations.
    #[must_use]
    pub fn clock_of(&self, etcd: &str, revision: i64) -> Option<Revision> {
        self.with_pairs(etcd, |pairs| pairs.clock_of(revision))
    }

    /// Observes once; false if the default store is no stock etcd, or cannot be asked.
    async fn look(&self) -> bool {
        let etcd = self.stores.get(self.stores.default_store());
        if etcd.is_shard() || !etcd.state().is_up() {
            return false;
        }
        let deadline = Deadline::within(LOOK_MAX);
        let shards = self.stores.up().filter(|store| store.is_shard());
        let clocks =
            join_all(shards.map(|store| raise(store, everything(), Revision::ZERO, Epoch::NONE, deadline)))
                .await;
        let Some(clock) = clocks.into_iter().filter_map(Result::ok).min() else { return false };
        // The etcd is read after the shards: whatever is written to it from here on has a higher revision.
        let Ok(revision) = etcd_revision(etcd).await else { return false };
        let time = self.stores.clocks().reference().unwrap_or_default();
        let pair = Pair { time, etcd: revision.get(), clock };
        self.with_pairs(etcd.name(), |pairs| pairs.note(pair));
        true
    }

    /// Merges what other routers have written to meta, and writes the result if meta's is old.
    async fn keep(&self, meta: &Meta) -> Result<(), MetaError> {
        if meta.problem().is_some() {
            return Ok(());
        }
        let etcd = self.stores.get(self.stores.default_store()).name().to_owned();
        let stored = meta.client.get(REVISION_PAIRS).await?;
        let known =
            stored.as_ref().and_then(|stored| serde_json::from_slice::<RevisionPairs>(&stored.value).ok());
        let last = known.as_ref().filter(|known| known.store == etcd).and_then(RevisionPairs::last);
        let pairs = self.with_pairs(&etcd, |pairs| {
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

    fn with_pairs<T>(&self, etcd: &str, with: impl FnOnce(&mut RevisionPairs) -> T) -> T {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.store != etcd {
            *pairs = RevisionPairs::of(etcd);
        }
        with(&mut pairs)
    }
}
