//! The cluster's state, kept in a meta store: any etcd v3 endpoints, apart from the stores that hold clients' keys.
//!
//! * Under `/kindred/` there are `state` (one [`ClusterState`], changed only by compare-and-swap), `moves/<id>`,
//!   `coordinators/<id>` and `compaction` (the highest accepted client compaction).
//! * Every router follows all of it ([`follow`]), swaps in newer maps ([`take`]) and keeps the last state in a file
//!   ([`cache`]). The source at a start is, in this order: meta, the file, `--config`, the embedded default ([`start`]).
//! * Meta down: traffic goes on with the last map; changes are refused with [`MetaError::Unavailable`].
//! * A state counts only for the cluster of its lineage ([`lineage`]): another cluster's file or meta store is left alone.
//! * A state is newer by its numbers, not by meta's revision: a meta store that comes back without its data, or with old
//!   data, gets the newest state that a router has.

pub mod cache;
pub mod client;
mod compactions;
pub mod follow;
pub mod lineage;
pub mod revision_pairs;
pub mod start;
pub mod take;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kindred_partition_config::ids::StoreName;
use kindred_partition_config::state::{ClusterState, StateError};
use kindred_transport::Endpoint;
use tokio::sync::watch;

use crate::app::App;
use client::{Entries, Expect, MetaClient, Write};
use lineage::Founding;

/// Everything of kindred's is below.
pub const PREFIX: &str = "/kindred/";
/// The cluster's state.
pub const STATE: &str = "/kindred/state";
/// Records of moves.
pub const MOVES: &str = "/kindred/moves/";
/// The highest client compaction that was accepted.
pub const COMPACTION: &str = "/kindred/compaction";
/// What revisions of a stock etcd that is the default store mean to shards.
pub const REVISION_PAIRS: &str = "/kindred/revisions";
/// How long a change waits until this router has heard of it from meta.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How often a change is tried while others change the state, too.
const ATTEMPTS: usize = 32;

/// Where meta is.
#[derive(Debug, Clone)]
pub struct MetaSettings {
    /// Its client addresses.
    pub endpoints: Vec<Endpoint>,
    /// Where the last state is kept for a start without meta.
    pub cache: Option<PathBuf>,
    /// `--store`: where stores listen, written to the state at the start.
    pub addresses: Vec<(StoreName, Vec<String>)>,
    /// `--config`, if it was given.
    pub config: Option<PathBuf>,
    /// `--cluster-id` and `--lineage`.
    pub founding: Founding,
}

