//! The users and roles in meta, under [`AUTH`]: one document, which every router follows.
//!
//! * It is changed by compare-and-swap, and is in use at this router when the change is answered.
//! * Documents are ordered by their own count of changes, as states are by theirs: a meta store that has lost the document,
//!   or has an older one, gets the newest one that a router has. So nobody turns authentication off by losing data.
//! * The last one is kept in a file beside `--meta-cache`, also that there is none yet. A router that starts while meta is
//!   away goes by it. Without that file it refuses clients until it has heard of meta.
//! * A document that a later version has written refuses all clients: what it forbids is not known.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::Lineage;
use kindred_partition_config::state::ClusterState;
use kindred_router_core::auth::{AuthState, Rules};
use kindred_transport::private;
use kindred_wire::error::EtcdError;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::client::{Entries, Expect, Stored, Write};
use super::{ATTEMPTS, AUTH, ChangeError, Cluster, Meta, MetaError};
use crate::auth::{Gate, signer};

/// The pause before meta is given a document again that it has lost.
const AGAIN: Duration = Duration::from_secs(1);

/// The users and roles of a router's cluster.
#[derive(Debug)]
pub struct Users {
    /// Goes by them.
    pub gate: Arc<Gate>,
    /// Whose they are.
    pub cluster: Arc<Cluster>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

/// What the file has.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kept {
    /// The cluster.
    lineage: Option<Lineage>,
    /// The document, as in meta.
    document: String,
}

