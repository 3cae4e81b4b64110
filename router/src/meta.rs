//! The cluster's state, kept in a meta store: any etcd v3 endpoints, apart from the stores that hold clients' keys.
//!
//! * Under `/kindred/` are `state` (one [`ClusterState`], changed only by compare-and-swap), `moves/<id>`,
//!   `coordinators/<id>`, `compaction` (the highest accepted compaction of a client), `auth` (users and roles, [`auth`]),
//!   `advice` (what `kindred advise` decided) and `routers/<id>` (who is there, [`routers`]).
//! * Every router follows all of these keys ([`follow`]), swaps in newer maps ([`take`]) and keeps the last state in a
//!   file ([`cache`]). A start takes the state from meta, else the file, else `--config`, else the embedded default
//!   ([`start`]).
//! * While meta is down, traffic goes on with the last map, and changes are refused with [`MetaError::Unavailable`].
//! * A state counts only for the cluster of its lineage ([`lineage`]): the file or meta store of another cluster is
//!   left alone.
//! * States are ordered by their own numbers, not by meta's revision: a meta store that comes back empty, or with old
//!   data, gets the newest state that a router has.

pub mod auth;
pub mod cache;
pub mod change;
pub mod client;
mod compactions;
pub mod follow;
pub mod lineage;
pub mod live;
mod members;
pub mod revision_pairs;
pub mod routers;
pub mod start;
pub mod store;
pub mod take;
mod written;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kindred_partition_config::ids::StoreName;
use kindred_partition_config::state::{ClusterState, StateError};
use kindred_transport::Endpoint;
use tokio::sync::watch;

use client::{Entries, Expect, MetaClient, Write};
use lineage::Founding;

/// The prefix of all keys of kindred in meta.
pub const PREFIX: &str = "/kindred/";
pub const STATE: &str = "/kindred/state";
/// The prefix of the records of moves.
pub const MOVES: &str = "/kindred/moves/";
/// The highest compaction of a client that was accepted.
pub const COMPACTION: &str = "/kindred/compaction";
/// Which shard revisions correspond to those of a default store that is a stock etcd.
pub const REVISION_PAIRS: &str = "/kindred/revisions";
/// The last decisions of `kindred advise`.
pub const ADVICE: &str = "/kindred/advice";
/// The users and roles of clients.
pub const AUTH: &str = "/kindred/auth";
/// How long a change waits until this router's follower has seen it in meta.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How often a change is tried when other changes of the state collide with it.
pub(crate) const ATTEMPTS: usize = 32;

/// How to reach meta, and with what a start begins.
#[derive(Debug, Clone)]
pub struct MetaSettings {
    pub endpoints: Vec<Endpoint>,
    /// The file that keeps the last state, for a start without meta.
    pub cache: Option<PathBuf>,
    /// `--store`: the addresses of stores, which are written to the state at the start.
    pub addresses: Vec<(StoreName, Vec<String>)>,
    /// `--config`, if given.
    pub config: Option<PathBuf>,
    /// `--cluster-id` and `--lineage`.
    pub founding: Founding,
}

/// Why a call to meta failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Meta could not be used; nothing was changed.
    #[error("the meta store cannot be used: {0}; traffic goes on with the last map, changes have to wait")]
    Unavailable(String),
    /// The answer to a change was lost, so it may have been made.
    #[error("the meta store's answer was lost ({0}): see whether the change was made before trying again")]
    Unknown(String),
    /// Meta answered with an error.
    #[error("the meta store refused: {0}")]
    Refused(String),
    /// Meta has compacted the history that was asked for.
    #[error("the meta store has compacted what was asked for")]
    Compacted,
    /// The meta store belongs to another cluster.
    #[error("the meta store is another cluster's: {0}")]
    Foreign(String),
    /// The state in meta cannot be parsed.
    #[error("{STATE}: {0}")]
    State(#[from] StateError),
    /// The new state would be invalid, so it was not written.
    #[error("the cluster state would not be sound after it, so nothing was written: {0}")]
    Unsound(String),
    /// Other changes came first at every try.
    #[error("the cluster state was changed by others {ATTEMPTS} times meanwhile; try again")]
    Contended,
    /// This router has no meta store.
    #[error("this router has no meta store, its configuration is fixed; start it with --meta")]
    None,
}