/// Why meta did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Nothing was changed.
    #[error("the meta store cannot be used: {0}; traffic goes on with the last map, changes have to wait")]
    Unavailable(String),
    /// The connection was lost while a change was under way.
    #[error("the meta store's answer was lost ({0}): see whether the change was made before trying again")]
    Unknown(String),
    /// It answered with an error.
    #[error("the meta store refused: {0}")]
    Refused(String),
    /// The history asked for is gone there.
    #[error("the meta store has compacted what was asked for")]
    Compacted,
    /// It is another cluster's.
    #[error("the meta store is another cluster's: {0}")]
    Foreign(String),
    /// What it holds cannot be read.
    #[error("{STATE}: {0}")]
    State(#[from] StateError),
    /// A state that no router could go by.
    #[error("the cluster state would not be sound after it, so nothing was written: {0}")]
    Unsound(String),
    /// Others were faster every time.
    #[error("the cluster state was changed by others {ATTEMPTS} times meanwhile; try again")]
    Contended,
    /// This router has its map from a file.
    #[error("this router has no meta store, its configuration is fixed; start it with --meta")]
    None,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    /// The change itself is refused.
    #[error("{0}")]
    Refused(E),
    /// Meta did not take it.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// A change: the state after it, and what else is written in the same transaction.
#[derive(Debug)]
pub struct Next {
    /// The state.
    pub state: ClusterState,
    /// Other keys, such as records of moves.
    pub writes: Vec<Write>,
    /// What other keys must be for it, by their mod_revision.
    pub expects: Vec<Expect>,
}

impl From<ClusterState> for Next {
    fn from(state: ClusterState) -> Self {
        Self { state, writes: Vec::new(), expects: Vec::new() }
    }
}

/// What writes a state. Every state goes to meta through here: one that is not sound is never written, whoever asks.
///
/// # Errors
/// Everything that is wrong with it.
pub fn write(state: &ClusterState) -> Result<Write, MetaError> {
    match state.validated() {
        Ok(_) => Ok(Write::put(STATE, state.to_json())),
        Err(errors) => {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Err(MetaError::Unsound(errors.join("; ")))
        }
    }
}

/// The order of states of one cluster.
#[must_use]
pub fn order(state: &ClusterState) -> (u64, u64) {
    (state.generation.0, state.revision)
}

/// The connection to meta and what it last held.
#[derive(Debug)]
pub struct Meta {
    /// For what is not here.
    pub client: MetaClient,
    settings: MetaSettings,
    entries: watch::Sender<Arc<Entries>>,
    problem: watch::Sender<Option<String>>,
    /// Whether it was this router's cluster's at any time.
    confirmed: AtomicBool,
    /// Why nothing that this router goes by is to be used.
    stray: watch::Sender<Option<String>>,
}

impl Meta {
    /// Nothing has been read yet.
    #[must_use]
    pub fn new(client: MetaClient, settings: MetaSettings) -> Arc<Self> {
        let problem = watch::Sender::new(Some("not connected yet".to_owned()));
        let (confirmed, stray) = (AtomicBool::new(false), watch::Sender::default());
        Arc::new(Self { client, settings, entries: watch::Sender::default(), problem, confirmed, stray })
    }

    /// All keys as last seen, the state's included; for those who follow other keys than the state.
    #[must_use]
    pub fn entries(&self) -> watch::Receiver<Arc<Entries>> {
        self.entries.subscribe()
    }

    /// Waits until everything up to a revision of meta is in [`Self::entries`], but not for ever: meta may have gone away
    /// behind the answer that told of it.
    async fn heard(&self, revision: i64) {
        let mut entries = self.entries();
        let heard = entries.wait_for(|entries| entries.revision >= revision);
        if tokio::time::timeout(HEARD_WITHIN, heard).await.is_err() {
            tracing::warn!(revision, "the meta store has not told of a change within {HEARD_WITHIN:?}");
        }
    }

    /// Why meta is not followed now; `None` while it is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Why this router may not use what it goes by: it began with a file, and the meta store, which was away then, turned out
    /// to be of another cluster. `None` otherwise; a meta store that was this cluster's once changes nothing by becoming
    /// another's.
    #[must_use]
    pub fn stray(&self) -> Option<String> {
        self.stray.borrow().clone()
    }

    fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
        self.stray.send_replace(None);
    }

    fn doubt(&self, why: &str) {
        if !self.confirmed.load(Ordering::Acquire) && self.stray.borrow().is_none() {
            tracing::error!(
                why,
                "--meta-cache was another cluster's file: no store is used; restart this router"
            );
            self.stray.send_replace(Some(why.to_owned()));
        }
    }

    fn set_problem(&self, problem: Option<String>) {
        self.problem.send_if_modified(|old| {
            let changed = old.is_some() != problem.is_some();
            match &problem {
                None if changed => tracing::info!("the meta store is followed"),
                Some(why) if changed => {
                    tracing::warn!(why, "the meta store is away: traffic goes on, changes wait")
                }
                _ => {}
            }
            *old = problem;
            true
        });
    }
}

/// The state that this router goes by, and where it comes from.
#[derive(Debug)]
pub struct Cluster {
    /// The state that is in use.
    pub(crate) known: watch::Sender<Arc<ClusterState>>,
    /// `None` with a map from a file.
    pub meta: Option<Arc<Meta>>,
    /// What is wrong with the state in use, so that a part of it is not gone by.
    unsound: watch::Sender<Arc<[String]>>,
    /// What stores own otherwise than the map says.
    elsewhere: watch::Sender<Arc<[String]>>,
}

impl Cluster {
    /// This state is in use.
    #[must_use]
    pub fn new(state: ClusterState, meta: Option<Arc<Meta>>) -> Self {
        let unsound = watch::Sender::new(Arc::default());
        let elsewhere = watch::Sender::new(Arc::default());
        Self { known: watch::Sender::new(Arc::new(state)), meta, unsound, elsewhere }
    }