impl Users {
    /// Those of a router without a meta store, which has none.
    #[must_use]
    pub fn none(cluster: Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self { gate: Gate::open(), cluster, writing: Mutex::default() })
    }

    /// Those that a router begins with: meta's, or the file's, whichever is newer.
    ///
    /// # Errors
    /// When the file is there and cannot be read: without it, an older document could count.
    pub async fn start(cluster: Arc<Cluster>) -> anyhow::Result<Arc<Self>> {
        let Some(meta) = cluster.meta.clone() else { return Ok(Self::none(cluster)) };
        let gate =
            Gate::closed("the meta store is away, and --meta-cache has no file of an earlier run beside it");
        let this = Arc::new(Self { gate, cluster, writing: Mutex::default() });
        if let Some(path) = this.file()
            && let Some(kept) = read(&path, &this.cluster.state())?
        {
            this.gate.take(kept);
        }
        match meta.client.get(AUTH).await {
            Ok(stored) => match document(stored.as_ref()) {
                Ok(found) => this.take(found).await,
                Err(error) => this.gate.close(&error.to_string()),
            },
            Err(error) => {
                tracing::warn!(%error, "starting with the last users and roles of the file beside --meta-cache");
            }
        }
        Ok(this)
    }

    /// The file, beside that of the state.
    fn file(&self) -> Option<PathBuf> {
        let cache = self.cluster.meta.as_ref()?.settings.cache.as_ref()?;
        let mut name = cache.file_name().unwrap_or_default().to_owned();
        name.push(".auth");
        Some(cache.with_file_name(name))
    }

    /// Takes a document into use, unless it is older than the one in use, and keeps it in the file.
    async fn take(&self, state: AuthState) {
        if self.gate.take(state) {
            self.keep().await;
        }
    }

    async fn keep(&self) {
        let Some(path) = self.file() else { return };
        let _writing = self.writing.lock().await;
        // Read with the lock held, so that the last one to write writes the newest.
        let Ok(rules) = self.gate.rules() else { return };
        let lineage = self.cluster.state().lineage.clone();
        let kept = Kept { lineage, document: rules.state().to_json() };
        let written = tokio::task::spawn_blocking(move || {
            let text = serde_json::to_vec(&kept).map_err(std::io::Error::other)?;
            private::write(&path, &text)
        });
        if let Ok(Err(error)) = written.await {
            tracing::error!(
                %error,
                "the users and roles were not written beside --meta-cache; a start without the meta store would use older ones"
            );
        }
    }

    /// The meta store, if it can be used now.
    fn meta(&self) -> Result<&Arc<Meta>, MetaError> {
        let meta = self.cluster.meta.as_ref().ok_or(MetaError::None)?;
        match meta.problem() {
            None => Ok(meta),
            Some(problem) => Err(MetaError::Unavailable(problem)),
        }
    }

    /// The newest rules: meta is asked, because another router may have changed them just now. While meta is away, those in
    /// use.
    ///
    /// # Errors
    /// When none are known.
    pub async fn newest(&self) -> Result<Arc<Rules>, tonic::Status> {
        if let Ok(meta) = self.meta()
            && let Ok(stored) = meta.client.get(AUTH).await
            && let Ok(found) = document(stored.as_ref())
        {
            self.take(found).await;
        }
        self.gate.rules()
    }

    /// Changes users and roles. `change` is called again if another change came first. On return, this router goes by the
    /// new ones.
    ///
    /// # Errors
    /// The refusal by `change`, or why meta did not accept it.
    pub async fn change(
        &self,
        mut change: impl FnMut(&AuthState) -> Result<AuthState, EtcdError>,
    ) -> Result<(), ChangeError<EtcdError>> {
        let meta = self.meta()?;
        for _ in 0..ATTEMPTS {
            // Read before asking meta, as the state is.
            let known = self.gate.rules().map_or(0, |rules| rules.state().change);
            let stored = meta.client.get(AUTH).await?;
            let state = document(stored.as_ref())?;
            if state.change < known {
                let why = "it has lost the latest users and roles and gets them back from the routers";
                return Err(MetaError::Unavailable(why.to_owned()).into());
            }
            let next = change(&state).map_err(ChangeError::Refused)?;
            if next == state {
                self.take(state).await;
                return Ok(());
            }
            let key = signer::new_key().ok_or_else(|| {
                MetaError::Refused("this machine has no random numbers for the key of tokens".to_owned())
            })?;
            let next = next.after(&state, &key);
            let mod_revision = stored.map_or(0, |stored| stored.mod_revision);
            let expect = Expect { key: AUTH.to_owned(), mod_revision };
            if meta.client.commit(&[expect], vec![Write::put(AUTH, next.to_json())]).await?.is_some() {
                self.take(next).await;
                return Ok(());
            }
        }
        Err(MetaError::Contended.into())
    }

    /// Follows meta for ever.
    pub async fn follow(self: Arc<Self>) {
        let Some(meta) = self.cluster.meta.clone() else { return };
        let mut entries = meta.entries();
        loop {
            let seen = entries.borrow_and_update().clone();
            if seen.revision > 0 && !self.heard(&meta, &seen).await {
                // It is given back once more, even if nothing is heard until then.
                let _ = tokio::time::timeout(AGAIN, entries.changed()).await;
            } else if entries.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes what meta has. Returns false if it has lost what this router has, and has not got it back.
    async fn heard(&self, meta: &Meta, seen: &Entries) -> bool {
        let stored = seen.keys.get(AUTH);
        let found = match document(stored) {
            Ok(found) => found,
            Err(error) => {
                self.gate.close(&error.to_string());
                return true;
            }
        };
        let lost = self.gate.rules().ok().filter(|rules| found.change < rules.state().change);
        let Some(rules) = lost else {
            self.take(found).await;
            return true;
        };
        // What was seen may be old itself: meta has the last word on the version that it has.
        let stored = match meta.client.get(AUTH).await {
            Ok(stored) => stored,
            Err(_) => return false,
        };
        match document(stored.as_ref()) {
            Ok(found) if found.change < rules.state().change => {
                tracing::warn!("the meta store has lost users and roles: it gets those of this router");
                let mod_revision = stored.map_or(0, |stored| stored.mod_revision);
                let expect = Expect { key: AUTH.to_owned(), mod_revision };
                let write = Write::put(AUTH, rules.state().to_json());
                matches!(meta.client.commit(&[expect], vec![write]).await, Ok(Some(_)))
            }
            _ => true,
        }
    }
}

/// The document in meta; that without users if there is none.
fn document(stored: Option<&Stored>) -> Result<AuthState, MetaError> {
    let Some(stored) = stored else { return Ok(AuthState::default()) };
    AuthState::from_json(&stored.value).map_err(|error| MetaError::Refused(format!("{AUTH}: {error}")))
}

/// The document in the file; `None` if there is no file of this cluster.
fn read(path: &Path, state: &ClusterState) -> anyhow::Result<Option<AuthState>> {
    let wrong = |why: String| {
        anyhow::anyhow!(
            "{} beside --meta-cache: {why}; remove it to go on with the meta store's alone",
            path.display()
        )
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let kept: Kept = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if kept.lineage != state.lineage {
        tracing::error!(file = %path.display(), "users and roles of another cluster are not used");
        return Ok(None);
    }
    AuthState::from_json(kept.document.as_bytes()).map(Some).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::ClusterId;
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};

    use super::*;

    fn of(lineage: &str) -> ClusterState {
        let state = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        state.founded(ClusterId(7), &Lineage(lineage.to_owned()))
    }

    #[test]
    fn the_file_of_this_cluster_counts_and_a_broken_one_stops_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json.auth");
        assert_eq!(read(&path, &of("a")).unwrap(), None);
        let state = AuthState::default().user_add("u", None).unwrap();
        let kept = Kept { lineage: Some(Lineage("a".to_owned())), document: state.to_json() };
        std::fs::write(&path, serde_json::to_vec(&kept).unwrap()).unwrap();
        assert_eq!(read(&path, &of("a")).unwrap(), Some(state));
        assert_eq!(read(&path, &of("b")).unwrap(), None, "another cluster's");
        for broken in ["", "{}", "{\"lineage\":\"a\",\"document\":\"{}\"}"] {
            std::fs::write(&path, broken).unwrap();
            let error = read(&path, &of("a")).unwrap_err().to_string();
            assert!(error.contains("state.json.auth"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_router_without_meta_has_no_users_and_says_so() {
        let users = Users::none(Arc::new(Cluster::new(of("a"), None)));
        assert!(users.gate.is_off());
        let refused = users.change(|state| state.user_add("u", None)).await.unwrap_err().to_string();
        assert!(refused.contains("--meta"), "{refused}");
    }
}