/// Why the state was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    /// The change itself was refused.
    #[error("{0}")]
    Refused(E),
    /// Meta did not accept it.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// A change: the new state, and what else the same transaction writes.
#[derive(Debug)]
pub struct Next {
    pub state: ClusterState,
    /// Writes of other keys, such as records of moves.
    pub writes: Vec<Write>,
    /// Conditions on other keys.
    pub expects: Vec<Expect>,
}

impl From<ClusterState> for Next {
    fn from(state: ClusterState) -> Self {
        Self { state, writes: Vec::new(), expects: Vec::new() }
    }
}

/// The write of a state. Every write of a state comes from here, so that an invalid state is never written.
///
/// # Errors
/// All that is wrong with the state.
pub fn write(state: &ClusterState) -> Result<Write, MetaError> {
    match state.validated() {
        Ok(_) => Ok(Write::put(STATE, state.to_json())),
        Err(errors) => {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Err(MetaError::Unsound(errors.join("; ")))
        }
    }
}

/// What states of one cluster are ordered by; a higher pair is newer.
#[must_use]
pub fn order(state: &ClusterState) -> (u64, u64) {
    (state.generation.0, state.revision)
}

/// The connection to meta, and its keys as last seen.
#[derive(Debug)]
pub struct Meta {
    /// For direct calls.
    pub client: MetaClient,
    settings: MetaSettings,
    entries: watch::Sender<Arc<Entries>>,
    problem: watch::Sender<Option<String>>,
    /// Whether meta has ever held a state of this router's cluster.
    confirmed: AtomicBool,
    /// If set, the reason why this router must not use its state or any store.
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

    /// All keys of kindred as last seen, the state included.
    #[must_use]
    pub fn entries(&self) -> watch::Receiver<Arc<Entries>> {
        self.entries.subscribe()
    }

    /// Waits until [`Self::entries`] contains this revision of meta, for at most [`HEARD_WITHIN`]: meta may have gone
    /// away right after it answered. Returns whether they do.
    async fn heard(&self, revision: i64) -> bool {
        let mut entries = self.entries();
        let heard = entries.wait_for(|entries| entries.revision >= revision);
        let in_time = tokio::time::timeout(HEARD_WITHIN, heard).await.is_ok();
        if !in_time {
            tracing::warn!(revision, "the meta store has not told of a change within {HEARD_WITHIN:?}");
        }
        in_time
    }

    /// Why meta is not being followed; `None` while it is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Why this router must not use its state: it started from a file while meta was away, and meta turned out to
    /// belong to another cluster. `None` otherwise. Once meta was found to be this cluster's, this stays `None`, even
    /// if it changes later.
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

/// The state that this router uses, and its source.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) known: watch::Sender<Arc<ClusterState>>,
    /// `None` if the map comes from a file.
    pub meta: Option<Arc<Meta>>,
    /// What is wrong with the state in use; the parts concerned are ignored.
    unsound: watch::Sender<Arc<[String]>>,
    /// Where stores own other units than the map says.
    elsewhere: watch::Sender<Arc<[String]>>,
}

impl Cluster {
    /// Begins with this state.
    #[must_use]
    pub fn new(state: ClusterState, meta: Option<Arc<Meta>>) -> Self {
        let unsound = watch::Sender::new(Arc::default());
        let elsewhere = watch::Sender::new(Arc::default());
        Self { known: watch::Sender::new(Arc::new(state)), meta, unsound, elsewhere }
    }

    /// Where stores own other units than the map says, in words. Not empty means that the map in use is not the last
    /// one that was decided.
    #[must_use]
    pub fn elsewhere(&self) -> Arc<[String]> {
        self.elsewhere.borrow().clone()
    }

    /// Stores these differences, and logs the new ones.
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

    /// What is wrong with the state in use; empty unless somebody wrote it without a router.
    #[must_use]
    pub fn unsound(&self) -> Arc<[String]> {
        self.unsound.borrow().clone()
    }

    #[must_use]
    pub fn state(&self) -> Arc<ClusterState> {
        self.known.borrow().clone()
    }

    /// A receiver of the states that come into use.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<Arc<ClusterState>> {
        self.known.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use kindred_transport::connect::Connector;

    use super::*;

    /// A move whose number was in an answer is visible to whoever asks for it next.
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
        assert!(waiting.await.unwrap());
    }
}