    /// What stores own otherwise than the map says, in words: the map in use is not the last one that was decided.
    #[must_use]
    pub fn elsewhere(&self) -> Arc<[String]> {
        self.elsewhere.borrow().clone()
    }

    /// Notes it, and says what is new in the log.
    pub(crate) fn note_elsewhere(&self, found: Vec<String>) {
        let before = self.elsewhere();
        for problem in found.iter().filter(|problem| !before.contains(problem)) {
            tracing::error!(
                problem,
                "stores own otherwise than the map says: run kindred reconcile, which says what it would do"
            );
        }
        if found.is_empty() && !before.is_empty() {
            tracing::info!("stores own what the map says");
        }
        self.elsewhere.send_replace(found.into());
    }

    /// What is wrong with the state in use; nothing, unless somebody wrote it past the routers.
    #[must_use]
    pub fn unsound(&self) -> Arc<[String]> {
        self.unsound.borrow().clone()
    }

    /// The state that is in use.
    #[must_use]
    pub fn state(&self) -> Arc<ClusterState> {
        self.known.borrow().clone()
    }

    /// To hear of newer ones.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<Arc<ClusterState>> {
        self.known.subscribe()
    }
}

impl App {
    /// Changes the state by compare-and-swap. `change` is called anew with what others made of it meanwhile; when this
    /// returns, this router goes by the new state, and knows what was written with it.
    ///
    /// # Errors
    /// What `change` says, or why meta did not take it.
    pub async fn change_state<E>(
        self: &Arc<Self>,
        mut change: impl FnMut(&ClusterState) -> Result<Next, E>,
    ) -> Result<Arc<ClusterState>, ChangeError<E>> {
        let meta = self.cluster.meta.as_ref().ok_or(MetaError::None)?;
        for _ in 0..ATTEMPTS {
            // Before it is asked: while the answer is under way this router may hear of a newer state than is in it.
            let known = order(&self.cluster.state());
            let Some(stored) = meta.client.get(STATE).await? else {
                return Err(MetaError::Unavailable("it has no state yet".to_owned()).into());
            };
            let state = ClusterState::from_json(&stored.value).map_err(MetaError::from)?;
            if let Some(why) = lineage::foreign(&self.cluster.state(), &state) {
                return Err(MetaError::Foreign(why).into());
            }
            if order(&state) < known {
                let why = "it has lost its latest data and gets it back from the routers";
                return Err(MetaError::Unavailable(why.to_owned()).into());
            }
            // What was written with it, such as a move that began, is to be known to who decides about the change.
            meta.heard(stored.mod_revision).await;
            let Next { state: next, mut writes, mut expects } =
                change(&state).map_err(ChangeError::Refused)?;
            let next = next.after(&state);
            if next == state && writes.is_empty() {
                return Ok(Arc::new(next));
            }
            expects.push(Expect { key: STATE.to_owned(), mod_revision: stored.mod_revision });
            writes.push(write(&next)?);
            if let Some(revision) = meta.client.commit(&expects, writes).await? {
                let next = Arc::new(next);
                self.take(next.clone());
                meta.heard(revision).await;
                return Ok(next);
            }
        }
        Err(MetaError::Contended.into())
    }
}

#[cfg(test)]
mod tests {
    use kindred_transport::connect::Connector;

    use super::*;

    /// A move that was answered with its number is there for whoever asks for it next.
    #[tokio::test]
    async fn a_change_is_over_when_this_router_has_heard_of_it() {
        let client =
            MetaClient::new(&["http://127.0.0.1:1".parse().unwrap()], &Connector::with_tls(None)).unwrap();
        let settings = MetaSettings {
            endpoints: Vec::new(),
            cache: None,
            addresses: Vec::new(),
            config: None,
            founding: Founding::default(),
        };
        let meta = Meta::new(client, settings);
        let waiting = tokio::spawn({
            let meta = meta.clone();
            async move { meta.heard(5).await }
        });
        let tell = |revision| meta.entries.send_replace(Arc::new(Entries { revision, ..Entries::default() }));
        for revision in [3, 4] {
            tell(revision);
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished(), "at {revision}");
        }
        tell(5);
        waiting.await.unwrap();
    }
}
