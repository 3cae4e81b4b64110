//! Changes the state in meta by compare-and-swap.

use std::sync::Arc;

use kindred_partition_config::state::ClusterState;

use super::client::Expect;
use super::live::Live;
use super::store::MetaStore;
use super::take::StateKeeper;
use super::{ATTEMPTS, ChangeError, MetaError, Next, STATE, lineage, order, write};

/// Reads the state on which a change may be based, and its revision in meta. A router that has not listed meta again after
/// a restore must not build on what is there: it would undo changes that it knows of.
///
/// # Errors
/// When meta cannot be asked, has no state or one of another cluster, or has lost a newer one.
pub async fn newest_state(meta: &impl MetaStore) -> Result<(ClusterState, i64), MetaError> {
    // Read before asking meta: while the answer is under way, this router may learn of a newer state than the answer
    // has.
    let known = order(&meta.state());
    let stored = meta.get(STATE).await?;
    let stored = stored.ok_or_else(|| MetaError::Unavailable("it has no state yet".to_owned()))?;
    let state = ClusterState::from_json(&stored.value)?;
    if let Some(why) = lineage::foreign(&meta.state(), &state) {
        return Err(MetaError::Foreign(why));
    }
    if order(&state) < known {
        let why = "it has lost its latest data and gets it back from the routers";
        return Err(MetaError::Unavailable(why.to_owned()));
    }
    Ok((state, stored.mod_revision))
}

/// Changes the state by compare-and-swap. `change` is called again if another change came first. On return this router
/// uses the new state, and has seen the other keys of the transaction.
///
/// # Errors
/// The refusal by `change`, or why meta did not accept it.
pub async fn change_state<E>(
    meta: &impl MetaStore,
    mut change: impl FnMut(&ClusterState) -> Result<Next, E>,
) -> Result<Arc<ClusterState>, ChangeError<E>> {
    for _ in 0..ATTEMPTS {
        let (state, mod_revision) = newest_state(meta).await?;
        // `change` must see the other keys that were written with this state, such as a move that began: otherwise
        // another move of the same keys would begin beside it.
        if !meta.heard(mod_revision).await {
            let why = "this router has not heard of its latest changes yet";
            return Err(MetaError::Unavailable(why.to_owned()).into());
        }
        let Next { state: next, mut writes, mut expects } = change(&state).map_err(ChangeError::Refused)?;
        let next = next.after(&state);
        if next == state && writes.is_empty() {
            return Ok(Arc::new(next));
        }
        expects.push(Expect { key: STATE.to_owned(), mod_revision });
        writes.push(write(&next)?);
        if let Some(revision) = meta.commit(&expects, writes).await? {
            let next = Arc::new(next);
            meta.take(next.clone());
            meta.heard(revision).await;
            return Ok(next);
        }
    }
    Err(MetaError::Contended.into())
}

impl StateKeeper {
    /// As [`change_state`].
    ///
    /// # Errors
    /// As there.
    pub async fn change<E>(
        self: &Arc<Self>,
        change: impl FnMut(&ClusterState) -> Result<Next, E>,
    ) -> Result<Arc<ClusterState>, ChangeError<E>> {
        let meta = self.cluster.meta.as_ref().ok_or(MetaError::None)?;
        change_state(&Live { keeper: self.clone(), meta: meta.clone() }, change).await
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::super::client::{Entries, Stored, Write};
    use super::*;

    /// A meta store to which nothing may be written, at a router that has not heard of what it has.
    pub(crate) struct Unheard {
        pub(crate) has: ClusterState,
        /// The state that the router uses.
        pub(crate) known: Arc<ClusterState>,
    }

    impl MetaStore for Unheard {
        async fn get(&self, _: &str) -> Result<Option<Stored>, MetaError> {
            Ok(Some(Stored { value: self.has.to_json().into(), mod_revision: 9 }))
        }

        async fn list(&self) -> Result<Entries, MetaError> {
            Ok(Entries::default())
        }

        async fn commit(&self, _: &[Expect], _: Vec<Write>) -> Result<Option<i64>, MetaError> {
            panic!("nothing is written")
        }

        async fn commit_under(&self, _: i64, _: Write) -> Result<bool, MetaError> {
            panic!("nothing is written")
        }

        async fn grant(&self, _: Duration) -> Result<i64, MetaError> {
            panic!("no lease is needed")
        }

        async fn renew(&self, _: i64) -> Result<bool, MetaError> {
            panic!("no lease is needed")
        }

        fn entries(&self) -> Arc<Entries> {
            Arc::default()
        }

        async fn heard(&self, _: i64) -> bool {
            false
        }

        fn state(&self) -> Arc<ClusterState> {
            self.known.clone()
        }

        fn take(&self, _: Arc<ClusterState>) {
            panic!("nothing is changed")
        }
    }

    /// A router that does not see the open moves begins none beside them.
    #[tokio::test]
    async fn nothing_is_changed_by_a_router_that_has_not_heard_of_the_latest_changes() {
        let config = kindred_partition_config::parse::DEFAULT_CONFIG;
        let config = kindred_partition_config::parse::parse_config(config).unwrap();
        let has = ClusterState::bootstrap(&config).unwrap();
        let meta = Unheard { known: Arc::new(has.clone()), has };
        let changed = change_state::<String>(&meta, |_| panic!("it would not see the moves")).await;
        assert!(matches!(changed, Err(ChangeError::Meta(MetaError::Unavailable(_)))), "{changed:?}");
    }
}
